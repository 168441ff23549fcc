"""torchvision's ImageFolder over an archive."""
import io
from collections.abc import Sequence

from onepot._dataset import Dataset, _is_many, as_archive
from onepot import _core

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class _File(io.BytesIO):
    """A sample as a binary file with a name."""

    def __init__(self, data, name):
        super().__init__(data)
        self.name = name


def pil_loader(file):
    """An RGB image of PIL from a binary file."""
    from PIL import Image

    return Image.open(file).convert("RGB")


class _Samples(Sequence):
    """(name, class number) of each sample, looked up when asked for."""

    def __init__(self, archive):
        self._names, self._labels = archive.names, memoryview(archive.labels)

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self._names[i], self._labels[i]


class ImageFolder(Dataset):
    """ImageFolder(archive, root="", transform=None, target_transform=None, loader=pil_loader,
                is_valid_file=None)

    A drop-in for torchvision.datasets.ImageFolder: dataset[i] is (image, class number), with the
    classes, numbers and order that torchvision gives to the extracted tree. root is the
    directory in the archive whose children are the classes.

    loader is called with a binary file (seekable, .name is the path in the archive), where
    torchvision's is called with a path. Without is_valid_file (called with a path in the
    archive) the files that end as images do are taken, see IMG_EXTENSIONS.

    classes         list of str, sorted
    class_to_idx    dict of str to int
    samples, imgs   sequence of (path in the archive, class number), never a list in memory
    targets         memoryview, int64 [samples]

    FileNotFoundError: no class, or one without a file, as torchvision has it.
    """

    def __init__(self, archive, root="", transform=None, target_transform=None,
                 loader=pil_loader, is_valid_file=None):
        if isinstance(archive, _core.Archive):
            if root:
                raise ValueError("root is given to the Archive, where there is one already")
        else:
            extensions = None if is_valid_file else IMG_EXTENSIONS
            archive = _core.Archive(archive, root=root or None, extensions=extensions)
        labels = memoryview(archive.labels)
        if is_valid_file is not None or any(label < 0 for label in labels):
            valid = is_valid_file or (lambda name: True)
            archive = archive.subset(
                [i for i, (name, label) in enumerate(zip(archive.names, labels))
                 if label >= 0 and valid(name)])
        super().__init__(archive, transform, target_transform)
        self.loader = loader
        self.classes = archive.classes
        self.class_to_idx = archive.class_to_idx
        self._check_classes(root)

    def _check_classes(self, root):
        if not self.classes:
            raise FileNotFoundError("Couldn't find any class folder in '%s'." % root)
        found = set(self.targets)
        empty = [name for i, name in enumerate(self.classes) if i not in found]
        if empty:
            raise FileNotFoundError(
                "Found no valid file for the classes %s." % ", ".join(empty))

    @property
    def samples(self):
        return _Samples(self.archive)

    imgs = samples

    @property
    def targets(self):
        return memoryview(self.archive.labels)

    def _image(self, data, name, label):
        return self._pair(self.loader(_File(data, name)), label)

    def __getitem__(self, index):
        if _is_many(index) or isinstance(index, slice):
            return super().__getitem__(index)
        sample = self.archive[int(index)]
        return self._image(sample.data, sample.name, sample.label)

    def _many(self, indices):
        names = self.archive.names
        return [self._image(sample.data, names[sample.index], sample.label)
                for sample in (self.archive[int(i)] for i in indices)]

    def _is_plain(self):
        return False

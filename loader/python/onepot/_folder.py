"""torchvision's ImageFolder for an archive."""
import io
import os

from onepot._archive import Archive
from onepot._batch import SampleList
from onepot._dataset import Dataset, _is_many
from onepot._images import Images, of_transform

IMG_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


class _File(io.BytesIO):
    """A sample as a binary file with a name."""

    def __init__(self, sample, name):
        super().__init__(bytes(sample))
        self.name = name


def pil_loader(file):
    """Read a binary file as an RGB image of PIL."""
    from PIL import Image

    return Image.open(file).convert("RGB")


class _Transforms:
    """Both transforms as one function, like the attribute of torchvision's datasets."""

    def __init__(self, transform, target_transform):
        self.transform, self.target_transform = transform, target_transform

    def __call__(self, image, target):
        return (self.transform(image) if self.transform else image,
                self.target_transform(target) if self.target_transform else target)


class ImageFolder(Dataset):
    """ImageFolder(root, transform=None, target_transform=None, loader=pil_loader,
                is_valid_file=None, allow_empty=False, *, extensions=None, folder="", fast=False,
                seed=0)

    A drop-in for torchvision.datasets.ImageFolder: dataset[i] is (image, class number), with the
    classes, numbers and order that torchvision gives to the extracted tree.

    >>> folder = onepot.ImageFolder("train.tar", loader=lambda file: file.name)
    >>> folder[5], folder.class_to_idx
    (('dog/1.png', 1), {'cat': 0, 'dog': 1})

    root           path of an archive, or an Archive, whose selection of samples is used
    loader         called with a seekable binary file whose .name is the path in the archive;
                   torchvision calls its loader with a path
    is_valid_file  called with a path in the archive; without it, files with one of extensions
                   are taken
    extensions     endings of file names; default: IMG_EXTENSIONS
    folder         the directory in the archive whose children are the classes
    allow_empty    accept classes without a file
    fast           True: decode, crop and normalise in C what `transform`, made of torchvision's
                   transforms, would make of PIL's images: ValueError names a transform that is
                   not known. Or an onepot.Images. dataset[i] is then (image, class number) with
                   image a tensor [3, height, width]; DataLoader(..., collate_fn=onepot.collate)
                   copies nothing, and gives batches whose tensors() and labels are the usual pair
    seed           of random crops, see Dataset

    Attributes:

    classes        list of str, sorted; from find_classes(root), which a subclass may override
    class_to_idx   dict from str to int; likewise
    samples, imgs  list of (path in the archive, class number)
    targets        list of int
    root, loader, extensions, transform, target_transform, transforms, archive

    The lists are made on first access and belong to the user: dataset[i] follows a change of
    samples. If the archive lacks a path in samples, it is opened as a file.

    Symbolic links are followed within the archive, as torchvision follows them in the tree. Links
    that lead out of it or nowhere are no samples, and counted (archive.passed_over).

    FileNotFoundError: no class, or (without allow_empty) a class without a file. OSError names a
    sample that can't be read. Any number of threads may use a dataset.
    """

    def __init__(self, root, transform=None, target_transform=None, loader=pil_loader,
                 is_valid_file=None, allow_empty=False, *, extensions=None, folder="", fast=False,
                 seed=0):
        if isinstance(root, str):
            root = os.path.expanduser(root)
        self.root, self.loader = root, loader
        self.extensions = None if is_valid_file else tuple(extensions or IMG_EXTENSIONS)
        if not isinstance(root, Archive):
            root = Archive(root, root=folder or None, extensions=self.extensions, allow_empty=True)
        elif folder or extensions:
            raise ValueError("an Archive has its folder and extensions already: give them to"
                             " Archive() as root and extensions")
        images = None
        if fast is not False:
            images = fast if isinstance(fast, Images) else of_transform(transform)
            transform = transform if isinstance(fast, Images) else None
        super().__init__(root, transform, target_transform, images=images, seed=seed)
        self.transforms = None
        if transform or target_transform:
            self.transforms = _Transforms(transform, target_transform)
        self.classes, self.class_to_idx = self.find_classes(self.root)
        if not self.classes:
            raise FileNotFoundError("Couldn't find any class folder in %s.%s"
                                    % (folder or self.root, self._links()))
        self._number = [self.class_to_idx.get(name, -1) for name in self.archive.classes]
        self._choose(is_valid_file)
        if not allow_empty:
            self._check_classes()
        self._samples = self._targets = self._places = None

    def find_classes(self, directory):
        """The names of the classes, and a dict from each name to its number. `directory` is the
        dataset's root."""
        return self.archive.classes, self.archive.class_to_idx

    def _links(self):
        count = self.archive.passed_over
        return " Symbolic links that lead out of it or nowhere: %d" % count if count else ""

    def _numbers(self):
        return [self._number[label] if label >= 0 else -1
                for label in memoryview(self.archive.labels)]

    def _choose(self, is_valid_file):
        numbers = self._numbers()
        if is_valid_file is not None or any(number < 0 for number in numbers):
            valid = is_valid_file or (lambda name: True)
            self.archive = self.archive.subset(
                [i for i, (name, number) in enumerate(zip(self.archive.names, numbers))
                 if number >= 0 and valid(name)])

    def _check_classes(self):
        found = set(self._numbers())
        empty = [name for name, number in self.class_to_idx.items() if number not in found]
        if empty:
            ends = " Supported extensions are: %s" % ", ".join(self.extensions or ())
            raise FileNotFoundError("Found no valid file for the classes %s.%s%s"
                                    % (", ".join(sorted(empty)), ends if self.extensions else "",
                                       self._links()))

    @property
    def samples(self):
        if self._samples is None:
            self._samples = list(zip(self.archive.names, self._numbers()))
        return self._samples

    @samples.setter
    def samples(self, samples):
        self._samples = samples

    imgs = samples

    @property
    def targets(self):
        if self._targets is None:
            self._targets = [number for _, number in self.samples]
        return self._targets

    @targets.setter
    def targets(self, targets):
        self._targets = targets

    def __len__(self):
        return len(self.archive) if self._samples is None else len(self._samples)

    def _place(self, path, i):
        """The number of the sample at this path, most likely i; None: the archive lacks it."""
        archive = self.archive
        if -len(archive) <= i < len(archive) and archive._name(i) == path:
            return i
        if self._places is None:
            self._places = {name: i for i, name in enumerate(archive.names)}
        return self._places.get(path)

    def _batch(self, indices, is_sent):
        """Pictures decoded here, with the dataset's own labels."""
        places = indices = [int(i) for i in indices]
        if self._samples is not None:
            places = [self._place(self._samples[i][0], i) for i in indices]
            if None in places:
                raise ValueError("with fast, all samples are in the archive")
        batch = super()._batch(places, is_sent)
        for k, i in enumerate(indices):
            batch.labels[k] = (self._number[int(batch.labels[k])] if self._samples is None else
                               self._samples[i][1])
        return batch

    def _one(self, i):
        if self.images is not None:
            return self._pair(*SampleList(self._batch([i], False))[0])
        if self._samples is None:
            sample = self.archive[i]
            return self._image(_File(sample, sample.name), self._number[sample.label])
        path, target = self._samples[i]
        place = self._place(path, i)
        if place is not None:
            return self._image(_File(self.archive[place], path), target)
        with open(path, "rb") as file:
            return self._image(file, target)

    def _image(self, file, target):
        return self._pair(self.loader(file), target)

    def __getitem__(self, index):
        if _is_many(index) or isinstance(index, slice):
            return super().__getitem__(index)
        return self._one(int(index))

    def _many(self, indices):
        if self.images is not None:
            return super()._many(indices)
        return [self._one(int(i)) for i in indices]

    def _is_plain(self):
        return self.images is not None and super()._is_plain()

"""Reads samples from packed archives, in torch's order, as batches in memory.

    archive = onepot.Archive("train.tar")
    for batch in onepot.Loader(archive, batch_size=256):
        images, labels = batch.tensors(), batch.labels

Samples are found by number and by name:

    >>> archive = onepot.Archive("train.tar")
    >>> archive
    <onepot.Archive 'train.tar': 8 samples, 2 classes>
    >>> archive["dog/1.png"].label
    1

To keep the training loop, use onepot.ImageFolder in place of torchvision's, or onepot.Dataset
with torch's own DataLoader. To change nothing but a path, use onepot.mount().

The distribution is called onepot-fs (`pip show onepot-fs`); PyPI's onepot is another project.
The package uses torch if the program has imported it, and never imports torch itself. Only
collate() needs it.
"""
from onepot._archive import Archive, Names
from onepot._batch import Batch, SampleList, TensorBatch, collate
from onepot._core import Buffer, Sample, __version__
from onepot._dataset import Dataset, IterableDataset
from onepot._folder import IMG_EXTENSIONS, ImageFolder
from onepot._images import Images
from onepot._loader import Loader
from onepot._mount import MountPath, mount
from onepot._sampler import DistributedSampler
from onepot._stage import stage
from onepot._writer import Writer

Sampler = DistributedSampler

__all__ = [
    "Archive",
    "Batch",
    "Buffer",
    "Dataset",
    "DistributedSampler",
    "IMG_EXTENSIONS",
    "ImageFolder",
    "Images",
    "IterableDataset",
    "Loader",
    "MountPath",
    "Names",
    "Sample",
    "SampleList",
    "Sampler",
    "TensorBatch",
    "Writer",
    "collate",
    "mount",
    "stage",
    "__version__",
]

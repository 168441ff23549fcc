"""Samples of packed archives, in torch's order, as batches in memory.

    archive = onepot.Archive("train.tar")
    for batch in onepot.Loader(archive, batch_size=256):
        images, labels = batch.tensors(), batch.labels

Without a change of the training loop: onepot.ImageFolder in the place of torchvision's, and
onepot.Dataset for torch's own DataLoader. Without any change at all: onepot.mount().

torch is used where the program has imported it, and is never imported by this package.
"""
from onepot._archive import Archive, Names
from onepot._batch import SampleList, TensorBatch, collate
from onepot._core import Batch, Buffer, Sample, __version__
from onepot._dataset import Dataset, IterableDataset
from onepot._folder import IMG_EXTENSIONS, ImageFolder
from onepot._loader import Loader
from onepot._mount import mount
from onepot._sampler import DistributedSampler
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
    "IterableDataset",
    "Loader",
    "Names",
    "Sample",
    "SampleList",
    "Sampler",
    "TensorBatch",
    "Writer",
    "collate",
    "mount",
    "__version__",
]

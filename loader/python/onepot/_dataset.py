"""Datasets for torch's DataLoader. They pickle by reference, so that they work in its worker
processes under fork, spawn and forkserver."""
from itertools import islice
from random import getrandbits

from onepot._archive import as_archive
from onepot._batch import SampleList, gather
from onepot._images import of_argument
from onepot._sampler import Order
from onepot._torch import TorchAware, torch, worker


def _as_tensor(sample):
    """A copy of a sample's bytes, uint8 [size]: a tensor, or a Buffer if torch is not loaded."""
    t, buffer = torch(), sample.read()
    if t is None:
        return buffer
    return t.frombuffer(buffer, dtype=t.uint8) if len(buffer) else t.empty(0, dtype=t.uint8)


_MASK = (1 << 64) - 1


def _drawn():
    """A seed of torch's generator, or of random's."""
    t = torch()
    return getrandbits(63) if t is None else int(t.randint(1 << 62, (1,)))


def _is_many(index):
    """Are these several indices? A tensor without dimensions is one, though it has a __len__."""
    return hasattr(index, "__len__") and bool(getattr(index, "ndim", 1))


def _is_overridden(cls):
    """Does a subclass of ours define __getitem__, but not __getitems__?"""
    for base in cls.__mro__:
        if "__getitems__" in vars(base) or base.__module__.startswith("onepot."):
            return False
        if "__getitem__" in vars(base):
            return True
    return False


class Dataset(TorchAware):
    """Dataset(archive, transform=None, target_transform=None, *, root=None, images=None, seed=0,
            stage=None)

    A map-style dataset: dataset[i] is (data, label). data is a writable copy, uint8 [size]: a
    tensor if torch is loaded, else a Buffer. transform is called with data, target_transform
    with the label (int; -1: no class).

    >>> dataset = onepot.Dataset("train.tar", transform=bytes)
    >>> data, label = dataset[5]
    >>> data[1:4], label, len(dataset)
    (b'PNG', 1, 8)

    dataset[[3, 1]] gathers several samples in one piece of memory: a TensorBatch, or with
    transforms a list of pairs. DataLoader (torch 2.0 and later) asks for whole batches in this
    way:

        DataLoader(onepot.Dataset("train.tar"), batch_size=256, num_workers=2,
                   collate_fn=onepot.collate)

    Its workers then gather into memory that they share with the training process. Before torch
    2.0, DataLoader(dataset, batch_size=None, sampler=BatchSampler(...)) does the same.

    images, an onepot.Images, decodes pictures: data is then an image [3, height, width], and the
    batch's tensors() are all of them. Of a dict from names of parts to Images both are dicts.
    Random crops depend on the seed, the epoch that set_epoch()
    chose, and the sample's number. Before set_epoch() is called they are drawn by torch's
    generator, as those of torchvision are, so that no two epochs are the same.

    A subclass with a __getitem__ of its own and no __getitems__ is asked for one sample at a
    time.

    archive: an Archive, or anything that Archive() takes; root: another name for this argument;
    stage: of an archive that is opened here (see Archive), 'job' in a job of several nodes.
    OSError names a sample that can't be read. Any number of threads and processes may use a
    dataset.
    """

    def __init__(self, archive=None, transform=None, target_transform=None, *, root=None,
                 images=None, seed=0, stage=None):
        if (archive is None) == (root is None):
            raise TypeError("give one of archive and root: an Archive, or the path of an archive")
        self.archive = as_archive(root if archive is None else archive, stage)
        self.transform = transform
        self.target_transform = target_transform
        self._stride = self.archive.common_size if images is None else 0
        self._init_images(images, seed)

    def _init_images(self, images, seed):
        self._sample_bytes = None if images is None else of_argument(images)[2]  # bytes of each sample's
        self.images, self.seed = images, seed
        t = torch()
        # Shared, so that persistent workers see the epoch that set_epoch() sets here.
        self._epoch = t.full((1,), -1, dtype=t.int64).share_memory_() if t and images else [-1]

    def set_epoch(self, epoch):
        """Choose random crops by the seed, this epoch and the sample's number alone."""
        self._epoch[0] = epoch

    def __len__(self):
        return len(self.archive)

    def _pair(self, data, label):
        if self.transform is not None:
            data = self.transform(data)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return data, label

    def __getitem__(self, index):
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        if _is_many(index):
            samples = self._many(index)
            return samples.batch if self._is_plain() else samples
        if self.images is not None:
            return self._pair(*SampleList(self._batch([index], False))[0])
        sample = self.archive[int(index)]
        return self._pair(_as_tensor(sample), sample.label)

    def __getitems__(self, indices):
        if _is_overridden(type(self)):  # else the subclass's __getitem__ would be missed
            return [self[int(i)] for i in indices]
        return self._many(indices)

    def _batch(self, indices, is_sent):
        if self.images is None:
            return gather(self.archive, indices, self._stride, is_sent)
        epoch = int(self._epoch[0])
        seed, epoch = (self.seed & _MASK, epoch) if epoch >= 0 else (_drawn(), 0)
        return gather(self.archive, indices, self._sample_bytes, is_sent, self.images, seed, epoch)

    def _many(self, indices):
        batch = self._batch(indices, self._is_plain())
        if self._is_plain():
            return SampleList(batch)
        return [self._pair(data, label) for data, label in SampleList(batch)]

    def __repr__(self):
        return "Dataset %s\n    Number of datapoints: %d\n    Archive: %r" % (
            type(self).__name__, len(self), self.archive)

    def _is_plain(self):
        return self.transform is None and self.target_transform is None


class IterableDataset(TorchAware):
    """IterableDataset(archive, batch_size=None, *, rank=None, world_size=None, shuffle=True,
                    seed=0, drop_last=False, transform=None, target_transform=None,
                    block=0, window=0, stage=None)

    The samples of this rank, and of this worker of a DataLoader, in the order of
    DistributedSampler. All ranks have the same number of samples. If torch is loaded, this is a
    subclass of torch's IterableDataset.

    Without batch_size it yields pairs (data, label) like Dataset; with k workers, each has every
    k-th sample of the rank's order. With batch_size it yields a TensorBatch of that many samples
    (with transforms, a list of pairs); each worker has every k-th batch, so that
    DataLoader(dataset, batch_size=None, num_workers=k) delivers the same batches in the same
    order for every k. drop_last leaves out padding, and a last batch that is not full.

    >>> dataset = onepot.IterableDataset("train.tar", rank=0, world_size=2, shuffle=False)
    >>> [label for data, label in dataset]
    [0, 0, 1, 1]

    rank and world_size: None asks the launcher's environment. block, window: see
    DistributedSampler; stage: see Dataset. set_epoch() chooses the epoch of the next iteration, also for persistent
    workers; without it all iterations have the same order. ValueError: an argument makes no
    sense. OSError names a sample that can't be read. An iterator belongs to one thread.
    """

    _torch_name = "IterableDataset"
    _AT_ONCE = 32  # samples gathered together if no batches are asked for

    def __init__(self, archive, batch_size=None, *, rank=None, world_size=None, shuffle=True,
                 seed=0, drop_last=False, transform=None, target_transform=None, block=0,
                 window=0, stage=None):
        if batch_size is not None and not hasattr(batch_size, "__index__"):
            raise TypeError("batch_size is a whole number of samples, not %r" % (batch_size,))
        if batch_size is not None and batch_size < 1:
            raise ValueError("a batch of %d samples" % batch_size)
        self._dataset = Dataset(archive, transform, target_transform, stage=stage)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._order = dict(shuffle=shuffle, seed=seed, drop_last=drop_last, block=block,
                           window=window, worker=0, workers=0)
        whole = Order(len(self._dataset), rank, world_size, dict(self._order, shuffle=False))
        self.rank, self.world_size, self._samples = whole.rank, whole.num_replicas, len(whole)
        t = torch()
        # Shared, so that persistent workers see the epoch that set_epoch() sets here.
        self._epoch = t.zeros(1, dtype=t.int64).share_memory_() if t else [0]

    @property
    def archive(self):
        return self._dataset.archive

    def set_epoch(self, epoch):
        """Shuffle the next iteration for this epoch."""
        self._epoch[0] = epoch

    def __len__(self):
        """Number of samples, or with batch_size of batches, of this rank; of all its workers."""
        if self.batch_size is None:
            return self._samples
        more = 0 if self.drop_last else self.batch_size - 1
        return (self._samples + more) // self.batch_size

    def _sampler(self, **which):
        sampler = Order(len(self._dataset), self.rank, self.world_size,
                        dict(self._order, **which))
        epoch = int(self._epoch[0])
        if epoch:
            sampler.set_epoch(epoch)
        return sampler

    def __iter__(self):
        info = worker()
        mine, workers = (info.id, info.num_workers) if info else (0, 1)
        if self.batch_size is None:
            return self._samples_of(iter(self._sampler(worker=mine, workers=workers)))
        return self._batches_of(iter(self._sampler()), mine, workers)

    def _samples_of(self, order):
        while True:
            indices = list(islice(order, self._AT_ONCE))
            if not indices:
                return
            yield from self._dataset._many(indices)

    def _batches_of(self, order, mine, workers):
        for number in range(len(self)):
            indices = list(islice(order, self.batch_size))
            if number % workers == mine:
                yield self._dataset[indices]

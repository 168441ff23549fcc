"""Batches in one piece of memory, which torch's DataLoader hands on without a copy.

The layout is that of a loader's slab: the data, then five tables at multiples of 64 bytes:
offsets, sizes, labels, indices, valid.
"""
from collections.abc import Sequence

from onepot import _shared
from onepot._torch import in_worker, torch

_ALIGN = 64


def _rounded(size):
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _new_memory(size, is_sent):
    """uint8 [size] for a batch: of torch where it is loaded. What a worker process will send
    lies in shared memory, so that it goes to the training process as it is."""
    t = torch()
    if t is None:
        return memoryview(bytearray(size)), None
    if not is_sent or size == 0 or not in_worker():
        return _shared.take_alone(size), None
    return _shared.take(size)


def gather(archive, indices, stride=0, is_sent=False):
    """The TensorBatch of these samples. stride: the size of each, where all have the same;
    is_sent: a DataLoader's worker is about to hand it on."""
    if hasattr(indices, "tolist"):
        indices = indices.tolist()
    align = 1 if stride else _ALIGN
    data_bytes, size = archive._layout(indices, align)
    memory, place = _new_memory(size, is_sent)
    if isinstance(memory, memoryview):
        archive._fill(indices, align, memory)
    else:
        archive._fill(indices, align, memory.data_ptr(), size)
    batch = TensorBatch(memory, len(indices), data_bytes, stride)
    batch._place = place
    return batch


class TensorBatch:
    """Samples of a batch in one piece of memory.

    Tensors where torch is loaded, memoryviews otherwise; all of them are views of `slab`:

    data      uint8 [bytes], or [samples, bytes of one] where all samples have one size
    offsets   int64 [samples]: where each begins in slab, bytes
    sizes     int64 [samples], bytes
    labels    int64 [samples]: classes, or -1
    indices   int64 [samples]: numbers in the archive
    valid     bool [samples]

    batch[i] is the data of one sample, uint8 [size]. to() and pin_memory() move all of it in
    one copy; a DataLoader with pin_memory=True does that by itself.
    """

    __slots__ = ("slab", "_count", "_bytes", "_stride", "_place")

    def __init__(self, slab, count, data_bytes, stride):
        self.slab, self._count, self._bytes, self._stride = slab, count, data_bytes, stride
        self._place = None  # in a worker: the slab that it is in

    def _table(self, number, kind, width):
        first = _rounded(self._bytes) + number * _rounded(8 * self._count)
        part = self.slab[first : first + width * self._count]
        if isinstance(part, memoryview):
            return part.cast({"int64": "q", "bool": "?"}[kind])
        return part.view(getattr(torch(), kind))

    @property
    def data(self):
        data = self.slab[: self._bytes]
        if not self._stride:
            return data
        if isinstance(data, memoryview):
            return data.cast("B", (self._count, self._stride)) if self._count else data
        return data.view(self._count, self._stride)

    @property
    def offsets(self):
        return self._table(0, "int64", 8)

    @property
    def sizes(self):
        return self._table(1, "int64", 8)

    @property
    def labels(self):
        return self._table(2, "int64", 8)

    @property
    def indices(self):
        return self._table(3, "int64", 8)

    @property
    def valid(self):
        return self._table(4, "bool", 1)

    def tensors(self):
        """A list of views, one a sample: uint8 [size]."""
        slab = self.slab
        return [slab[first : first + size]
                for first, size in zip(self.offsets.tolist(), self.sizes.tolist())]

    def __len__(self):
        return self._count

    def __getitem__(self, i):
        first, size = int(self.offsets[i]), int(self.sizes[i])
        return self.slab[first : first + size]

    def _moved(self, slab):
        return TensorBatch(slab, self._count, self._bytes, self._stride)

    def pin_memory(self, device=None):
        """The batch in page-locked memory."""
        return self._moved(self.slab.pin_memory())

    def to(self, *args, **keywords):
        """The batch on another device: to("cuda", non_blocking=True). One copy."""
        return self._moved(self.slab.to(*args, **keywords))

    def __reduce__(self):
        slab = bytearray(self.slab) if isinstance(self.slab, memoryview) else self.slab
        return _batch, (slab, self._count, self._bytes, self._stride)


def _batch(slab, count, data_bytes, stride):
    slab = memoryview(slab) if isinstance(slab, bytearray) else slab
    return TensorBatch(slab, count, data_bytes, stride)


def _reduce(batch):
    """To another process by a queue of multiprocessing: a slab that is known there already is
    only named."""
    if batch._place is None:
        return batch.__reduce__()
    place, batch._place = batch._place, None
    return _received, (_shared.send(place), batch._count, batch._bytes, batch._stride)


def _received(where, count, data_bytes, stride):
    return TensorBatch(_shared.receive(*where), count, data_bytes, stride)


_shared.register(TensorBatch, _reduce)


class SampleList(Sequence):
    """The pairs (data, label) of a batch, as views of it, for collate functions that want a list
    of samples. `batch` is the batch itself."""

    def __init__(self, batch, target_transform=None):
        self.batch = batch
        self._target = target_transform
        self._labels = None

    def __len__(self):
        return len(self.batch)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if self._labels is None:
            self._labels = self.batch.labels.tolist()
        label = self._labels[i]
        return self.batch[i], self._target(label) if self._target else label


def collate(samples):
    """The collate function for onepot.Dataset: no copy.

    Of a Dataset without transforms the TensorBatch; of what transforms have made, and of any
    other list, what torch's default_collate makes.
    """
    if isinstance(samples, TensorBatch):
        return samples
    if isinstance(samples, SampleList) and samples._target is None:
        return samples.batch
    from torch.utils.data import default_collate  # who calls this has torch

    return default_collate(samples)

"""Batches in one piece of memory, which torch's DataLoader passes on without a copy.

The layout is that of a loader's slab: data, then five tables at multiples of 64 bytes:
offsets, sizes, labels, indices, valid.
"""
from collections.abc import Sequence
from math import prod

from onepot import _core, _shared
from onepot._images import of_argument
from onepot._torch import in_worker, torch

_ALIGN = 64
_BYTES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
          "uint64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def _rounded(size):
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _new_memory(size, is_sent):
    """Memory for a batch, uint8 [size], and its Place or None. It is a tensor if torch is loaded.
    If a worker process will send it, it is shared memory, which needs no copy on the way to the
    training process."""
    t = torch()
    if t is None:
        return memoryview(bytearray(size)), None
    if not is_sent or size == 0 or not in_worker():
        return _shared.take_alone(size), None
    return _shared.take(size)


def gather(archive, indices, stride=0, is_sent=False, images=None, seed=0, epoch=0):
    """The TensorBatch of these samples. stride: the size of every sample, or 0 if sizes differ.
    is_sent: a DataLoader's worker is about to send the batch. images: the samples are pictures,
    or have parts that are, decoded as these Images say, with the random crops of this seed and
    epoch."""
    if hasattr(indices, "tolist"):
        indices = indices.tolist()
    align = 1 if stride else _ALIGN
    given, image = of_argument(images)[:2] if images else (None, None)
    data_bytes, size = archive._layout(indices, align, given)
    memory, place = _new_memory(size, is_sent)
    where = memory if isinstance(memory, memoryview) else memory.data_ptr()
    archive._fill(indices, align, where, size, given, seed, epoch)
    batch = TensorBatch(memory, len(indices), data_bytes, stride, image)
    batch._place = place
    return batch


class Batch(_core.Batch):
    """The samples of one batch in one piece of memory; len(batch), batch[i]. The memory is used
    again when the batch and all views of it are gone. Any number of threads may use a batch."""

    __module__ = "onepot"
    __slots__ = ()

    def _main(self):
        images = self.images
        return images if isinstance(images, _core.Buffer) else self.data

    def tensors(self):
        """Of images: all of them, [samples, *shape], as a tensor if torch is loaded, else a
        Buffer; of several parts a dict of these. Of other samples: a list of Buffers, uint8
        [size]. No copies."""
        images, t = self.images, torch()
        if images is None:
            return list(self)
        if not hasattr(t, "from_dlpack"):
            return images
        if isinstance(images, dict):
            return {name: t.from_dlpack(part) for name, part in images.items()}
        return t.from_dlpack(images)

    def to(self, *args, **keywords):
        """to("cuda", non_blocking=True): the batch as a TensorBatch of tensors on a device of torch:
        images, labels and all else in one copy, or in none where it is there already. Takes
        Tensor.to()'s arguments for a device. Of .npy samples the arrays are images. RuntimeError:
        the program has not imported torch."""
        t = torch()
        if not hasattr(t, "from_dlpack"):
            raise RuntimeError("to() makes tensors: import torch (1.10 or later) first")
        slab, data_bytes, stride, given, is_apart = self._slab()
        images, image = self.images, given[0] if given else None
        if isinstance(images, dict):
            image = dict(zip(images, given))
        elif images is None and (self.data.dtype != "uint8" or len(self.data.shape) > 2):
            array = t.from_dlpack(self.data)  # of .npy samples
            if not array.is_contiguous():
                raise ValueError("to() of arrays in Fortran's order: use torch.from_dlpack(batch.data)")
            image = self.data.dtype, self.data.shape[1:], 0
        batch = TensorBatch(t.from_dlpack(slab), len(self), data_bytes, stride, image)
        if is_apart:
            batch._apart = t.from_dlpack(images)
        return batch.to(*args, **keywords)

    def copy_into(self, to, stream=None):
        """copy_into(to, stream=None): as Buffer.copy_into, of images if the loader makes some,
        else of data."""
        self._main().copy_into(to, stream)

    def __dlpack__(self, **how):
        """A DLPack capsule of images if the loader makes some, else of data."""
        return self._main().__dlpack__(**how)

    def __dlpack_device__(self):
        """(1, 0): the CPU; (2, N): CUDA."""
        return self._main().__dlpack_device__()

    def __repr__(self):
        main = self._main()
        return "<onepot.Batch of %d samples: %s %r, from element %d of epoch %d>" % (
            len(self), main.dtype, main.shape, self.first, self.epoch)


class TensorBatch:
    """The samples of one batch in one piece of memory, `slab`, and views of it: tensors if torch
    is loaded, memoryviews otherwise.

    data      uint8 [bytes], or uint8 [samples, size] if all samples have one size
    offsets   int64 [samples]: where each sample begins in slab, in bytes
    sizes     int64 [samples]: size of each sample in bytes
    labels    int64 [samples]: class or label of each sample, or -1
    indices   int64 [samples]: number of each sample in the archive
    valid     bool [samples]

    images    of pictures: [samples, *shape] in their type, of several parts of each sample a
              dict of these; None for other samples

    >>> batch = onepot.Dataset("train.tar")[[3, 6]]
    >>> len(batch), batch.labels.tolist(), batch.valid.tolist()
    (2, [0, 1], [True, True])

    batch[i] is the data of one sample, uint8 [size], or its image. to() and pin_memory() move everything in
    one copy; a DataLoader with pin_memory=True calls pin_memory() itself.
    """

    __slots__ = ("slab", "_count", "_bytes", "_stride", "_place", "_image", "_apart")

    def __init__(self, slab, count, data_bytes, stride, image=None):
        self.slab, self._count, self._bytes, self._stride = slab, count, data_bytes, stride
        self._image = image  # (type, shape, where it begins in a sample), a dict of these, or None
        self._place = None  # in a worker: which shared slab it lies in
        self._apart = None  # images that a device made of the data

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

    def _typed(self, part, count, image):
        """Images of so many samples, whose places are a part of the slab, as an array of their type:
        a view, but of several parts without torch a copy."""
        if isinstance(image, dict):
            return {name: self._typed(part, count, one) for name, one in image.items()}
        kind, shape, at = image
        size = prod(shape) * _BYTES[kind]
        shape = shape if count is None else (count, *shape)
        count = 1 if count is None else count
        if len(part) > count * size:  # there are others beside it
            places = len(part) // count
            if isinstance(part, memoryview):
                part = memoryview(bytearray().join(part[i * places + at : i * places + at + size]
                                                   for i in range(count)))
            else:
                part = part.view(count, places)[:, at : at + size]
        if not isinstance(part, memoryview):
            return part.view(getattr(torch(), kind)).view(shape)
        letter = {"uint8": "B", "float32": "f", "float16": "e"}.get(kind)
        return part.cast(letter, shape) if letter and len(part) else part

    @property
    def images(self):
        if self._image is None or self._apart is not None:
            return self._apart
        return self._typed(self.slab[: self._bytes], self._count, self._image)

    def tensors(self):
        """Of pictures: all images, [samples, *shape]. Of other samples: a list of views, uint8
        [size], one for each."""
        if self._image is not None:
            return self.images
        slab = self.slab
        return [slab[first : first + size]
                for first, size in zip(self.offsets.tolist(), self.sizes.tolist())]

    def __len__(self):
        return self._count

    def __repr__(self):
        kinds = self._image.values() if isinstance(self._image, dict) else [self._image or ()]
        what = ", ".join("%s %r" % kind[:2] for kind in kinds if kind)
        what = ": " + what if what else ""
        return "<onepot.TensorBatch of %d samples%s>" % (self._count, what)

    def __getitem__(self, i):
        if self._apart is not None:
            return self._apart[i]
        first, size = int(self.offsets[i]), int(self.sizes[i])
        part = self.slab[first : first + size]
        return self._typed(part, None, self._image) if self._image is not None and size else part

    def _moved(self, move):
        batch = TensorBatch(move(self.slab), self._count, self._bytes, self._stride, self._image)
        batch._apart = None if self._apart is None else move(self._apart)
        return batch

    def pin_memory(self, device=None):
        """A copy of the batch in page-locked memory."""
        return self._moved(lambda memory: memory.pin_memory())

    def to(self, *args, **keywords):
        """The batch on another device, in one copy: to("cuda", non_blocking=True)."""
        return self._moved(lambda memory: memory.to(*args, **keywords))

    def __reduce__(self):
        slab = bytearray(self.slab) if isinstance(self.slab, memoryview) else self.slab
        return _batch, (slab, self._count, self._bytes, self._stride, self._image, self._apart)


def _batch(slab, count, data_bytes, stride, image, apart=None):
    slab = memoryview(slab) if isinstance(slab, bytearray) else slab
    batch = TensorBatch(slab, count, data_bytes, stride, image)
    batch._apart = apart
    return batch


def _reduce(batch):
    """Pickle a batch for a queue of multiprocessing. If the other process knows the slab already,
    only its number is sent."""
    if batch._place is None:
        return batch.__reduce__()
    place, batch._place = batch._place, None
    return _received, (_shared.send(place), batch._count, batch._bytes, batch._stride,
                       batch._image)


def _received(where, count, data_bytes, stride, image):
    return TensorBatch(_shared.receive(*where), count, data_bytes, stride, image)


_shared.register(TensorBatch, _reduce)


class SampleList(Sequence):
    """A batch as a list of pairs (data, label), which are views of it, for collate functions that
    expect a list of samples. `batch` is the TensorBatch."""

    def __init__(self, batch, target_transform=None):
        self.batch = batch
        self._target = target_transform
        self._labels = None

    def __len__(self):
        return len(self.batch)

    def __repr__(self):
        return "<onepot.SampleList of %r>" % (self.batch,)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if self._labels is None:
            self._labels = self.batch.labels.tolist()
        label = self._labels[i]
        return self.batch[i], self._target(label) if self._target else label


def collate(samples):
    """The collate function for onepot.Dataset.

    Without transforms it returns the TensorBatch, and copies nothing. Any other list, and what
    transforms return, goes to torch's default_collate.
    """
    if isinstance(samples, TensorBatch):
        return samples
    if isinstance(samples, SampleList) and samples._target is None:
        return samples.batch
    from torch.utils.data import default_collate  # only DataLoader calls this, so torch is there

    return default_collate(samples)

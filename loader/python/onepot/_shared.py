"""Reusable memory for batches: shared between a DataLoader's workers and the training process,
or private to one process.

New shared memory for each batch costs more than the batch itself: two processes touch new pages, a
file descriptor travels through a socket, and two mappings are made. So a worker keeps its slabs. It
sends each slab to the training process once, and from then on only the slab's number. Two flags at
the head of a slab tell which processes have views of its batch: the maker, and the receiver. The
worker sets both, the first when it takes the slab, the second when it sends the batch. Each process
clears its own flag when its last view is gone.
"""
import os
import threading
from multiprocessing.reduction import ForkingPickler

from onepot import _core
from onepot._torch import torch

_HEAD = 64  # bytes before the batch, with one flag for each side
_SIDES = 2
_MAKER, _RECEIVER = range(_SIDES)
_ROUND = 1 << 16
_MOST = 64  # slabs of a worker; if the training process keeps more batches, torch makes new memory
_MOST_ALONE = 4  # slabs of a process for itself
_SMALL = 1 << 18  # the C library reuses freed memory up to this size


def new_shared(size):
    """uint8 [size] in shared memory, as torch makes it."""
    t = torch()
    empty = t.empty(0, dtype=t.uint8)
    storage = getattr(empty, "untyped_storage", None)
    if storage is None:  # torch before 2.0
        storage = getattr(empty, "_storage", empty.storage)
    return empty.set_(storage()._new_shared(size))


def _flags_of(tensor):
    return memoryview(_core._view(None, tensor.data_ptr(), _SIDES, False))


class _Lease:
    """Keeps a slab in use as long as this process has views of its batch. The copy of a lease in
    a forked child does nothing when it ends."""

    def __init__(self, tensor, side):
        self._tensor, self._side, self._pid = tensor, side, os.getpid()
        self._flags = _flags_of(tensor)

    def view(self, size):
        t = torch()
        where = self._tensor.data_ptr() + _HEAD
        return t.frombuffer(_core._view(self, where, size, True), dtype=t.uint8)

    def __del__(self, getpid=os.getpid):  # the module may be gone by then
        if self._pid == getpid():
            self._flags[self._side] = 0


def _new_alone(size):
    t = torch()
    return t.empty(size, dtype=t.uint8)


class _Slab:
    def __init__(self, number, size, make):
        self.number, self.size, self.sent = number, size, False
        self.tensor = make(_HEAD + size)
        self.tensor[:_SIDES] = 0
        self.flags = _flags_of(self.tensor)


class _Pool:
    """The slabs of one process."""

    def __init__(self, make, most):
        self.pid, self.name, self.lock = os.getpid(), os.urandom(8), threading.Lock()
        self.slabs, self.forgotten, self.made = [], [], 0
        self._make, self._most = make, most

    def take(self, size):
        """A slab with room for `size` bytes, its maker's flag set; None: too many are in use."""
        with self.lock:
            return self._take(size)

    def _take(self, size):
        free = [slab for slab in self.slabs if not any(slab.flags)]
        for slab in free:
            if slab.size >= size:
                slab.flags[_MAKER] = 1
                return slab
        for slab in free[:1]:  # too small: a larger slab takes its place
            self.slabs.remove(slab)
            self.forgotten.append(slab.number)
        if len(self.slabs) == self._most:
            return None
        slab = _Slab(self.made, (size + size // 8 + _ROUND) // _ROUND * _ROUND, self._make)
        self.made += 1
        self.slabs.append(slab)
        slab.flags[_MAKER] = 1
        return slab


_pool = _alone = None


class Place:
    """The slab in which a worker has put a batch; _reduce needs it to send the batch."""

    __slots__ = ("pool", "slab", "lease", "size")

    def __init__(self, pool, slab, size):
        self.pool, self.slab, self.size = pool, slab, size
        self.lease = _Lease(slab.tensor, _MAKER)


def take(size):
    """In a worker: (uint8 [size] in a slab, its Place), or (shared memory of torch, None) if all
    slabs are in use."""
    global _pool
    if _pool is None or _pool.pid != os.getpid():
        _pool = _Pool(new_shared, _MOST)
    slab = _pool.take(size)
    if slab is None:
        return new_shared(size), None
    place = Place(_pool, slab, size)
    return place.lease.view(size), place


def take_alone(size):
    """uint8 [size] for this process alone."""
    global _alone
    if size < _SMALL:
        return _new_alone(size)
    if _alone is None or _alone.pid != os.getpid():
        _alone = _Pool(_new_alone, _MOST_ALONE)
    slab = _alone.take(size)
    return _new_alone(size) if slab is None else _Lease(slab.tensor, _MAKER).view(size)


def send(place):
    """The arguments with which the other side finds the batch; marks it as in use there."""
    pool, slab = place.pool, place.slab
    tensor = None if slab.sent else slab.tensor
    forgotten, pool.forgotten = pool.forgotten, []
    slab.sent, slab.flags[_RECEIVER] = True, 1
    return pool.name, pool.pid, slab.number, tensor, forgotten, place.size


_known = {}  # from the name of a worker's pool to its pid and its slabs by number
_lock = threading.Lock()


def receive(name, pid, number, tensor, forgotten, size):
    """In the training process: the memory of a sent batch, uint8 [size]. RuntimeError: another
    process received the slab."""
    with _lock:
        if name not in _known:
            for other in [n for n, (p, _) in _known.items() if not os.path.exists("/proc/%d" % p)]:
                del _known[other]
            _known[name] = pid, {}
        slabs = _known[name][1]
        for gone in forgotten:
            slabs.pop(gone, None)
        if tensor is not None:
            slabs[number] = tensor
        shared = slabs.get(number)
    if shared is None:
        raise RuntimeError("a batch of a DataLoader's worker can only be received by the process"
                           " that received its first batch")
    return _Lease(shared, _RECEIVER).view(size)


def register(kind, reduce):
    """Pickle objects of this kind with `reduce`, but only for the queues of multiprocessing."""
    ForkingPickler.register(kind, reduce)

"""Loader: its arguments, its life and its iterators. The batches are made in C."""
import os
import threading
from functools import partial
from operator import index

from onepot import _core
from onepot._archive import as_archive, expect_digest
from onepot._batch import Batch
from onepot._images import Images, of_argument
from onepot._sampler import rank_of
from onepot._torch import torch

_FLOATS = {"float32": 1, "float16": 2, "bfloat16": 3}
_GATHERS = {"auto": 0, "host": 1, "device": 2}
_ANY_EPOCH = (1 << 64) - 1


def _current_device():
    """What torch means by "cuda", once it has used a GPU; before, the local rank decides."""
    cuda = getattr(torch(), "cuda", None)
    if cuda is not None and cuda.is_available() and cuda.is_initialized():
        return "cuda:%d" % cuda.current_device()
    return "cuda"


def _device_name(device):
    """The name of a device given as "cuda:0", torch.device("cuda:0") or 0; None for "cpu"."""
    if device is None:
        return None
    if not hasattr(device, "__index__"):
        name = str(device)
        if name == "cuda":
            name = _current_device()
    elif 0 <= index(device) < 1 << 32:
        name = "cuda:%d" % index(device)
    else:
        raise OverflowError("%r is not between 0 and 4294967295" % device)
    return None if name == "cpu" else name


def _device_names(device, devices):
    """The names of all devices, in a tuple."""
    if devices is None:
        name = _device_name(device)
        return () if name is None else (name,)
    if device is not None:
        raise ValueError("device is one, devices are several: only one of them can be given")
    if isinstance(devices, str) or not hasattr(devices, "__iter__"):
        raise TypeError("devices is a list, as ['cuda:0', 'cuda:1']; device names one")
    names = tuple(_device_name(each) for each in devices)
    if not names:
        raise ValueError("devices is empty; leave it out, or name at least one")
    if None in names:
        raise ValueError("devices: 'cpu' is no device to copy batches to")
    return names


def _for_channels(given, what, usual, channels):
    """Four numbers, from one number for all channels or one for each."""
    given = usual if given is None else given
    each = list(given) if hasattr(given, "__len__") else [given] * channels
    if len(each) != channels:
        raise ValueError("%s must be one number, or one for each channel" % what)
    return (*each, *[0] * (4 - channels))


def _images(shape, dtype, mean, scale):
    if dtype not in _FLOATS and dtype is not None:
        raise ValueError("dtype must be float32, float16 or bfloat16, not %s" % dtype)
    if shape is None:
        return None
    if isinstance(shape, Images) or hasattr(shape, "items"):
        if dtype is not None or mean is not None or scale is not None:
            raise ValueError("dtype, mean and scale are arguments of Images()")
        return of_argument(shape)[0]
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise TypeError("images must be onepot.Images(), a dict of these by the names of parts, or a"
                        " tuple (height, width, channels)")
    channels = index(shape[2])
    if not 1 <= channels <= 4:
        raise ValueError("images must have 1 to 4 channels")
    return (*shape, _FLOATS[dtype or "float32"], _for_channels(mean, "mean", 0, channels),
            _for_channels(scale, "scale", 1, channels))


def _milliseconds(seconds):
    """The library's number: 0 is its default, and _core.NEVER means no limit."""
    if seconds is None:
        return 0
    if not 0 <= seconds < 4e6:
        raise ValueError("io_timeout must be a number of seconds, or 0 for no limit")
    return max(1, int(seconds * 1000)) if seconds else _core.NEVER


def _state_of(sampler):
    """A sampler's own state, or None."""
    if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
        return sampler.state_dict()
    return None


class Loader:
    """Loader(archive, batch_size, rank=None, world_size=None, seed=0, shuffle=True,
           drop_last=False, threads=None, prefetch=None, decode=None, *, epoch=0,
           memory=0, align=0, skip_errors=False, verify=False, npy=False, block=0,
           window=0, decoded_bytes=0, device=None, images=None, dtype=None,
           mean=None, scale=None, gather='auto', io_timeout=None, devices=None, stage=None,
           sampler=None, expect=None)

    Batches of an archive's samples in the order of DistributedSampler. Threads that need no
    interpreter gather them ahead. Each iteration is one epoch, the next after the one before.
    Every batch is an onepot.Batch.

    >>> with onepot.Loader("train.tar", 4, shuffle=False) as loader:
    ...     [list(batch.labels) for batch in loader]
    [[0, 0, 0, 0], [1, 1, 1, 1]]
    >>> loader = onepot.Loader("train.tar", 4, images=onepot.Images(16, crop="centre"))
    >>> next(iter(loader)).images
    <onepot.Buffer: uint8 (4, 3, 16, 16)>
    >>> loader.state_dict()["done"]
    4

    archive        an Archive, or anything that Archive() takes
    batch_size     samples in a batch of this rank
    rank, world_size
                   None: from the launcher's environment
    seed, shuffle, drop_last, block, window
                   see DistributedSampler; drop_last also drops a last batch that is not full
    threads        None: one for each CPU of this process, more for slow storage
    prefetch       batches ahead; None: a few, more for slow storage
    epoch          the first epoch
    memory         bytes for all batches, kept ones included (0: this rank's part of a quarter of
                   the job's memory); BufferError beyond that. Pictures being decoded take at most
                   as much again, one picture half of it
    align          samples begin at multiples of this many bytes (0: 64)
    skip_errors    leave an unreadable sample empty and not valid; of .npy samples batch[i] is
                   then zeros
    verify         compare with the archive's sums, if it has any
    decode         'npy', the same as npy=True: samples are .npy files, batches dense arrays; or
                   a capsule 'onepot.decode' of an onepot_decode function (onepot.h), which the
                   loader's threads call with decoded_bytes of room for each sample
    device         'cuda:0', 0, torch.device('cuda:0'), 'cuda' (torch's current device if torch has
                   used one, else by the local rank), or 'host' (the host playing a GPU): each
                   batch goes there in one copy, ahead of its use
    images         an onepot.Images: samples are pictures, which the loader's threads decode;
                   batch.images and batch.tensors() are all of them. Or {'image': Images(),
                   'mask': Images(interpolation='nearest')}, for parts of each sample: both are
                   then dicts by these names, and pictures of one size get the same random crop.
                   Or (height, width, channels): samples are bytes by rows, and the device makes
                   (byte - mean) * scale of them, channels first, in dtype ('float32')
    gather         which side collects the samples for a device: 'device', from the page-locked
                   archive, or 'host'; 'auto' is the host
    io_timeout     seconds after which a read of the storage is given up (None: 60; 0: never)
    devices        ['cuda:0', 'cuda:1'], in place of device: batch i of each epoch goes to device
                   i % len(devices), also after a resume; batch.device tells it. batch_size is
                   each batch's, memory all devices' together
    stage          of an archive that is opened here: see Archive; 'job' in a job of several nodes
    sampler        the order, in place of shuffle, block and window: an iterable of sample numbers (no
                   iterator), which is gone through once at the start of each epoch and must end, or
                   a function from an epoch to one. A sample may come often, or not at all, and epochs may
                   differ in length; len() is the present one's. set_epoch(epoch) of an iterable is
                   called first, if it has one. All ranks are to give the same numbers, of which
                   each takes its share (rank, rank + world_size...), with padding as
                   DistributedSampler has it; give rank=0, world_size=1 with a sampler that deals
                   them itself. The state has the sampler's own state of the start of the epoch, if
                   it has a state_dict() and a load_state_dict(); if a sampler then gives other
                   numbers for the epoch than before, load_state_dict() is a ValueError
    expect         ValueError unless Archive.digest is this, or begins with these 8 or more digits

    OSError or ValueError names a sample that can't be read; next() of the same iterator then
    goes on with the next batch. After Ctrl-C, too, `for batch in iterator` goes on behind the batch
    in the loop's variable: none is lost, and none comes twice. Any thread may take batches. In a forked child the loader goes
    on with threads of its own. A 'with' block closes the loader at its end.
    """

    __module__ = "onepot"
    # _handle: the library's loader, in a capsule; None: it was closed. _resumes: the place that
    # a state led to. An iteration that begins there continues it, and begins no new epoch. (No
    # flag: Ctrl-C between clearing that and the first batch would lose the rest of the epoch.)
    # _listed: the epoch whose order the sampler has given, and its state before.
    __slots__ = ("_handle", "_archive", "_batch_size", "_resumes", "_sampler", "_samples", "_listed",
                 "_locks")

    def __init__(self, archive, batch_size, rank=None, world_size=None, seed=0, shuffle=True,
                 drop_last=False, threads=None, prefetch=None, decode=None, *, epoch=0, memory=0,
                 align=0, skip_errors=False, verify=False, npy=False, block=0, window=0,
                 decoded_bytes=0, device=None, images=None, dtype=None, mean=None, scale=None,
                 gather="auto", io_timeout=None, devices=None, stage=None, sampler=None,
                 expect=None):
        if gather not in _GATHERS:
            raise ValueError("gather is 'auto', 'host' or 'device', not '%s'" % gather)
        if not hasattr(batch_size, "__index__"):
            raise TypeError("batch_size is a whole number of samples, not %r" % (batch_size,))
        batch_size = index(batch_size)
        if sampler is not None and not callable(sampler) and not hasattr(sampler, "__iter__"):
            raise TypeError("sampler is an iterable of sample numbers, or a function of the epoch, not"
                            " %r" % (sampler,))
        if hasattr(sampler, "__next__"):
            raise TypeError("sampler is an iterator, which ends with the first epoch: give a list, or a"
                            " function of the epoch")
        if sampler is not None and (block or window):
            raise ValueError("a sampler is in place of block and window")
        is_npy = isinstance(decode, str) and decode == "npy"
        rank, world_size = rank_of(rank, world_size, "world_size", 2)
        if getattr(sampler, "num_replicas", 1) > 1 and world_size != 1:
            raise ValueError("the sampler deals its numbers to %d ranks itself, and so would the loader:"
                             " give it rank=0, world_size=1" % sampler.num_replicas)
        options = dict(batch_size=batch_size, rank=rank, world_size=world_size, seed=seed,
                       shuffle=shuffle, drop_last=drop_last,
                       threads=0 if threads is None else threads,
                       prefetch=0 if prefetch is None else prefetch, epoch=epoch, memory=memory,
                       align=align, skip_errors=skip_errors, verify=verify, npy=npy or is_npy,
                       block=block, window=window, decoded_bytes=decoded_bytes,
                       gather=_GATHERS[gather], io_timeout=_milliseconds(io_timeout))
        if expect is not None:
            archive, stage = as_archive(archive, stage=stage), None
            expect_digest(archive, expect)
        handle, archive = _core.loader_open(
            archive, partial(as_archive, stage=stage), _device_names(device, devices),
            None if is_npy else decode, _images(images, dtype, mean, scale), options, Batch,
            sampler is not None)
        if hasattr(self, "_handle"):
            raise ValueError("the loader was initialised already")
        self._archive, self._batch_size, self._resumes = archive, batch_size, None
        self._sampler, self._samples, self._listed = sampler, len(archive), None
        self._locks = {}
        self._handle = handle
        if sampler is not None:
            self._order(_core.loader_epoch(handle)[0])

    def _order(self, epoch, state=None):
        """Have the sampler give the order of an epoch, and go to its start. state: its own of that
        time, when it gave this order before."""
        given = self._sampler
        with self._alone():
            self._listed = None  # until it is all there
            if state is None or not hasattr(given, "load_state_dict"):
                state = _state_of(given)
            else:
                given.load_state_dict(state)
            if hasattr(given, "set_epoch"):
                given.set_epoch(epoch)
            if not hasattr(given, "__iter__"):
                given = given(epoch)
            given = given.tolist() if hasattr(given, "tolist") else given
            _core.loader_order(self._opened(), epoch, given, self._samples)
            self._listed = epoch, state

    def _alone(self):
        """The lock of this process: another thread may have held its parent's when that forked. A
        sampler may use the loader, so a thread may take it twice."""
        return self._locks.setdefault(os.getpid(), threading.RLock())

    def _opened(self):
        """The handle, which its holder keeps from being freed by close()."""
        handle = getattr(self, "_handle", None)
        if handle is None:
            raise ValueError("the loader %s" % ("is closed" if self.closed else "was not opened"))
        return handle

    def close(self):
        """Stop its threads and give up its memory, as at the end of a 'with' block. Later uses are a
        ValueError. Batches keep their bytes. An Archive that was given stays open."""
        self._handle = self._archive = None

    @property
    def closed(self):
        """Was it closed?"""
        return getattr(self, "_handle", False) is None

    def __len__(self):
        return _core.loader_batches(self._opened())

    def __next__(self):
        self._opened()
        epoch = _ANY_EPOCH
        if self._sampler is not None:
            with self._alone():
                epoch = _core.loader_epoch(self._opened())[0]
                self._go(epoch, False)
        # Only of that one: when another thread has ended it since, the next has no order yet.
        return next(_core.loader_iterate(self, epoch))

    def __iter__(self):
        self._opened()
        with self._alone():
            place = epoch, done = _core.loader_epoch(self._opened())
            is_over = bool(done and self._resumes != place)  # also if it was left halfway
            epoch += is_over
            self._go(epoch, is_over)
        # The loader itself can't be its iterator: iter() of an iterator must have no effect, while
        # iter() of a loader begins an epoch.
        return _core.loader_iterate(self, epoch)

    def _go(self, epoch, anew=True):
        """Go to an epoch, or only see that it has an order."""
        if self._sampler is not None and (self._listed is None or self._listed[0] != epoch):
            self._order(epoch)
        elif anew:
            _core.loader_set_epoch(self._opened(), epoch)

    @property
    def epoch(self):
        """The epoch of the next batch."""
        return _core.loader_epoch(self._opened())[0]

    def set_epoch(self, epoch):
        """Go to the start of an epoch. Costs nothing if the loader is there already."""
        self._opened()
        with self._alone():
            self._resumes = None
            self._go(index(epoch))

    @property
    def digest(self):
        """Archive.digest of its archive."""
        self._opened()
        return self._archive.digest

    @property
    def sampler(self):
        """The loader itself, for loops that call loader.sampler.set_epoch()."""
        return self

    def state_dict(self):
        """The loader's position as a dict of numbers and a digest; with a sampler that has a state,
        also 'sampler'. Batches that were delivered count, the one in the loop's variable too. It is
        the place of all ranks, so that one rank's state serves all."""
        self._opened()
        with self._alone():
            state, given = _core.loader_state(self._opened()), self._sampler
            if self._listed is not None and self._listed[0] == state["epoch"]:
                before = self._listed[1]
            else:
                before = _state_of(given)
            return state if before is None else dict(state, sampler=before)

    def load_state_dict(self, state):
        """Go on from a state, even with another world size if the global batch is the same. The next
        iteration has the rest of that epoch; of a state that was saved behind its last batch that
        is nothing, and the iteration after it has the next epoch. ValueError: the state belongs to
        another archive or another order, or these ranks can't continue it; with a sampler the
        loader is then at the start of the state's epoch."""
        self._opened()
        try:
            state["order"]
        except KeyError:  # of a version without
            state = dict(state, order=0)
        with self._alone():
            if self._sampler is not None:
                self._order(index(state["epoch"]), state.get("sampler"))
            _core.loader_restore(self._opened(), state)
            self._resumes = _core.loader_epoch(self._opened())

    @property
    def stats(self):
        """Counts, bytes and seconds of this loader: dict."""
        return _core.loader_stats(self._opened())

    @property
    def delivered(self):
        """(samples, sum, sum) of what was delivered in this epoch, padding left out. Added over
        all ranks modulo 2**64 they are the same for any order with each sample once."""
        return _core.loader_delivered(self._opened())

    def __repr__(self):
        handle = getattr(self, "_handle", None)
        if handle is None:
            return "<onepot.Loader, %s>" % ("closed" if self.closed else "not initialised")
        return "<onepot.Loader of %r: %d batches of %d, %s, epoch %d>" % (
            self._archive, _core.loader_batches(handle), self._batch_size, _core.loader_kind(handle),
            _core.loader_epoch(handle)[0])

    def __reduce__(self):
        raise TypeError("cannot pickle 'Loader' object")

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        """close()"""
        self.close()

    def transfer(self, previous=False):
        """transfer(previous=False): what was copied to the device in this epoch or the one
        before, how fast, and how long the consumer waited: dict of bytes, seconds and bytes per
        second, of several devices added up. The first call measures the peak of the slowest
        link. OSError: the loader has no device."""
        figures = _core.loader_transfer(self._opened(), previous)
        seconds, peak = figures["copy_seconds"], float(figures.pop("peak"))
        rate = figures["copy_bytes"] / seconds if seconds else 0.0
        figures.update(bytes_per_second=rate, peak_bytes_per_second=peak,
                       fraction_of_peak=rate / peak if peak else 0.0,
                       gathered_by_device=bool(figures.pop("gathers")))
        return figures

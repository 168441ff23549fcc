"""Loader: what its arguments mean. The batches are made in C."""
from operator import index

from onepot import _core
from onepot._archive import as_archive

_FLOATS = {"float32": 1, "float16": 2, "bfloat16": 3}
_GATHERS = {"auto": 0, "host": 1, "device": 2}


def _device_name(device):
    """"cuda:0", torch.device("cuda:0") or 0 as the name of a device; None for "cpu"."""
    if device is None:
        return None
    if not hasattr(device, "__index__"):
        name = str(device)
    elif 0 <= index(device) < 1 << 32:
        name = "cuda:%d" % index(device)
    else:
        raise OverflowError("%r is not between 0 and 4294967295" % device)
    return None if name == "cpu" else name


def _for_channels(given, what, usual, channels):
    """A number for each channel, or one for all, as four numbers."""
    given = usual if given is None else given
    each = list(given) if hasattr(given, "__len__") else [given] * channels
    if len(each) != channels:
        raise ValueError("%s is one number, or one for each channel" % what)
    return (*each, *[0] * (4 - channels))


def _images(shape, dtype, mean, scale):
    if dtype not in _FLOATS:
        raise ValueError("images are float32, float16 or bfloat16, not %s" % dtype)
    if shape is None:
        return None
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise TypeError("images is (height, width, channels)")
    channels = index(shape[2])
    if not 1 <= channels <= 4:
        raise ValueError("images have 1 to 4 channels")
    return (*shape, _FLOATS[dtype], _for_channels(mean, "mean", 0, channels),
            _for_channels(scale, "scale", 1, channels))


def _milliseconds(seconds):
    """As the library counts: 0 is the default, and never has a number of its own."""
    if seconds is None:
        return 0
    if not 0 <= seconds < 4e6:
        raise ValueError("io_timeout is a number of seconds, or 0: never")
    return max(1, int(seconds * 1000)) if seconds else _core.NEVER


class Loader(_core.Loader):
    """Loader(archive, batch_size, rank=None, world_size=None, seed=0, shuffle=True,
           drop_last=False, threads=None, prefetch=None, decode=None, *, epoch=0,
           memory=0, align=0, skip_errors=False, verify=False, npy=False, block=0,
           window=0, decoded_bytes=0, device=None, images=None, dtype='float32',
           mean=None, scale=None, gather='auto', io_timeout=None)

    Batches of the samples of an archive (an Archive, or its path) in the order of
    DistributedSampler, gathered ahead
    by threads that need no interpreter. Each iteration is the next epoch. Rank and
    world size come from the launcher where they are not given. memory: bytes that
    batches, kept ones included, may have; BufferError beyond that.
    decode: 'npy' (as npy=True: dense arrays of .npy files), or a capsule 'onepot.decode'
    of an onepot_decode function (onepot.h), which is called on the loader's threads with
    decoded_bytes of room for each sample.
    device: 'cuda:0', 0, torch.device('cuda:0'), 'cuda' (by the local rank) or 'host' (the
    host playing a GPU): batches go
    over in one copy each, ahead of their use. images=(height, width, channels): samples are
    bytes by rows, of which the device makes (byte - mean) * scale, channels first.
    gather: 'device' lets the GPU collect the samples from the page-locked archive, 'host' the
    CPU; 'auto' measures.
    io_timeout: seconds after which a read of the storage is given up (None: 60; 0: never).
    OSError or ValueError names a sample that can't be read; next() of the same
    iterator goes on with the next batch. Any thread may take batches. In a forked child
    the loader goes on by itself.
    """

    __module__ = "onepot"
    __slots__ = ()

    def __init__(self, archive, batch_size, rank=None, world_size=None, seed=0, shuffle=True,
                 drop_last=False, threads=None, prefetch=None, decode=None, *, epoch=0, memory=0,
                 align=0, skip_errors=False, verify=False, npy=False, block=0, window=0,
                 decoded_bytes=0, device=None, images=None, dtype="float32", mean=None, scale=None,
                 gather="auto", io_timeout=None):
        if gather not in _GATHERS:
            raise ValueError("gather is 'auto', 'host' or 'device', not '%s'" % gather)
        is_npy = isinstance(decode, str) and decode == "npy"
        options = dict(batch_size=batch_size, seed=seed, shuffle=shuffle, drop_last=drop_last,
                       threads=0 if threads is None else threads,
                       prefetch=0 if prefetch is None else prefetch, epoch=epoch, memory=memory,
                       align=align, skip_errors=skip_errors, verify=verify, npy=npy or is_npy,
                       block=block, window=window, decoded_bytes=decoded_bytes,
                       gather=_GATHERS[gather], io_timeout=_milliseconds(io_timeout))
        super().__init__(as_archive(archive), _device_name(device), None if is_npy else decode,
                         _images(images, dtype, mean, scale), rank, world_size, options)

    def transfer(self, previous=False):
        """transfer(previous=False): of this epoch, or of the one before, what was waited for, and
        what was copied to the device how fast: dict. The first call measures the link's peak."""
        figures = self._transfer(previous)
        seconds, peak = figures["copy_seconds"], float(figures.pop("peak"))
        rate = figures["copy_bytes"] / seconds if seconds else 0.0
        figures.update(bytes_per_second=rate, peak_bytes_per_second=peak,
                       fraction_of_peak=rate / peak if peak else 0.0,
                       gathered_by_device=bool(figures.pop("gathers")))
        return figures

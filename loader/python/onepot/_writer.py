"""Writer: makes a new archive. An exception leaves none behind."""
import os

from onepot import _core


class Writer:
    """Writer(path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True)

    Makes a new archive of files in memory:

        with onepot.Writer('train.tar') as writer:
            writer.add('cat/0001.jpg', data)

    The archive gets its name at the end of the block; an exception leaves nothing behind.

    >>> with onepot.Writer("new.tar", overwrite=True) as writer:
    ...     writer.add("a/1.txt", b"one")
    >>> bytes(onepot.Archive("new.tar")["a/1.txt"])
    b'one'

    zstd       compression level, 1 to 22; 0: store
    block      bytes of a compressed block, a power of two from 4 KB to 8 MB; 0: 512 KB
    align      data begins at multiples of this many bytes, a power of two from 512 to 64 KB; not
               with zstd
    threads    that compress; 0: one for each CPU of this process
    overwrite  replace an existing file; else FileExistsError
    sync       wait until the archive is on the disk

    ValueError: an argument makes no sense. OSError: the file can't be written. One thread at a
    time may use a writer.
    """

    __module__ = "onepot"
    __slots__ = ("_handle",)  # the library's writer, in a capsule

    def __init__(self, path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True):
        handle = _core.writer_open(os.fsencode(path), dict(
            zstd=zstd, block=block, align=align, threads=threads, overwrite=overwrite, sync=sync))
        if hasattr(self, "_handle"):
            raise ValueError("the writer was opened already")
        self._handle = handle

    def _opened(self):
        """The handle; None: __init__ has given it none."""
        return getattr(self, "_handle", None)

    def add(self, name, data, *, mode=0o644, mtime=0):
        """add(name, data, *, mode=0o644, mtime=0): add bytes, or any buffer, as a file. name: its
        path in the archive. mode: permissions. mtime: seconds since 1970. ValueError: no file can
        have this name or time. FileExistsError: the name is taken. OSError: it can't be written."""
        _core.writer_add(self._opened(), os.fsencode(name), data, mode, mtime)

    def close(self):
        """Write the index and give the archive its name. A second call does nothing."""
        _core.writer_finish(self._opened())

    def discard(self):
        """Give up the archive; nothing is left of it."""
        _core.writer_discard(self._opened())

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """close(), or discard() after an exception."""
        if kind is None:
            Writer.close(self)
        else:
            Writer.discard(self)

    def __reduce__(self):
        raise TypeError("cannot pickle 'Writer' object")

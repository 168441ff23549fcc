"""Writer: makes a new archive. An exception leaves none behind."""
import os
import threading

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
    # _handle: the library's writer, in a capsule; None: closed. _busy: a thread is inside.
    __slots__ = ("_handle", "_busy")

    def __init__(self, path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True):
        handle = _core.writer_open(os.fsencode(path), dict(
            zstd=zstd, block=block, align=align, threads=threads, overwrite=overwrite, sync=sync))
        if hasattr(self, "_handle"):
            raise ValueError("the writer was opened already")
        self._busy = threading.Lock()
        self._handle = handle

    def _enter(self):
        """The handle, for one call of this thread. Then _busy is to be released."""
        if getattr(self, "_handle", None) is not None:
            if not self._busy.acquire(blocking=False):
                raise RuntimeError("another thread is writing")
            if self._handle is not None:
                return self._handle
            self._busy.release()
        raise ValueError("the archive is closed")

    def add(self, name, data, *, mode=0o644, mtime=0):
        """add(name, data, *, mode=0o644, mtime=0): add bytes, or any buffer, as a file. name: its
        path in the archive. mode: permissions. mtime: seconds since 1970. ValueError: no file can
        have this name or time. FileExistsError: the name is taken. OSError: it can't be written."""
        name = os.fsencode(name)
        handle = self._enter()
        try:
            _core.writer_add(handle, name, data, mode, mtime)
        finally:
            self._busy.release()

    def _end(self, finish):
        if getattr(self, "_handle", None) is None:
            return
        handle = self._enter()
        self._handle = None
        self._busy.release()
        finish(handle)

    def close(self):
        """Write the index and give the archive its name. A second call does nothing."""
        self._end(_core.writer_finish)

    def discard(self):
        """Give up the archive; nothing is left of it."""
        self._end(_core.writer_discard)

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

"""Writer: a context manager. An exception leaves no archive."""
import os

from onepot import _core


class Writer(_core.Writer):
    """Writer(path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True)

    A new archive of files that are in memory:

        with onepot.Writer('train.tar') as writer:
            writer.add('cat/0001.jpg', data)

    It gets its name at the end of the block; after an exception nothing is left of it.
    zstd: level, 1 to 22; block: bytes of a compressed block (0: 1 MiB); align: data
    begins at multiples of so many bytes; threads: that compress; sync: wait until it is
    on the disk. FileExistsError without overwrite. One thread at a time.
    """

    __module__ = "onepot"
    __slots__ = ()

    def __init__(self, path, *, zstd=0, block=0, align=0, threads=0, overwrite=False, sync=True):
        super().__init__(os.fsencode(path), dict(zstd=zstd, block=block, align=align,
                                                 threads=threads, overwrite=overwrite, sync=sync))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """close(), or discard() after an exception."""
        if kind is None:
            Writer.close(self)
        else:
            Writer.discard(self)

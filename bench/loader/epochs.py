"""Epochs of onepot.Loader, each when it is told to: see epochs.c, whose counterpart this is.

    epochs.py ARCHIVE THREADS BATCH CONSUME

CONSUME is the library of consume.c. A batch's memory reaches it by way of numpy, as it reaches
whoever computes with it.
"""

import ctypes
import sys
import time

import numpy

import onepot


def main():
    path, threads, batch_size, library = sys.argv[1:]
    consume = ctypes.CDLL(library).consume
    consume.argtypes, consume.restype = (ctypes.c_void_p, ctypes.c_uint64), ctypes.c_uint64
    loader = onepot.Loader(onepot.Archive(path), int(batch_size), rank=0, world_size=1,
                           threads=int(threads))
    for _ in sys.stdin:
        start, samples, total = time.monotonic(), 0, 0
        for batch in loader:
            memory = numpy.asarray(batch.data)
            total += consume(memory.ctypes.data, memory.size)
            samples += len(batch)
            del batch, memory
        print(f"{samples / (time.monotonic() - start):.0f}", flush=True)


if __name__ == "__main__":
    main()

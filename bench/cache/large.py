"""The reader of the row `large`, a program that `onepot run` starts, too:

    large.py HOW FILE STORAGE SEED     HOW is read, mapped, pieces, rows or several

Prints seconds, a sum of the bytes, and the requests and bytes that slowfs at STORAGE counted.
"""

import json
import mmap
import multiprocessing
import os
import random
import sys
import time
import zlib

PIECE, READ, PAGE = 24 << 20, 1 << 20, 4096
ROW = 256 << 10  # of a tensor that is cut for four ranks


def counts(storage):
    return json.loads(os.getxattr(storage, "user.slowfs.stats"))


def read_through(path, start, size):
    fd, buffer, total = os.open(path, os.O_RDONLY), bytearray(READ), 0
    for at in range(start, start + size, READ):
        got = os.preadv(fd, [buffer], at)
        total += zlib.adler32(memoryview(buffer)[:got:PAGE].tobytes())
    os.close(fd)
    return total


def look_through(fd, size, piece, seed):
    """A byte of each page, which is what a mapping brings."""
    total, places = 0, list(range(0, size, piece))
    random.Random(seed).shuffle(places)
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        for place in places:
            for at in range(place, min(place + piece, size), READ):
                total += zlib.adler32(bytes(view[at:at + READ:PAGE]))
    return total


def look_at_quarters(fd, size):
    """A byte of each page of the first quarter of each row."""
    total = 0
    with mmap.mmap(fd, size, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
        for at in range(0, size, ROW):
            total += zlib.adler32(bytes(view[at:at + ROW // 4:PAGE]))
    return total


def read_several(path, size):
    """As read_through, by four processes with a quarter each."""
    with multiprocessing.Pool(4) as pool:
        return sum(pool.starmap(read_through, [(path, size // 4 * i, size // 4) for i in range(4)]))


def main():
    how, path, storage, seed = sys.argv[1:]
    before, began = counts(storage), time.monotonic()
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    total = (read_through(path, 0, size) if how == "read" else look_at_quarters(fd, size) if how == "rows" else
             read_several(path, size) if how == "several" else
             look_through(fd, size, PIECE if how == "pieces" else size, int(seed)))
    seconds, after = time.monotonic() - began, counts(storage)
    print(json.dumps({"seconds": seconds, "sum": total, "requests": after["read"] - before["read"],
                      "fetched": after["bytes"] - before["bytes"]}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Make sparse_5_gib.squashfs anew, which tests of SquashFS read.

Usage: make_sparse.py IMAGE

It lies ready because mksquashfs reads each byte of a hole, which takes ten seconds.
"""

import os
import struct
import subprocess
import sys
import tempfile

GIB = 1 << 30
SIZE = 5 * GIB
FILES = {
    # tests/archive/squashfs/test_squashfs.c
    "huge": [(i * GIB, b"x" * 5000) for i in range(1, 5)],
    # tests/mount/formats/big.py
    "sparse": [(at, struct.pack("<Q", at + 1) * 2) for at in
               (0, 1 * GIB, 2 * GIB - 8, 4 * GIB - 8, 4 * GIB + 4096, SIZE - 16)],
}


def main():
    with tempfile.TemporaryDirectory() as tree:
        os.chmod(tree, 0o755)
        for name, pieces in FILES.items():
            with open(f"{tree}/{name}", "wb") as f:
                f.truncate(SIZE)
                for at, data in pieces:
                    os.pwrite(f.fileno(), data, at)
        with open(f"{tree}/z", "wb") as f:
            f.write(b"after\n")
        subprocess.run(["mksquashfs", tree, sys.argv[1], "-noappend", "-quiet", "-no-progress", "-comp", "zstd",
                        "-b", "1M", "-all-root", "-mkfs-time", "0", "-all-time", "0"], check=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Preprocessing that writes one archive, and never a million small files.

    python preprocess.py raw.tar features.tar

Reads each sample of an archive, makes something of it, and puts that into a new one under the
same name. If it is interrupted, nothing is left of the new one.
"""
import sys
import zlib

import onepot


def features(data):
    """What a real script computes: here four bytes, a sum over the data."""
    return zlib.crc32(data).to_bytes(4, "little")


def main():
    raw = onepot.Archive(sys.argv[1])
    with onepot.Writer(sys.argv[2], overwrite=True) as writer:
        for sample in raw:
            writer.add(sample.name + ".crc", features(sample.data))
    print("wrote", len(raw), "samples")


if __name__ == "__main__":
    main()

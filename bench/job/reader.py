"""A reader on a node that stages. Usage: reader.py ARCHIVE STORE PACE OUT

It begins at a byte on its standard input and ends at the next one, or after an epoch: samples of
ARCHIVE through the stage, shuffled, PACE of them per second, each compared with the file in STORE.
Writes a byte when it is ready, and at the end its figures to OUT.
"""

import os
import random
import select
import sys
import time

import onepot
from notes import note


def content(store, name):
    with open(os.path.join(store, name), "rb") as f:
        return f.read()


def read_epoch(figures, path, store, pace):
    begun = time.monotonic()
    with onepot.Archive(path, stage="") as archive:
        for i in random.Random(os.getpid()).sample(range(len(archive)), len(archive)):
            sample = archive[i]
            try:
                got = bytes(sample.read())
            except OSError:
                got = None
                figures["failed"] += 1
            figures["first"] = figures["first"] or time.monotonic() - begun
            figures["samples"] += 1
            figures["wrong"] += got is not None and got != content(store, sample.name)
            rest = begun + figures["samples"] / pace - time.monotonic()
            if select.select([0], [], [], max(0, rest))[0]:
                break


def main():
    path, store, pace, out = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]
    figures = {"first": None, "samples": 0, "wrong": 0, "failed": 0}
    os.write(1, b"1")
    os.read(0, 1)
    try:
        read_epoch(figures, path, store, pace)
    except OSError as error:
        figures["failed"] += 1
        figures["error"] = str(error)
    note(out, figures)


if __name__ == "__main__":
    main()

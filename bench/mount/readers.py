#!/usr/bin/env python3
"""Reads a tree as the worker processes of a DataLoader do, and says how fast that went.

Same work and same output as readers.c, from Python: WORKERS processes each take every
WORKERSth batch of a random permutation. Ways to read: "os" is os.open, os.fstat, os.read,
os.close; "open" is the builtin open(), as PIL and torchvision use it, which asks the file for a
terminal (an ioctl) before Python 3.14; "zipfile" reads from the zip ROOT without a mount, which
each worker has opened before. Nothing is sent back to the parent
but counts: what pickling costs is the same on every file system.
"""

import argparse
import json
import multiprocessing
import os
import queue
import random
import sys
import time
import zipfile

sys.dont_write_bytecode = True

from calm import machine_seconds

BATCH = 64
CPUCLOCK_SCHED = 2


def read_os(path):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        total = 0
        while data := os.read(fd, max(size, 1)):
            total += len(data)
    finally:
        os.close(fd)
    return total


def read_open(path):
    with open(path, "rb") as file:
        return len(file.read())


READERS = {"os": read_os, "open": read_open, "zipfile": None}


def own_seconds(pid):
    """CPU time of another process, all threads, by its process clock (clock_getcpuclockid)."""
    try:
        return time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    except OSError:
        return 0.0


def stat_fields(pid):
    """Of /proc/PID/stat, from the state on; none if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()
    except OSError:
        return []


def process_seconds(pid):
    """Of a process, of its children that have ended, and of those that live."""
    fields = stat_fields(pid)
    ended = sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")
    living = [int(name) for name in os.listdir("/proc")
              if name.isdigit() and stat_fields(name)[1:2] == [str(pid)]]
    return own_seconds(pid) + ended + sum(map(own_seconds, living))


def reader_of(args):
    if args.how != "zipfile":
        return READERS[args.how]
    archive = zipfile.ZipFile(args.root)
    return lambda path: len(archive.read(path))


def load(args):
    root = "" if args.how == "zipfile" else args.root
    with open(args.list, encoding="ascii") as lines:
        pairs = (line.rstrip("\n").split("\t") for line in lines)
        return [(os.path.join(root, path), int(size)) for path, size in pairs]


def work(args, samples, worker, start, done):
    """One worker: its batches of every epoch, a barrier before and after each."""
    read = reader_of(args)
    for epoch in range(args.epochs):
        order = list(range(len(samples)))
        random.Random(args.seed * 1000 + epoch).shuffle(order)
        batches = [order[at:at + BATCH] for at in range(0, len(order), BATCH)]
        start.wait()
        before = time.process_time()
        for batch in batches[worker::args.workers]:
            for index in batch:
                path, size = samples[index]
                if read(path) != size:
                    raise SystemExit(f"{path}: bytes read differ from the size listed, {size}")
        done.put(time.process_time() - before)


def run_epoch(args, start, done, workers):
    machine = machine_seconds()
    daemon = sum(map(process_seconds, args.daemon))
    start.wait()
    began = time.monotonic()
    reader = 0.0
    for _ in workers:
        while True:
            try:
                reader += done.get(timeout=1)
                break
            except queue.Empty:
                if any(worker.exitcode for worker in workers):
                    raise SystemExit("readers.py: a worker failed") from None
    wall = time.monotonic() - began
    daemon = sum(map(process_seconds, args.daemon)) - daemon
    machine = machine_seconds() - machine
    return {"seconds": wall, "reader_cpu": reader, "daemon_cpu": daemon,
            "others_cpu": max(0.0, machine - reader - daemon)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--how", choices=READERS, default="os")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--daemon", type=int, action="append", default=[], metavar="PID")
    parser.add_argument("root")
    parser.add_argument("list")
    args = parser.parse_args()

    context = multiprocessing.get_context("fork")
    samples = load(args)
    start, done = context.Barrier(args.workers + 1), context.Queue()
    workers = [context.Process(target=work, args=(args, samples, n, start, done), daemon=True)
               for n in range(args.workers)]
    for worker in workers:
        worker.start()
    epochs = [{**run_epoch(args, start, done, workers), "files": len(samples)}
              for _ in range(args.epochs)]
    for worker in workers:
        worker.join()
    json.dump({"epochs": epochs}, sys.stdout)
    print()


if __name__ == "__main__":
    main()

"""Rows that are rates and shares: each lets contenders run in alternating rounds and returns
{contender: {figure: [samples]}}. Who is not available is named and left out."""

import itertools
import os
import subprocess
import sys
import time

from archives import BuildError, run_quiet
from calm import calmly, machine_seconds
from commands import Unavailable
from mounts import MountError
from orders import in_time, plan_of, python_permutation, torch_permutation
from place import PAGE, ReadError, STREAM_BLOCK, number, program_json

STAGE_READERS, SQUASHFUSE_SHARE = 4, 0.1
WORLD, WORKERS = 2, 4           # of a node in the row known
PACE_SHARE = 0.6                # of R, for readers that wait for their GPU
DATA_BY_BUDGET = 4
EPOCHS = 5
UNKNOWN_WORKERS = 8             # of each rank in the row unknown
RANDOM_READERS = (4, 32)
LARGE_READER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "large.py")
LARGE_HOWS, LARGE_BYTES, LARGE_QUICK_BYTES = ("read", "mapped", "pieces", "rows", "several"), 1 << 30, 64 << 20
LITTLE_AHEAD = ("--read=1ms", "--readahead=64")
RANDOM_SHARE = 0.4              # of an epoch in the row random
STORED = "onepot"               # the kind of archive: uncompressed, packed by onepot


class Rates:
    def __init__(self, args, place, say):
        self.args, self.place, self.say = args, place, say
        self.count = len(place.samples)
        self.budget = place.total // DATA_BY_BUDGET
        self.failed = False
        self.absent = {}
        self.bare_rates = []    # R of each round: what paced readers go by

    def rounds(self, row, takers, rounds=None):
        """takers: {name: function of the round's number, returning figures}."""
        samples, names, rounds = {}, list(takers), rounds or self.args.rounds
        for n in range(rounds):
            for name in names:
                if name in self.absent.get(row, {}):
                    continue
                self.say(f"{row}: round {n + 1} of {rounds}: {name}")
                for figure, value in self.take(row, name, takers[name], n).items():
                    samples.setdefault(name, {}).setdefault(figure, []).append(value)
        return samples

    def take(self, row, name, taker, n):
        """One sample of each figure, without those that could not be measured."""
        try:
            figures = calmly(lambda: self.alone(taker, n), self.args.calm, False)
            return {k: v for k, v in figures.items() if v is not None}
        except Unavailable as why:
            self.absent.setdefault(row, {})[name] = str(why)
            self.say(f"{row}: {name}: not available: {why}")
        except (MountError, ReadError, BuildError, OSError, subprocess.TimeoutExpired) as why:
            self.say(f"{row}: {name}: {why}")
            self.failed = True
        return {}

    @staticmethod
    def alone(taker, n):
        """With what the machine did meanwhile, ourselves included: CPUs."""
        machine, began = machine_seconds(), time.monotonic()
        figures = taker(n)
        return {**figures, "machine": (machine_seconds() - machine) / (time.monotonic() - began)}

    # The bare program.

    def stream(self, _n):
        size = self.place.total_archive(STORED)
        blocks = [(at, min(STREAM_BLOCK, size - at)) for at in range(0, size, STREAM_BLOCK)]
        with self.place.slow() as slow:
            got = self.place.bare(slow, STORED, blocks, "--drop")
        return {"W": got["bytes"] / got["seconds"]}

    def ranges(self, n):
        places = self.place.ranges(STORED)
        order = python_permutation(self.count, 1000 + n)
        with self.place.slow() as slow:
            got = self.place.bare(slow, STORED, [places[i] for i in order])
        self.bare_rates.append(got["reads"] / got["seconds"])
        return {"R": got["reads"] / got["seconds"], "R bytes": got["bytes"] / got["seconds"]}

    def bare(self):
        """W and R, in the rounds of the row that goes by them."""
        return {"bare stream": self.stream, "bare random preads": self.ranges}

    # A staged first epoch.

    def staged_epoch(self, n):
        """From the command that mounts to the last byte of the epoch."""
        plan = self.place.write_plan(self.plan_by_chance(n, STAGE_READERS))
        with self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            began = time.monotonic()
            with self.place.mounted(archive, "--stage") as mount:
                got = self.place.read(mount.root, plan)
                seconds = time.monotonic() - began
                return {"seconds": seconds, "ready": mount.ready_seconds,
                        "epoch": got["seconds"], "fetched": slow.counts()["bytes"]}

    def memory_epoch(self, n):
        plan = self.place.write_plan(self.plan_by_chance(n, STAGE_READERS))
        with self.place.mounted(self.place.in_memory(STORED)) as mount:
            return {"seconds": self.place.read(mount.root, plan)["seconds"]}

    def squashfuse_epoch(self, n):
        """A share of the epoch: all of it would take minutes."""
        whole = self.plan_by_chance(n, STAGE_READERS)
        part = [entry for entry in whole if entry[1] < whole[-1][1] * SQUASHFUSE_SHARE]
        plan = self.place.write_plan(part)
        with self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive('squashfs')}"
            with self.place.mounted(archive, program="squashfuse_ll") as mount:
                got = self.place.read(mount.root, plan)
        return {"seconds": got["seconds"] * self.count / got["files"],
                "share": got["files"] / self.count}

    def plan_by_chance(self, n, readers, world=1):
        return plan_of(python_permutation(self.count, n), world, readers // world)

    def stage(self):
        return self.rounds("stage", {
            "bare stream": self.stream, "epoch from memory": self.memory_epoch,
            "onepot --stage": self.staged_epoch, "squashfuse_ll": self.squashfuse_epoch})

    # Known orders.

    def known_epoch(self, order, *options, pace=None):
        """One epoch of a node's ranks, on a fresh mount; data DATA_BY_BUDGET times the budget."""
        plan = self.place.write_plan(plan_of(order, WORLD, WORKERS))
        rate = [f"--pace={pace}"] if pace else []
        with self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            with self.place.mounted(archive, "--cache", str(self.budget), *options) as mount:
                got = self.place.read(mount.root, plan, *rate)
                fetched = slow.counts()["bytes"]
                stat = self.place.stat(mount)
        asked = PAGE * self.place.pages(STORED, order)
        figures = {"rate": got["files"] / got["seconds"], "there": got["there"] / got["files"],
                   "p99": got["p99_us"] / 1000, "fetched": fetched / asked,
                   "recognised": recognised_after(stat)}
        return {f"{name} paced" if pace else name: value for name, value in figures.items()}

    def known_both(self, order, *options):
        """Readers that do nothing but read, then paced ones."""
        pace = PACE_SHARE * sorted(self.bare_rates)[len(self.bare_rates) // 2]
        return {**self.known_epoch(order, *options),
                **self.known_epoch(order, *options, pace=pace)}

    def recognised(self, n):
        return self.known_both(torch_permutation(self.count, n))

    def given(self, n):
        order = python_permutation(self.count, 2000 + n)
        listing = self.place.write_order(in_time(order, WORLD, 1))
        return self.known_both(order, "--order", listing)

    def recording(self, n):
        """The job before, which has no order to go by: also what known orders are worth."""
        order = python_permutation(self.count, 3000 + n)
        return self.known_epoch(order, "--record", self.record_file())

    def recorded(self, n):
        order = python_permutation(self.count, 3000 + n)
        return self.known_both(order, "--order", self.record_file())

    def record_file(self):
        return f"{self.place.folder}/recorded"

    def known(self):
        return self.rounds("known", {
            **self.bare(), "recognised": self.recognised, "--order": self.given,
            "unknown, --record": self.recording, "--order of that record": self.recorded})

    # Unknown orders: what is kept of data that does not fit.

    def unknown_epochs(self, _n):
        """Epochs in orders by chance; the kernel forgets each file after it was read, so that
        only the mount's own memory counts."""
        epochs = []
        with self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            with self.place.mounted(archive, "--cache", str(self.budget)) as mount:
                before = self.progress(slow, mount)
                for n in range(EPOCHS):
                    plan = self.plan_by_chance(5000 + n, 2 * UNKNOWN_WORKERS, 2)
                    got = self.place.read(mount.root, self.place.write_plan(plan), "--drop")
                    after = self.progress(slow, mount)
                    epochs.append({k: None if v is None or before[k] is None else v - before[k]
                                   for k, v in after.items()})
                    epochs[-1]["seconds"] = got["seconds"]
                    before = after
        return self.shares_of(epochs)

    def progress(self, slow, mount):
        fetched = slow.counts()["bytes"]
        stat = self.place.stat(mount)
        return {"fetched": fetched, "hits": number(stat, "cache", "hits"),
                "misses": number(stat, "cache", "misses")}

    def shares_of(self, epochs):
        asked = PAGE * self.place.pages(STORED, range(self.count))
        later = epochs[1:]
        lookups = sum((e["hits"] or 0) + (e["misses"] or 0) for e in later)
        return {"fetched per asked, first": epochs[0]["fetched"] / asked,
                "fetched per asked": sum(e["fetched"] for e in epochs) / asked / len(epochs),
                "not fetched": 1 - sum(e["fetched"] for e in later) / asked / len(later),
                "hits": sum(e["hits"] for e in later) / lookups if lookups else None,
                "rate": self.count * len(later) / sum(e["seconds"] for e in later)}

    def unknown(self):
        return self.rounds("unknown", {f"{EPOCHS} epochs": self.unknown_epochs}, 1)

    # Read-ahead must not be in the way of readers that it can't help.

    def random_epoch(self, n, readers, readahead, remote):
        plan = self.plan_by_chance(7000 + n, readers)
        share = RANDOM_SHARE if remote else 1
        plan = self.place.write_plan([e for e in plan if e[1] <= plan[-1][1] * share])
        options = ("--cache", str(self.budget), "--readahead", readahead)
        with self.place.slow() as slow:
            archive = (f"{slow.at}/{self.place.archive(STORED)}" if remote
                       else self.place.in_memory(STORED))
            with self.place.mounted(archive, *options) as mount:
                got = self.place.read(mount.root, plan)
                fetched = slow.counts()["bytes"]
        return {"rate": got["files"] / got["seconds"],
                "fetched": fetched / got["bytes"] if remote else None}

    def random(self):
        takers = {}
        for remote in (True, False):
            for readers in RANDOM_READERS if remote else RANDOM_READERS[:1]:
                where = "slowfs" if remote else "in memory"
                for how in ("off", "auto"):
                    takers[f"{where}, {readers} readers, {how}"] = (
                        lambda n, a=(readers, how, remote): self.random_epoch(n, *a))
        return self.rounds("random", takers)


def recognised_after(stat):
    """Reads of a rank until the order was known, by `onepot stat`."""
    reads, ranks = (number(stat, "foreseen", "order", name) for name in ("reads", "local"))
    return reads / max(1, ranks or 1) if reads else None


class Large:
    """One large file as it lies on slow storage, below a mount of its folder, and as a member of an archive."""

    def __init__(self, rates, size):
        self.place, self.sums, self.small_cache = rates.place, {}, f"--cache={size >> 4}"
        source = os.path.join(self.place.folder, "large")
        self.file = os.path.join(self.place.memory, "weights", "large")
        self.archive = os.path.join(self.place.memory, "large.tar")
        os.mkdir(source)
        os.mkdir(os.path.dirname(self.file))
        with open(self.file, "wb") as out:
            for _ in range(0, size, STREAM_BLOCK):
                out.write(os.urandom(STREAM_BLOCK))
        os.symlink(self.file, os.path.join(source, "large"))
        self.onepot = self.place.store.program("onepot")
        run_quiet([self.onepot, "pack", "-q", "--dereference", "-o", self.archive, source])

    def end(self):
        for path in (self.file, self.archive):
            os.unlink(path)
        os.rmdir(os.path.dirname(self.file))

    def take(self, options, how, storage, n):
        """options: None reads the file itself, else those of `onepot run`."""
        with self.place.slow(*storage) as slow:
            path = f"{slow.at}/weights/large" if options is None else "{}/large"
            reader = [sys.executable, LARGE_READER, how, path, slow.at, str(n)]
            if options is not None:
                what = "weights" if "--plain" in options else "large.tar"
                reader = [self.onepot, "run", *options, f"{slow.at}/{what}", "--", *reader]
            figures = program_json(reader)
        if self.sums.setdefault((how, n), figures["sum"]) != figures["sum"]:
            raise ReadError(f"{how}: other bytes than before")
        del figures["sum"]
        return figures

    def takers(self):
        ways = {"the file": None, "run": (), "run --stage": ("--stage",), "run --plain": ("--plain",),
                "run --plain --stage": ("--plain", "--stage"),
                "run --plain --cache": ("--plain", self.small_cache)}
        found = {f"{how}: {who}": (lambda n, a=(options, how, ()): self.take(*a, n))
                 for how in LARGE_HOWS for who, options in ways.items()}
        for who, how in itertools.product(("the file", "run", "run --plain", "run --plain --stage"), LARGE_HOWS):
            found[f"{how}, little read-ahead: {who}"] = (
                lambda n, a=(ways[who], how, LITTLE_AHEAD): self.take(*a, n))
        return found

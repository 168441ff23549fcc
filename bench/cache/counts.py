"""Rows that are counts: of decompressions, of processes that were killed, of errors. A figure
is the worst of its rounds, not the median."""

import os
import shutil
import signal
import time

from archives import MKSQUASHFS, run_quiet
from cgroup import Cgroup
from orders import plan_of, python_permutation
from place import number
from rates import EPOCHS, STORED, UNKNOWN_WORKERS

FLIGHT_READERS, FLIGHT_BYTES, BLOCK_BYTES = 32, 3000, 131072
SLACK_BYTES = 64 << 20          # that a cgroup has besides the budget
FAIL_EVERY = 1000
IO_TIMEOUT_S = 4
CACHED_FILES, NEVER_READ = 400, 32


class Flight:
    """Files that share one compressed block; all of them are wanted at once."""

    def __init__(self, rates):
        self.rates, self.place = rates, rates.place
        self.archives = {
            "squashfs": ("mksquashfs", ["{src}", "{out}", *MKSQUASHFS, "-comp", "zstd",
                                        "-b", str(BLOCK_BYTES)]),
            "onepot": ("onepot", ["pack", "-q", "--zstd", "-o", "{out}", "{src}"])}

    def make(self, kind):
        """An archive of 32 small files, beside the others; its name below slowfs."""
        name, source = f"flight-{kind}.img", f"{self.place.folder}/flight"
        if os.path.exists(f"{self.place.memory}/{name}"):
            return name
        os.makedirs(f"{source}/class", exist_ok=True)
        for n in range(FLIGHT_READERS):
            with open(f"{source}/class/{n:04}", "w", encoding="ascii") as out:
                out.write((f"line of {n} " * FLIGHT_BYTES)[:FLIGHT_BYTES])
        program, arguments = self.archives[kind]
        path = self.place.store.program(program)
        run_quiet([path, *(a.format(src=source, out=f"{self.place.memory}/{name}")
                           for a in arguments)])
        shutil.rmtree(source)
        return name

    def take(self, kind):
        """Each reader opens a file of its own; all begin at the same time."""
        name, listing = self.make(kind), f"{self.place.folder}/plan"
        with open(listing, "w", encoding="ascii") as out:
            for n in range(FLIGHT_READERS):
                out.write(f"{n}\t0\tclass/{n:04}\t{FLIGHT_BYTES}\n")
        with self.place.slow() as slow:
            with self.place.mounted(f"{slow.at}/{name}", probe="class/0000") as mount:
                before = decompressions(self.place.stat(mount))
                self.place.read(mount.root, listing)
                after = decompressions(self.place.stat(mount))
        return {"decompressions": None if after is None else after - before}

    def takers(self):
        return {f"one block, {kind} zstd": lambda _n, k=kind: self.take(k)
                for kind in self.archives}


def decompressions(stat):
    """Of a mount so far: blocks that were decompressed, else those that were not there."""
    own = number(stat, "cache", "decompressed")
    return number(stat, "cache", "misses") if own is None else own


def second_epoch(place, _n):
    """A zstd SquashFS whose data is within the budget; the kernel forgets what was read."""
    count = len(place.samples)
    counts = []
    with place.slow() as slow:
        archive = f"{slow.at}/{place.archive('squashfs-zstd')}"
        with place.mounted(archive, "--cache", str(2 * place.total)) as mount:
            for epoch in range(2):
                plan = place.write_plan(plan_of(python_permutation(count, epoch), 1, 4))
                before = decompressions(place.stat(mount))
                place.read(mount.root, plan, "--drop")
                after = decompressions(place.stat(mount))
                counts.append(None if after is None else after - before)
    return {"first epoch": counts[0], "decompressions": counts[1]}


class Limit:
    """Epochs with the mount and its readers in one cgroup of little more than the budget."""

    def __init__(self, rates):
        self.rates, self.place = rates, rates.place

    def take(self, _n):
        budget = self.rates.budget
        with Cgroup(budget + SLACK_BYTES) as group, self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            with self.place.mounted(archive, "--cache", str(budget), before=group.join) as mount:
                began = time.monotonic()
                for n in range(EPOCHS):
                    plan = self.rates.plan_by_chance(8000 + n, 2 * UNKNOWN_WORKERS, 2)
                    self.place.read(mount.root, self.place.write_plan(plan), before=group.join)
                return {"kills": group.kills(), "peak": group.peak(), "epochs": EPOCHS,
                        "seconds": (time.monotonic() - began) / EPOCHS}


class Faults:
    """A source that fails now and then, one that is gone, and one that no longer answers."""

    def __init__(self, rates):
        self.rates, self.place = rates, rates.place

    def now_and_then(self, n):
        plan = self.place.write_plan(self.rates.plan_by_chance(9000 + n, 8))
        with self.place.slow(f"--fail-every={FAIL_EVERY}") as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            with self.place.mounted(archive) as mount:
                got = self.place.read(mount.root, plan, "--keep-going")
                reads = slow.counts()["read"]
                retries = number(self.place.stat(mount), "retries")
        return {"errors": got["errors"], "injected": reads // FAIL_EVERY, "retries": retries}

    def gone(self, how, n):
        """What was read before is read again; then what never was."""
        order = python_permutation(self.rates.count, 9500 + n)
        cached = self.place.write_plan(plan_of(order[:CACHED_FILES], 1, 4), "cached")
        never = self.place.write_plan(plan_of(order[-NEVER_READ:], 1, 4), "never")
        with self.place.slow() as slow:
            archive = f"{slow.at}/{self.place.archive(STORED)}"
            with self.place.mounted(archive, "--io-timeout", str(IO_TIMEOUT_S), "--cache",
                                    str(self.place.total + SLACK_BYTES)) as mount:
                self.place.read(mount.root, cached, "--drop")
                os.kill(slow.pid, how)
                try:
                    again = self.place.read(mount.root, cached, "--drop", "--keep-going")
                    lost = self.place.read(mount.root, never, "--keep-going")
                finally:
                    os.kill(slow.pid, signal.SIGCONT)
        return {"errors": again["errors"], "cached s": again["worst_us"] / 1e6,
                "EIO": lost["errors"] / lost["files"], "seconds": lost["worst_us"] / 1e6}

    def takers(self):
        return {f"every {FAIL_EVERY}th read fails": self.now_and_then,
                "gone": lambda n: self.gone(signal.SIGKILL, n),
                "no answer": lambda n: self.gone(signal.SIGSTOP, n)}



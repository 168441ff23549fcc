"""What is measured: each row is a function that lets contenders run in alternating rounds and
returns {contender: {figure: [samples]}}. Who is not available is named and left out."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from archives import BuildError, HERE as MOUNT_BENCH, warm
from calm import calmly
from commands import (EXTRACT, PACK_PIPE, PACK_STORED, PACK_ZSTD, Unavailable, WrongBytes,
                      check, timed)
from slow import Slow

STREAM_BYTES_S, STREAM_READERS = 10**9, (1, 4)
SLOW = ("--meta=1ms", "--read=1ms")


def warm_tree(root):
    """Everything below a directory into the page cache."""
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and not os.path.islink(path):
                warm(path)


class Rows:
    def __init__(self, args, store, folder, say):
        self.args, self.store, self.folder, self.say = args, store, Path(folder), say
        self.programs = {"onepot": args.onepot}
        self.failed = False
        self.absent = {}

    def rounds(self, row, takers, rounds=None):
        """takers: {name: function returning figures}; neighbours in time are compared."""
        samples, names, rounds = {}, list(takers), rounds or self.args.rounds
        for n in range(rounds):
            start = n % max(1, len(names))
            for name in names[start:] + names[:start]:
                if name in self.absent.get(row, {}):
                    continue
                self.say(f"{row}: round {n + 1} of {rounds}: {name}")
                try:
                    figures = calmly(takers[name], self.args.calm, False)
                except Unavailable as why:
                    self.absent.setdefault(row, {})[name] = str(why)
                    self.say(f"{row}: {name}: not available: {why}")
                    continue
                except (WrongBytes, BuildError, OSError) as why:
                    self.say(f"{row}: {name}: {why}")
                    self.failed = True
                    continue
                for figure, value in figures.items():
                    samples.setdefault(name, {}).setdefault(figure, []).append(value)
        return samples

    # Packing.

    def output(self, contender):
        return self.folder / f"out{contender.suffix}"

    def pack(self, contender, src, server=None):
        """One archive; its size is a figure, and it is gone afterwards."""
        out = self.output(contender)
        out.unlink(missing_ok=True)
        os.sync()  # nothing of others is written back meanwhile
        try:
            figures = timed(contender.argv(self.programs, src, out), server or ())
            figures["bytes"] = out.stat().st_size
            return figures
        finally:
            out.unlink(missing_ok=True)

    def verify(self, contender, src):
        """What our archives hold, by GNU tar's comparison with the original."""
        out = self.output(contender)
        try:
            timed(contender.argv(self.programs, src, out))
            check(["tar", "-C", str(src), "-df", str(out)], f"{contender.name} of {src}")
        finally:
            out.unlink(missing_ok=True)

    def local(self, which, src):
        """From the local disk, page cache warm."""
        row, contenders = f"local {which}", PACK_STORED + PACK_ZSTD
        warm_tree(src)
        for contender in filter(lambda c: c.ours, contenders):
            try:
                self.verify(contender, src)
            except Unavailable:
                pass  # the rounds will say so
            except WrongBytes as why:
                self.say(str(why))
                self.failed = True
        return self.rounds(row, {c.name: lambda c=c: self.pack(c, src) for c in contenders})

    def pipe(self, src):
        """A tar in the page cache, as a file and as a stream."""
        tar = self.folder / "pipe.tar"
        check(["tar", "-C", str(src), "-cf", str(tar), "."], "tar")
        try:
            return self.rounds("pipe", {c.name: lambda c=c: self.pack(c, tar) for c in PACK_PIPE})
        finally:
            tar.unlink()

    def from_slow(self, src):
        """From slowfs, with the requests that each contender needed."""
        warm_tree(src)

        def take(contender):
            with Slow(self.args.slowfs, self.folder, *SLOW, src) as slow:
                figures = self.pack(contender, slow.at, (slow.pid,))
                counts = slow.counts()
            figures["requests"] = counts["requests"]
            figures["in flight"] = counts["peak_in_flight"]
            return figures

        return self.rounds("slow", {c.name: lambda c=c: take(c) for c in PACK_STORED})

    # Extracting.

    def extract(self, kind, archive, which):
        """Into /dev/shm. The first tree of each contender is compared with the original."""
        compared = set()

        def take(contender):
            with tempfile.TemporaryDirectory(prefix="onepot-bench.", dir="/dev/shm") as to:
                figures = timed(contender.argv(self.programs, archive, to))
                if contender not in compared:
                    check(["diff", "-r", "--no-dereference", str(self.store.source(which)), to],
                          f"{contender.name} of {archive.name}")
                    compared.add(contender)
                return figures

        warm(archive)
        return self.rounds(f"extract {kind}",
                           {c.name: lambda c=c: take(c) for c in EXTRACT})

    def extracting(self, which):
        """From our own archives, which tar reads as well; without --zstd, from tar's."""
        results = {}
        for kind, makers in (("stored", PACK_STORED[:2]), ("zstd", (PACK_ZSTD[0], PACK_ZSTD[2]))):
            for maker in makers:
                archive = self.folder / f"{kind}{maker.suffix}"
                try:
                    timed(maker.argv(self.programs, self.store.source(which), archive))
                except Unavailable as why:
                    self.absent.setdefault(f"extract {kind}", {})[f"archive by {maker.name}"] = \
                        str(why)
                    continue
                results[f"{kind}, archive by {maker.name}"] = self.extract(kind, archive, which)
                archive.unlink()
                break
        return results

    # Reading at random, by the other benchmark.

    def random(self):
        """Rates of both through mounts: {contender: {figure: samples}}."""
        out = self.folder / "random.json"
        argv = [sys.executable, str(MOUNT_BENCH / "run"), "--sets", "records",
                "--rows", "first,listed", "--peers", "onepot archive zstd,squashfuse_ll",
                "--files", str(self.args.files), "--rounds", str(self.args.rounds),
                "--work", str(self.store.folder / "random"), "--json", str(out),
                "--calm", str(self.args.calm)]
        if self.args.onepot:
            argv += ["--onepot", self.args.onepot]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  check=False)
            samples = json.loads(out.read_text())["sets"] if out.exists() else {}
        finally:
            shutil.rmtree(self.store.folder / "random", ignore_errors=True)
        samples = samples.get("records", {})
        if "onepot archive zstd" not in samples:
            self.absent["random"] = {"onepot archive zstd": "bench/mount says why, above"}
        elif done.returncode != 0:
            self.failed = True
        return samples

    # Files that nobody stored.

    def info(self, archive):
        """What onepot tells of an archive."""
        done = subprocess.run([self.args.onepot, "info", "--json", str(archive)],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise Unavailable(f"onepot info: {done.stderr.decode(errors='replace').strip()}")
        return json.loads(done.stdout)[0]

    def synthetic(self, files):
        """Packs a made-up tree: memory, time, and what the index takes of the archive."""
        contender = PACK_STORED[0]

        def take():
            out = self.store.folder / "synthetic.tar"
            try:
                with Slow(self.args.slowfs, self.folder, f"--synthetic={files}") as slow:
                    figures = timed(contender.argv(self.programs, slow.at, out), (slow.pid,))
                    counts = slow.counts()
                figures["requests"] = counts["requests"]
                figures["bytes"] = out.stat().st_size
                figures["info"] = self.info(out)
                return figures
            finally:
                out.unlink(missing_ok=True)

        return self.rounds("synthetic", {"onepot": take}, 1)

    # The throughput of slowfs itself.

    def stream(self, total_bytes):
        """Bytes a second of readers that stream one file, and give pages back as they go."""
        big = self.store.folder / "stream"
        if not big.exists() or big.stat().st_size != total_bytes:
            with open(big, "wb") as out:
                for _ in range(total_bytes >> 20):
                    out.write(os.urandom(1 << 20))
        warm(big)

        def take(readers):
            with Slow(self.args.slowfs, self.folder, "--read=1ms",
                      f"--bandwidth={STREAM_BYTES_S}", self.store.folder) as slow:
                blocks = (total_bytes >> 23) // readers
                part = [["dd", f"if={slow.at}/stream", "of=/dev/null", "bs=8M", "iflag=nocache",
                         f"skip={blocks * n}", f"count={blocks}"] for n in range(readers)]
                figures = together(part, slow.pid)
                figures["rate"] = readers * (blocks << 23) / figures["seconds"]
                return figures

        return self.rounds("stream", {f"{n} x dd bs=8M": lambda n=n: take(n)
                                      for n in STREAM_READERS})


def together(commands, server):
    """One figure of several commands at once."""
    parts, errors = [], []

    def run(argv):
        try:
            parts.append(timed(argv, ()))
        except Unavailable as why:
            errors.append(why)

    threads = [threading.Thread(target=run, args=(argv,)) for argv in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return {"seconds": max(part["seconds"] for part in parts),
            "cpu": sum(part["cpu"] for part in parts)}

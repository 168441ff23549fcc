"""What is measured, one fresh mount for each: the jobs behind the rows of the table.

A job mounts a contender, lets readers loose on it and returns figures by name. Rates are
files a second, times seconds, memory bytes; "cpu" is CPU seconds per 1,000 files of readers
and daemon together. A name ends in the number of readers where there is one: "first/4",
"first/4 cpu".
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from archives import HERE, bytes_of, files_of, warm
from mounts import Mount

IDLE_SECONDS = 10
PYTHON_WORKERS = 4
BUSY_FILES = 2000


class ReadError(Exception):
    """The readers did not get what the archive holds."""


def run_reader(argv, environment=None):
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, check=False,
                            env=environment)
    if result.returncode != 0:
        raise ReadError(result.stderr.strip()[-500:])
    return json.loads(result.stdout)


def cost_of(part):
    return (part["reader_cpu"] + part["daemon_cpu"]) * 1000 / part["files"]


def figures_of(epoch, name):
    """An epoch's rate and cost, and what share of the machine others took meanwhile."""
    return {
        name: epoch["files"] / epoch["seconds"],
        f"{name} cpu": cost_of(epoch),
        f"{name} others": epoch["others_cpu"] / epoch["seconds"],
    }


def memory_of(pids):
    """Private memory, in bytes: what the processes would give back by ending. Pages of mapped
    files (the archive, the index) belong to the page cache and are told apart; Private_Dirty
    would not do, it counts pages of an archive that is not yet written back."""
    private = mapped = 0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as rollup:
            fields = dict(line.split()[:2] for line in rollup.readlines()[1:])
        private += int(fields.get("Pss_Anon:", fields["Anonymous:"]))
        private += int(fields.get("Pss_Shmem:", 0))
        mapped += int(fields.get("Pss_File:", 0))
    return private << 10, mapped << 10


def tree_bytes(folder):
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


class Bench:
    """One set's contenders, their archives, and the reader programs."""

    def __init__(self, store, which, folder, seed):
        self.store, self.which, self.folder, self.seed = store, which, folder, seed
        self.roots = {"directory": store.source(which)}
        with open(store.listing(which), encoding="ascii") as lines:
            self.probe = lines.readline().split("\t")[0]

    def mount(self, contender):
        kind = contender.kind
        archive = self.roots.get(kind) or self.store.archive(self.which, kind)
        if contender.command or contender.reads:
            warm(archive)
        return Mount(contender, archive, self.store.program(contender.program), self.folder,
                     self.probe)

    def _daemons(self, mount):
        return [word for pid in mount.pids for word in ("--daemon", str(pid))]

    def _c_reader(self, mount, *options):
        limit = mount.contender.limit
        return run_reader([str(self.store.tools / "readers"), "--seed", str(self.seed),
                           *(["--limit", str(limit)] if limit else []),
                           *options, *self._daemons(mount), mount.root,
                           str(self.store.listing(self.which))], mount.readers)

    def _py_reader(self, mount, how, workers, epochs):
        return run_reader([sys.executable, str(HERE / "readers.py"), "--how", how,
                           "--workers", str(workers), "--seed", str(self.seed),
                           "--epochs", str(epochs), *self._daemons(mount), mount.root,
                           str(self.store.listing(self.which))], mount.readers)

    def verify(self, contender):
        """Every byte as in the original, before anything is timed. (Python's zipfile compares
        sums by itself.)"""
        if contender.reads:
            return
        with self.mount(contender) as mount:
            self._c_reader(mount, "--threads", "4", "--walk", "--reference",
                           str(self.store.source(self.which)))

    def first(self, contender, threads):
        """First and second epoch, nothing listed before."""
        with self.mount(contender) as mount:
            if contender.reads:
                got = self._py_reader(mount, contender.reads, threads, 2)
            else:
                got = self._c_reader(mount, "--threads", str(threads), "--epochs", "2")
            figures = {**figures_of(got["epochs"][0], f"first/{threads}"),
                       **figures_of(got["epochs"][1], f"second/{threads}")}
            if mount.pids:
                figures["memory"], figures["mapped"] = memory_of(mount.pids)
            if mount.ready_seconds is not None:
                figures["ready"] = mount.ready_seconds
            return figures

    def listed(self, contender, threads):
        """A listing with stat, then the first epoch."""
        with self.mount(contender) as mount:
            got = self._c_reader(mount, "--threads", str(threads), "--walk")
            walk = got["walk"]
            return {**figures_of(got["epochs"][0], f"listed/{threads}"),
                    "list": walk["seconds"],
                    "list cpu": cost_of(walk)}

    def busy(self, contender, threads, walk):
        """As first and listed, with one process spinning on each of two CPUs; a part of
        the files, because most contenders are slow then."""
        name = "busy listed" if walk else "busy first"
        with self.mount(contender) as mount:
            if walk:
                self._c_reader(mount, "--epochs", "0", "--walk")
            got = self._c_reader(mount, "--threads", str(threads), "--busy", "2",
                                 "--limit", str(BUSY_FILES))
            return figures_of(got["epochs"][0], f"{name}/{threads}")

    def python(self, contender, how, walk):
        """Python processes as readers, both epochs."""
        with self.mount(contender) as mount:
            if walk:
                self._c_reader(mount, "--epochs", "0", "--walk")
            got = self._py_reader(mount, how, PYTHON_WORKERS, 1 if walk else 2)
            if walk:
                return figures_of(got["epochs"][0], f"python {how} listed")
            return {**figures_of(got["epochs"][0], f"python {how} first"),
                    **figures_of(got["epochs"][1], f"python {how} second")}

    def unlisted(self, contender, workers):
        """Python processes that have their names from a list, first epoch."""
        with self.mount(contender) as mount:
            got = self._py_reader(mount, "open", workers, 1)
            return figures_of(got["epochs"][0], f"unlisted/{workers}")

    def idle(self, contender):
        """CPU time of a mount that nobody uses, after it was used."""
        with self.mount(contender) as mount:
            self._c_reader(mount, "--epochs", "1", "--threads", "2")
            if not mount.pids:
                return {}
            time.sleep(1)
            before = self._cpu(mount.pids)
            time.sleep(IDLE_SECONDS)
            return {"idle": (self._cpu(mount.pids) - before) / IDLE_SECONDS}

    def anew(self, contender):
        """The first mount of an archive that has no index (of a union: each of its archives
        has one), and the second one. In a folder of its own, where indexes go."""
        archive = self.store.archive(self.which, contender.kind)
        with tempfile.TemporaryDirectory(prefix="anew.", dir=archive.parent) as folder:
            link = Path(folder) / archive.name
            if archive.is_dir():
                link.mkdir()
            for file in files_of(archive):
                os.link(file, link / file.name if archive.is_dir() else link)
            warm(link)
            before, ready = tree_bytes(folder), []
            for _ in range(2):
                with Mount(contender, link, self.store.program(contender.program), self.folder,
                           self.probe, {"XDG_CACHE_HOME": folder, "HOME": folder}) as mount:
                    ready.append(mount.ready_seconds)
            return {"anew": ready[0], "again": ready[1],
                    "index": (tree_bytes(folder) - before) / bytes_of(archive)}

    @staticmethod
    def _cpu(pids):
        return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def jobs(rows, threads):
    """The jobs that the chosen rows need: (name, function of bench and contender)."""
    found = []
    if rows & {"first", "second", "ready"}:
        found += [(f"first/{n}", lambda b, c, n=n: b.first(c, n)) for n in threads]
    if rows & {"listed", "list"}:
        found += [(f"listed/{n}", lambda b, c, n=n: b.listed(c, n)) for n in threads]
    if "anew" in rows:
        found.append(("anew", lambda b, c: b.anew(c)))
    if "python" in rows:
        found += [(f"python {how} {walk}", lambda b, c, h=how, w=walk: b.python(c, h, w))
                  for how in ("os", "open") for walk in (False, True)]
    if "unlisted" in rows:
        found += [(f"unlisted/{n}", lambda b, c, n=n: b.unlisted(c, n)) for n in threads]
    if "busy" in rows:
        found += [(f"busy/{n} {walk}", lambda b, c, n=n, walk=walk: b.busy(c, n, walk))
                  for walk in (False, True) for n in threads]
    return found

"""Where everything happens: archives in memory, slowfs over them, mounts of these, readers.

slowfs shows the archives' folder, which lies in /dev/shm, so that nothing but slowfs is slow. It
is mounted anew for each figure: caches are then as cold as after drop_caches, and nobody
else's are touched.
"""

import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager

from archives import run_quiet
from commands import Unavailable
from contenders import Contender
from mounts import Mount, MountError
from orders import image_folder
from slow import Slow

READ_S, BYTES_S, LIMIT = 0.002, 10**9, 32
SLOW = (f"--read={READ_S * 1000:g}ms", "--bandwidth=1G", f"--limit={LIMIT}")
STREAM_BLOCK = 1 << 20
PAGE = 4096
STAT_SECONDS = 0.8  # a mount updates its counters twice a second
NOT_THERE = re.compile(r"onepot has no (--\w+)|option '(--\w+)|option (--\w+)")


def compile_tools(folder):
    """The two C programs, by the system's compiler, as those of bench/mount."""
    compiler = os.environ.get("CC", "cc")
    for name in ("wire", "workers"):
        run_quiet([compiler, "-std=gnu17", "-O2", "-D_GNU_SOURCE",
                   os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.c"),
                   "-o", str(folder / name), "-lpthread"])


class ReadError(Exception):
    """The readers did not get what the archive holds."""


def program_json(argv, **options):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode != 0:
        raise ReadError(f"{os.path.basename(argv[0])}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout)


class Place:
    """One set of files, its archives, and everything that reads them."""

    def __init__(self, store, which, slowfs, stack, say):
        self.store, self.which, self.slowfs, self.say = store, which, slowfs, say
        self.folder = tempfile.mkdtemp(prefix="onepot-bench.")
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.memory = tempfile.mkdtemp(prefix="onepot-bench.", dir="/dev/shm")
        stack.callback(shutil.rmtree, self.memory, ignore_errors=True)
        self.tools, self.places = store.tools, {}
        store.make_set(which)
        with open(store.listing(which), encoding="ascii") as lines:
            pairs = (line.rstrip("\n").split("\t") for line in lines)
            self.samples = image_folder([(path, int(size)) for path, size in pairs])
        self.total = sum(size for _, size in self.samples)

    # Archives.

    def archive(self, kind):
        """The name of an archive below slowfs; it is made, and copied into memory, once."""
        name = f"{kind}.img"
        if not os.path.exists(os.path.join(self.memory, name)):
            if not self.store.archive(self.which, kind).exists() or kind.startswith("onepot"):
                self.store.make_archive(self.which, kind)
            shutil.copyfile(self.store.archive(self.which, kind),
                            os.path.join(self.memory, name))
        return name

    def in_memory(self, kind):
        return os.path.join(self.memory, self.archive(kind))

    def total_archive(self, kind):
        return os.path.getsize(self.in_memory(kind))

    def ranges(self, kind):
        """(offset, size) of each sample in an uncompressed archive that tar can read."""
        if kind not in self.places:
            with tarfile.open(self.in_memory(kind), "r:") as tar:
                found = {m.name.removeprefix("./"): (m.offset_data, m.size)
                         for m in tar if m.isreg()}
            self.places[kind] = [found[path] for path, _ in self.samples]
        return self.places[kind]

    def pages(self, kind, indices):
        """Pages of the archive that hold these samples, each sample for itself."""
        places = self.ranges(kind)
        return sum((places[i][0] + places[i][1] + PAGE - 1) // PAGE - places[i][0] // PAGE
                   for i in indices)

    # The slow file system, and mounts.

    @contextmanager
    def slow(self, *more):
        with Slow(self.slowfs, self.folder, *SLOW, *more, self.memory) as slow:
            yield slow

    @contextmanager
    def mounted(self, archive, *options, program="onepot", before=(), probe=None):
        """A mount of an archive; `before` is put in front of the command (a shell that joins a
        cgroup), `probe` a file in it. What onepot refuses as unknown is not available."""
        command = ("mount", "{archive}", "--at", "{at}", *options)
        if program != "onepot":
            command = ("{archive}", "{at}", *options)
        path = self.store.program(program)
        if not path:
            raise Unavailable(f"{program} is not installed")
        argv = (*before, path, *command)
        contender = Contender(f"{program} {' '.join(options)}".strip(), (self.which,), "",
                              "" if before else program, argv[1:])
        try:
            with Mount(contender, archive, argv[0], self.folder,
                       probe or self.samples[0][0]) as mount:
                yield mount
        except MountError as why:
            unknown = NOT_THERE.search(str(why))
            if unknown:
                raise Unavailable(f"this onepot says: {unknown[0]}") from None
            raise

    def stat(self, mount):
        """What onepot tells of a mount, when it had time to write down what it did last."""
        time.sleep(STAT_SECONDS)
        return program_json([self.store.program("onepot"), "stat", "--json", mount.at])

    # Readers.

    def bare(self, slow, kind, ranges, *options):
        """Figures of the bare program, over these ranges of an archive."""
        listing = os.path.join(self.folder, "ranges")
        with open(listing, "w", encoding="ascii") as out:
            out.writelines(f"{offset}\t{size}\n" for offset, size in ranges)
        return program_json([str(self.tools / "wire"), f"--flight={LIMIT}", *options,
                             os.path.join(slow.at, self.archive(kind)), listing])

    def write_plan(self, plan, name="plan"):
        """A plan (orders.plan_of) as a file for `read`."""
        listing = os.path.join(self.folder, name)
        with open(listing, "w", encoding="ascii") as out:
            for worker, batch, index in plan:
                path, size = self.samples[index]
                out.write(f"{worker}\t{batch}\t{path}\t{size}\n")
        return listing

    def write_order(self, order):
        """An order as a file for --order: paths, one a line."""
        listing = os.path.join(self.folder, "order")
        with open(listing, "w", encoding="ascii") as out:
            out.writelines(f"{self.samples[index][0]}\n" for index in order)
        return listing

    def read(self, root, listing, *options, before=()):
        """Lets workers read a plan below a directory."""
        return program_json([*before, str(self.tools / "workers"), *map(str, options), root,
                             listing])


def number(tree, *path):
    """A counter of `onepot stat`; None if this onepot does not have it."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree if isinstance(tree, (int, float)) else None


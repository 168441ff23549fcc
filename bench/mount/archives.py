"""The data sets and the archives made of them: what is built, with which program and options.

A Store is one folder that holds, for each set, the original directory, the list of its
files, and one archive per kind. With --keep it stays, and the next run with the same
parameters finds everything in place.
"""

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

SETS = {
    "noise": "incompressible content",
    "records": "content that zstd shrinks to 0.3-0.5",
}

STORED_SQUASHFS = ["-noI", "-noD", "-noF", "-noX"]
MKSQUASHFS = ["-noappend", "-no-progress", "-quiet"]

# kind: (program, arguments); {src} is the directory, {out} the archive, both absolute.
KINDS = {
    "onepot": ("onepot", ["pack", "-o", "{out}", "{src}"]),
    "onepot-zstd": ("onepot", ["pack", "--zstd", "-o", "{out}", "{src}"]),
    "tar": ("tar", ["--sort=name", "-C", "{src}", "-cf", "{out}", "."]),
    "squashfs": ("mksquashfs", ["{src}", "{out}", *MKSQUASHFS, *STORED_SQUASHFS]),
    "squashfs-zstd": ("mksquashfs", ["{src}", "{out}", *MKSQUASHFS, "-comp", "zstd"]),
    "squashfs-zstd-64K": ("mksquashfs",
                          ["{src}", "{out}", *MKSQUASHFS, "-comp", "zstd", "-b", "64K"]),
    "erofs": ("mkfs.erofs", ["{out}", "{src}"]),
    "erofs-lz4hc": ("mkfs.erofs", ["-zlz4hc", "{out}", "{src}"]),
    "dwarfs": ("mkdwarfs", ["-i", "{src}", "-o", "{out}", "-l", "4", "--no-progress"]),
    "zip-stored": ("zip", ["-0", "-q", "-r", "{out}", "."]),
    "zip": ("zip", ["-q", "-r", "{out}", "."]),
    "tar.gz": ("tar", ["--sort=name", "-C", "{src}", "-czf", "{out}", "."]),
    # Of a tar for each directory: a folder of them, or a tar of them. `parts`: one tar, cut into a
    # hundred pieces. Made by make_archive().
    "union": ("tar", None),
    "nested": ("tar", None),
    "parts": ("tar", None),
}


class BuildError(Exception):
    """A data set or an archive could not be made."""


def make_union(program, onepot, source, out):
    """A folder with a tar for each directory, which has its index. Members come in the order
    that they have in the one tar it is compared with: another one alone costs a quarter."""
    out.mkdir()
    names = sorted(os.listdir(source))
    for name in names:
        run_quiet([program, "--sort=name", "-C", str(source), "-cf", str(out / f"{name}.tar"), name])
    if onepot:
        run_quiet([onepot, "index", *(str(out / f"{name}.tar") for name in names)])


def make_nested(program, source, out):
    """A tar of tars, which shows the same tree where each is a directory."""
    with tempfile.TemporaryDirectory(prefix="inner.", dir=out.parent) as folder:
        for name in sorted(os.listdir(source)):
            run_quiet([program, "--sort=name", "-C", str(source / name), "-cf",
                       f"{folder}/{name}.tar", "."])
        run_quiet([program, "--sort=name", "-C", folder, "-cf", str(out), "."])


def make_parts(program, source, out):
    out.mkdir()
    whole = out / "whole"
    run_quiet([program, *(a.format(src=source, out=whole) for a in KINDS["tar"][1])])
    run_quiet(["split", "-n", "100", "-a", "3", "-d", whole, out / "part.tar."])
    whole.unlink()


def make_archive(program, onepot, kind, source, out):
    if kind == "union":
        make_union(program, onepot, source, out)
    elif kind == "parts":
        make_parts(program, source, out)
    elif kind == "nested":
        make_nested(program, source, out)
    else:
        places = {"src": str(source), "out": str(out)}
        run_quiet([program, *(a.format(**places) for a in KINDS[kind][1])], cwd=source)


def run_quiet(argv, **kwargs):
    result = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, check=False, **kwargs)
    if result.returncode != 0:
        raise BuildError(f"{argv[0]}: exit status {result.returncode}\n{result.stdout[-2000:]}")


def compile_tools(folder):
    """The two C programs, by the system's compiler: the benchmark needs no build folder."""
    compiler = os.environ.get("CC", "cc")
    for name in ("mkdata", "readers"):
        run_quiet([compiler, "-std=gnu17", "-O2", "-D_GNU_SOURCE", str(HERE / f"{name}.c"),
                   "-o", str(folder / name), "-lm", "-lpthread"])


@dataclass(frozen=True)
class Shape:
    """What determines a data set, byte for byte."""
    files: int = 50000
    dirs: int = 200
    mean: int = 20000
    sigma: float = 0.5
    seed: int = 1


class Store:
    """The sets and archives below one folder, built when they are first asked for."""

    def __init__(self, folder, tools, shape, onepot, say):
        self.folder, self.tools, self.shape, self.say = folder, tools, shape, say
        self.programs = {"onepot": onepot}

    def program(self, name):
        return self.programs.get(name) or shutil.which(name)

    def source(self, which):
        """The original directory of a set."""
        return self.folder / which / "files"

    def listing(self, which):
        return self.folder / which / "files.list"

    def archive(self, which, kind):
        return self.folder / which / f"{kind}.img"

    def make_set(self, which):
        stamp, wanted = self.folder / which / "shape.json", json.dumps(vars(self.shape))
        if stamp.exists() and stamp.read_text() == wanted:
            return
        shutil.rmtree(self.folder / which, ignore_errors=True)
        (self.folder / which).mkdir(parents=True)
        self.say(f"making the set '{which}': {self.shape.files} files")
        run_quiet([str(self.tools / "mkdata"), "--kind", which, "--seed", str(self.shape.seed),
                   "--files", str(self.shape.files), "--dirs", str(self.shape.dirs),
                   "--mean", str(self.shape.mean), "--sigma", str(self.shape.sigma),
                   str(self.source(which)), str(self.listing(which))])
        stamp.write_text(wanted)

    def make_archive(self, which, kind):
        """Builds under another name and renames, so that a broken run leaves no half archive.
        onepot's own is always packed anew: it is what changes between runs."""
        final = self.archive(which, kind)
        if final.exists() and not kind.startswith("onepot"):
            return
        partial = final.with_name(f"partial-{kind}.zip" if "zip" in kind else f"partial-{kind}")
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.unlink(missing_ok=True)
        self.say(f"making the archive '{kind}' of the set '{which}'")
        make_archive(self.program(KINDS[kind][0]), self.program("onepot"), kind,
                     self.source(which), partial)
        partial.rename(final)

    def total_bytes(self, which):
        with open(self.listing(which), encoding="ascii") as lines:
            return sum(int(line.rsplit("\t", 1)[1]) for line in lines)


def files_of(archive):
    """An archive's files: itself, or the shards in a folder, with their indexes."""
    archive = Path(archive)
    return sorted(archive.iterdir()) if archive.is_dir() else [archive]


def bytes_of(archive):
    return sum(file.stat().st_size for file in files_of(archive)
               if not file.name.endswith(".onepot-index"))


def warm(archive):
    """Reads an archive once, so that it lies in the page cache."""
    for path in files_of(archive):
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

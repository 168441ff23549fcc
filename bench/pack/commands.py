"""Programs that are timed: who packs and who extracts, and how a run of one is measured.

A contender that is not there, or can't do it yet, raises Unavailable with its own words.
"""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass

from archives import MKSQUASHFS, STORED_SQUASHFS
from calm import machine_seconds

PIPE = ("bash", "-o", "pipefail", "-c")


class Unavailable(Exception):
    """Why a contender can't take part."""


class WrongBytes(Exception):
    """An archive or a tree does not hold what it should."""


@dataclass(frozen=True)
class Contender:
    """{src} and {out} in the command stand for what is read and what is made."""
    name: str
    program: str
    command: tuple
    suffix: str = ".tar"

    @property
    def ours(self):
        return self.program == "onepot"

    def argv(self, programs, src, out):
        path = programs.get(self.program) or shutil.which(self.program)
        if not path:
            raise Unavailable(f"{self.program} is not installed")
        places = {"src": str(src), "out": str(out), "onepot": programs.get("onepot")}
        words = [word.format(**places) for word in self.command]
        return words if self.command[:1] == PIPE[:1] else [path, *words]


# Nobody waits for the disk: onepot alone would, and is told not to.
ONEPOT_PACK = ("pack", "-q", "-f", "--no-sync")

PACK_STORED = (
    Contender("onepot", "onepot", (*ONEPOT_PACK, "-o", "{out}", "{src}")),
    Contender("tar", "tar", ("-C", "{src}", "-cf", "{out}", ".")),
    Contender("mksquashfs", "mksquashfs", ("{src}", "{out}", *MKSQUASHFS, *STORED_SQUASHFS),
              ".squashfs"),
)
PACK_ZSTD = (
    Contender("onepot --zstd=3", "onepot",
              (*ONEPOT_PACK, "--zstd=3", "-o", "{out}", "{src}"), ".tar.zst"),
    Contender("mksquashfs zstd 3", "mksquashfs",
              ("{src}", "{out}", *MKSQUASHFS, "-comp", "zstd", "-Xcompression-level", "3"),
              ".squashfs"),
    Contender("tar | zstd -3", "zstd",
              (*PIPE, 'tar -C "$1" -c . | zstd -q -3 -c >"$2"', "-", "{src}", "{out}"),
              ".tar.zst"),
)
PACK_PIPE = (
    Contender("onepot", "onepot", (*ONEPOT_PACK, "-o", "{out}", "{src}")),
    Contender("onepot, a pipe", "onepot",
              (*PIPE, 'cat "$1" | "${{@:2}}"', "-", "{src}", "{onepot}", *ONEPOT_PACK, "-o", "{out}",
               "-")),
)
EXTRACT = (
    Contender("onepot extract", "onepot", ("extract", "-q", "-C", "{out}", "{src}"), ""),
    Contender("tar xf", "tar", ("-C", "{out}", "-xf", "{src}"), ""),
)


def last_words(text):
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def timed(argv, servers=()):
    """Figures of one run: seconds, CPU seconds and peak memory of the command and of what it
    started; "others" is what everybody but these and the servers (PIDs) used, in CPUs."""
    served = sum(map(process_seconds, servers))
    machine, began = machine_seconds(), time.monotonic()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stderr.close()
    if process.returncode != 0:
        raise Unavailable(last_words(errors))
    cpu = usage.ru_utime + usage.ru_stime
    served = sum(map(process_seconds, servers)) - served
    others = max(0.0, machine_seconds() - machine - cpu - served)
    return {"seconds": wall, "cpu": cpu, "rss": usage.ru_maxrss << 10,
            "seconds others": others / wall}


def process_seconds(pid):
    """CPU time of another process, all threads, by its process clock (clock_getcpuclockid)."""
    return time.clock_gettime((~pid << 3) | 2)


def check(argv, what):
    """A comparison that must succeed, before anything is believed."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise WrongBytes(f"{what}: {last_words(done.stdout)}")

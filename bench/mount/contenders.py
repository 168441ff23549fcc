"""Who is compared: each contender is a way to read one kind of archive as a directory.

Adding one is a line in CONTENDERS. A contender whose program is not installed is listed as
absent and left out; the kernel's file systems need root.
"""

import os
from dataclasses import dataclass
from fnmatch import fnmatch

from archives import KINDS


@dataclass(frozen=True)
class Contender:
    """{archive} and {at} in the command stand for the archive and the mount point. Without
    a command the "archive" is a directory that is read in place."""
    name: str
    sets: tuple
    kind: str                    # of archive, see archives.KINDS; "directory" or "tmpfs"
    program: str = ""            # that mounts
    command: tuple = ()
    baseline: str = "squashfuse_ll"  # the contender of this set that it is compared with
    limit: int = 0               # files of an epoch, where all would take hours; 0: all
    reads: str = ""              # a way of readers.py to read the archive without a mount
    is_direct: bool = False      # readers preload what `onepot mount --export` says

    @property
    def ours(self):
        return self.program == "onepot"


AT = ("{archive}", "{at}")
ONEPOT = ("mount", "{archive}", "--at", "{at}")
DIRECT = ("mount", "--export", "--intercept=on", "{archive}", "--at", "{at}")
NOISE, RECORDS, BOTH = ("noise",), ("records",), ("noise", "records")
FEW = 500
ZSTD, ZSTD64 = "squashfs-zstd", "squashfs-zstd-64K"


def loop(kind):
    return ("-t", kind, "-o", "loop,ro", *AT)


CONTENDERS = (
    Contender("onepot archive", BOTH, "onepot", "onepot", ONEPOT),
    Contender("onepot archive zstd", RECORDS, "onepot-zstd", "onepot", ONEPOT),
    Contender("onepot tar", BOTH, "tar", "onepot", ONEPOT),
    Contender("onepot direct", NOISE, "tar", "onepot", DIRECT, baseline="onepot tar",
              is_direct=True),
    Contender("onepot archive direct", NOISE, "onepot", "onepot", DIRECT,
              baseline="onepot archive", is_direct=True),
    Contender("onepot squashfs", NOISE, "squashfs", "onepot", ONEPOT),
    Contender("onepot union", NOISE, "union", "onepot", ONEPOT, baseline="onepot tar"),
    Contender("onepot parts", NOISE, "parts", "onepot", ONEPOT, baseline="onepot tar"),
    Contender("onepot nested", NOISE, "nested", "onepot", (*ONEPOT, "--nested"),
              baseline="onepot tar"),
    Contender("onepot tar.gz", BOTH, "tar.gz", "onepot", ONEPOT, baseline="ratarmount tar.gz",
              limit=FEW),
    Contender("onepot zip stored", NOISE, "zip-stored", "onepot", ONEPOT, baseline="onepot tar"),
    Contender("onepot zip", RECORDS, "zip", "onepot", ONEPOT, baseline="mount-zip"),
    Contender("onepot zstd", RECORDS, ZSTD, "onepot", ONEPOT),
    Contender("onepot zstd 64K", RECORDS, ZSTD64, "onepot", ONEPOT,
              baseline="squashfuse_ll 64K"),
    Contender("squashfuse_ll", NOISE, "squashfs", "squashfuse_ll", AT),
    Contender("squashfuse_ll", RECORDS, ZSTD, "squashfuse_ll", AT),
    Contender("squashfuse_ll 64K", RECORDS, ZSTD64, "squashfuse_ll", AT,
              baseline="squashfuse_ll 64K"),
    Contender("erofsfuse", NOISE, "erofs", "erofsfuse", AT),
    Contender("erofsfuse lz4hc", RECORDS, "erofs-lz4hc", "erofsfuse", AT),
    Contender("dwarfs", BOTH, "dwarfs", "dwarfs", AT),
    Contender("fuse-archive", NOISE, "tar", "fuse-archive", AT),
    Contender("mount-zip stored", NOISE, "zip-stored", "mount-zip", AT),
    Contender("mount-zip", RECORDS, "zip", "mount-zip", AT),
    Contender("ratarmount", NOISE, "tar", "ratarmount", AT),
    Contender("ratarmount zip stored", NOISE, "zip-stored", "ratarmount", AT,
              baseline="mount-zip stored"),
    Contender("ratarmount zip", RECORDS, "zip", "ratarmount", AT, baseline="mount-zip"),
    Contender("ratarmount tar.gz", BOTH, "tar.gz", "ratarmount",
              ("-P", "0", "--use-backend", "rapidgzip", *AT), baseline="ratarmount tar.gz",
              limit=FEW),
    Contender("zipfile", RECORDS, "zip", baseline="mount-zip", reads="zipfile"),
    Contender("fuse-zip", RECORDS, "zip", "fuse-zip", ("-r", *AT), baseline="mount-zip"),
    Contender("kernel squashfs", NOISE, "squashfs", "mount", loop("squashfs")),
    Contender("kernel squashfs", RECORDS, ZSTD, "mount", loop("squashfs")),
    Contender("kernel erofs", NOISE, "erofs", "mount", loop("erofs")),
    Contender("kernel erofs lz4hc", RECORDS, "erofs-lz4hc", "mount", loop("erofs")),
    Contender("directory", BOTH, "directory"),
    Contender("tmpfs", BOTH, "tmpfs"),
)


def why_absent(contender, store):
    """None, or the reason why it can't take part here."""
    needed = [contender.program] if contender.program else []
    if contender.kind in KINDS:
        needed.append(KINDS[contender.kind][0])
    for program in needed:
        if not store.program(program):
            return f"{program} is not installed"
    if contender.program == "mount" and os.geteuid() != 0:
        return "a loop mount needs root"
    return None


def chosen(which, patterns):
    """The contenders of a set whose names match one of the patterns (all without any)."""
    return [c for c in CONTENDERS if which in c.sets
            and (not patterns or any(fnmatch(c.name, p) for p in patterns))]

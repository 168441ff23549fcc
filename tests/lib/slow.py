"""A mount of slowfs, storage with a set speed, for one test."""

import contextlib
import json
import os
import signal

import harness
from harness import Failure, check_equal, mountpoints, run, wait_for


def slowfs_program():
    program = os.environ.get("SLOWFS")
    if not program:
        raise harness.Skip("SLOWFS does not name the program; 'meson test' sets it")
    return program


class Slow:
    """A mount of slowfs, as a context."""

    def __init__(self, work, *arguments):
        self.at, self.stats_file = work / "slow", work / "stats"
        self.arguments = arguments
        self.notes = ""

    def __enter__(self):
        os.makedirs(self.at, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_):
        for _ in mountpoints(self.at):
            harness.detach(self.at)

    def start(self):
        done = run(slowfs_program(), f"--stats={self.stats_file}", *self.arguments, self.at,
                   timeout=90)
        self.notes = done.stderr.decode()
        check_equal(len(mountpoints(self.at)), 1, "mounts")

    def __truediv__(self, name):
        return os.path.join(self.at, name)

    def counts(self):
        return json.loads(os.getxattr(self.at, "user.slowfs.stats"))

    def last_counts(self):
        """What it wrote at its end, or after SIGUSR1."""
        wait_for(lambda: os.path.exists(self.stats_file), "the counts in a file")
        with open(self.stats_file, encoding="ascii") as f:
            return json.load(f)

    def pid(self):
        for pid in harness.marked_processes(os.environ[harness.MARK]):
            with contextlib.suppress(OSError):  # others may end meanwhile
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    command = f.read().split(b"\0")
                if command[0] == os.fsencode(slowfs_program()) and os.fsencode(self.at) in command:
                    return pid
        raise Failure("slowfs does not run")

    def toggle(self):
        """Begin, or end, what --toggle says; it is so when this returns."""
        before = self.counts()["toggles"]
        os.kill(self.pid(), signal.SIGUSR2)
        wait_for(lambda: self.counts()["toggles"] > before, "slowfs to take the signal")

    def umount(self):
        harness.unmount(self.at)
        return self.last_counts()

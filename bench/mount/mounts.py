"""Mounting a contender for one figure, finding its processes, and cleaning up after it.

A mount's processes are found by an environment variable that the mount command is given and
its daemon inherits: the daemons start themselves in as many ways as there are programs.
"""

import os
import signal
import subprocess
import time
import uuid

MARK = "ONEPOT_BENCH_MOUNT"
MOUNT_SECONDS = 900   # indexing a large archive takes some programs minutes
UMOUNT_SECONDS = 30


class MountError(Exception):
    """A contender could not be mounted, or did not go away."""


def marked_processes(mark):
    """Processes whose environment carries the mark, ourselves aside."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if wanted in environ.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def stays(pid):
    """Is it no process that reads ahead? Such a one may end at any time; readers.py counts its time as its
    parent's."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as comm:
            return comm.read() != "onepot-ahead\n"
    except OSError:
        return False


def is_mounted(folder):
    try:
        return os.stat(folder).st_dev != os.stat(os.path.dirname(folder)).st_dev
    except OSError:
        return True   # a dead mount is one, too


class Mount:
    """A context in which a contender's tree can be read below .root; .pids are the processes
    that serve it, .ready_seconds the time from the command to the first answer."""

    def __init__(self, contender, archive, program, folder, probe, environment=None):
        self.contender, self.program = contender, program
        self.at = os.path.join(folder, "mnt")
        self.log = os.path.join(folder, "mount.log")
        self.mark = uuid.uuid4().hex
        self.root, self.pids, self.ready_seconds = self.at, [], None
        self.archive, self.probe = str(archive), probe
        self.readers = None  # the environment of readers, if it is not ours
        self.environment = {**os.environ, **(environment or {}), MARK: self.mark}

    def __enter__(self):
        if not self.contender.command:
            self.root = self.archive
            return self
        os.makedirs(self.at, exist_ok=True)
        try:
            self._mount()
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(self, *_):
        if self.contender.command:
            self._clean()

    def _mount(self):
        places = {"archive": self.archive, "at": self.at}
        argv = [self.program, *(a.format(**places) for a in self.contender.command)]
        began = time.monotonic()
        with open(self.log, "wb") as log:
            status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    env=self.environment, check=False,
                                    timeout=MOUNT_SECONDS).returncode
        if status != 0:
            raise MountError(f"{self.contender.name}: status {status}: {self._last_words()}")
        self._await_first_answer(began)
        self.ready_seconds = time.monotonic() - began
        if self.contender.is_direct:
            self.readers = {**os.environ, "LD_PRELOAD": self._preload()}
        self.pids = list(filter(stays, marked_processes(self.mark)))

    def _preload(self):
        with open(self.log, encoding="utf-8") as log:
            for line in log:
                if line.startswith("export LD_PRELOAD="):
                    return line.split("=", 1)[1].strip().strip("'")
        raise MountError(f"{self.contender.name}: nothing to preload: {self._last_words()}")

    def _await_first_answer(self, began):
        """Some programs return before the mount is there."""
        while time.monotonic() - began < MOUNT_SECONDS:
            try:
                os.stat(os.path.join(self.at, self.probe))
                return
            except OSError:
                time.sleep(0.001)
        raise MountError(f"{self.contender.name}: no answer: {self._last_words()}")

    def _last_words(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()[-500:].strip()

    def _umount_command(self):
        if self.contender.ours:
            return [self.program, "umount", self.at]
        return ["umount", self.at] if os.geteuid() == 0 else ["fusermount3", "-u", self.at]

    def _clean(self):
        """Unmounts, and sees to it that every process of this mount ends."""
        deadline = time.monotonic() + UMOUNT_SECONDS
        while is_mounted(self.at) and time.monotonic() < deadline:
            subprocess.run(self._umount_command(), stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                           timeout=UMOUNT_SECONDS)
            if is_mounted(self.at):
                time.sleep(0.2)
        while marked_processes(self.mark) and time.monotonic() < deadline:
            time.sleep(0.01)
        left = marked_processes(self.mark)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if is_mounted(self.at):
            subprocess.run(["umount", "-l", self.at], check=False)
            raise MountError(f"{self.contender.name}: {self.at} could not be unmounted")
        if left:
            raise MountError(f"{self.contender.name}: its daemon outlived the mount")

"""A memory cgroup for one figure, of version 1 or 2, whichever has the controller here."""

import os
import time
import uuid
from pathlib import Path

from commands import Unavailable

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
END_SECONDS = 10


class Cgroup:
    """A context; .join is put in front of a command that shall run in it."""

    def __init__(self, limit_bytes):
        self.limit_bytes, self.name = limit_bytes, f"onepot-bench.{uuid.uuid4().hex[:8]}"
        self.v2 = (V2 / "cgroup.controllers").exists()
        self.folder = (V2 if self.v2 else V1) / self.name

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unavailable("a memory cgroup needs root")
        try:
            if self.v2:
                (V2 / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            limit = "memory.max" if self.v2 else "memory.limit_in_bytes"
            (self.folder / limit).write_text(str(self.limit_bytes))
        except OSError as why:
            self.__exit__()
            raise Unavailable(f"no memory cgroup can be made: {why}") from None
        return self

    def __exit__(self, *_):
        deadline = time.monotonic() + END_SECONDS
        while self.folder.exists():
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    @property
    def join(self):
        return ("/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', f"{self.folder}/cgroup.procs")

    def kills(self):
        """Processes that were killed for memory, so far."""
        name = "memory.events" if self.v2 else "memory.oom_control"
        for line in (self.folder / name).read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
        raise Unavailable(f"{name} does not count kills")

    def peak(self):
        """Bytes that were used at most, page cache included; None if that is not told."""
        name = "memory.peak" if self.v2 else "memory.max_usage_in_bytes"
        path = self.folder / name
        return int(path.read_text()) if path.exists() else None

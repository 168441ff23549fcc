"""A job with a memory limit: epochs over more data than its cache has room for, and no kill."""

import os
import uuid

import harness
import tree
from tars import write_folder
from harness import Skip, check, check_equal

FILES, FILE_BYTES = 2000, 40_000
CACHE_BYTES = 20 << 20  # a quarter of the data
LIMIT_BYTES = CACHE_BYTES + (64 << 20)
EPOCHS = 5

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


class Limited:
    """A memory cgroup of version 1 or 2, as a context; `join` goes in front of a command."""

    def __init__(self):
        self.v2 = os.path.exists(f"{V2}/cgroup.controllers")
        self.folder = f"{V2 if self.v2 else V1}/onepot-test.{uuid.uuid4().hex[:8]}"

    def write(self, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="ascii") as f:
            f.write(text)

    def __enter__(self):
        try:
            os.mkdir(self.folder)
            self.write("memory.max" if self.v2 else "memory.limit_in_bytes", str(LIMIT_BYTES))
        except OSError as why:
            self.__exit__()
            raise Skip(f"no memory cgroup can be made: {why}") from None
        return self

    def __exit__(self, *_):
        def gone():
            try:
                os.rmdir(self.folder)
            except OSError:
                pass
            return not os.path.exists(self.folder)
        harness.wait_for(gone, "the end of the cgroup")

    def join(self):
        """For subprocess: the child enters before it becomes the command."""
        self.write("cgroup.procs", "0")

    def kills(self):
        name = "memory.events" if self.v2 else "memory.oom_control"
        with open(f"{self.folder}/{name}", encoding="ascii") as f:
            for line in f:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        raise Skip(f"{name} does not count kills")


READER = """
import os, random, sys
folder, files, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
for epoch in range(epochs):
    order = list(range(files))
    random.Random(epoch).shuffle(order)
    for i in order:
        fd = os.open(f"{folder}/{i:05d}", os.O_RDONLY)
        size = 0
        while piece := os.read(fd, 1 << 17):
            size += len(piece)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if size != int(sys.argv[4]):
            sys.exit(f"{i}: {size}")
"""


def test_epochs_under_a_memory_limit(work):
    """The archive is read like one on a network; a quarter of what is asked for is kept."""
    archive = work / "data.tar"
    write_folder(archive, ((f"{i:05d}", tree.content(FILE_BYTES, i)) for i in range(FILES)))
    env = harness.environment(ONEPOT_ASSUME_REMOTE="1")
    where = work.make("at")
    with Limited() as group:
        harness.onepot("mount", "--cache", str(CACHE_BYTES), "--readahead", "off", archive,
                       "--at", where, env=env, preexec_fn=group.join)
        try:
            harness.run("python3", "-c", READER, os.path.join(where, "d"), str(FILES),
                        str(EPOCHS), str(FILE_BYTES), preexec_fn=group.join)
            stat = harness.json.loads(harness.onepot("stat", "--json", where, env=env).stdout)
        finally:
            harness.onepot("umount", where, env=env)
        check_equal(group.kills(), 0, "processes that were killed for memory")
    cache = stat["cache"]
    check(cache["bytes"] <= CACHE_BYTES, f"{cache['bytes']} bytes in a cache of {CACHE_BYTES}")
    # The kernel may keep a file for the next epoch: then the mount is not asked.
    asked = stat["requests"]["READ"]
    fits = CACHE_BYTES / (FILES * FILE_BYTES)
    share = cache["hits"] / (asked * (EPOCHS - 1) / EPOCHS)
    check(share >= 0.8 * fits, f"{share:.3f} of the reads hit, and {fits:.3f} of the data fits")


if __name__ == "__main__":
    harness.main(globals())

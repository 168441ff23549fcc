"""The short circuit's own code under the sanitizers, which can't look into a preloaded library: a
program that has it inside reads with several threads."""

import os
import struct

import harness
from tars import write_folder
from harness import Skip, check, check_equal, counting, directly_read, environment, onepot

FILES = 200
SEEN_WORDS = 200000  # as intercept_threads.c has it
WORDS = 7000  # of the first file; each has some more than the one before


def test_threads_that_share_descriptors(work):
    program = os.environ.get("INTERCEPT_THREADS")
    if not program:
        raise Skip("INTERCEPT_THREADS names no program")
    write_folder(work / "data.tar", (
        (f"f{i}", struct.pack(f"<{WORDS + i}Q", *range(i << 32, (i << 32) + WORDS + i)))
        for i in range(FILES)), folder="in")
    result = onepot("run", "--intercept=off", work / "data.tar", "--",
                    *counting(work, program, "{}", str(FILES), "3000"), env=environment())
    check_equal(result.stdout, b"same\n", "what the threads say")
    check(directly_read(work), result.stderr)


def test_threads_that_share_one_while_pages_leave_memory(work):
    """Some bytes come from the archive, others by the mount; none is lost and none comes twice.
    The first ones of the file may all come by the mount, so files are not counted."""
    program = os.environ.get("INTERCEPT_THREADS")
    if not program:
        raise Skip("INTERCEPT_THREADS names no program")
    write_folder(work / "data.tar", {"f0": struct.pack(f"<{SEEN_WORDS}Q", *range(SEEN_WORDS))},
                 folder="in")
    result = onepot("run", "--intercept=off", work / "data.tar", "--",
                    *counting(work, program, "{}", "0", os.environ.get("ONEPOT_ROUNDS", "150"), work / "data.tar"),
                    env=environment())
    check_equal(result.stdout, b"same\n", "what the threads say")
    check(directly_read(work, "bytes"), result.stderr)


if __name__ == "__main__":
    harness.main(globals())

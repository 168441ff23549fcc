"""The short circuit's own code under the sanitizers, which can't look into a preloaded library: a
program that has it inside reads with several threads."""

import os
import struct

import harness
from duplicates import member, write_tar
from harness import Skip, check, check_equal, environment, onepot

FILES = 200
SEEN_WORDS = 200000  # as intercept_threads.c has it
WORDS = 7000  # of the first file; each has some more than the one before


def test_threads_that_share_descriptors(work):
    program = os.environ.get("INTERCEPT_THREADS")
    if not program:
        raise Skip("INTERCEPT_THREADS names no program")
    write_tar(work / "data.tar", [member("in", directory=True)] + [
        member(f"in/f{i}", struct.pack(f"<{WORDS + i}Q", *range(i << 32, (i << 32) + WORDS + i)))
        for i in range(FILES)])
    result = onepot("run", "--intercept=off", work / "data.tar", "--", program, "{}", str(FILES),
                    "3000", env=environment())
    check_equal(result.stdout, b"same\n", "what the threads say")
    check(b"by the readers themselves" in result.stderr, result.stderr)


def test_threads_that_share_one_while_pages_leave_memory(work):
    """Some bytes come from the archive, others by the mount; none is lost and none comes twice."""
    program = os.environ.get("INTERCEPT_THREADS")
    if not program:
        raise Skip("INTERCEPT_THREADS names no program")
    write_tar(work / "data.tar", [member("in", directory=True), member(
        "in/f0", struct.pack(f"<{SEEN_WORDS}Q", *range(SEEN_WORDS)))])
    result = onepot("run", "--intercept=off", work / "data.tar", "--", program, "{}", "0",
                    os.environ.get("ONEPOT_ROUNDS", "150"), work / "data.tar", env=environment())
    check_equal(result.stdout, b"same\n", "what the threads say")
    check(b"by the readers themselves" in result.stderr, result.stderr)


if __name__ == "__main__":
    harness.main(globals())

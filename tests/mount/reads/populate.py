"""Reading ahead: what readers will ask for is brought into the page cache by a process of the
daemon's own, which comes when they read much, goes when they pause, and is never in the way."""

import contextlib
import ctypes
import functools
import mmap
import os
import random
import signal
import tempfile
import time

import harness
import life
import tree
from tars import member, write_tar
from harness import check, check_equal

LIBC = ctypes.CDLL(None, use_errno=True)
FOLDERS = 20
FILES = 8000  # more than it takes to begin, and ever so small


@functools.lru_cache(maxsize=None)
def content_of(number):
    return tree.content(1 + number % 9000, number)


def path_of(number):
    return f"train/{number % FOLDERS:02d}/{number:05d}"


@functools.lru_cache(maxsize=None)
def archive_of_many():
    """Made once, before the tests, whose processes have it then."""
    members = [member("train", directory=True)]
    members += [member(f"train/{i:02d}", directory=True) for i in range(FOLDERS)]
    members += [member(path_of(i), content_of(i)) for i in range(FILES)]
    members += [member("rest", directory=True)]
    members += [member(f"rest/{i}", b"rest") for i in range(1000)]
    with tempfile.NamedTemporaryFile() as f:
        write_tar(f.name, members)
        return f.read()


def make_many(work):
    tree.write(work / "many.tar", archive_of_many())
    return work / "many.tar"


def read_all(mount, numbers):
    for number in numbers:
        with open(mount / path_of(number), "rb", buffering=0) as f:
            check(f.readall() == content_of(number), f"{path_of(number)}: other bytes")


def read_after_it(mount, numbers, path=path_of):
    """As read_all, but a reader that is always faster than what reads ahead of it would show nothing."""
    for i, number in enumerate(numbers):
        with open(mount / path(number), "rb", buffering=0) as f:
            check(f.readall() == content_of(number), f"{path(number)}: other bytes")
        until = time.monotonic() + 0.2
        while i > 2000 and i % 100 == 0 and mount.stat()["ahead_files"] <= 500 and time.monotonic() < until:
            time.sleep(0.01)


def shuffled():
    numbers = list(range(FILES))
    random.Random(1).shuffle(numbers)
    return numbers


def fetchers_of(daemon):
    """The processes that read ahead for the mount of this daemon."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == daemon and fields[0] != "Z":
            found.append(int(pid))
    return found


def counted(mount, reads):
    """What it tells when so many READs of readers are counted, who may be a moment ahead."""
    harness.wait_for(lambda: mount.stat()["requests"].get("READ", 0) >= reads,
                     f"{reads} READs to be counted")
    return mount.stat()


def threads_at_rest(pid):
    """Each thread that sleeps with the number of times that it went to sleep; None if one runs or
    has just ended."""
    found = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        fields = life.thread_status(pid, thread)
        if fields is None or not fields["State"].startswith("S"):
            return None
        found[thread] = fields["voluntary_ctxt_switches"]
    return found


def settled(mount):
    """What it tells when reading ahead has ended. A request is counted after its answer, and the
    last one may be what wakes it: so once no thread of the daemon has run between two looks."""
    pid = mount.stat()["daemon_pid"]

    def rests():
        before = threads_at_rest(pid)
        return before and not fetchers_of(pid) and threads_at_rest(pid) == before

    harness.wait_for(rests, "the end of reading ahead, and the daemon's threads to sleep")
    return mount.stat()


def is_cached(path):
    """Does the kernel have all of the file's pages?"""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        pages = (ctypes.c_ubyte * -(-len(mapped) // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(mapped)
        failed = LIBC.mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages)
        del first
        check_equal(failed, 0, "mincore")
        return all(page & 1 for page in pages)


def test_most_of_a_shuffled_epoch_is_read_ahead_and_right(work):
    with work.mount(make_many(work)) as mount:
        read_after_it(mount, shuffled())
        stat = settled(mount)
        check(stat["ahead_files"] > 500, f"{stat['ahead_files']} files were read ahead")
        check(stat["requests"]["READ"] + stat["ahead_files"] <= FILES + 512,
              f"{stat['requests']['READ']} and {stat['ahead_files']} of {FILES} files were read")
        # Each counts once, those of the rest too that were read ahead.
        check(FILES <= stat["read_files"] <= FILES + 1000, f"{stat['read_files']} files were read")
        # A kernel that is short of memory drops pages, which is no fault of the mount's.
        dropped = sum(not is_cached(mount / path_of(number)) for number in range(FILES))
        before = stat["requests"]["READ"]
        read_all(mount, shuffled())
        again = mount.stat()["requests"]["READ"] - before
        check(again < dropped + FILES / 20,
              f"{again} READs in a second epoch, {dropped} files were dropped")


def test_what_nobody_reads_from_is_left_alone(work):
    with work.mount(make_many(work)) as mount:
        read_after_it(mount, shuffled())
        check(settled(mount)["ahead_files"] > 500, "files were read ahead")
        far = [mount / f"rest/{i}" for i in range(100, 110)]  # in the order of the index
        check_equal([path for path in far if is_cached(path)], [], "files that nobody asked for")
        for path in far:
            with open(path, "rb") as f:
                check_equal(f.read(), b"rest", "content")
        check(any(map(is_cached, far)), "what is read stays in no cache: that proves nothing")


def test_of_a_job_that_reads_little_no_file_is_read_ahead(work):
    """Names are listed around the ones that it looks up (walk.py), and no more."""
    with work.mount(make_many(work)) as mount:
        read_all(mount, shuffled()[:1900])
        stat = counted(mount, 1900)
        check_equal((stat["ahead_files"], stat["ahead_bytes"]), (0, 0), "files and bytes read ahead")
        check(stat["requests"]["READ"] < 1950, f"{stat['requests']['READ']} READs of 1900 files")


def test_off_is_off(work):
    with work.mount(make_many(work), "--readahead", "off") as mount:
        read_all(mount, shuffled())
        stat = counted(mount, FILES)
        check_equal(stat["ahead_requests"], 0, "requests of its own")
        check(stat["requests"]["READ"] < FILES + 100,
              f"{stat['requests']['READ']} READs of {FILES} files")


def test_a_bound_in_bytes_holds(work):
    with work.mount(make_many(work), "--readahead", "1M") as mount:
        read_all(mount, shuffled())
        stat = settled(mount)
        check(0 < stat["ahead_bytes"] <= 3 << 20, f"{stat['ahead_bytes']} bytes were read ahead")


def test_below_a_subdirectory(work):
    with work.mount(make_many(work), "--subdir", "train") as mount:
        read_after_it(mount, shuffled(), lambda number: path_of(number)[6:])
        check(settled(mount)["ahead_files"] > 500, "files were read ahead")


def test_a_record_has_every_file_in_the_readers_order(work):
    """What the kernel had before a reader asked for it would be missing."""
    numbers = shuffled()
    with work.mount(make_many(work), "--record", work / "record") as mount:
        read_all(mount, numbers)
    with open(work / "record", encoding="utf-8") as f:
        check_equal(f.read().split("\n")[:-1], list(map(path_of, numbers)), "the record")


def test_an_unmount_right_after_the_last_read_succeeds(work):
    archive = make_many(work)
    for count in (2100, 2500, 3500, 5000):
        with work.mount(archive) as mount:
            read_all(mount, shuffled()[:count])


def test_a_plain_unmount_in_the_middle_succeeds(work):
    """Our process has files open then, but nobody else has."""
    archive = make_many(work)
    for count in (2100, 2200, 2300, 2500, 3000):
        with work.mount(archive) as mount:
            read_all(mount, shuffled()[:count])
            harness.run("umount" if os.geteuid() == 0 else "fusermount3",
                        *([] if os.geteuid() == 0 else ["-u"]), mount.path)
            mount.mounted = False


def test_a_killed_daemon_takes_it_along(work):
    archive = make_many(work)
    for count in (2080, 2200, 2700):
        with work.mount(archive) as mount:
            read_all(mount, shuffled()[:count])
            stat = mount.stat()
            fetchers = fetchers_of(mount.stat()["daemon_pid"])
            os.kill(stat["daemon_pid"], signal.SIGKILL)
            for pid in fetchers:
                life.wait_gone(pid)
            life.wait_gone(stat["daemon_pid"])
            mount.mounted = False
            harness.onepot("umount", mount.path)


def test_a_killed_fetcher_is_no_loss(work):
    with work.mount(make_many(work)) as mount:
        numbers = shuffled()
        read_all(mount, numbers[:2100])
        for pid in fetchers_of(mount.stat()["daemon_pid"]):
            life.kill(pid)
        read_all(mount, numbers)


def test_a_stopped_fetcher_keeps_nobody_waiting(work):
    with work.mount(make_many(work)) as mount:
        numbers = shuffled()
        read_all(mount, numbers[:2100])
        daemon = mount.stat()["daemon_pid"]
        for pid in fetchers_of(daemon):
            with contextlib.suppress(ProcessLookupError):  # it may have no more to do
                os.kill(pid, signal.SIGSTOP)
        read_all(mount, numbers)
    life.wait_gone(daemon)


if __name__ == "__main__":
    archive_of_many()
    harness.main(globals())

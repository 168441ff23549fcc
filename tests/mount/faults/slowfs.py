"""tests/lib/slowfs: the same bytes as below it, right counts, and nothing left behind.

Benchmarks judge by what slowfs counts, so that the counts are tested; how slow it is, is a
matter of its model, which has a suite of its own (test_slow_server).
"""

import contextlib
import errno
import os
import signal
import threading

import harness
import tree
from harness import Failure, check, check_equal, mountpoints, need_program, run, wait_for
from slow import Slow, slowfs_program

FILES, FILE_BYTES = 40, 5000


def make_files(work):
    source = work.make("source")
    for i in range(FILES):
        with open(os.path.join(source, f"file{i:02}"), "wb") as f:
            f.write(bytes([i]) * (FILE_BYTES + i))
    return source


def difference(before, after):
    return {k: after[k] - v for k, v in before.items() if after[k] != v}


def test_shows_what_is_below(work):
    source = work.make("source")
    tree.build(source)
    with Slow(work, "--meta=100us", "--read=100us", source) as slow:
        tree.compare(tree.snapshot(slow.at), tree.snapshot(source), "slowfs")


def test_nothing_can_be_written(work):
    with Slow(work, make_files(work)) as slow:
        for attempt in (lambda: open(slow / "new", "wb"), lambda: os.unlink(slow / "file00"),
                        lambda: open(slow / "file00", "r+b"), lambda: os.mkdir(slow / "dir")):
            with contextlib.suppress(OSError):
                attempt()
                raise Failure("something was written")


def test_counts_are_of_what_was_asked(work):
    with Slow(work, make_files(work)) as slow:
        names = sorted(os.listdir(slow.at))
        check_equal(names, [f"file{i:02}" for i in range(FILES)], "names")
        before = slow.counts()
        check_equal((before["opendir"], before["lookup"], before["open"]), (1, 0, 0), "so far")
        for name in names:
            os.lstat(slow / name)
        check_equal(difference(before, slow.counts()), {"requests": FILES, "lookup": FILES},
                    "a stat of each file")
        before = slow.counts()
        for i, name in enumerate(names):
            with open(slow / name, "rb", buffering=0) as f:
                check_equal(f.read(), bytes([i]) * (FILE_BYTES + i), name)
        got = difference(before, slow.counts())
        check_equal(got["open"], FILES, "opened")
        check_equal(got["bytes"], FILES * FILE_BYTES + sum(range(FILES)), "bytes read")
        check_equal(got.get("lookup", 0), 0, "names that the kernel knows")
        before = slow.counts()
        with open(slow / names[0], "rb", buffering=0) as f:
            f.read()
        check_equal(difference(before, slow.counts()), {"requests": 1, "open": 1},
                    "pages that the kernel has")
        counts, last = slow.counts(), slow.umount()
        for kind in ("lookup", "open", "read", "bytes"):  # umount itself may ask something
            check_equal(last[kind], counts[kind], f"{kind} in the last counts")


def test_nothing_is_cached_that_shall_not_be(work):
    with Slow(work, "--entry-timeout=0", "--attr-timeout=0", "--pages=none",
              make_files(work)) as slow:
        for _ in range(3):
            before = slow.counts()
            os.lstat(slow / "file07")
            with open(slow / "file07", "rb", buffering=0) as f:
                os.pread(f.fileno(), 100, 50)
            got = difference(before, slow.counts())
            check_equal((got["lookup"] >= 2, got["open"], got["read"], got["bytes"]),
                        (True, 1, 1, 100), "requests each time")


def test_extended_attributes_are_asked_for(work):
    source = make_files(work)
    try:
        os.setxattr(os.path.join(source, "file03"), "user.colour", b"green")
    except OSError as error:
        raise harness.Skip(f"no extended attributes here: {error}") from None
    with Slow(work, source) as slow:
        before = slow.counts()
        check_equal(os.listxattr(slow / "file03"), ["user.colour"], "names")
        check_equal(os.getxattr(slow / "file03", "user.colour"), b"green", "value")
        got = difference(before, slow.counts())
        check(got["listxattr"] >= 1 and got["getxattr"] >= 1, f"counted: {got}")


# Long latency makes sure that requests are in flight together; it is not measured.

def test_many_requests_wait_at_once(work):
    with Slow(work, "--latency=open=500ms", "--limit=4", make_files(work)) as slow:
        harness.in_threads([lambda i=i: os.close(os.open(slow / f"file{i:02}", os.O_RDONLY)) for i in range(20)])
        counts = slow.counts()
        check(counts["peak_in_flight"] > 4, f"in flight: {counts['peak_in_flight']}")
        check(counts["waited"] > 0, "nobody waited for a place")
        check_equal((counts["in_flight"], counts["open"]), (0, 20), "afterwards")


def test_names_of_one_directory_are_asked_for_at_once(work):
    with Slow(work, "--latency=lookup=500ms", make_files(work)) as slow:
        harness.in_threads([lambda i=i: os.lstat(slow / f"file{i:02}") for i in range(20)])
        counts = slow.counts()
        check(counts["peak_in_flight"] > 4, f"in flight: {counts['peak_in_flight']}")
        check_equal(counts["lookup"], 20, "lookups")


def test_reads_fail_as_often_as_wanted(work):
    with Slow(work, "--fail-every=3", "--pages=none", make_files(work)) as slow:
        failed = 0
        with open(slow / "file05", "rb", buffering=0) as f:
            for _ in range(12):
                try:
                    check_equal(os.pread(f.fileno(), 10, 0), b"\5" * 10, "bytes")
                except OSError as error:
                    check_equal(error.errno, errno.EIO, "errno")
                    failed += 1
        check_equal(failed, 4, "failed reads")


def test_a_synthetic_tree_is_the_same_each_time(work):
    need_program("find")
    with Slow(work, "--synthetic=2500", "--file-bytes=333") as slow:
        found = run("find", slow.at, "-type", "f", "-size", "333c").stdout.splitlines()
        check_equal(len(set(found)), 2500, "files")
        check_equal(sorted(os.listdir(slow.at)), ["d0000000", "d0000001", "d0000002"], "folders")
        contents = [open(slow / f"d0000002/f{i:09}", "rb").read() for i in range(2000, 2010)]
        check_equal(len(set(contents)), 10, "contents that differ")
        with open(slow / "d0000002/f000002000", "rb", buffering=0) as f:
            check_equal(os.pread(f.fileno(), 100, 77), contents[0][77:177], "a part")
        for name in ("d0000000/f000001000", "d0000003", "f000000000", "d0000002/f000002500",
                     "d0", "d0000000/f0"):
            check(not os.path.exists(slow / name), f"{name} is there")
        slow.umount()
        slow.start()
        with open(slow / "d0000002/f000002001", "rb") as f:
            check_equal(f.read(), contents[1], "contents of another mount")


def test_signals_end_it_and_write_counts(work):
    with Slow(work, make_files(work)) as slow:
        os.lstat(slow / "file01")
        os.kill(slow.pid(), signal.SIGUSR1)
        check_equal(slow.last_counts()["lookup"], 1, "lookups so far")
        fd = os.open(slow / "file02", os.O_RDONLY)  # in use
        os.kill(slow.pid(), signal.SIGTERM)
        wait_for(lambda: not mountpoints(slow.at), "the end of the mount")
        with contextlib.suppress(OSError):
            os.close(fd)
        wait_for(lambda: slow.last_counts()["lookup"] == 2, "the last counts")


def test_keeps_nothing_of_who_started_it(work):
    with Slow(work, make_files(work)) as slow:
        slow.umount()
        end, other = os.pipe()
        os.set_inheritable(other, True)
        run(slowfs_program(), work / "source", slow.at, close_fds=False)
        os.close(other)
        check_equal(os.read(end, 1), b"", "the pipe's end")
        check_equal(os.readlink(f"/proc/{slow.pid()}/fd/0"), "/dev/null", "standard input")


def test_what_waits_at_the_end_is_let_go(work):
    with Slow(work, "--latency=open=1000s", make_files(work)) as slow:
        pid = slow.pid()
        refused = []

        def read():
            try:
                open(slow / "file01", "rb").close()
            except OSError as error:
                refused.append(error.errno)

        thread = threading.Thread(target=read)
        thread.start()
        wait_for(lambda: slow.counts()["in_flight"] == 1, "a request")
        os.kill(pid, signal.SIGTERM)
        thread.join(60)
        check(not thread.is_alive() and refused, "the reader still waits")
        wait_for(lambda: not mountpoints(slow.at), "the end of the mount")


def test_the_next_one_removes_a_dead_mount(work):
    with Slow(work, make_files(work)) as slow:
        os.kill(slow.pid(), signal.SIGKILL)
        wait_for(lambda: not harness.marked_processes(os.environ[harness.MARK]), "its end")
        check_equal(len(mountpoints(slow.at)), 1, "dead mounts")
        slow.start()
        check("dead mount" in slow.notes, f"it said: {slow.notes}")
        check_equal(len(os.listdir(slow.at)), FILES, "files")


def test_wrong_words_are_refused(work):
    source = make_files(work)
    at = work.make("at")
    for words in (("--meta=3",), ("--latency=walk=1ms",), ("--latency=open",), ("--limit=x",),
                  ("--pages=some",), ("--bandwidth=-1",), ("--meta=1e30s",)):
        run(slowfs_program(), *words, source, at, status=2)
    run(slowfs_program(), source, status=2)
    run(slowfs_program(), work / "nowhere", at, status=1)
    run(slowfs_program(), source, work / "nowhere", status=1)
    check_equal(mountpoints(at), [], "mounts")


if __name__ == "__main__":
    harness.main(globals())

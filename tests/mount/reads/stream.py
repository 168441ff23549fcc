"""Tars that are one compressed stream, whose index is known: files are read while the stream is
unpacked, each as soon as its bytes have come; what is wrong with the stream is named, and what
came before is served.

The archive lies on a file system (slowfs --hold) that does not answer reads of one stretch until
the test says so: however slow or fast the machine is, the stream stands still there until then.
"""

import contextlib
import errno
import glob
import hashlib
import os
import signal
import threading

import harness
import life
from harness import check, check_equal, onepot, run, wait_for
from slow import Slow

FILES, FILE_BYTES = 40, 400_000


def content(i):
    return hashlib.shake_128(str(i).encode()).digest(FILE_BYTES)


def make_stream(work, program="zstd -q -1", suffix="zst"):
    """A stream of 16 MB that does not shrink, its index beside it, alone in its folder."""
    harness.need_program(program.split()[0])
    tree, source = work / "tree", work / "source"
    os.makedirs(tree, exist_ok=True)
    os.makedirs(source, exist_ok=True)
    for i in range(FILES):
        with open(os.path.join(tree, f"f{i:03}"), "wb") as f:
            f.write(content(i))
    plain, archive = work / "a.tar", os.path.join(source, f"a.tar.{suffix}")
    run("tar", "-C", tree, "--sort=name", "-cf", plain, ".")
    run("sh", "-c", f"{program} -c {plain} > {archive}")
    onepot("index", archive)
    return archive


@contextlib.contextmanager
def held_stream(work, *options, toggle="stall"):
    """A file system, and the path of a stream on it that stands still in its second quarter until
    slow.toggle(). It stalls there, or what else is said."""
    archive = make_stream(work)
    with Slow(work, "--hold", f"--toggle={toggle}", *options, os.path.dirname(archive)) as slow:
        yield slow, slow / os.path.basename(archive)


def read(path, i):
    with open(os.path.join(path, f"f{i:03}"), "rb", buffering=0) as f:
        parts = []
        while part := f.read(1 << 20):
            parts.append(part)
        return b"".join(parts)


def check_file(path, i):
    check(read(path, i) == content(i), f"file {i} has other bytes")


def fails(path, i):
    try:
        read(path, i)
    except OSError as error:
        check(error.errno in (errno.EIO, errno.ECONNABORTED, errno.ENOTCONN),
              f"a read ended with {error}")
        return True
    return False


def staged(mount):
    return mount.stat()["stage"]


def unpacker(mount):
    """The child of the daemon that unpacks; None if there is none (any more)."""
    daemon = mount.stat()["daemon_pid"]
    for path in glob.glob(f"/proc/{daemon}/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as f:
            for pid in f.read().split():
                return int(pid)
    return None


def await_unpacker(mount):
    found = []
    wait_for(lambda: found.append(unpacker(mount)) or found[-1], "the process that unpacks")
    return found[-1]


def log_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def check_is_told(log):
    """Once when it happens, and by the closing line."""
    lines = [line for line in log_of(log).splitlines() if "unpacking it has ended early" in line]
    check_equal(["reads failed: " in line for line in lines], [False, True], f"of closing lines in {log_of(log)}")


def await_whole(mount):
    def ended():
        stage = staged(mount)
        check(not stage["failure"], f"the stream has failed: {stage['reason']}")
        return stage["here_bytes"] == stage["bytes"]

    wait_for(ended, "the whole stream")


def leftovers(work):
    return [path for path in glob.glob(os.path.join(work / ".home", "run", "**"), recursive=True)
            if os.path.isfile(path) and not path.endswith("/lock")]


def watchers():
    """Processes that would remove a copy that a killed daemon leaves."""
    return len(life.processes_named("onepot-watch"))


def test_a_copy_without_a_name_needs_no_watcher(work):
    with held_stream(work) as (slow, archive):
        with work.mount(archive, name="private"):
            check_equal(watchers(), 0, "watchers of a copy that goes with its processes")
            slow.toggle()
        with work.mount("--stage", archive, name="shared"):
            wait_for(lambda: watchers() == 1, "the watcher of a copy that others may use")


def test_files_are_read_while_they_come(work):
    log = work / "log"
    with held_stream(work) as (slow, archive), work.mount("--log", log, archive) as mount:
        check("unpacked" not in mount.notes, f"it was unpacked first: {mount.notes}")
        names = sorted(os.listdir(mount.path))
        check_equal(names, [f"f{i:03}" for i in range(FILES)], "names")
        check(staged(mount)["unpacks"], "it is not told that it is unpacked")
        check_file(mount.path, 0)
        threads = []
        wrong = []

        def look(i):
            if read(mount.path, i) != content(i):
                wrong.append(i)

        for i in range(FILES - 32, FILES):  # all at once, the last first
            threads.append(threading.Thread(target=look, args=(FILES * 2 - 33 - i,)))
            threads[-1].start()
        slow.toggle()
        for thread in threads:
            thread.join()
        check_equal(wrong, [], "files with other bytes")
        for i in range(FILES):
            check_file(mount.path, i)
        await_whole(mount)
        check_equal(mount.stat()["errors"], 0, "errors")
    check("onepot pack" in log_of(log), "no hint in the log")
    check_equal(leftovers(work), [], "files afterwards")


def test_who_wants_something_else_does_not_wait_with_many_readers(work):
    """More of them than workers for slow reads; of each file several parts that lie apart."""
    with held_stream(work) as (slow, archive), work.mount("--io-timeout=100", archive) as mount:
        answers = []

        def look(fd, i, at):
            answers.append(os.pread(fd, 1000, at) == content(i)[at:at + 1000])

        with contextlib.ExitStack() as stack:
            threads = []
            for i in range(FILES - 10, FILES):
                fd = os.open(os.path.join(mount.path, f"f{i:03}"), os.O_RDONLY)
                stack.callback(os.close, fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                for at in range(0, FILE_BYTES, FILE_BYTES // 12):
                    threads.append(threading.Thread(target=look, args=(fd, i, at)))
                    threads[-1].start()
            tasks = f"/proc/{mount.stat()['daemon_pid']}/task"
            wait_for(lambda: len(os.listdir(tasks)) > len(threads), "a worker for each read")
            run("stat", os.path.join(mount.path, "f000"), timeout=90)
            slow.toggle()
            for thread in threads:
                thread.join()
        check_equal(answers, [True] * len(threads), "answers")


def test_a_read_waits_as_long_as_the_stream_goes_on(work):
    """With a limit shorter than the stream takes: ten seconds. Slowfs, too, may have to wait for a CPU."""
    archive = make_stream(work)
    with Slow(work, "--bandwidth=1600K", "--pages=none", os.path.dirname(archive)) as slow:
        with work.mount("--io-timeout=8", slow / "a.tar.zst") as mount:
            check_file(mount.path, FILES - 1)
            check_equal(mount.stat()["stalls"], 0, "stalls")


def test_a_read_of_a_stream_that_stands_still_is_a_stall(work):
    with held_stream(work, "--pages=none") as (slow, archive):
        with work.mount("--io-timeout=1", archive) as mount:
            check(fails(mount.path, FILES - 1), "a read of what does not come was answered")
            slow.toggle()
            await_whole(mount)
            check_file(mount.path, FILES - 2)


def test_a_killed_unpacker_is_named_and_the_rest_served(work):
    log = work / "log"
    with held_stream(work) as (slow, archive), work.mount("--log", log, archive) as mount:
        check_file(mount.path, 3)
        os.kill(await_unpacker(mount), signal.SIGKILL)
        slow.toggle()
        wait_for(lambda: staged(mount)["failure"], "the failure")
        check(fails(mount.path, FILES - 1), "a file that never came was read")
        check_file(mount.path, 2)
        check("was killed" in onepot("stat", mount.path).stdout.decode(), "stat does not say why")
    check_is_told(log)
    check_equal(leftovers(work), [], "files afterwards")


def check_beginning(mount):
    """A file of it, once the stream has come as far: for what does not come a read may wait a second."""
    wait_for(lambda: staged(mount)["here_bytes"] > 5 * FILE_BYTES, "the beginning of the stream")
    check_file(mount.path, 3)


def check_return(work, toggle, *options, is_noticed=True):
    log = work / "log"
    with held_stream(work, *options, toggle=toggle) as (slow, archive), \
            work.mount("--log", log, "--retries=1", "--io-timeout=1", archive) as mount:
        check_beginning(mount)
        if is_noticed:
            wait_for(lambda: staged(mount)["away"], "that its end is noticed", 60)
            check("waits for its storage" in onepot("stat", mount.path).stdout.decode(),
                  "stat does not say that it waits")
            check_file(mount.path, 3)
        slow.toggle()
        await_whole(mount)
        for i in range(FILES):
            check_file(mount.path, i)
        check_equal((staged(mount)["away"], staged(mount)["failure"]), (0, 0), "what is wrong")
    for line in ("its storage fails", "its storage answers again"):
        check(line in log_of(log), f"not in the log: {line}")
    check_equal(leftovers(work), [], "files afterwards")


def test_a_stream_goes_on_when_its_storage_no_longer_fails(work):
    check_return(work, "fail")


def test_a_stream_goes_on_when_its_storage_answers_again(work):
    check_return(work, "stall")


def test_a_stream_goes_on_when_its_open_file_was_forgotten(work):
    """Which nothing mends but to open it anew. (For a page that stalled the kernel says EIO.)"""
    check_return(work, "stale", "--pages=none", is_noticed=False)


def test_a_stream_that_waits_for_its_storage_ends_at_once(work):
    with held_stream(work) as (slow, archive):
        with work.mount("--io-timeout=1", "--stage", archive) as mount:
            check_beginning(mount)
            wait_for(lambda: staged(mount)["away"], "that its end is noticed")
            check(fails(mount.path, FILES - 1), "a read of what does not come was answered")
            mount.end()
        check_equal(leftovers(work), [], "files afterwards")
        slow.toggle()


def test_names_of_an_indexed_stream_are_told_without_unpacking_it(work):
    """Its middle can't even be read: only begin and end are looked at."""
    archive = make_stream(work)
    names = [f"f{i:03}" for i in range(FILES)]
    check_equal(onepot("ls", archive).stdout.decode().split(), names, "names")
    flip(archive, os.path.getsize(archive) // 2 + 12345)
    check_equal(onepot("ls", archive).stdout.decode().split(), names, "names")
    info = onepot("info", "--json", archive).stdout.decode()
    for text in ('"index_origin": "saved"', '"compression": "zstd"', f'"files": {FILES},'):
        check(text in info, f"not in what info says: {text}")
    check(onepot("cat", archive, "f039", status=None).returncode != 0,
          "bytes of a damaged stream were given")


def flip(path, at):
    state = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x10]))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))


def test_a_stream_that_is_cut_short_says_so(work):
    with held_stream(work, "--pages=none", "--attr-timeout=0") as (slow, archive):
        with work.mount("--io-timeout=5", "--retries=1", archive) as mount:
            check_beginning(mount)
            below = os.path.join(work / "source", "a.tar.zst")
            os.truncate(below, os.path.getsize(below) // 2)
            slow.toggle()
            wait_for(lambda: staged(mount)["failure"], "the failure", 60)
            check_file(mount.path, 3)
            check(fails(mount.path, FILES - 1), "what was cut off was read")
            check_equal(staged(mount)["reason"], "was changed while it was unpacked", "why")


def test_damage_is_named_and_never_served(work):
    """Behind the index's back: same size, same time, another byte, that no sum is over."""
    for program, suffix in (("xz -0 -T1", "xz"), ("zstd -1 --no-check", "zst"), ("lz4 -q", "lz4")):
        archive, log = make_stream(work, program, suffix), work / f"log.{suffix}"
        flip(archive, os.path.getsize(archive) // 2 + 12345)
        with work.mount("--log", log, archive, name=suffix) as mount:
            wait_for(lambda: staged(mount)["failure"], "the failure")
            check_file(mount.path, 0)
            check(fails(mount.path, FILES - 1), f"{suffix}: what is behind the damage was read")
            for i in range(FILES):
                check(fails(mount.path, i) or read(mount.path, i) == content(i),
                      f"{suffix}: file {i} has other bytes")
        check_is_told(log)


def end_lazily(mount, slow):
    """Its reader is served until it is done."""
    mount.mounted = False
    onepot("umount", "--lazy", mount.path)
    slow.toggle()


def end_by_kill(mount, slow):
    os.kill(mount.stat()["daemon_pid"], signal.SIGKILL)
    slow.toggle()
    mount.mounted = False
    harness.detach(mount.path)


def test_the_end_comes_at_once_and_leaves_nothing(work):
    with held_stream(work, "--pages=none") as (slow, archive):
        with work.mount("--io-timeout=100", archive, name="idle") as mount:
            pid = await_unpacker(mount)
            mount.end()
            slow.toggle()  # no process ends while the kernel has a read of it
            wait_for(lambda: life_of(pid) == "Z", "the end of the process that unpacks")
        for end in (end_lazily, end_by_kill):
            slow.toggle()
            with work.mount("--io-timeout=100", archive, name=end.__name__) as mount:
                pid = await_unpacker(mount)
                reader = threading.Thread(target=fails, args=(mount.path, FILES - 1))
                reader.start()
                wait_for(lambda m=mount: "READ" in m.stat()["requests"] or not reader.is_alive()
                         or m.stat()["requests_total"] > 2, "a reader")
                end(mount, slow)
                reader.join(60)
                check(not reader.is_alive(), f"{end.__name__}: the reader hangs")
                wait_for(lambda p=pid: life_of(p) == "Z", "the end of the process that unpacks")
        wait_for(lambda: is_cleaned_up(work), "the end of all that is left")


def is_cleaned_up(work):
    """A killed daemon may take a while to die, and what is a living one's is not removed."""
    onepot("umount", "--all", status=None)
    return not leftovers(work)


def life_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_mounts_share_a_stream_and_outlive_each_other(work):
    with held_stream(work) as (slow, archive), \
            work.mount("--stage", archive, name="one") as first:
        with work.mount("--stage", "--idle=1000", archive, name="two") as second:
            check_equal(unpacker(second), None, "who unpacks for the second")
            check_file(second.path, 1)
            os.kill(first.stat()["daemon_pid"], signal.SIGKILL)
            wait_for(lambda: first.stat()["state"] == "dead", "the daemon's end")
            first.mounted = False
            harness.detach(first.path)
            slow.toggle()
            check_file(second.path, FILES - 1)
            await_whole(second)
            for i in range(FILES):
                check_file(second.path, i)
    wait_for(lambda: is_cleaned_up(work), "the end of all that is left")


def test_it_is_staged_ahead_of_time_and_run(work):
    archive = make_stream(work)
    onepot("stage", "--keep", archive)
    with work.mount("--stage", archive) as mount:
        check_equal(staged(mount)["here_bytes"], staged(mount)["bytes"], "bytes that are there")
        check_equal(unpacker(mount), None, "who unpacks what is there")
        check_file(mount.path, FILES - 1)
    onepot("unstage", archive)
    done = onepot("run", archive, "--", "cat", f"{{}}/f{FILES - 1:03}")
    check(done.stdout == content(FILES - 1), "bytes of a file")
    check_equal(leftovers(work), [], "files afterwards")


def test_no_room_is_told_and_nothing_hangs(work):
    """The place for the copy fills up while it is unpacked."""
    harness.need_root("mount a filesystem of its own")
    place = work.make("small")
    run("mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", place)
    try:
        with held_stream(work) as (slow, archive), \
                work.mount(f"--stage={place}", archive) as mount:
            with open(os.path.join(place, "filler"), "wb") as f, contextlib.suppress(OSError):
                while f.write(bytes(1 << 16)):
                    f.flush()
            slow.toggle()
            wait_for(lambda: staged(mount)["failure"], "the failure")
            check(fails(mount.path, FILES - 1), "what there was no room for was read")
            check("No space" in onepot("stat", mount.path).stdout.decode(), "stat does not say")
    finally:
        harness.detach(place)


if __name__ == "__main__":
    harness.main(globals())

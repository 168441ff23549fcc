"""The daemon's life: what ends it, what does not, and what it leaves behind: nothing."""

import contextlib
import errno
import os
import random
import resource
import signal
import sys
import threading
import time

import harness
import life
from harness import Skip, check, check_equal, environment, mountpoints, onepot, wait_for
from life import (STARVED_SECONDS, Clock, Starved, check_nothing_left, ended, make_archive, mount,
                  not_starved, read, umount)

QUIET = 2  # seconds without a request, after which a daemon that was asked to end believes it


class CachedReader(threading.Thread):
    """Opens and reads the same few files over and over: the kernel has them all."""

    def __init__(self, path, pause=0.1):
        super().__init__(daemon=True)
        self.paths = [f"{path}/sub/{i:04}" for i in range(3)]
        self.pause = pause
        self.rounds = 0
        self.longest = 0  # seconds between two rounds
        self.error = None
        self.done = threading.Event()

    def run(self):
        last = time.monotonic()
        try:
            while not self.done.wait(self.pause):
                for path in self.paths:
                    self.longest = max(self.longest, time.monotonic() - last)
                    read(path)
                    last = time.monotonic()
                self.rounds += 1
        except OSError as error:
            self.error = error
        self.longest = max(self.longest, time.monotonic() - last)

    def __enter__(self):
        self.start()
        wait_for(lambda: self.rounds > 2 or self.error, "the reader")
        return self

    def __exit__(self, kind, *unused):
        self.done.set()
        self.join()
        if self.longest > STARVED_SECONDS and (self.error or kind):
            raise Starved(f"the reader waited for {self.longest:.1f} s")
        if kind is None:
            check(self.error is None, f"a reader of cached files got: {self.error}")


# ---- asked to end ----

def test_term_ends_an_unused_mount(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: mounted_state(path) in ("draining", None), "the mount to drain")
    life.wait_gone(pid)
    check_nothing_left()


@contextlib.contextmanager
def served_for_a_container(work, *options):
    """A starter as container runtimes are: it mounts, hands the device over, and unmounts when
    the server has ended. (server, mount point)"""
    archive, at = make_archive(work), work / "at"
    os.makedirs(at, exist_ok=True)
    fd = life.mount_device(at)
    try:
        with life.background("mount", archive, "--at", f"/dev/fd/{fd}", *options,
                             pass_fds=[fd]) as server:
            os.close(fd)
            life.first_line(server)
            yield server, at
    finally:
        harness.unmount(at)
    check_nothing_left()


def check_dead(at):
    try:
        read(f"{at}/sub/0049")
    except OSError as error:
        check(error.errno in (errno.ENOTCONN, errno.ECONNABORTED), f"a dead mount says {error}")
    else:
        raise harness.Failure("a mount without a server was read")


def test_each_signal_ends_what_a_parent_has_mounted(work):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with served_for_a_container(work, "-f") as (server, at):
            check_equal(read(f"{at}/readme"), b"hello\n", "a file")
            server.send_signal(number)
            status, _, errors = ended(server)
            check_equal(status, 0, f"status after signal {number}: {errors}")
            check("still in use" not in errors, f"it says {errors!r}")
            check("2 files" in errors or "1 file" in errors, f"the last line: {errors!r}")
            check_dead(at)


def test_what_a_parent_has_mounted_ends_in_the_background_too(work):
    for number in (signal.SIGTERM, signal.SIGHUP):
        with served_for_a_container(work) as (starter, at):
            check_equal(ended(starter)[0], 0, "status of mount")
            daemon = harness.json.loads(onepot("stat", "--json").stdout)[0]["daemon_pid"]
            os.kill(daemon, number)
            life.wait_gone(daemon)
            check_dead(at)


@not_starved
def test_what_a_parent_has_mounted_is_left_when_the_grace_is_over(work):
    with served_for_a_container(work, "-f", "--grace", "4") as (server, at):
        reader = CachedReader(at)
        with reader:
            server.terminate()
            status, _, errors = ended(server)
            reader.done.set()
            reader.join()
            reader.error = None  # it has lost its data, as it must
        check_equal(status, 0, "the status")
        if reader.longest > STARVED_SECONDS:
            raise Starved(f"the reader waited for {reader.longest:.1f} s")
        for words in ("in 4 s at most", "still in use, and left"):
            check(words in errors, f"it says {errors!r}")
        check_dead(at)


def test_after_its_grace_a_mount_leaves_the_tree_and_open_files_stay(work):
    path = mount(make_archive(work), "--grace", "1")
    pid = life.daemon_of(path)
    with life.opened(f"{path}/readme") as fd:
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: not mountpoints(work.path), "the mount to leave the tree")
        check_equal(os.read(fd, 10), b"hello\n", "its bytes")
    life.wait_gone(pid)
    check_nothing_left()


def mounted_state(path):
    done = onepot("stat", "--json", path, status=None)
    return harness.json.loads(done.stdout)["state"] if done.returncode == 0 else None


@not_starved
def test_term_leaves_a_reader_of_cached_files_in_peace(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    with CachedReader(path) as reader:
        os.kill(pid, signal.SIGTERM)
        time.sleep(3 * QUIET)
        wait_for(lambda: reader.rounds > 10 or reader.error, "the reader to read on")
        check_equal(mountpoints(work.path), [path], "mounts, while somebody reads")
    life.wait_gone(pid)
    check_nothing_left()


def test_term_leaves_an_open_file_in_peace(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    with life.opened(f"{path}/readme") as fd:
        os.kill(pid, signal.SIGTERM)
        time.sleep(2 * QUIET + 1)
        check_equal(mountpoints(work.path), [path], "mounts, while a file is open")
        check_equal(os.read(fd, 10), b"hello\n", "its bytes")
    life.wait_gone(pid)
    check_nothing_left()


def test_term_ends_a_mount_whose_state_is_gone(work):
    path = mount(make_archive(work), "--at", work / "at")
    pid = life.daemon_of(path)
    harness.shutil.rmtree(life.folder())
    os.kill(pid, signal.SIGTERM)
    life.wait_gone(pid)
    check_nothing_left()


def test_a_mount_that_is_asked_to_end_is_not_shared(work):
    archive = make_archive(work)
    path = mount(archive)
    pid = life.daemon_of(path)
    with life.opened(f"{path}/readme"):
        os.kill(pid, signal.SIGTERM)
        wait_for(lambda: mounted_state(path) == "draining", "the mount to drain")
        other = mount(archive)
        check(other != path, "a mount that ends is shared")
        check_equal(read(f"{other}/readme"), b"hello\n", "a file")
    life.wait_gone(pid)
    check_equal(mountpoints(work.path), [other], "mounts")
    umount(other)
    check_nothing_left()


def test_signals_of_batch_systems_do_not_end_it(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTSTP, signal.SIGCONT,
                   signal.SIGPIPE, signal.SIGQUIT, signal.SIGALRM, signal.SIGBUS,
                   signal.SIGXCPU, signal.SIGXFSZ):
        os.kill(pid, number)
    time.sleep(0.2)
    check_equal(read(f"{path}/sub/0001"), b"0001" * 500, "a file")
    umount(path)
    check_nothing_left()


# ---- owner ----

def test_a_mount_ends_with_its_owner(work):
    archive = make_archive(work)
    with life.process("sleep", "60") as owner:
        path = mount(archive, "--owner", str(owner.pid))
        pid = life.daemon_of(path)
        time.sleep(0.5)
        check_equal(mountpoints(work.path), [path], "mounts while the owner lives")
        owner.kill()  # and it stays a zombie for a while
        life.wait_gone(pid)
    check_nothing_left()


@not_starved
def test_after_its_owner_s_end_a_user_has_ten_seconds_and_open_files_longer(work):
    archive = make_archive(work)
    with life.process("sleep", "60") as owner:
        path = mount(archive, "--owner", str(owner.pid))
        pid = life.daemon_of(path)
        with life.opened(f"{path}/sub/0005") as fd:
            with Clock() as clock:
                owner.kill()
                time.sleep(4)
                mounts = mountpoints(work.path)
            if not mounts and clock.seconds > 9:
                raise Starved(f"four seconds took {clock.seconds:.1f}")
            check_equal(mounts, [path], "mounts after four seconds")
            wait_for(lambda: not mountpoints(work.path), "the mount to leave the tree")
            check_equal(os.read(fd, 4), b"0005", "bytes of an open file")
    life.wait_gone(pid)
    check_nothing_left()


# ---- idle ----

def mount_and_look(archive, idle):
    """Its path, and its daemon if it is still there."""
    path = mount(archive, "--idle", str(idle))
    state = onepot("stat", "--json", path, status=None).stdout
    return path, harness.json.loads(state)["daemon_pid"] if state else None


def mount_that_idles(archive, idle=1):
    """For so many seconds, or two, at most; its path and its daemon."""
    with Clock() as clock:
        path, daemon = mount_and_look(archive, idle)
    if not daemon or clock.seconds > max(idle, QUIET) - STARVED_SECONDS:
        raise Starved(f"it took {clock.seconds:.1f} s to mount, and to ask for it")
    return path, daemon


@not_starved
def test_an_idle_mount_ends(work):
    archive = make_archive(work)
    with Clock() as clock:
        path, pid = mount_that_idles(archive)
        life.wait_gone(pid)
    check(clock.seconds > QUIET, f"{path} ended after {clock.seconds} s")
    check_nothing_left()


@not_starved
def test_idle_is_not_what_a_reader_of_cached_files_is(work):
    path, pid = mount_that_idles(make_archive(work))
    with CachedReader(path):
        time.sleep(7)
        check_equal(mountpoints(work.path), [path], "mounts, while somebody reads")
    life.wait_gone(pid)
    check_nothing_left()


@not_starved
def test_idle_is_not_where_something_is_open(work):
    path, _ = mount_that_idles(make_archive(work))
    with life.opened(f"{path}/sub"):
        time.sleep(4)
        check_equal(mountpoints(work.path), [path], "mounts, while a directory is open")
    umount(path)
    check_nothing_left()


@not_starved
def test_who_shares_an_idle_mount_finds_it_there(work):
    archive = make_archive(work)
    first = mount_that_idles(archive, 3)
    for _ in range(4):
        with Clock() as clock:
            time.sleep(1.5)
            found = mount_and_look(archive, 3)
        if found != first and clock.seconds > 1.5 + STARVED_SECONDS:
            raise Starved(f"it took {clock.seconds:.1f} s to share the mount")
        check_equal(found, first, "the path, and the daemon")
        check_equal(len(mountpoints(work.path)), 1, "mounts")
    life.wait_gone(first[1])
    check_nothing_left()


def test_an_idle_limit_does_not_end_the_mount_of_a_run(work):
    archive = make_archive(work)
    done = onepot("run", "--idle", "1", archive, "--", "sh", "-c", "sleep 4; cat {}/readme")
    check_equal(done.stdout, b"hello\n", "a file after a long silence")
    check_nothing_left()


# ---- foreground ----

def test_in_the_foreground_it_serves_until_it_is_unmounted(work):
    archive = make_archive(work)
    with life.background("mount", "-f", archive) as server:
        path = life.first_line(server)
        check_equal(life.daemon_of(path), server.pid, "the daemon")
        check_equal(read(f"{path}/readme"), b"hello\n", "a file")
        umount(path)
        status, _, errors = ended(server)
    check_equal(status, 0, f"its status ({errors!r})")
    check("1 file" in errors, f"its last line: {errors!r}")
    check_nothing_left()


def test_in_the_foreground_term_interrupt_and_hangup_end_it(work):
    archive = make_archive(work)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with life.background("mount", "-f", archive) as server:
            life.first_line(server)
            server.send_signal(number)
            check_equal(ended(server)[0], 0, f"the status after signal {number}")
        check_nothing_left(f"signal {number}")


def test_a_second_interrupt_is_less_patient_and_a_third_not_at_all(work):
    archive = make_archive(work)
    with life.background("mount", "-f", archive) as server:
        path = life.first_line(server)
        with life.opened(f"{path}/sub/0004") as fd:
            server.send_signal(signal.SIGINT)
            time.sleep(3)
            check_equal(mountpoints(work.path), [path], "mounts after one interrupt")
            server.send_signal(signal.SIGINT)
            wait_for(lambda: not mountpoints(work.path), "the mount to leave the tree")
            check_equal(os.read(fd, 4), b"0004", "bytes of an open file")
            check(server.poll() is None, "it has left its reader")
            server.send_signal(signal.SIGINT)
            check_equal(ended(server)[0], 0, "its status")
    check_nothing_left()


def test_two_in_the_foreground_do_not_share(work):
    archive = make_archive(work)
    with life.background("mount", "-f", archive) as one, \
            life.background("mount", "-f", archive) as two:
        paths = [life.first_line(one), life.first_line(two)]
        check(paths[0] != paths[1], "they share")
        umount(paths[0])
        check_equal(read(f"{paths[1]}/readme"), b"hello\n", "a file")
        umount(paths[1])
        check_equal([ended(one)[0], ended(two)[0]], [0, 0], "their statuses")
    check_nothing_left()


# ---- killed ----

def test_readers_of_a_killed_daemon_get_an_error_and_the_next_mount_heals(work):
    archive = make_archive(work)
    path = mount(archive)
    pid = life.daemon_of(path)
    code = ("import os, sys, random\nnames = os.listdir(sys.argv[1])\nprint('ready', flush=True)\n"
            "while True:\n"
            "    fd = os.open(sys.argv[1] + '/' + random.choice(names), os.O_RDONLY)\n"
            "    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)\n"
            "    os.read(fd, 4096)\n    os.close(fd)\n")
    with life.process(sys.executable, "-c", code, f"{path}/sub") as reader:
        check_equal(life.first_line(reader), "ready", "the reader")
        time.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        status, _, errors = ended(reader)
    check(status == 1 and "Error: [Errno" in errors, f"the reader: status {status}, {errors!r}")
    check_equal(mount(archive), path, "the path of the next mount")
    check_equal(len(mountpoints(work.path)), 1, "number of mounts")
    check_equal(read(f"{path}/readme"), b"hello\n", "a file")
    umount(path)
    check_nothing_left()


def test_kills_at_random_moments_leave_nothing_that_is_not_healed(work):
    archive = make_archive(work)
    rng = random.Random(5)
    # A leak check that its process is killed in has something to say of that.
    env = environment()
    env["ASAN_OPTIONS"] = env.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    for i in range(40):
        words = rng.choice((["mount", archive], ["run", archive, "--", "cat", "{}/readme"],
                            ["umount", "--all"]))
        with life.background(*words, env=env) as p:
            time.sleep(rng.random() * 0.04)
            p.kill()
        if i % 3 == 0:
            for path in mountpoints(work.path):
                done = onepot("stat", "--json", path, status=None)
                pid = harness.json.loads(done.stdout)["daemon_pid"] if done.stdout else 0
                if pid:
                    life.kill(pid)
    path = mount(archive)
    check_equal(read(f"{path}/readme"), b"hello\n", "a file")
    onepot("umount", "--all")
    # A daemon whose starter was killed before it told of the mount ends by itself.
    check_nothing_left("the kills")


def test_a_mount_at_the_place_of_one_that_dies_waits_for_it(work):
    """A killed daemon holds its lock until the last of its threads is gone."""
    archives = [make_archive(work), make_archive(work, "other.tar")]
    for i in range(50):
        path = mount(archives[i // 2 % 2], "--at", work / "at", "--threads", str(1 + i % 2))
        pid = life.daemon_of(path)
        for name in os.listdir(f"{path}/sub"):
            read(f"{path}/sub/{name}")
        os.kill(pid, signal.SIGKILL)
    check_equal(read(mount(archives[0], "--at", work / "at") + "/readme"), b"hello\n", "a file")
    check_equal(len(mountpoints(work.path)), 1, "number of mounts")
    umount(work / "at")
    check_nothing_left()


# ---- log, lost pages ----

def test_the_next_mount_has_the_path_of_one_that_dies(work):
    """Whatever its options are, and however soon it comes."""
    archive = make_archive(work)
    path = mount(archive)
    for i in range(20):
        os.kill(life.daemon_of(path), signal.SIGKILL)
        check_equal(mount(archive, "--cache", f"{17 + i}M"), path, f"the path of mount {i}")
        check_equal(mountpoints(work.path), [path], "mounts")
        check_equal(read(f"{path}/readme"), b"hello\n", "a file")
    onepot("umount", path)
    check_nothing_left()


def test_the_log_tells_of_the_beginning_and_the_end(work):
    archive, log = make_archive(work), work / "log"
    path = mount(archive, "--log", "log", cwd=work.path)
    pid = life.daemon_of(path)
    read(f"{path}/readme")
    os.kill(pid, signal.SIGTERM)
    life.wait_gone(pid)
    lines = read(log).decode().splitlines()
    check(all(f"onepot[{pid}]: " in line and "data.tar" in line for line in lines),
          f"the log: {lines}")
    check("asked to end" in lines[0] and "1 file" in lines[-1], f"the log: {lines}")
    check_nothing_left()


def test_a_line_of_the_log_stays_one_whatever_the_archive_is_called(work):
    archive = make_archive(work, "new\nline\x1b[2J.tar")
    path = mount(archive, "--log", work / "log")
    pid = life.daemon_of(path)
    read(f"{path}/readme")
    shown = onepot("stat").stdout
    check(b"new\\x0aline\\x1b[2J.tar" in shown and b"\x1b" not in shown, f"what stat shows: {shown}")
    umount(archive)
    life.wait_gone(pid)
    lines = read(work / "log").splitlines()
    check(len(lines) == 1 and b"new\\x0aline\\x1b[2J.tar" in lines[0], f"the log: {lines}")
    check_nothing_left()


def test_an_index_that_is_cut_short_does_not_kill_the_daemon(work):
    archive = make_archive(work, files=3000)
    onepot("index", archive)
    index = archive + ".onepot-index"
    if not os.path.exists(index):
        raise Skip("the index was not saved beside the archive")
    path = mount(archive, "--log", work / "log")
    pid = life.daemon_of(path)
    check_equal(read(f"{path}/readme"), b"hello\n", "a file")
    before = events_of(pid)
    os.truncate(index, 0)
    errors = 0
    for i in range(3000):
        try:
            read(f"{path}/sub/{i:04}")
        except OSError:
            errors += 1
    check(errors > 0, "no read failed: is the index mapped at all?")
    check(not life.is_gone(pid), "the daemon has died")
    wait_for(lambda: b"cut short" in read(work / "log"), "a line in the log")
    check(life.mounted(path)["last_error"], "stat shows no error")
    wait_for(lambda: events_of(pid) <= before, "the daemon to rest: an event is still there")
    umount(path)
    check_nothing_left()


def test_want_of_memory_or_descriptors_leaves_nothing(work):
    archive = make_archive(work)
    failures = 0
    limits = [(resource.RLIMIT_NOFILE, range(4, 30))]
    if not life.is_sanitized():  # which needs terabytes
        limits.append((resource.RLIMIT_AS, [n << 20 for n in range(16, 129, 8)]))
    for limit, values in limits:
        for value in values:
            done = onepot("mount", archive, status=None,
                          preexec_fn=lambda: resource.setrlimit(limit, (value, value)))
            if done.returncode == 0:
                umount("--all")
            failures += done.returncode != 0
            check(done.returncode in (0, 1, 127), f"status {done.returncode}: {life.said(done)!r}")
            # A directory may stay where the folder could not be read, and so nobody knew whether another mount
            # is there. The next start removes it.
            wait_for(lambda: not [name for name in life.slots() if name.endswith((".stat", ".lock"))],
                     f"the state to go after limit {limit} of {value}: {life.said(done)!r}")
            check_equal(mountpoints(work.path), [], "mounts")
    umount(mount(archive))
    check_nothing_left()
    check(failures > 5, f"only {failures} starts failed")


def test_a_limit_on_the_sizes_of_files_is_told(work):
    archive = make_archive(work)
    life.fails("mount", archive, words=["File too large"], preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (0, 0)))
    check_nothing_left()


def test_an_archive_larger_than_the_address_space_is_read(work):
    if life.is_sanitized():
        raise Skip("a sanitizer needs terabytes of addresses")
    size = 256 << 20
    with open(work / "large.tar", "wb") as f:
        f.write(harness.run("tar", "-cf", "-", "-C", make_large(work, size), "large").stdout[:512])
        f.truncate(512 + size + 10240)
    path = mount(work / "large.tar", preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_AS, (200 << 20, 200 << 20)))
    with open(f"{path}/large", "rb") as f:
        while piece := f.read(1 << 20):
            check(not any(piece[::4096]), "other bytes")
            size -= len(piece)
    check_equal(size, 0, "bytes that are missing")
    check_equal(life.mounted(path)["errors"], 0, "errors")
    umount(path)
    check_nothing_left()


def make_large(work, size):
    source = work.make("source")
    with open(os.path.join(source, "large"), "wb") as f:
        f.truncate(size)
    return source


def test_an_idle_mount_takes_no_time(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    read(f"{path}/readme")
    time.sleep(3)
    before = cpu_and_switches(pid)
    for _ in range(5):  # it comes late to its rest where others use the machine
        time.sleep(3)
        after = cpu_and_switches(pid)
        ticks, woke = after[0] - before[0], after[1] - before[1]
        # Of three times a few microseconds, one may be the last of a tick.
        if ticks <= 1 and woke <= 3:
            break
        before = after
    else:
        raise harness.Failure(f"{ticks} ticks in three seconds without use, it woke {woke} times")
    umount(path)
    check_nothing_left()


def events_of(pid):
    """Of how many events the process was told that it has not taken."""
    folder = f"/proc/{pid}/fdinfo"
    texts = []
    for fd in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            texts.append(read(f"{folder}/{fd}").decode())
    counts = [line.split()[1] for text in texts for line in text.splitlines()
              if line.startswith("eventfd-count:")]
    return sum(int(count, 16) > 0 for count in counts)


def cpu_and_switches(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    switches = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        status = life.thread_status(pid, task)
        switches += int(status["voluntary_ctxt_switches"]) if status else 0
    return int(fields[11]) + int(fields[12]), switches


if __name__ == "__main__":
    harness.main(globals())

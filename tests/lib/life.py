"""What the tests of the life cycle share: an archive, slots, daemons, processes."""

import contextlib
import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import time

import harness
from harness import (Failure, Skip, check, check_equal, environment, need_program, need_root, onepot,
                     run, wait_for)

FILES = 50


def make_archive(work, name="data.tar", files=FILES):
    """A tar of small files, and the directory that it was made of."""
    need_program("tar")
    source = work / "source"
    if not os.path.isdir(source):
        os.makedirs(os.path.join(source, "sub"))
        for i in range(files):
            write(os.path.join(source, "sub", f"{i:04}"), b"%04d" % i * 500)
        write(os.path.join(source, "readme"), b"hello\n")
    archive = work / name
    run("tar", "--format=pax", "-cf", archive, "-C", source, ".")
    return archive


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    with open(path, "rb") as f:
        return f.read()


def is_sanitized():
    """One whose shadow memory takes terabytes of addresses."""
    program = read(harness.onepot_program())
    return b"__asan_init" in program or b"__tsan_init" in program


def runtime():
    return os.path.join(os.environ[harness.MARK], ".home", "run")


def folder(uid=None):
    return os.path.join(runtime(), f"onepot-{os.geteuid() if uid is None else uid}")


def slots():
    """What is left in the folder of slots, which itself stays with its lock. Not the claims to the
    job's memory, one of each process that is there."""
    try:
        return sorted(name for name in os.listdir(folder())
                      if ".cache-" not in name and name != "lock")
    except FileNotFoundError:
        return []


def check_nothing_left(what="the end", seconds=60):
    wait_for(lambda: slots() == [], lambda: f"the state to go after {what}: {slots()}", seconds)
    check_equal(harness.mountpoints(os.environ[harness.MARK]), [], f"mounts after {what}")


def check_no_state_of(uid):
    """The folder stays, so that nobody else has its name; `onepot clean` removes it."""
    wait_for(lambda: os.listdir(folder(uid)) == ["lock"], "the user's state to go")


def wait_away(uid):
    """Until no process of the user is left: a daemon ends a moment after its mount."""
    def here():
        return run("ps", "-U", str(uid), "-o", "pid=", status=None).stdout.strip()
    wait_for(lambda: not here(), "the user's processes to go")


def check_no_folder_of(uid):
    check(not os.path.lexists(folder(uid)), f"the folder is left: {os.listdir(os.path.dirname(folder(uid)))}")


def mount(*arguments, **options):
    """onepot mount; its path."""
    return os.fsdecode(onepot("mount", *arguments, **options).stdout).rstrip("\n")


def umount(*arguments, **options):
    return onepot("umount", *arguments, **options)


def said(done):
    return done.stderr.decode(errors="replace")


def fails(*arguments, status=1, words=(), **options):
    """A command that must fail, with one line of error that has these words."""
    done = onepot(*arguments, status=status, **options)
    for word in words:
        check(word in said(done), f"{arguments} says {said(done)!r}, without {word!r}")
    check_equal(said(done).count("\n"), 1, f"lines of {said(done)!r}")
    return done


def mounted(path, **options):
    """What `onepot stat` knows of a mount."""
    return json.loads(onepot("stat", "--json", path, **options).stdout)


def mount_device(at):
    """What a container runtime does: mount, and hand the open device over."""
    need_root("mount(2)")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
    if libc.mount(b"container", os.fsencode(at), b"fuse", 1, options.encode()) != 0:
        raise Skip(f"mount(2): {os.strerror(ctypes.get_errno())}")
    return fd


def daemon_of(path, **options):
    return mounted(path, **options)["daemon_pid"]


def thread_state(pid, thread):
    """As in ps: R, S, T, Z...; None if it is gone."""
    status = thread_status(pid, thread)
    return status["State"][0] if status else None


def thread_status(pid, thread):
    """The fields of its status; None if it is gone."""
    try:
        lines = read(f"/proc/{pid}/task/{thread}/status").decode(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def process_state(pid):
    """As in ps: R, S, T, Z...; None if it is gone."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0].decode()
    except (FileNotFoundError, ProcessLookupError):
        return None


def children_of(pid):
    """Those that its first thread has started; none if it is gone."""
    try:
        return [int(child) for child in read(f"/proc/{pid}/task/{pid}/children").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def waits_for_a_daemon(pid):
    """Is a process in a request of FUSE? Where the kernel does not say, it probably is by now."""
    if process_state(pid) not in ("S", "D"):
        return False
    where = read(f"/proc/{pid}/wchan")
    if where in (b"", b"0"):
        time.sleep(0.5)
        return True
    return b"fuse" in where or b"request_wait" in where


def is_gone(pid):
    """Also its last thread: until then it holds its locks, though its first is a zombie."""
    try:
        threads = len(os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError):
        threads = 0
    return process_state(pid) in (None, "Z", "X") and threads <= 1


def wait_gone(pid, seconds=60):
    wait_for(lambda: is_gone(pid), f"process {pid} to end", seconds)


def kill(pid):
    """One that may end by itself just now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def processes_named(name):
    """Processes of the test; others of it may end meanwhile."""
    found = []
    for pid in harness.marked_processes(os.environ[harness.MARK]):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [pid] if read(f"/proc/{pid}/comm") == name.encode() + b"\n" else []
    return found


def kill_left_behind(name, at_least=0):
    """By its name, which a process may give itself only a moment after its starter goes on."""
    wait_for(lambda: len(processes_named(name)) >= at_least, f"{at_least} processes '{name}'")
    for pid in processes_named(name):
        kill(pid)


@contextlib.contextmanager
def process(*command, env=None, **options):
    """A process in the background, ended at the end whatever happens."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    p = subprocess.Popen(command, env=env or environment(), **options)
    try:
        yield p
    finally:
        if p.poll() is None:
            p.kill()
            p.send_signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            p.communicate(timeout=20)


def background(*arguments, **options):
    """A onepot command in the background."""
    return process(harness.onepot_program(), *arguments, **options)


def ended(p, seconds=90):
    """(status, output, errors) of a process that ends by itself."""
    try:
        out, err = p.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise Failure(f"{p.args} has not ended after {seconds} s") from None
    return p.returncode, out or b"", (err or b"").decode(errors="replace")


def first_line(p):
    line = p.stdout.readline()
    if not line.endswith(b"\n"):
        p.wait(60)
        raise Failure(f"{p.args} said {line!r} and ended with {p.returncode}: "
                      f"{p.stderr.read().decode(errors='replace')}")
    return os.fsdecode(line[:-1])


@contextlib.contextmanager
def opened(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


class Starved(Exception):
    """The machine let a reader wait for so long that the daemon had to take it for gone."""


STARVED_SECONDS = 0.5  # of the second that is left between a reader's requests and that


def not_starved(test):
    """Decorator: where the machine starved it, a test is done once more."""
    @functools.wraps(test)
    def repeated(work):
        for _ in range(6):
            try:
                return test(work)
            except Starved as starved:
                print(f"once more: {starved}", flush=True)
                onepot("umount", "--all", "--lazy", status=None)
        raise Failure("it was starved each time, or the mount makes its readers wait")
    return repeated


class Clock:
    """How long something took."""

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, *unused):
        self.seconds = time.monotonic() - self.start


def forget(path):
    """Have the kernel drop what it cached of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    # Stopped when the last of its threads is.
    wait_for(lambda: all(thread_state(pid, t) == "T" for t in
                                 os.listdir(f"/proc/{pid}/task")), "the server to stop")


def make_root(work, *programs):
    """A tree that a container can have for its root, with a few of this machine's programs."""
    root = work / "root"
    for name in ("bin", "dev", "etc", "home", "mnt/0", "proc", "sys", "tmp", "usr/bin"):
        os.makedirs(f"{root}/{name}")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        write(f"{root}/etc/{name}", b"")
    for program in programs:
        path = shutil.which(program)
        shutil.copy(path, f"{root}/bin/{program}")
        for word in run("ldd", path).stdout.split():
            if word.startswith(b"/"):
                os.makedirs(root + os.path.dirname(os.fsdecode(word)), exist_ok=True)
                shutil.copy(word, os.fsencode(root) + word)
    return root

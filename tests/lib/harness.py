"""Runs the tests of one script, each in a child process and a private directory.

A script defines functions named test_*, each taking a Work, and ends with

    if __name__ == "__main__":
        harness.main(globals())

The child may hang in a read that a broken daemon never answers, so the parent only
waits: for the end of the test or its time-out. Then it cleans up whatever the test
left, and what it had to clean up is a failure too: mounts below the private directory
(detached) and processes that carry its mark in their environment (SIGKILL).

If the parent itself is killed, its child ends with it, and the next parent cleans up the rest:
a directory whose lock nobody holds.

The program under test is $ONEPOT. Exit status: 0, 1 for a failure, 77 if every test was
skipped; each skip prints its reason. Names of tests as arguments run those alone.
"""

import contextlib
import ctypes
import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

SKIPPED = 77
MARK = "ONEPOT_TEST_DIRECTORY"
PREFIX = "onepot-mount-test-"


class Skip(Exception):
    """Why a test can't be run here."""


class Failure(Exception):
    """What is not as it should be."""


def check(condition, message):
    if not condition:
        raise Failure(message)


def check_equal(found, expected, what):
    if found != expected:
        raise Failure(f"{what}: {shorten(found)}, and should be {shorten(expected)}")


def shorten(value, limit=600):
    text = repr(value)
    return text if len(text) <= limit else text[:limit] + "..."


def need_program(*names):
    for name in names:
        if shutil.which(name) is None:
            raise Skip(f"there is no program '{name}'")


def need_root(why):
    if os.geteuid() != 0:
        raise Skip(f"only root may {why}")


def need_users():
    """fusermount3 serves only users who have a name."""
    if not os.path.exists("/etc/passwd"):
        raise Skip("there is no /etc/passwd")


def onepot_program():
    program = os.environ.get("ONEPOT")
    if not program:
        sys.exit("ONEPOT must name the program to test; 'meson test' sets it")
    return os.path.abspath(program)


def is_reachable(path):
    """May every user run it?"""
    if os.stat(path).st_mode & 0o005 != 0o005:
        return False
    folder = os.path.dirname(os.path.realpath(path))
    while os.stat(folder).st_mode & 0o001 and folder != "/":
        folder = os.path.dirname(folder)
    return folder == "/"


@contextlib.contextmanager
def program_for_others():
    """While it lasts, $ONEPOT is a program that root's tests can also run as another user: a copy,
    if others can't reach the original, for the clone may lie in root's home."""
    original = onepot_program()
    if os.geteuid() != 0 or is_reachable(original):
        yield original
        return
    folder = tempfile.mkdtemp(prefix=PREFIX)
    held = lock(folder)
    os.chmod(folder, 0o755)
    os.environ["ONEPOT"] = shutil.copy(original, folder)
    os.chmod(os.environ["ONEPOT"], 0o755)
    try:
        yield os.environ["ONEPOT"]
    finally:
        os.environ["ONEPOT"] = original
        shutil.rmtree(folder)
        os.close(held)


def need_command(*names):
    """Skip where the program was built without a command (no FUSE, say)."""
    for name in names:
        if onepot(name, "--help", status=None).returncode != 0:
            raise Skip(f"this onepot was built without '{name}'")


def environment(**changes):
    """What commands get: nothing of a job that the tests may run in."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(("SLURM_", "ONEPOT_")) or k == MARK}
    kept.update(LC_ALL="C.UTF-8", TZ="UTC")
    directory = os.environ.get(MARK)
    if directory:
        for variable, name in (("ONEPOT_RUNTIME_DIR", "run"), ("XDG_CACHE_HOME", "cache"),
                               ("TMPDIR", "tmp")):
            kept[variable] = os.path.join(directory, ".home", name)
        # Of a daemon nobody sees the standard error.
        for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
            log = "log_path=" + os.path.join(directory, ".home", "sanitizer")
            kept[variable] = ":".join(filter(None, [kept.get(variable), log]))
    kept.update({k: v for k, v in changes.items() if v is not None})
    for name in (k for k, v in changes.items() if v is None):
        kept.pop(name, None)
    return kept


def run(*command, status=0, timeout=240, env=None, **options):
    """subprocess.run with our defaults: output captured as bytes, a checked status."""
    options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    done = subprocess.run(command, env=env or environment(), timeout=timeout, check=False,
                          **options)
    if status is not None and done.returncode != status:
        said = (done.stderr or done.stdout or b"")[-2000:].decode(errors="replace")
        raise Failure(f"{shorten(list(command))} ended with {done.returncode}, "
                      f"and should with {status}: {said}")
    return done


def onepot(*arguments, **options):
    return run(onepot_program(), *arguments, **options)


def counting(work, *command):
    """A command under `run` that also leaves the mount's report, for directly_read."""
    return ["sh", "-c", '"$@"; status=$?; cat "$ONEPOT_MOUNT/.onepot/stat.json" >"$0" 2>/dev/null; exit $status',
            work / "stat.json", *command]


def directly_read(work, what="files"):
    """How many files the last of these read without the mount's daemon, or "bytes"."""
    with open(work / "stat.json", encoding="utf-8") as f:
        return json.load(f)[f"direct_{what}"]


def said_of_each(work, archives, *command, at_once=40):
    """(what, the line that says why it is refused) of each of many (what, bytes of an archive).
    Several at a time are given to the command, as to start it for each takes long."""
    archives = list(archives)
    for i in range(0, len(archives), at_once):
        some = {os.fsencode(work / f"refused-{i + k}.archive"): data
                for k, (_, data) in enumerate(archives[i:i + at_once])}
        for path, data in some.items():
            with open(path, "wb") as f:
                f.write(data)
        lines = onepot(*(command or ("ls",)), *some, status=1).stderr.split(b"\n")[:-1]
        check_equal(len(lines), len(some), f"lines that refuse {len(some)} archives: {lines}")
        for (what, _), path, line in zip(archives[i:i + at_once], some, lines):
            check(line.startswith(b"onepot: %s: " % path), f"{what}: {line!r}")
            yield what, line
        for path in some:
            os.unlink(path)


def unescape(text):
    """A field of mountinfo: octal escapes for blanks and backslashes."""
    raw = os.fsencode(text)
    out = bytearray()
    i = 0
    while i < len(raw):
        if raw[i:i + 1] == b"\\" and raw[i + 1:i + 4].isdigit():
            out.append(int(raw[i + 1:i + 4], 8))
            i += 4
        else:
            out.append(raw[i])
            i += 1
    return os.fsdecode(bytes(out))


def remove(path):
    """A file that may be there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def mountpoints(below="/"):
    """Mount points at or below a directory, the newest first."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        points = [unescape(line.split(" ")[4]) for line in f]
    below = os.path.realpath(below).rstrip("/")
    return [p for p in reversed(points) if p == below or p.startswith(below + "/")]


def wait_for(condition, what, seconds=60):
    """How long is a matter of the machine, and of who else uses it; a promise of the program
    to be done by then is another thing. `what` may be a function: a look then costs nothing before."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise Failure(f"waited {seconds} s in vain for {what() if callable(what) else what}")
        time.sleep(0.02)


def unmount(at):
    """By what users have for it. Whoever looks at all processes' files, as another suite's `onepot
    umount`, may have it open for a moment."""
    command = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    wait_for(lambda: run(*command, at, status=None).returncode == 0, f"the unmount of {at}")


def in_thread(function, *arguments, seconds=60):
    """Start it; what is returned waits for its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*arguments)), daemon=True)
    thread.start()

    def result():
        thread.join(seconds)
        check(results, f"not done after {seconds} s: {function.__name__}{shorten(arguments)}")
        return results[0]

    return result


def in_threads(jobs):
    """Run each in a thread; the first failure is raised when all have ended."""
    failed = []

    def guard(job):
        try:
            job()
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)

    threads = [threading.Thread(target=guard, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


class Mount:
    """A mount of onepot, as a context: mounted on entry, unmounted on exit."""

    def __init__(self, work, *arguments, env=None, name="mnt"):
        self.work = work
        self.arguments = arguments
        self.env = env or environment()
        self.path = os.path.join(work.path, name)
        self.notes = ""
        self.mounted = False

    def __enter__(self):
        os.makedirs(self.path, exist_ok=True)
        done = onepot("mount", *self.arguments, "--at", self.path, env=self.env)
        self.notes = done.stderr.decode(errors="replace")
        check_equal(done.stdout, os.fsencode(self.path) + b"\n", "what mount prints")
        self.mounted = True
        check(mountpoints(self.path), f"{self.path} is no mount point")
        return self

    def __exit__(self, kind, value, trace):
        if kind is None and self.mounted:
            self.end()
        elif mountpoints(self.path):
            onepot("umount", self.path, env=self.env, status=None)
            if mountpoints(self.path):
                detach(self.path)

    def end(self, **options):
        """Unmount; done on exit, too, if nobody did before."""
        self.mounted = False
        onepot("umount", self.path, env=self.env, **options)
        check_equal(mountpoints(self.path), [], "mount points after umount")

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def stat(self):
        return json.loads(onepot("stat", "--json", self.path, env=self.env).stdout)


class Counter:
    """What the kernel asked a mount for since the last look, by kind of request."""

    UNASKED = {"FORGET", "BATCH_FORGET", "INIT", "INTERRUPT", "DESTROY"}

    def __init__(self, mount):
        self.mount = mount
        self.last = self.settled()

    def settled(self):
        """A reader may be a moment ahead of the count of what it read."""
        counts = self.mount.stat()["requests"]
        while True:
            time.sleep(0.05)
            again = self.mount.stat()["requests"]
            if again == counts:
                return {k: v for k, v in counts.items() if k not in self.UNASKED}
            counts = again

    def asked(self):
        now = self.settled()
        since = {k: v - self.last.get(k, 0) for k, v in now.items() if v != self.last.get(k, 0)}
        self.last = now
        return since


class Work:
    """A test's private directory and what it may do there."""

    def __init__(self, path, kept=None):
        self.path = path
        self.kept = kept

    def made_once(self, name, make):
        """A link to a file that the first test of the script made, by make(path); a test that changes it
        changes it for all."""
        path = os.path.join(self.kept, name)
        if not os.path.exists(path):
            make(path + ".part")
            os.rename(path + ".part", path)
        if not os.path.exists(self / name):
            os.link(path, self / name)
        return self / name

    def __truediv__(self, name):
        return os.path.join(self.path, name)

    def make(self, name):
        """A new directory here."""
        path = self / name
        os.mkdir(path)
        return path

    def mount(self, *arguments, **options):
        return Mount(self, *arguments, **options)

    @contextlib.contextmanager
    def kernel_mount(self, kind, source, name, *options):
        """A mount by mount(8), root only. What the kernel lacks is a skip."""
        need_root("mount")
        path = self.make(name)
        done = run("mount", "-t", kind, *options, source, path, status=None)
        if done.returncode != 0:
            raise Skip(f"this kernel does not mount {kind}: {done.stderr.decode().strip()}")
        try:
            yield path
        finally:
            if mountpoints(path):  # a test may have unmounted it
                unmount(path)


# ---- the parent: one child a test, and nothing left behind ----

def marked_processes(directory):
    """PIDs of processes, other than this one, whose environment names the directory."""
    mark = os.fsencode(f"{MARK}={directory}")
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark not in f.read().split(b"\0"):
                    continue
            with open(f"/proc/{pid}/stat", "rb") as f:
                dead = f.read().rpartition(b")")[2].split()[0] in b"ZX"
        except OSError:
            continue
        if not dead:
            found.append(int(pid))
    return found


def clean_up(directory):
    """Remove all that lies or runs in a test's directory; what must not have been left."""
    left = []
    # A daemon ends a moment after its mount.
    end = time.monotonic() + 30
    while not mountpoints(directory) and marked_processes(directory):
        if time.monotonic() > end:
            break
        time.sleep(0.02)
    left += [f"mount {path}" for path in mountpoints(directory)]
    # Processes first: nothing can hang on a daemon that is dead, not even umount.
    for pid in marked_processes(directory):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                command = f.read().replace(b"\0", b" ").decode(errors="replace").strip()
            os.kill(pid, signal.SIGKILL)
            left.append(f"process {pid} ({command})")
    for path in mountpoints(directory):
        detach(path)
    left += sanitizer_reports(directory)
    if mountpoints(directory):
        left.append("mounts that can't be removed; the directory stays")
    else:
        make_removable(directory)
        shutil.rmtree(directory, ignore_errors=True)
        if os.path.lexists(directory):
            # Trees deeper than paths are long.
            subprocess.run(["rm", "-rf", directory], stderr=subprocess.DEVNULL, check=False)
    return left


def sanitizer_reports(directory):
    """What a program that was built with sanitizers had to say."""
    reports = []
    home = os.path.join(directory, ".home")
    for name in sorted(os.listdir(home)) if os.path.isdir(home) else []:
        if name.startswith("sanitizer."):
            with open(os.path.join(home, name), encoding="utf-8", errors="replace") as f:
                reports.append(f"a sanitizer's report:\n{f.read(6000)}\n")
    return reports


def detach(path):
    """Unmount lazily, without a look at what is mounted there."""
    mnt_detach, umount_nofollow = 2, 8
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(path), mnt_detach | umount_nofollow) != 0:
        subprocess.run(["fusermount3", "-uz", path], stderr=subprocess.DEVNULL, check=False)


def make_removable(directory):
    """Directories without permissions, in a test that is not root's."""
    if os.geteuid() != 0:
        subprocess.run(["chmod", "-R", "u+rwX", directory], stderr=subprocess.DEVNULL, check=False)


def lock(directory):
    """A descriptor that holds it, or None: somebody else does, or it is gone."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def place(in_memory=False):
    """Where private directories lie. The library of an ordinary user is a copy that no other user
    could replace, so not below /tmp; root's has a folder of the system. Tests that ask for memory
    have no use for the library."""
    if in_memory and (folder := os.environ.get("ONEPOT_TESTS_MEMORY")):
        return folder
    if os.geteuid() == 0:
        return tempfile.gettempdir()
    folder = os.path.expanduser("~/.cache/onepot-tests")
    os.makedirs(folder, exist_ok=True)
    return folder


def clean_up_after_the_killed():
    """Directories of parents that are no more; a new one may not be locked yet."""
    for directory in glob.glob(os.path.join(place(), PREFIX + "*")):
        with contextlib.suppress(OSError):
            info = os.lstat(directory)
            if info.st_uid != os.geteuid() or time.time() - info.st_ctime < 10:
                continue
            fd = lock(directory)
            if fd is not None:
                clean_up(directory)
                os.close(fd)


def child(function, directory, parent, kept):
    """Run one test; the exit status says how it went."""
    status = 1
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(status)
    try:
        os.chdir("/")
        for name in ("run", "cache", "tmp"):
            os.makedirs(os.path.join(directory, ".home", name), mode=0o700)
        function(Work(directory, kept))
        status = 0
    except Skip as skip:
        print(f"skipped: {skip}")
        status = SKIPPED
    except Failure as failure:
        traceback.print_tb(failure.__traceback__, file=sys.stdout)
        print(f"FAILED: {failure}")
    except BaseException:  # a test must not take the parent's way out
        traceback.print_exc(file=sys.stdout)
    sys.stdout.flush()
    os._exit(status)


def wait_child(pid, seconds):
    """The exit status of a child, or None when its time was over."""
    end = time.monotonic() + seconds
    pause = 0.001
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)
    return None


def run_test(name, function, seconds, folder, kept):
    directory = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    held = lock(directory)
    os.environ[MARK] = directory
    print(f"{name} ...", flush=True)
    start = time.monotonic()
    status, left, parent = None, [], os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        child(function, directory, parent, kept)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # whoever of the two comes first
    try:
        status = wait_child(pid, seconds)
    finally:
        # Its group (forked workers, too) ends with it. What waits for a daemon that hangs
        # is freed when the mounts go.
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        left = clean_up(directory)
        if status is None:
            wait_child(pid, 10)
        if held is not None:
            os.close(held)
    took = time.monotonic() - start
    if status is None:
        print(f"FAILED: not done after {seconds} s")
    elif status not in (0, SKIPPED):
        print(f"FAILED with status {status}")
    if left:
        print("FAILED: left behind: " + ", ".join(left))
        status = 1
    print(f"{name}: {'ok' if status == 0 else 'skipped' if status == SKIPPED else 'FAILED'}"
          f" ({took:.1f} s)", flush=True)
    return status


def is_powerless_root():
    """Root of a container that was not given CAP_SYS_ADMIN; to others the helpers apply."""
    cap_sys_admin = 21
    with open("/proc/self/status", encoding="ascii", errors="replace") as f:
        held = [int(line.split()[1], 16) for line in f if line.startswith("CapEff:")]
    return os.geteuid() == 0 and bool(held) and not held[0] >> cap_sys_admin & 1


def isolate():
    """Root: a mount namespace of our own, private. Somebody who copies the one that we
    came from (unshare, a container) would hold on to a mount that we end meanwhile. Users have none:
    what a test of theirs copies is a slave of it (unshare --propagation slave)."""
    new_namespace, recursive, private = 0x20000, 1 << 14, 1 << 18
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0 and libc.unshare(new_namespace) == 0:
        libc.mount(b"none", b"/", None, ctypes.c_ulong(recursive | private), None)


@contextlib.contextmanager
def shared_memory():
    """While it lasts, /dev/shm is one test's: what it holds is all of a user's, and `onepot clean` of
    another suite removes folders. Root has a new one; other users wait for each other."""
    if not os.access("/dev/shm", os.W_OK):
        raise Skip("/dev/shm can't be written to")
    if os.geteuid() == 0:
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "none", "/dev/shm")
        try:
            yield
        finally:
            detach("/dev/shm")
        return
    fd = os.open(os.path.dirname(os.path.abspath(__file__)), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def kept_folder(folder):
    """A directory for what several tests of a script read; it goes with the parent."""
    folder = tempfile.mkdtemp(prefix=PREFIX, dir=folder)
    held = lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        os.close(held)


def need_mounts():
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise Skip("/dev/fuse can't be opened, so nothing can be mounted")
    if is_powerless_root():
        raise Skip("root may not mount here (no CAP_SYS_ADMIN)")


def main(scope, seconds=300, in_memory=False, mounts=True):
    """Run the tests of a script; does not return. in_memory: they need no disk, and run faster
    where run_build gives them a folder in memory. mounts: none of them can go without."""
    onepot_program()
    if mounts:
        try:
            need_mounts()
        except Skip as skip:
            print(f"skipped: {skip}")
            sys.exit(SKIPPED)
    clean_up_after_the_killed()
    isolate()

    def on_signal(number, frame):
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)
    tests = {k: v for k, v in scope.items() if k.startswith("test_")}
    wanted = sys.argv[1:] or list(tests)
    for name in wanted:
        if name not in tests:
            sys.exit(f"there is no test '{name}'; there are: {' '.join(tests)}")
    folder = place(in_memory)
    with program_for_others(), kept_folder(folder) as kept:
        results = [run_test(name, tests[name], getattr(tests[name], "seconds", seconds), folder, kept)
                   for name in wanted]
    if any(r not in (0, SKIPPED) for r in results):
        sys.exit(1)
    sys.exit(SKIPPED if all(r == SKIPPED for r in results) else 0)


def within(seconds):
    """Decorator: a test that may take longer (or must not take as long) as others."""
    def mark(function):
        function.seconds = seconds
        return function
    return mark

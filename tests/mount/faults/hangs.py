"""Storage that never answers, at each moment of each command that reads or writes archives: the
command ends with one line when its time is over, and waits for nobody.

slowfs is the storage. With the first read that it does not answer it stops, so that not even a
signal that kills ends the wait, as on a network filesystem.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import harness
import life
import tree
from harness import Skip, check, check_equal, need_program, need_root, onepot, wait_for
from slow import Slow
from tars import member, write_tar

FILES, FILE_BYTES = 120, 20_000  # slowfs holds a stretch of files of 1 MiB and more
NEVER_FRESH = ("--pages=none", "--entry-timeout=0", "--attr-timeout=0", "--toggle=stall", "--stop")


def make_source(work):
    """packed.tar, whose index is read first, and foreign ones, which are parsed."""
    source, files = work / "source", work / "files"
    shutil.rmtree(source, ignore_errors=True)  # of a try before
    os.mkdir(source)
    os.mkdir(files)
    for i in range(FILES):
        tree.write(os.path.join(files, f"{i:03d}"), tree.content(FILE_BYTES, i))
    onepot("pack", "-q", "-o", os.path.join(source, "packed.tar"), files)
    for name in ("foreign.tar", "other.tar"):
        write_tar(os.path.join(source, name),
                  [member(f"{name}-{i:03d}", tree.content(FILE_BYTES, i)) for i in range(FILES)])
    os.rename(files, os.path.join(source, "files"))
    return source


@contextlib.contextmanager
def going_on(slow):
    """What slowfs was stopped in ends; then it holds again."""
    pid = slow.pid()
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)
        slow.toggle()
    wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [pid],
             "what was left behind to end")
    slow.toggle()


def check_end(started, status, what, children=(), is_left=False):
    """It says what it leaves behind, as it must if one of these children is still there."""
    code, _, errors = life.ended(started, 60)
    check_equal(code, status, f"the status of {what}, which said {errors!r}")
    lines = [line for line in errors.splitlines() if "by a run that did not end" not in line]
    if len(lines) == 2 and "is left behind" in lines[1]:
        lines.pop()
    else:
        there = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
        check(not is_left and not there, f"{what} does not say that {there} is left: {errors!r}")
    check(len(lines) == 1 and "has not answered for 1 s" in lines[0] and "--io-timeout" in lines[0],
          f"{what} said {errors!r}")
    return lines[0]


@contextlib.contextmanager
def hanging(slow, *command):
    """A command of which something waits for a read, unless it ends before."""
    with going_on(slow) as pid, life.background(*command, stdout=subprocess.DEVNULL) as started:
        wait_for(lambda: life.process_state(pid) == "T" or started.poll() is not None, f"{command} to hang")
        yield started


def check_hang(slow, command, status, is_left=False):
    """`is_left`: a thread of the command itself is stuck for sure. Where others than threads read as
    well, the kernel ahead of them, slowfs may have stopped before it took a read of theirs: such a
    thread is free to end."""
    with hanging(slow, *command) as started:
        line = check_end(started, status, command, life.children_of(started.pid), is_left)
        check(str(slow.at) in line, f"{command} does not name the file: {line!r}")


def commands_of(work, slow, name, path):
    """Each command that opens an archive, with its status when that hangs."""
    at, limit = slow / name, "--io-timeout=1"
    return [(("info", limit, at), 1), (("ls", limit, at), 1), (("cat", limit, at, path), 1),
            (("verify", limit, "-j2", at), 1),
            (("extract", limit, "-C", work / "out", at), 1),
            (("pack", limit, "-o", work / "new.tar", at), 1),
            (("index", limit, "-f", at), 1), (("stage", limit, at), 1),
            (("mount", limit, at), 1), (("mount", "-f", limit, at), 1),
            (("run", limit, at, "--", "true"), 125)]


def check_cleaned():
    """As after a kill, by the next start or by hand."""
    onepot("clean")
    life.check_nothing_left()


def test_the_first_read(work):
    with Slow(work, *NEVER_FRESH, make_source(work)) as slow:
        slow.toggle()
        for command, status in commands_of(work, slow, "packed.tar", "000"):
            check_hang(slow, command, status, True)
        slow.toggle()
    check_cleaned()


def test_the_middle_of_an_archive_that_is_parsed(work):
    """In the sandbox's process."""
    with Slow(work, *NEVER_FRESH, "--hold", make_source(work)) as slow:
        for command, status in commands_of(work, slow, "foreign.tar", "foreign.tar-000"):
            check_hang(slow, command, status)
    check_cleaned()


def test_a_file_that_is_read_by_a_thread(work):
    with Slow(work, *NEVER_FRESH, "--hold", make_source(work)) as slow:
        archive, limit = slow / "packed.tar", "--io-timeout=1"
        paths = [f"{i:03d}" for i in range(FILES)]
        for command in (("cat", limit, archive, *paths), ("verify", limit, "-j4", archive),
                        ("extract", limit, "-j4", "-C", work / "out", archive),
                        ("pack", limit, "-o", work / "new.tar", archive),
                        ("stage", limit, archive)):
            check_hang(slow, command, 1)
    check_cleaned()


def test_a_signal_ends_what_hangs(work):
    """Also where the thread that takes it waits for one that is stuck."""
    with Slow(work, *NEVER_FRESH, "--hold", make_source(work)) as slow:
        packed, foreign, other = (slow / f"{name}.tar" for name in ("packed", "foreign", "other"))
        for command in (("extract", "-j4", "-C", work / "out", packed), ("verify", "-j4", packed),
                        ("pack", "-o", work / "new.tar", packed), ("stage", packed),
                        ("index", foreign), ("info", foreign), ("ls", foreign, other),
                        ("mount", "-f", foreign), ("mount", foreign, other),
                        ("run", foreign, "--", "true"), ("run", foreign, other, "--", "true")):
            with hanging(slow, *command) as started:
                started.terminate()
                code, _, errors = life.ended(started, 60)
                check_equal(code, -signal.SIGTERM, f"the end of {command}, which said {errors!r}")
    check_cleaned()


def test_several_archives_that_a_team_opens(work):
    with Slow(work, *NEVER_FRESH, "--hold", make_source(work)) as slow:
        archives, limit = (slow / "foreign.tar", slow / "other.tar"), "--io-timeout=1"
        for command, status in ((("ls", limit, *archives), 1), (("mount", limit, *archives), 1),
                                (("run", limit, *archives, "--", "true"), 125),
                                (("verify", limit, *archives), 1)):
            check_hang(slow, command, status)
    check_cleaned()


def test_files_that_are_packed(work):
    source = make_source(work)
    with Slow(work, *NEVER_FRESH, source) as slow:
        slow.toggle()
        check_hang(slow, ("pack", "--io-timeout=1", "-o", work / "new.tar", slow / "files"), 1)
        slow.toggle()
    onepot("pack", "-q", "-o", work / "new.tar", os.path.join(source, "files"))
    left = [name for name in os.listdir(work.path) if name.startswith("new.tar")]
    check_equal(left, ["new.tar"], "what the next pack leaves")


def test_a_name_that_is_looked_up(work):
    with Slow(work, *NEVER_FRESH, make_source(work)) as slow:
        for command, status in commands_of(work, slow, "packed.tar", "000"):
            pid = slow.pid()
            os.kill(pid, signal.SIGSTOP)
            with life.background(*command) as started:
                try:
                    check_end(started, status, command)
                finally:
                    os.kill(pid, signal.SIGCONT)
            wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [pid],
                     "what was left behind to end")
    check_cleaned()


COMMAND = """
import signal
numbers = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
number = None
while number != signal.SIGUSR2:
    number = signal.sigwait(numbers)
    print(int(number), flush=True)
"""


def has_pending(pid, number):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        masks = [line.split()[1] for line in f if line.startswith("ShdPnd:")]
    return int(masks[0], 16) >> number - 1 & 1


def kill_in_turn(group, number):
    """As batch systems do; its first process comes after its child has taken the signal."""
    (child,) = life.children_of(group)
    for pid in life.children_of(child):
        if os.getpgid(pid) == group:
            os.kill(pid, number)
    os.kill(child, number)
    begin = time.monotonic()
    wait_for(lambda: not has_pending(child, number), "the child to take the signal")
    os.kill(group, number)
    if time.monotonic() - begin > 0.2:
        raise life.Starved("a signal was underway for too long")


@contextlib.contextmanager
def group_of(*command):
    """A command that leads a group; all of it ends with a failure."""
    with life.background(*command, start_new_session=True) as started:
        try:
            yield started
        except BaseException:
            os.killpg(started.pid, signal.SIGKILL)
            raise


@life.not_starved
def test_run_passes_each_signal_on_once(work):
    """What the process that was started gets alone, and what its group gets."""
    with Slow(work, *NEVER_FRESH, make_source(work)) as slow:
        for send in (os.kill, os.killpg, kill_in_turn):
            with group_of("run", slow / "packed.tar", "--", sys.executable, "-c", COMMAND) as started:
                check_equal(life.first_line(started), "ready", "the command's first word")
                send(started.pid, signal.SIGUSR1)
                check_equal(life.first_line(started), str(int(signal.SIGUSR1)), "the signal")
                os.kill(started.pid, signal.SIGUSR2)
                check_equal(life.first_line(started), str(int(signal.SIGUSR2)), "the next one")
                code, _, errors = life.ended(started)
                check_equal(code, 0, f"the status of 'run', which said {errors}")
    life.check_nothing_left()


def test_a_kill_takes_the_child_along(work):
    with Slow(work, *NEVER_FRESH, make_source(work)) as slow:
        with life.background("mount", "-f", slow / "packed.tar") as started:
            life.first_line(started)
            started.kill()
            started.wait()
        wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [slow.pid()],
                 "its child to end")
    check_cleaned()


def check_not_watched(archive):
    with life.background("run", archive, "--", "sh", "-c", "echo $PPID") as started:
        code, out, errors = life.ended(started)
        check_equal((code, int(out)), (0, started.pid), f"the command's parent ({errors})")


def test_files_of_this_node_are_not_watched(work):
    check_not_watched(os.path.join(make_source(work), "packed.tar"))


def mount_disk(image, at):
    done = subprocess.run(["mount", "-o", "loop", image, at], check=False, capture_output=True)
    if done.returncode != 0:
        raise Skip(f"no disk can be mounted: {done.stderr.decode().strip()}")


@contextlib.contextmanager
def a_disk(work):
    need_root("make a disk")
    need_program("mkfs.ext4", "fsfreeze")
    image, at = work / "disk", work.make("disk.at")
    with open(image, "wb") as f:
        f.truncate(32 << 20)
    harness.run("mkfs.ext4", "-q", image)
    mount_disk(image, at)
    try:
        yield at
    finally:
        subprocess.run(["fsfreeze", "-u", at], check=False, stderr=subprocess.DEVNULL)
        harness.unmount(at)


def test_names_that_the_kernel_has_forgotten_are_looked_up_on_this_node(work):
    with a_disk(work) as disk:
        shutil.copytree(make_source(work), os.path.join(disk, "deep", "folder"))
        harness.unmount(disk)
        mount_disk(work / "disk", disk)
        check_not_watched(os.path.join(disk, "deep", "folder", "packed.tar"))


def test_output_that_is_not_taken(work):
    source = make_source(work)
    with Slow(work, *NEVER_FRESH, source) as slow, a_disk(work) as disk:
        for command in (("pack", "-o", os.path.join(disk, "new.tar"), slow / "packed.tar"),
                        ("extract", "-C", os.path.join(disk, "out"), slow / "packed.tar")):
            harness.run("fsfreeze", "-f", disk)
            with life.background(command[0], "--io-timeout=1", *command[1:]) as started:
                try:
                    check_end(started, 1, command)
                finally:
                    harness.run("fsfreeze", "-u", disk)
            wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [slow.pid()],
                     "what was left behind to end")


if __name__ == "__main__":
    harness.main(globals())

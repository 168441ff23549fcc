"""onepot umount: nobody loses a mount that is in use, nothing hangs, nothing stays."""

import contextlib
import mmap
import os
import shutil
import signal
import subprocess
import threading
import time

import harness
import life
from harness import (check, check_equal, mountpoints, need_program, need_root, onepot, onepot_program,
                     run, wait_for)
from life import Clock, check_nothing_left, fails, make_archive, mount, read, said, slots, umount


# ---- in use ----

def test_a_mount_in_use_stays_and_its_users_are_named(work):
    path = mount(make_archive(work))
    with life.opened(f"{path}/readme"):
        fails("umount", "--wait", "0", path, words=["used by", f"({os.getpid()})"])
    check_equal(read(f"{path}/readme"), b"hello\n", "a file, after a umount that failed")
    with life.process("sleep", "60", cwd=f"{path}/sub") as user:
        fails("umount", "--wait", "0", path, words=[f"sleep ({user.pid})"])
    with open(f"{path}/sub/0001", "rb") as f:
        mapping = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    fails("umount", "--wait", "0", path, words=[f"({os.getpid()})"])
    mapping.close()
    umount(path)
    check_nothing_left()


def test_it_waits_for_users_that_are_about_to_go(work):
    path = mount(make_archive(work))
    fd = os.open(f"{path}/readme", os.O_RDONLY)
    timer = threading.Timer(1.5, os.close, [fd])
    with Clock() as clock:
        timer.start()
        umount("--wait", "60", path)
    timer.join()
    check(clock.seconds > 1, f"it took {clock.seconds} s")
    check_nothing_left()


def test_lazy_lets_users_finish(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    with life.opened(f"{path}/sub/0007") as fd, life.opened(f"{path}/sub") as directory:
        done = umount("--wait", "0", "--lazy", path)
        check("out of the tree" in said(done), f"it says {said(done)!r}")
        check_equal(mountpoints(work.path), [], "mounts")
        check_equal(os.read(fd, 4), b"0007", "bytes of an open file")
        check_equal(len(os.listdir(directory)), life.FILES, "entries of an open directory")
        with open("0009", "rb", opener=lambda n, f: os.open(n, f, dir_fd=directory)) as f:
            check_equal(f.read(4), b"0009", "a file that is opened later")
        check(not life.is_gone(pid), "the daemon has left its readers")
    life.wait_gone(pid)
    check_nothing_left()


def test_a_mount_of_a_run_is_not_taken_away(work):
    check_a_mount_of_a_run_is_not_taken_away(work, ["echo"])


def test_a_run_tells_of_the_end_of_its_mount_also_when_a_container_holds_it(work):
    need_root("make a mount namespace")
    check_a_mount_of_a_run_is_not_taken_away(work, ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo; read x"])


def check_a_mount_of_a_run_is_not_taken_away(work, beside):
    archive = make_archive(work)
    with contextlib.ExitStack() as stack:
        wrapper = stack.enter_context(life.background("run", archive, "--", "sh", "-c", "echo $ONEPOT_MOUNT; exec sleep 60"))
        path = life.first_line(wrapper)
        container = stack.enter_context(life.process(*beside, stdin=subprocess.PIPE))
        life.first_line(container)
        fails("umount", path, words=["onepot run", str(wrapper.pid)])
        check_equal(read(f"{path}/readme"), b"hello\n", "a file")
        umount("--lazy", "--wait", "0", path)
        wrapper.terminate()
        status, _, errors = life.ended(wrapper)
        container.communicate(b"\n", timeout=60)
    check_equal(status, 128 + signal.SIGTERM, f"the status of run, which says {errors!r}")
    check("was ended" in errors, f"run says {errors!r}")
    check_nothing_left()


def test_a_mount_that_a_run_shares_stays_until_that_ends(work):
    archive = make_archive(work)
    path = mount(archive)
    with life.background("run", archive, "--", "sh", "-c", "echo {}; read x", stdin=-1) as wrapper:
        check_equal(life.first_line(wrapper), path, "the path")
        done = umount(path)
        check("stays" in said(done) and str(wrapper.pid) in said(done), f"umount: {said(done)!r}")
        check_equal(read(f"{path}/readme"), b"hello\n", "a file")
        wrapper.stdin.write(b"\n")
        wrapper.stdin.close()
        wrapper.stdin = None
        life.ended(wrapper)
    check_nothing_left()


# ---- what is meant ----

def test_archives_and_paths_of_all_kinds_are_understood(work):
    archive = make_archive(work)
    os.symlink("data.tar", work / "link.tar")
    at = work / "at"
    for name in (archive, "data.tar", "./source/../data.tar", "link.tar"):
        mount(archive)
        umount(name, cwd=work.path)
        check_nothing_left(f"umount {name}")
    for name in (at, "at", "at/", "./at/.", "source/../at"):
        mount(archive, "--at", at)
        umount(name, cwd=work.path)
        check_nothing_left(f"umount {name}")
    mount(archive)
    mount(archive, "--at", at)
    umount(archive)
    check_nothing_left("umount of an archive that was mounted twice")
    mount(archive)
    os.unlink(archive)
    umount(archive)
    check_nothing_left("umount of an archive that was removed")


def test_what_is_no_mount_of_onepot_is_an_error(work):
    archive = make_archive(work)
    for name, words in ((archive, "not mounted"), (work.path, "not mounted"), ("/proc", "onepot's"),
                        (work / "absent", "not mounted"), (work / "absent/x", "No such file")):
        fails("umount", name, words=[words])
    fails("umount", status=2)
    fails("umount", "--all", archive, status=2)
    fails("umount", "--wait", "soon", archive, status=2)
    umount("--all")
    path = mount(archive)
    done = umount(work / "absent", path, status=1)
    check("absent" in said(done).splitlines()[0], f"it says {said(done)!r}")
    check_nothing_left("one good name among two")


def test_a_path_inside_of_a_mount_is_not_taken_for_it(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    os.chdir(path)
    stop(pid)  # whoever asked the mount would hang
    for name in ("sub", "sub/0001", "no/such/thing", "./readme"):
        fails("umount", f"{path}/{name}", words=["in the mount"], timeout=60)
        fails("umount", name, words=["in the mount"], timeout=60)
    os.kill(pid, signal.SIGCONT)
    out = os.path.relpath(work / "beside", path)
    for name in (f"{path}/./{out}", out):
        mount(work / "data.tar", "--at", work / "beside")
        umount(name)
        check_equal(mountpoints(work.path), [path], f"mounts, after umount {name}")
    os.chdir("/")
    umount(f"{path}//.")
    check_nothing_left()


def test_a_bind_mount_of_it_is_named(work):
    harness.need_root("make bind mounts")
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    bound = work.make("bound")
    harness.run("mount", "--bind", f"{path}/sub", bound)
    try:
        fails("umount", path, words=["mounted at", bound])
        check_equal(mountpoints(work.path), [bound], "mounts")
        check_equal(read(f"{bound}/0001"), b"0001" * 500, "a file")
    finally:
        harness.unmount(bound)
    life.wait_gone(pid)
    check_nothing_left()


def test_what_lies_over_it_stays(work):
    harness.need_root("mount a tmpfs")
    path = mount(make_archive(work), "--at", work / "at")
    pid = life.daemon_of(path)
    harness.run("mount", "-t", "tmpfs", "none", path)
    try:
        for how in ([path], ["--lazy", path], ["--all"], ["--all", "--lazy"]):
            fails("umount", "--wait", "0", *how, words=["something else is mounted over it"])
        os.kill(pid, signal.SIGTERM)
        time.sleep(1)  # it tries, and must not
        check_equal(mountpoints(work.path), [path, path], "mounts")
    finally:
        harness.unmount(path)
    umount(path, status=None)
    life.wait_gone(pid)
    check_nothing_left()


def test_what_was_detached_before_is_no_failure(work):
    archive = make_archive(work)
    path = mount(archive)
    with life.opened(f"{path}/readme") as fd:
        umount("--lazy", "--wait", "0", path)
        for name in (path, archive, "--all"):
            check("out of the tree" in said(umount(name)), f"what umount {name} says")
        check_equal(os.read(fd, 5), b"hello", "bytes of an open file")
    check_nothing_left()


def device_of(path):
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return [line.split()[2] for line in f if f" {path} " in line][-1]


def test_a_daemon_that_is_late_leaves_the_next_mount_of_its_place(work):
    """The kernel gives the number of a device that is gone to the next mount: it may look as if
    it were the one that just ended."""
    archive, at = make_archive(work), work / "at"
    for _ in range(20):  # others may get the number first
        mount(archive, "--at", at)
        device, late = device_of(at), life.daemon_of(at)
        stop(late)
        harness.detach(at)
        mount(archive, "--at", at)
        again = device_of(at)
        os.kill(late, signal.SIGCONT)
        life.wait_gone(late)
        check_equal(mountpoints(work.path), [at], "mounts when the late daemon has ended")
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
        umount(at)
        check_nothing_left()
        if again == device:
            return
    raise harness.Skip("each mount had a device number of its own")


def test_a_mount_in_another_namespace_is_neither_shared_nor_ended(work):
    need_root("make a mount namespace")
    archive = make_archive(work)
    inside = ["unshare", "-m", "--propagation", "private"]
    with life.process(*inside, harness.onepot_program(), "mount", "-f", archive) as container:
        path = life.first_line(container)
        fails("umount", path, words=["another namespace"])
        fails("umount", "--all", words=["another namespace"])
        other = mount(archive)
        check_equal(read(f"{other}/readme"), b"hello\n", "a file")
        umount(other)
        container.terminate()
        life.ended(container)
    check_nothing_left()


def sees(container, path):
    """Does a process in another namespace still read the mount?"""
    done = harness.run("nsenter", "-t", str(container), "-m", "cat", f"{path}/readme", status=None)
    return done.stdout == b"hello\n"


def test_what_only_another_namespace_sees_is_unmounted_and_leaves_the_path(work):
    need_root("make a mount namespace")
    need_program("nsenter")
    archive = make_archive(work)
    copied = ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo; read x"]
    path, daemons = mount(archive), []
    # A container after the other copies the mount that is there; what it copied stays, whatever
    # comes and goes at the path here.
    with life.process(*copied, stdin=subprocess.PIPE) as first:
        life.first_line(first)
        daemons.append(life.daemon_of(path))
        done = umount(path)
        check("still sees it" in said(done) and str(first.pid) in said(done), f"{said(done)!r}")
        check_equal(mountpoints(work.path), [], "mounts here")
        check(sees(first.pid, path), "the first container has lost it")
        check_equal(mount(archive, "--cache", "17M"), path, "the path of the next")
        onepot("stat", path)
        check(mount(archive, "--cache", "18M") != path, "two mounts are at one path")
        umount(archive)
        check(sees(first.pid, path), "the first container has lost it with the next mount")
        check_equal(mount(archive), path, "the path of one more")
        daemons.append(life.daemon_of(path))
        with life.process(*copied, stdin=subprocess.PIPE) as second:
            life.first_line(second)
            first.communicate(b"\n", timeout=60)
            life.wait_gone(daemons[0])
            check_equal(read(f"{path}/readme"), b"hello\n", "a file here, when the first has ended")
            # Whoever sweeps in another namespace does not take the directory away.
            harness.run("unshare", "-m", "sh", "-c", f"umount -l {path}; exec \"$@\"", "-",
                        onepot_program(), "clean")
            check_equal(read(f"{path}/readme"), b"hello\n", "a file here, after a clean elsewhere")
            umount(path)
            check(sees(second.pid, path), "the second container has lost it")
            second.communicate(b"\n", timeout=60)
        life.wait_gone(daemons[1])
    check_nothing_left()


SCRIPT = """
while read -r command; do eval "$command"; echo "done"; done
"""


@contextlib.contextmanager
def script(work):
    """A shell that runs the lines that it gets: tell(line) returns what it printed."""
    with life.process("bash", "-c", SCRIPT, stdin=subprocess.PIPE, stderr=subprocess.STDOUT) as shell:
        def tell(line):
            shell.stdin.write(line.encode() + b"\n")
            shell.stdin.flush()
            said_lines = []
            while (said_line := life.first_line(shell)) != "done":
                said_lines.append(said_line)
            return "\n".join(said_lines)
        yield tell
        shell.communicate(timeout=60)


def kill_daemon(path):
    daemon = life.daemon_of(path)
    os.kill(daemon, signal.SIGKILL)
    life.wait_gone(daemon)


def commands(archive):
    """To mount, and to unmount, in a script."""
    program = onepot_program()
    return f"m=$({program} mount --owner=none {archive})", f"{program} umount $m; echo status $?"


def test_a_script_ends_no_other_script_s_mount(work):
    need_program("bash")
    mounting, ending = commands(make_archive(work))
    with script(work) as other, script(work) as one:
        # Its mount has died, and another script's has taken the path.
        one(mounting)
        path = one("echo $m")
        kill_daemon(path)
        other(mounting)
        check_equal(other("echo $m"), path, "the path")
        refused = one(ending)
        check("it stays, for bash (process" in refused and "status 1" in refused, refused)
        # Each ends its share once.
        one(mounting)
        check("it stays, for 1" in one(ending), "the share of two")
        check("status 1" in one(ending), "a share was given back twice")
        with script(work) as late:
            late(f"m={path}; trap '{ending}' EXIT")
        umount(path, status=1)  # nor one that has nothing to do with it
        check_equal(read(f"{path}/readme"), b"hello\n", "a file")
        check("status 0" in other(ending), "its own")
        check_equal(mountpoints(work.path), [], "mounts")
        # But --lazy and --all do.
        for how in [path, "--lazy"], ["--all"]:
            other(mounting)
            umount(*how)
            check_equal(mountpoints(work.path), [], f"mounts after umount {how}")
    check_nothing_left()


def ticks():
    """The time in the unit in which the kernel tells when a process started."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def test_a_script_s_mount_is_its_helpers_too(work):
    need_program("bash")
    mounting, ending = commands(make_archive(work))
    with script(work) as one:
        # A subshell is the script; what the script starts may have its path from it.
        one(f"m=$(true; {mounting}; echo $m)")
        check("status 0" in one(f"(true; {ending})"), "its subshell")
        one(mounting)
        one("export m")
        check("status 0" in one(f"bash -c '{ending}'"), "its child")
        # But not what was there before the mount, or has given back its own share.
        one("coproc early { exec bash -c 'echo; read -r m; " + ending + "' 2>&1; }")
        one("read -r <&${early[0]}")
        ready = ticks()
        wait_for(lambda: ticks() > ready, "time to go on")
        one(mounting)
        check("status 1" in one('echo "$m" >&${early[1]}; cat <&${early[0]}'), "a child from before")
        check("status 1" in one(f"bash -c '{mounting}; {ending}; {ending}'"), "a child's second time")
        check("status 0" in one(ending), "its own")
        # A helper that mounts and ends leaves the mount to all of the session.
        one(f"m=$(bash -c '{mounting}; echo $m')")
        check("status 0" in one(f"bash -c '{ending}'"), "another helper")
        check_equal(mountpoints(work.path), [], "mounts")
    check_nothing_left()


def test_all_ends_everything_dead_or_alive(work):
    archive, other = make_archive(work), make_archive(work, "other.tar")
    mount(archive)
    mount(archive)
    mount(other, "--at", work / "at")
    dead = mount(other)
    os.kill(life.daemon_of(dead), signal.SIGKILL)
    with life.opened(f"{work / 'at'}/readme"):
        fails_in_part = umount("--all", "--wait", "0", status=1)
        check("used by" in said(fails_in_part), f"it says {said(fails_in_part)!r}")
        check_equal(mountpoints(work.path), [work / "at"], "mounts")
    umount("--all")
    check_nothing_left()
    umount("--all")


def test_a_mount_in_a_mount_is_named_by_its_path_and_ends_first(work):
    inner, other = make_archive(work, "inner.tar"), make_archive(work, "other.tar")
    os.mkdir(work / "in")
    os.mkdir(work / "in/on")
    shutil.copy(inner, work / "in")
    run("tar", "cf", work / "outer.tar", "-C", work / "in", ".")
    outer = mount(work / "outer.tar")
    if os.geteuid() == 0:  # fusermount3 wants a directory that may be written to
        mount(other, "--at", f"{outer}/on")
        fails("umount", "--wait", "0", f"{outer}/on/sub", words=[f"in the mount at {outer}/on;"])
        umount(f"{outer}/on/")
        mount(other, "--at", f"{outer}/on")
    mount(f"{outer}/inner.tar")
    umount("--all", "--wait", "0")
    check_nothing_left()


def test_the_last_line_tells_what_was_read(work):
    path = mount(make_archive(work))
    for i in range(10):
        read(f"{path}/sub/{i:04}")
    count = life.mounted(path)["read_files"]  # more, where the kernel drops a page too soon
    check(10 <= count < 20, f"{count} files")
    done = umount(path)
    for word in ("data.tar", f"{count} files", " KiB", "waited"):
        check(word in said(done), f"{word!r} is not in {said(done)!r}")
    check_nothing_left()


# ---- daemons that don't do what they should ----

def stop(pid):
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: life.process_state(pid) == "T", "the daemon to stop")


def test_a_stopped_daemon_without_users_is_ended(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    stop(pid)
    with Clock() as clock:
        umount(path)
    check(clock.seconds < 30, f"it took {clock.seconds} s")
    life.wait_gone(pid)
    check_nothing_left()


def test_a_name_in_the_mount_of_a_stopped_daemon_is_no_mount_at_once(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    stop(pid)
    try:
        for command in (("stat",), ("top", "-n1")):
            done = onepot(*command, f"{path}/never asked for", status=1, timeout=20)
            check(b"you have no onepot mount there" in done.stderr, done.stderr)
    finally:
        os.kill(pid, signal.SIGCONT)
    umount(path)
    check_nothing_left()


def test_a_stopped_daemon_with_a_reader_inside_hangs_nobody_else(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    stop(pid)
    with life.process("cat", f"{path}/sub/0003") as reader:
        wait_for(lambda: life.waits_for_a_daemon(reader.pid), "the reader to hang")
        with Clock() as clock:
            known = b"request_wait" in read(f"/proc/{reader.pid}/wchan")
            fails("umount", "--wait", "1", path,
                  words=["stopped", f"kill -CONT {pid}", f"cat ({reader.pid})" if known else ""])
        check(clock.seconds < 40, f"umount took {clock.seconds} s")
        with Clock() as clock:
            done = umount("--wait", "1", "--lazy", path)
        check(clock.seconds < 40, f"umount --lazy took {clock.seconds} s")
        check("stopped" in said(done) and str(pid) in said(done), f"it says {said(done)!r}")
        check_equal(mountpoints(work.path), [], "mounts")
        os.kill(pid, signal.SIGCONT)
        check_equal(life.ended(reader)[1], b"0003" * 500, "what the reader got in the end")
    life.wait_gone(pid)
    check_nothing_left()


def test_a_dead_daemon_s_mount_is_cleaned_up(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    with life.opened(f"{path}/readme"):
        os.kill(pid, signal.SIGKILL)
        life.wait_gone(pid)
        done = umount(path)
        check("dead" in said(done), f"it says {said(done)!r}")
    check_nothing_left()


def test_a_mount_that_was_ended_by_other_means_leaves_nothing(work):
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    run("fusermount3", "-u", path)
    life.wait_gone(pid)
    check_nothing_left("fusermount3 -u")
    need_root("call umount(8)")
    path = mount(work / "data.tar", "--at", work / "at")
    pid = life.daemon_of(path)
    harness.unmount(path)
    life.wait_gone(pid)
    check_nothing_left("umount(8)")


def test_a_mount_without_its_state_can_be_ended(work):
    path = mount(make_archive(work), "--at", work / "at")
    pid = life.daemon_of(path)
    harness.shutil.rmtree(life.folder())
    umount(path)
    life.wait_gone(pid)
    check_equal(mountpoints(work.path), [], "mounts")
    check_equal(slots(), [], "slots")


def test_an_aborted_connection_is_cleaned_up(work):
    need_root("mount fusectl")
    path = mount(make_archive(work))
    pid = life.daemon_of(path)
    device = os.minor(os.stat(path).st_dev)
    with work.kernel_mount("fusectl", "none", "control") as control:
        life.write(f"{control}/{device}/abort", b"1")
    life.wait_gone(pid)
    check_nothing_left()


if __name__ == "__main__":
    harness.main(globals())

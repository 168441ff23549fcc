"""Jobs that end without cleaning up, and what goes with them: sessions, batch scripts, terminals.

A job is played by a session with a batch system's variables. That a mount stays is seen by what
its daemon waits for: the processes of its pidfds.
"""

import contextlib
import fcntl
import glob
import os
import pty
import signal
import stat
import sys

import harness
import life
from harness import Skip, check, check_equal, environment, mountpoints, onepot, wait_for
from life import check_nothing_left, make_archive, mount, read


@contextlib.contextmanager
def session(script, *arguments, setsid=True, **variables):
    """bash -c SCRIPT as the leader of a session; `read` in it waits for the end of the context,
    or of a job by end()."""
    env = environment(ONEPOT=harness.onepot_program(), **variables)
    with life.process("bash", "-c", script, "job", *arguments, env=env, stdin=-1,
                      start_new_session=setsid) as p:
        yield p


def end(p):
    p.stdin.close()
    p.stdin = None
    p.wait(60)


def watched(daemon):
    """Processes whose end a daemon waits for, once it serves: `mount` may return a moment before."""
    found = []
    for path in glob.glob(f"/proc/{daemon}/fdinfo/*"):
        with contextlib.suppress(OSError):
            found += [int(line.split()[1]) for line in read(path).decode().splitlines()
                      if line.startswith("Pid:")]
    return sorted(found)


def need_pidfds():
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError):
        raise Skip("this kernel, or this Python, has no pidfds") from None


FORGETS = 'data=$("$ONEPOT" mount "$1") || exit; echo "$data"; cat "$data/readme"; read'


def start(p):
    """The path that a session has printed."""
    path = life.first_line(p)
    check_equal(p.stdout.readline(), b"hello\n", "a file")
    return path


# ---- whose it is ----

def test_what_a_job_forgets_goes_with_it(work):
    need_pidfds()
    archive = make_archive(work)
    for variables in ({}, {"SLURM_JOB_ID": "12"}, {"PBS_JOBID": "7.server"}):
        with session(FORGETS, archive, **variables) as job:
            pid = life.daemon_of(start(job))
            wait_for(lambda: watched(pid) == [job.pid], "the daemon to wait for its job")
            check_equal(len(mountpoints(work.path)), 1, "mounts while the job lives")
            end(job)
            life.wait_gone(pid)
        check_nothing_left(f"a job with {variables}")


def test_the_shell_of_an_allocation_is_the_job_and_not_the_login_around_it(work):
    need_pidfds()
    archive = make_archive(work)
    inner = f"SLURM_JOB_ID=5 bash -c 'echo $$; {FORGETS}' job \"$1\"; read"
    with session(inner, archive) as login:
        shell = int(life.first_line(login))
        pid = life.daemon_of(start(login))
        wait_for(lambda: watched(pid) == [shell], "the daemon to wait for the shell")
        login.stdin.write(b"\n")
        login.stdin.flush()
        life.wait_gone(pid)
        check(login.poll() is None, "the login has ended")
        check_nothing_left()


def test_what_outlives_the_leader_of_its_session_keeps_the_mount(work):
    need_pidfds()
    archive = make_archive(work)
    with session('sleep 1000 >&- 2>&- & echo $!;' + FORGETS, archive) as login:
        sleeper = int(life.first_line(login))
        pid = life.daemon_of(start(login))
        end(login)
        wait_for(lambda: watched(pid) == [sleeper], "the daemon to wait for what is left")
        check_equal(len(mountpoints(work.path)), 1, "mounts")
        os.kill(sleeper, signal.SIGKILL)
        life.wait_gone(pid)
    check_nothing_left()


def test_a_mount_of_two_sessions_goes_with_the_last(work):
    need_pidfds()
    archive = make_archive(work)
    with session(FORGETS, archive) as one, session(FORGETS, archive) as two:
        path = start(one)
        pid = life.daemon_of(path)
        wait_for(lambda: watched(pid) in ([one.pid], [two.pid]), "the daemon to wait for one of them")
        first, last = (one, two) if watched(pid) == [one.pid] else (two, one)
        check_equal(start(two), path, "the path of the second")
        end(first)
        wait_for(lambda: watched(pid) == [last.pid], "the daemon to wait for the other one")
        end(last)
        life.wait_gone(pid)
    check_nothing_left()


def test_who_shares_the_mount_of_a_run_keeps_it_and_no_longer(work):
    need_pidfds()
    archive = make_archive(work)
    with session('"$ONEPOT" run "$1" -- bash -c \'echo ready; read\'', archive) as runner:
        life.first_line(runner)
        with session(FORGETS, archive) as job:
            pid = life.daemon_of(start(job))
            end(runner)
            wait_for(lambda: watched(pid) == [job.pid], "the daemon to wait for the job")
            end(job)
            life.wait_gone(pid)
    check_nothing_left()


def test_who_uses_the_mount_of_a_job_that_ended_keeps_it(work):
    archive = make_archive(work)
    with session(FORGETS, archive, SLURM_JOB_ID="3") as job:
        path = start(job)
        pid = life.daemon_of(path)
        with life.opened(f"{path}/sub/0007") as fd:
            end(job)
            wait_for(lambda: life.mounted(path)["state"] == "draining", "the mount to drain")
            check_equal(os.read(fd, 4), b"0007", "bytes of an open file")
            check_equal(read(f"{path}/sub/0008")[:4], b"0008", "bytes of another one")
        life.wait_gone(pid)
    check_nothing_left()


def test_who_wants_no_owner_has_none(work):
    need_pidfds()
    archive = make_archive(work)
    for command in (["bash", "-c", '"$0" mount --owner none "$1"; :'], []):
        done = harness.run(*command, harness.onepot_program(), *([] if command else ["mount"]),
                           archive, start_new_session=True)
        path = os.fsdecode(done.stdout).rstrip("\n")
        check_equal(watched(life.daemon_of(path)), [], f"what it waits for after {command}")
        onepot("umount", path)
        check_nothing_left(str(command))


def test_a_command_in_a_terminal_of_its_own_is_its_program_s(work):
    """As Jupyter's "!": the shell of the terminal ends with the command."""
    need_pidfds()
    archive = make_archive(work)
    program = os.fork()
    if program == 0:
        os.setsid()
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve("/bin/bash", ["bash", "-c", 'cd /; "$0" mount "$1"; :',
                                    harness.onepot_program(), archive], environment())
        with contextlib.suppress(OSError):
            while os.read(terminal, 1000):
                pass
        os.waitpid(pid, 0)
        signal.pause()
    try:
        wait_for(lambda: mountpoints(work.path), "the mount")
        path = mountpoints(work.path)[0]
        wait_for(lambda: life.daemon_of(path), "its daemon, which starts after it is mounted")
        pid = life.daemon_of(path)
        wait_for(lambda: watched(pid) == [program], "the daemon to wait for the program")
    finally:
        os.kill(program, signal.SIGKILL)
        os.waitpid(program, 0)
    life.wait_gone(pid)
    check_nothing_left()


def test_a_program_that_ends_with_the_command_in_its_terminal_leaves_it_to_its_session(work):
    """As sudo and script do."""
    need_pidfds()
    archive = make_archive(work)
    spawn = "import pty, sys; pty.spawn(sys.argv[1:])"
    script = '"$2" -c "$3" "$2" -c "$3" bash -c \'"$ONEPOT" mount "$0"; :\' "$1"; read'
    with session(script, archive, sys.executable, spawn) as login:
        life.first_line(login)
        pid = life.daemon_of(mountpoints(work.path)[0])
        wait_for(lambda: watched(pid) == [login.pid], "the daemon to wait for the session")
        end(login)
        life.wait_gone(pid)
    check_nothing_left()


# ---- steps ----

def test_a_mount_in_a_step_says_that_it_ends_with_it(work):
    archive = make_archive(work)
    for step, lines in (("0", 1), ("4294967291", 0), (None, 0)):
        env = environment(SLURM_JOB_ID="9", SLURM_STEP_ID=step)
        done = onepot("mount", archive, env=env)
        check_equal(done.stderr.count(b"\n"), lines, f"lines of {done.stderr!r} in step {step}")
        check(not lines or b"onepot run" in done.stderr, f"it says {done.stderr!r}")
        onepot("umount", "--all", env=env)
    check_nothing_left()


# ---- what was killed ----

def test_each_start_removes_what_dead_daemons_left_in_any_folder(work):
    """Also one of a job that found its first folder full, or has no mount of this archive."""
    archive = make_archive(work)
    env = environment(ONEPOT_RUNTIME_DIR=None)
    temporary = os.path.join(work / ".home", "tmp")
    os.rename(work / ".home/run", work / "elsewhere")
    os.symlink(temporary, work / ".home/run")
    with harness.shared_memory():
        for command, undo in ((["stage", "--owner", str(os.getpid())], "unstage"),
                              (["mount"], "umount")):
            path = mount(archive)
            pid = life.daemon_of(path)
            os.kill(pid, signal.SIGKILL)
            life.wait_gone(pid)
            onepot(*command, archive, env=env)
            check_equal(mountpoints(work.path), [], f"mounts after {command}")
            check_equal(life.slots(), [], f"state after {command}")
            onepot(undo, archive, env=env)
        onepot("clean", env=env)  # the folder in /dev/shm


# ---- onepot clean ----

NOBODY = 65534


def as_nobody(**variables):
    """Options of onepot for another user, who may use the test's archive."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [],
            "env": environment(XDG_CACHE_HOME="/nonexistent", **variables)}


def kill_daemon(path, **options):
    """And what would remove the copy of each staged mount."""
    pid = life.daemon_of(path, **options)
    life.kill_left_behind("onepot-watch", len(copies()))
    os.kill(pid, signal.SIGKILL)
    life.wait_gone(pid)


def copies():
    return glob.glob(os.path.join(life.runtime(), "onepot-stage-*", "*.copy"))


def make_archive_on_disk(work):
    """What lies in memory is not copied; and a made-up user may read it."""
    archive = make_archive(work)
    if b"not copied" in onepot("stage", "--keep", archive, status=None).stderr:
        raise Skip("the archive lies in memory")
    onepot("unstage", "--all")
    harness.run("chmod", "-R", "go+rX", work.path)
    for folder in (work / ".home", life.runtime()):
        os.chmod(folder, 0o1777)
    return archive


def test_clean_removes_what_is_dead_and_leaves_what_lives(work):
    archive = make_archive_on_disk(work)
    alive = mount(archive, "--stage", env=environment(SLURM_JOB_ID="1"))
    dead = mount(make_archive(work, "other.tar"), "--stage", env=environment(SLURM_JOB_ID="2"))
    kill_daemon(dead)
    check_equal(len(copies()), 2, "copies")
    done = onepot("clean")
    check(dead.encode() in done.stderr, f"it says {done.stderr!r}")
    check_equal(mountpoints(work.path), [alive], "mounts")
    check_equal(len(copies()), 1, "copies")
    onepot("clean", "--job", "3")
    check_equal(read(f"{alive}/readme"), b"hello\n", "a file")
    with life.opened(f"{alive}/sub/0001"):
        onepot("clean", "--job", "1", status=None)
        check_equal(mountpoints(work.path), [], "mounts of the job that has ended")
    wait_for(lambda: not copies(), "the copy to go")
    check_nothing_left()
    for words in (["--job", ""], ["--job", "1", "--all"], ["--user", "a", "--job", "1"], ["x"]):
        onepot("clean", *words, status=2)


@contextlib.contextmanager
def device_for_all(work):
    """/dev/fuse for other users, too: where it is closed, another one in this namespace."""
    if os.stat("/dev/fuse").st_mode & 0o006 == 0o006:
        yield
        return
    before = os.stat("/proc/self/ns/mnt").st_ino
    harness.isolate()
    if os.stat("/proc/self/ns/mnt").st_ino == before:
        raise Skip("others than root may not mount here: /dev/fuse is closed")
    node = work / "fuse"
    os.mknod(node, stat.S_IFCHR | 0o600, os.stat("/dev/fuse").st_rdev)
    os.chmod(node, 0o666)
    harness.run("mount", "--bind", node, "/dev/fuse")
    try:
        yield
    finally:
        harness.detach("/dev/fuse")


def test_root_cleans_up_after_others_as_they_could(work):
    harness.need_root("be two users")
    harness.need_program("fusermount3")
    harness.need_users()
    archive = make_archive_on_disk(work)
    with device_for_all(work):
        clean_up_after_nobody(work, archive)


def clean_up_after_nobody(work, archive):
    private = work.make("private")
    os.chmod(private, 0o700)
    for words in (["--all"], ["--user", str(NOBODY)], ["--job", "8"]):
        path = mount(archive, "--stage", **as_nobody(SLURM_JOB_ID="8"))
        kill_daemon(path, **as_nobody())
        check_equal(len(copies()), 1, "copies")
        # A folder of root's alone, as $TMPDIR may be, is no failure of other users.
        onepot("clean", *words, env=environment(ONEPOT_RUNTIME_DIR=private))
        onepot("clean", *words)
        check_equal([mountpoints(work.path), copies()], [[], []], f"what is left by {words}")
        # The folder stays while the user has any process, and other suites have some, too.
        wait_for(lambda: not os.path.lexists(life.folder(NOBODY)) or onepot("clean", *words) is None,
                 "the folder to go with the user's last process")
    path = mount(archive, "--stage", **as_nobody())
    kill_daemon(path, **as_nobody())
    onepot("umount", path)
    check_equal([mountpoints(work.path), copies()], [[], []], "what is left by umount")
    life.check_no_state_of(NOBODY)


def test_root_removes_nothing_that_a_user_could_not(work):
    """Links in the place of folders and of what is in them; a folder of another owner."""
    harness.need_root("be two users")
    os.chmod(work.path, 0o755)
    for folder in (work / ".home", life.runtime()):
        os.chmod(folder, 0o1777)
    target = work.make("target")
    for name in ("x.lock", "x.stat", "lock", "a.copy", "a.state"):
        life.write(os.path.join(target, name), b"root's")
    before = sorted(os.listdir(target))
    for kind in ("onepot", "onepot-stage"):
        os.symlink(target, os.path.join(life.runtime(), f"{kind}-{NOBODY}"))
        onepot("clean", "--all")
        onepot("clean", "--user", str(NOBODY))
        os.unlink(os.path.join(life.runtime(), f"{kind}-{NOBODY}"))
        folder = os.path.join(life.runtime(), f"{kind}-{NOBODY}")
        os.mkdir(folder, 0o700)
        for name in before:
            os.symlink(os.path.join(target, name), os.path.join(folder, name))
        os.symlink(target, os.path.join(folder, "y"))
        onepot("clean", "--all")
        harness.run("chown", "-h", f"{NOBODY}:{NOBODY}", folder,
                    *(os.path.join(folder, name) for name in os.listdir(folder)))
        onepot("clean", "--all", status=None)
        onepot("clean", "--job", "1", status=None)
        check_equal(sorted(os.listdir(target)), before, f"files of root's, by {kind}")
        check(all(read(os.path.join(target, name)) == b"root's" for name in before), "their bytes")
        harness.run("rm", "-r", folder)


def test_a_user_can_not_hold_up_root_s_cleaning_by_a_stop(work):
    harness.need_root("be two users")
    for folder in (work.path, work / ".home", life.runtime()):
        os.chmod(folder, 0o1777)
    folder = life.folder(NOBODY)
    lock = os.path.join(folder, "lock")
    os.mkdir(folder, 0o700)
    life.write(lock, b"")
    for path in (folder, lock):
        os.chown(path, NOBODY, NOBODY)
    with life.opened(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with life.process(harness.onepot_program(), "clean", "--user", str(NOBODY)) as p:
            wait_for(lambda: life.children_of(p.pid), "its child")
            child = life.children_of(p.pid)[0]
            wait_for(lambda: f"Uid:\t{NOBODY}" in read(f"/proc/{child}/status").decode(),
                     "it to be the user's")
            os.kill(child, signal.SIGSTOP)
            check_equal(p.wait(60), 1, "status")
            check(b"stopped" in p.stderr.read(), "it says why")
            check(life.process_state(child) is None, "and leaves nothing behind")


def test_only_root_cleans_up_after_others(work):
    harness.need_root("be another user")
    harness.run("chmod", "-R", "go+rX", work.path)
    for words in (["--all"], ["--user", "0"]):
        life.fails("clean", *words, words=["only root"], **as_nobody())
    onepot("clean", **as_nobody())


def test_the_epilog_never_fails(work):
    script = os.path.join(os.path.dirname(__file__), "..", "..", "..", "examples", "slurm", "epilog")
    archive = make_archive(work)
    path = mount(archive, env=environment(SLURM_JOB_ID="77"))
    os.symlink(harness.onepot_program(), work / "onepot")
    paths = f"{work.path}:{os.environ['PATH']}"
    harness.run("sh", script, env=environment(PATH=paths))
    check_equal(mountpoints(work.path), [path], "mounts of a job that is not named")
    harness.run("sh", script, env=environment(PATH=paths, SLURM_JOB_ID="77"))
    check_nothing_left()
    harness.run("sh", script, env=environment(PATH="/nonexistent:/bin:/usr/bin", SLURM_JOB_ID="1"))


if __name__ == "__main__":
    harness.main(globals())

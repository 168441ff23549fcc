"""Places that other users could take, rename or fill: for the state of mounts, copies, mount points.
And root, who cleans up after users who don't want that. Other users are real ones."""

import contextlib
import fcntl
import os
import signal
import stat
import time

import harness
import life
from harness import (Skip, check, check_equal, environment, onepot,
                     onepot_program, run, wait_for)
from life import fails, mount, read, said
from users import FOURTH, MALLORY, THIRD, VICTIM, as_user, mount_of_mallory, node, own, plain, squat

def check_served(path, what):
    """To its user: others may not look."""
    done = run("cat", f"{path}/readme", user=VICTIM, group=VICTIM, extra_groups=[])
    check_equal(done.stdout, b"hello\n", what)


# ---- places of the state ----

def test_names_that_another_user_took_leave_the_session_s_folder(work):
    with node(work) as archive:
        own("/tmp/mine", VICTIM)
        squat(VICTIM, "/dev/shm", "/tmp", "/tmp/mine")
        os.chown("/tmp/mine", VICTIM, VICTIM)
        done = fails("mount", archive, **as_user(VICTIM, **plain(TMPDIR="/tmp/mine")))
        for place in ("/dev/shm", "/tmp/mine", "/tmp"):
            check(f"{place}/onepot-{VICTIM}: it belongs to user {MALLORY}" in said(done),
                  f"{place} is not named: {said(done)}")
        if not os.path.isdir("/run/user"):
            return
        session = own(f"/run/user/{VICTIM}", VICTIM)
        # Not every step of a job is told of it.
        path = mount(archive, **as_user(VICTIM, **plain(XDG_RUNTIME_DIR=session)))
        check_equal(path, f"{session}/onepot-{VICTIM}/data.tar", "where it is mounted")
        check_equal(mount(archive, **as_user(VICTIM, **plain())), path, "what another step has")
        check_served(path, "from the session's folder")
        onepot("umount", "--all", **as_user(VICTIM, **plain()))
        life.wait_away(VICTIM)
        onepot("clean", "--all", env=environment(**plain()))
        check_equal(os.listdir(session), [], "what is left after root's cleaning")


def test_a_folder_that_another_user_could_rename_is_not_used(work):
    with node(work) as archive:
        theirs = own("/tmp/theirs", MALLORY, 0o777)
        ours = own("/tmp/theirs/ours", 0)
        open_to_all = own("/tmp/open", 0, 0o777)
        for place, word in ((ours, f"{theirs}: it belongs to user {MALLORY}"),
                            (open_to_all, f"{open_to_all}: users other than its owner")):
            fails("mount", archive, words=[word], env=environment(ONEPOT_RUNTIME_DIR=place))
            fails("run", archive, "--", "true", status=125, words=[word],
                  env=environment(ONEPOT_RUNTIME_DIR=place))
            check_equal(os.listdir(place), ["ours"] if place == theirs else [], "what is made there")
            check(f"is not used: {word}" in onepot("doctor", status=None, env=environment(
                **plain(TMPDIR=place))).stdout.decode(), "doctor does not say so")
            # Of several places the next one serves.
            squat(0, "/dev/shm")
            path = mount(archive, env=environment(**plain(TMPDIR=place)))
            check_equal(path, "/tmp/onepot-0/data.tar", "where it is mounted")
            onepot("umount", path, env=environment(**plain(TMPDIR=place)))
        fails("run", f"--stage={ours}", archive, "--", "true", status=None, env=environment(**plain()),
              words=[f"{theirs}: it belongs to user {MALLORY}"])
        check_equal(os.listdir(ours), [], "what is staged there")


def test_another_user_s_fuse_program_names_no_owner_that_counts(work):
    with node(work) as archive:
        at = own("/tmp/fuse", MALLORY, 0o755)
        device = mount_of_mallory(at)
        serving = onepot("mount", "-o", "allow_other", archive, f"--at=/dev/fd/{device}",
                         pass_fds=[device], env=environment(**plain()))
        os.close(device)
        check_equal(serving.returncode, 0, "it serves")
        check_equal(os.stat(f"{at}/sub").st_uid, 0, "the owner that it names")
        fails("mount", archive, words=["FUSE"], env=environment(ONEPOT_RUNTIME_DIR=f"{at}/sub"))
        harness.detach(at)


def test_a_fuse_program_by_the_name_of_a_user_s_folder_is_not_asked(work):
    """This one never answers; another would say that the folder is the user's, and serve its state."""
    with node(work) as archive:
        taken = f"/dev/shm/onepot-{VICTIM}"
        device = mount_of_mallory(own(taken, MALLORY))
        session = own(f"/run/user/{MALLORY}", MALLORY) if os.path.isdir("/run/user") else None
        second = mount_of_mallory(session) if session else None
        fails("mount", archive, words=[f"{taken}: another user's FUSE program is mounted there"],
              **as_user(VICTIM, **plain(ONEPOT_RUNTIME_DIR="/dev/shm")))
        path = mount(archive, **as_user(VICTIM, **plain()))
        check_equal(path, f"/tmp/onepot-{VICTIM}/data.tar", "where it is mounted")
        check_served(path, "beside it")
        onepot("umount", path, **as_user(VICTIM, **plain()))
        life.wait_away(VICTIM)
        onepot("clean", "--all", env=environment(**plain()))
        check(not os.path.exists(f"/tmp/onepot-{VICTIM}"), "root's cleaning leaves the user's folder")
        for at, fd in ((taken, device), (session, second)):
            if at:
                harness.detach(at)
                os.close(fd)


# ---- mount points ----

def test_a_mount_point_that_another_user_could_replace_is_refused(work):
    with node(work) as archive:
        env = environment(**plain())
        own("/tmp/theirs", MALLORY, 0o777)
        own("/tmp/theirs/ours", 0)
        own("/tmp/ours", 0)
        for at in ("/tmp/theirs", "/tmp/theirs/ours", "/tmp/theirs/ours/at", "/tmp/theirs/new"):
            fails("mount", "--at", at, archive, env=env, words=["another user could replace it"])
            fails("run", "--at", at, archive, "--", "true", status=125, env=env,
                  words=["another user could replace it"])
        for at in ("/tmp/ours", "/tmp/ours/at", "/tmp/new"):
            check_equal(mount("--at", at, archive, env=env), at, "where it is mounted")
            onepot("umount", at, env=env)


# ---- after the last mount ----

def test_nobody_else_can_have_the_path_of_a_mount_that_has_ended(work):
    with node(work) as archive:
        user = as_user(VICTIM, **plain())
        path = mount(archive, **user)
        onepot("umount", path, **user)
        folder = os.path.dirname(path)
        check_equal(stat.S_IMODE(os.stat(folder).st_mode), 0o700, "the mode of the folder that stays")
        check_equal(os.listdir(folder), ["lock"], "what is in it")
        for command in (["mkdir", folder], ["mv", folder, "/dev/shm/x"], ["rmdir", folder]):
            done = run(*command, status=None, user=MALLORY, group=MALLORY, extra_groups=[])
            check(done.returncode != 0, f"another user can {command}")
        onepot("run", archive, "--", "true", **user)
        check_equal(os.listdir(folder), ["lock"], "what is in it after a run")
        life.wait_away(VICTIM)
        onepot("clean", **user)
        check(not os.path.exists(folder), "clean leaves the folder")
        for words in (["--all"], ["--user", str(VICTIM)], ["--job", "1"]):
            path = mount(archive, **user)
            onepot("clean", *words, env=environment(**plain()))
            check_served(path, f"by a mount in use, after {words}")
            onepot("umount", path, **user)
            life.wait_away(VICTIM)
            onepot("clean", *words, env=environment(**plain()))
            check(not os.path.exists(folder), f"clean {words} leaves the folder")


# ---- root's cleaning ----

def lock_of(uid):
    folder = own(f"/dev/shm/onepot-{uid}", uid)
    path = os.path.join(folder, "lock")
    life.write(path, b"")
    os.chown(path, uid, uid)
    return path


def test_users_who_hold_their_locks_are_named_and_wait_side_by_side(work):
    with node(work), contextlib.ExitStack() as held:
        users = (VICTIM, MALLORY, THIRD)
        for uid in users:
            fcntl.flock(held.enter_context(life.opened(lock_of(uid))), fcntl.LOCK_EX)
        free = own(f"/dev/shm/onepot-{FOURTH}", FOURTH)
        with life.process(onepot_program(), "clean", "--all", env=environment(**plain())) as p:
            wait_for(lambda: len(life.children_of(p.pid)) >= len(users), "all users to be waited for at once")
            wait_for(lambda: not os.path.exists(free), "the folder of a user who holds nothing up to go")
            check_equal(p.wait(60), 1, "status")
            lines = p.stderr.read().decode().splitlines()
        check_equal(sorted(uid for uid in users for line in lines if f"onepot-{uid}" in line),
                    sorted(users), f"users that the lines name: {lines}")


def test_the_folder_of_a_user_with_a_process_stays(work):
    """Another job of his may read a path there: nobody else is to have it."""
    if os.readlink("/proc/self/ns/pid") != "pid:[4026531836]":
        raise Skip("in a PID namespace nobody is known to be away")
    with node(work) as archive:
        user = as_user(VICTIM, **plain())
        path = mount(archive, **user)
        onepot("umount", path, **user)
        folder = os.path.dirname(path)
        setuid = "/srv/sleep"
        run("cp", "/bin/sleep", setuid)
        os.chmod(setuid, 0o4755)
        for program in ("sleep", setuid):
            with life.process(program, "1000", user=VICTIM, group=VICTIM, extra_groups=[]) as p:
                for words in (["--job", "99"], ["--all"], ["--user", str(VICTIM)]):
                    onepot("clean", *words, env=environment(**plain()))
                    check(os.path.exists(folder), f"clean {words} takes the folder of {program}'s user")
                p.kill()
                p.wait()
        life.wait_away(VICTIM)
        onepot("clean", "--all", env=environment(**plain()))
        check(not os.path.exists(folder), "clean leaves the folder")


def test_where_processes_are_hidden_nobody_is_known_to_be_away(work):
    with node(work) as archive:
        user = as_user(VICTIM, **plain())
        path = mount(archive, **user)
        onepot("umount", path, **user)
        folder = os.path.dirname(path)
        life.wait_away(VICTIM)
        run("unshare", "--pid", "--fork", "--mount-proc", onepot_program(), "clean", "--all", env=environment(**plain()))
        check(os.path.exists(folder), "root in a PID namespace takes the folder")
        run("mount", "-t", "proc", "-o", "hidepid=2", "proc", "/proc")
        onepot("clean", **user)
        check(os.path.exists(folder), "the user takes the folder, though other processes of his might be hidden")
        onepot("clean", "--all", env=environment(**plain()))
        check(not os.path.exists(folder), "root, who sees all processes, leaves the folder")
        harness.detach("/proc")


def test_a_user_is_told_that_mtab_is_missing(work):
    """Roots that debootstrap made have none, and fusermount3 only says that it is not permitted."""
    with node(work) as archive:
        run("cp", "-a", "/etc", "/srv/etc")
        os.unlink("/srv/etc/mtab")
        run("cp", "/etc/passwd", "/srv/etc/passwd")
        run("mount", "--bind", "/srv/etc", "/etc")
        user = as_user(VICTIM, **plain())
        path = mount(archive, **user)
        for command in (["umount", path], ["doctor"]):
            done = onepot(*command, status=1, **user)
            check(b"fusermount3 needs /etc/mtab" in done.stdout + done.stderr, f"{command}: {said(done)}")
        for left in harness.mountpoints():
            # Others lie below the node's own /dev/shm; doctor's trial is in a folder of its own.
            if f"/onepot-{VICTIM}/" in left and left.startswith(("/dev/shm/", "/tmp/onepot-self-test-")):
                run("umount", left)
        life.wait_away(VICTIM)
        harness.detach("/etc")


def test_thousands_of_folders_have_few_children_at_a_time_and_accounts_come_first(work):
    if not os.path.exists("/etc/subuid"):
        raise Skip("there is no /etc/subuid")
    with node(work), contextlib.ExitStack() as held:
        life.write("/srv/subuid", f"nobody\nsomeone:1:2\nsomeone:60000:500\n{'x' * 300}:1:70\n".encode())
        run("mount", "--bind", "/srv/subuid", "/etc/subuid")
        own(f"/dev/shm/onepot-{VICTIM}", VICTIM) # the first that is made is the last in a listing
        for uid in range(60000, 60500):
            own(f"/dev/shm/onepot-{uid}", uid)
            fcntl.flock(held.enter_context(life.opened(lock_of(uid))), fcntl.LOCK_EX)
        began = time.monotonic()
        with life.process(onepot_program(), "clean", "--all", env=environment(**plain())) as p:
            most = 0
            while p.poll() is None:
                most = max(most, len(life.children_of(p.pid)))
            check_equal(p.returncode, 1, "status")
        check(2 <= most <= 16, f"{most} children at a time")
        check(time.monotonic() - began < 30, "it takes longer than 20 s and what a busy node adds")
        check(not os.path.exists(f"/dev/shm/onepot-{VICTIM}"), "an account's folder is left")


def test_a_child_that_a_signal_ended_is_said_to_be_ended_by_it(work):
    with node(work), life.opened(lock_of(VICTIM)) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with life.process(onepot_program(), "clean", "--all", env=environment(**plain())) as p:
            wait_for(lambda: life.children_of(p.pid), "its child")
            os.kill(life.children_of(p.pid)[0], signal.SIGTERM)
            check_equal(p.wait(60), 1, "status")
            line = p.stderr.read().decode()
        check(f"user {VICTIM}" in line and "signal 15" in line, f"it says {line!r}")


def counters_of(folder, name="data.tar"):
    return os.path.join(folder, f"{name}.stat")


def test_what_a_user_wrote_in_his_counters_moves_root_to_nothing(work):
    """The mount point is another's, a process another's, texts have no end, files are pipes."""
    with node(work) as archive:
        user, root = as_user(VICTIM, **plain()), environment(**plain())
        other = mount(archive, env=root)
        for damage in ("mountpoint", "text", "pipe", "link"):
            path = mount(archive, **user)
            folder = os.path.dirname(path)
            pid = life.daemon_of(path, **user)
            counters = counters_of(folder)
            at = read(counters).index(path.encode() + b"\0")
            life.kill_left_behind("onepot-watch")
            os.kill(pid, signal.SIGKILL)
            life.wait_gone(pid)
            with open(counters, "r+b") as f:
                f.seek(at)
                if damage == "mountpoint":
                    f.write(other.encode() + b"\0")
                elif damage == "text":
                    f.write(b"/" * 4096)
            if damage in ("pipe", "link"):
                os.unlink(counters)
            if damage == "pipe":
                os.mkfifo(counters)
                os.chown(counters, VICTIM, VICTIM)
            elif damage == "link":
                os.symlink("/etc/passwd", counters)
            passwd = read("/etc/passwd")
            onepot("clean", "--all", env=root, status=None)
            check_equal(read(f"{other}/readme"), b"hello\n", f"a file of root's mount, after {damage}")
            check_equal(read("/etc/passwd"), passwd, "a file that a link leads to")
            harness.detach(path)
            run("rm", "-rf", folder)
        onepot("umount", other, env=root)


if __name__ == "__main__":
    harness.main(globals())

"""onepot mount: ready when it returns, nothing kept, nothing left by a failure; who shares."""

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import tarfile
import time
import zlib

import harness
import life
from harness import (check, check_equal, environment, mountpoints,
                     onepot, onepot_program, run, wait_for)
from life import check_nothing_left, fails, make_archive, mount, mounted, read, said, slots, umount


# ---- ready, and nothing kept ----

def test_a_shell_gets_the_path_and_goes_on(work):
    archive = make_archive(work)
    script = f"""
        M=$({onepot_program()} mount {archive}) || exit 1
        [ "$(cat "$M/readme")" = hello ] || exit 2
        [ "$(ls "$M/sub" | wc -l)" = {life.FILES} ] || exit 3
        {onepot_program()} umount "$M" 2>&1
    """
    done = run("bash", "-c", script, timeout=90)
    check(b"1 file" in done.stdout or b"file" in done.stdout, f"the last line: {done.stdout!r}")
    check_nothing_left()


def test_the_daemon_keeps_nothing_of_its_starter(work):
    archive = make_archive(work)
    reader, writer = os.pipe()
    ours, its = socket.socketpair()
    path = mount(archive, cwd=work.path, pass_fds=(writer, its.fileno()))
    os.close(writer)
    its.close()
    # Ends of files: nobody holds the other ends any more.
    check_equal(os.read(reader, 1), b"", "what an inherited pipe says")
    ours.settimeout(60)
    check_equal(ours.recv(1), b"", "what an inherited socket says")
    pid = life.daemon_of(path)
    check_equal(os.readlink(f"/proc/{pid}/cwd"), "/", "its working directory")
    for fd in range(3):
        check_equal(os.readlink(f"/proc/{pid}/fd/{fd}"), "/dev/null", f"its descriptor {fd}")
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    check_equal(int(fields[3]), pid, "its session")
    check(int(fields[1]) != os.getpid(), "it is a child of whoever waits for it")
    status = read(f"/proc/{pid}/status").decode()
    check("Umask:\t0077" in status, "its umask")
    umount(path)
    check_nothing_left()


def test_closed_standard_streams_do_no_harm(work):
    archive, at = make_archive(work), work / "at"
    run("bash", "-c", f"{onepot_program()} mount {archive} --at {at} <&- >&- 2>&-")
    check_equal(read(f"{at}/readme"), b"hello\n", "a file")
    pid = life.daemon_of(at)
    for fd in range(3):
        check_equal(os.readlink(f"/proc/{pid}/fd/{fd}"), "/dev/null", f"its descriptor {fd}")
    run("bash", "-c", f"{onepot_program()} umount {at} <&- >&- 2>&-")
    check_nothing_left()


def test_signals_that_were_ignored_or_blocked_before_do_no_harm(work):
    archive = make_archive(work)

    def spoil():
        for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 32)))

    path = mount(archive, preexec_fn=spoil)
    check_equal(read(f"{path}/readme"), b"hello\n", "a file")
    pid = life.daemon_of(path)
    os.kill(pid, signal.SIGTERM)
    life.wait_gone(pid)
    check_nothing_left()


def test_a_mount_is_what_it_should_be(work):
    path = mount(make_archive(work))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        line = next(l.split() for l in f if f" {path} " in l)
    check_equal(set("ro nosuid nodev noatime".split()) - set(line[5].split(",")), set(), "options")
    separator = line.index("-")
    check_equal(line[separator + 1], "fuse.onepot", "its type")
    check_equal(line[separator + 2], work / "data.tar", "its source")
    check_equal(os.stat(os.path.dirname(path)).st_mode & 0o777, 0o700, "the folder's mode")
    umount(path)
    check_nothing_left()


# ---- failures leave nothing ----

def test_failures_are_one_line_and_leave_nothing(work):
    archive = make_archive(work)
    life.write(work / "noise", b"\xff" * 100_000)
    life.write(work / "empty", b"")
    os.mkdir(work / "full")
    life.write(work / "full/file", b"")
    dead = subprocess.Popen(["true"])
    dead.wait()
    for arguments, words in (
            (["absent.tar"], ["absent.tar", "no such file"]),
            (["noise"], ["noise"]),
            (["empty"], ["empty"]),
            (["source"], ["source"]),
            ([archive, "--subdir", "absent"], ["--subdir", "absent"]),
            ([archive, "--subdir", "readme"], ["--subdir"]),
            ([archive, "--at", "noise"], ["noise", "directory"]),
            ([archive, "--at", "no/such/dir"], ["no/such/dir", "parent directory", "make that"]),
            ([archive, "no-such-dir"], ["no-such-dir", "make it first", "--at"]),
            ([archive, "absent.tar", archive], ["absent.tar", "check the path"]),
            # Closed to everybody, root included: no directory can be made in /sys.
            ([archive, "--at", "/sys/closed"], ["/sys/closed", "administrator", "onepot run"]),
            ([archive, "--at", "full"], ["not empty", "nonempty"]),
            ([archive, "--owner", str(dead.pid)], ["--owner", str(dead.pid)]),
            ([archive, "--log", "no/such/log"], ["no/such/log"]),
            ([archive, "--at", "/dev/fd/99"], ["/dev/fd/99"])):
        fails("mount", *arguments, words=words, cwd=work.path)
        check_equal(slots(), [], f"what {arguments} leaves")
    check_equal(mountpoints(work.path), [], "mounts")
    check(not os.path.exists(work / "no"), "a directory was made")
    done = onepot("mount", "", status=2)
    check(b"name is empty" in done.stderr, f"an empty name: {done.stderr}")


def test_options_that_are_not_served_are_refused(work):
    archive = make_archive(work)
    for arguments in (["--stage="], ["--seed", "x"], ["--nested="],
                      ["--on-conflict", "newest"], ["--readahead", "much"],
                      ["-o", "rw"], ["-o", "max_read=5"], ["--no-such-option"]):
        fails("mount", archive, *arguments, status=2)
    fails("mount", status=2)
    check_equal(slots(), [], "what is left")


def test_a_path_that_can_not_be_told_is_no_mount(work):
    archive = make_archive(work)
    with open("/dev/full", "wb") as full:
        fails("mount", archive, stdout=full, words=["standard output"])
    check_nothing_left("a full standard output")
    reader, writer = os.pipe()
    os.close(reader)
    onepot("mount", archive, stdout=writer, status=None)
    os.close(writer)
    check_nothing_left("a broken pipe")


def test_a_starter_that_is_killed_before_it_told_leaves_nothing(work):
    archive = make_archive(work)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    with life.background("mount", archive, stdout=writer) as starter:
        wait_for(lambda: mountpoints(work.path), "the mount")
        path = mountpoints(work.path)[0]
        pid = life.daemon_of(path)
        wait_for(lambda: b"pipe_write" in read(f"/proc/{starter.pid}/wchan")
                 or life.process_state(starter.pid) == "S", "the path to be written")
        time.sleep(0.2)
        starter.kill()
    life.wait_gone(pid)
    check_nothing_left("the starter's death")


def slow_archive(work):
    """It takes seconds to be read: 600 MiB of zeros, each of them packed in the same way."""
    archive = work / "slow.tar.gz"
    header, block, end = tarfile.TarInfo("zeros"), bytes(1 << 20), bytes(10240)
    header.size = 600 * len(block)
    packer = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    first, one, last = ([packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)
                         for part in (header.tobuf(), block)] + [packer.compress(end) + packer.flush()])
    crc = zlib.crc32(header.tobuf())
    for _ in range(600):
        crc = zlib.crc32(block, crc)
    size = 512 + header.size + len(end)
    with open(archive, "wb") as f:
        f.write(bytes.fromhex("1f8b0800000000000003") + first + one * 600 + last
                + struct.pack("<2I", zlib.crc32(end, crc), size))
    return archive


def signal_while_reading(archive, number):
    """Its exit status and words, or None when it was ready before the signal came."""
    run("rm", "-f", f"{archive}.onepot-index")
    with life.background("mount", archive) as starter:
        wait_for(lambda: "slow.tar.gz.stat" in slots(), "the slot")
        if starter.poll() is None:
            starter.send_signal(number)
            status, told, errors = life.ended(starter)
            if status == -number and not told:
                return status, errors
    onepot("umount", archive)
    return None


def test_a_signal_while_an_archive_is_read_leaves_nothing(work):
    archive = slow_archive(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        for _ in range(5):
            answer = signal_while_reading(archive, number)
            if answer:
                break
        check(answer, f"five times the mount was ready before, or ignored, signal {number}")
        check_nothing_left(f"signal {number}")


def test_a_start_that_was_killed_is_healed_by_the_next(work):
    archive, slow = make_archive(work), slow_archive(work)
    for _ in range(5):
        with life.background("mount", slow) as starter:
            wait_for(lambda: "slow.tar.gz.stat" in slots(), "the slot")
            starter.kill()
        if not mountpoints(work.path):
            break
        onepot("umount", slow)
        run("rm", "-f", f"{slow}.onepot-index")
    check("slow.tar.gz.stat" in slots(), "nothing is left to heal, or five times it was mounted before")
    path = mount(archive)
    check_equal(slots(), ["data.tar", "data.tar.lock", "data.tar.stat"], "slots")
    umount(path)
    check_nothing_left()


def waits_for_the_slot(pid, name):
    """Has the process its lock open, and that for longer than a look at it takes?"""
    def has():
        with contextlib.suppress(FileNotFoundError):  # it may end, or close one, meanwhile
            fds = f"/proc/{pid}/fd"
            return any(os.readlink(os.path.join(fds, fd)).endswith(f"/{name}.lock") for fd in os.listdir(fds))
        return False
    return all(has() for _ in range(3) if not time.sleep(0.05))


def test_who_wants_the_place_of_a_mount_that_starts_waits_for_it(work):
    archive, at = make_archive(work), work / "at"
    with life.background("mount", "--order", "-", archive, "--at", at,
                         stdin=subprocess.PIPE) as first:
        wait_for(lambda: "data.tar.stat" in slots(), "the slot")
        with life.background("mount", "--threads", "3", archive, "--at", at) as second:
            wait_for(lambda: second.poll() is not None or waits_for_the_slot(second.pid, "data.tar"),
                     "the second to wait")
            first.stdin.write(b"readme\n")
            first.stdin.close()
            first.stdin = None  # or communicate would flush it
            check_equal(life.ended(first)[0], 0, "the first")
            status, _, errors = life.ended(second)
    check_equal(status, 1, "the second")
    check("is mounted there already, with other options" in errors, f"the second says {errors!r}")
    umount(at)
    check_nothing_left()


def test_a_directory_that_goes_before_the_mount_is_made_again(work):
    """Other versions of the program took it for a leftover while the archive was opened."""
    with life.background("mount", "--order", "-", make_archive(work), stdin=subprocess.PIPE) as starter:
        wait_for(lambda: "data.tar" in slots(), "the slot")
        with open(os.path.join(life.folder(), "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # which its maker holds until it is whole
            os.rmdir(os.path.join(life.folder(), "data.tar"))
        starter.stdin.write(b"readme\n")
        status, path, errors = life.ended(starter)
    check_equal((status, errors), (0, ""), "the mount")
    umount(path.decode().rstrip("\n"))
    check_nothing_left()


# ---- sharing ----

def test_equal_mounts_are_shared_and_the_last_umount_ends_them(work):
    archive = make_archive(work)
    first, second, third = (mount(archive) for _ in range(3))
    check_equal([second, third], [first, first], "the paths")
    check_equal(len(mountpoints(work.path)), 1, "number of mounts")
    for others in (2, 1):
        done = umount(first)
        check(f"{others} other" in said(done), f"umount says {said(done)!r}")
        check_equal(read(f"{first}/readme"), b"hello\n", "a file")
    umount(first)
    check_nothing_left()


def test_other_options_and_other_content_are_not_shared(work):
    archive = make_archive(work)
    paths = [mount(archive), mount(archive, "--uid", "7"), mount(archive, "--subdir", "sub"),
             mount(archive, "--at", work / "at")]
    os.utime(archive, ns=(1, 1))
    paths.append(mount(archive))
    check_equal(len(set(paths)), 5, f"number of different paths of {paths}")
    check_equal(os.stat(f"{paths[1]}/readme").st_uid, 7, "owner by --uid")
    check_equal(len(os.listdir(paths[2])), life.FILES, "entries of --subdir")
    umount("--all")
    check_nothing_left()


def test_many_at_once_make_one_mount(work):
    archive = make_archive(work)
    starters = [subprocess.Popen([onepot_program(), "mount", archive], env=environment(),
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                for _ in range(16)]
    paths = {os.fsdecode(life.ended(p)[1]).rstrip("\n") for p in starters}
    check_equal([p.returncode for p in starters], [0] * 16, "statuses")
    check_equal(len(paths), 1, f"different paths: {paths}")
    check_equal(mountpoints(work.path), list(paths), "mounts")
    path = paths.pop()
    check_equal(mounted(path)["users"], 16, "holders")
    for _ in range(16):
        umount(path)
    check_nothing_left()


def test_jobs_and_steps_have_mounts_of_their_own(work):
    archive = make_archive(work)
    job1, job2, step = (environment(SLURM_JOB_ID=j, SLURM_STEP_ID=s)
                        for j, s in (("1", None), ("2", None), ("1", "0")))
    paths = [mount(archive, env=env) for env in (job1, job2, step, environment())]
    check_equal([os.path.basename(p) for p in paths],
                ["1-data.tar", "2-data.tar", "1.0-data.tar", "data.tar"], "names")
    check_equal(mount(archive, env=job1), paths[0], "the same job again")
    umount("--all", env=job1)
    check_equal(sorted(mountpoints(work.path)), sorted([paths[1], paths[3]]), "other jobs' mounts")
    umount("--all")
    check_equal(mountpoints(work.path), [paths[1]], "the mount of the other job")
    fails("umount", archive, words=["not mounted"])
    umount("--all", env=job2)
    check_nothing_left()


# ---- --at ----

def test_a_directory_is_made_and_goes_or_was_there_and_stays(work):
    archive = make_archive(work)
    os.mkdir(work / "there")
    for name, stays in (("made", False), ("there", True), ("odd, na\tme\\ é", False)):
        at = work / name
        check_equal(mount(archive, "--at", at), at, "the path")
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
        check_equal(mount(archive, "--at", name, cwd=work.path), at, "the path, again")
        umount(at)
        umount(name, cwd=work.path)
        check_nothing_left() # a namespace of another suite may have it a while longer, and so the directory
        check_equal(os.path.isdir(at), stays, f"{name} is there")


def test_a_link_leads_to_the_mount_point(work):
    archive = make_archive(work)
    os.symlink("target", work / "link")
    check_equal(mount(archive, "--at", work / "link"), work / "target", "the path")
    umount(work / "link")
    check_nothing_left()


def test_what_a_directory_holds_is_hidden_only_on_request(work):
    archive, at = make_archive(work), work.make("at")
    life.write(f"{at}/mine", b"")
    fails("mount", archive, "--at", at, words=["nonempty"])
    mount(archive, "--at", at, "-o", "nonempty")
    check("mine" not in os.listdir(at), "what was there is not hidden")
    umount(at)
    check_equal(os.listdir(at), ["mine"], "what was there")
    check_nothing_left()


def test_a_mount_point_that_is_taken_is_an_error(work):
    archive, other = make_archive(work), make_archive(work, "other.tar")
    at = work / "at"
    mount(archive, "--at", at)
    fails("mount", other, "--at", at, words=[at, "data.tar", "mounted there"])
    fails("mount", archive, "--at", at, "--uid", "5", words=["other options"])
    done = fails("mount", archive, "--at", at, env=environment(SLURM_JOB_ID="9"),
                 words=["data.tar", "outside of jobs", f"process {life.daemon_of(at)}",
                        "another --at", "onepot run"])
    check("unmount" not in said(done), f"it advises to harm others: {said(done)!r}")
    check_equal(read(f"{at}/readme"), b"hello\n", "a file")
    umount(at)
    check_nothing_left()


def test_a_dead_mount_at_the_place_is_healed(work):
    archive, other, at = make_archive(work), make_archive(work, "other.tar"), work / "at"
    mount(archive, "--at", at)
    pid = life.daemon_of(at)
    os.kill(pid, signal.SIGKILL)
    life.wait_gone(pid)
    mount(other, "--at", at)
    check_equal(read(f"{at}/readme"), b"hello\n", "a file")
    check_equal(len(mountpoints(at)), 1, "number of mounts there")
    umount(at)
    check_nothing_left()


def test_a_dead_mount_whose_state_is_gone_is_healed(work):
    archive, at = make_archive(work), work / "at"
    mount(archive, "--at", at)
    os.kill(life.daemon_of(at), signal.SIGKILL)
    harness.shutil.rmtree(life.folder())
    mount(archive, "--at", at)
    check_equal(len(mountpoints(at)), 1, "number of mounts there")
    umount(at)
    check_nothing_left()


def test_a_device_that_a_parent_mounted_is_served(work):
    archive, at = make_archive(work), work.make("at")
    fd = life.mount_device(at)
    with life.background("mount", "-f", archive, "--at", f"/dev/fd/{fd}", pass_fds=[fd]) as server:
        os.close(fd)
        check_equal(life.first_line(server), f"/dev/fd/{fd}", "what it prints")
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
        fails("umount", archive, words=["ends with it"])
        harness.unmount(at)
        check_equal(life.ended(server)[0], 0, "its status")
    check_nothing_left()


# ---- state ----

def test_a_state_folder_that_is_not_ours_alone_is_not_used(work):
    archive = make_archive(work)
    os.mkdir(life.folder(), 0o755)
    os.chmod(life.folder(), 0o755)
    fails("mount", archive, words=["no folder"])
    os.rmdir(life.folder())
    os.symlink(work.path, life.folder())
    fails("mount", archive, words=["no folder"])
    os.unlink(life.folder())


def test_without_a_runtime_directory_it_is_shared_memory(work):
    archive = make_archive(work, f"lifecycle-{os.getpid()}.tar")
    env = environment(ONEPOT_RUNTIME_DIR=None)
    with harness.shared_memory():
        path = mount(archive, env=env)
        try:
            check_equal(os.path.dirname(path), f"{os.path.realpath('/dev/shm')}/onepot-{os.geteuid()}",
                        "the folder")
            check_equal(read(f"{path}/readme"), b"hello\n", "a file")
        finally:
            umount(path, env=env)
            folder = os.path.dirname(path)
            check(os.path.isdir(folder) and not os.path.exists(path),
                  "the folder goes with the mount, or not all in it")
            onepot("clean", env=env)


if __name__ == "__main__":
    harness.main(globals())

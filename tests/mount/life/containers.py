"""How container runtimes call FUSE programs: the command line of squashfuse, a device that a
parent has mounted, and descriptors in the places where Apptainer's starter puts them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sys

import harness
import life
from harness import (Skip, check, check_equal, mountpoints, need_program, need_root, onepot,
                     onepot_program, run, wait_for)
from life import check_nothing_left, fails, make_archive, read

# The most that a starter waits for (Apptainer: 10 s); enroot's is 100 tries of a millisecond.
READY_SECONDS = 10


def make_image(work, *options):
    need_program("mksquashfs")
    make_archive(work)
    image = work / "image.sqsh"
    run("mksquashfs", work / "source", image, "-quiet", "-no-progress", *options)
    return image


def link(work, name="squashfuse_ll"):
    """The program by a name of squashfuse."""
    os.makedirs(work / "bin", exist_ok=True)
    path = work / f"bin/{name}"
    with contextlib.suppress(FileExistsError):
        os.symlink(onepot_program(), path)
    return path


def is_listed(at):
    """Is something mounted there? Without a question to it, which may wait."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return f" {at} " in f.read()


def mount_line(at):
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
        return [line.split() for line in f if f" {at} " in line][-1]


# ---- the command line ----

def test_the_last_word_is_the_mount_point(work):
    archive, at = make_archive(work), work.make("at")
    done = onepot("mount", archive, at, "-o", "ro,fsname=me,uid=7,gid=8,x-note=1")
    check_equal(done.stdout, b"", "what it prints")
    info = os.stat(f"{at}/readme")
    check_equal((info.st_uid, info.st_gid), (7, 8), "the owner")
    check_equal(mount_line(at)[-2], "me", "the source")
    onepot("umount", at)
    check_nothing_left("the first")
    onepot("mount", "-o", "subdir=sub", archive, archive, "--on-conflict=first", at)
    check("0001" in os.listdir(at), "several archives before it")
    onepot("umount", at)
    check_nothing_left()


def test_in_the_foreground_the_flag_may_stand_last(work):
    archive, at = make_archive(work), work.make("at")
    with life.background("mount", archive, at, "-f", "-o", "ro") as server:
        wait_for(lambda: mountpoints(at), "the mount")
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
        harness.unmount(at)
        status, out, _ = life.ended(server)
        check_equal((status, out), (0, b""), "status and output")
    check_nothing_left()


def test_a_folder_of_archives_is_no_mount_point(work):
    archive = make_archive(work)
    shards = work.make("shards")
    shutil.copy(archive, f"{shards}/other.tar")
    path = life.mount(archive, shards, "--each")
    check_equal(sorted(os.listdir(path)), ["data", "other"], "both are archives")
    onepot("umount", path)
    life.write(f"{shards}/other.tar", b"not an archive\n" * 100)
    fails("mount", archive, shards, words=["other.tar", "is not an archive", "-o nonempty"])
    onepot("mount", archive, shards, "-o", "nonempty")
    check("readme" in os.listdir(shards), "-o nonempty says that it is the mount point")
    onepot("umount", shards)
    check_nothing_left()


def test_words_of_other_programs_are_known_by_name(work):
    archive, at = make_archive(work), work.make("at")
    for word in ("rw", "suid", "dev", "allow_root", "auto_unmount", "direct_io", "max_read=1"):
        fails("mount", archive, at, "-o", f"ro,{word}", words=[f"-o {word}"], status=2)
    onepot("mount", archive, at, "-o", "defaults,async,nouser,_netdev,nofail,kernel_cache,nodiratime")
    onepot("umount", at)
    check_nothing_left()


# ---- by the name of squashfuse ----

def test_help_tells_a_starter_that_owners_can_be_set(work):
    for name in ("squashfuse", "squashfuse_ll"):
        done = run(link(work, name), status=2)
        check(b"-o uid=" in done.stdout + done.stderr, f"{name} says {done.stdout!r}")
    done = run(link(work), "-o", "uid=x", "a", "b", status=2)
    check(b"uid" in done.stderr, f"a wrong value: {done.stderr!r}")
    run(link(work), "one word", status=2)


def test_as_singularity_calls_it(work):
    """In the background; its end is that of fusermount -u, and it has no owner."""
    image, at = make_image(work), work.make("at")
    run(link(work, "squashfuse"), "-o", f"uid={os.geteuid()},gid={os.getegid()},ro,dev,suid,offset=0",
        image, at)
    check_equal(read(f"{at}/readme"), b"hello\n", "a file")
    need_program("fusermount3")
    run("fusermount3", "-u", at)
    check_nothing_left()


def test_as_enroot_calls_it(work):
    """In the foreground, and told by a hangup that its parent is gone."""
    image, at = make_image(work), work.make("at")
    with life.process(link(work, "squashfuse"), "-f", "-o", "uid=5,gid=6", image, at) as server:
        wait_for(lambda: mountpoints(at), "the mount", READY_SECONDS)
        check_equal(os.stat(f"{at}/readme").st_uid, 5, "the owner")
        server.send_signal(signal.SIGHUP)
        check_equal(life.ended(server)[0], 0, "its status")
    check_nothing_left()


# What enroot does with an image, by itself or for pyxis: in the namespaces of a user, a shell that
# leads a group of its own waits for the image's mount a hundred times a millisecond, lays an
# overlay over it, and stops itself. The command is then started over the overlay.
ENROOT_SHIM = """
import ctypes, os, signal, subprocess, sys, time
os.setpgid(0, 0)
image, root = sys.argv[1:]
os.chdir("/")
for name in ("lower", "upper", "work"):
    os.mkdir(os.path.join(root, name))
lower = os.path.join(root, "lower")
reader = subprocess.Popen(["squashfuse", "-f", "-o", f"uid={os.geteuid()},gid={os.getegid()}", image, lower])
for _ in range(101):
    if subprocess.run(["mountpoint", "-q", lower]).returncode == 0:
        break
    if reader.poll() is not None:
        sys.exit("squashfuse has ended")
    time.sleep(0.001)
else:
    sys.exit("no mount in time")
options = f"lowerdir={lower},upperdir={root}/upper,workdir={root}/work,xino=off"
if ctypes.CDLL(None).mount(b"overlay", root.encode(), b"overlay", 0, options.encode()) != 0:
    sys.exit("no overlay")
print(os.getpid(), reader.pid, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
ENROOT_PARENT = """
import os, signal, subprocess, sys
image, root, shim = sys.argv[1:]
child = subprocess.Popen([sys.executable, "-c", shim, image, root], stdout=subprocess.PIPE, text=True)
words = child.stdout.readline().split()
if len(words) != 2:
    sys.exit("the shim has failed")
os.waitpid(child.pid, os.WUNTRACED)
with open(os.path.join(root, "readme")) as f:
    said = f.read()
with open(os.path.join(root, "sub/0001"), "a") as f:
    f.write("more")
with open(os.path.join(root, "new"), "w") as f:
    f.write("new")
print(said, os.path.getsize(os.path.join(root, "sub/0001")), sorted(os.listdir(root)), *words, flush=True)
sys.stdin.read()
"""


def test_as_enroot_starts_an_image_for_itself_and_for_pyxis(work):
    """squashfuse -f -o uid=U,gid=G IMAGE ROOT/lower, found by the job's PATH, with no more of a
    session than pyxis gives; the end of the parent hangs it up."""
    need_program("unshare", "mountpoint")
    image, path = make_image(work), link(work, "squashfuse")
    run("chmod", "-R", "a+rX", work.path)
    env = {harness.MARK: os.environ[harness.MARK], "SLURM_JOB_ID": "7", "SLURM_JOB_UID": "0",
           "PATH": f"{os.path.dirname(path)}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    with life.process("unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "slave", "--",
                      sys.executable, "-c", ENROOT_PARENT, image, work.make("root"), ENROOT_SHIM, env=env, cwd="/",
                      stdin=harness.subprocess.PIPE) as p:
        line = p.stdout.readline().decode()
        if not line:
            errors = life.ended(p)[2]
            if "unshare" in errors or "overlay" in errors:
                raise Skip(f"no overlay for users here: {errors[-200:]}")
            check(False, errors)
        line += p.stdout.readline().decode()
        check(line.startswith("hello\n 2004 [") and "'new'" in line, f"the overlay shows {line!r}")
        shim, reader = (int(word) for word in line.split()[-2:])
        check(not life.is_gone(reader), "it has ended")
        check_equal(life.ended(p)[0], 0, "the parent's status, whose stopped group is now an orphan")
        life.wait_gone(shim)
        life.wait_gone(reader)
    check_nothing_left()


def test_a_starter_finds_the_mount_before_the_image_was_read(work):
    """It waits for less than a second; what it asks the mount then waits for the image."""
    image = make_image(work)
    need_program("tar")
    run("tar", "-C", work / ".", "-cf", work / "outer.tar", "image.sqsh")
    with work.mount(work / "outer.tar", name="outer") as outer:
        server, fd = outer.stat()["daemon_pid"], opened_image(outer / "image.sqsh")
        at = work.make("at")
        life.forget(outer / "image.sqsh")
        life.stop(server)
        try:
            with started([link(work, "squashfuse"), "-f", "/proc/self/fd/3", at], fd) as driver:
                wait_for(lambda: is_listed(at), "the mount")
                os.kill(server, signal.SIGCONT)
                check_equal(read(f"{at}/readme"), b"hello\n", "a file")
                driver.terminate()
                check_equal(life.ended(driver)[0], 0, "its status")
        finally:
            os.kill(server, signal.SIGCONT)
            os.close(fd)
    os.truncate(image, 1000)
    done = run(link(work, "squashfuse"), "-f", image, at, status=1)
    check(b"image.sqsh: is" in done.stderr, f"an image that can't be opened: {done.stderr!r}")
    check_equal(mountpoints(at), [], "mounts that are left")
    check_nothing_left()


def byte_of_fifo(fifo):
    with open(fifo, "rb") as f:
        return f.read()


def test_a_starter_is_told_by_a_fifo(work):
    image, at, fifo = make_image(work), work.make("at"), work / "fifo"
    os.mkfifo(fifo)
    life.write(work / "noise", b"noise\n" * 1000)
    for options in [], ["-f"]:
        with life.process(link(work), *options, "-o", f"notify_pipe={fifo}", image, at) as server:
            check_equal(byte_of_fifo(fifo), b"s", f"what {options} says of a mount")
            check_equal(read(f"{at}/readme"), b"hello\n", "a file")
            harness.unmount(at)
            check_equal(life.ended(server)[0], 0, "its status")
        for what, words in ((work / "noise", at), "is not an archive"), ((image, work / "absent"), "make it first"):
            with life.process(link(work), *options, "-o", f"notify_pipe={fifo}", *what) as server:
                check_equal(byte_of_fifo(fifo), b"f", f"what {options} says of a failure")
                status, _, errors = life.ended(server)
                check(status == 1 and words in errors, f"{status}: {errors}")
        check(not os.path.exists(work / "absent"), "a mount point was made")
    check_nothing_left()


def test_a_signal_takes_it_out_of_the_tree_while_open_files_are_served(work):
    image, at = make_image(work), work.make("at")
    for in_foreground in False, True:
        with life.process(link(work), *(["-f"] if in_foreground else []), image, at) as server:
            if not in_foreground:
                check_equal(life.ended(server)[0], 0, "its status")
            wait_for(lambda: mountpoints(at), "the mount")
            pid = server.pid if in_foreground else life.daemon_of(at)
            with open(f"{at}/sub/0001", "rb") as held:
                os.kill(pid, signal.SIGTERM)
                wait_for(lambda: not mountpoints(at), "it to leave the tree", READY_SECONDS)
                check_equal(held.read(), b"0001" * 500, "an open file")
                check(not life.is_gone(pid), "it has left a reader")
            if in_foreground:
                server.wait(60)
            life.wait_gone(pid)
        check_nothing_left(f"in the foreground: {in_foreground}")
    with life.process(link(work), "-f", image, at) as server:
        wait_for(lambda: mountpoints(at), "the mount")
        with life.opened(f"{at}/readme"):
            server.terminate()
            wait_for(lambda: not mountpoints(at), "it to leave the tree", READY_SECONDS)
            server.terminate()
            check_equal(life.ended(server)[0], 0, "the status after a second signal")
    check_nothing_left()


# ---- as Apptainer's starter does ----

@contextlib.contextmanager
def started(command, *descriptors):
    """A driver as the starter runs it: descriptors from 3 on, pipes for what it says, a group of
    its own, and only those of the environment's words that Apptainer keeps."""
    need_program("bash")
    kept = [os.dup2(fd, 50 + i) for i, fd in enumerate(descriptors)]
    places = "".join(f" {3 + i}<&{fd} {fd}<&-" for i, fd in enumerate(kept))
    env = harness.environment()
    env = {k: env[k] for k in (harness.MARK, "ONEPOT_RUNTIME_DIR", "LC_ALL")}
    env["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    with life.process("bash", "-c", f'exec "$@"{places}', "bash", *command, env=env, cwd="/",
                      pass_fds=kept, start_new_session=True) as p:
        for fd in kept:
            os.close(fd)
        yield p


def opened_image(path):
    return os.open(path, os.O_RDONLY)


def test_the_image_driver_of_a_user(work):
    """squashfuse_ll -f -o allow_other,ro,uid=U,gid=G,offset=N /proc/self/fd/3 TARGET"""
    need_root("mount with allow_other")
    image, at = make_image(work), work.make("at")
    sif = work / "image.sif"
    with open(sif, "wb") as f:
        f.write(b"#!/bin/sh\n".ljust(4096, b"\0") + read(image))
    fd = opened_image(sif)
    os.unlink(sif)  # a descriptor needs no path
    options = f"allow_other,ro,uid={os.geteuid()},gid={os.getegid()},offset=4096"
    with started([link(work), "-f", "-o", options, "/proc/self/fd/3", at], fd) as driver:
        os.close(fd)
        wait_for(lambda: mountpoints(at), "the mount", READY_SECONDS)
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
        line = mount_line(at)
        check("allow_other" in line[-1] and "default_permissions" not in line[-1],
              f"options of the mount: {line[-1]}")
        harness.unmount(at)
        status, out, errors = life.ended(driver)
        check_equal((status, out), (0, b""), f"status and output: {errors}")
    check_nothing_left()


def test_the_image_driver_of_a_setuid_starter(work):
    """The starter has mounted; the driver gets image and device as descriptors 3 and 4."""
    image, at = make_image(work), work.make("at")
    device, fd = life.mount_device(at), opened_image(image)
    try:
        with started([link(work), "-f", "-o", "allow_other,ro,uid=1,gid=2", "/proc/self/fd/3",
                      "/dev/fd/4"], fd, device) as driver:
            os.close(fd)
            os.close(device)
            check_equal(read(f"{at}/readme"), b"hello\n", "a file")
            check_equal(os.stat(f"{at}/readme").st_gid, 2, "the group")
            driver.terminate()
            check_equal(life.ended(driver)[0], 0, "its status")
    finally:
        harness.unmount(at)
    check_nothing_left()


def test_the_image_driver_in_a_user_namespace(work):
    """Without setuid, the starter has the rights of its namespace, and passes them on; Apptainer
    looks for the mount every 25 ms, and gives a driver that was unmounted a second to end."""
    need_program("unshare")
    image, at = make_image(work), work.make("at")
    sif = work / "image.sif"
    with open(sif, "wb") as f:
        f.write(b"#!/bin/sh\n".ljust(8192, b"\0") + read(image))
    fd = opened_image(sif)
    options = f"allow_other,ro,uid={os.geteuid()},gid={os.getegid()},offset=8192"
    inside = ('"$0" -f -o "$1" /proc/self/fd/3 "$2" & pid=$!; exec 3<&-; n=0; '
              'until grep -q " $2 " /proc/self/mountinfo; do n=$((n + 1)); [ $n -lt 400 ] || exit 9; sleep 0.025; '
              'done; cat "$2/readme"; stat -c %u "$2/readme"; umount "$2" && { sleep 1; kill -0 $pid 2>/dev/null && '
              'exit 8; wait $pid; }')
    with started(["unshare", "--user", "--map-current-user", "--keep-caps", "--mount", "--propagation", "slave", "--", "sh",
                  "-c", inside, link(work), options, at], fd) as starter:
        os.close(fd)
        status, out, errors = life.ended(starter)
    if "unshare" in errors:
        raise Skip(f"no user namespaces here: {errors[-200:]}")
    check_equal((status, out), (0, f"hello\n{os.geteuid()}\n".encode()), f"status and output: {errors}")
    check_nothing_left()


def test_the_image_driver_that_enters_the_user_namespace_of_a_container(work):
    """nsenter --user=/proc/PID/ns/user -F squashfuse_ll ... /proc/self/fd/3 /dev/fd/4"""
    need_root("mount")
    need_program("unshare", "nsenter")
    image, at = make_image(work), work.make("at")
    device, fd = life.mount_device(at), opened_image(image)
    with life.process("unshare", "--user", "--map-root-user", "cat", stdin=harness.subprocess.PIPE) as contained:
        def is_inside():
            return os.readlink(f"/proc/{contained.pid}/ns/user") != os.readlink("/proc/self/ns/user")
        wait_for(lambda: is_inside() or contained.poll() is not None, "its namespace")
        if contained.poll() is not None:
            raise Skip("no user namespaces here")
        with open(f"/proc/{contained.pid}/uid_map", encoding="ascii") as f:
            wait_for(lambda: f.seek(0) == 0 and f.read(), "its users")
        try:
            with started(["nsenter", f"--user=/proc/{contained.pid}/ns/user", "-F", link(work), "-f", "-o",
                          "allow_other,ro,uid=0,gid=0", "/proc/self/fd/3", "/dev/fd/4"], fd, device) as driver:
                os.close(fd)
                os.close(device)
                check_equal(read(f"{at}/readme"), b"hello\n", "a file")
                driver.terminate()
                check_equal(life.ended(driver)[0], 0, "its status")
        finally:
            harness.unmount(at)
        life.ended(contained)
    check_nothing_left()


def test_fusemount_from_the_host(work):
    """--fusemount "host:onepot mount ARCHIVE MOUNTPOINT": the device is 3, -f comes last."""
    archive, at = make_archive(work), work.make("at")
    device = life.mount_device(at)
    try:
        with started([onepot_program(), "mount", archive, "/dev/fd/3", "-f"], device) as driver:
            os.close(device)
            check_equal(read(f"{at}/readme"), b"hello\n", "a file")
            driver.terminate()
            status, out, _ = life.ended(driver)
            check_equal((status, out), (0, b""), "status and output, which is the container's")
    finally:
        harness.unmount(at)
    check_nothing_left()


def test_fusemount_as_a_daemon_of_the_container(work):
    """--fusemount "container-daemon:...": the command returns when the mount is ready."""
    archive, at = make_archive(work), work.make("at")
    device = life.mount_device(at)
    try:
        with started([onepot_program(), "mount", archive, "/dev/fd/3"], device) as driver:
            os.close(device)
            status, out, errors = life.ended(driver)
            check_equal((status, out), (0, b""), f"status and output: {errors}")
        check_equal(read(f"{at}/readme"), b"hello\n", "a file")
    finally:
        harness.unmount(at)
    check_nothing_left()


# ---- Charliecloud ----

def test_the_example_for_charliecloud(work):
    """Its image and its data are mounts; no program is started but Charliecloud's own."""
    need_program("ch-run", "bash", "ldd", "mksquashfs")
    example = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                           "../../../examples/containers/charliecloud.sbatch")
    run("mksquashfs", life.make_root(work, "cat"), work / "image.sqsh", "-quiet", "-no-progress")
    archive = make_archive(work)
    link(work, "onepot")
    env = harness.environment(USER="somebody", PATH=f"{work / 'bin'}:{os.environ['PATH']}")
    done = run("bash", example, work / "image.sqsh", archive, "/bin/cat", "/mnt/0/readme", env=env,
               status=None)
    if b"clone" in done.stderr or b"user namespace" in done.stderr:
        raise Skip(f"no user namespaces here: {done.stderr[-200:]!r}")
    check_equal((done.returncode, done.stdout), (0, b"hello\n"), f"status and output: {done.stderr!r}")
    check_nothing_left()


# ---- what such a mount can do ----

# A process of the container: it mounts in namespaces of its own, hands the device to the host,
# reads every file, and prints the mount's report on itself.
CONTAINED = """
import ctypes, json, os, socket, sys, time
at, files = sys.argv[2], int(sys.argv[3])
fd = os.open("/dev/fuse", os.O_RDWR)
options = f"fd={fd},rootmode=40000,user_id={os.geteuid()},group_id={os.getegid()}"
if ctypes.CDLL(None).mount(b"container", at.encode(), b"fuse", 1, options.encode()) != 0:
    sys.exit("it can't mount")
socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b"x"], [fd])
os.close(fd)
def ahead():
    with open(at + "/.onepot/stat.json") as f:
        return json.load(f)["ahead_files"]
for i in range(files):
    with open(f"{at}/train/{i:05d}", "rb", buffering=0) as f:
        assert f.read() == b"%05d" % i * 300, i
    # A reader that is always faster than what reads ahead of it would show nothing.
    until = time.monotonic() + 0.2
    while i > 1000 and i % 100 == 0 and ahead() <= 100 and time.monotonic() < until:
        time.sleep(0.01)
time.sleep(0.3)  # what was begun is counted
print(open(at + "/.onepot/stat.json").read())
"""


@contextlib.contextmanager
def container(work, files, *unshare, preload=None):
    """A container that has mounted: the process, and the device that it has handed over."""
    env = harness.environment(**({"LD_PRELOAD": preload} if preload else {}))
    ours, its = socket.socketpair()
    with life.process("unshare", "--mount", *unshare, "--propagation", "private", "--",
                      sys.executable, "-c", CONTAINED, str(its.fileno()), work.make("at"), str(files),
                      pass_fds=[its.fileno()], env=env) as p:
        its.close()
        data, fds, _, _ = socket.recv_fds(ours, 1, 1)
        check(data, f"the container said {p.stderr.read() if not data else ''!r}")
        yield p, fds[0]


FILES = 6000


def make_many(work):
    need_program("tar")
    os.makedirs(work / "source/train")
    for i in range(FILES):
        life.write(work / f"source/train/{i:05d}", b"%05d" % i * 300)
    run("tar", "--sort=name", "-C", work / "source", "-cf", work / "many.tar", "train")
    return work / "many.tar"


def test_a_mount_in_a_container_is_read_ahead(work):
    """The daemon sees neither the mount nor, with --pid, itself in the container's numbers."""
    need_root("unshare")
    need_program("unshare")
    archive = make_many(work)
    for number, unshare in enumerate(([], ["--pid", "--fork"])):
        place = harness.Work(work.make(f"{number}"))
        with container(place, FILES, *unshare) as (contained, device):
            with started([onepot_program(), "mount", archive, "/dev/fd/3", "-f"], device) as driver:
                os.close(device)
                status, out, errors = life.ended(contained)
                check_equal(status, 0, f"the container says {errors!r}")
                stat = json.loads(out)
                check_equal(life.ended(driver)[0], 0, "the driver's status")
        check(stat["ahead_files"] > 100, f"{stat['ahead_files']} files were read ahead")
        # What a fetcher asked for right before it ended may be taken for a reader's.
        check(stat["requests"]["READ"] <= FILES + 100 - stat["ahead_files"] // 2,
              f"fetchers count as readers: {stat['requests']['READ']}")
        check(stat["read_files"] <= FILES, f"{stat['read_files']} files were read")
        check_nothing_left()


def preloaded_by(archive):
    """The library that programs preload, of a mount of the same archive outside."""
    if b"--intercept" not in onepot("run", "--help").stdout:
        raise Skip("this onepot was built without a library to preload")
    for line in onepot("mount", "--export", "--intercept=on", archive).stdout.decode().splitlines():
        if line.startswith("export LD_PRELOAD="):
            return line.split("'")[1]
    raise AssertionError("the shell gets no library")


def test_programs_in_a_container_read_without_the_mount(work):
    """The mount of a parent offers it as onepot's own does: a container needs the library alone."""
    need_root("unshare")
    need_program("unshare")
    archive = make_many(work)
    library = preloaded_by(archive)
    for unshare in [], ["--user", "--map-root-user"]:
        place = harness.Work(work.make("-".join(unshare) or "plain"))
        with container(place, 500, *unshare, preload=library) as (contained, device):
            with started([onepot_program(), "mount", archive, "/dev/fd/3", "-f"], device) as driver:
                os.close(device)
                status, out, errors = life.ended(contained)
                check_equal(status, 0, f"the container says {errors!r}")
                check_equal(life.ended(driver)[0], 0, "the driver's status")
        stat = json.loads(out)
        check(stat["direct_files"] > 250, f"{unshare}: {stat['direct_files']} files were read directly")
    onepot("umount", archive)
    check_nothing_left()


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

"""Real users of one node, for tests of what one of them can do to another."""

import contextlib
import ctypes
import os
import stat

import harness
from harness import Skip, environment, need_program, need_root, onepot_program, run
from life import make_archive

# Each suite's own: what becomes of a user's folder depends on all of the user's processes.
VICTIM = 20000 + os.getpid() % 8000 * 4
MALLORY, THIRD, FOURTH = VICTIM + 1, VICTIM + 2, VICTIM + 3


def as_user(uid, **variables):
    return {"user": uid, "group": uid, "extra_groups": [],
            "env": environment(XDG_CACHE_HOME="/nonexistent", **variables)}


def own(path, uid, mode=0o700):
    """A folder of a user's."""
    os.makedirs(path, exist_ok=True)
    os.chown(path, uid, uid)
    os.chmod(path, mode)
    return str(path)


@contextlib.contextmanager
def node(work):
    """A node of our own, with nothing in /dev/shm, /tmp and /run/user. Ordinary users may open
    /dev/fuse and have names. The test's folder in the real /tmp is at /srv/onepot-test."""
    need_root("be several users")
    need_program("unshare", "fusermount3")
    harness.need_users()
    before = os.stat("/proc/self/ns/mnt").st_ino
    harness.isolate()
    if os.stat("/proc/self/ns/mnt").st_ino == before:
        raise Skip("root may not make a mount namespace here")
    archive = make_archive(work)
    here = "/srv/onepot-test"
    run("chmod", "-R", "go+rX", work.path)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/srv")
    os.mkdir(here)
    run("mount", "--bind", work.path, here)
    run("cp", onepot_program(), here)
    device = os.stat("/dev/fuse").st_rdev
    os.mknod("/srv/fuse", stat.S_IFCHR | 0o600, device)
    os.chmod("/srv/fuse", 0o666)
    with open("/etc/passwd", encoding="utf-8") as f, open("/srv/passwd", "w", encoding="utf-8") as to:
        to.write(f.read())
        for name, uid in (("victim", VICTIM), ("mallory", MALLORY)):
            to.write(f"{name}:x:{uid}:{uid}::/:/bin/sh\n")
    run("mount", "--bind", "/srv/fuse", "/dev/fuse")
    run("mount", "--bind", "/srv/passwd", "/etc/passwd")
    for place in ("/dev/shm", "/tmp"):
        run("mount", "-t", "tmpfs", "-o", "mode=1777", "none", place)
    if os.path.isdir("/run/user"):
        run("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run/user")
    os.environ["ONEPOT"] = f"{here}/onepot"
    yield f"{here}/{os.path.basename(archive)}"


def squat(uid, *places):
    for place in places:
        own(f"{place}/onepot-{uid}", MALLORY)


def plain(**variables):
    return {"ONEPOT_RUNTIME_DIR": None, "TMPDIR": None, "XDG_RUNTIME_DIR": None, **variables}


def mount_of_mallory(at, kind=stat.S_IFDIR):
    """A FUSE mount that nothing serves, over a directory or a file: as fusermount mounts where /etc/fuse.conf has user_allow_other."""
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={kind:o},user_id={MALLORY},group_id={MALLORY},allow_other"
    if libc.mount(b"x", os.fsencode(at), b"fuse", 1, options.encode()) != 0:
        raise Skip(f"mount(2): {os.strerror(ctypes.get_errno())}")
    return device

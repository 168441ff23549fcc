"""A kernel as old as RHEL 8's, which lacks pidfd_open, close_range, openat2, the new mount
interface and all else since Linux 4.18; and containers, whose filters answer EPERM to calls that
they don't know: everything works, by older calls, or the line names the call."""

import errno
import functools
import json
import mmap
import os
import pathlib
import tarfile

import harness
import life
from harness import Counter, Skip, check, check_equal, onepot_program, run, wait_for
from tars import write_folder

REFUSE = os.environ.get("REFUSE", "")
OLD_FUSE = os.environ.get("OLD_FUSE", "")
OLD = (REFUSE, "new", str(errno.ENOSYS))


def on_old_kernel(*arguments, **options):
    return run(*OLD, onepot_program(), *arguments, **options)


def need_old_kernel():
    if run(*OLD, "true", status=None).returncode == 77:
        raise Skip("this kernel filters no system calls")
    check(run(*OLD, "python3", "-c", "import os; os.pidfd_open(os.getpid())",
              status=None).returncode != 0, "the old kernel has pidfds")


def directly(path, flags):
    return os.open(path, flags | os.O_DIRECT)


def make_folder(work):
    work = pathlib.Path(work / ".")
    path = work / "data.tar"
    (work / "src").mkdir()
    for i in range(300):
        (work / "src" / f"{i:03}").write_bytes(b"%d" % i * 1000)
    with tarfile.open(path, "w") as tar:
        tar.add(work / "src", ".")
    return path


def test_mount_read_and_unmount(work):
    need_old_kernel()
    harness.need_root("mount where no setuid program helps, as under a filter of system calls")
    archive = make_folder(work)
    at = pathlib.Path(work / "at")
    on_old_kernel("mount", archive, "--at", at)
    for i in range(300):
        check_equal((at / f"{i:03}").read_bytes(), b"%d" % i * 1000, "a file")
    on_old_kernel("stat", at)
    on_old_kernel("umount", at)
    check(not harness.mountpoints(at), "the mount stays")


def test_pack_verify_extract_and_run(work):
    need_old_kernel()
    make_folder(work)
    out = work / "data.onepot"
    on_old_kernel("pack", "--zstd", "-o", out, work / "src")
    on_old_kernel("verify", out)
    on_old_kernel("extract", out, "-C", work.make("to"))
    check_equal(pathlib.Path(work / "to/007").read_bytes(), b"7" * 1000, "an extracted file")
    done = on_old_kernel("run", out, "--", "sh", "-c", "cat $ONEPOT_MOUNT/007 | wc -c")
    check_equal(done.stdout.strip(), b"1000", "bytes that the command read")


def test_staged_and_gone_with_its_owner(work):
    need_old_kernel()
    harness.need_root("mount where no setuid program helps, as under a filter of system calls")
    archive = make_folder(work)
    at = pathlib.Path(work / "at")
    script = f'"{onepot_program()}" mount --stage --owner $$ --at "{at}" "{archive}" >/dev/null && cat "{at}/299"'
    done = run(*OLD, "bash", "-c", script)
    check_equal(len(done.stdout), 3000, "bytes of a staged file")
    wait_for(lambda: not harness.mountpoints(at), "the end of a mount whose owner has ended")


# On x86-64. What onepot and glibc for it have another way for.
CALLS = {"preadv2": 327, "renameat2": 316, "fallocate": 285, "faccessat2": 439, "clone3": 435, "close_range": 436,
         "pidfd_open": 434, "openat2": 437, "statx": 332, "copy_file_range": 326, "membarrier": 324}


def under(call, error, *command, **options):
    return run(REFUSE, str(call), str(error), *command, **options)


def small_round(work, archive, name, onepot):
    """What `onepot` runs does all that it does elsewhere."""
    to = pathlib.Path(work.make(name))
    onepot("self-test")
    for options in [], ["--stage"], [f"--writable={work.make(name + '.layer')}"]:
        done = onepot("run", *options, archive, "--", "sh", "-c", "cat {}/007 {}/299 | wc -c")
        check_equal(done.stdout.strip(), b"4000", f"{name}: bytes read by run {options}")
    onepot("mount", archive, "--at", to / "at")
    check_equal((to / "at/299").read_bytes(), b"299" * 1000, f"{name}: a file of the mount")
    onepot("umount", to / "at")
    check(not harness.mountpoints(to / "at"), f"{name}: the mount stays")
    onepot("pack", "-o", to / "new.tar", work / "src")
    onepot("extract", to / "new.tar", "-C", work.make(name + ".out"))
    check_equal(pathlib.Path(work / f"{name}.out/007").read_bytes(), b"7" * 1000, f"{name}: an extracted file")


def test_each_call_that_has_another_way_may_be_refused(work):
    need_old_kernel()
    harness.need_root("mount where no setuid program helps, as under a filter of system calls")
    archive = make_folder(work)
    for call, number in CALLS.items():
        for error in errno.EPERM, errno.ENOSYS:
            small_round(work, archive, f"{call}-{errno.errorcode[error]}",
                        functools.partial(under, number, error, onepot_program()))


def test_fuse_as_old_as_7_27(work):
    """Without MAX_PAGES, and all else that came after Linux 4.18."""
    if life.is_sanitized():
        raise Skip("a sanitizer wants to be preloaded first")
    archive = make_folder(work)
    env = dict(harness.environment(), LD_PRELOAD=OLD_FUSE)
    small_round(work, archive, "7.27", functools.partial(run, onepot_program(), env=env))
    large = write_folder(work / "large.tar", {"f": bytes(1 << 20)})
    with work.mount(large, env=env) as mount, open(mount / "d/f", "rb", buffering=0, opener=directly) as f:
        counter = Counter(mount)
        check_equal(f.readinto(mmap.mmap(-1, 1 << 20)), 1 << 20, "bytes read past the cache")
        check_equal(counter.asked()["READ"], 8, "requests for 1 MiB, of 32 pages each")



def test_a_refused_call_without_another_way_is_named(work):
    need_old_kernel()
    archive = make_folder(work)
    done = under(319, errno.EPERM, onepot_program(), "run", archive, "--", "true", status=125)
    check(b"memfd_create" in done.stderr and b"seccomp" in done.stderr, done.stderr)


def test_doctor_tries_namespaces_as_run_does(work):
    """A namespace may be made, but nothing mounted in it."""
    need_old_kernel()
    archive = make_folder(work)
    done = under(165, errno.EPERM, onepot_program(), "doctor", "--json", status=None)
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == "namespaces"]
    check(found["kind"] != "good" and "not permitted" in found["text"], found)
    under(165, errno.EPERM, onepot_program(), "run", archive, "--", "true", status=125)
    done = run(onepot_program(), "doctor", "--json", status=None)
    (found,) = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == "namespaces"]
    status = run(onepot_program(), "run", archive, "--", "true", status=None,
                 env=dict(os.environ, ONEPOT_MOUNT_METHODS="namespace")).returncode
    check_equal(found["kind"] == "good", status == 0, "what doctor says of namespaces is what run finds")


if __name__ == "__main__":
    harness.main(globals())

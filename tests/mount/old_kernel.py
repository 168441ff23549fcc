"""A kernel as old as RHEL 8's, which lacks pidfd_open, close_range, openat2, the new mount
interface and all else since Linux 4.18: everything works, by older calls."""

import os
import pathlib
import tarfile

import harness
from harness import Skip, check, check_equal, onepot_program, run, wait_for

OLD = os.environ.get("OLD_KERNEL", "")


def on_old_kernel(*arguments, **options):
    return run(OLD, onepot_program(), *arguments, **options)


def need_old_kernel():
    if run(OLD, "true", status=None).returncode == 77:
        raise Skip("this kernel filters no system calls")
    check(run(OLD, "python3", "-c", "import os; os.pidfd_open(os.getpid())",
              status=None).returncode != 0, "the old kernel has pidfds")


def make_archive(work):
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
    archive = make_archive(work)
    at = pathlib.Path(work / "at")
    on_old_kernel("mount", archive, "--at", at)
    for i in range(300):
        check_equal((at / f"{i:03}").read_bytes(), b"%d" % i * 1000, "a file")
    on_old_kernel("stat", at)
    on_old_kernel("umount", at)
    check(not harness.mountpoints(at), "the mount stays")


def test_pack_verify_extract_and_run(work):
    need_old_kernel()
    make_archive(work)
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
    archive = make_archive(work)
    at = pathlib.Path(work / "at")
    script = f'"{onepot_program()}" mount --stage --owner $$ --at "{at}" "{archive}" >/dev/null && cat "{at}/299"'
    done = run(OLD, "bash", "-c", script)
    check_equal(len(done.stdout), 3000, "bytes of a staged file")
    wait_for(lambda: not harness.mountpoints(at), "the end of a mount whose owner has ended")


if __name__ == "__main__":
    harness.main(globals())

"""Staging: files are right before, while and after the archive is copied, each byte of it is
asked for once, one copy serves all, and nothing is left behind.

The slow file system counts what is asked of it; how long that takes is not looked at.
"""

import contextlib
import glob
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

import harness
import life
from harness import Failure, check, check_equal, mountpoints, onepot, run, wait_for
from slow import Slow

FILES, FILE_BYTES = 1200, 20000
SLACK = 3 << 20  # trailer and footer, pages at the edges of ranges


def content(i):
    return (hashlib.sha256(str(i).encode()).digest() * (FILE_BYTES // 32 + 1))[:FILE_BYTES]


def make_tree(tree):
    for i in range(10):
        os.mkdir(os.path.join(tree, f"d{i}"))
    for i in range(FILES):
        with open(os.path.join(tree, f"d{i % 10}", f"f{i}"), "wb") as f:
            f.write(content(i))
    return tree


def make_source(work):
    """An archive of some 25 MB, and the folder that it is alone in. It lies on a disk, as what is in
    memory is not copied; what it is made of need not."""
    source = work.make("source")
    archive = os.path.join(source, "a.tar")
    with tempfile.TemporaryDirectory(dir=os.environ.get("ONEPOT_TESTS_MEMORY", work.path)) as tree:
        onepot("pack", "-o", archive, make_tree(tree))
    return source, os.path.getsize(archive)


def read_all(path, shuffled=1):
    order = list(range(FILES))
    random.Random(shuffled).shuffle(order)
    for i in order:
        with open(os.path.join(path, f"d{i % 10}", f"f{i}"), "rb", buffering=0) as f:
            check(f.read() == content(i), f"file {i} has other bytes")


def read_by(count, path):
    failures = []

    def read(seed):
        try:
            read_all(path, seed)
        except (Failure, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def staged(mount):
    return mount.stat()["stage"]


def await_whole(mount):
    wait_for(lambda: staged(mount)["here_bytes"] == staged(mount)["bytes"], "the whole copy")


def copies(work):
    """Files of copies that there are."""
    return glob.glob(os.path.join(work / ".home", "run", "onepot-stage-*", "*.*"))


def overwrite(path):
    with open(path, "r+b") as f:
        f.write(os.urandom(os.path.getsize(path)))


def kill_daemon(mount):
    pid = mount.stat()["daemon_pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: mount.stat()["state"] == "dead", "the daemon's end")
    return pid


def kill_all(mount):
    """The daemon, and what watches it, as the end of a job's control group does."""
    life.kill_left_behind("onepot-watch", 1)
    kill_daemon(mount)


def test_a_copy_goes_with_the_last_daemon_that_is_killed(work):
    source, _ = make_source(work)
    archive = os.path.join(source, "a.tar")
    for option in ("--stage", "--stage=" + work.make("place")):
        with work.mount(option, archive, name="one") as one, \
                work.mount(option, "--idle=1000", archive, name="two") as two:
            await_whole(two)
            folder = staged(two)["folder"]
            kill_daemon(one)
            one.mounted = False
            harness.detach(one.path)
            read_all(two.path)
            check(os.path.exists(folder), "the copy of a living mount is gone")
            kill_daemon(two)
            two.mounted = False
            wait_for(lambda: not os.path.exists(folder), "the copy to go")
        onepot("umount", "--all")


def test_each_byte_is_fetched_once(work):
    source, size = make_source(work)
    with Slow(work, "--read=2ms", "--bandwidth=40M", "--limit=32", source) as slow:
        with work.mount("--stage", slow / "a.tar") as mount:
            read_by(4, mount.path)
            await_whole(mount)
            counted = slow.counts()
            stage = staged(mount)
            check_equal(stage["bytes"], size, "bytes to stage")
            check_equal(stage["stream_bytes"] + stage["demand_bytes"], size, "bytes copied")
            check_equal(stage["failure"], 0, "failure")
            # Pages that the kernel drops before they are copied are fetched twice.
            check(size <= counted["bytes"] <= 2 * size + stage["past_bytes"] + SLACK,
                  f"{counted['bytes']} bytes were fetched of {size}")
            check_equal(len(copies(work)), 2, "files of the copy")
            with open("/proc/sys/vm/drop_caches", "wb") if os.geteuid() == 0 else \
                    contextlib.nullcontext() as f:
                if f:
                    f.write(b"3")
            read_all(mount.path, 7)
            check(slow.counts()["bytes"] - counted["bytes"] < SLACK, "it was fetched again")
        check_equal(copies(work), [], "files afterwards")


def test_mounts_share_a_copy_and_outlive_each_other(work):
    source, size = make_source(work)
    with Slow(work, "--read=20ms", "--bandwidth=12M", "--limit=32", source) as slow:
        first = work.mount("--stage", slow / "a.tar", name="one")
        with work.mount("--stage", "--idle=1000", slow / "a.tar", name="two") as second:
            with first:
                wait_for(lambda: staged(first)["here_bytes"] > 0, "a beginning")
                kill_daemon(first)
                first.mounted = False
                harness.unmount(first.path)
            read_all(second.path)
            await_whole(second)
            fetched = slow.counts()["bytes"]
            # What the killed one had in flight is fetched again, no more.
            check(fetched <= size + (28 << 20) + SLACK, f"{fetched} bytes were fetched of {size}")
        check_equal(copies(work), [], "files afterwards")
        check(onepot("umount", "--all").returncode == 0, "umount")


def test_the_next_start_removes_what_was_killed(work):
    source, _ = make_source(work)
    with Slow(work, source) as slow:
        with work.mount("--stage", slow / "a.tar") as mount:
            await_whole(mount)
            kill_all(mount)
            mount.mounted = False
            harness.detach(mount.path)
        check_equal(len(copies(work)), 2, "files that a killed daemon left")
        with work.mount(slow / "a.tar", name="other"):
            check_equal(copies(work), [], "files after the next start")


def test_umount_removes_what_was_killed(work):
    """A job's last command may be its only chance, and --stage may have named any place."""
    source, _ = make_source(work)
    for option in ("--stage", "--stage=" + work.make("place")):
        with work.mount(option, os.path.join(source, "a.tar")) as mount:
            await_whole(mount)
            folder = staged(mount)["folder"]
            kill_all(mount)
            check(os.listdir(folder), f"no copy in {folder}")
            mount.mounted = False
            onepot("umount", "--all")
            check(not os.path.exists(folder), f"{folder} is still there")


def test_what_is_there_outlives_the_source(work):
    source, _ = make_source(work)
    with Slow(work, source) as slow:
        with work.mount("--stage", slow / "a.tar") as mount:
            await_whole(mount)
            os.kill(slow.pid(), signal.SIGKILL)
            harness.detach(slow.at)
            read_all(mount.path)


def test_a_source_that_fails_now_and_then_is_copied(work):
    source, size = make_source(work)
    with Slow(work, "--fail-every=9", source) as slow:
        with work.mount("--stage", slow / "a.tar") as mount:
            await_whole(mount)
            check_equal(staged(mount)["here_bytes"], size, "bytes")
            read_all(mount.path)


def test_what_does_not_fit_is_refused(work):
    source, _ = make_source(work)
    archive = os.path.join(source, "a.tar")
    with work.kernel_mount("tmpfs", "small", "small", "-o", "size=8m") as small:
        done = onepot("mount", f"--stage={small}", archive, "--at", work / "at", status=1)
        said = done.stderr.decode()
        check("can't be staged" in said and "has 7 MiB for it" in said and "--stage=DIR" in said,
              f"it said: {said}")
        check_equal(os.listdir(small), [], "files there")
    check_equal(mountpoints(work.path), [], "mounts")
    onepot("mount", "--stage=", archive, status=2)
    onepot("mount", f"--stage={work / 'nowhere'}", archive, status=1)


def test_two_versions_of_the_program_stage_one_archive(work):
    """A job may still run the old one: each has a copy that it understands."""
    archive = os.path.join(make_source(work)[0], "a.tar")
    other = os.environ.get("ONEPOT_OTHER")
    if not other:
        raise harness.Skip("ONEPOT_OTHER does not name another version; 'meson test' sets it")
    with work.mount("--stage", archive) as mount:
        await_whole(mount)
        done = run(other, "run", "--stage", archive, "--at", work.make("at"), "--", "cat",
                   "{}/d3/f3")
        check_equal(done.stdout, content(3), "what the other version reads")
        await_whole(mount)
        read_all(mount.path)
    check_equal(copies(work), [], "copies left")
    with work.kernel_mount("tmpfs", "small", "small", "-o", "size=40m") as small:
        with work.mount(f"--stage={small}", archive) as mount:
            await_whole(mount)
            done = run(other, "run", f"--stage={small}", archive, "--", "cat", "{}/d3/f3")
        wait_for(lambda: run("umount", small, status=None).returncode == 0, "its end to be complete")
        check_equal(done.stdout, content(3), "what the other version reads without room for a copy")
        lines = [line for line in done.stderr.decode().splitlines() if "another version" in line]
        check_equal(len(lines), 1, f"lines that tell of it in {done.stderr!r}")


def test_a_copy_is_all_that_is_read_once_it_is_whole(work):
    """The archive's index as well, which is mapped from where it lies on local storage."""
    archive = os.path.join(make_source(work)[0], "a.tar")
    with work.mount("--stage", archive) as mount:
        pid = mount.stat()["daemon_pid"]

        def maps():
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
                return f.read()
        wait_for(lambda: archive + "\n" not in maps(), "the index to be mapped from the copy")
        overwrite(archive)
        read_all(mount.path)
        check_equal(mount.stat()["errors"], 0, "errors")


def test_an_archive_that_is_changed_while_it_is_copied_is_told_of(work):
    source, _ = make_source(work)
    job = ("import os, sys\nprint(sys.argv[1], flush=True)\nsys.stdin.readline()\nfor i in range(50):\n"
           "    try: open(f'{sys.argv[1]}/d{i % 10}/f{i}', 'rb').read()\n"
           "    except OSError: pass")
    # The copy stands still after a quarter of it until then.
    with Slow(work, "--hold", "--toggle=stall", "--pages=none", "--attr-timeout=0", source) as slow:
        command = [harness.onepot_program(), "run", "--stage", slow / "a.tar", "--",
                   sys.executable, "-c", job, "{}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=harness.environment()) as process:
            path = os.fsdecode(process.stdout.readline()[:-1])
            overwrite(os.path.join(source, "a.tar"))
            slow.toggle()

            def stat():
                os.path.exists(f"{path}/no file {time.monotonic()}")  # the watch looks while somebody asks
                return onepot("stat", status=None).stdout.decode()
            wait_for(lambda: "was changed while it was copied" in stat(), "stat to say so")
            wait_for(lambda: "was changed while it is mounted" in stat(), "the watch")
            said = process.communicate(b"\n", timeout=60)[1].decode()
        check("reads failed: " in said and "it was changed" in said, f"run said {said!r}")


def test_staged_ahead_of_time(work):
    source, size = make_source(work)
    with Slow(work, source) as slow:
        archive = slow / "a.tar"
        told = json.loads(onepot("stage", "--keep", "--json", archive).stdout)
        check_equal([(t["bytes"], t["copied_bytes"]) for t in told], [(size, size)], "told")
        fetched = slow.counts()["bytes"]
        again = onepot("stage", "--keep", "--verify", archive)
        check(b"already" in again.stderr, f"it said: {again.stderr}")
        with work.mount("--stage", archive) as mount:
            read_all(mount.path)
            check_equal(staged(mount)["here_bytes"], size, "bytes")
            check(slow.counts()["bytes"] - fetched < SLACK, "it was fetched again")
        check_equal(len(copies(work)), 2, "files that stay")
        onepot("unstage", archive)
        check_equal(copies(work), [], "files afterwards")
        onepot("unstage", archive, status=1)
        onepot("unstage", "--all")


def test_a_copy_by_another_program_is_adopted(work):
    source, size = make_source(work)
    place = work.make("place")
    copy = os.path.join(place, "the copy.tar")
    with Slow(work, source) as slow:
        archive = slow / "a.tar"
        run("cp", os.path.join(source, "a.tar"), copy)
        os.utime(copy, (1, 1))
        done = onepot("stage", "--keep", "--dir", place, "--adopt", copy, archive, status=1)
        check(b"another time" in done.stderr and b"sbcast -p" in done.stderr, done.stderr)
        run("cp", "-p", os.path.join(source, "a.tar"), copy)
        told = json.loads(onepot("stage", "--keep", "--verify", "--json", "--dir", place,
                                 "--adopt", copy, archive).stdout)
        check_equal([(t["bytes"], t["copied_bytes"]) for t in told], [(size, 0)], "told")
        check(not os.path.exists(copy), "the copy has its old name")
        again = onepot("stage", "--keep", "--dir", place, "--adopt", copy, archive)
        check(b"already" in again.stderr, f"it said: {again.stderr}")
        fetched = slow.counts()["bytes"]
        with work.mount("--stage=" + place, archive) as mount:
            read_all(mount.path)
            check(slow.counts()["bytes"] - fetched < SLACK, "it was fetched again")
        onepot("unstage", "--dir", place, archive)
        check_equal(os.listdir(place), [], "files afterwards")


def test_what_can_t_be_adopted_is_refused(work):
    source, _ = make_source(work)
    archive, copy = os.path.join(source, "a.tar"), work / "copy"
    run("cp", "-p", archive, copy)
    for arguments, why in ((["--adopt", archive, archive], b"the archive itself"),
                           (["--adopt", source, archive], b"not a regular file"),
                           (["--adopt", copy, source], b"a set of archives")):
        done = onepot("stage", "--keep", *arguments, status=1)
        check(why in done.stderr, f"{arguments}: {done.stderr}")
    onepot("stage", "--adopt", copy, archive, archive, status=2)
    packed = os.path.join(source, "b.tar.zst")
    run("tar", "--zstd", "-cf", packed, "-C", make_tree(work.make("tree")), ".")
    done = onepot("stage", "--adopt", copy, packed, status=1)
    check(b"compressed in one piece" in done.stderr, done.stderr)
    check_equal(copies(work), [], "files of copies")


def test_a_compressed_tar_is_unpacked_once(work):
    source, _ = make_source(work)
    archive = os.path.join(source, "a.tar.zst")
    run("tar", "--zstd", "-cf", archive, "-C", make_tree(work.make("tree")), ".")
    with work.mount("--stage", archive, name="one") as first:
        check("unpacked" in first.notes and "onepot pack" in first.notes, first.notes)
        with work.mount("--stage", "--idle=1000", archive, name="two") as second:
            check("unpacked" not in second.notes, f"it was unpacked again: {second.notes}")
            check_equal(len(copies(work)), 2, "files")
            read_all(second.path)
            kill_daemon(first)
            first.mounted = False
            harness.detach(first.path)
            read_all(second.path, 5)
            check_equal(staged(second)["here_bytes"], staged(second)["bytes"], "bytes")
    check_equal(copies(work), [], "files afterwards")
    onepot("stage", "--keep", archive)
    with work.mount("--stage", archive, name="three") as third:
        check("unpacked" not in third.notes, f"it was unpacked again: {third.notes}")
        read_all(third.path)
    onepot("unstage", archive)
    check_equal(copies(work), [], "files at the end")
    onepot("umount", "--all")


def test_a_copy_goes_with_its_owner(work):
    source, _ = make_source(work)
    end, other = os.pipe()
    owner = os.fork()
    if owner == 0:
        os.close(other)
        os.read(end, 1)
        os._exit(0)
    os.close(end)
    onepot("stage", "--owner", str(owner), os.path.join(source, "a.tar"))
    check_equal(len(copies(work)), 2, "files")
    os.close(other)
    os.waitpid(owner, 0)
    wait_for(lambda: not copies(work), "the end of the copy")


def test_a_copy_of_a_step_belongs_to_the_job(work):
    """It stays between steps, and goes with the job's end, whoever notices it."""
    source, _ = make_source(work)
    archive = os.path.join(source, "a.tar")
    job, other = f"{os.getpid()}1", f"{os.getpid()}2"  # which no other suite has at the same time

    def in_job(number, *arguments, **more):
        return onepot(*arguments, env=harness.environment(SLURM_JOB_ID=number, **more))
    step = [harness.onepot_program(), "stage", archive]
    for clean in (["clean"], ["clean", "--job", job]):
        done = subprocess.run(step, env=harness.environment(SLURM_JOB_ID=job, SLURM_STEP_ID="0"), check=True,
                              stderr=subprocess.PIPE, start_new_session=True)
        check(f"until job {job} has ended, or 'onepot unstage'".encode() in done.stderr, f"it said {done.stderr!r}")
        check_equal([len(copies(work)), keepers()], [2, []], "files and keepers")
        in_job(job, "clean")
        check_equal(len(copies(work)), 2, "files between steps")
        with subprocess.Popen(["sleep", "infinity"], env=harness.environment(SLURM_JOB_ID=job)) as running:
            in_job(other, "clean")
            check_equal(len(copies(work)), 2, "files while the job has a process here")
            running.kill()
        # An epilog has the job's environment.
        in_job(job if len(clean) > 1 else other, *clean)
        check_equal(copies(work), [], "files afterwards")
    in_job(job, "stage", archive)  # by the script, which is there until the job ends
    check_equal(len(keepers()), 1, "keepers")
    onepot("unstage", archive)


def test_a_reader_of_a_job_s_copy_begins_none(work):
    """It reads on demand, until the job's own program copies."""
    source, size = make_source(work)
    with Slow(work, source) as slow:
        archive = slow / "a.tar"
        for words, declared in ((["--stage=job"], None), (["--stage"], "job")):
            with work.mount(*words, archive, env=harness.environment(ONEPOT_STAGE=declared)) as mount:
                read_by(1, mount.path)
                wait_for(lambda mount=mount: staged(mount)["demand_bytes"] > size // 2, "bytes on demand")
                check_equal(staged(mount)["stream_bytes"], 0, "bytes of a copier")
                onepot("stage", "--owner", str(os.getpid()), archive)
                await_whole(mount)
            onepot("unstage", archive)


def keepers():
    found = []
    for pid in harness.marked_processes(os.environ[harness.MARK]):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as f:  # it may end
            found += [pid] if b"stage" in f.read().split(b"\0") else []
    return found


def test_a_keeper_that_is_asked_to_end_removes_what_nobody_uses(work):
    source, _ = make_source(work)
    archive = os.path.join(source, "a.tar")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        onepot("stage", "--owner", str(os.getpid()), archive)
        check_equal([len(copies(work)), len(keepers())], [2, 1], "files and keepers")
        os.kill(keepers()[0], number)
        wait_for(lambda: not copies(work) and not keepers(), f"the keeper's end by {number}")
    onepot("stage", "--owner", str(os.getpid()), archive)
    with work.mount("--stage", archive) as mount:
        os.kill(keepers()[0], signal.SIGTERM)
        wait_for(lambda: not keepers(), "the keeper's end")
        check_equal(len(copies(work)), 2, "files of a copy in use")
        read_all(mount.path)
    check_equal(copies(work), [], "files afterwards")


def test_another_user_s_folder_keeps_no_copy_of_one_s_own(work):
    harness.need_root("be two users")
    source, _ = make_source(work)
    harness.run("chmod", "-R", "go+rX", work.path)
    places = [work.make("first"), work.make("second")]
    for place in places:
        os.chmod(place, 0o1777)
    user = {"user": 65534, "group": 65534, "extra_groups": [],
            "env": harness.environment(ONEPOT_RUNTIME_DIR=None, TMPDIR=places[1],
                                       XDG_CACHE_HOME=places[1])}
    with harness.shared_memory():
        os.mkdir("/dev/shm/onepot-stage-65534", 0o700)  # root's, and in the first place
        onepot("stage", "--keep", os.path.join(source, "a.tar"), **user)
        check(os.listdir(places[1]), "there is no copy")
        done = onepot("unstage", "--all", **user)
        check(b"skipped" in done.stderr, f"it says {done.stderr!r}")
        check_equal(glob.glob(places[1] + "/onepot-stage*"), [], "folders of copies")


def test_run_stages_too(work):
    source, size = make_source(work)
    with Slow(work, "--read=5ms", source) as slow:
        done = onepot("run", "--stage", slow / "a.tar", "--", "sh", "-c",
                      "cat {}/d3/f3 && onepot() { \"$ONEPOT\" \"$@\"; } && "
                      "onepot stat --json \"$ONEPOT_MOUNT\" >&2",
                      env=harness.environment(ONEPOT=harness.onepot_program()))
        check(done.stdout == content(3), "bytes of a file")
        stat = json.loads(done.stderr[:done.stderr.rindex(b"}") + 1])
        check_equal(stat["stage"]["bytes"], size, "bytes to be staged")
        check_equal(copies(work), [], "files afterwards")


if __name__ == "__main__":
    harness.main(globals())

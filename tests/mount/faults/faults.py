"""What goes wrong underneath a mount: the archive is cut or removed, or its filesystem
stalls. Readers get EIO, in bounded time, for what can't be read, and all else goes on."""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import threading
import time
from errno import EIO

import harness
import life
import tree
from tars import member, write_tar
from harness import check, check_equal, environment, run

FILES = 64
FILE_BYTES = 300_000


def contents(number, size=FILE_BYTES):
    return tree.content(size, number)


def make_spoilable(work, name="data.tar", kind="tar"):
    """One that a test may spoil: a copy of what is made once."""
    once = work.made_once(f"once {kind}", lambda path: make_kind(work, path, kind))
    harness.shutil.copyfile(once, work / name)
    os.unlink(once)
    return work / name


def make_kind(work, path, kind):
    if kind == "tar":
        members = [member("d", directory=True)]
        members += [member(f"d/{i:03d}", contents(i)) for i in range(FILES)]
        members += [member("e", directory=True)]
        members += [member(f"e/{i:03d}", b"%d" % i) for i in range(FILES)]
        write_tar(path, members)
        return
    if kind == "onepot":
        harness.need_command("pack")
    else:
        harness.need_program("mksquashfs")
    source = work.make("source")
    os.mkdir(os.path.join(source, "d"))
    os.mkdir(os.path.join(source, "e"))
    for i in range(FILES):
        tree.write(os.path.join(source, "d", f"{i:03d}"), contents(i))
        tree.write(os.path.join(source, "e", f"{i:03d}"), b"%d" % i)
    if kind == "onepot":
        harness.onepot("pack", "-o", path, source)
    else:
        run("mksquashfs", source, path, "-noappend", "-quiet", "-no-progress", *kind.split())
    harness.shutil.rmtree(source)


def read(path):
    """The content, or the errno."""
    try:
        with open(path, "rb", buffering=0) as f:
            return f.read()
    except OSError as error:
        return error.errno


@contextlib.contextmanager
def pinned(path):
    """Read, and locked into memory: the kernel may drop what is only cached."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                          ctypes.c_int, ctypes.c_long]
    libc.mlock.argtypes = libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    if libc.mlock(address, size) != 0:
        raise harness.Skip(f"mlock: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.munmap(address, size)


def check_serving(mount):
    state = mount.stat()
    check_equal(state["state"], "serving", "state of the mount")
    os.kill(state["daemon_pid"], 0)
    return state


KINDS = (("tar", {}), ("tar", {"ONEPOT_ASSUME_REMOTE": "1"}), ("onepot", {}),
         ("-comp gzip -Xcompression-level 1 -b 64K", {}), ("-noI -noD -noF", {}),
         ("-comp gzip -Xcompression-level 1", {"ONEPOT_ASSUME_REMOTE": "1"}))


def each_kind(work, test, kinds=KINDS):
    for i, (kind, variables) in enumerate(kinds):
        what = f"{kind} {variables or ''}"
        try:
            archive = make_spoilable(work, f"{i}.archive", kind)
        except harness.Skip as skip:
            print(f"skipped part: {what}: {skip}")
            continue
        test(archive, environment(**variables), what)


def test_archive_is_cut(work):
    """By halves, and within a page: bytes that are gone must not come back as zeros."""
    def one(archive, env, what):
        size = os.path.getsize(archive)
        with work.mount(archive, env=env) as mount:
            with pinned(mount / "d/000"):
                for cut in (size * 3 // 4 + 1234, size // 2 + 777, 100_000):
                    os.truncate(archive, cut)
                    check_after_cut(mount, f"{what}, cut to {cut}")
            state = check_serving(mount)
            check(state["errors"] or state["last_error"], f"{what}: stat shows no error")

    each_kind(work, one)


def check_after_cut(mount, what):
    """Its own index is the end of onepot's archive: there, names are lost, too."""
    lost = 0
    for i in range(FILES):
        found = read(mount / f"d/{i:03d}")
        lost += found == EIO
        check(found in (EIO, contents(i)), f"{what}: d/{i:03d} is "
              f"{found if isinstance(found, int) else f'{len(found)} wrong bytes'}")
    check(lost, f"{what}: nothing is lost")
    try:
        check_equal(len(os.listdir(mount / "e")), FILES, f"{what}: names")
        found = read(mount / "d/000")
        check(found == contents(0) or (found == EIO and what.startswith("onepot")),
              f"{what}: what was read before is lost")
    except OSError as error:
        if not what.startswith("onepot"):
            raise
        check_equal(error.errno, EIO, f"{what}: errno of a listing")


def last_error(mount):
    return mount.stat()["last_error"] or ""


def wait_for_error(mount, words, what):
    """The watch only looks while somebody asks for something."""
    def seen():
        os.path.exists(mount / f"no file {time.monotonic()}")
        return words in last_error(mount)

    harness.wait_for(seen, lambda: f"{what}: {words!r} as the last error, not {last_error(mount)!r}")


def test_archive_is_overwritten(work):
    """Wrong bytes are worse than none."""
    def one(archive, env, what):
        log = f"{archive}.log"
        with work.mount(archive, "--log", log, env=env) as mount, pinned(mount / "d/000"):
            with open(archive, "r+b") as f:
                f.write(os.urandom(os.path.getsize(archive)))
            wait_for_error(mount, "changed while it is mounted: reads fail", what)
            check_equal(read(mount / "d/001"), EIO, f"{what}: a file")
            if not what.startswith("onepot"):  # whose names were overwritten, too
                check_equal(read(mount / "d/000") == contents(0), True, f"{what}: a cached file")
            check_serving(mount)
        with open(log, encoding="utf-8") as f:
            # When it is seen, and in the closing line.
            check_equal(f.read().count("changed while it is mounted"), 2, f"{what}: lines of log")

    each_kind(work, one)


CHANGED = "it was changed while it is mounted: reads fail from now on"


def test_run_says_once_why_reads_fail_and_so_does_the_closing_line(work):
    archive = make_spoilable(work)
    said = work / "said"
    script = f"""
import os, time
def until(seen):
    while not seen():
        os.path.exists("{{}}/no file %f" % time.monotonic())  # the watch looks if it is used
        time.sleep(0.01)
with open("{archive}", "r+b") as f:
    f.write(os.urandom(os.path.getsize("{archive}")))
until(lambda: "changed while" in open("{said}").read())
try:
    open("{{}}/d/001", "rb").read()
except OSError as error:
    print(error.errno)
"""
    with open(said, "w", encoding="utf-8") as err:
        done = harness.onepot("run", archive, "--", harness.sys.executable, "-c", script, stderr=err)
    check_equal(done.stdout.decode(), f"{EIO}\n", "what the reader got")
    with open(said, encoding="utf-8") as err:
        first, closing = err.read().splitlines()
    check(first.startswith(f"onepot: {archive}: {CHANGED}"), first)
    check(first.endswith("; mount it anew"), first)
    check(closing.startswith(f"onepot: {archive}: ") and closing.endswith("; reads failed: " + first.split(": ", 2)[2]),
          closing)


def test_doctor_and_umount_say_why_reads_fail(work):
    archive = make_spoilable(work)
    with work.mount(archive) as mount:
        os.truncate(archive, 100_000)
        check_equal(read(mount / "d/020"), EIO, "a file that is gone")
        stat = mount.stat()
        check(stat["reads_fail"].startswith(f"{archive}: "), stat["reads_fail"])
        for arguments, kind in (([mount.path], "wrong"), ([], "warning")):
            done = harness.onepot("doctor", "--json", *arguments, status=None)
            findings = [f for f in json.loads(done.stdout)["findings"] if f["subject"] == mount.path]
            check_equal([f["kind"] for f in findings], [kind], f"doctor {arguments}: {findings}")
            check(f"reads of it fail: {archive}: " in findings[0]["text"], findings)
        note = harness.onepot("umount", mount.path).stderr.decode()
        mount.mounted = False
        check("; reads failed: " in note and note.count(archive) == 1, note)


def test_archive_is_touched(work):
    """Nor does a job die of what may be harmless; of what surely is, nothing is said."""
    def one(archive, env, what):
        log = f"{archive}.log"
        with work.mount(archive, "--log", log, env=env) as mount:
            os.chmod(archive, 0o444)
            os.link(archive, f"{archive}.link")
            read(mount / "d/000")
            os.utime(archive, (1, 1))
            wait_for_error(mount, "its time was changed", what)
            check_equal(read(mount / "d/020") == contents(20), True, f"{what}: a file")
        with open(log, encoding="utf-8") as lines:
            check_equal(lines.read().count("while it is mounted"), 1, f"{what}: lines of log")

    each_kind(work, one, KINDS[:2])


def test_archive_is_removed(work):
    def one(archive, env, what):
        with work.mount(archive, env=env) as mount:
            os.unlink(archive)
            for i in range(FILES):
                check_equal(read(mount / f"d/{i:03d}") == contents(i), True, f"{what}: d/{i:03d}")
            check_equal(check_serving(mount)["errors"], 0, f"{what}: errors")

    each_kind(work, one)


def test_remote_gives_the_same(work):
    """Archives on a network filesystem are read with pread, never mapped."""
    source = work.make("tree")
    tree.build(source, tree.Limits(trusted=False))
    harness.need_program("tar")
    archive = work / "tree.tar"
    run("tar", "--format=pax", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner",
        "-cf", archive, "-C", source, ".")
    made = [archive]
    if harness.onepot("pack", "--help", status=None).returncode == 0:
        harness.onepot("pack", "-o", work / "tree.onepot", source)
        made.append(work / "tree.onepot")
    expected = tree.snapshot(source)
    for archive in made:
        with work.mount(archive, env=environment(ONEPOT_ASSUME_REMOTE="1")) as mount:
            tree.compare(tree.snapshot(mount.path), expected, f"{archive} read as if remote")
            tree.check_consistent(mount.path)
            pid = mount.stat()["daemon_pid"]
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
                check(archive + "\n" not in f.read(), f"{archive} is mapped")


# ---- a filesystem that stalls ----

@contextlib.contextmanager
def stalling(work):
    """An archive within an archive, mounted one on the other: the outer daemon can be
    stopped, and is then a server that does not answer."""
    inner = make_spoilable(work, "inner.tar")
    with open(inner, "rb") as f:
        data = f.read()
    os.unlink(inner)
    write_tar(work / "outer.tar", [member("stored", directory=True),
                                   member("stored/inner.tar", data)])
    with work.mount(work / "outer.tar", name="outer") as outer:
        server = outer.stat()["daemon_pid"]
        inner = outer / "stored/inner.tar"
        with work.mount(inner, "--io-timeout", "2", name="inner") as mount:
            try:
                yield mount, server, inner, outer
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(server, signal.SIGCONT)


def test_stalled_read_fails_in_time(work):
    with stalling(work) as (mount, server, inner, _), pinned(mount / "d/001"):
        life.forget(inner)
        life.stop(server)
        start = time.monotonic()
        check_equal(read(mount / "d/040"), EIO, "a read that stalls")
        took = time.monotonic() - start
        # It is a promise, not a measure: --io-timeout is 2 s.
        check(1 < took < 15, f"EIO came after {took:.1f} s")
        found = read(mount / "d/001")
        check(found == contents(1), f"what was read before: {harness.shorten(found, 50)}")
        check_equal(len(os.listdir(mount / "e")), FILES, "a directory not listed before")
        check_equal(os.stat(mount / "e/005").st_size, 1, "a file not asked for before")
        check(not os.path.exists(mount / "e/none"), "a name that does not exist")
        # It is counted, and told of, when it was answered: its reader may be a moment ahead.
        harness.wait_for(lambda: mount.stat()["stalls"] >= 1, "stat to count the stall")
        harness.wait_for(lambda: "io-timeout" in last_error(mount), "stat to say why")
        check_serving(mount)
        os.kill(server, signal.SIGCONT)
        # Who asks for it fails at once until the read that hung has ended.
        harness.wait_for(lambda: read(mount / "d/040") == contents(40), "what had stalled")
        for i in range(FILES):
            check_equal(read(mount / f"d/{i:03d}") == contents(i), True,
                        f"d/{i:03d} after it went on")
        check_serving(mount)


@life.not_starved
def test_many_stalled_readers(work):
    """More readers than threads: each gets its answer, and others go on being served."""
    with stalling(work) as (mount, server, inner, _):
        life.forget(inner)
        life.stop(server)
        said = {}
        readers = [threading.Thread(target=lambda i=i: said.update(
            {i: read(mount / f"d/{i:03d}")}), daemon=True) for i in range(24)]
        for t in readers:
            t.start()
        served = 0
        end = time.monotonic() + 60
        while any(t.is_alive() for t in readers) and time.monotonic() < end:
            os.stat(mount / f"e/{served % FILES:03d}")
            check(not os.path.exists(mount / f"e/none-{served}"), "a name that does not exist")
            served += 1
            time.sleep(0.01)
        check(not any(t.is_alive() for t in readers), "readers still wait after a minute")
        check_equal(set(said.values()), {EIO}, "what the readers got")
        if served <= 20:
            raise life.Starved(f"only {served} others were served meanwhile")
        os.kill(server, signal.SIGCONT)
        for i in range(FILES):
            check_equal(read(mount / f"d/{i:03d}") == contents(i), True,
                        f"d/{i:03d} after it went on")
        check_serving(mount)


def test_unmount_while_it_stalls(work):
    """The end of a mount does not wait for a server that never answers."""
    with stalling(work) as (mount, server, inner, _):
        life.forget(inner)
        life.stop(server)
        check_equal(read(mount / "d/040"), EIO, "a read that stalls")
        mount.end(timeout=60)


def test_server_that_dies(work):
    """The archive's filesystem is gone for good: EIO, and the mount can still be ended."""
    with stalling(work) as (mount, server, inner, outer):
        with pinned(mount / "d/001"):
            life.forget(inner)
            os.kill(server, signal.SIGKILL)
            harness.wait_for(lambda: not os.path.exists(f"/proc/{server}"), "the server's end")
            check_equal(read(mount / "d/040"), EIO, "a read of what is gone")
            check_equal(read(mount / "d/001") == contents(1), True, "what was read before")
        check_equal(len(os.listdir(mount / "e")), FILES, "names")
        check_serving(mount)
        mount.end()
        outer.end()


if __name__ == "__main__":
    harness.main(globals())

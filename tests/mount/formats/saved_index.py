"""What a saved index spares storage: slowfs counts the reads."""

import json
import lzma
import os
import pathlib
import signal
import stat
import subprocess
import time

import harness
from harness import check, check_equal, onepot
from nested import files, tar_of, write
from slow import Slow
from volumes import cut, info, make_tar


def test_a_mount_with_a_saved_index_does_not_read_the_parts(work):
    source = work.make("source")
    paths = cut(make_tar(pathlib.Path(source) / "a"), ["t.%03d" % i for i in range(100)])
    onepot("index", "--force", paths[0])
    index = info(paths[0])["index_path"]
    later = time.time() + 100  # more than its archive's time of change: no samples are compared
    os.utime(index, (later, later))
    with Slow(work, "--pages=none", source) as slow:
        with work.mount(slow / "t.000") as mount:
            check_equal(len(os.listdir(mount.path)), 1, "names")
        reads = slow.counts()["read"]
    check(reads < len(paths) // 2, f"{reads} reads")


def test_a_digest_is_read_once_and_kept(work):
    os.mkdir(work / "source")
    members = files("f")
    write(work, "source/a.tar", tar_of({name: data * 9000 for name, data in members.items()}))
    with Slow(work, "--pages=none", "--readahead=128", work / "source") as slow:
        def reads(*command):
            before = slow.counts()["bytes"]
            said = onepot(*command, slow / "a.tar").stdout.decode()
            return slow.counts()["bytes"] - before, said
        size = os.path.getsize(work / "source/a.tar")
        many, said = reads("index", "--digest")
        check(many > size, f"{many} bytes are read of {size}")
        found = said.split(" digest ")[1].strip()
        few, said = reads("info")
        check(found in said, f"it is not kept: {said}")
        check(few < size // 4, f"{few} bytes are read for it again")
        few, said = reads("index", "--digest")
        check(found in said and few < size // 4, f"{few} bytes, {said}")
        write(work, "source/a.tar", tar_of({name: data * 9001 for name, data in members.items()}))
        many, said = reads("info", "--digest")
        check(found not in said and "digest" in said, f"of other bytes: {said}")


def test_an_index_with_its_digest_is_for_those_who_may_read_the_archive(work):
    """Whatever lies in its place when it is written."""
    archive = write(work, "a.tar", tar_of(files("f")))
    os.chmod(archive, 0o600)
    onepot("index", archive)
    index = f"{archive}.onepot-index"
    os.rename(index, work / "kept")
    os.chmod(work / "kept", 0o644)
    os.symlink(work / "kept", index)
    onepot("index", "--digest", archive)
    check_equal(oct(os.lstat(index).st_mode), oct(stat.S_IFREG | 0o600), "the mode")


def test_a_stream_that_is_unpacked_later_has_its_digest(work):
    """With a saved index nothing of it is unpacked when it is opened."""
    members = {name: data * 5000 for name, data in files("f").items()}
    plain = write(work, "a.tar", tar_of(members))
    found = onepot("index", "--digest", plain).stdout.decode().split(" digest ")[1].strip()
    for number in range(2):
        packed = write(work, f"{number}.tar.xz", lzma.compress(tar_of(members)))
        onepot("index", packed)
        if number == 0:
            told = onepot("run", "--expect", found, packed, "--", "true").stderr.decode()
            check(f"digest {found[:8]}" in told, told)
            told = onepot("run", "--expect", found[::-1], packed, "--", "true", status=125).stderr.decode()
            check(found in told, told)
        told = onepot("index", "--digest", packed).stdout.decode()
        check(found in told, told)
        check(found in onepot("info", packed).stdout.decode(), "it is not kept")
        told = onepot("run", packed, "--", "true").stderr.decode()
        check(f"digest {found[:8]}" in told, told)


def test_the_copy_of_a_stream_that_is_on_the_node_has_its_digest(work):
    """It is not unpacked again."""
    members = {name: data * 5000 for name, data in files("f").items()}
    plain, packed = write(work, "a.tar", tar_of(members)), write(work, "a.tar.xz", lzma.compress(tar_of(members)))
    found = onepot("index", "--digest", plain).stdout.decode().split(" digest ")[1].strip()
    onepot("index", packed)
    with work.mount(packed, "--stage") as mount:
        def is_whole():
            stage = json.loads(onepot("stat", "--json", mount.path).stdout)["stage"]
            return stage["here_bytes"] == stage["bytes"]
        harness.wait_for(is_whole, "the copy")
        said = onepot("run", "--stage", "--expect", found, packed, "--", "true").stderr.decode()
    check(f"digest {found[:8]}" in said and "unpacked" not in said, said)


def test_a_view_of_a_stream_has_its_digest(work):
    """Also where a saved index spares unpacking the stream."""
    members = {name: data * 5000 for name, data in files("f").items()}
    plain, packed = write(work, "a.tar", tar_of(members)), write(work, "a.tar.xz", lzma.compress(tar_of(members)))
    view = f"--include={list(members)[0]}"
    found = onepot("index", "--digest", view, plain).stdout.decode().split(" digest ")[1].strip()
    done = onepot("index", "--digest", packed)
    check(found not in done.stdout.decode(), "a digest of all files")
    check_equal(done.stderr.decode().count("unpacked"), 1, f"unpacked: {done.stderr}")
    told = onepot("index", "--digest", view, packed).stdout.decode()
    check(found in told, f"{found} is not in {told}")


def test_no_digest_is_saved_of_an_archive_that_changes(work):
    """Replaced before a stream is opened again for its content, or written to while it is read."""
    source = work / "source"
    os.mkdir(source)
    of_old, of_new = ({name: data * 5000 for name, data in files(prefix).items()} for prefix in "fg")
    for name, old, new in (("a.tar.xz", *(lzma.compress(tar_of(m)) for m in (of_old, of_new))),
                           ("a.tar", tar_of(of_old), tar_of(of_new))):
        archive = write(work, f"source/{name}", old)
        onepot("index", archive)
        later = time.time() + 100
        os.utime(f"{archive}.onepot-index", (later, later))
        with Slow(work, "--pages=none", "--toggle=stall", "--entry-timeout=0", "--attr-timeout=0", source) as slow:
            slow.toggle()
            with subprocess.Popen([harness.onepot_program(), "index", "--digest", slow / name], env=harness.environment(),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
                harness.wait_for(lambda: slow.counts()["stalls"] > 0, "the first read")
                if name == "a.tar.xz":
                    os.rename(write(work, "source/new", new), archive)
                else:
                    write(work, f"source/{name}", new)
                slow.toggle()
                said = b"".join(p.communicate(timeout=60)).decode()
            check_equal((p.returncode, "was changed while" in said, "digest" in said), (1, True, False), said)
            os.remove(archive)


def test_how_long_a_digest_takes_is_said(work):
    os.mkdir(work / "source")
    write(work, "source/a.tar", tar_of({f"{i}": bytes(1 << 20) for i in range(5)}))
    with Slow(work, "--pages=none", "--readahead=128", "--bandwidth=2M", work / "source") as slow:
        done = onepot("info", "--digest", slow / "a.tar")
        said = done.stderr.decode()
        check("5.0 MiB are read, which takes about" in said and "onepot index --digest" in said, said)
        check_equal(said.count("\n"), 1, f"lines: {said}")
        onepot("index", work / "source/a.tar")
        said = onepot("info", "--digest", slow / "a.tar").stderr.decode()
        check("takes about" in said and "onepot index" not in said, f"its index lies where it can't be written: {said}")


def test_index_is_advised_only_where_it_keeps_a_digest(work):
    """And Ctrl-C ends the hashing of a long hole."""
    os.mkdir(work / "tree")
    with open(work / "tree/sparse", "wb") as f:
        f.truncate(1 << 40)
    onepot("pack", "-qo", work / "own.tar", work / "tree")
    harness.run("tar", "-cSf", work / "foreign.tar", "-C", work / "tree", ".")
    for name, command, words in (("own.tar", "info", "leave out holes"), ("own.tar", "index", "leave out holes"),
                                 ("foreign.tar", "index", "no sums"), ("foreign.tar", "info", "'onepot index --digest'")):
        with subprocess.Popen([harness.onepot_program(), command, "--digest", work / name], env=harness.environment(),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as p:
            said = ""
            while "takes about" not in said:
                said = p.stderr.readline().decode()
                check(said, f"{name}: {command} says nothing of the time")
            p.send_signal(signal.SIGINT)
            p.communicate(timeout=60)
        check_equal(p.returncode, -signal.SIGINT, "the status")
        check_equal((words in said, "index --digest" in said), (True, "index" in words), f"{command} {name}: {said}")


def test_a_view_is_made_of_the_index_of_all(work):
    """And neither of the archive's own, nor by another walk through the archives in it."""
    os.mkdir(work / "source")
    members = {f"n{i:03}.tar": tar_of(files(f"f{i}-")) for i in range(100)}
    write(work, "source/outer.tar", tar_of(members))
    with Slow(work, "--pages=none", work / "source") as slow:
        def listed(path, view, expected):
            shown = onepot("ls", "-R", "--nested", *view, path).stdout.decode().split("\n")
            check_equal(sum(line.endswith(".txt") for line in shown), expected, f"{view}")

        def reads(view, expected):
            before = slow.counts()["read"]
            listed(slow / "outer.tar", view, expected)
            return slow.counts()["read"] - before
        check(reads(["--include", "n00*"], 50) > 100, "the first view walks through all")
        onepot("index", "--nested", "--force", "--include", "n01*", slow / "outer.tar")
        one, two = reads(["--include", "n00*"], 50), reads(["--exclude", "n00*"], 450)
        check(max(one, two) < 50, f"views of the saved tree: {one} and {two} reads")
    changed = write(work, "source/outer.tar", tar_of({**members, "n999.tar": members["n000.tar"]}))
    listed(changed, ["--exclude", "n00*"], 455)


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

"""Several archives as one tree: policies, mixed formats, damage, and that it is as one archive."""

import io
import json
import os
import pathlib
import random
import subprocess
import tarfile
import time
import zipfile

import harness
from harness import Failure, Skip, check, check_equal, need_program, onepot, run, wait_for


def content(seed, size):
    return random.Random(seed).randbytes(size)


def member(name, kind=tarfile.REGTYPE, size=0, mode=0o644, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.mode, info.linkname, info.mtime = kind, size, mode, link, 1000
    return info


def make_tar(path, files, form="w"):
    """files: {name: bytes}; None is a directory."""
    with tarfile.open(path, form) as tar:
        for name, data in files.items():
            if data is None:
                tar.addfile(member(name, tarfile.DIRTYPE, mode=0o755))
            else:
                tar.addfile(member(name, size=len(data)), io.BytesIO(data))
    return str(path)


def make_zip(path, files):
    with zipfile.ZipFile(path, "w") as z:
        for i, (name, data) in enumerate(files.items()):
            z.writestr(name, data, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)[i % 2])
    return str(path)


def make_folder(path, files):
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def tree(top):
    """{path: bytes} of all files."""
    top = pathlib.Path(getattr(top, "path", top))
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def shard(number, files=20):
    """Files of a shard; all share a directory."""
    return {f"{'common' if i % 2 else f'own{number}'}/{number}-{i}": content(number * 1000 + i, i * 997 % 9000)
            for i in range(files)}


def refused(*arguments):
    done = onepot("mount", *arguments, status=1)
    return done.stderr.decode(errors="replace")


def folder(work, name="shards"):
    return pathlib.Path(work.make(name))


def three(work):
    """Three tars in a folder, and what they have together."""
    place, all_files = folder(work), {}
    for i in range(3):
        make_tar(place / f"train-{i}.tar", shard(i))
        all_files.update(shard(i))
    return place, all_files


def test_directories_merge_however_the_archives_are_named(work):
    place, files = three(work)
    names = sorted(str(p) for p in place.iterdir())
    (place / "train-0.tar.onepot-index").write_bytes(b"not looked at")
    (place / ".hidden").write_bytes(b"nor this")
    make_list = pathlib.Path(work / "list")
    make_list.write_text("\n".join(names) + "\n")
    for words in (names, [str(place)], [str(place / "train-*.tar")], [f"@{make_list}"],
                  [names[0], str(place / "train-[12].tar")]):
        with work.mount(*words) as mount:
            check_equal(tree(mount), files, f"files by {words}")
            check_equal(sorted(os.listdir(mount.path)), ["common", "own0", "own1", "own2"], "top")
            said = mount.stat()
            check_equal((said["archive_count"], said["archives"]), (3, names), "archives")
            check_equal(said["format"], "union", "format")


def test_a_list_has_odd_names(work):
    place = folder(work)
    odd = ["a b.tar", "star*.tar", "@at.tar", "é.tar", "[x].tar", "-dash.tar", "back\\slash.tar"]
    for i, name in enumerate(odd):
        make_tar(place / name, {f"f{i}": b"%d" % i})
    wanted = {f"f{i}": b"%d" % i for i in range(len(odd))}
    paths = [str(place / name) for name in odd]
    for text in ("\n".join(paths), "\n\n" + "\n".join(paths) + "\n\n", "\0".join(paths) + "\0"):
        pathlib.Path(work / "list").write_text(text)
        with work.mount("@" + str(work / "list")) as mount:
            check_equal(tree(mount), wanted, "files")
    make_tar(place / "new\nline.tar", {"n": b"n"})
    pathlib.Path(work / "list").write_text("\0".join(paths + [str(place / "new\nline.tar")]))
    with work.mount("@" + str(work / "list")) as mount:
        check_equal(len(tree(mount)), len(odd) + 1, "files, one of a name with a newline")


def test_what_names_nothing_is_an_error(work):
    place, _ = three(work)
    empty, names = folder(work, "empty"), pathlib.Path(work / "list")
    check("no file matches" in refused(str(place / "valid-*.tar")), "pattern")
    check("no archive in this directory" in refused(str(empty)), "folder")
    check("list can't be opened" in refused("@" + str(work / "nothing")), "list")
    names.write_text("\n")
    check("names no archive" in refused("@" + str(names)), "empty list")
    names.write_text(f"{place}/train-0.tar\n{place}/train-9.tar\n")
    said = refused("@" + str(names))
    check("train-9.tar: no such file" in said, f"a missing file is not named: {said}")


def test_conflicts_have_a_policy(work):
    a = make_tar(work / "a.tar", {"d/same": b"of a", "d/a": b"a", "was": b"file", "dir/x": b"x"})
    b = make_tar(work / "b.tar", {"d/same": b"of b!", "d/b": b"b", "was/y": b"y", "dir": b"file"})
    said = refused(a, make_tar(work / "c.tar", {"d/same": b"of c"}))
    check(a in said and "c.tar" in said and "d/same" in said and "--on-conflict" in said,
          f"both are to be named: {said}")
    said = refused(a, b)
    check(a in said and f"{b}: dir: is in" in said, f"the one nearest to the root is named: {said}")
    check_equal(refused("--on-conflict", "error", a, b), said, "the same, said explicitly")
    with work.mount("--on-conflict", "first", a, b) as mount:
        check_equal(tree(mount), {"d/same": b"of a", "d/a": b"a", "d/b": b"b", "was": b"file",
                                  "dir/x": b"x"}, "first")
    with work.mount("--on-conflict=last", a, b) as mount:
        check_equal(tree(mount), {"d/same": b"of b!", "d/a": b"a", "d/b": b"b", "was/y": b"y",
                                  "dir": b"file"}, "last")
    onepot("mount", "--on-conflict", "any", a, b, status=2)
    check(f"is in '{a}' and in '{a}'" in refused(a, a), "an archive twice has all names twice")
    with work.mount("--on-conflict", "first", a, a) as mount:
        check_equal(len(tree(mount)), 4, "files of an archive that is named twice")


def test_directories_have_the_attributes_of_the_one_that_counts(work):
    for name, mode in (("a", 0o700), ("b", 0o755)):
        with tarfile.open(work / f"{name}.tar", "w") as tar:
            tar.addfile(member("d", tarfile.DIRTYPE, mode=mode))
            tar.addfile(member(f"d/{name}"))
    both = [work / "a.tar", work / "b.tar"]
    for policy, mode in (("error", 0o700), ("first", 0o700), ("last", 0o755)):
        with work.mount("--on-conflict", policy, *both) as mount:
            check_equal(os.stat(mount / "d").st_mode & 0o777, mode, policy)
            check_equal(sorted(os.listdir(mount / "d")), ["a", "b"], "names")


def test_each_archive_has_a_directory(work):
    place = folder(work)
    make_tar(place / "a.tar", {"same": b"a"})
    make_tar(place / "b.tar.gz", {"same": b"b"}, "w:gz")
    make_zip(place / "c.zip", {"same": b"c"})
    with work.mount("--each", str(place)) as mount:
        check_equal(tree(mount), {"a/same": b"a", "b/same": b"b", "c/same": b"c"}, "files")
    with work.mount("--each", str(place / "a.tar")) as mount:
        check_equal(tree(mount), {"a/same": b"a"}, "of one archive")
    make_zip(place / "a.zip", {"same": b"other", "more": b"more"})
    said = refused("--each", str(place))
    check("a.tar" in said and "a.zip" in said, f"both are to be named: {said}")
    with work.mount("--each", "--on-conflict", "first", str(place)) as mount:
        check_equal(tree(mount)["a/same"], b"a", "the first")
        check_equal(tree(mount)["a/more"], b"more", "merged")


def mixed(work):
    """One shard of each format."""
    need_program("mksquashfs", "zstd")
    place, files = folder(work), {}
    for i in range(6):
        files.update(shard(i))
    make_tar(place / "0.tar", shard(0))
    make_zip(place / "1.zip", shard(1))
    run("mksquashfs", str(make_folder(folder(work, "s2"), shard(2))), str(place / "2.sqfs"), "-quiet",
        "-no-progress")
    onepot("pack", "-q", "-o", str(place / "3.onepot.tar"),
           str(make_folder(folder(work, "s3"), shard(3))))
    make_tar(place / "4.tar.gz", shard(4), "w:gz")
    run("zstd", "-q", make_tar(work / "5.tar", shard(5)), "-o", str(place / "5.tar.zst"))
    return place, files


def test_formats_may_differ(work):
    place, files = mixed(work)
    with work.mount(str(place)) as mount:
        check_equal(tree(mount), files, "files")
    said = json.loads(onepot("info", "--json", str(place)).stdout)[0]
    check_equal((said["archive_count"], said["files"]), (6, len(files)), "info")
    done = onepot("ls", "-R", str(place)).stdout.decode().split("\n")
    check_equal(sorted(l for l in done if l in files), sorted(files), "ls -R")
    name = sorted(files)[5]
    check_equal(onepot("cat", str(place), name).stdout, files[name], "cat")
    onepot("extract", "-q", "-C", work / "out", str(place))
    check_equal(tree(work / "out"), files, "extracted")
    said = json.loads(onepot("verify", "--json", str(place)).stdout)
    check_equal([v["good"] for v in said], [True] * 6, "verify looks at each")


def test_the_second_mount_uses_the_saved_index(work):
    place, files = mixed(work)
    onepot("index", str(place))
    saved = [p for p in pathlib.Path(work / ".home").rglob("*.onepot-index")
             if p.name.startswith("0.tar-")]
    check_equal(len(saved), 1, "saved indexes of the union")
    said = json.loads(onepot("info", "--json", str(place)).stdout)[0]
    check_equal(said["index_origin"], "saved", "origin")
    with work.mount(str(place)) as mount:
        check_equal(tree(mount), files, "files by the saved index")
    for word in (str(place) + "/", "@" + str(work / "list")):
        pathlib.Path(work / "list").write_text("\n".join(sorted(str(p) for p in place.glob("?.*")
                                                               if "index" not in p.name)))
        said = json.loads(onepot("info", "--json", word).stdout)[0]
        check_equal(said["index_origin"], "saved", f"however they are named: {word}")
    said = json.loads(onepot("info", "--json", "--each", str(place)).stdout)[0]
    check_equal(said["index_origin"], "built", "another policy has another index")
    make_tar(place / "0.tar", {"new": b"new"})
    said = json.loads(onepot("info", "--json", str(place)).stdout)[0]
    check_equal(said["index_origin"], "built", "a changed shard is noticed")
    with work.mount(str(place)) as mount:
        check_equal(pathlib.Path(mount / "new").read_bytes(), b"new", "of the changed shard")


def test_a_saved_index_stays_while_a_mount_uses_it(work):
    """And then goes. One of few files is read and not mapped, so nobody misses its file."""
    place = folder(work)
    for n in range(2):
        make_tar(place / f"{n}.tar", {f"{n}/{i:04}": b"" for i in range(1000)})
    onepot("index", str(place))
    kept = list(pathlib.Path(work / ".home/cache/onepot").glob("*"))
    check_equal(len(kept), 1, "saved indexes")
    if run("stat", "-f", "-c", "%T", str(kept[0])).stdout.strip() == b"overlayfs":
        raise Skip("a mapping holds no lock on an overlay")
    check_equal(len(kept), 1, "saved indexes")
    with work.mount(str(place)) as mount:
        done = onepot("clean", "--cache")
        check_equal(done.stderr, b"onepot: 0 saved indexes removed (0 bytes), 1 in use\n", "words")
        check(kept[0].exists(), "it is in use")
        check_equal(len(tree(mount)), 2000, "files")
    wait_for(lambda: onepot("clean", "--cache").stderr and not kept[0].exists(), "it to go")
    check_equal(onepot("clean", "--cache").stderr, b"", "words where there is nothing")
    onepot("clean", "--cache", "--job", "1", status=2)


def wait_until_settled(place):
    """Times of change that are past for sure: one that comes is another."""
    last = max(p.stat().st_ctime for p in place.iterdir())
    wait_for(lambda: time.time() > last + 4, "the clock")


def origin(*arguments):
    return json.loads(onepot("info", "--json", *arguments).stdout)[0]["index_origin"]


def test_a_shard_replaced_by_one_of_equal_size_and_time_is_noticed(work):
    """By its inode or time of change, however the tree of the saved index was asked for."""
    place = folder(work)
    for i in range(3):
        make_tar(place / f"{i}.tar", {f"one{i}": content(i, 30000)})
    shard1, before = place / "1.tar", (place / "1.tar").stat()
    others = [pathlib.Path(make_tar(work / f"{name}.tar", {f"{name}1": content(4, 30000)}))
              for name in ("two", "six")]
    os.link(shard1, work / "kept.tar")
    onepot("index", *place.iterdir())
    wait_until_settled(place)
    ways = ([], ["--each"], ["--include", "one*", "--include", "two*", "--include", "six*"])
    for options in ways:
        onepot("index", *options, place)

    def check_names(second, what):
        os.utime(shard1, ns=(before.st_mtime_ns, before.st_mtime_ns))
        for options in ways:
            paths = onepot("ls", "-R", *options, place).stdout.decode().split()
            names = sorted(name for name in map(os.path.basename, paths) if len(name) == 4)
            check_equal(names, sorted(["one0", "one2", second]), f"{what} {options}")

    for options in ways:
        check_equal(origin(*options, place), "saved", f"origin {options}")
    os.chmod(place / "0.tar", 0o640)
    for options in ways:
        check_equal(origin(*options, place), "saved", f"origin, where one was touched {options}")
    os.replace(others[0], shard1)
    check_names("two1", "another file in its place")
    os.replace(work / "kept.tar", shard1)
    check_names("one1", "the first file again")
    with open(shard1, "r+b") as f:
        f.write(others[1].read_bytes())
    check_names("six1", "other bytes in the same file")
    os.truncate(shard1, 1000)
    check("1.tar: " in onepot("ls", place, status=1).stderr.decode(), "cut")
    check_equal(onepot("ls", "--skip-damaged", place).stdout.split(), [b"one0", b"one2"], "the others")


def test_a_saved_index_of_a_stream_moves_no_bytes(work):
    place = folder(work)
    first, second = {"z": bytes(500000)}, {"r": content(3, 400000)}
    make_tar(place / "0.tar.gz", first, "w:gz")
    make_tar(place / "1.tar", second)
    onepot("index", str(place / "0.tar.gz"), str(place / "1.tar"))
    for options in ([], ["--each"], ["--force"]):
        onepot("index", *options, str(place))
    check_equal(onepot("cat", str(place), "r").stdout, second["r"], "behind the stream")
    check_equal(onepot("cat", "--each", str(place), "1/r").stdout, second["r"], "the same, --each")
    with work.mount(str(place)) as mount:
        check_equal(tree(mount), {**first, **second}, "files")


def damage(work):
    """(name of what is wrong, path)"""
    good = pathlib.Path(make_tar(work / "good.tar", {"g": content(1, 40000)})).read_bytes()
    pathlib.Path(work / "cut.tar").write_bytes(good[:20000])
    zipped = pathlib.Path(make_zip(work / "good.zip", {"z": content(2, 40000)})).read_bytes()
    pathlib.Path(work / "cut.zip").write_bytes(zipped[:-30])
    pathlib.Path(work / "text.tar").write_bytes(b"no archive at all\n" * 100)
    return ["cut.tar", "cut.zip", "text.tar", "vanished.tar"]


def test_an_offset_has_an_index_of_its_own(work):
    license = content(4, 3584)  # the first sample sees nothing else
    one = pathlib.Path(make_tar(work / "1.tar", {"license": license, "one": bytes(100000)})).read_bytes()
    two = pathlib.Path(make_tar(work / "2.tar", {"license": license, "two": bytes(90000)})).read_bytes()
    both = pathlib.Path(work / "both")
    both.write_bytes(one + two)
    onepot("index", "--each", "--offset", str(len(one)), both)
    check_equal(onepot("ls", "--each", "--path", "both", both).stdout, b"license\none\n", "names")


def test_one_damaged_shard_is_named(work):
    place, files = three(work)
    for name in damage(work):
        said = refused(str(place), work / name)
        check(f"{work / name}: " in said, f"{name} is not named: {said}")
        with work.mount("--skip-damaged", work / name, str(place)) as mount:
            check(f"{work / name}: " in mount.notes and "skipped" in mount.notes,
                  f"{name} is not named: {mount.notes}")
            check_equal(tree(mount), files, f"all but {name}")
        said = refused("--skip-damaged", work / name, work / name)
        check(name in said, "nothing is left")


def test_a_shard_that_is_cut_while_mounted_fails_alone(work):
    place, files = three(work)
    big = {"big": content(7, 300000)}
    make_tar(place / "train-0.tar", big)
    rest = {**shard(1), **shard(2)}
    with work.mount(str(place), "--log", work / "log") as mount:
        os.truncate(place / "train-0.tar", 1000)
        try:
            pathlib.Path(mount / "big").read_bytes()
            raise Failure("a file that is gone was read")
        except OSError as e:
            check_equal(e.errno, 5, "errno")
        check_equal({k: pathlib.Path(mount / k).read_bytes() for k in rest}, rest, "the others")
        log = pathlib.Path(work / "log")
        # It is told of when it was answered: its reader may be a moment ahead.
        wait_for(lambda: "train-0.tar: big: can't be read" in log.read_text(), "a line in the log")

        def is_noticed():
            check_equal(pathlib.Path(mount / "own1").is_dir(), True, "in use")
            return "train-0.tar: it was changed" in log.read_text()
        wait_for(is_noticed, "the change to be noticed")
        check("train-1.tar: it was" not in log.read_text(), "others were not changed")
        check_equal({k: pathlib.Path(mount / k).read_bytes() for k in rest}, rest, "the others")


def test_a_shard_that_vanishes_is_read_on(work):
    place, files = three(work)
    with work.mount(str(place)) as mount:
        os.unlink(place / "train-1.tar")
        check_equal(tree(mount), files, "files")
    check("train-1.tar" in refused(*(str(place / f"train-{i}.tar") for i in range(3))), "named")


def shards_of_archives(work):
    """Two shards, a tar and a zip, each with an archive of the same class in it."""
    place = folder(work)
    for i, make in enumerate((make_tar, make_zip)):
        inner = make_tar(work / "inner.tar", {f"{i}.jpg": b"jpg %d" % i, f"{i}.txt": b"txt %d" % i})
        make(place / f"s{i}.{('tar', 'zip')[i]}",
             {"class.tar": pathlib.Path(inner).read_bytes(), f"plain{i}": b"plain %d" % i})
    return place


def listed(*arguments):
    names = onepot("ls", "-R", "-0", *arguments).stdout.decode().split("\0")
    return {name for name in names if name}


def test_views_and_archives_in_archives(work):
    place = str(shards_of_archives(work))
    names, map_file = pathlib.Path(work / "list"), pathlib.Path(work / "map")
    names.write_text("class/1.txt\nplain0\n")
    map_file.write_text("class/0.jpg\tx/zero.jpg\nplain1\tone\n")
    both = {f"class/{i}.{kind}" for i in (0, 1) for kind in ("jpg", "txt")}
    cases = [
        (["--nested"], {"class", "plain0", "plain1", *both}),
        (["--on-conflict=first", "--include", "plain*"], {"plain0", "plain1"}),
        (["--nested", "--include", "*.jpg"], {"class", "class/0.jpg", "class/1.jpg"}),
        (["--nested", "--exclude", "class/0*"],
         {"class", "plain0", "plain1", "class/1.jpg", "class/1.txt"}),
        (["--nested", "--files-from", names], {"class", "class/1.txt", "plain0"}),
        (["--nested", "--map", map_file], {"x", "x/zero.jpg", "one"}),
        (["--nested", "--each", "--include", "s1/class"],
         {"s1", "s1/class", "s1/class/1.jpg", "s1/class/1.txt"}),
        (["--nested=other", "--on-conflict=last"], {"class.tar", "plain0", "plain1"}),
    ]
    for i, (options, expected) in enumerate(cases):
        check_equal(listed(*options, place), expected, str(options))
        if i > 2:
            continue
        onepot("index", *options, place)
        said = json.loads(onepot("info", "--json", *options, place).stdout)[0]
        check_equal(said["index_origin"], "saved", f"its own index is used: {options}")
        check_equal(listed(*options, place), expected, f"by the saved index: {options}")
    check_equal(listed("--nested", "--each", place + "/s0.tar"),
                {"s0", "s0/plain0", "s0/class", "s0/class/0.jpg", "s0/class/0.txt"}, "of one")
    onepot("extract", "-q", "--nested", "--map", map_file, "-C", work / "out", place)
    check_equal(tree(work / "out"), {"x/zero.jpg": b"jpg 0", "one": b"plain 1"}, "extracted")
    with work.mount("--nested", "--include", "*.txt", place) as mount:
        check_equal(tree(mount), {"class/0.txt": b"txt 0", "class/1.txt": b"txt 1"}, "mounted")
    names.write_text("class/0.jpg\nclass/2.jpg\n")
    said = onepot("ls", "--nested", "--files-from", names, place, status=1).stderr.decode()
    check("class/2.jpg" in said and "does not have it" in said, said)
    again = make_tar(work / "again.tar", {"class/0.jpg": b"again"})
    said = refused("--nested", place + "/s0.tar", again)
    check("class/0.jpg" in said and again in said and "s0.tar" in said, f"both are named: {said}")


def test_a_damaged_archive_in_one_of_several(work):
    place = shards_of_archives(work)
    whole = pathlib.Path(make_tar(work / "whole.tar", {"f": content(1, 5000)})).read_bytes()
    make_tar(place / "s2.tar", {"bad.tar": whole[:3000]})
    said = onepot("ls", "--nested", str(place), status=1).stderr.decode()
    check("s2.tar: bad.tar: is an archive that can't be read" in said, said)
    done = onepot("ls", "--nested", "--skip-damaged", str(place))
    check_equal(done.stdout, b"class\nplain0\nplain1\n", "the others")
    check(b"s2.tar: bad.tar" in done.stderr and b"it is skipped" in done.stderr, done.stderr)


def test_mounts_of_the_same_archives_are_shared(work):
    place, files = three(work)
    with work.mount(str(place)) as mount:
        pid = mount.stat()["daemon_pid"]
        onepot("mount", str(place), "--at", mount.path)
        check_equal(mount.stat()["daemon_pid"], pid, "daemon")
        done = onepot("mount", str(place), "--each", "--at", mount.path, status=1)
        check("is mounted there" in done.stderr.decode(), "other options are another mount")
        onepot("umount", mount.path)
        check_equal(tree(mount), files, "files of the one that is left")


def test_umount_by_one_of_its_archives(work):
    place, _ = three(work)
    path = onepot("mount", str(place)).stdout.decode().strip()
    check(os.path.isdir(path), "the mount")
    onepot("umount", str(place / "train-2.tar"))
    check(not os.path.ismount(path), "is still mounted")


def test_a_killed_daemon_leaves_nothing(work):
    place, files = three(work)
    path = onepot("mount", str(place)).stdout.decode().strip()
    said = json.loads(onepot("stat", "--json", path).stdout)
    os.kill(said["daemon_pid"], 9)
    with work.mount(str(place)) as mount:
        check_equal(tree(mount), files, "files")
    onepot("umount", path, status=None)
    check(not os.path.ismount(path), "is still mounted")


def test_staged_as_one(work):
    place, files = mixed(work)
    with work.mount(str(place), "--stage=" + work.make("stage")) as mount:
        check_equal(tree(mount), files, "files")
        wait_for(lambda: mount.stat()["stage"]["here_bytes"] == mount.stat()["stage"]["bytes"],
                 "the copy to be whole")
        for name in os.listdir(place):
            os.truncate(place / name, 10)
        check_equal(tree(mount), files, "files from the copy")


def test_on_a_distant_filesystem(work):
    place, files = mixed(work)
    env = harness.environment(ONEPOT_ASSUME_REMOTE="1")
    order = pathlib.Path(work / "order")
    order.write_text("\n".join(sorted(files)) + "\n")
    with work.mount(str(place), "--order", order, "--verify", env=env) as mount:
        for name in sorted(files):
            check_equal(pathlib.Path(mount / name).read_bytes(), files[name], name)


def test_run_gives_its_command_the_limits_it_had(work):
    place = folder(work)
    for i in range(200):
        make_tar(place / f"{i}.tar", {f"d{i % 7}/{i}": b"%d" % i})
    done = subprocess.run(["bash", "-c", 'ulimit -Sn 256; exec "$@"', "-", harness.onepot_program(),
                           "run", str(place), "--", "bash", "-c",
                           "ulimit -Sn; cat {}/d0/* | wc -c"],
                          env=harness.environment(), capture_output=True, check=False)
    check_equal(done.stdout.split(), [b"256", str(sum(len(str(i)) for i in range(0, 200, 7)))
                                      .encode()], done.stderr.decode())


def test_a_thousand_shards_and_32_readers(work):
    place = folder(work)
    for i in range(1000):
        make_tar(place / f"train-{i:04}.tar", {f"d{i % 10}/{i}-{j}": content(i * 5 + j, 700)
                                               for j in range(5)})
    with work.mount(str(place / "train-*.tar")) as mount:
        check_equal(mount.stat()["archive_count"], 1000, "archives")
        listed = sorted(os.path.relpath(os.path.join(top, name), mount.path)
                        for top, _, names in os.walk(mount.path) for name in names)
        check_equal(len(listed), 5000, "files")

        def read(seed):
            for name in random.Random(seed).sample(listed, 300):
                i, j = map(int, name.split("/")[1].split("-"))
                check_equal(pathlib.Path(mount / name).read_bytes(), content(i * 5 + j, 700), name)
        for result in [harness.in_thread(read, seed, seconds=200) for seed in range(32)]:
            result()
    with work.mount(str(place / "train-*.tar")) as mount:
        check_equal(sum(len(names) for _, _, names in os.walk(mount.path)), 5000, "files by the saved index")


if __name__ == "__main__":
    harness.main(globals())

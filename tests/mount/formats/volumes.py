"""Archives in several files: pieces of split, and volumes of a zip."""

import io
import json
import os
import pathlib
import random
import shutil
import struct
import subprocess
import tarfile
import zipfile

import harness
from harness import check, check_equal, onepot

SIZES = [0, 1, 511, 4000, 70_000, 300_000]
FILES = {"d/%03d.bin" % i: random.Random(i).randbytes(SIZES[i % len(SIZES)]) for i in range(60)}


def make_tar(path, mode="w", files=None):
    with tarfile.open(path, mode) as tar:
        for name, data in (files or FILES).items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def cut(path, names, piece=None):
    """Cut a file into equal pieces of these names, as split does."""
    data = pathlib.Path(path).read_bytes()
    piece = piece or -(-len(data) // len(names))
    paths = [pathlib.Path(path).parent / name for name in names]
    for i, to in enumerate(paths):
        to.write_bytes(data[i * piece:(i + 1) * piece])
    os.unlink(path)
    return paths


def make_volumes(work, name, volume=700_000):
    """A zip in volumes, whose records are not cut, as Info-ZIP's are not."""
    volumes = [b"PK\7\10"]
    directory = b""

    def put(record):
        if len(volumes[-1]) + len(record) > volume:
            volumes.append(b"")
        at = len(volumes) - 1, len(volumes[-1])
        volumes[-1] += record
        return at

    for path, data in FILES.items():
        crc = zipfile.crc32(data)
        common = struct.pack("<HHHHIII", 0, 0, 0, 33, crc, len(data), len(data)) + struct.pack("<HH", len(path), 0)
        disk, at = put(b"PK\3\4" + struct.pack("<H", 20) + common + path.encode())
        while data:
            if len(volumes[-1]) == volume:
                volumes.append(b"")
            room = volume - len(volumes[-1])
            volumes[-1] += data[:room]
            data = data[room:]
        directory += (b"PK\1\2" + struct.pack("<HH", 3 << 8 | 20, 20) + common +
                      struct.pack("<HHHII", 0, disk, 0, 0o100644 << 16, at) + path.encode())
    disk, at = put(directory)
    put(b"PK\5\6" + struct.pack("<HHHHIIH", len(volumes) - 1, disk, len(FILES), len(FILES),
                                len(directory), at, 0))
    names = ["%s.z%02d" % (name, i + 1) for i in range(len(volumes) - 1)] + [name + ".zip"]
    paths = [pathlib.Path(work) / to for to in names]
    for path, data in zip(paths, volumes):
        path.write_bytes(data)
    check(len(paths) > 3, "a zip of several volumes")
    return paths


def check_tree(root):
    found = {str(p.relative_to(root)): p.read_bytes() for p in pathlib.Path(root).rglob("*") if p.is_file()}
    check_equal(sorted(found), sorted(FILES), "names")
    for name, data in FILES.items():
        check(found[name] == data, name)


def letters(stem, count):
    return [stem + chr(97 + i // 26) + chr(97 + i % 26) for i in range(count)]


def info(path):
    return json.loads(onepot("info", "--json", path).stdout)[0]


def complaint(*arguments):
    run = onepot(*arguments, status=1)
    lines = run.stderr.decode().strip().splitlines()
    check_equal(len(lines), 1, "lines of %s" % lines)
    return lines[0]


def test_any_part_names_the_set(work):
    sets = [
        cut(make_tar(work / "a"), letters("t.tar.part", 30)),
        cut(make_tar(work / "a"), ["s.tar.%03d" % i for i in range(1, 8)]),
        cut(make_tar(work / "a"), ["n.part%d" % i for i in range(1, 13)]),
        # split's names, when they become longer
        cut(make_tar(work / "a"), ["w.%02d" % i for i in range(90)] + ["w.9000", "w.9001"]),
        cut(make_tar(work / "a", "w:gz"), ["g.tar.gz.part-%02d" % i for i in range(5)]),
        make_volumes(work.path, "z"),
    ]
    for paths in sets:
        for path in paths[0], paths[1], paths[-1]:
            listed = info(path)
            check_equal(listed["files"], len(FILES), path)
        onepot("verify", "-q", paths[-1])
        shutil.rmtree(work / "out", ignore_errors=True)
        onepot("extract", "-q", paths[1], "-C", work / "out")
        check_tree(work / "out")
        with work.mount(paths[2]) as mount:
            check_tree(mount.path)
    for pattern in "t.tar.part*", "w.*":
        with work.mount(work / pattern) as mount:
            check_tree(mount.path)


def split(path, prefix, *options):
    """Cut a file by split, and remove it."""
    folder = path.parent
    before = set(os.listdir(folder)) - {path.name}
    subprocess.run(["split", *options, path.name, prefix], cwd=folder, check=True)
    path.unlink()
    return [folder / name for name in sorted(set(os.listdir(folder)) - before)]


def test_names_that_split_can_make(work):
    numbered = ["--numeric-suffixes=1", "-a", "3"]
    for folder, mode, prefix, count, options in [
            ("a", "", "train.tar.", 5, ["--additional-suffix=.part"]),
            ("b", "", "train-", 30, ["--additional-suffix=.tar"]),
            ("c", "", "x", 12, ["-d", "--additional-suffix=.tar"]),
            ("d", "gz", "train_part_", 4, [*numbered, "--additional-suffix=.tar.gz"]),
            ("e", "xz", "train", 4, [*numbered, "--additional-suffix=.bin"]),
            ("f", "", "x", 40, ["-x", "--additional-suffix=.tar"]),
            ("g", "", "data.tar.", 19, ["--hex-suffixes=1"]),
            ("h", "", "x", 200, ["-x"]),
            ("i", "bz2", "t.tar.bz2-", 7, ["-d", "-a", "1"])]:
        made = make_tar(pathlib.Path(work.make(folder)) / "made", "w:" + mode)
        paths = split(made, prefix, *options, "-b", str(-(-made.stat().st_size // count)))
        check_equal(len(paths), count, "parts")
        for path in paths[0], paths[-1], paths[count // 2]:
            check_equal(info(path)["files"], len(FILES), path)
        with work.mount(paths[0].parent) as mount:
            check_tree(mount.path)
    zipped = pathlib.Path(work.make("z")) / "made"
    with zipfile.ZipFile(zipped, "w") as z:
        for name, data in FILES.items():
            z.writestr(name, data)
    for path in split(zipped, "x", "-d", "--additional-suffix=.zip", "-n", "4"):
        check_equal(info(path)["files"], len(FILES), path)


def test_a_member_may_begin_where_a_part_does(work):
    files = {"%03d" % i: b"x" * 512 for i in range(40)}
    for name, piece in ("p.tar.%02d", 8 * 1024), ("p-%02d.tar", 10 * 1024 + 512):
        count = -(-50 * 1024 // piece)
        paths = cut(make_tar(work / "a", files=files), [name % i for i in range(count)], piece=piece)
        for path in paths:
            check_equal(info(path)["files"], len(files), path)
    paths = cut(make_tar(work / "a", files=files), ["q-0.tar", "q-1.tar"], piece=30 * 1024 + 512)
    for path in paths:
        check_equal(info(path)["files"], len(files), path)


def test_a_folder_of_parts_is_one_archive(work):
    folder = work.make("folder")
    cut(make_tar(pathlib.Path(folder) / "a"), letters("t.tar.", 9))
    with work.mount(folder) as mount:
        check_tree(mount.path)


def test_readers_get_their_bytes_across_parts(work):
    paths = cut(make_tar(work / "a"), ["t.%03d" % i for i in range(40)])
    for options in [], ["--stage"]:
        with work.mount(*options, paths[7]) as mount:
            harness.in_threads([lambda: check_tree(mount.path) for _ in range(32)])
    code = "import sys, pathlib; p = pathlib.Path(sys.argv[1]); print(sum(len(f.read_bytes()) for f in p.iterdir()))"
    run = onepot("run", "--at", work / "at", paths[3], "--", "python3", "-c", code, work / "at/d")
    check_equal(int(run.stdout), sum(map(len, FILES.values())), "bytes read by a command")


def test_a_saved_index_serves_the_set_until_a_part_changes(work):
    paths = cut(make_tar(work / "a"), letters("t.tar.part", 6))
    onepot("index", paths[3])
    saved = pathlib.Path(str(paths[0]) + ".onepot-index")
    check(saved.exists(), "an index beside the first part")
    check_equal(info(paths[5])["index_origin"], "saved", "the index")
    data = bytearray(paths[2].read_bytes())
    times = paths[2].stat()
    data[0] ^= 1
    paths[2].write_bytes(data)
    os.utime(paths[2], ns=(times.st_atime_ns, times.st_mtime_ns))
    check_equal(info(paths[5])["index_origin"], "built",
                "the index after a change")


def test_a_part_that_is_amiss_is_named(work):
    names = ["t.tar.%03d" % i for i in range(1, 9)]
    paths = cut(make_tar(work / "a"), names)
    kept = {path: path.read_bytes() for path in paths}

    def restore():
        for path, data in kept.items():
            path.write_bytes(data)

    for missing, given in (3, 0), (3, 7), (0, 2):
        paths[missing].unlink()
        line = complaint("ls", paths[given])
        check(names[missing] in line and "missing" in line, line)
        restore()
    paths[4].write_bytes(kept[paths[4]][:1000])
    line = complaint("ls", paths[1])
    check(names[4] in line and "1000 bytes" in line, line)
    restore()
    paths[0].write_bytes(kept[paths[1]])
    paths[1].write_bytes(kept[paths[0]])
    line = complaint("ls", paths[0])
    check(names[1] in line and "wrong order" in line, line)


def test_a_part_of_another_archive_is_named(work):
    sizes = random.Random(1)
    others = {name: sizes.randbytes(sizes.randrange(200_000)) for name in FILES}
    for mode in "", "gz":
        foreign = pathlib.Path(make_tar(work / "b", "w:" + mode, others)).read_bytes()
        paths = cut(make_tar(work / "a", "w:" + mode), ["%s.%02d" % (mode, i) for i in range(9)])
        piece = paths[3].stat().st_size
        paths[3].write_bytes(foreign[3 * piece:4 * piece])
        line = complaint("ls", paths[0])
        check(paths[3].name in line and ("of this archive" in line or "copy this" in line), line)


def test_a_last_part_that_is_missing_is_named(work):
    for mode, name in ("", "a.tar.%02d"), ("gz", "b-%02d.tar.gz"), ("bz2", "c.%02d.part"):
        paths = cut(make_tar(work / "a", "w:" + mode), [name % i for i in range(4)])
        paths[3].unlink()
        for path in paths[:3]:
            line = complaint("ls", path)
            check(name % 3 + " may be missing" in line, line)
        paths[1].unlink()
        paths[2].unlink()
        line = complaint("ls", paths[0])
        check(("first of several parts" in line) == (mode == ""), line)
    # between two members
    paths = cut(make_tar(work / "a", files={"%d" % i: b"x" * 512 for i in range(64)}),
                ["m.%02d" % i for i in range(3)], piece=16 * 1024)
    paths[2].unlink()
    run = onepot("ls", paths[0])
    check(b"last part is not there" in run.stderr, run.stderr)


def test_a_volume_that_is_amiss_is_named(work):
    paths = make_volumes(work.path, "z")
    data = paths[1].read_bytes()
    paths[1].unlink()
    for given in paths[0], paths[-1]:
        line = complaint("ls", given)
        check("z.z02" in line and "missing" in line, line)
    paths[1].write_bytes(data[:1000])
    line = complaint("ls", paths[0])
    check("z.z02" in line and "1000 bytes" in line, line)
    paths[0].unlink()
    for given in paths[1], paths[-1]:
        line = complaint("ls", given)
        check("z.z01" in line and "missing" in line, line)


def test_whole_archives_with_such_names_stay_archives(work):
    shards = [make_tar(work / ("s.%03d" % i), files={"%d/%s" % (i, n): b"x" * 512 for n in "abc"}) for i in range(4)]
    check_equal(len({p.stat().st_size for p in map(pathlib.Path, shards)}), 1, "lengths of the shards")
    for i, shard in enumerate(shards):
        check_equal(onepot("ls", shard).stdout.decode().split(), [str(i)], shard)
    with work.mount(work / "s.*") as mount:
        check_equal(sorted(os.listdir(mount.path)), ["0", "1", "2", "3"], "shards as a tree")
    with zipfile.ZipFile(work / "w.zip", "w") as z:
        z.writestr("f", "1")
    pathlib.Path(work / "w.z01").write_bytes(b"left over")
    check_equal(onepot("ls", work / "w.zip").stdout.split(), [b"f"], "a whole zip")


def test_numbered_tars_are_never_joined(work):
    for mode, ending in ("", "tar"), ("gz", "tar.gz"), ("", "tar.bin"):
        shards = [make_tar(pathlib.Path(work / ("s-%03d.%s" % (i, ending))), "w:" + mode,
                           {"%d/%s" % (i, n): b"x" * (900 + 700 * (i % 2) * len(mode)) for n in "abc"})
                  for i in range(4)]

        def check_alone(numbers):
            for i in numbers:
                names = onepot("ls", shards[i]).stdout.decode().split()
                check_equal(names, [str(i)], shards[i])

        check_alone(range(4))
        with work.mount(work / ("s-*." + ending)) as mount:
            check_equal(sorted(os.listdir(mount.path)), ["0", "1", "2", "3"], "shards as a tree")
        whole = shards[1].read_bytes()
        if ending == "tar":
            for damaged in whole[:1536], whole[:5000], b"", b"\0" * len(whole), b"\xff" * len(whole):
                shards[1].write_bytes(damaged)
                check_alone([0, 2, 3])
            shards[1].write_bytes(whole)
            first = shards[0].read_bytes()
            shards[0].write_bytes(first[:2048])
            check_alone([1, 2, 3])
            for i, shard in enumerate(shards):  # no end marker, as some programs write
                make_tar(shard, files={"%d/%s" % (i, n): b"x" * 512 for n in "abc"})
                shard.write_bytes(shard.read_bytes()[:3 * 1024])
            check_alone(range(4))
            for shard in shards:
                shard.write_bytes(shard.read_bytes()[:3 * 1024 - 100])
            check("s-000.tar: 0/c: the archive is truncated" in complaint("ls", shards[0]), "each is cut")


def test_numbered_files_ahead_of_another_suffix_are_not_joined(work):
    for i in range(3):
        (pathlib.Path(work.path) / ("s%d.run" % i)).write_bytes(
            b"#!/bin/sh\nexit\n" + pathlib.Path(make_tar(work / "a", files={str(i): b"x"})).read_bytes())
        check_equal(onepot("ls", work / ("s%d.run" % i)).stdout.split(), [b"%d" % i], "behind a script")
    with zipfile.ZipFile(work / "d0.data", "w") as z:
        z.writestr("f", "1")
    for other in b"?" * 50, pathlib.Path(work / "s1.run").read_bytes():
        pathlib.Path(work / "d1.data").write_bytes(other)
        check_equal(onepot("ls", work / "d0.data").stdout.split(), [b"f"], "beside another file")


def test_links_lead_to_parts_and_loops_do_not(work):
    paths = cut(make_tar(work / "a"), letters("t.tar.", 4))
    links = pathlib.Path(work.make("links"))
    for path in paths:
        os.symlink(path, links / path.name)
    check_equal(info(links / paths[1].name)["files"], len(FILES), "links")
    os.unlink(links / paths[2].name)
    os.symlink(links / paths[2].name, links / paths[2].name)
    line = complaint("ls", links / paths[0].name)
    check(paths[2].name in line, line)


def swallowing(to, size):
    """The head of a tar whose only member goes on for that many bytes behind it."""
    info = tarfile.TarInfo("theirs")
    info.size = size
    to.write_bytes(info.tobuf().ljust(10240, b"e"))
    return to


def test_a_whole_tar_is_the_archive_whatever_lies_beside_it(work):
    folder = pathlib.Path(work.make("whole"))
    with tarfile.open(folder / "train2.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("mine"))
    swallowing(folder / "train1.tar", 15_000)
    check_equal(onepot("ls", folder / "train2.tar").stdout.split(), [b"mine"], "a shard")
    onepot("pack", "-q", "-o", folder / "packed2.tar", folder / "train2.tar")
    os.rename(swallowing(folder / "x", 15_000), folder / "packed1.tar")
    check_equal(onepot("ls", folder / "packed2.tar").stdout.split(), [b"mine"], "a packed shard")
    os.rename(folder / "packed2.tar", folder / "p.01")
    os.rename(folder / "packed1.tar", folder / "p.00")
    check_equal(onepot("ls", folder / "p.01").stdout.split(), [b"mine"], "a packed piece by its name")
    os.rename(folder / "train2.tar", folder / "t.01")
    os.rename(folder / "train1.tar", folder / "t.00")
    check_equal(onepot("ls", folder / "t.01").stdout.split(), [b"mine"], "a piece by its name")


def test_what_is_no_file_of_the_owner_is_no_part(work):
    for name in "fifo", "folder", "link", "writable", "theirs":
        if name == "theirs" and os.geteuid() != 0:
            continue
        folder = pathlib.Path(work.make("beside-" + name))
        paths = cut(make_tar(folder / "a"), letters("t.tar.", 4))
        other = folder / "t.tar.ae"
        if name == "fifo":
            os.mkfifo(other)
        elif name == "folder":
            os.mkdir(other)
        elif name == "link":
            os.symlink("/dev/null", other)
        else:
            other.write_bytes(b"e" * 1000)
            os.chmod(other, 0o666 if name == "writable" else 0o644)
            if name == "theirs":
                os.chown(other, 1001, 1001)
        for path in paths:
            check_equal(info(path)["files"], len(FILES), name)
        line = onepot("ls", paths[1]).stderr.decode()
        check("t.tar.ae beside it does not count as a part" in line and len(line.splitlines()) == 1, line)


def test_a_part_that_does_not_count_is_named(work):
    folder = pathlib.Path(work.make("not-counted"))
    paths = cut(make_tar(folder / "a"), letters("t.tar.", 4))
    volumes = make_volumes(folder, "v")
    for given, part in (paths[0], paths[2]), (paths[0], paths[3]), (volumes[-1], volumes[0]):
        os.chmod(part, 0o666)
        lines = onepot("verify", given, status=1).stderr.decode()
        check(part.name in lines and "others can write to it" in lines, lines)
        os.chmod(part, 0o644)
    check_equal(info(paths[0])["files"], len(FILES), "pieces")
    check_equal(info(volumes[-1])["files"], len(FILES), "volumes")

if __name__ == "__main__":
    harness.main(globals())

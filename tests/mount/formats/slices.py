"""Archives inside other files: a container's image, what is behind a script or a program, an
offset that the user gives; and containers that lie."""

import gzip
import json
import os
import pathlib
import struct
import tarfile
import zipfile

import harness
from harness import check, check_equal, onepot, run
from malformed import each_listed

SQUASHFS, EXT3, ENCRYPTED = 1, 2, 5
SYSTEM, PRIMARY, DATA, OVERLAY = 1, 2, 3, 4
SCRIPT = b"#!/bin/sh\n# Extracts itself.\ntail -c +NNN \"$0\" | tar x\nexit 0\n__ARCHIVE__\n"


def make_tree(work):
    tree = pathlib.Path(work.make("tree"))
    (tree / "d").mkdir()
    (tree / "d" / "small").write_bytes(b"hello\n")
    (tree / "large").write_bytes(os.urandom(300000))
    (tree / "text").write_bytes(b"compresses well\n" * 30000)
    (tree / "link").symlink_to("d/small")
    for i in range(0, 300, 5):
        (tree / "d" / f"f{i}").write_bytes(b"%d" % i * i)
    return tree


def make_squashfs(work, tree, name="a.sqfs", *options):
    harness.need_program("mksquashfs")
    path = pathlib.Path(work / name)
    run("mksquashfs", tree, path, "-quiet", "-no-progress", *options)
    return path.read_bytes()


def make_tar(work, tree, name="a.tar"):
    path = pathlib.Path(work / name)
    with tarfile.open(path, "w") as t:
        t.add(tree, ".")
    return path.read_bytes()


def descriptor(kind=0x4004, used=1, offset=0, length=0, filesystem=SQUASHFS, use=PRIMARY):
    fixed = struct.pack("<iBIIIqqqqqqq", kind, used, 1, 0xf0000001, 0, offset, length, length, 0,
                        0, 0, 0)
    return fixed + bytes(128) + struct.pack("<ii3s", filesystem, use, b"02\0").ljust(384, b"\0")


def make_sif(parts, *, total=None, table=4096, version=b"01\0", magic=b"SIF_MAGIC\0"):
    """parts: (bytes, a descriptor's other fields)."""
    at, rows, data = 32768, [], []
    for content, fields in parts:
        data.append((at, content))
        rows.append(descriptor(**{"offset": at, "length": len(content), **fields}))
        at += len(content) + -len(content) % 4096 + 512  # not at a page's start
    sif = bytearray(at)
    sif[:128] = struct.pack("<32s10s3s3s16sqqqqqqqq", b"#!/usr/bin/env run-singularity\n", magic,
                            version, b"02\0", bytes(16), 0, 0, 48 - len(rows),
                            48 if total is None else total, table, 48 * 585, 32768, at - 32768)
    for i, row in enumerate(rows):
        sif[4096 + i * 585:4096 + (i + 1) * 585] = row
    for place, content in data:
        sif[place:place + len(content)] = content
    return bytes(sif)


def write(work, name, data):
    path = pathlib.Path(work / name)
    path.write_bytes(data)
    return path


def check_same(tree, mount):
    tree, mount = pathlib.Path(tree), pathlib.Path(mount)
    names = sorted(str(p.relative_to(tree)) for p in tree.rglob("*"))
    check_equal(sorted(str(p.relative_to(mount)) for p in mount.rglob("*")), names, "names")
    for name in names:
        if (tree / name).is_symlink():
            check_equal(os.readlink(mount / name), os.readlink(tree / name), name)
        elif (tree / name).is_file():
            check((mount / name).read_bytes() == (tree / name).read_bytes(), f"{name} differs")


def check_mounts(work, tree, path, *options, name=None):
    """Local storage, storage that is not mapped, a copy on this node."""
    name = name or path.name + ".d"
    with work.mount(path, *options, name=name) as mount:
        check_same(tree, mount.path)
    with work.mount(path, *options, name=name,
                    env=harness.environment(ONEPOT_ASSUME_REMOTE="1")) as mount:
        check_same(tree, mount.path)
    with work.mount(path, *options, "--stage=" + work.path, name=name) as mount:
        check_same(tree, mount.path)


def info(path, *options):
    about, = json.loads(onepot("info", "--json", *options, path).stdout)
    return about["format"], about["container"], about["offset"]


def test_sif(work):
    tree = make_tree(work)
    image = make_squashfs(work, tree)
    stored = make_squashfs(work, tree, "stored.sqfs", "-noD", "-noF", "-noI")
    definition = (b"bootstrap: none\n", {"kind": 0x4001})
    for name, part in (("packed", image), ("stored", stored)):
        path = write(work, name + ".sif", make_sif([definition, (part, {})]))
        check_equal(info(path), ("SquashFS", "a SIF", 32768 + 4096 + 512), "info")
        check_mounts(work, tree, path)
    onepot("verify", path)
    check_equal(onepot("cat", path, "d/small").stdout, b"hello\n", "cat")
    onepot("extract", path, "-C", work / "out")
    check_same(tree, work / "out")
    said = onepot("doctor", path, status=None).stdout
    check(b"SquashFS in a SIF" in said, said)
    check(b"in a SIF, at offset 37376" in onepot("info", path).stdout, "info, for people")


def test_which_partition_of_a_sif(work):
    tree = make_tree(work)
    image = make_squashfs(work, tree)
    other = make_squashfs(work, tree / "d", "other.sqfs")
    for number, (parts, found) in enumerate((
            ([(other, {"use": OVERLAY}), (other, {"use": DATA}), (image, {"use": PRIMARY})], 2),
            ([(other, {"use": DATA}), (image, {"use": SYSTEM})], 1),
            ([(image, {"use": DATA}), (other, {"use": DATA})], 0),
            ([(other, {"used": 0}), (image, {})], 1),
            ([(b"x" * 9000, {"filesystem": EXT3}), (image, {"use": SYSTEM})], 1))):
        path = write(work, f"{number}.sif", make_sif(parts))
        offset = 32768 + sum(len(p) + -len(p) % 4096 + 512 for p, _ in parts[:found])
        check_equal(info(path), ("SquashFS", "a SIF", offset), f"case {number}")
        check_equal(onepot("cat", path, "d/small").stdout, b"hello\n", f"case {number}")


def test_damaged_sifs_are_refused(work):
    image = make_squashfs(work, make_tree(work))
    whole = make_sif([(image, {})])
    cases = {
        "version": (make_sif([(image, {})], version=b"02\0"), "another version"),
        "total": (make_sif([(image, {})], total=1 << 40), "claims a table"),
        "negative total": (make_sif([(image, {})], total=-1), "claims a table"),
        "no descriptors": (make_sif([(image, {})], total=0), "without a SquashFS image"),
        "table": (make_sif([(image, {})], table=len(whole) - 584), "past its end"),
        "negative table": (make_sif([(image, {})], table=-1), "past its end"),
        "nothing": (make_sif([]), "without a SquashFS image"),
        "encrypted": (make_sif([(image, {"filesystem": ENCRYPTED})]), "encrypted"),
        "ext3": (make_sif([(image, {"filesystem": EXT3})]), "without a SquashFS image"),
        "overlay": (make_sif([(image, {"use": OVERLAY})]), "without a SquashFS image"),
        "huge use": (make_sif([(image, {"use": 2**31 - 1})]), "without a SquashFS image"),
        "offset": (make_sif([(image, {"offset": len(whole) - 9})]), "past its end"),
        "negative offset": (make_sif([(image, {"offset": -1})]), "past its end"),
        "length": (make_sif([(image, {"length": 1 << 62})]), "past its end"),
        "negative length": (make_sif([(image, {"length": -1})]), "past its end"),
        "short length": (make_sif([(image, {"length": 4096})]), "is cut off"),
        "no length": (make_sif([(image, {"length": 0})]), "is empty"),
        "wrong place": (make_sif([(image, {"offset": 40000, "length": 4096})]), "not an archive of a known format"),
        "cut table": (whole[:5000], "past its end"),
        "cut image": (whole[:40000], "past its end"),
    }
    damaged = ((name, data) for name, (data, _) in cases.items())
    for name, _, listing, said in each_listed(work, "bad.sif", damaged):
        check(listing is None and len(said) == 1 and cases[name][1] in said[0], f"{name}: {said}")
    path = write(work, "magic.sif", make_sif([(image, {})], magic=b"SIF_MAGIX\0"))
    check(b"is a script" in onepot("ls", path, status=1).stderr, "another magic")


def test_behind_a_script(work):
    tree = make_tree(work)
    tar = make_tar(work, tree)
    packed = write(work, "gz", gzip.compress(tar)).read_bytes()
    onepot("pack", "-o", work / "one.tar", tree)
    onepot("pack", "--zstd", "-o", work / "zstd.tar", tree)
    one = pathlib.Path(work / "one.tar").read_bytes()
    zstd = pathlib.Path(work / "zstd.tar").read_bytes()
    image = make_squashfs(work, tree)
    for name, archive, fmt in (("tar", tar, "tar"), ("gz", packed, "tar"), ("one", one, "onepot"),
                               ("zstd", zstd, "onepot"), ("sqfs", image, "SquashFS")):
        for pad in (0, 3, 5000):
            path = write(work, f"{name}{pad}.run", SCRIPT + bytes(pad) + archive)
            check_equal(info(path), (fmt, "a script", len(SCRIPT) + pad), f"{name}, {pad}")
        check_mounts(work, tree, path)
        onepot("verify", path)
    stored = pathlib.Path(work / "a.zip")
    with zipfile.ZipFile(stored, "w") as z:
        z.writestr("d/small", "hello\n")
    path = write(work, "zip.run", SCRIPT + stored.read_bytes())
    check_equal(onepot("cat", path, "d/small").stdout, b"hello\n", "a zip finds itself")


def test_a_script_is_not_searched_behind_its_text(work):
    tar = make_tar(work, make_tree(work))
    for name, data in (("binary", b"#!/bin/sh\nexit\n\0binary\n" + tar),
                       ("no line", b"#!/bin/sh " + tar), ("long", b"#!/bin/sh\n" * 200000 + tar),
                       ("alone", b"#!/bin/sh\n"), ("short", b"#!"), ("zeros", SCRIPT + bytes(9999)),
                       ("text", b"#!/bin/sh\nBZh9 is bzip2\nLZIP, and lzip too\nexit\n" * 9)):
        path = write(work, "a.run", data)
        check(b"is a script" in onepot("ls", path, status=1).stderr, name)
    # An archive that begins as a script is one all the same.
    with tarfile.open(work / "odd.tar", "w") as t:
        member = tarfile.TarInfo("#!/bin/sh\nexit\n")
        t.addfile(member)
    check_equal(info(work / "odd.tar"), ("tar", None, 0), "a name like a script")


def test_behind_a_program(work):
    tree = make_tree(work)
    image = make_squashfs(work, tree)
    program = pathlib.Path(harness.onepot_program()).read_bytes()
    path = write(work, "a.AppImage", program + image)
    check_equal(info(path), ("SquashFS", "a program", len(program)), "info")
    check_mounts(work, tree, path)
    for at, bad in ((4, b"\x03"), (5, b"\x02"), (40, b"\xff" * 8), (58, b"\1\0"), (60, b"\0\0")):
        broken = bytearray(program + image)
        broken[at:at + len(bad)] = bad
        write(work, "a.AppImage", broken)
        check(b"is a program" in onepot("ls", path, status=1).stderr, f"ELF's byte {at}")


def test_an_offset_that_is_given(work):
    tree = make_tree(work)
    other = make_tree_of_one(work)
    first, second = make_tar(work, other, "b.tar"), make_tar(work, tree)
    image = make_squashfs(work, tree)
    path = write(work, "two", first + second)
    at = len(first)
    check_mounts(work, other, path, name="first")
    check_mounts(work, tree, path, "--offset", str(at), name="second")
    check_mounts(work, tree, path, "-o", f"noexec,offset={at}", name="third")
    check_equal(info(path, "--offset", str(at)), ("tar", "a file", at), "info")
    # Each has a saved index of its own.
    for options in ((), ("--offset", str(at))):
        check(b": saved in " in onepot("index", *options, path).stdout, "index is made")
    for options in ((), ("--offset", str(at))):
        check(b": still right: " in onepot("index", *options, path).stdout, "index is used")
    check(os.path.exists(f"{path}@{at}.onepot-index"), "its name")
    # Both at once, and neither answers for the other.
    with work.mount(path, name="a") as a, work.mount(path, "--offset", str(at), name="b") as b:
        check_same(other, a.path)
        check_same(tree, b.path)
    odd = write(work, "odd", b"anything" + image)
    check_mounts(work, tree, odd, "--offset=8", name="odd.d")
    for offset, message in ((len(image) + 8, b"ends before"), (1 << 63, b"ends before"),
                            (9, b"not an archive of a known format")):
        said = onepot("ls", f"--offset={offset}", odd, status=1).stderr
        check(message in said, said)
    check(b"is not a size" in onepot("ls", "--offset=x", odd, status=2).stderr, "no number")


def make_tree_of_one(work):
    tree = pathlib.Path(work.make("other"))
    (tree / "alone").write_bytes(b"alone")
    return tree


def test_a_fault_is_told_by_its_place_in_the_file(work):
    image = bytearray(make_squashfs(work, make_tree(work)))
    image[22:24] = b"\x63\0"  # log2 of a block
    path = write(work, "bad.sif", make_sif([(bytes(image), {})]))
    for options in ((), ("--each",)):
        said = onepot("ls", *options, path, status=1).stderr.decode()
        check(f"(offset {32768 + 12})" in said, said)
    with tarfile.open(work / "up.tar", "w") as t:
        t.addfile(tarfile.TarInfo("file"))
        t.addfile(tarfile.TarInfo("../file"))
    path = write(work, "up.run", SCRIPT + pathlib.Path(work / "up.tar").read_bytes())
    said = onepot("ls", path).stderr.decode()
    check(f"(offset {len(SCRIPT) + 512})" in said, said)


def test_cut_off_anywhere(work):
    tree = make_tree_of_one(work)
    image = make_squashfs(work, tree, "a.sqfs", "-nopad")
    whole = {"sif": make_sif([(image, {})]), "run": SCRIPT + make_tar(work, tree)[:2048]}
    for name, data in whole.items():
        lengths = range(0, len(data), 13 if len(data) < 4000 else 997)
        for what, _, _, said in each_listed(work, "cut", ((f"{name}, {at}", data[:at]) for at in lengths)):
            check(len(said) <= 1, f"{what}: {said}")


if __name__ == "__main__":
    harness.main(globals())

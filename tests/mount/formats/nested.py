"""Archives inside archives as directories: what they hold, what stays a file, and what lies."""

import errno
import gzip
import io
import lzma
import os
import pathlib
import random
import tarfile
import zipfile

import harness
from harness import check, check_equal, onepot, run
from malformed import each_listed


def tar_of(members, **options):
    """members: name -> bytes, or (target) a hard link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", **options) as t:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.mtime = 1234567890
            if isinstance(data, tuple):
                info.type, info.linkname = tarfile.LNKTYPE, data[0]
            else:
                info.size = len(data)
            t.addfile(info, None if isinstance(data, tuple) else io.BytesIO(data))
    return out.getvalue()


def zip_of(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as z:
        for name, data in members.items():
            z.writestr(name, data)
    return out.getvalue()


def write(work, name, data):
    path = pathlib.Path(work / name)
    path.write_bytes(data)
    return path


def tree(top):
    """name -> bytes of all files."""
    top = pathlib.Path(top)
    return {str(p.relative_to(top)): p.read_bytes() for p in top.rglob("*") if p.is_file()}


def files(prefix, count=5):
    return {f"{prefix}{i}.txt": f"{prefix}, {i}\n".encode() * i * 99 for i in range(count)}


def under(name, members):
    return {f"{name}/{k}": v for k, v in members.items()}


def test_all_formats_inside_a_tar(work):
    harness.need_program("mksquashfs")
    source = work.make("s")
    for name, data in files("s").items():
        write(work, "s/" + name, data)
    run("mksquashfs", source, work / "s.sqfs", "-quiet", "-no-progress")
    onepot("pack", "-o", work / "one.tar", source)
    inner = {"t.tar": tar_of(files("t")), "z.zip": zip_of(files("z"), zipfile.ZIP_DEFLATED),
             "d/s.sqfs": pathlib.Path(work / "s.sqfs").read_bytes(),
             "one.tar": pathlib.Path(work / "one.tar").read_bytes()}
    plain = {"file": b"a file\n", "d/link": ("file",)}
    expected = {**under("t", files("t")), **under("z", files("z")), **under("d/s", files("s")),
                **under("one", files("s")), "file": b"a file\n", "d/link": b"a file\n"}
    outer = write(work, "outer.tar", tar_of({**plain, **inner}))
    for name, env in (("local", harness.environment()),
                      ("remote", harness.environment(ONEPOT_ASSUME_REMOTE="1"))):
        with work.mount(outer, "--nested", env=env, name=name) as mount:
            check_equal(tree(mount.path), expected, name)
            check_equal(mount.notes, "", "notes")
            check_equal(os.stat(mount / "file").st_nlink, 2, "hard links")
    with work.mount(outer, "--nested", "--stage=" + work.path, name="staged") as mount:
        check_equal(tree(mount.path), expected, "staged")
    onepot("extract", "--nested", outer, "-C", work / "out")
    check_equal(tree(work / "out"), expected, "extracted")
    with work.mount(outer, name="plain") as mount:
        check_equal(sorted(tree(mount.path)), sorted([*plain, *inner]), "without --nested")
    check_equal(onepot("cat", "--nested", outer, "z/z3.txt").stdout, files("z")["z3.txt"], "cat")
    # The same in a zip, a SquashFS and an onepot archive.
    write(work, "outer.zip", zip_of({k: v for k, v in inner.items()}))
    holder = work.make("holder")
    os.mkdir(os.path.join(holder, "d"))
    for name, data in inner.items():
        write(work, "holder/" + name, data)
    run("mksquashfs", holder, work / "outer.sqfs", "-quiet", "-no-progress", "-noD", "-noF")
    onepot("pack", "-o", work / "packed.tar", holder)
    for name in ("outer.zip", "outer.sqfs", "packed.tar"):
        with work.mount(work / name, "--nested", name=name + ".d") as mount:
            check_equal(tree(mount.path), {k: v for k, v in expected.items()
                                           if k not in ("file", "d/link")}, name)


def test_depth(work):
    data = tar_of({"bottom": b"deep\n"})
    for level in range(5, 0, -1):
        data = tar_of({f"{level}.tar": data})
    outer = write(work, "outer.tar", data)
    with work.mount(outer, "--nested") as mount:
        check_equal(list(tree(mount.path)), ["1/2/3/4/5.tar"], "four are opened")
        check("1/2/3/4/5.tar stays a file: it lies too deep" in mount.notes, mount.notes)


def test_which_members(work):
    outer = write(work, "outer.tar", tar_of({
        "a.tar": tar_of(files("a")), "sub/b": tar_of(files("b")), "sub/c.tar": tar_of(files("c")),
        ".tar": tar_of(files("d")), "..tar": tar_of(files("e")), "no.tar": b"no tar",
        "empty.tar": b"", "no.zip": b"x" * 5000, "no.img": b"y" * 5000}))
    with work.mount(outer, "--nested", name="ending") as mount:
        check_equal(set(tree(mount.path)),
                    {*under("a", files("a")), *under("sub/c", files("c")), "sub/b", ".tar", "..tar",
                     "no.tar", "empty.tar", "no.zip", "no.img"}, "by ending")
    for glob, expected in (("sub/*", {*under("sub/c", files("c")), *under("sub/b", files("b"))}),
                           ("b", {*under("sub/b", files("b")), "sub/c.tar"}),
                           ("*.zip", {"sub/b", "sub/c.tar"})):
        with work.mount(outer, "--nested=" + glob, name="glob") as mount:
            found = {n for n in tree(mount.path) if n.startswith("sub/")}
            check_equal(found, expected, glob)
    check(b"needs a pattern" in onepot("ls", "--nested=", outer, status=2).stderr, "empty pattern")


def test_gzip_is_read_from_its_points(work):
    inner = {"big": " ".join(map(str, random.Random(1).choices(range(10**6), k=500000))).encode(),
             **files("a")}
    outer = write(work, "outer.tar", tar_of({"x": b"x", "a.tar.gz": gzip.compress(tar_of(inner))}))
    with work.mount(outer, "--nested") as mount:
        check_equal(tree(mount.path), {"x": b"x", **under("a", inner)}, "content")


def test_what_stays_a_file(work):
    inner = tar_of(files("a"))
    cases = {
        "compressed": ({"a.tar.xz": lzma.compress(inner)}, "one compressed stream", ["a.tar.xz"]),
        "taken": ({"a.tar": inner, "a/x": b"x"}, "is taken", ["a.tar", "a/x"]),
        "taken by a file": ({"a": b"x", "a.tar": inner}, "is taken", ["a", "a.tar"]),
    }
    for name, (members, why, expected) in cases.items():
        outer = write(work, name + ".tar", tar_of(members))
        with work.mount(outer, "--nested", name=name) as mount:
            check_equal(sorted(tree(mount.path)), expected, name)
            check_equal(pathlib.Path(mount / expected[0]).read_bytes(), members[expected[0]], name)
            check(why in mount.notes and mount.notes.count("\n") == 1, mount.notes)
    # Of two that want one name, the first in the order of names.
    outer = write(work, "two.tar", tar_of({"a.zip": zip_of(files("z")), "a.tar": inner}))
    with work.mount(outer, "--nested", name="two") as mount:
        check_equal(set(tree(mount.path)), {*under("a", files("a")), "a.zip"}, "two")
    # Deflated in the outer zip; many are one line.
    outer = write(work, "d.zip", zip_of({f"{i}.tar": inner for i in range(9)},
                                        zipfile.ZIP_DEFLATED))
    with work.mount(outer, "--nested", name="deflated") as mount:
        check_equal(len(tree(mount.path)), 9, "files")
        check("9 archives in it stay files; the first is 0.tar: it is compressed" in mount.notes
              and mount.notes.count("\n") == 1, mount.notes)
    outer = write(work, "outer.tar.gz", gzip.compress(tar_of({"a.tar": inner})))
    said = onepot("ls", "--nested", outer)
    check_equal(said.stdout, b"a.tar\n", "in a stream with points")
    check(b"stays a file: it is compressed" in said.stderr, said.stderr)
    # A stream as a whole.
    outer = write(work, "outer.tar.xz", lzma.compress(tar_of({"a.tar": inner})))
    said = onepot("ls", "--nested", outer, status=1).stderr
    check(b"can't be read in place" in said, said)


def test_what_unpacks_to_too_much_stays_a_file(work):
    member = tarfile.TarInfo("zeros")
    member.size = 100 << 20
    bomb = gzip.compress(member.tobuf() + bytes(member.size + 1024), 9)
    outer = write(work, "outer.tar", tar_of({f"{i}.tar.gz": bomb for i in range(4)}))
    said = onepot("ls", "--nested", outer)  # all may unpack to 256 MiB
    check_equal(said.stdout, b"0\n1\n2.tar.gz\n3.tar.gz\n", "what was left out")
    check(b"2 archives in it stay files; the first is 2.tar.gz: compressed archives unpack to too "
          b"much (more: --max-ratio=N or off)\n" in said.stderr, said.stderr)
    for ratio in "off", "3000":
        said = onepot("ls", "--nested", "--max-ratio=" + ratio, outer)
        check_equal((said.stdout, said.stderr), (b"0\n1\n2\n3\n", b""), ratio)
    # The work for archives that stay files all the same counts, too.
    def block(size, kind, data, last=0):  # of a frame of zstd: 0 as it is, 1 one byte over and over
        return (last | kind << 1 | size << 3).to_bytes(3, "little") + data
    frame = (bytes.fromhex("28b52ffd0068") + block(512, 0, member.tobuf())
             + block(1 << 17, 1, b"\0") * 800 + block(10240, 1, b"\0", last=1))
    outer = write(work, "frames.tar", tar_of({"a.tar.zst": frame, "b.tar.zst": frame,
                                              "c.tar.gz": gzip.compress(tar_of(files("c")))}))
    said = onepot("ls", "--nested", outer)
    check_equal(said.stdout, b"a.tar.zst\nb.tar.zst\nc.tar.gz\n", "after two large frames")
    check(b"3 archives in it stay files" in said.stderr, said.stderr)


def test_limit_on_the_size_of_files(work):
    inner = tar_of(files("a"))
    outer = write(work, "outer.tar", tar_of({"a.tar": inner, "b.tar.gz": gzip.compress(inner)}))
    for limit in 0, 1:
        done = run("bash", "-c", f'ulimit -f {limit}; "$@" 2>&1 | cat; exit ${{PIPESTATUS[0]}}', "-",
                   harness.onepot_program(), "ls", "--nested", outer, status=1)
        check(done.stdout.count(b"\n") == 1 and b"File too large; a limit on the size of files "
              b"('ulimit -f')" in done.stdout and b"copy it" not in done.stdout, done.stdout)


def test_a_damaged_one_is_named(work):
    inner = tar_of(files("a"))[:512 * 5]  # in the data of a member
    outer = write(work, "outer.tar", tar_of({"good.tar": tar_of(files("g")),
                                             "d/bad.tar": inner}))
    said = onepot("ls", "--nested", outer, status=1).stderr
    check(b"d/bad.tar: is an archive that can't be read" in said and said.count(b"\n") == 1, said)
    with work.mount(outer, "--nested=good*") as mount:
        check_equal(len(tree(mount.path)), 6, "the others by a pattern")


def test_sums_are_compared_where_there_are_any(work):
    packed = pathlib.Path(work / "packed")
    packed.mkdir()
    (packed / "p").write_bytes(b"packed" * 3000)
    onepot("pack", packed, "-o", work / "p.tar")
    inner = {"z.zip": zip_of({"f": b"zipped" * 3000}), "t.tar": tar_of({"t": b"plain" * 3000}),
             "p.tar": pathlib.Path(work / "p.tar").read_bytes()}
    good = tar_of(inner)
    path = write(work, "good.tar", good)
    onepot("verify", "--nested", path)
    with work.mount(path, "--nested", "--verify") as mount:
        check_equal(len(tree(mount.path)), 3, "files")
    for name, text, has_sum in (("z/f", b"zipped", True), ("p/p", b"packed", True),
                                ("t/t", b"plain", False)):
        bad = bytearray(good)
        bad[good.index(text * 1000) + 1234] ^= 1
        path = write(work, "bad.tar", bytes(bad))
        said = onepot("verify", "--nested", path, status=int(has_sum)).stderr
        check((f"bad.tar: {name}: its bytes do not have" in said.decode()) == has_sum, said)
        onepot("extract", "--nested", path, "-C", work / f"out {text}", status=int(has_sum))
        with work.mount(path, "--nested", "--verify") as mount:
            try:
                check_equal(pathlib.Path(mount / name).read_bytes()[:5], text[:5], "bytes")
                check(not has_sum, f"{name} was read")
            except OSError as e:
                check(has_sum and e.errno == errno.EIO, f"{name}: {e}")


def test_cut_off_and_damaged_anywhere(work):
    """Neither crash nor hang; one line."""
    whole = bytearray(tar_of({"a.tar": tar_of(files("a", 2)), "z.zip": zip_of(files("z", 2))}))
    cases = [case for at in range(0, len(whole), 331) for case in (
        (f"cut to {at}", whole[:at]),
        (f"another byte at {at}", whole[:at] + bytes([whole[at] ^ 0xff]) + whole[at + 1:]))]
    refused = [what for what, _, listing, _ in each_listed(work, "bad.tar", cases, "--nested") if listing is None]
    check(len(refused) > len(cases) // 4, f"only {refused} were refused")


def test_images_that_overlap_are_refused(work):
    """Many files of a SquashFS may share one range, which is an image again: a bomb."""
    harness.need_program("mksquashfs")
    os.mkdir(work / "0")
    for i in range(200):
        write(work, f"0/{i}.txt", b"%d" % i * 1000)
    for level in range(3):
        run("mksquashfs", work / str(level), work / f"{level}.sqfs", "-quiet", "-no-progress",
            "-noD", "-noF", "-noI")
        os.mkdir(work / str(level + 1))
        data = pathlib.Path(work / f"{level}.sqfs").read_bytes()
        for i in range(30):
            write(work, f"{level + 1}/{i}.sqfs", data)
    said = onepot("ls", "--nested", work / "2.sqfs", status=1).stderr
    check(b"overlaps other archives" in said, said)


def test_many(work):
    """A thousand archives in one child; the second time its index is there."""
    members = {f"n{i:04}.tar": tar_of({f"f{j}": b"%d %d" % (i, j) for j in range(10)})
               for i in range(1000)}
    outer = write(work, "outer.tar", tar_of(members))
    said = onepot("index", "--nested", outer)
    check(b": saved in " in said.stdout, said.stdout)
    check(b"still right" in onepot("index", "--nested", outer).stdout, "used again")
    check(b"still right" not in onepot("index", "--nested=n00*", outer).stdout, "another pattern")
    with work.mount(outer, "--nested") as mount:
        check_equal(len(os.listdir(mount.path)), 1000, "directories")
        for i in (0, 1, 500, 999):
            check_equal(pathlib.Path(mount / f"n{i:04}/f7").read_bytes(), b"%d 7" % i, "a file")
    with work.mount(outer, name="plain") as mount:
        check_equal(len(tree(mount.path)), 1000, "without --nested it is another mount")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

"""Tars joined to one file, plain or each a whole stream of its compression: told, kept, and read by --ignore-zeros."""

import gzip
import bz2
import json
import lzma
import os
import subprocess
import tarfile

import harness
from harness import check, check_equal, onepot
from tars import member, write_tar


def zstd(data):
    return subprocess.run(["zstd", "-qc"], input=data, stdout=subprocess.PIPE, check=True).stdout


CODECS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd}
WAY = "--ignore-zeros"


def join(work, ending, parts, name="joined"):
    """parts: of each tar its members."""
    path = work / f"{name}.tar{ending}"
    with open(path, "wb") as joined:
        for members in parts:
            write_tar(work / "part", members)
            with open(work / "part", "rb") as f:
                joined.write(CODECS[ending](f.read()))
    os.unlink(work / "part")
    return path


def three(work, ending, **options):
    """The second has three members, the third replaces one of the first's."""
    return join(work, ending, [[member("a", b"first"), member("b", b"1")],
                               [member("d", directory=True), member("d/c", b"2"), member("e", b"x" * 3000)],
                               [member("a", b"third")]], **options)


ALL = {"a": b"third", "b": b"1", "d/c": b"2", "e": b"x" * 3000}


def content(folder):
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(path, name), "rb") as f:
                found[os.path.relpath(os.path.join(path, name), folder)] = f.read()
    return found


def is_one_line(said, what):
    lines = [line for line in said.decode().splitlines() if "end-of-archive" in line]
    check_equal(len(lines), 1, f"{what}: lines, {said!r}")
    check(WAY in lines[0] and "(offset " in lines[0], f"{what}: {lines[0]}")


def commands(work, path):
    """name -> the arguments, and the status where members are missing."""
    return {"ls": (["ls", path], 0), "cat": (["cat", path, "b"], 0), "info": (["info", path], 0),
            "extract": (["extract", "-fC", work / "out", path], 1),
            "pack": (["pack", "-fo", work / "packed.tar", path], 1),
            "run": (["run", path, "--", "true"], 0)}


def is_told(work, path, what):
    for name, (words, status) in commands(work, path).items():
        is_one_line(onepot(*words, status=status).stderr, f"{what}: {name}")
    with work.mount(path) as mount:
        is_one_line(mount.notes.encode(), f"{what}: mount")
        check_equal(content(mount.path), {"a": b"first", "b": b"1"}, f"{what}: files")
    info = json.loads(onepot("info", "--json", path).stdout)[0]
    check_equal((info["left_out"], info["left_out_kinds"]["behind_end"]), (4, 4), f"{what}: info")
    said = onepot("verify", path, status=1).stderr.decode()
    check_equal(said.count("lies behind an end-of-archive mark"), 4, f"{what}: verify, {said}")
    verified = json.loads(onepot("verify", "--json", path, status=1).stdout)[0]
    check_equal((verified["good"], verified["left_out_kinds"]["behind_end"]), (False, 4), f"{what}: verify --json")


def is_whole(work, path, what):
    for name, (words, _) in commands(work, path).items():
        said = onepot(words[0], WAY, *words[1:]).stderr
        check(b"end-of-archive" not in said, f"{what}: {name}: {said!r}")
    check_equal(content(work / "out"), ALL, f"{what}: extract")
    with work.mount("--ignore-zeros", path) as mount:
        check_equal((content(mount.path), mount.notes.count("end-of-archive")), (ALL, 0), f"{what}: mount")
    said = onepot("run", WAY, path, "--", "sh", "-c", "cat {}/a {}/d/c").stdout
    check_equal(said, b"third2", f"{what}: run")
    check_equal(json.loads(onepot("info", "--json", WAY, path).stdout)[0]["left_out"], 0, f"{what}: info")
    onepot("verify", WAY, path)


def way_of(ending):
    def test(work):
        for saved in False, True:
            name = "saved" if saved else "joined"
            path, what = three(work, ending, name=name), f"{ending or 'plain'}, {name}"
            if saved:
                is_one_line(onepot("index", path).stderr, f"{what}: index")
            is_told(work, path, what)
            if saved:  # beside the other one, which stays
                onepot("index", WAY, path)
                origin = json.loads(onepot("info", "--json", WAY, path).stdout)[0]["index_origin"]
                check_equal(origin, "saved", f"{what}: the index of all")
            is_whole(work, path, what)
            is_told(work, path, what)
            with open(path, "rb") as f:
                said = onepot("pack", "-fo", work / "packed.tar", "-", status=1, stdin=f).stderr
            is_one_line(said, f"{what}: pack -")
            with open(path, "rb") as f:
                onepot("pack", WAY, "-fo", work / "packed.tar", "-", stdin=f)
            onepot("extract", "-fC", work / "packed", work / "packed.tar")
            check_equal(content(work / "packed"), ALL, f"{what}: pack -")
    return test


test_plain_tars = way_of("")
test_tars_in_gzip = way_of(".gz")
test_tars_in_bzip2 = way_of(".bz2")
test_tars_in_xz = way_of(".xz")


def test_tars_in_zstd(work):
    harness.need_program("zstd")
    way_of(".zst")(work)


def test_unpacked_streams(work):
    """An xz stream of one block, and lz4, have to be unpacked: the copy is the same, its index is not."""
    harness.need_program("lz4")
    plain = three(work, "")
    harness.run("lz4", "-q", plain, work / "whole.tar.lz4")
    for path, what in ((work / "whole.tar.lz4", "lz4"),):
        is_one_line(onepot("ls", path).stderr, what)
        check_equal(onepot("ls", WAY, path).stdout.split(), [b"a", b"b", b"d", b"e"], what)
        with work.mount("--stage", path) as mount:
            check_equal(content(mount.path), {"a": b"first", "b": b"1"}, f"{what}: staged")
            with work.mount("--stage", WAY, path, name="all") as whole:
                check_equal(content(whole.path), ALL, f"{what}: staged, all")


def test_runs_share_no_mount_across_the_option(work):
    path = three(work, "")
    inner = [harness.onepot_program(), "run", WAY, path, "--", "sh", "-c", 'ls "$ONEPOT_MOUNT"']
    said = onepot("run", path, "--", "sh", "-c", 'ls "$ONEPOT_MOUNT"; exec "$@"', "sh", *inner).stdout
    check_equal(said.split(), [b"a", b"b", b"a", b"b", b"d", b"e"], "the names in both")


def test_a_tree_of_several_and_archives_in_archives(work):
    os.mkdir(work / "set")
    three(work, "", name="set/one")
    three(work, "", name="set/two")
    with open(work / "set/one.tar", "rb") as f:
        write_tar(work / "outer.tar", [member("one.tar", f.read())])
    for words, trees in (["--each", work / "set"], 2), (["--nested", work / "outer.tar"], 1):
        said = onepot("info", "--json", *words)
        is_one_line(said.stderr, words[0])
        check_equal(json.loads(said.stdout)[0]["left_out_kinds"]["behind_end"], 4 * trees, words[0])
        said = onepot("ls", "-R", WAY, *words)
        check_equal((said.stderr, said.stdout.count(b"d/c\n")), (b"", trees), f"{words[0]}, all")
        onepot("verify", *words, status=1)
        onepot("verify", WAY, *words)


def test_an_empty_tar_may_be_the_first(work):
    path = join(work, "", [[], [member("a", b"1")]])
    said = onepot("ls", path, status=1).stderr
    check(b"--ignore-zeros" in said and said.count(b"\n") == 1, f"{said!r}")
    check_equal(onepot("ls", WAY, path).stdout, b"a\n", "names")


def test_what_is_behind_and_no_tar(work):
    """tar ignores it; who asks for all is told where reading ends, and verify fails."""
    path = join(work, "", [[member("a", b"1")]])
    with open(path, "ab") as f:
        f.write(b"rubbish" * 1000)
    check_equal(onepot("ls", path).stderr, b"", "without the option")
    onepot("verify", path)
    check(b"are no tar" in onepot("ls", WAY, path).stderr, "with it")
    onepot("verify", WAY, path, status=1)


def test_a_damaged_second_tar_costs_the_first_nothing(work):
    path = join(work, "", [[member("a", b"1")], [member("b", b"1"), member("c", b"2")]])
    with open(path, "r+b") as f:
        data = bytearray(f.read())
        at = data.index(b"c\0")
        data[at] ^= 1
        f.seek(0)
        f.write(data)
    said = onepot("ls", path)
    check_equal(said.stdout, b"a\n", "names")
    is_one_line(said.stderr, "a damaged header behind the mark")
    onepot("ls", WAY, path, status=1)


def header_alone(kind):
    """An extended header, whose member was never written."""
    name, body = ("pax", b"22 mtime=1350244992.02\n") if kind in b"xg" else ("././@LongLink", b"n" * 200 + b"\0")
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(body)
    return info.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % 512)


def test_an_extended_header_ahead_of_the_end_is_told_and_costs_nothing(work):
    """GNU tar lists them with status 0."""
    write_tar(work / "part", [member("f", b"abc")])
    with open(work / "part", "rb") as f:
        first = f.read(1024)
    for kind, codec, zeros in [(kind, codec, zeros) for kind in (b"x", b"L", b"K") for codec in CODECS for zeros in (0, 1024, 8704)]:
        path, what = work / f"a.tar{codec}", f"{kind} {codec} {zeros}"
        with open(path, "wb") as f:
            f.write(CODECS[codec](first + header_alone(kind) + bytes(zeros)))
        done = onepot("cat", path, "f")
        check_equal(done.stdout, b"abc", f"{what}: a file")
        check(b"an extended header at 1024" in done.stderr, f"{what}: {done.stderr!r}")
        check_equal(b"no end-of-archive marker" in done.stderr, zeros == 0, f"{what}: {done.stderr!r}")
        if zeros:
            with open(path, "rb") as f:
                onepot("pack", "-fqo", work / "packed.tar", "-", stdin=f)
            check_equal(onepot("cat", work / "packed.tar", "f").stdout, b"abc", f"{what}: a file of the stream")
    with open(path, "wb") as f:
        f.write((first + header_alone(b"x") + bytes(1024)) * 2)
    check_equal(onepot("ls", WAY, path).stdout, b"f\n", "two, joined")
    with open(path, "wb") as f:
        f.write(first + header_alone(b"x")[:700])
    check(b"it ends too early" in onepot("ls", path, status=1).stderr, "a header that is cut")


def test_own_archives(work):
    """Whose index is at their end: joined, they are plain tars."""
    for i in "12":
        write_tar(work / f"{i}.tar", [member(f"f{i}", i.encode())])
        for zstd in [], ["--zstd"]:
            onepot("pack", *zstd, "-o", work / f"{i}.{len(zstd)}", work / f"{i}.tar")
    for kind in "01":
        with open(work / "joined.tar", "wb") as f:
            for i in "12":
                with open(work / f"{i}.{kind}", "rb") as part:
                    f.write(part.read())
        for words, names in ([], None), ([WAY], b"f1\nf2\n"):
            said = onepot("ls", *words, work / "joined.tar")
            check(said.stdout == names or b"end-of-archive" in said.stderr, f"{kind} {words}: {said}")


if __name__ == "__main__":
    harness.main(globals())

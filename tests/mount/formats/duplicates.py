"""Archives that say things twice, out of order, or in odd ways.

Each archive is written member by member; the mount must show what extraction by GNU tar
leaves behind, and what is expected in words here.
"""

import os
import stat
import zipfile

import harness
import tree
from harness import check, check_equal, need_program, run
from tars import member, write_tar

def check_as_extracted(work, members, what, expected=None, ignore=()):
    """The mount equals what GNU tar extracts; `expected`: path -> content or link count."""
    need_program("tar")
    archive = work / "case.tar"
    write_tar(archive, members)
    out = work / "out"
    os.mkdir(out, 0o755)
    run("tar", "--numeric-owner", "-xpf", archive, "-C", out)
    with work.mount(archive) as mount:
        shown = tree.snapshot(mount.path)
        extracted = tree.snapshot(out)
        # Nobody said what the root is like.
        del shown[b""], extracted[b""]
        tree.compare(shown, extracted, what, ignore)
        tree.check_consistent(mount.path)
        for path, (content, nlink) in (expected or {}).items():
            with open(mount / path, "rb") as f:
                check_equal(f.read(), content, f"{what}: content of {path}")
            check_equal(os.stat(mount / path).st_nlink, nlink, f"{what}: nlink of {path}")
    harness.shutil.rmtree(out)


def test_last_of_a_name_wins(work):
    check_as_extracted(work, [
        member("a", b"first", mode=0o600, time=1), member("b", b"other"),
        member("a", b"the second", mode=0o640, time=2)], "a file twice",
        {"a": (b"the second", 1)})
    check_as_extracted(work, [member("a", b"x" * 5000), member("a", b"")],
                       "a file, then an empty one", {"a": (b"", 1)})
    check_as_extracted(work, [member("a", b"file"), member("b", b"b"), member("a", symlink="b")],
                       "a file, then a symbolic link")
    check_as_extracted(work, [member("b", b"kept"), member("a", symlink="b"),
                              member("a", b"file")],
                       "a symbolic link, then a file", {"a": (b"file", 1), "b": (b"kept", 1)})
    check_as_extracted(work, [member("d", directory=True), member("d", b"file")],
                       "an empty directory, then a file", {"d": (b"file", 1)})
    check_as_extracted(work, [member(f"n{i % 7}", b"%d" % i) for i in range(100)],
                       "many times", {"n3": (b"94", 1)})


def test_hard_link_keeps_what_its_name_was(work):
    check_as_extracted(work, [
        member("a", b"old"), member("b", link="a"), member("a", b"new")],
        "a replaced after it was linked", {"a": (b"new", 1), "b": (b"old", 1)})
    check_as_extracted(work, [
        member("a", b"old"), member("b", link="a"), member("a", b"new"), member("c", link="a"),
        member("d", link="b")],
        "links before and after", {"a": (b"new", 2), "b": (b"old", 2), "c": (b"new", 2),
                                   "d": (b"old", 2)})
    check_as_extracted(work, [
        member("a", b"data"), member("b", link="a"), member("b", b"own")],
        "a link that is replaced", {"a": (b"data", 1), "b": (b"own", 1)})
    check_as_extracted(work, [
        member("x/a", b"data"), member("x/b", link="x/a"), member("y/c", link="x/b"),
        member("x/a", symlink="b"), member("y/d", link="y/c")],
        "a chain of links", {"x/b": (b"data", 3), "y/c": (b"data", 3), "y/d": (b"data", 3)},
        ignore=[("mtime_ns", stat.S_IFDIR)])
    check_as_extracted(work, [
        member("a", b"data"), member("a", link="a"), member("b", link="a")],
        "a link to itself", {"a": (b"data", 2), "b": (b"data", 2)})
    check_as_extracted(work, [
        member("s", symlink="t"), member("h", link="s")], "a hard link to a symbolic link")
    check_as_extracted(work, [
        member("a", b"1"), member("b", b"2"), member("b", link="a"), member("a", b"3"),
        member("a", link="b")], "linked back", {"a": (b"1", 2), "b": (b"1", 2)})


def test_paths_of_all_kinds(work):
    ignore = [("mtime_ns", stat.S_IFDIR)]
    check_as_extracted(work, [
        member("./", directory=True), member("./a", b"1"), member("./d/", directory=True),
        member("./d/b", b"2"), member("d/c", b"3"), member("./d//e", b"4"),
        member("d/./f", b"5"), member(".//g", b"6"), member("././h", b"7"),
        member("l", link="./d/b"), member("./m", link="d//./c")],
        "dots and slashes", {"a": (b"1", 1), "d/b": (b"2", 2), "d/c": (b"3", 2),
                             "d/e": (b"4", 1), "d/f": (b"5", 1), "g": (b"6", 1), "h": (b"7", 1)},
        ignore)
    check_as_extracted(work, [
        member("/top", b"1"), member("/abs/dir/", directory=True), member("/abs/dir/f", b"2"),
        member("//two", b"3"), member("link", link="/abs/dir/f"),
        member("symlink", symlink="/abs/dir/f")],
        "absolute names", {"top": (b"1", 1), "abs/dir/f": (b"2", 2), "two": (b"3", 1)}, ignore)


def test_missing_parents(work):
    os.umask(0o022)
    ignore = [("mtime_ns", stat.S_IFDIR), ("uid", stat.S_IFDIR), ("gid", stat.S_IFDIR)]
    check_as_extracted(work, [
        member("x/y/z", b"1"), member("x/w", b"2"), member("p/q/r/s", symlink="x")],
        "parents that no member announces", {"x/y/z": (b"1", 1)}, ignore)
    check_as_extracted(work, [
        member("x/y/z", b"1"), member("x/y", directory=True, mode=0o700, time=5),
        member("x", directory=True, mode=0o750, time=6)],
        "parents that come later", {"x/y/z": (b"1", 1)})


def test_directory_again(work):
    check_as_extracted(work, [
        member("d", directory=True, mode=0o700, time=1), member("d/a", b"1"),
        member("e", b"between"), member("d", directory=True, mode=0o711, time=9),
        member("d/b", b"2"), member("d", directory=True, mode=0o755, time=10)],
        "a directory that comes again", {"d/a": (b"1", 1), "d/b": (b"2", 1)})


def test_root_has_its_attributes(work):
    archive = work / "root.tar"
    write_tar(archive, [member("./", directory=True, mode=0o711, time=12345), member("a", b"1")])
    with work.mount(archive) as mount:
        st = os.stat(mount.path)
        check_equal((stat.S_IMODE(st.st_mode), st.st_mtime), (0o711, 12345), "the root")


def test_archives_that_grew(work):
    """tar -r and -u append; tar -A joins two."""
    need_program("tar")
    source = work.make("source")
    for name in ("a", "b"):
        tree.write(os.path.join(source, name), name.encode())
    archive, other = work / "grown.tar", work / "other.tar"
    run("tar", "-cf", archive, "-C", source, "a", "b")
    tree.write(os.path.join(source, "a"), b"a, changed")
    os.link(os.path.join(source, "a"), os.path.join(source, "c"))
    run("tar", "-rf", archive, "-C", source, "a", "c")
    tree.write(os.path.join(source, "b"), b"b, changed too")
    run("tar", "-cf", other, "-C", source, "b")
    run("tar", "-Af", archive, other)
    with work.mount(archive) as mount:
        for name, data, nlink in (("a", b"a, changed", 2), ("c", b"a, changed", 2),
                                  ("b", b"b, changed too", 1)):
            with open(mount / name, "rb") as f:
                check_equal(f.read(), data, name)
            check_equal(os.stat(mount / name).st_nlink, nlink, f"nlink of {name}")


def test_empty_archives(work):
    for what, data in (("two zero records", bytes(1024)), ("a block of zeros", bytes(10240))):
        archive = work / f"{what}.tar"
        tree.write(archive, data)
        with work.mount(archive) as mount:
            check_equal(os.listdir(mount.path), [], what)
            check_equal(os.stat(mount.path).st_nlink, 2, "nlink of the empty root")


def check_left_out(work, members, what, *words):
    """One member is not shown, with one line; the others are; verify fails, info counts."""
    archive = work / "part.tar"
    write_tar(archive, members + [member("last", b"shown")])
    done = harness.onepot("ls", archive)
    said = done.stderr.decode()
    check(said.startswith(f"onepot: {archive}: ") and said.count("\n") == 1 and "(offset" in said,
          f"{what}: not one line with file and offset: {said!r}")
    for word in words + ("left out",):
        check(word in said, f"{what}: the message does not say {word!r}: {said!r}")
    with work.mount(archive) as mount:
        with open(mount / "last", "rb") as f:
            check_equal(f.read(), b"shown", f"{what}: the member behind it")
    info = harness.json.loads(harness.onepot("info", "--json", archive).stdout)
    check_equal(info[0]["left_out"], 1, f"{what}: left_out of info")
    verified = harness.onepot("verify", "--json", archive, status=1)
    problems = harness.json.loads(verified.stdout)[0]["problems"]
    check_equal(len(problems), 1, f"{what}: problems of verify")
    check(problems[0]["member"] and problems[0]["offset"] is not None, f"{what}: {problems}")


def test_left_out_is_told_by_a_saved_index_too(work):
    archive = work / "saved.tar"
    write_tar(archive, [member("a", b"1")] + [member(f"l{i}", link="nothing") for i in range(150)])
    harness.onepot("index", archive)
    said = harness.onepot("ls", archive).stderr.decode()
    check(said.count("\n") == 1 and "'nothing'" in said and "149 more" in said, f"of 150: {said!r}")
    info = harness.json.loads(harness.onepot("info", "--json", archive).stdout)[0]
    check_equal((info["index_origin"], info["left_out"]), ("saved", 150), "index and left_out")
    lines = harness.onepot("verify", archive, status=1).stderr.decode().splitlines()
    check_equal(len([line for line in lines if "'nothing'" in line]), 100, "lines of verify")
    check(any("50 more members" in line for line in lines), f"the rest: {lines[-3:]}")


def test_what_is_left_out_is_told_by_kind(work):
    """In one line of each command, by info and verify, also of a saved index and of several archives."""
    write_tar(work / "a.tar", [member("a", b"1"), member("l", link="nothing"), member("m", link="nothing"),
                               member("x" * 256, b"1"), member("a/b", b"2"), member("out", symlink="../../up"),
                               member("in", symlink="d/../a"), member("far", symlink="/data/k1")])
    with zipfile.ZipFile(work / "b.zip", "w") as z:
        for name in "locked", "open":
            z.writestr(name, b"1")
    with open(work / "b.zip", "r+b") as f:
        data = bytearray(f.read())
        data[data.index(b"PK\1\2") + 8] |= 1
        data[data.index(b"PK\3\4") + 6] |= 1
        f.seek(0)
        f.write(data)
    kinds = {"hard_links": 2, "names": 1, "places": 1}

    def of(words, kinds, links, text):
        info = harness.json.loads(harness.onepot("info", "--json", *words).stdout)[0]
        verified = harness.json.loads(harness.onepot("verify", "--json", *words, status=1).stdout)[0]
        for what, found in ("info", info), ("verify", verified):
            check_equal({kind: n for kind, n in found["left_out_kinds"].items() if n}, kinds, f"{what}: {words}")
            check_equal((found["left_out"], found["links_out"]), (sum(kinds.values()), links), f"{what}: {words}")
        said = harness.onepot("info", *words).stdout.decode()
        check(f"  left out     {text}; 'onepot verify' lists them\n" in said, f"info: {said}")
        said = harness.onepot("verify", *words, status=1).stderr.decode()
        check(f"; left out: {text}\n" in said, f"verify: {said}")
        said = harness.onepot("ls", *words).stderr.decode()
        check(said.count("\n") == 1 and (len(kinds) == 1 or f"(in all {text})" in said), f"ls: {said}")

    text = "2 hard links without their file, 1 below or above other members, 1 with names or targets that no file can have"
    of([work / "a.tar"], kinds, 2, text)
    said = harness.onepot("info", work / "a.tar").stdout
    check(b"  leading out  2 of the symbolic links, the first is far\n" in said, f"{said}")
    harness.onepot("index", work / "a.tar", status=None)
    of([work / "a.tar"], kinds, 2, text)
    of([work / "b.zip"], {"encrypted": 1}, 0, "1 encrypted")
    os.mkdir(work / "set")
    for name in "a.tar", "b.zip":
        os.rename(work / name, os.path.join(work / "set", name))
    of(["--each", work / "set"], {**kinds, "encrypted": 1}, 2, "1 encrypted, " + text)
    for name in "out", "in":
        write_tar(work / "links.tar", [member("d/l", symlink="../a" if name == "in" else "../../a")])
        said = harness.onepot("verify", work / "links.tar").stdout
        check_equal(b"1 symbolic link leads out of it" in said, name == "out", f"{said}")


def test_what_is_made_of_a_part_is_no_success(work):
    archive = work / "part.tar"
    write_tar(archive, [member("a", b"1"), member("l", link="nothing")])
    harness.onepot("extract", "-C", work / "extracted", archive, status=1)
    check_equal(os.listdir(work / "extracted"), ["a"], "extracted")
    harness.onepot("extract", "-C", work / "one", archive, "--", "a")
    harness.onepot("pack", "--strict", "-o", work / "strict.tar", archive, status=1)
    check(not os.path.exists(work / "strict.tar"), "--strict left an archive")
    harness.onepot("pack", "-o", work / "packed.tar", archive, status=1)
    check_equal(harness.onepot("cat", work / "packed.tar", "a").stdout, b"1", "packed")


def test_links_on_the_way(work):
    usr = [member("usr", directory=True), member("usr/lib", directory=True)]
    ignore = [("mtime_ns", stat.S_IFDIR)]
    check_as_extracted(work, usr + [
        member("lib", symlink="usr/lib"), member("lib/a", b"1"), member("lib/d/b", b"2"),
        member("usr/lib/a", b"again"), member("h", link="lib/d/b")],
        "members below a link", {"usr/lib/a": (b"again", 1), "usr/lib/d/b": (b"2", 2)}, ignore)
    check_as_extracted(work, usr + [
        member("lib", symlink="usr/lib"), member("lib/a", b"1"), member("lib", directory=True),
        member("lib/a", b"2")],
        "a link that becomes a directory", {"usr/lib/a": (b"1", 1), "lib/a": (b"2", 1)}, ignore)
    check_left_out(work, [member("l", symlink="/etc"), member("l/x", b"1")], "an absolute link", "l/x")
    check_left_out(work, [member("l", symlink="../out"), member("l/x", b"1")], "a link that leads out", "l/x")
    check_left_out(work, [member("l", symlink="m"), member("m", symlink="l"), member("l/x", b"1")],
                   "links in a circle", "l/x")


def test_what_no_directory_can_show(work):
    check_left_out(work, [member("a", b"1"), member("a/b", b"2")], "a file as a parent", "a/b")
    check_left_out(work, [member("d/x", b"1"), member("d", b"2")], "a file over a full directory",
                  "d")
    check_left_out(work, [member("b", link="a"), member("a", b"1")], "a link before its target",
                  "b", "a")
    check_left_out(work, [member("d", directory=True), member("l", link="d")],
                  "a hard link to a directory", "l")
    check_left_out(work, [member("a/../../b", b"1")], "dots that lead out", "a/../../b")
    check_left_out(work, [member("..", directory=True)], "nothing but dots", "..")
    check_left_out(work, [member("x" * 256, b"1")], "a name of 256 bytes", "xxxx")


if __name__ == "__main__":
    harness.main(globals())

"""Formats that only tests have, in one file each (tests/archive/format) and one entry of the
registry: all commands, mounts and the loader take them like any other.
"""

import json
import os
import stat

import harness
from harness import check, check_equal, onepot, run

DATA = {"dir/a.bin": os.urandom(4_000_000), "dir/b.txt": b"hello\n", "empty": b"",
        "dir/sub/c": b"x" * 4096}


def member(name, data=b"", mode=stat.S_IFREG | 0o644, ino=0, nlink=1):
    name = name.encode() + b"\0"
    fields = (ino, mode, 1000, 1000, nlink, 1_600_000_000, len(data), 8, 1, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % f for f in fields) + name
    return head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4)


def archive_bytes():
    return (member("dir", mode=stat.S_IFDIR | 0o755, nlink=2)
            + b"".join(member(n, d, ino=i + 10) for i, (n, d) in enumerate(DATA.items()))
            + member("first", ino=90, nlink=2) + member("second", b"shared", ino=90, nlink=2)
            + member("none", ino=91, nlink=2) + member("link", b"dir/b.txt", stat.S_IFLNK | 0o777)
            + member("fifo", mode=stat.S_IFIFO | 0o600) + member("TRAILER!!!"))


def make(work):
    path = work / "a.cpio"
    with open(path, "wb") as f:
        f.write(archive_bytes())
    return path


def check_tree(root, what):
    for name, data in {**DATA, "first": b"shared", "second": b"shared", "none": b"",
                       "link": DATA["dir/b.txt"]}.items():
        with open(os.path.join(root, name), "rb") as f:
            check_equal(f.read(), data, f"{what}: {name}")
    first, second = os.stat(os.path.join(root, "first")), os.stat(os.path.join(root, "second"))
    check(first.st_ino == second.st_ino and first.st_nlink == 2, f"{what}: a hard link")
    check(stat.S_ISFIFO(os.lstat(os.path.join(root, "fifo")).st_mode), f"{what}: a fifo")
    check_equal(first.st_mtime, 1_600_000_000, f"{what}: a time")


def test_commands_take_it(work):
    archive = make(work)
    check(b"dir/sub/c" in onepot("ls", "-R", archive).stdout, "ls")
    check_equal(onepot("cat", archive, "dir/b.txt").stdout, b"hello\n", "cat")
    info = json.loads(onepot("info", "--json", archive).stdout)
    info = info[0] if isinstance(info, list) else info
    check_equal(info["format"], "cpio", "info")
    check(b"CRC-32" in onepot("info", archive).stdout, "the kind of sums in info")
    check(b"cpio" in onepot("--help").stdout, "the formats in the help")
    onepot("verify", archive)
    os.mkdir(work / "out")
    onepot("extract", "-C", work / "out", archive)
    check_tree(work / "out", "extract")


def test_saved_index_is_used(work):
    archive = make(work)
    onepot("index", archive)
    check(os.path.exists(f"{archive}.onepot-index"), "no saved index")
    check(b"saved" in onepot("info", archive).stdout, "info does not say that it is saved")
    check_equal(onepot("cat", archive, "second").stdout, b"shared", "cat by the saved index")


def test_sums_are_compared(work):
    archive = make(work)
    onepot("index", archive)
    times = os.stat(archive)
    raw = bytearray(archive_bytes())
    raw[100_000] ^= 1  # in dir/a.bin, and not where the fingerprint looks
    onepot("extract", "-C", make_folder(work, "whole"), archive)
    with open(archive, "r+b") as f:
        f.write(raw)
    os.utime(archive, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = onepot("extract", "-C", make_folder(work, "damaged"), archive, status=1)
    check(b"dir/a.bin" in done.stderr and b"sum" in done.stderr, f"extract: {done.stderr}")
    done = onepot("pack", "-o", work / "damaged.tar", archive, status=1)
    check(b"dir/a.bin" in done.stderr and b"checksum" in done.stderr, f"pack: {done.stderr}")
    at = onepot("mount", "--verify", archive).stdout.decode().strip()
    try:
        with open(os.path.join(at, "dir/b.txt"), "rb") as f:
            check_equal(f.read(), b"hello\n", "a good file of a damaged archive")
        try:
            with open(os.path.join(at, "dir/a.bin"), "rb") as f:
                f.read()
        except OSError:
            pass
        else:
            check(False, "mount --verify gave damaged bytes")
    finally:
        onepot("umount", at)


def ar_member(name, data, size=None):
    head = b"%-16s%-12d%-6d%-6d%-8o%-10d`\n" % (name, 1_600_000_000, 1000, 1000, 0o100640,
                                               len(data) if size is None else size)
    return head + data + b"\n" * (len(data) % 2)


AR = b"!<arch>\n"
AR_FILES = {"short": b"odd", "a_long_name_of_GNU.o": os.urandom(3_000_000), "with space": b"",
            "a_long_name_of_BSD.o": b"behind its name", "none": b"even"}


def ar_bytes():
    names = b"a_long_name_of_GNU.o/\n"
    bsd = b"a_long_name_of_BSD.o\0\0\0\0"
    return AR + b"".join(ar_member(n, d) for n, d in (
        (b"/", b"\0\0\0\0"), (b"//", names), (b"short/", AR_FILES["short"]),
        (b"/0", AR_FILES["a_long_name_of_GNU.o"]), (b"with space/", b""),
        (b"#1/%d" % len(bsd), bsd + AR_FILES["a_long_name_of_BSD.o"]), (b"none", b"even")))


def check_ar(root, what):
    check_equal(sorted(os.listdir(root)), sorted(AR_FILES), f"{what}: names")
    for name, data in AR_FILES.items():
        with open(os.path.join(root, name), "rb") as f:
            check_equal(f.read(), data, f"{what}: {name}")
    seen = os.stat(os.path.join(root, "short"))
    check_equal((seen.st_mode & 0o7777, seen.st_mtime), (0o640, 1_600_000_000), f"{what}: short")


def test_ar_is_a_format_like_any_other(work):
    archive = work / "lib.a"
    with open(archive, "wb") as f:
        f.write(ar_bytes())
    info = json.loads(onepot("info", "--json", archive).stdout)
    info = info[0] if isinstance(info, list) else info
    check_equal(info["format"], "ar", "info")
    check(b"cpio or ar" in onepot("--help").stdout, "the formats in the help")
    check(b"an ar archive has no sums of its files" in onepot("verify", archive).stdout, "verify")
    onepot("index", archive)
    check(b"saved" in onepot("info", archive).stdout, "info does not say that it is saved")
    onepot("extract", "-C", make_folder(work, "out"), archive)
    check_ar(work / "out", "extract")
    at = onepot("mount", archive).stdout.decode().strip()
    try:
        check_ar(at, "mount")
    finally:
        onepot("umount", at)
    onepot("pack", "-o", work / "lib.tar", archive)
    run("tar", "-C", make_folder(work, "packed"), "-xf", work / "lib.tar")
    check_ar(work / "packed", "pack")


def test_damaged_ar_is_refused(work):
    first = len(AR) + 60
    raw = AR + ar_member(b"short/", b"data") + ar_member(b"#1/4", b"name")
    for _ in harness.said_of_each(work, ((f"{n} bytes", raw[:n]) for n in range(len(raw))
                                         if n not in (len(AR), first + 4))):
        pass
    for what, bad in (("size", ar_member(b"a/", b"", 1 << 30)), ("long", ar_member(b"/7", b"x")),
                      ("behind", ar_member(b"#1/9", b"x")), ("none", ar_member(b"/", b"")[:59]),
                      ("empty", ar_member(b"", b"x")), ("up", ar_member(b"../x/", b"x")),
                      ("twice", 2 * ar_member(b"//", b"a/\n"))):
        refuse(work, AR + bad, what)


def make_folder(work, name):
    os.mkdir(work / name)
    return work / name


def test_mount_shows_it(work):
    at = onepot("mount", make(work)).stdout.decode().strip()
    try:
        check_tree(at, "mount")
    finally:
        onepot("umount", at)


def test_packed_from(work):
    onepot("pack", "-o", work / "a.tar", make(work))
    onepot("verify", work / "a.tar")
    os.mkdir(work / "out")
    run("tar", "-C", work / "out", "-xf", work / "a.tar")
    check_tree(work / "out", "pack")


def test_loader_reads_it(work):
    loader = os.environ.get("EXAMPLE_LOADER")
    if not loader:
        raise harness.Skip("this onepot was built without the loader")
    archive = make(work)
    onepot("pack", "-o", work / "a.tar", archive)
    said = [run(loader, path, "1", work / "state" + str(i)).stdout.decode()
            for i, path in enumerate((archive, work / "a.tar"))]
    check("epoch 0: " in said[0], f"the loader says {said[0]!r}")
    check_equal(said[0].splitlines()[-1], said[1].splitlines()[-1], "bytes of all samples")


def refuse(work, raw, what, status=1):
    path = work / "bad.cpio"
    with open(path, "wb") as f:
        f.write(raw)
    done = onepot("ls", path, status=status)
    check_equal(len(done.stderr.splitlines()), 1, f"{what}: lines of {done.stderr!r}")


def test_cut_anywhere_it_is_refused(work):
    raw = member("f", b"data") + member("d", mode=stat.S_IFDIR | 0o755) + member("TRAILER!!!")
    for _ in harness.said_of_each(work, ((f"{n} bytes", raw[:n]) for n in range(len(raw)))):
        pass


def test_absurd_numbers_are_refused(work):
    good = member("f", b"data") + member("TRAILER!!!")
    for field, what in ((6, "size"), (11, "length of the name")):
        for value in (b"ffffffff", b"7fffffff", b"00001000", b"zzzzzzzz"):
            at = 6 + 8 * field
            refuse(work, good[:at] + value + good[at + 8:], f"{what} {value}")
    refuse(work, member("../f", b"x") + member("TRAILER!!!"), "a path out of the tree")
    refuse(work, member("l", b"", stat.S_IFLNK) + member("TRAILER!!!"), "an empty link")
    refuse(work, member("l", b"x" * 4096, stat.S_IFLNK) + member("TRAILER!!!"), "a long link")


if __name__ == "__main__":
    harness.main(globals())

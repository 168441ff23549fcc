"""Zips as directories, beside what Python's zipfile reads of them, and zips that lie."""

import contextlib
import io
import json
import os
import pathlib
import random
import stat
import struct
import sys
import tarfile
import warnings
import zipfile
import zlib

import harness
import life
from harness import check, check_equal, onepot

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


def content(seed, size):
    """Compresses to about a half."""
    few = bytes(b"abcdefgh"[i % 8] for i in range(256))
    return random.Random(seed).randbytes(min(size, 5000)).translate(few) * (size // 5000 + 1)


def entry(name, mode=0o100644, date=(2020, 2, 29, 12, 34, 56)):
    info = zipfile.ZipInfo(name, date)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


def make(path, members, **options):
    """members: (ZipInfo or name, bytes, method)."""
    with zipfile.ZipFile(path, "w", **options) as z:
        for name, data, method in members:
            z.writestr(name, data, method)
    return path


def make_small(path, count):
    """Of very many members, each its number: as zipfile writes them, without its pains for each."""
    with zipfile.ZipFile(path, "w") as z:
        for i in range(count):
            data = b"%d" % i
            info = entry(f"{i % 100}/{i}")
            info.CRC, info.file_size, info.compress_size = zlib.crc32(data), len(data), len(data)
            info.header_offset = z.start_dir
            z.start_dir += z.fp.write(info.FileHeader(False) + data)
            z.filelist.append(info)
        z._didModify = True
    return path


def mixed():
    members = [(entry("readme"), b"hello\n", STORED), (entry("empty"), b"", DEFLATED),
               (entry("d/", 0o40750), b"", STORED), (entry("d/é\n"), b"odd", DEFLATED),
               (entry("link", 0o120777), b"readme", STORED),
               (entry("packed link", 0o120777), b"d/../readme" * 20, DEFLATED),
               (entry("run", 0o100755), content(1, 70000), DEFLATED)]
    for i in range(200):
        members.append((entry(f"many/{i % 7}/{i}"), content(i, i * 321 % 40000),
                        DEFLATED if i % 3 else STORED))
    return members


def check_same(mount, path, leave=()):
    """The mounted tree is what zipfile says."""
    seen = 0
    with zipfile.ZipFile(path) as z:
        for info in z.infolist():
            if info.filename in leave:
                continue
            there = os.lstat(mount / info.filename)
            mode = info.external_attr >> 16
            check_equal(stat.S_IFMT(there.st_mode), stat.S_IFMT(mode), info.filename)
            if stat.S_ISREG(mode):
                with open(mount / info.filename, "rb") as f:
                    check(f.read() == z.read(info), f"{info.filename} differs")
                check_equal(there.st_mode & 0o7777, mode & 0o7777, f"mode of {info.filename}")
            elif stat.S_ISLNK(mode):
                check_equal(os.fsencode(os.readlink(mount / info.filename)), z.read(info),
                            info.filename)
            seen += 1
    return seen


def test_a_small_stack_is_enough(work):
    """ulimit -s: its parser, in a child, once crashed and the zip passed for damaged."""
    if life.is_sanitized():
        raise harness.Skip("a sanitizer needs a large stack before main")
    make(work / "a.zip", [("d/file", content(1, 9000), DEFLATED)])
    for size in (64, 128):
        for command in (f"ls {work / 'a.zip'}", f"run {work / 'a.zip'} -- sh -c 'ulimit -s; cat {{}}/d/file'"):
            done = harness.run("sh", "-c", f"ulimit -s {size}; exec {harness.onepot_program()} {command}")
            check(b"damaged" not in done.stderr, done.stderr)
        check_equal(done.stdout, b"%d\n" % size + content(1, 9000), "limit and file")


def test_mount_shows_what_zipfile_reads(work):
    path = make(work / "a.zip", mixed())
    with work.mount(path) as mount:
        check_equal(check_same(mount, path), 207, "members")
        check_equal(os.stat(mount / "readme").st_mtime, 1582979696, "a DOS time, taken as UTC")
        stat_text = mount.stat()
        check(stat_text, "no report")


def test_all_commands(work):
    path = make(work / "a.zip", mixed())
    onepot("verify", path)
    onepot("index", path)
    check_equal(onepot("cat", path, "readme").stdout, b"hello\n", "cat")
    check_equal(len(onepot("ls", "--path", "many/3", path).stdout.split()), 29, "names")
    onepot("extract", path, "-C", work / "out")
    check_same(pathlib.Path(work / "out"), path)
    onepot("pack", "-o", work / "b.tar", path)
    onepot("extract", work / "b.tar", "-C", work / "again")
    check_same(pathlib.Path(work / "again"), path)
    info, = json.loads(onepot("info", "--json", path).stdout)
    check_equal((info["format"], info["files"]), ("zip", 204), "info")


def test_data_descriptors_prefix_comment_and_zip64(work):
    class Pipe(io.RawIOBase):
        """Can't seek: sizes come after the data."""
        def __init__(self, path):
            self.file = open(path, "wb")  # closed below

        def writable(self):
            return True

        def write(self, data):
            return self.file.write(data)

    pipe = Pipe(work / "stream.zip")
    make(pipe, mixed())
    pipe.file.close()
    plain = pathlib.Path(make(work / "a.zip", mixed())).read_bytes()
    pathlib.Path(work / "prefix.zip").write_bytes(b"#!/bin/sh\nexit 1\n" * 99 + plain)
    with zipfile.ZipFile(work / "comment.zip", "w") as z:
        for name, data, method in mixed():
            z.writestr(name, data, method)
        z.comment = b"PK\5\6 is what an end begins with, " * 900
    with zipfile.ZipFile(work / "large.zip", "w") as z:
        for name, data, method in mixed():
            name.compress_type = method
            with z.open(name, "w", force_zip64=True) as f:
                f.write(data)
    for name in ("stream.zip", "prefix.zip", "comment.zip", "large.zip"):
        onepot("verify", work / name)
        with work.mount(work / name, name=name + ".d") as mount:
                # zipfile takes the comment for the end
            oracle = "a.zip" if name == "comment.zip" else name
            check_equal(check_same(mount, work / oracle), 207, name)


def test_as_many_members_as_16_bits_can_count_and_more(work):
    for count in (65535, 65536):
        path = make_small(work / f"{count}.zip", count)
        with work.mount(path, name=str(count)) as mount:
            for i in (0, 1, 33333, count - 1):
                check_equal(pathlib.Path(mount / f"{i % 100}/{i}").read_bytes(), b"%d" % i,
                            f"file {i}")
            check_equal(sum(len(f) for _, _, f in os.walk(mount / ".")), count, "files")


def test_storage_that_is_not_mapped(work):
    members = [*mixed(), (entry("n" * 40000), b"a name that nobody can show", STORED)]
    path = make(work / "a.zip", members)
    with work.mount(path, env=harness.environment(ONEPOT_ASSUME_REMOTE="1")) as mount:
        check_equal(check_same(mount, path, leave=("n" * 40000,)), 207, "members")


def test_times_and_owners_of_extra_fields(work):
    members = []
    for name, extra in (("ut", struct.pack("<HHBi", 0x5455, 5, 1, -5)),
                        ("ntfs", struct.pack("<HHIHHQQQ", 10, 32, 0, 1, 24,
                                             (1500000000 + 11644473600) * 10**7 + 1234567, 0, 0)),
                        ("ux", struct.pack("<HHBBIBI", 0x7875, 11, 1, 4, 1234, 4, 5678)),
                        ("cut", struct.pack("<HHB", 0x5455, 99, 1))):
        info = entry(name)
        info.extra = extra
        members.append((info, b"x", STORED))
    with work.mount(make(work / "a.zip", members)) as mount:
        check_equal(os.stat(mount / "ut").st_mtime, -5, "time of UT")
        check_equal(os.stat(mount / "ntfs").st_mtime_ns, 1500000000123456700, "time of NTFS")
        there = os.stat(mount / "ux")
        check_equal((there.st_uid, there.st_gid), (1234, 5678), "owner")
        check_equal(os.stat(mount / "cut").st_mtime, 1582979696, "time beside a field cut off")


def test_names_are_bytes_unless_a_field_has_them_in_utf8(work):
    plain = "caf_".encode()
    raw = b"caf\x82"  # é in code page 437
    data = bytearray(pathlib.Path(make(work / "a.zip", [(entry(plain.decode()), b"1", STORED)])).read_bytes())
    pathlib.Path(work / "b.zip").write_bytes(bytes(data).replace(plain, raw))
    with work.mount(work / "b.zip") as mount:
        check_equal(os.listdir(os.fsencode(str(mount / "."))), [raw], "a name of bytes")
    info = entry(plain.decode())
    utf8 = "café".encode()
    info.extra = struct.pack("<HHBI", 0x7075, 5 + len(utf8), 1, zlib.crc32(plain)) + utf8
    with work.mount(make(work / "c.zip", [(info, b"1", STORED)]), name="c") as mount:
        check_equal(os.listdir(mount / "."), ["café"], "the name in UTF-8")


def test_backslashes_of_windows_separate(work):
    """As for unzip: where the system is one of Microsoft's, and the name has no slash."""
    def by(system, name):
        info = entry(name)
        info.create_system, info.external_attr = system, 16 if name.endswith("\\") else 0
        return info

    members = [(by(0, "win\\deep\\a.txt"), b"a", STORED), (by(10, "win\\b"), b"b", DEFLATED),
               (by(0, "win\\empty\\"), b"", STORED), (by(0, "mixed/c\\d"), b"c", STORED),
               (by(3, "unix\\e"), b"e", STORED)]
    found = []
    with work.mount(make(work / "a.zip", members)) as mount:
        top = str(mount / ".")
        for folder, names, files in os.walk(top):
            found += [os.path.relpath(os.path.join(folder, n), top) for n in names + files]
        check_equal(pathlib.Path(mount / "win/deep/a.txt").read_bytes(), b"a", "content")
    check_equal(sorted(found), sorted(["win", "win/deep", "win/deep/a.txt", "win/b", "win/empty",
                                       "mixed", "mixed/c\\d", "unix\\e"]), "names")


def test_what_lies_around_a_zip_is_passed_over(work):
    plain = pathlib.Path(make(work / "a.zip", [(entry("one"), b"1", STORED), (entry("two"), b"2", DEFLATED)])
                         ).read_bytes()
    other = pathlib.Path(make(work / "b.zip", [(entry("other"), b"3", STORED)])).read_bytes()
    end = plain.rindex(b"PK\5\6")

    def commented(length, comment):
        return plain[:-2] + struct.pack("<H", length) + comment

    cases = {"behind": plain + b"padding\n" * 99, "in front": b"\x7fELF" * 99 + plain,
             "both": b"MZ, a program" + plain + b"junk",
             "a comment that is cut off": commented(50, b"the first half of"),
             "a zip for a comment": commented(len(other), other),
             "an end for a comment": commented(22, plain[end:]),
             "a gap before the end": plain[:end] + bytes(10) + plain[end:]}
    for name, data in cases.items():
        pathlib.Path(work / "c.zip").write_bytes(data)
        check_equal(onepot("ls", work / "c.zip").stdout, b"one\ntwo\n", name)
        check_equal(onepot("cat", work / "c.zip", "one", "two").stdout, b"12", name)
    pathlib.Path(work / "c.bin").write_bytes(b"anything" + plain)
    check(b"--offset=8 " in onepot("ls", work / "c.bin", status=1).stderr, "it is not told of the end")
    check_equal(onepot("ls", "--offset=8", work / "c.bin").stdout, b"one\ntwo\n", "--offset")
    for name, data in {"an end of nothing": b"text" + plain[:4] * 9 + b"PK\5\6" + bytes(18),
                       "an end that leads nowhere": b"text" * 99 + plain[end:]}.items():
        pathlib.Path(work / "c.bin").write_bytes(data)
        check(b"not an archive of a known format" in onepot("ls", work / "c.bin", status=1).stderr, name)


def test_offsets_behind_a_program_may_be_those_in_the_file(work):
    for name, front in (("script", b"#!/bin/sh\nexit\n"), ("program", b"\x7fELF" * 99)):
        path = pathlib.Path(work / f"{name}.run")
        path.write_bytes(front)
        with zipfile.ZipFile(path, "a") as z:
            z.writestr("one", "1" * 50)
            z.writestr("two", "2" * 5000, DEFLATED)
        onepot("verify", path)
        check_equal(onepot("cat", path, "two").stdout, b"2" * 5000, name)
        found, = json.loads(onepot("info", "--json", path).stdout)
        check_equal((found["container"], found["offset"]), (f"a {name}", len(front)), "info")


def test_a_damaged_tar_is_not_the_zip_that_ends_it(work):
    names = [make(work / f"{i}.npz", [(entry(f"{i}.npy"), content(i, 3000), STORED)]) for i in "12"]
    union = pathlib.Path(work.make("union"))
    make(union / "other.zip", [(entry("other"), b"x", STORED)])
    with tarfile.open(work / "whole.tar", "w", format=tarfile.GNU_FORMAT) as t:
        for name in names:
            t.add(name, os.path.basename(name))
    whole = pathlib.Path(work / "whole.tar").read_bytes()
    end = whole.rindex(b"PK\5\6") + 22
    for name, data in {"a byte": b"\xff" + whole[1:], "a block": bytes(512) + whole[512:],
                       "its sum": whole[:148] + b"7" * 7 + whole[155:],
                       "no padding": b"\xff" + whole[1:end]}.items():
        path = union / "damaged.tar"
        path.write_bytes(data)
        for command in ("ls", "verify", "info"):
            done = onepot(command, path, status=1)
            check_equal(done.stdout, b"", f"{command}, {name}")
            check(b"first header is damaged (offset 0)" in done.stderr and done.stderr.count(b"\n") == 1,
                  f"{command}, {name}: {done.stderr!r}")
        done = onepot("ls", "--skip-damaged", union)
        check_equal(done.stdout, b"other\n", f"a union, {name}")
        check(b"it is skipped" in done.stderr, f"a union, {name}: {done.stderr!r}")


def test_what_zip_read_from_a_pipe_is_a_file(work):
    """zip(1) stores the pipe's type; unzip gives a file."""
    path = make(work / "a.zip", [(entry("-", 0o10600), b"piped", DEFLATED), (entry("fifo", 0o10644), b"", STORED)])
    with work.mount(path) as mount:
        check_equal(pathlib.Path(mount / "-").read_bytes(), b"piped", "content")
        check_equal(os.stat(mount / "-").st_mode, 0o100600, "mode")
        check_equal(os.stat(mount / "fifo").st_mode, 0o10644, "a pipe without content")


# ---- what is left out, and what is refused ----

def change(path, to, what, after):
    data = pathlib.Path(path).read_bytes()
    check(what in data, f"there is no {what!r} to change")
    pathlib.Path(to).write_bytes(data.replace(what, after))
    return to


def directory_of(data):
    """Offsets of the entries of the central directory."""
    at, = struct.unpack_from("<I", data, data.rindex(b"PK\5\6") + 16)
    while data[at:at + 4] == b"PK\1\2":
        yield at
        at += 46 + sum(struct.unpack_from("<HHH", data, at + 28))


def patched(path, to, field, form, value, which=0):
    """Change one field of one entry of the directory."""
    data = bytearray(pathlib.Path(path).read_bytes())
    struct.pack_into(form, data, list(directory_of(data))[which] + field, value)
    pathlib.Path(to).write_bytes(data)
    return to


def test_the_directory_counts_and_verify_tells(work):
    path = make(work / "a.zip", [(entry("d/one"), b"1", STORED), (entry("two"), b"2" * 99, DEFLATED)])
    data = pathlib.Path(path).read_bytes()
    pathlib.Path(work / "b.zip").write_bytes(data.replace(b"d/one", b"d\\one", 1))
    with work.mount(work / "b.zip") as mount:
        check_equal(pathlib.Path(mount / "d/one").read_bytes(), b"1", "content")
        check("d/one: has another name in its header" in mount.notes, f"it said {mount.notes}")
    done = onepot("verify", work / "b.zip", status=1)
    check(b"d/one: has another name in its header; the central directory counts (offset 0)" in done.stderr,
          f"verify said {done.stderr!r}")


def test_encrypted_and_unknown_methods_are_left_out_alone(work):
    path = make(work / "a.zip", [(entry("one"), b"1", STORED), (entry("two"), b"2" * 100, DEFLATED),
                                 (entry("three"), b"3" * 1000, DEFLATED)])
    for what, field, value, words in (("locked", 8, 1, b"one: is encrypted"),
                                      ("method", 10, 9, b"three: is compressed by method 9 ")):
        zipped = patched(path, work / f"{what}.zip", field, "<H", value, 0 if what == "locked" else 2)
        with work.mount(zipped, name=what) as mount:
            check("two" in os.listdir(mount / "."), "the others are not there")
        done = onepot("ls", zipped)
        check(words in done.stderr, f"it says {done.stderr!r}")
        check(onepot("verify", zipped, status=1), "it verifies")


def test_no_archive_is_made_of_encrypted_files_alone(work):
    path = make(work / "a.zip", [(entry("one"), b"1", STORED)])
    zipped = patched(path, work / "locked.zip", 8, "<H", 1, 0)
    done = onepot("pack", "-o", work / "new.tar", zipped, status=1)
    check(b"one: is encrypted" in done.stderr and b"password" in done.stderr, f"it says {done.stderr!r}")
    check(not os.path.exists(work / "new.tar"), "an archive is there")


def test_members_of_bzip2_and_lzma(work):
    methods = zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA
    sizes = 0, 1, 70_000, 1_200_000
    path = make(work / "a.zip", [(entry(f"{method}/{size}"), content(size, size)[:size], method)
                                 for method in methods for size in sizes])
    with work.mount(path) as mount:
        check_same(mount, path)
    onepot("verify", path)
    links = make(work / "links.zip", [(entry(f"link{method}", 0o120777), b"../file" * 9, method)
                                      for method in methods])
    with work.mount(links, name="links") as mount:
        check_equal(check_same(mount, links), 2, "links")
    with zipfile.ZipFile(path) as z, open(path, "r+b") as f:
        for info in z.infolist():
            if info.file_size == 70_000:
                f.seek(info.header_offset + 30 + len(info.filename) + info.compress_size // 2)
                f.write(b"\0\xff\x55\xaa")
    done = onepot("verify", path, status=1)
    for method in methods:
        check(f"{method}/70000: ".encode() in done.stdout + done.stderr, f"it says {done.stderr!r}")


def long_member(work):
    """A zip with a deflated member of 70 MB, half of which does not shrink; and its content."""
    block = random.Random(1).randbytes(1 << 19)
    data = b"".join(block[i * 997:] + b"%d" % i * 500_000 + block[:i * 997] for i in range(50))
    check(len(data) > 64 << 20, "it is too short")
    return work.made_once("a.zip", lambda path: make(path, [
        (entry("long"), data, DEFLATED), (entry("other"), b"short", DEFLATED)], compresslevel=1)), data


def can_enter_streams():
    return "deflate from points" in json.loads(onepot("version", "--json").stdout)["codecs"]


def test_long_deflated_members_are_read_in_parts(work):
    path, data = long_member(work)
    if not can_enter_streams():
        check_equal(onepot("ls", path).stdout, b"other\n", "what was not left out")
        return
    onepot("verify", path)
    with work.mount(path) as mount, open(mount / "long", "rb") as f:
        check_equal(f.read(), data, "the content")
        for at in range(0, len(data), 7_654_321):
            f.seek(at)
            check_equal(f.read(1000), data[at:at + 1000], f"bytes at {at}")
    check(os.path.exists(f"{path}.onepot-index"), "its index was not saved")
    check_equal(onepot("cat", path, "long").stdout, data, "cat")


def test_long_members_that_are_damaged_are_left_out(work):
    whole = bytearray(pathlib.Path(long_member(work)[0]).read_bytes())
    at = next(directory_of(whole))
    for name, where, bits in (("middle", at // 2, 0x55), ("sum", at + 16, 1), ("size", at + 24, 1)):
        changed = bytearray(whole)
        changed[where] ^= bits
        if where >= at:  # in the local header, too
            changed[where - at - 2] ^= bits
        path = work / f"{name}.zip"
        pathlib.Path(path).write_bytes(changed)
        with work.mount(path) as mount:
            check_equal(os.listdir(mount.path), ["other"], name)
            check("long: " in mount.notes, f"{name}: it said {mount.notes}")
        onepot("verify", path, status=1)


def with_stream(path, stream, data):
    """A zip whose member 'padded' has this stream of deflate."""
    whole = bytearray(pathlib.Path(make(path, [(entry("padded"), stream, STORED),
                                               (entry("other"), b"short", DEFLATED)])).read_bytes())
    at = next(directory_of(whole))
    for where in (at + 10, 8):
        whole[where:where + 2] = struct.pack("<H", DEFLATED)
    for where in (at + 16, 14):
        whole[where:where + 4] = struct.pack("<I", zlib.crc32(data))
    for where in (at + 24, 22):
        whole[where:where + 4] = struct.pack("<I", len(data))
    pathlib.Path(path).write_bytes(whole)
    with zipfile.ZipFile(path) as z:
        check(z.read("padded") == data, "zipfile reads something else")
    return path


def test_streams_much_longer_than_their_content_are_left_out(work):
    nothing, data = b"\0\0\0\xff\xff", content(5, 100_000)  # an empty block
    long = data * 700
    for name, data, blocks, names in (("few", data, 500, ["other", "padded"]),
                                      ("many", data, 30_000, ["other"]),
                                      ("long", long, 2_500_000, ["other"])):
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        stream = packer.compress(data[:90_000]) + packer.flush(zlib.Z_FULL_FLUSH)
        stream += nothing * blocks + packer.compress(data[90_000:]) + packer.flush()
        with work.mount(with_stream(work / f"{name}.zip", stream, data)) as mount:
            check_equal(sorted(os.listdir(mount.path)), names, name)
            says = "padded: " if name == "long" and not can_enter_streams() else "padded: has much more"
            check_equal(says in mount.notes, len(names) == 1, mount.notes)
            for shown in names:
                with open(mount / shown, "rb") as f:
                    check_equal(len(f.read()), len(data) if shown == "padded" else 5, shown)


def test_a_directory_that_lies_about_places_is_refused(work):
    path = make(work / "a.zip", [(entry("one"), b"1" * 50, STORED), (entry("two"), b"2" * 500, DEFLATED)])
    size = os.path.getsize(path)
    for field, form, value, words in (
            (42, "<I", size, b"outside"), (42, "<I", 2**32 - 2, b"outside"), (42, "<I", 3, b"no header where"),
            (20, "<I", size, b"outside"), (34, "<H", 2, b"another volume"), (28, "<H", 65535, b"damaged entry")):
        zipped = patched(path, work / "bad.zip", field, form, value, 1)
        done = onepot("ls", zipped, status=1)
        check(words in done.stderr and (b"two" in done.stderr or b"one" in done.stderr),
              f"field {field}: {done.stderr!r}")


def test_a_member_whose_data_is_not_what_the_directory_says_is_left_out(work):
    path = make(work / "a.zip", [(entry("one"), b"1" * 50, STORED), (entry("two"), b"2" * 500, DEFLATED)])
    for field, form, value, words in ((10, "<H", 93, b"in another way by its header"),
                                      (16, "<I", 7, b"another size or sum"),
                                      (24, "<I", 51, b"another size or sum")):
        zipped = patched(path, work / "bad.zip", field, form, value, 1)
        done = onepot("ls", zipped)
        check_equal(done.stdout, b"one\n", f"field {field}: names")
        check(words in done.stderr and b"two" in done.stderr, f"field {field}: {done.stderr!r}")
        onepot("verify", zipped, status=1)


def test_a_small_zip_gets_memory_for_content_that_has_to_be_read(work):
    path = make(work / "a.zip", [(entry("large"), bytes(64 << 20), zipfile.ZIP_LZMA)])
    data = bytearray(pathlib.Path(path).read_bytes())
    struct.pack_into("<I", data, 14, 7)  # the header has another sum, so that the content decides
    pathlib.Path(work / "b.zip").write_bytes(data)
    done = onepot("ls", work / "b.zip")
    check_equal(done.stdout, b"large\n", "names")
    check(b"another size or sum" in done.stderr, f"it says {done.stderr!r}")


def test_another_name_in_a_header_is_told(work):
    path = make(work / "a.zip", [(entry("two"), b"2" * 500, DEFLATED)])
    pathlib.Path(work / "b.zip").write_bytes(pathlib.Path(path).read_bytes().replace(b"two", b"tvo", 1))
    done = onepot("ls", work / "b.zip")
    check_equal(done.stdout, b"two\n", "the directory's name")
    check(b"another name" in done.stderr, f"it says {done.stderr!r}")
    onepot("verify", work / "b.zip", status=1)


def bomb(path, names):
    """Members of these names, all with the same data."""
    kernel, of = zlib.compress(b"\0" * 10**6, 9)[2:-4], (0, 33, zlib.crc32(b"\0" * 10**6))
    sizes = (len(kernel), 10**6, len(names[0]), 0)
    body = struct.pack("<4s5HIIIHH", b"PK\3\4", 20, 0, 8, *of, *sizes) + names[0] + kernel
    records = b"".join(struct.pack("<4s6HIIIHHHHHII", b"PK\1\2", 0x314, 20, 0, 8, *of, *sizes, 0, 0, 0, 0, 0) + name
                       for name in names)
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, len(names), len(names), len(records), len(body), 0)
    pathlib.Path(path).write_bytes(body + records + end)


def test_members_that_overlap_are_refused(work):
    bomb(work / "bomb.zip", [b"%05d" % i for i in range(30000)])
    check(b"overlap" in onepot("ls", work / "bomb.zip", status=1).stderr, "a bomb is not refused")
    bomb(work / "again.zip", [b"a"] * 30000)
    check_equal(onepot("ls", work / "again.zip").stdout, b"a\n", "a member that is listed again and again")


def test_claims_beyond_what_deflate_can_do_are_refused(work):
    path = make(work / "a.zip", [(entry("one"), b"1" * 5000, DEFLATED)])
    data = bytearray(pathlib.Path(path).read_bytes())
    at = next(directory_of(data))
    struct.pack_into("<I", data, at + 24, 2**31)
    struct.pack_into("<I", data, 22, 2**31)
    pathlib.Path(work / "b.zip").write_bytes(data)
    done = onepot("ls", work / "b.zip")
    check(b"claims more" in done.stderr and not done.stdout, f"petabytes: {done.stdout!r}, {done.stderr!r}")


def test_damaged_content_is_found(work):
    path = make(work / "a.zip", [(entry("one"), content(1, 30000), DEFLATED), (entry("two"), b"2" * 99, STORED)])
    data = bytearray(pathlib.Path(path).read_bytes())
    for at, name in ((60, b"one"), (bytes(data).index(b"2" * 99), b"two")):
        bad = bytearray(data)
        bad[at] ^= 1
        pathlib.Path(work / "bad.zip").write_bytes(bad)
        done = onepot("verify", work / "bad.zip", status=1)
        check(name in done.stderr, f"it says {done.stderr!r}")
        with work.mount(work / "bad.zip", "--verify", name="v" + name.decode()) as mount:
            with contextlib.suppress(OSError):
                pathlib.Path(mount / name.decode()).read_bytes()
                raise harness.Failure(f"{name} is read with a wrong sum")


def test_every_truncation_is_refused(work):
    whole = pathlib.Path(make(work / "a.zip", mixed()[:6])).read_bytes()
    for _ in harness.said_of_each(work, ((f"{size} bytes", whole[:size]) for size in range(4, len(whole)))):
        pass


def test_empty_zip_is_an_empty_directory(work):
    path = make(work / "a.zip", [])
    with work.mount(path) as mount:
        check_equal(os.listdir(mount / "."), [], "names")


def test_number_of_members_that_is_not_the_directorys_is_refused(work):
    data = bytearray(pathlib.Path(make(work / "a.zip", mixed())).read_bytes())
    at = data.rindex(b"PK\5\6")
    for count in (206, 208, 0):
        struct.pack_into("<HH", data, at + 8, count, count)
        pathlib.Path(work / "b.zip").write_bytes(data)
        check(b"another number" in onepot("ls", work / "b.zip", status=1).stderr, f"{count}")
    old = count_of_16_bits(work, 65540)
    check_equal(len(onepot("ls", "-R", old).stdout.split()), 65540, "names of an old program's")


def test_a_zip64_field_may_declare_less_than_it_has_and_costs_its_member_at_most(work):
    """Both sizes in 16 bytes of a field that declares 8, as unzip reads them; and a field of 8 bytes alone."""
    unicode_path = struct.pack("<HHBI", 0x7075, 6, 1, 0) + b"x"
    for name, field, there in (("declared", struct.pack("<HHQQ", 1, 8, 3, 3) + unicode_path, True),
                               ("short", struct.pack("<HHQ", 1, 8, 3), False),
                               ("none", struct.pack("<HH", 1, 0), False)):
        body, records = bytearray(), bytearray()
        for member, extra in (b"before", b""), (b"odd", field), (b"behind", b""):
            size = 0xffffffff if extra else 3
            at, crc = len(body), zlib.crc32(b"abc")
            body += struct.pack("<4s5HIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, crc, 3, 3, len(member), 0) + member + b"abc"
            records += struct.pack("<4s6HIIIHHHHHII", b"PK\1\2", 0x314, 45, 0, 0, 0, 33, crc, size, size, len(member),
                                   len(extra), 0, 0, 0, 0o100644 << 16, at) + member + extra
        end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, 3, 3, len(records), len(body), 0)
        path = work / (name + ".zip")
        pathlib.Path(path).write_bytes(body + records + end)
        names = onepot("ls", path).stdout.split()
        check_equal(names, [b"before", b"behind"] + [b"odd"] * there, f"members, {name}")
        for member in names:
            check_equal(onepot("cat", path, member).stdout, b"abc", f"{member}, {name}")
        said = onepot("verify", path, status=1).stderr
        check(b": odd: " in said, f"verify: {said}")


def count_of_16_bits(work, count):
    """A zip of a program that knows no zip64, and counts modulo 65536."""
    body, records = bytearray(), bytearray()
    for i in range(count):
        name, at = b"%06d" % i, len(body)
        body += struct.pack("<4s5HIIIHH", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, len(name), 0) + name
        records += struct.pack("<4s6HIIIHHHHHII", b"PK\1\2", 0x314, 20, 0, 0, 0, 33, 0, 0, 0,
                               len(name), 0, 0, 0, 0, 0o100644 << 16, at) + name
    end = struct.pack("<4s4HIIH", b"PK\5\6", 0, 0, count & 65535, count & 65535, len(records),
                      len(body), 0)
    pathlib.Path(work / "old.zip").write_bytes(body + records + end)
    return work / "old.zip"


def test_zip_cut_off_behind_one_in_it_is_not_that_one(work):
    inner = pathlib.Path(make(work / "in.zip", [(entry("inside"), b"1", STORED)])).read_bytes()
    path = make(work / "a.zip", [(entry("in.zip"), inner, STORED), (entry("other"), b"2", STORED)])
    whole = pathlib.Path(path).read_bytes()
    end = whole.index(inner) + len(inner)
    for _ in harness.said_of_each(work, ((f"{size} bytes", whole[:size]) for size in range(end, len(whole)))):
        pass


def test_links_target_has_a_sum_too(work):
    data = pathlib.Path(make(work / "a.zip", [(entry("l", 0o120777), b"readme", STORED)])).read_bytes()
    pathlib.Path(work / "b.zip").write_bytes(data.replace(b"readme", b"reedme"))
    check(b"l: is a symbolic link whose sum is wrong" in onepot("verify", work / "b.zip", status=1).stderr,
          "the target")


def test_volume_of_several_is_refused(work):
    data = bytearray(pathlib.Path(make(work / "a.zip", mixed())).read_bytes())
    struct.pack_into("<HH", data, data.rindex(b"PK\5\6") + 4, 1, 1)
    pathlib.Path(work / "a.z02").write_bytes(data)
    check(b"one volume" in onepot("ls", work / "a.z02", status=1).stderr, "a volume")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(10000)
    harness.main(globals(), in_memory=True)

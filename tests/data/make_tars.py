#!/usr/bin/env python3
"""Write one tar of every variety into a folder, and what tar makes of each.

Usage: make_tars.py FOLDER

For each NAME.tar there is NAME.x, the tree that GNU tar (bsdtar for its own) extracts
from it: the tests compare the index with that tree. Whatever the machine lacks (root
for devices, a filesystem with attributes) is left out, with a line that says so.
"""

import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile

OUT = os.path.abspath(sys.argv[1])
SRC = os.path.join(OUT, "src")
ROOT = os.geteuid() == 0
LONG = "a_name_of_more_than_one_hundred_bytes_" * 3
ENV = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}


def skip(what, why):
    print(f"make_tars: without {what}: {why}")


def run(*argv, cwd=None, check=True):
    done = subprocess.run(argv, cwd=cwd, env=ENV, capture_output=True, check=False)
    if check and done.returncode != 0:
        sys.exit(f"{argv}: {done.stderr.decode(errors='replace')}")
    return done


def write(path, data=b"", mode=None):
    path = os.path.join(os.fsencode(SRC), os.fsencode(path))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)
    if mode is not None:
        os.chmod(path, mode)


def sparse(path, size, ranges):
    path = os.path.join(SRC, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.truncate(size)
        for offset, length in ranges:
            f.seek(offset)
            f.write(bytes((offset // 7 + i) % 251 + 1 for i in range(length)))


def noise(n):
    return bytes((i * i * 31 + i // 255) & 0xFF for i in range(n))


def plain_tree():
    """What every format can hold."""
    write("plain/empty")
    write("plain/one", b"1")
    write("plain/block", noise(512))
    write("plain/block+1", noise(513))
    write("plain/large", noise(300000), 0o400)
    write("plain/setuid", b"#!", 0o4755)
    os.makedirs(f"{SRC}/plain/folder/deep/er", exist_ok=True)
    os.makedirs(f"{SRC}/plain/empty_folder", exist_ok=True)
    os.chmod(f"{SRC}/plain/empty_folder", 0o1777)
    write("plain/folder/deep/er/file", b"deep")
    os.symlink("../one", f"{SRC}/plain/folder/link")
    os.symlink("/absolute/nowhere", f"{SRC}/plain/dangling")
    os.link(f"{SRC}/plain/one", f"{SRC}/plain/uno")
    os.link(f"{SRC}/plain/one", f"{SRC}/plain/folder/ein")
    os.mkfifo(f"{SRC}/plain/fifo", 0o620)
    if ROOT:
        os.mknod(f"{SRC}/plain/null", 0o666 | 0o020000, os.makedev(1, 3))
        os.mknod(f"{SRC}/plain/disk", 0o660 | 0o060000, os.makedev(254, 70000))
        os.chown(f"{SRC}/plain/block", 1234, 54321)
    else:
        skip("devices and owners", "not root")
    os.utime(f"{SRC}/plain/block", (1, 1))


def rich_tree():
    """What GNU's format and pax can hold."""
    write(f"rich/{LONG}/{LONG}2/{LONG}3/file", b"far away")
    write(b"rich/" + b"x" * 255, b"255 bytes")
    os.symlink("t" * 300, f"{SRC}/rich/long_link")
    os.link(f"{SRC}/rich/{LONG}/{LONG}2/{LONG}3/file", f"{SRC}/rich/long_hard_link")
    write(b"rich/latin1_\xe9\xff", b"not UTF-8")
    write("rich/composed_é", b"form C")
    write("rich/decomposed_é", b"form D")
    write("rich/ŝ€𝄞", b"more of UTF-8")
    write(b"rich/new\nline\ttab\\ \x01", b"control")
    os.symlink(b"\xe9\xcc\x81e\xcc\x81", os.fsencode(SRC) + b"/rich/odd_target")
    os.utime(f"{SRC}/rich/long_hard_link", (-12345, -12345))


def pax_tree():
    """What only pax can hold."""
    write("pax/nanoseconds", b"n")
    os.utime(f"{SRC}/pax/nanoseconds", ns=(1700000000123456789, 1700000000123456789))
    write("pax/before_1970", b"b")
    os.utime(f"{SRC}/pax/before_1970", ns=(-1500000000, -1500000000))
    write("pax/attributes", b"a")
    if ROOT:
        write("pax/large_owner", b"o")
        os.chown(f"{SRC}/pax/large_owner", 4000000000, 3000000000)
    try:
        os.setxattr(f"{SRC}/pax/attributes", "user.text", b"value")
        os.setxattr(f"{SRC}/pax/attributes", "user.empty", b"")
        os.setxattr(f"{SRC}/pax/attributes", "user.binary", bytes(range(256)) * 4)
        os.setxattr(f"{SRC}/pax/attributes", os.fsencode("user.ü"), b"\xff\x00\n=")
        os.setxattr(f"{SRC}/pax", "user.of_folder", b"f")
    except OSError as e:
        skip("extended attributes", e)


def sparse_tree():
    sparse("sparse/all_hole", 1 << 20, [])
    sparse("sparse/start", 1 << 20, [(0, 4096)])
    sparse("sparse/end", 1 << 20, [((1 << 20) - 4096, 4096)])
    sparse("sparse/odd_size", (1 << 20) + 77, [(65536, 5000), ((1 << 20) - 100, 177)])
    sparse("sparse/many", 8 << 20, [(i * 131072, 4096) for i in range(60)])
    sparse("sparse/huge", 5 << 30, [(0, 10), (4 << 30, 4096)])
    write("sparse/behind", b"the next member")


def extract(name, program="tar"):
    to = f"{OUT}/{name}.x"
    os.mkdir(to)
    if program == "tar":
        argv = ["tar", "-xpf", f"../{name}.tar", "--xattrs", "--xattrs-include=*", "-S"]
    else:
        argv = ["bsdtar", "-xpSf", f"../{name}.tar"]
    run(*argv, cwd=to, check=False)


def gnu(name, *options, trees):
    if run("tar", "-cf", f"{OUT}/{name}.tar", *options, *trees, cwd=SRC, check=False).returncode:
        sys.exit(f"tar {options} failed")
    extract(name)


def bsd(name, *options, trees):
    if not shutil.which("bsdtar"):
        return skip(name, "no bsdtar")
    run("bsdtar", "-cf", f"{OUT}/{name}.tar", *options, *trees, cwd=SRC)
    return extract(name, "bsdtar")


def python(name, form, trees):
    with tarfile.open(f"{OUT}/{name}.tar", "w", format=form) as t:
        for tree in trees:
            t.add(f"{SRC}/{tree}", tree)
    extract(name)


def foreign():
    gnu("gnu_v7", "--format=v7", "--exclude=null", "--exclude=disk", "--exclude=fifo", trees=["plain"])
    gnu("gnu_ustar", "--format=ustar", trees=["plain"])
    gnu("gnu_oldgnu", "--format=oldgnu", trees=["plain", "rich"])
    gnu("gnu_gnu", "--format=gnu", trees=["plain", "rich"])
    gnu("gnu_gnu_sparse", "--format=gnu", "-S", trees=["sparse"])
    gnu("gnu_pax", "--format=posix", "--xattrs", trees=["plain", "rich", "pax"])
    for version in "0.0", "0.1", "1.0":
        gnu(f"gnu_pax_sparse_{version}", "--format=posix", "-S", f"--sparse-version={version}",
            trees=["sparse"])
    gnu("gnu_dot", "--format=posix", "-S", trees=["./"])
    gnu("gnu_incremental", "--format=gnu", "-g", f"{OUT}/snapshot", trees=["plain"])
    gnu("gnu_label", "--format=gnu", "-V", "a volume", trees=["plain"])
    bsd("bsd_ustar", "--format=ustar", trees=["plain"])
    bsd("bsd_gnutar", "--format=gnutar", trees=["plain", "rich"])
    # Its times before 1970 with a fraction are a second off, but for itself.
    bsd("bsd_pax", "--format=pax", "--exclude=before_1970", trees=["plain", "rich", "pax"])
    bsd("bsd_pax_sparse", "--format=pax", trees=["sparse"])
    bsd("bsd_v7", "--format=v7", "--exclude=null", "--exclude=disk", "--exclude=fifo", trees=["plain"])
    python("python_ustar", tarfile.USTAR_FORMAT, ["plain"])
    python("python_gnu", tarfile.GNU_FORMAT, ["plain", "rich"])
    python("python_pax", tarfile.PAX_FORMAT, ["plain", "rich", "pax"])


# ---- by hand: what no program would write ----

MAGIC = {"ustar": b"ustar\x0000", "gnu": b"ustar  \x00", "v7": bytes(8)}


def header(name, size=0, kind=b"0", link=b"", mode=0o644, magic="ustar", mtime=0, raw_size=None,
           raw_mtime=None):
    h = bytearray(512)
    name, link = os.fsencode(name), os.fsencode(link)
    h[0:len(name)] = name
    h[100:108] = b"%07o\0" % mode
    h[108:116] = h[116:124] = b"%07o\0" % 0
    h[124:136] = raw_size or b"%011o\0" % size
    h[136:148] = raw_mtime or b"%011o\0" % mtime
    h[156:157] = kind
    h[157:157 + len(link)] = link
    h[257:265] = MAGIC[magic]
    h[148:156] = b" " * 8
    h[148:156] = b"%06o\0 " % sum(h)
    return bytes(h)


def pad(data):
    return data + bytes(-len(data) % 512)


def member(name, data=b"", **fields):
    return header(name, len(data), **fields) + pad(data)


def pax(name, records, data=b"", size=None, **fields):
    text = b""
    for key, value in records:
        line = b" " + os.fsencode(key) + b"=" + os.fsencode(value) + b"\n"
        n = len(line) + 1
        while n != len(str(n)) + len(line):
            n = len(str(n)) + len(line)
        text += str(n).encode() + line
    return (member("PaxHeader", text, kind=b"x") +
            header(name, len(data) if size is None else size, **fields) + pad(data))


END = bytes(1024)


def hand(name, *parts, extracted=True):
    with open(f"{OUT}/{name}.tar", "wb") as f:
        f.write(b"".join(parts))
    if extracted:
        extract(name)


def base256(value):
    return b"\x80" + value.to_bytes(11, "big")


def by_hand():
    folder = {"kind": b"5", "mode": 0o755}
    hand("twice", member("d/", **folder), member("d/f", b"first"), member("g", b"other"),
         member("d/f", b"the last one wins"), END)
    hand("twice_by_another_type", member("a", b"file"), member("a", kind=b"2", link="g"),
         member("g", b"g"), member("b", kind=b"2", link="g"), member("b", b"now a file"), END)
    hand("hard_link_to_replaced", member("f", b"old"), member("l", kind=b"1", link="f"),
         member("f", b"new content"), member("m", kind=b"1", link="f"), END)
    hand("hard_link_replaces", member("f", b"one"), member("g", b"two"),
         member("g", kind=b"1", link="f"), END)
    hand("hard_link_with_data", member("f", b"data"),
         pax("l", [("comment", "c")], b"data", kind=b"1", link="f"), member("z", b"zz"), END)
    hand("hard_link_with_stray_size", member("f", b"data", magic="gnu"),
         header("l", 4, kind=b"1", link="f", magic="gnu"), member("z", b"zz", magic="gnu"), END)
    hand("hard_link_to_dotted", member("./a/f", b"data"),
         member("b", kind=b"1", link="./a/../a/f".replace("/..", "").replace("a/a", "a")), END)
    hand("hard_link_to_symlink", member("f", b"data"), member("s", kind=b"2", link="f"),
         member("l", kind=b"1", link="s"), END)
    hand("dots", member("./", **folder), member("./a/", **folder), member("././a//f", b"1"),
         member("a/./g", b"2"), END)
    hand("missing_parents", member("x/y/z/f", b"1"), member("x/y/g", b"2"), END)
    hand("parent_later", member("x/f", b"1"), member("x/", mode=0o700, kind=b"5", mtime=77), END)
    hand("binary_size", header("f", raw_size=base256(5)) + pad(b"12345"), member("g", b"2"), END)
    hand("old_folder", member("d/", mode=0o755, kind=b"\0", magic="v7"),
         member("d/f", b"1", kind=b"\0", magic="v7"), END)
    # libarchive takes it for a folder, and its data for headers.
    hand("file_with_slash", member("f", b"1"), member("g/", b"2"), member("z", b"3"), END, extracted=False)
    hand("unknown_type", member("f", b"1", kind=b"~"), member("g", b"2", kind=b"~"), END)
    hand("size_with_rubbish", header("f", raw_size=b"5\0 rubbish  ") + pad(b"12345"), member("g", b"2"), END)
    hand("contiguous", member("f", b"typ 7", kind=b"7"), member("g", b"2"), END)
    hand("no_end", member("f", b"1"))
    hand("lone_zero_block", member("f", b"1"), bytes(512), member("ignored", b"2"), END)
    hand("concatenated", member("f", b"1"), END, member("ignored", b"2"), END)
    hand("rubbish_behind", member("f", b"1"), END, b"\xa5" * 5000)
    hand("empty", bytes(10240))
    hand("empty_file", extracted=False)
    hand("empty_block", bytes(512))
    hand("empty_odd", bytes(1000))
    hand("empty_long", bytes(1 << 20))
    hand("empty_label", member("a volume", kind=b"V", magic="gnu"), END)
    hand("empty_global", member("G", b"20 comment=nothing\n\n", kind=b"g"), bytes(9216))
    # GNU tar takes what follows for the data of the first two.
    hand("folder_quota", header("d/", 700, **folder), member("d/f", b"1"),
         header("e/", 1, mode=0o755, kind=b"\0", magic="v7"), member("e/f", b"2"), END, extracted=False)
    # All bytes are there, and the record only says which are holes; libarchive skips too few.
    holes = bytearray(noise(5 * 512 + 7))
    holes[512:1024] = holes[1536:2048] = bytes(512)
    hand("solaris_sparse", pax("f", [("SUN.holesdata", " 0 512 1024 1536 2048 2567")], bytes(holes)),
         pax("g", [("SUN.holesdata", " 0 512 1024 1536")], bytes(holes[:1536])),
         member("next", b"2"), END)
    # GNU tar reads it as a second before 1970, libarchive as 1970.
    hand("text_mtime", header("f", raw_mtime=b"not a number"), member("g", b"2", raw_mtime=b"none\0\0\0\0\0\0\0\0"),
         END, extracted=False)
    hand("pax_path", pax("short", [("path", "the/real/name"), ("mtime", "1700000000.5")], b"1"),
         member("next", b"2"), END)
    lost = pax("", [("path", "lost"), ("mtime", "5"), ("uid", "77")])[:-512]
    hand("pax_twice", lost, pax("f", [("mtime", "1234.5")], b"1"),
         lost, pax("short", [("path", "long")], b"12", mtime=6), member("next", b"2"), END)
    hand("pax_binary_name", pax("short", [("hdrcharset", "BINARY"), ("path", b"\xe9\xff")], b"1"), END)
    hand("pax_size", pax("f", [("size", "5")], b"12345", size=0), member("g", b"2"), END)
    hand("pax_global", member("G", b"20 comment=nothing\n\n", kind=b"g"), member("f", b"1"), END)
    everyone = member("G", b"15 mtime=77.25\n12 uid=1234\n11 gid=567\n", kind=b"g")
    hand("pax_global_times", member("before", b"0"), everyone, member("f", b"1", mtime=5),
         pax("g", [("mtime", "99"), ("gid", "8")], b"2"), member("d/", **folder), member("d/h", b"3"),
         member("G", b"14 mtime=-0.5\n", kind=b"g"), pax("i", [("uid", "1"), ("gid", "2")], b"4"), END)
    hand("pax_global_behind", pax("", [("mtime", "-0.25")])[:-512],
         member("G", b"12 uid=1234\n", kind=b"g"), member("f", b"1"), member("g", b"2"), END, extracted=False)
    hand("pax_global_path", member("G", b"14 path=other\n", kind=b"g"), member("f", b"1"), END,
         extracted=False)
    hand("libarchive_xattr",
         pax("f", [("LIBARCHIVE.xattr.user.a%3Db", "dmFsdWU="), ("SCHILY.xattr.user.c", b"\0\xff"),
                   ("SCHILY.xattr.user.c", "later"), ("SCHILY.xattr.user.empty", "")], b"1"),
         END, extracted=False)
    hand("many_xattrs",
         pax("f", [(f"SCHILY.xattr.user.{i:05}", str(i)) for i in range(9400)] +
                  [("SCHILY.acl.access", "user::rw-,user:joe:r--:1000,group::---,mask::r--,other::---")]),
         pax("g", [("SCHILY.xattr.user.x", "1")]), END, extracted=False)
    hand("acl", pax("f", [("SCHILY.acl.access",
                           "user::rw-,user:joe:r--:1000,group::---,mask::r--,other::---")],
                    b"1", mode=0o640),
         pax("d/", [("SCHILY.acl.default", "user::rwx,group::r-x,group:7:rwx,mask::rwx,other::---")],
             **folder), END, extracted=False)
    hand("negative_fraction", pax("f", [("mtime", "-1.5")], b"1"),
         pax("g", [("mtime", "-0.25")], b"2"), pax("h", [("mtime", "0.25")], b"3"),
         pax("i", [("comment", "22 mtime=-0.5"), ("mtime", "0.75")], b"4"),
         pax("j", [("mtime", "1"), ("mtime", "-0.000000001")], b"5"), END)
    hand("large_owner", pax("f", [("uid", "99999999999"), ("gid", "-3")], b"1"), END,
         extracted=False)


def partly():
    """Each has one member, the second, that can't be shown: part_*.tar."""
    f, z = member("f", b"1"), member("z", b"last")
    folder = {"kind": b"5", "mode": 0o755}
    hand("part_below_file", f, member("f/g", b"2"), z, END)
    hand("part_hard_link_missing", f, member("l", kind=b"1", link="nothing"), z, END)
    hand("part_hard_link_early", f, member("l", kind=b"1", link="z"), z, END)
    hand("part_hard_link_over", f, member("f", kind=b"1", link="nothing"), z, END)
    hand("part_hard_link_folder", member("d/", **folder), member("l", kind=b"1", link="d"), z, END)
    hand("part_name_too_long", f, pax("g", [("path", "n" * 256)], b"1"), z, END)
    hand("part_sparse_name_too_long", f,
         pax("g", [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"),
                   ("GNU.sparse.name", "n" * 256), ("GNU.sparse.realsize", "4096")],
             pad(b"1\n0\n512\n") + bytes(512)), z, END)
    hand("part_folder_over_children", member("d/f", b"1"), member("d", b"file"), z, END)
    hand("part_link_to_nothing", f, member("s", kind=b"2"), z, END)
    hand("part_link_absolute", member("s", kind=b"2", link="/tmp"), member("s/x", b"2"), z, END)
    hand("part_link_out", member("s", kind=b"2", link="a/../.."), member("s/x", b"2"), z, END,
         extracted=False)
    hand("part_link_to_itself", member("s", kind=b"2", link="s"), member("s/x", b"2"), z, END)
    # GNU tar takes the dots from the beginning of such a name.
    hand("part_no_name", f, member("", b"2"), z, END)
    hand("part_volume", f, member("g", b"2", kind=b"M"), z, END, extracted=False)
    broken = member("P", b"999 path=x\n", kind=b"x")
    hand("part_pax_record", f, broken, member("g", b"2"), z, END, extracted=False)
    hand("part_pax_twice", f, pax("", [("path", "lost")])[:-512], broken, member("g", b"2"), z, END,
         extracted=False)
    hand("part_pax_padded", f, member("P", b"9 path=x\n" + bytes(9), kind=b"x"), member("g", b"2"), z, END,
         extracted=False)
    hand("part_solaris_acl", f, member("A", b"nonsense", kind=b"A"), member("g", b"2"), z, END, extracted=False)
    hand("part_dotdot", f, member("a/../../b", b"2"), z, END, extracted=False)


def through():
    """Members whose path goes through a symbolic link."""
    folder = {"kind": b"5", "mode": 0o755}
    lib = member("usr/", **folder) + member("usr/lib/", **folder) + member("lib", kind=b"2", link="usr/lib")
    hand("through", lib, member("lib/x", b"1"), member("usr/lib/y", b"2"),
         member("lib/d/z", b"3"), member("lib/x", b"another"), END)
    hand("through_two", lib, member("a", kind=b"2", link="lib"), member("usr/b", kind=b"2", link="./lib//."),
         member("a/x", b"1"), member("usr/b/y", b"2"), member("h", kind=b"1", link="usr/b/x"),
         member("a/h", kind=b"1", link="lib/y"), END)
    hand("through_replaced", lib, member("lib/x", b"1"), member("lib/", **folder),
         member("lib/x", b"2"), END)
    hand("through_retargeted", lib, member("lib/x", b"1"), member("lib", kind=b"2", link="usr"),
         member("lib/x", b"2"), END)
    # What follows GNU tar and Python do not extract, or not so.
    hand("through_missing", member("lib", kind=b"2", link="usr/lib"), member("lib/x", b"1"),
         member("usr/lib/y", b"2"), END, extracted=False)
    hand("through_dots", lib, member("usr/l", kind=b"2", link="../usr/lib/../../lib"),
         member("usr/l/x", b"1"), END, extracted=False)


def volumes():
    """The first volumes of tars of several: the last member goes on in the next one."""
    write("volume/a", noise(5000))
    write("volume/b", noise(30000))
    for form in "gnu", "posix":
        run("tar", "-cM", "-L", "20", f"--format={form}", *(f"--file={OUT}/volume_{form}{i}" for i in (".tar", ".2", ".3")),
            "volume/a", "volume/b", cwd=SRC)


def bad():
    """Each of these has to be refused: bad_*.tar."""
    f = member("f", b"1")
    hand("bad_size", f, header("g", 1 << 20) + bytes(1024), END, extracted=False)
    hand("bad_huge_size", f, header("g", raw_size=base256(1 << 62)), END, extracted=False)
    hand("bad_overflowing_size", f, header("g", raw_size=base256((1 << 63) - 1)), END, extracted=False)
    hand("bad_negative_size", f, header("g", raw_size=b"\xff" * 12), END, extracted=False)
    hand("bad_checksum", f, header("g")[:5] + b"?" + header("g")[6:], END, extracted=False)
    hand("bad_cut", f, header("g", 20000) + bytes(10240 - 1024), extracted=False)
    hand("bad_sparse_past_data",
         pax("f", [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "f"),
                   ("GNU.sparse.realsize", "4096")], pad(b"1\n0\n4096\n") + b"short"), END,
         extracted=False)
    hand("bad_sparse_overlap",
         pax("f", [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.name", "f"),
                   ("GNU.sparse.realsize", "4096")],
             pad(b"2\n1024\n512\n1024\n512\n") + bytes(1024)), END, extracted=False)

def packed():
    member = tarfile.TarInfo("zeros")
    member.size = 2 << 20
    with open(f"{OUT}/zeros.tar.gz", "wb") as f:
        f.write(subprocess.run(["gzip", "-c"], input=member.tobuf() + bytes(member.size + 1024),
                               capture_output=True, check=True).stdout)
    with open(f"{OUT}/gnu_gnu.tar", "rb") as f:
        data = f.read()
    for suffix, argv in {"gz": ["gzip", "-c"], "bz2": ["bzip2", "-c"], "xz": ["xz", "-c"],
                         "zst": ["zstd", "-qc"], "lz4": ["lz4", "-qc"], "lzma": ["xz", "--format=lzma", "-c"],
                         "odd.lzma": ["xz", "--format=lzma", "--lzma1=lc=1,lp=2,pb=1,dict=12MiB", "-c"],
                         "large.lzma": ["xz", "--format=lzma", "--lzma1=dict=128MiB", "-c"],
                         "lz": ["lzip", "-c"], "Z": ["compress", "-c"]}.items():
        if not shutil.which(argv[0]):
            skip(f"packed.tar.{suffix}", f"no {argv[0]}")
            continue
        done = subprocess.run(argv, input=data, capture_output=True, check=True)
        with open(f"{OUT}/packed.tar.{suffix}", "wb") as f:
            f.write(done.stdout)
    if shutil.which("zstd"):
        half = len(data) // 2
        frames = [subprocess.run(["zstd", "-qc"], input=part, capture_output=True, check=True).stdout
                  for part in (data[:half], data[half:])]
        skippable = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
        with open(f"{OUT}/frames.tar.zst", "wb") as f:
            f.write(skippable + frames[0] + frames[1] + skippable)
        with open(f"{OUT}/not_tar.zst", "wb") as f:
            f.write(subprocess.run(["zstd", "-qc"], input=noise(200000), capture_output=True,
                                   check=True).stdout)
    with open(f"{OUT}/not_tar.gz", "wb") as f:
        f.write(subprocess.run(["gzip", "-c"], input=noise(200000), capture_output=True, check=True).stdout)
    with open(f"{OUT}/nothing.gz", "wb") as f:
        f.write(subprocess.run(["gzip", "-c"], input=b"", capture_output=True, check=True).stdout)


def main():
    os.makedirs(SRC)
    os.umask(0o022)
    plain_tree()
    rich_tree()
    pax_tree()
    sparse_tree()
    foreign()
    by_hand()
    partly()
    through()
    volumes()
    bad()
    packed()


main()

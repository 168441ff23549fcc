#!/usr/bin/env python3
"""A tree with everything that is hard to pack, and a listing to compare trees by.

    pack_tree.py make DIR            make the tree; what may not be made here is left out
    pack_tree.py list DIR [FIELD...] each entry, one line of JSON, without these fields

The lines are those of onepot_reader.py. Fields that a program does not restore can be
left out; "nlink:symlink" means: of symbolic links alone.
"""
import hashlib
import json
import os
import random
import socket
import stat
import sys


def write(path, data=b"x"):
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def sparse(path, size, *pieces):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        for offset, data in pieces:
            f.seek(offset)
            f.write(data)
        f.truncate(size)


def allowed(what, function, *args):
    try:
        function(*args)
    except OSError as error:
        print("not made: %s: %s" % (what, error), file=sys.stderr)


def make_names():
    for name in (b"new\nline", b"\xff\xfe raw", b"n" * 255, b"\xff" * 255, b"-dash", b"sp ace \\ back",
                 b"*?[a]", b"tab\t", b"'q\"", b"%41=b", b"\x1b[31m", "\u00fcn\u00ef".encode(),
                 b"a" * 100, b"a" * 101, b"p" * 90 + b"/" + b"q" * 90,
                 ("\u00e9" * 120).encode() + b"/" + ("\u00fc" * 110).encode()):
        write(name, name[:7])
    for length in (154, 155, 156):
        write(b"a" * length + b"/" + b"b" * 100)
    for length in (99, 100, 101):
        os.mkdir(b"D" * length)
    write(b"empty", b"")
    os.mkdir(b"emptydir")
    deep = b"/".join([b"deep" * 10] * 60)
    write(deep + b"/file", b"deep")


def make_sizes(rng):
    for size in (511, 512, 513, 1024, 10240, 262144, 1 << 20, (1 << 20) + 1, 3 * (1 << 20) + 7):
        write(b"size/%d" % size, rng.randbytes(size))


def make_links(rng):
    for target, name in ((b"new\nline", b"ln"), (b"/nowhere/" + b"t" * 200, b"lnlong"),
                         (b"\xff" * 150, b"lnraw"), (b"..", b"lnup"), (b"x" * 4095, b"lnmax")):
        allowed("long links", os.symlink, target, name)
    write(b"hl/a", b"linked")
    write(b"hl/big1", rng.randbytes(3 << 20))
    write(b"hl/empty1", b"")
    write(b"hl/" + b"\xfe" * 120)
    write(b"hl/" + b"L" * 120)
    for first, second in ((b"hl/a", b"hl/b"), (b"hl/a", b"aaa-first"), (b"ln", b"hl/lnlink"),
                          (b"hl/big1", b"hl/big2"), (b"hl/empty1", b"hl/empty2"),
                          (b"hl/" + b"\xfe" * 120, b"hl/zraw"),
                          (b"hl/" + b"\xfe" * 120, b"hl/z" + b"\xfd" * 110),
                          (b"hl/" + b"L" * 120, b"hl/M" + b"m" * 110)):
        os.link(first, second, follow_symlinks=False)


def make_xattrs():
    for path in (b"xa/f", b"xa/many", b"xa/cap"):
        write(path)
    for name, value in ((b"a", b"v"), (b"empty", b""), (b"binary", bytes(range(256))),
                        ("\u00fc".encode(), b"u")):
        allowed("extended attributes", os.setxattr, b"xa/f", b"user." + name, value)
    for i in range(60):
        allowed("extended attributes", os.setxattr, b"xa/many", b"user.k%03d" % i, b"v" * i)
    allowed("extended attributes", os.setxattr, b"xa", b"user.dir", b"d")
    allowed("capabilities", os.setxattr, b"xa/cap", b"security.capability",
            bytes.fromhex("0100000200040000000000000000000000000000"))


def make_holes(rng):
    sparse(b"sp/all", 5 << 30)
    sparse(b"sp/mid", 5 << 30, (1 << 30, rng.randbytes(100000)), (4 << 30, b"z" * 5))
    sparse(b"sp/start", 1 << 20, (0, b"a" * 5000))
    sparse(b"sp/end", 1 << 20, ((1 << 20) - 10, b"e" * 10))
    sparse(b"sp/many", 1 << 24, *[(i * 65536, b"%d" % i) for i in range(256)])
    sparse(b"sp/big", 4 << 20, (1 << 20, rng.randbytes(2 << 20)))
    for name in ("\u00fc".encode(), b"S" * 200, b"\xff" * 200):
        sparse(b"sp/" + name, 1 << 22, (1 << 21, b"q"))
    os.link(b"sp/many", b"sp/zlink")


def make_attributes():
    times = (0, 1, 10**9, 1234567890123456789, (2**33 - 1) * 10**9, 2**33 * 10**9)
    for i, time in enumerate(times):
        write(b"time/%d" % i)
        os.utime(b"time/%d" % i, ns=(time, time))
    # libarchive 3.6 misreads fractions there: compare only where that is not asked.
    for i, time in enumerate((-10**9, -1, -1500000000, -2 * 10**18)):
        write(b"before1970/%d" % i)
        os.utime(b"before1970/%d" % i, ns=(time, time))
    for i, owner in enumerate(((2097151, 2097152), (4294967294, 4000000000), (1000, 33))):
        write(b"owner/%d" % i)
        allowed("owners", os.chown, b"owner/%d" % i, *owner)
    for mode in (0o400, 0o777, 0o4755, 0o2755, 0o1777, 0o6511, 0o7777):
        write(b"mode/%o" % mode)
        os.chmod(b"mode/%o" % mode, mode)
    os.mkdir(b"modedir")
    os.chmod(b"modedir", 0o3711)


def make_special():
    os.mkfifo(b"fifo")
    os.link(b"fifo", b"hl/fifo")
    allowed("devices", os.mknod, b"chr", 0o20600, os.makedev(1, 3))
    allowed("devices", os.mknod, b"blk", 0o60640, os.makedev(259, 1048575))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(b"socket")


def make(root):
    rng = random.Random(1)
    os.makedirs(root)
    os.chdir(root)
    make_names()
    make_sizes(rng)
    make_links(rng)
    make_xattrs()
    make_holes(rng)
    make_attributes()
    make_special()
    os.utime(b"emptydir", ns=(5, 123456789))


# ---- listing ----

def data_of(fd, st):
    """[start, end) of what is no hole."""
    if st.st_size == 0:
        return []
    if st.st_blocks * 512 >= st.st_size:
        return [[0, st.st_size]]
    result, at = [], 0
    while at < st.st_size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            break
        at = os.lseek(fd, start, os.SEEK_HOLE)
        result.append([start, at])
    return result


def describe(name, path, folder_fd, without):
    st = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    line = {"path": os.fsdecode(path), "mode": "%o" % st.st_mode, "uid": st.st_uid, "gid": st.st_gid,
            "mtime_ns": st.st_mtime_ns, "xattrs": {}}
    if not stat.S_ISDIR(st.st_mode):
        line["nlink"] = st.st_nlink
    if stat.S_ISLNK(st.st_mode):
        line["target"] = os.fsdecode(os.readlink(name, dir_fd=folder_fd))
        if "nlink:symlink" in without:
            del line["nlink"]
    if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        line["rdev"] = [os.major(st.st_rdev), os.minor(st.st_rdev)]
    if stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode):
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder_fd)
        line["xattrs"] = {k: os.getxattr(fd, k).hex() for k in os.listxattr(fd)
                          if k.startswith("user.") or k == "security.capability"}
        if stat.S_ISREG(st.st_mode):
            line["size"] = st.st_size
            line["data"] = data_of(fd, st)
            digest = hashlib.sha256()
            for start, end in line["data"]:
                while start < end:
                    piece = os.pread(fd, min(end - start, 1 << 20), start)
                    digest.update(piece)
                    start += len(piece)
            line["sha256"] = digest.hexdigest()
        os.close(fd)
    for field in without:
        line.pop(field, None)
    return line


def list_tree(root, without):
    lines = []
    for folder, folders, files, fd in os.fwalk(b".", dir_fd=os.open(root, os.O_RDONLY)):
        for name in ([b"."] if folder == b"." else []) + folders + files:
            path = os.path.normpath(os.path.join(folder, name))
            if stat.S_ISSOCK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                continue
            lines.append((path, describe(name, path, fd, without)))
    for _, line in sorted(lines, key=lambda item: item[0]):
        print(json.dumps(line, sort_keys=True))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in ("make", "list"):
        sys.exit(__doc__)
    if sys.argv[1] == "make":
        make(os.fsencode(sys.argv[2]))
    else:
        list_tree(os.fsencode(sys.argv[2]), sys.argv[3:])

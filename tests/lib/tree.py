"""Trees of files with everything that archives get wrong, and how to compare them.

build() makes one in a directory; what a format can't hold is left out by its Limits.
snapshot() describes a tree as it is shown (by a filesystem, whichever), so that two
descriptions can be compared; the description is plain dictionaries.
"""

import ctypes
import errno
import functools
import hashlib
import os
import random
import socket
import stat
from dataclasses import dataclass

from harness import Failure, check, check_equal, shorten


@dataclass
class Limits:
    """What a format can hold; the defaults: everything that Linux can."""

    long_names: bool = True     # 255 bytes, deep paths, long link targets
    raw_names: bool = True      # names that are no UTF-8
    depth: int = 150            # DEEP where it is tried: it costs seconds
    largest_id: int = 4_000_000_001
    oldest: int = -3_000_000_000
    newest: int = 15_000_000_000
    nanoseconds: bool = True
    last_second: bool = False   # "-0.5" in pax: libarchive loses the sign of the zero
    special: bool = True        # FIFOs and devices
    special_links: bool = False # GNU tar stores each name of a FIFO as one of its own
    sockets: bool = False       # no tar has them
    xattrs: bool = True
    trusted: bool = True        # attributes that only root sees
    sparse: bool = True


V7 = Limits(long_names=False, depth=20, largest_id=2097151, oldest=0, newest=8_000_000_000,
            nanoseconds=False, special=False, xattrs=False, sparse=False)
USTAR = Limits(long_names=False, depth=20, largest_id=2097151, oldest=0, newest=8_000_000_000,
               nanoseconds=False, xattrs=False, sparse=False)
GNU = Limits(nanoseconds=False, xattrs=False)
PAX = Limits()
ONEPOT = Limits(last_second=True, special_links=True, trusted=False)
SQUASHFS = Limits(oldest=0, newest=4_200_000_000, nanoseconds=False, special_links=True,
                  sockets=True)

DEEP = 500

# On both sides of: a tar record, a page, FUSE's largest READ and SquashFS's usual block,
# SquashFS's largest block.
EDGES = (512, 4096, 131072, 1 << 20)


@functools.lru_cache(maxsize=128)
def content(size, seed):
    """Bytes that compress to about a half, different for each seed."""
    rng = random.Random(f"{size} {seed}")
    out = bytearray()
    while len(out) < size:
        out += rng.randbytes(1500)
        out += b"%d %d " % (seed, len(out)) * 100
    return bytes(out[:size])


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def write_sparse(path, size, pieces):
    """A file of holes, but for (offset, bytes) pieces."""
    with open(path, "wb") as f:
        os.truncate(f.fileno(), size)
        for offset, data in pieces:
            os.pwrite(f.fileno(), data, offset)


def supports_xattrs(directory):
    path = os.path.join(directory, b".xattr-probe")
    write(path, b"")
    try:
        os.setxattr(path, "user.probe", b"")
        return True
    except OSError:
        return False
    finally:
        os.unlink(path)


def build(root, limits=PAX):
    """Fill the directory `root`."""
    root = os.fsencode(root)
    for part in (build_sizes, build_names, build_directories, build_links, build_modes):
        part(root, limits)
    if limits.special:
        build_special(root, limits)
    if limits.sparse:
        build_sparse(root)
    if limits.xattrs and supports_xattrs(root):
        build_xattrs(root, limits)
    build_times(root, limits)  # last: the others change them


def build_sizes(root, limits):
    base = os.path.join(root, b"sizes")
    os.mkdir(base)
    for seed, size in enumerate([0, 1] + [e + d for e in EDGES for d in (-1, 0, 1)]):
        write(os.path.join(base, b"%d" % size), content(size, seed))
    write(os.path.join(base, b"zeros"), bytes(300_000))


def build_names(root, limits):
    base = os.path.join(root, b"names")
    os.mkdir(base)
    names = [b"new\nline", b" blanks ", b"-dash", b"--", b"back\\slash", b"*?[glob]", b"tab\t",
             b"control\x01\x7f", b"quote'\"", b"...", b".hidden", "ümläut".encode(),
             "日本".encode(), b"percent%s%n", b"colon:", b"~", b"$HOME", b"trailing."]
    if limits.raw_names:
        names += [b"\xff\xfe\x80", b"latin1-\xe4", b"cut-\xe6\x97"]
    if limits.long_names:
        names += [b"n" * 100, b"n" * 101, b"n" * 254, b"n" * 255, "é".encode() * 127]
    for i, name in enumerate(names):
        write(os.path.join(base, name), content(20 + i, i))
        directory = os.path.join(base, cut_last(name) + b"D")
        os.mkdir(directory)
        write(os.path.join(directory, b"inner"), name)


def cut_last(name):
    """Without its last character; of what is no UTF-8, without the last byte."""
    try:
        return name.decode()[:-1].encode()
    except UnicodeDecodeError:
        return name[:-1]


def build_directories(root, limits):
    os.makedirs(os.path.join(root, b"empty", b"also empty"))
    many = os.path.join(root, b"many")
    os.mkdir(many)
    for i in range(700):  # more than SquashFS puts under one header, and one READDIRPLUS
        write(os.path.join(many, b"file-with-a-name-of-some-length-%04d" % (i * 7919 % 700)),
              b"%d\n" % i)
    deep = root
    for i in range(limits.depth):
        deep = os.path.join(deep, b"d%d" % (i % 10))
        os.mkdir(deep)
    write(os.path.join(deep, b"bottom"), b"deep\n")


def build_links(root, limits):
    base = os.path.join(root, b"links")
    other = os.path.join(root, b"links2")
    os.mkdir(base)
    os.mkdir(other)
    targets = {b"dangling": b"nowhere", b"absolute": b"/etc/passwd", b"up": b"../sizes/1",
               b"directory": b"../many", b"self": b"self", b"odd": b"new\nline \\ *",
               b"short": b"x"}
    if limits.raw_names:
        targets[b"raw"] = b"\xff\xfe"
    if limits.long_names:
        targets.update({b"long-100": b"t" * 100, b"long-101": b"t" * 101,
                        b"long-1000": b"t/" * 500, b"long-4095": b"t" * 4095})
    for name, target in targets.items():
        os.symlink(target, os.path.join(base, name))
    write(os.path.join(base, b"first"), content(10_000, 1))
    for name in (os.path.join(base, b"again"), os.path.join(base, b"zz"),
                 os.path.join(other, b"across")):
        os.link(os.path.join(base, b"first"), name)
    write(os.path.join(base, b"empty"), b"")
    os.link(os.path.join(base, b"empty"), os.path.join(other, b"a-empty"))
    os.link(os.path.join(base, b"dangling"), os.path.join(other, b"symlink-link"),
            follow_symlinks=False)


def build_modes(root, limits):
    base = os.path.join(root, b"modes")
    os.mkdir(base)
    root_user = os.geteuid() == 0
    # What isn't ours can't be packed without being root, and so can't what we may not read.
    ids = [(-1, -1)]
    if root_user:
        ids = [(0, 0), (1000, 1001), (65534, 65534), (262142, 262143), (2097150, 2097151),
               (2097152, 2097153), (4_000_000_000, 4_000_000_001)]
        ids = [pair for pair in ids if pair[1] <= limits.largest_id]
    modes = [0o644, 0o755, 0o4755, 0o2755, 0o6711, 0o1644, 0o7777, 0o400, 0o666]
    modes += [0o000, 0o111] if root_user else []
    for mode in modes:
        for i, (uid, gid) in enumerate(ids):
            path = os.path.join(base, b"%04o-%d" % (mode, i))
            write(path, b"%o" % mode)
            os.chown(path, uid, gid)
            os.chmod(path, mode)
    for mode in (0o1777, 0o2755, 0o700, 0o555):
        path = os.path.join(base, b"directory-%o" % mode)
        os.mkdir(path)
        if mode != 0o555:
            write(os.path.join(path, b"inner"), b"x")
        os.chown(path, *ids[-1])
        os.chmod(path, mode)
    os.symlink(b"target", os.path.join(base, b"link"))
    os.chown(os.path.join(base, b"link"), *ids[-1], follow_symlinks=False)


def build_special(root, limits):
    base = os.path.join(root, b"special")
    os.mkdir(base)
    os.mkfifo(os.path.join(base, b"fifo"), 0o640)
    if limits.special_links:
        os.link(os.path.join(base, b"fifo"), os.path.join(base, b"fifo-link"))
    if os.geteuid() == 0:
        devices = ((b"null", stat.S_IFCHR, 1, 3), (b"loop", stat.S_IFBLK, 7, 0),
                   (b"wide", stat.S_IFCHR, 300, 70000), (b"minor256", stat.S_IFBLK, 8, 256))
        for name, kind, major, minor in devices:
            os.mknod(os.path.join(base, name), kind | 0o660, os.makedev(major, minor))
    if limits.sockets:
        with socket.socket(socket.AF_UNIX) as s:
            here = os.open(base, os.O_PATH)
            s.bind(f"/proc/self/fd/{here}/socket")  # the path itself may be too long
            os.close(here)


def build_sparse(root):
    base = os.path.join(root, b"sparse")
    os.mkdir(base)
    write_sparse(os.path.join(base, b"only-hole"), 300_001, [])
    write_sparse(os.path.join(base, b"head"), 500_000, [(400_000, content(100_000, 1))])
    write_sparse(os.path.join(base, b"tail"), 900_000, [(0, content(5000, 2))])
    write_sparse(os.path.join(base, b"middle"), 300_000, [(0, b"a"), (299_999, b"z")])
    # More pieces than GNU's header (4) and its first extension (21) hold.
    write_sparse(os.path.join(base, b"pieces"), 4 << 20,
                 [(i * 65_536, content(3000 + i, i)) for i in range(0, 64)])


def build_xattrs(root, limits):
    base = os.path.join(root, b"xattrs")
    os.mkdir(base)
    values = {"user.plain": b"value", "user.empty": b"", "user.binary": bytes(range(256)),
              "user.newline": b"a\nb=c\n", "user.utf8": "ü".encode(), "user.x.y.z": b"1"}
    for name, value in values.items():
        path = os.path.join(base, name.encode())
        write(path, b"x")
        os.setxattr(path, name, value)
    everything = os.path.join(base, b"everything")
    write(everything, b"x")
    directory = os.path.join(base, b"directory")
    os.mkdir(directory)
    for name, value in values.items():
        os.setxattr(everything, name, value)
        os.setxattr(directory, name, value)
    os.setxattr(os.path.join(base, b"user.plain"), "user.big", content(2500, 3))
    os.link(everything, os.path.join(base, b"linked"))
    if os.geteuid() == 0 and limits.trusted:
        os.symlink(b"x", os.path.join(base, b"symlink"))
        os.setxattr(os.path.join(base, b"symlink"), "trusted.onepot", b"t", follow_symlinks=False)
        os.setxattr(everything, "trusted.onepot", b"\0binary\0")


def walk(root):
    """All paths below a directory (bytes, relative), parents first; the root is b''."""
    root = os.fsencode(root)
    todo = [b""]
    while todo:
        path = todo.pop()
        yield path
        here = os.path.join(root, path) if path else root
        if stat.S_ISDIR(os.lstat(here).st_mode):
            todo += sorted((os.path.join(path, name) for name in os.listdir(here)), reverse=True)


def build_times(root, limits):
    base = os.path.join(root, b"times")
    os.mkdir(base)
    times = [0, 1, 1_000_000_000_123456789, 1_500_000_000_000000001, 1_700_000_000_999999999,
             2_147_483_648_500000000, 4_100_000_000_100000000, 9_000_000_000_000000000,
             -1_000000000, -1_000_000_000_000000000, -2_000_000_000_250000000]
    if limits.last_second:
        times += [-1, -500000000]
    for i, ns in enumerate(times):
        for path in (b"file-%d" % i, b"directory-%d" % i):
            path = os.path.join(base, path)
            if b"directory" in path:
                os.mkdir(path)
            else:
                write(path, b"t")
    # Every file a time of its own, reproducibly; children before their directories.
    for i, path in enumerate(sorted(walk(root), reverse=True)):
        name = os.path.basename(path)
        if path.startswith(b"times/"):
            ns = times[int(name.rpartition(b"-")[2])]
        else:
            ns = 1_400_000_000_000000000 + i * 1_000_000_007
        if not limits.nanoseconds:
            ns -= ns % 1_000_000_000
        ns = min(max(ns, limits.oldest * 10**9), limits.newest * 10**9)
        os.utime(os.path.join(root, path) if path else root, ns=(ns, ns), follow_symlinks=False)


# ---- what is there ----

def digest(path, size=1 << 20):
    h = hashlib.blake2b(digest_size=16)
    fd = os.open(path, os.O_RDONLY)
    try:
        while True:
            piece = os.read(fd, size)
            if not piece:
                return h.hexdigest()
            h.update(piece)
    finally:
        os.close(fd)


def data_map(path):
    """The ranges [start, end) of a file that are no holes, as the filesystem tells them."""
    ranges = []
    fd = os.open(path, os.O_RDONLY)
    try:
        end = os.fstat(fd).st_size
        at = 0
        while at < end:
            try:
                start = os.lseek(fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nothing but a hole from here on
                    raise
                break
            at = os.lseek(fd, start, os.SEEK_HOLE)
            check(at > start, f"{path!r}: SEEK_HOLE from {start} goes to {at}")
            ranges.append((start, at))
        return ranges
    finally:
        os.close(fd)


def xattrs_of(path):
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        check_equal(error.errno, errno.EOPNOTSUPP, f"errno of listxattr {path!r}")
        return {}  # as filesystems without attributes say
    return {name: os.getxattr(path, name, follow_symlinks=False) for name in names
            if not name.startswith("system.")}


def describe(path, with_content=True):
    st = os.lstat(path)
    kind = stat.S_IFMT(st.st_mode)
    entry = {"type": kind, "mode": stat.S_IMODE(st.st_mode), "uid": st.st_uid, "gid": st.st_gid,
             "mtime_ns": st.st_mtime_ns, "nlink": st.st_nlink, "xattrs": xattrs_of(path)}
    if kind == stat.S_IFREG:
        entry["size"] = st.st_size
        if with_content:
            entry["content"] = digest(path)
    elif kind == stat.S_IFLNK:
        entry["size"] = st.st_size
        entry["target"] = os.readlink(path)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        entry["rdev"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
    return entry, (st.st_ino if kind != stat.S_IFDIR else None)


def snapshot(root, with_content=True):
    """Path (bytes) -> description; "links" names the first path of the same inode."""
    root = os.fsencode(root)
    entries, first = {}, {}
    for path in walk(root):
        entry, ino = describe(os.path.join(root, path) if path else root, with_content)
        if ino is not None:
            entry["links"] = first.setdefault(ino, path)
        entries[path] = entry
    return entries


def compare(found, expected, what, ignore=()):
    """Two snapshots; `ignore` names what is not compared, or what of which: ("d", "nlink")."""
    missing = sorted(set(expected) - set(found))
    added = sorted(set(found) - set(expected))
    lines = [f"{p!r} is missing" for p in missing[:5]] + [f"{p!r} is too much" for p in added[:5]]
    count = len(missing) + len(added)
    for path in sorted(set(found) & set(expected)):
        for key in sorted(set(found[path]) | set(expected[path])):
            f, e = found[path].get(key), expected[path].get(key)
            if key in ignore or (key, expected[path]["type"]) in ignore or f == e:
                continue
            count += 1
            if len(lines) < 15:
                lines.append(f"{shorten(path, 80)}: {key} is {shorten(f, 150)}, "
                             f"and should be {shorten(e, 150)}")
    if count:
        raise Failure(f"{what}: {count} differences\n  " + "\n  ".join(lines))


class Dirent(ctypes.Structure):
    _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("reclen", ctypes.c_uint16),
                ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]


libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = ctypes.c_void_p
libc.opendir.argtypes = [ctypes.c_char_p]
libc.readdir64.restype = ctypes.POINTER(Dirent)
libc.readdir64.argtypes = [ctypes.c_void_p]
libc.closedir.argtypes = [ctypes.c_void_p]
libc.telldir.argtypes = [ctypes.c_void_p]
libc.telldir.restype = ctypes.c_long
libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
libc.rewinddir.argtypes = [ctypes.c_void_p]


def raw_listing(path):
    """readdir(3) as it comes: [(name, inode number, d_type)]."""
    directory = libc.opendir(os.fsencode(path))
    if not directory:
        raise OSError(ctypes.get_errno(), "opendir", path)
    entries = []
    while True:
        entry = libc.readdir64(directory)
        if not entry:
            break
        entries.append((entry.contents.name, entry.contents.ino, entry.contents.type))
    libc.closedir(directory)
    return entries


def check_consistent(root):
    """What must hold on any of our mounts, whatever the archive."""
    root = os.fsencode(root)
    inodes, data_bytes = set(), 0
    device = os.lstat(root).st_dev
    for path in walk(root):
        here = os.path.join(root, path) if path else root
        st = os.lstat(here)
        check_equal(st.st_dev, device, f"{path!r}: st_dev")
        if stat.S_ISREG(st.st_mode):
            held = sum(b - a for a, b in data_map(here))
            check_equal(st.st_blocks, (held + 511) // 512, f"{path!r}: st_blocks")
            if st.st_ino not in inodes:
                data_bytes += held
        elif stat.S_ISDIR(st.st_mode):
            check_listing(root, path, st)
        inodes.add(st.st_ino)
    check_statfs(root, len(inodes), data_bytes)


def check_listing(root, path, st):
    here = os.path.join(root, path) if path else root
    entries = raw_listing(here)
    names = [name for name, _, _ in entries]
    check_equal(len(set(names)), len(names), f"{path!r}: names in the listing")
    check_equal(names[:2], [b".", b".."], f"{path!r}: how the listing begins")
    subdirectories = 0
    for name, ino, kind in entries[2:]:
        child = os.lstat(os.path.join(here, name))
        check_equal((ino, kind), (child.st_ino, stat.S_IFMT(child.st_mode) >> 12),
                    f"{path!r}/{name!r}: d_ino and d_type")
        subdirectories += stat.S_ISDIR(child.st_mode)
    check_equal((entries[0][1], entries[0][2]), (st.st_ino, stat.S_IFDIR >> 12), f"{path!r}: '.'")
    if path:
        parent = os.lstat(os.path.join(root, os.path.dirname(path)))
        check_equal(entries[1][1], parent.st_ino, f"{path!r}: d_ino of '..'")
        check_equal(os.lstat(os.path.join(here, b"..")).st_ino, parent.st_ino, f"{path!r}: ..")
    check_equal(st.st_nlink, 2 + subdirectories, f"{path!r}: nlink")


def check_statfs(root, inodes, data_bytes):
    fs = os.statvfs(root)
    check_equal((fs.f_bfree, fs.f_bavail, fs.f_ffree, fs.f_favail), (0, 0, 0, 0), "what is free")
    check_equal(fs.f_files, inodes, "statfs: files")
    check_equal(fs.f_blocks, -(-data_bytes // fs.f_frsize), "statfs: blocks")
    check_equal(fs.f_namemax, 255, "statfs: length of names")
    wanted = os.ST_RDONLY | os.ST_NOSUID | os.ST_NODEV
    check_equal(fs.f_flag & wanted, wanted, "statfs: read-only, nosuid, nodev")

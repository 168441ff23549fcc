"""Large things: files, directories, paths, and many readers at once by every way to read."""

import ctypes
import errno
import mmap
import os
import random
import struct
import tarfile
import threading

import harness
import tree
from harness import Skip, check, check_equal, need_program, run
from tars import member, write_small, write_tar

GIB = 1 << 30


# ---- large files ----

def header_of(name, size):
    """A tar header with any size: octal, or GNU's binary numbers where that is too short."""
    info, _ = member(name, b"")
    info.size = size
    form = tarfile.USTAR_FORMAT if size < 8 * GIB else tarfile.GNU_FORMAT
    return info.tobuf(form, "utf-8", "surrogateescape")


MARKS = (0, 4095, 131071, 2 * GIB - 9, 2 * GIB, 4 * GIB - 9, 4 * GIB + 5)


def test_large_stored_files(work):
    """Members of 5 and 9 GiB; the archive file itself is mostly hole, so it costs nothing."""
    archive = work / "large.tar"
    sizes = {"five": 5 * GIB + 1, "nine": 9 * GIB + 511, "after": 3}
    with open(archive, "wb") as f:
        at = 0
        for name, size in sizes.items():
            os.pwrite(f.fileno(), header_of(name, size), at)
            at += 512
            for mark in [m for m in MARKS if m + 8 <= size] + [size - 8] if size > 8 else []:
                os.pwrite(f.fileno(), struct.pack("<Q", mark + size), at + mark)
            if name == "after":
                os.pwrite(f.fileno(), b"end", at)
            at += (size + 511) // 512 * 512
        os.truncate(f.fileno(), at + 10240)
    with work.mount(archive) as mount:
        check_equal({n: os.stat(mount / n).st_size for n in os.listdir(mount.path)}, sizes,
                    "sizes")
        for name in ("five", "nine"):
            fd = os.open(mount / name, os.O_RDONLY)
            for mark in [m for m in MARKS if m + 8 <= sizes[name]] + [sizes[name] - 8]:
                check_equal(os.pread(fd, 8, mark), struct.pack("<Q", mark + sizes[name]),
                            f"{name} at {mark}")
            check_equal(os.pread(fd, 100, sizes[name] - 3)[3:], b"", "past the end")
            check_equal(os.pread(fd, 100, sizes[name] + 5 * GIB), b"", "far past the end")
            check_equal(os.lseek(fd, 0, os.SEEK_END), sizes[name], "SEEK_END")
            check_equal(os.fstat(fd).st_blocks, (sizes[name] + 511) // 512, "st_blocks")
            os.close(fd)
        with open(mount / "after", "rb") as f:
            check_equal(f.read(), b"end", "the file after them")


def sparse_pieces(size):
    return [(offset, struct.pack("<Q", offset + 1) * 2) for offset in
            (0, 1 * GIB, 2 * GIB - 8, 4 * GIB - 8, 4 * GIB + 4096, size - 16)]


def sparse_source(work, size=5 * GIB):
    source = work.make("source")
    pieces = sparse_pieces(size)
    tree.write_sparse(os.path.join(source, "sparse"), size, pieces)
    tree.write(os.path.join(source, "z"), b"after\n")
    if os.stat(os.path.join(source, "sparse")).st_blocks > 1 << 20:
        raise Skip(f"the filesystem of {work.path} has no holes")
    return source, pieces


def check_sparse(mount, pieces, grain):
    path = mount / "sparse"
    size = pieces[-1][0] + 16
    st = os.stat(path)
    check_equal(st.st_size, size, "size")
    check(st.st_blocks * 512 <= 2 * len(pieces) * grain,
          f"st_blocks {st.st_blocks} of a sparse file")
    fd = os.open(path, os.O_RDONLY)
    for offset, data in pieces:
        check_equal(os.pread(fd, len(data) + 200, offset),
                    (data + bytes(200))[:size - offset], f"data at {offset}")
        check_equal(os.pread(fd, 100, max(0, offset - 100)), bytes(100) if offset else
                    (data + bytes(100))[:100], f"the hole before {offset}")
    check_equal(os.pread(fd, 4 << 20, 3 * GIB), bytes(4 << 20), "a hole")
    os.close(fd)
    ranges = tree.data_map(path)
    for offset, data in pieces:
        check(any(a <= offset and offset + len(data) <= b for a, b in ranges) or
              any(a <= offset < b for a, b in ranges), f"SEEK_DATA misses the data at {offset}")
    with open(mount / "z", "rb") as f:
        check_equal(f.read(), b"after\n", "the file after it")


def test_sparse_tar(work):
    need_program("tar")
    source, pieces = sparse_source(work)
    for form in (["--format=pax"], ["--format=pax", "--sparse-version=0.1"], ["--format=gnu"]):
        archive = work / "sparse.tar"
        run("tar", *form, "--sparse", "-cf", archive, "-C", source, ".")
        with work.mount(archive) as mount:
            check_sparse(mount, pieces, 8192)
            check_equal(tree.data_map(mount / "sparse"),
                        tree.data_map(os.path.join(source, "sparse")), "where data lies")


def test_sparse_onepot(work):
    harness.need_command("pack")
    source, pieces = sparse_source(work)
    archive = work / "sparse.onepot"
    harness.onepot("pack", "-o", archive, source)
    check(os.path.getsize(archive) < 4 << 20, "the holes were packed")
    with work.mount(archive) as mount:
        check_sparse(mount, pieces, 8192)


def test_sparse_squashfs(work):
    """The files of sparse_source lie in an image of blocks of 1 MiB: see data/make_sparse.py."""
    image = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../data/sparse_5_gib.squashfs")
    with work.mount(image) as mount:
        check_sparse(mount, sparse_pieces(5 * GIB), 1 << 21)


# ---- large directories, long paths ----

def test_hundred_thousand_files(work):
    count = 100_000
    archive = work / "many.tar"
    names = [f"file-{i * 7919 % count:06d}" for i in range(count)]
    write_small(archive, [f"all/{name}" for name in names])
    with work.mount(archive) as mount:
        found = {entry.name: entry.stat().st_size for entry in os.scandir(mount / "all")}
        check_equal(len(found), count, "files in the listing")
        check_equal(found == {name: len(f"all/{name}") for name in names}, True, "all names and sizes")
        for name in random.Random(1).sample(names, 500):
            with open(mount / f"all/{name}", "rb") as f:
                check_equal(f.read(), b"all/" + name.encode(), name)
            check(not os.path.exists(mount / f"all/{name}x"), f"{name}x exists")
        check_seekdir(os.fsencode(mount / "all"), count)


def check_seekdir(path, count):
    """Positions of telldir lead back to the same entry, also after a while."""
    listing = tree.raw_listing(path)
    check_equal(len(listing), count + 2, "entries by readdir")
    directory = tree.libc.opendir(path)
    other = tree.libc.opendir(path)
    places = []
    for i in range(0, count, 10):
        position = tree.libc.telldir(directory)
        places.append((position, i))
        for _ in range(10):
            entry = tree.libc.readdir64(directory)
        check_equal(entry.contents.name, listing[i + 9][0], f"entry {i + 9}")
        tree.libc.readdir64(other)
    for position, i in random.Random(2).sample(places, 2000):
        tree.libc.seekdir(directory, position)
        check_equal(tree.libc.readdir64(directory).contents.name, listing[i][0],
                    f"the entry at {position}")
    tree.libc.rewinddir(directory)
    check_equal(tree.libc.readdir64(directory).contents.name, b".", "after rewinddir")
    tree.libc.closedir(directory)
    tree.libc.closedir(other)


def test_paths_longer_than_the_kernel_takes(work):
    """Below the archive's root a path can be named, and below the mount's it can't."""
    part = "long-" + "p" * 198
    levels = 20  # 4,086 bytes with the file's name; open(2) takes 4,095
    archive = work / "long.tar"
    write_tar(archive, [member("/".join([part] * levels + ["bottom"]), b"found"),
                        member("/".join([part] * levels + ["below-the-bottom"]), b"left out"),
                        member("top", b"1")])
    with work.mount(archive) as mount:
        here = os.open(mount.path, os.O_RDONLY)
        for _ in range(levels):
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
            os.close(here)
            here = deeper
        check_equal(os.listdir(here), ["bottom"], "the deepest directory")
        fd = os.open("bottom", os.O_RDONLY, dir_fd=here)
        check_equal(os.read(fd, 10), b"found", "the deepest file")
        os.close(fd)
        os.close(here)
    listed = harness.onepot("ls", "-R", archive).stdout.splitlines()
    check_equal(len(listed), levels + 2, "lines of ls -R")


def test_depth_of_500(work):
    source = work.make("source")
    tree.build_directories(os.fsencode(source), tree.Limits(depth=tree.DEEP))
    need_program("tar")
    archive = work / "deep.tar"
    run("tar", "-cf", archive, "-C", source, ".")
    with work.mount(archive) as mount:
        path = mount / "/".join(f"d{i % 10}" for i in range(tree.DEEP))
        with open(os.path.join(path, "bottom"), "rb") as f:
            check_equal(f.read(), b"deep\n", "the bottom")
        here = os.open(path, os.O_RDONLY)
        os.fchdir(here)
        check_equal(os.getcwd(), path, "getcwd at the bottom")
        for _ in range(tree.DEEP):
            os.chdir("..")
        check(os.path.samefile(".", mount.path), "500 times '..' is not the root")
        os.chdir("/")
        os.close(here)


# ---- ways to read ----

# The largest has a few of the largest blocks.
FILES = {"empty": 0, "one": 1, "page": 4096, "page+1": 4097, "small": 20_000, "block-1": 131_071,
         "block": 131_072, "block+1": 131_073, "mid": 700_001, "big": (3 << 20) + 77}
CONTENTS = {}  # made before the tests, whose processes have it then


def read_source(work):
    source = work.make("source")
    for name, data in CONTENTS.items():
        tree.write(os.path.join(source, name), data)
    return source, CONTENTS


def archives(work, source):
    """The same files in formats whose read paths differ: mapped, blocks, fragments."""
    if harness.shutil.which("tar"):
        yield "tar", work.made_once("read.tar", lambda path: run("tar", "-cf", path, "-C", source, "."))
    if harness.onepot("pack", "--help", status=None).returncode == 0:
        yield "onepot", work.made_once("read.onepot", lambda path: harness.onepot("pack", "-o", path, source))
    if harness.shutil.which("mksquashfs"):
        for name, *options in (("zstd", "-comp", "zstd", "-Xcompression-level", "3"),
                               ("4K", "-comp", "gzip", "-b", "4K", "-always-use-fragments"),
                               ("stored", "-noI", "-noD", "-noF", "-b", "1M")):
            yield f"SquashFS {name}", work.made_once(
                f"{name}.squashfs", lambda path, options=options: run(
                    "mksquashfs", source, path, "-noappend", "-quiet", "-no-progress", *options))


def read_randomly(path, contents, seed, rounds):
    """Random pieces of random files, compared; what is wrong, or None."""
    rng = random.Random(seed)
    for _ in range(rounds):
        name = rng.choice(list(contents))
        data = contents[name]
        offset = rng.randrange(len(data) + 10)
        length = rng.choice((1, 100, 4096, 50_000, 131_072, 400_000))
        fd = os.open(os.path.join(path, name), os.O_RDONLY)
        piece = os.pread(fd, length, offset)
        os.close(fd)
        if piece != data[offset:offset + length]:
            return f"{name} at {offset}, {length} bytes: {len(piece)} bytes that are wrong"
    return None


def reader_process(path, contents, seed, threads):
    wrong = []

    def work(number):
        try:
            said = read_randomly(path, contents, seed * 100 + number, 60)
        except OSError as error:
            said = str(error)
        if said:
            wrong.append(said)

    running = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    if wrong:
        print("; ".join(wrong[:3]), flush=True)
    return len(wrong)


def test_32_readers(work):
    source, contents = read_source(work)
    for what, archive in archives(work, source):
        with work.mount(archive) as mount:
            # All at once on a mount that has read nothing yet.
            pids = []
            for seed in range(8):
                pid = os.fork()
                if pid == 0:
                    try:
                        os._exit(min(reader_process(mount.path, contents, seed, 4), 100))
                    finally:
                        os._exit(101)
                pids.append(pid)
            statuses = [os.waitpid(pid, 0)[1] for pid in pids]
            check_equal(statuses, [0] * 8, f"{what}: what 8 processes of 4 threads found wrong")
            state = mount.stat()
            check_equal((state["errors"], state["stalls"]), (0, 0), f"{what}: errors and stalls")


def test_mapped(work):
    source, contents = read_source(work)
    for what, archive in archives(work, source):
        with work.mount(archive) as mount:
            for name, data in contents.items():
                if not data:
                    continue
                with open(mount / name, "rb") as f:
                    check_mappings(f.fileno(), data, f"{what}: {name}")


def check_mappings(fd, data, what):
    rng = random.Random(len(data))
    with mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ) as shared:
        for _ in range(20):
            at = rng.randrange(len(data))
            check_equal(shared[at:at + 5000] == data[at:at + 5000], True, f"{what} mapped, at {at}")
        check_equal(shared[:] == data, True, f"{what} mapped")
    with mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as private:
        private[0:1] = b"\xff"
        check_equal(private[1:] == data[1:], True, f"{what} mapped privately")
    check_equal(os.pread(fd, 1, 0), data[:1], f"{what} after a write to a private mapping")


def test_direct(work):
    source, contents = read_source(work)
    for what, archive in archives(work, source):
        with work.mount(archive) as mount:
            for name, data in contents.items():
                fd = os.open(mount / name, os.O_RDONLY | os.O_DIRECT)
                for size in (4096, 1 << 20, 16 << 20):
                    buffer = mmap.mmap(-1, size)
                    got, at = bytearray(), 0
                    while True:
                        n = os.preadv(fd, [buffer], at)
                        if n == 0:
                            break
                        got += buffer[:n]
                        at += n
                        if size == 4096 and at > 300_000:
                            break
                    expected = data[:len(got)] if size == 4096 else data
                    check_equal(bytes(got) == expected, True,
                                f"{what}: {name} by O_DIRECT in pieces of {size}")
                    buffer.close()
                os.close(fd)


def test_large_reads(work):
    source, contents = read_source(work)
    for what, archive in archives(work, source):
        with work.mount(archive) as mount:
            for name, data in contents.items():
                fd = os.open(mount / name, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)
                check_equal(os.pread(fd, 64 << 20, 0) == data, True, f"{what}: {name} at once")
                pieces = [bytearray(7), bytearray(100_000), bytearray(1), bytearray(16 << 20)]
                n = os.preadv(fd, pieces, 3)
                check_equal(b"".join(pieces)[:n] == data[3:], True, f"{what}: {name} by preadv")
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                check_equal(os.pread(fd, 64 << 20, 1) == data[1:], True, f"{what}: {name} again")
                os.close(fd)


def test_copies_in_the_kernel(work):
    source, contents = read_source(work)
    for what, archive in archives(work, source):
        with work.mount(archive) as mount:
            for name, data in contents.items():
                for how in (copy_by_sendfile, copy_by_range, copy_by_splice):
                    out = work / "copy"
                    with open(mount / name, "rb") as i, open(out, "wb") as o:
                        how(i.fileno(), o.fileno())
                    with open(out, "rb") as f:
                        check_equal(f.read() == data, True, f"{what}: {name}: {how.__name__}")


def copy_by_sendfile(source, target):
    while os.sendfile(target, source, None, 1 << 20):
        pass


def copy_by_range(source, target):
    try:
        while os.copy_file_range(source, target, 1 << 20):
            pass
    except OSError as error:
        # Between filesystems from Linux 5.3 on.
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        copy_by_sendfile(source, target)


def copy_by_splice(source, target):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.splice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p,
                            ctypes.c_size_t, ctypes.c_uint]
    libc.splice.restype = ctypes.c_ssize_t
    take, give = os.pipe()
    try:
        while True:
            n = libc.splice(source, None, give, None, 1 << 20, 0)
            if n < 0:
                raise OSError(ctypes.get_errno(), "splice")
            if n == 0:
                return
            while n:
                m = libc.splice(take, None, target, None, n, 0)
                if m <= 0:
                    raise OSError(ctypes.get_errno(), "splice")
                n -= m
    finally:
        os.close(take)
        os.close(give)


if __name__ == "__main__":
    CONTENTS.update((name, tree.content(size, seed)) for seed, (name, size) in enumerate(FILES.items()))
    harness.main(globals())

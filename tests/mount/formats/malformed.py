"""Archives that are cut, damaged or lie; files that are no archives.

For each: `onepot ls`, and of many `onepot mount`, ends within a time, not by a signal, and
either works or says in one line what is wrong, with status 1. What still mounts is read
whole: there are bytes or EIO, and the daemon lives on. One `ls` lists many, each for itself:
to start the program takes longer than to read an archive.

The damage is random, from a fixed seed. ONEPOT_TEST_SEED and ONEPOT_TEST_ROUNDS (a factor)
vary it for longer searches; a failure prints the bytes that were changed.
"""

import errno
import gzip
import itertools
import json
import os
import random
import shutil
import stat
import struct
import subprocess
import tarfile

import harness
import life
import tree
from tars import member, write_tar
from harness import Failure, check, check_equal, need_program, run

SEED = os.environ.get("ONEPOT_TEST_SEED", "1")
ROUNDS = float(os.environ.get("ONEPOT_TEST_ROUNDS", "1"))
TIMEOUT = 100  # after which it hangs
SAVED = ".onepot-index"


# ---- what must hold ----

# What may be said before it turns out that the archive is damaged.
NOTES = (": unpacked ", "it is read as a plain tar", "; it is left out", " stays a file", " stay files",
         "it is made anew", "it is empty: an archive of nothing", "it has no end-of-archive marker")


def check_said(done, what):
    """The exit status is one of ours, and an error is one line."""
    said = done.stderr.decode(errors="replace")
    check(done.returncode in (0, 1), f"{what}: ended with {done.returncode}: {said[-2000:]}")
    lines = said.splitlines()
    check(all(line.startswith("onepot: ") for line in lines),
          f"{what}: says what is no message: {said[-2000:]!r}")
    if done.returncode == 1:
        errors = [line for line in lines if not any(note in line for note in NOTES)]
        check_equal(len(errors), 1, f"{what}: lines of error in {said!r}")
    return done.returncode == 0


def try_command(what, *command):
    try:
        done = harness.onepot(*command, status=None, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{what}: {command[0]} is not done after {TIMEOUT} s") from late
    return check_said(done, f"{what}: {command[0]}"), done.stdout


def try_list(archive, what, *options):
    """Its listing, or None where the archive was refused."""
    fine, listing = try_command(what, "ls", "-R", "-l", *options, archive)
    return listing.rstrip(b"\n") if fine else None


def lists_of(paths, what, *options):
    """As try_list, of several archives by one command: path -> (listing, what is said of it)."""
    try:
        done = harness.onepot("ls", "-R", "-l", *options, *paths, status=None, timeout=TIMEOUT)
    except subprocess.TimeoutExpired as late:
        raise Failure(f"{what}: ls is not done after {TIMEOUT} s") from late
    check(done.returncode in (0, 1), f"{what}: ls ended with {done.returncode}: {done.stderr[-2000:]!r}")
    said, lists, here = {path: [] for path in paths}, {}, None
    for line in done.stderr.decode(errors="replace").splitlines():
        path = next((path for path in paths
                     if line.removeprefix(f"onepot: {path}").startswith((": ", SAVED + ": "))), None)
        check(path, f"{what}: says what is no message of one of them: {line!r}")
        said[path].append(line)
    for line in done.stdout.split(b"\n"):
        if line.endswith(b":") and os.fsdecode(line[:-1]) in said:
            here = lists.setdefault(os.fsdecode(line[:-1]), [])
        elif here is not None:
            here.append(line)
    found = {}
    for path in paths:
        errors = [line for line in said[path] if not any(note in line for note in NOTES)]
        if path in lists and errors:  # more notes, or a fault amid the list: its own status tells
            found[path] = try_list(path, what, *options), said[path]
            continue
        check(len(errors) == (path not in lists), f"{what}: lines of error about {path} in {done.stderr!r}")
        found[path] = None if errors else b"\n".join(lists[path]).rstrip(b"\n"), said[path]
    check_equal(done.returncode, int(any(listing is None for listing, _ in found.values())), f"{what}: the status")
    return found


def each_listed(work, archive, cases, *options, at_once=40):
    """(what, path, listing, what is said of it) of each (what, bytes) in place of an archive. Each has
    a folder, as files of numbered names may be parts of one archive."""
    cases = iter(cases)
    while some := list(itertools.islice(cases, at_once)):
        folder = work.make("cases")
        paths = [os.path.join(folder, str(i), os.path.basename(archive)) for i in range(len(some))]
        for path, (_, data) in zip(paths, some):
            os.mkdir(os.path.dirname(path))
            tree.write(path, data)
        try:
            lists = lists_of(paths, "one of " + ", ".join(what for what, _ in some), *options)
        except Failure:
            for path, (what, _) in zip(paths, some):
                try_list(path, what, *options)  # and fails for the one that did
            raise
        for path, (what, _) in zip(paths, some):
            yield what, path, *lists[path]
        shutil.rmtree(folder)


def try_mount(work, archive, what):
    """path -> content of what is readable, or None where the archive was refused."""
    target = work / "mnt"
    os.makedirs(target, exist_ok=True)
    fine, _ = try_command(what, "mount", archive, "--at", target)
    if not fine:
        check_equal(harness.mountpoints(target), [], f"{what}: mounts after a failure")
        check_equal(life.slots(), [], f"{what}: state that a failure left")
        return None
    try:
        contents = read_all(os.fsencode(target), what)
        # Whatever it was asked: it still answers.
        with open(os.path.join(target, ".onepot/stat.json"), encoding="utf-8") as f:
            check_equal(json.load(f)["state"], "serving", f"{what}: the daemon after everything was read")
        os.statvfs(target)
    finally:
        harness.unmount(target)
        # The namespace of a command of another test may see the mount, which is served until that ends.
        harness.wait_for(lambda: life.slots() == [], f"{what}: the state to go", 90)
    return contents


def read_all(root, what):
    """Like a curious person: list, stat, read, in every way; only EIO may stop it."""
    contents, todo = {}, [b""]

    def attempt(call, *arguments):
        try:
            return call(*arguments)
        except OSError as error:
            check_equal(error.errno, errno.EIO, f"{what}: errno of {call.__name__} {shorter(arguments)}")
            return None

    while todo:
        path = todo.pop()
        here = os.path.join(root, path) if path else root
        check(len(contents) < 100_000 and path.count(b"/") < 2000, f"{what}: it never ends")
        st = attempt(os.lstat, here)
        if st is None:
            continue
        if stat.S_ISDIR(st.st_mode):
            todo += [os.path.join(path, name) for name in attempt(os.listdir, here) or []]
        elif stat.S_ISLNK(st.st_mode):
            attempt(os.readlink, here)
        elif stat.S_ISREG(st.st_mode):
            contents[path] = attempt(read_some, here)
            if st.st_size < 1 << 40:
                attempt(tree.data_map, here)
        for name in attempt_xattrs(here):
            attempt(os.getxattr, here, name)
    return contents


def shorter(arguments):
    return harness.shorten(arguments, 200)


def attempt_xattrs(path):
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        check(error.errno in (errno.EIO, errno.EOPNOTSUPP), f"errno {error.errno} of listxattr {path!r}")
        return []


def read_some(path):
    """All of a file; of one that claims to be huge, both ends."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        if size > 64 << 20:
            os.pread(fd, 100_000, size - 100_000)
            return os.pread(fd, 1 << 20, 0)
        pieces = []
        while True:
            piece = os.read(fd, 1 << 20)
            if not piece:
                return b"".join(pieces)
            pieces.append(piece)
    finally:
        os.close(fd)


# ---- archives to damage ----

def small_tree(work):
    source = work.make("source")
    os.mkdir(os.path.join(source, "directory"))
    os.mkdir(os.path.join(source, "directory", "inner"))
    for i in range(12):
        tree.write(os.path.join(source, ("", "directory", "directory/inner")[i % 3], f"file-{i}"),
                   tree.content((0, 10, 512, 3000, 9000, 20_000)[i % 6], i))
    tree.write(os.path.join(source, "l" * 200), b"long")
    os.link(os.path.join(source, "file-3"), os.path.join(source, "directory", "hard"))
    os.symlink("directory/hard", os.path.join(source, "symlink"))
    tree.write_sparse(os.path.join(source, "sparse"), 1 << 20,
                      [(i * 200_000, tree.content(5000, i)) for i in range(5)])
    os.mkfifo(os.path.join(source, "fifo"))
    if tree.supports_xattrs(os.fsencode(source)):
        os.setxattr(os.path.join(source, "file-0"), "user.name", b"value" * 20)
    return source


def make_gnu(work, source):
    need_program("tar")
    run("tar", "--format=gnu", "--sparse", "-cf", work / "x.tar", "-C", source, ".")
    return work / "x.tar"


def make_pax(work, source):
    need_program("tar")
    run("tar", "--format=pax", "--sparse", "--xattrs", "-cf", work / "x.tar", "-C", source, ".")
    return work / "x.tar"


def make_gzip(work, source):
    with open(make_pax(work, source), "rb") as f:
        tree.write(work / "x.tar.gz", gzip.compress(f.read(), 1, mtime=0))
    return work / "x.tar.gz"


def make_zstd(work, source):
    need_program("zstd")
    run("zstd", "-q", make_pax(work, source), "-o", work / "x.tar.zst")
    return work / "x.tar.zst"


def make_squashfs(work, source, *options):
    need_program("mksquashfs")
    run("mksquashfs", source, work / "x.squashfs", "-noappend", "-quiet", "-no-progress",
        "-nopad", *options)
    return work / "x.squashfs"


def make_squashfs_stored(work, source):
    """Tables that damage reaches: packed ones mostly fail to unpack."""
    return make_squashfs(work, source, "-noI", "-noId", "-noX", "-noF", "-b", "4K")


def make_onepot(work, source):
    harness.need_command("pack")
    harness.onepot("pack", "-o", work / "x.onepot", source)
    return work / "x.onepot"


def truncated_lengths(size, rng):
    lengths = {0, 1, 2, 100, 511, 512, 513, 1023, 1024, 1025, 10239, 10240, 10241}
    lengths |= {size - d for d in (1, 2, 4, 16, 64, 96, 511, 512, 513, 1024, 4096, 10240)}
    lengths |= {rng.randrange(size) // 512 * 512 for _ in range(int(10 * ROUNDS))}
    lengths |= {rng.randrange(size) for _ in range(int(15 * ROUNDS))}
    return sorted(n for n in lengths if 0 <= n < size)


def check_truncations(work, make):
    archive = make(work, small_tree(work))
    with open(archive, "rb") as f:
        data = f.read()
    whole = try_mount(work, archive, "the whole archive")
    check(whole is not None, "the whole archive is refused")
    rng = random.Random(f"truncate {SEED}")
    refused = 0
    lengths = truncated_lengths(len(data), rng)
    cases = ((f"cut to {length} of {len(data)} bytes", data[:length]) for length in lengths)
    for i, (what, path, listing, _) in enumerate(each_listed(work, archive, cases)):
        refused += listing is None
        if listing is not None or i % 5 == 0:
            contents = try_mount(work, path, what)
            check((contents is None) == (listing is None),
                  f"{what}: ls and mount do not agree on it")
            for name, content in (contents or {}).items():
                check(content is None or content == whole.get(name),
                      f"{what}: {name!r} has other content than before")
    # A tar that is cut in its trailing zeros, or between two members, is still a tar.
    check(refused > len(lengths) // 2, f"only {refused} of {len(lengths)} were refused")


def damage(data, rng):
    """Some bytes changed; returns what and how, to be printed."""
    out = bytearray(data)
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(out))
        how = rng.randrange(4)
        if how == 0:
            value = bytes([out[at] ^ 1 << rng.randrange(8)])
        elif how == 1:
            value = rng.choice((b"\0", b"\xff", b"/", b"7"))
        elif how == 2:
            value = rng.choice((b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\0" * 8, b"\xff" * 8,
                                b"77777777777", b"../"))
        else:
            value = rng.randbytes(rng.choice((1, 2, 4, 8)))
        value = value[:len(out) - at]
        out[at:at + len(value)] = value
        changes.append((at, bytes(value)))
    return bytes(out), changes


def damages(data, regions, count, seed="damage"):
    """(what, bytes) of so many, damaged by chance in one of the regions."""
    rng = random.Random(f"{seed} {SEED}")
    for _ in range(int(count * ROUNDS)):
        start, end = rng.choice(regions)
        piece, changes = damage(data[start:end], rng)
        yield f"damaged from {start} on by {changes}", data[:start] + piece + data[end:]


def check_damage(work, make, regions=lambda data: [(0, len(data))], count=60):
    """Random damage within the regions that describe (data alone can hold anything)."""
    archive = make(work, small_tree(work))
    with open(archive, "rb") as f:
        data = f.read()
    mounted = 0
    cases = damages(data, regions(data), count)
    for i, (what, path, listing, _) in enumerate(each_listed(work, archive, cases)):
        if listing is not None and i % 2 == 0 or i % 10 == 0:
            mounted += try_mount(work, path, what) is not None
    print(f"{mounted} of them were mounted")


def headers(data):
    """The blocks of a tar that describe: where the magic is, and what follows it."""
    starts = [i for i in range(0, len(data) - 1024, 512) if data[i + 257:i + 262] == b"ustar"]
    return [(i, i + 1024) for i in starts]


def test_truncated_gnu_tar(work):
    check_truncations(work, make_gnu)


def test_truncated_pax_tar(work):
    check_truncations(work, make_pax)


def test_truncated_gzip(work):
    check_truncations(work, make_gzip)


def test_truncated_zstd(work):
    check_truncations(work, make_zstd)


def test_truncated_squashfs(work):
    check_truncations(work, make_squashfs)


def test_truncated_onepot(work):
    check_truncations(work, make_onepot)


def test_damaged_gnu_tar(work):
    check_damage(work, make_gnu, headers)


def test_damaged_pax_tar(work):
    check_damage(work, make_pax, headers)


def test_damaged_gzip(work):
    check_damage(work, make_gzip, count=25)


def test_damaged_zstd(work):
    check_damage(work, make_zstd, count=25)


def test_damaged_squashfs(work):
    check_damage(work, make_squashfs, lambda data: [(0, 96), (0, len(data)), table_region(data)])


def test_damaged_squashfs_stored(work):
    check_damage(work, make_squashfs_stored,
                 lambda data: [(0, 96), table_region(data), table_region(data)], 100)


def table_region(image):
    """From the inode table to the end."""
    return struct.unpack_from("<Q", image, 64)[0], len(image)


def test_damaged_onepot(work):
    """Whatever is damaged behind the tar: what is listed is what was packed."""
    archive = make_onepot(work, small_tree(work))
    with open(archive, "rb") as f:
        data = f.read()
    right = try_list(archive, "the whole archive")
    contents = try_mount(work, archive, "the whole archive")
    end = len(data) // 10240 * 10240 - 10240
    regions = [(end, len(data)), (len(data) - 512, len(data)), (end_of_tar(archive), len(data))]
    for i, (what, path, listing, _) in enumerate(each_listed(work, archive, damages(data, regions, 80))):
        check(listing is None or listing == right, f"{what}: lists something else")
        if i % 4 == 0:
            found = try_mount(work, path, what)
            for name, content in (found or {}).items():
                check(content is None or content == contents.get(name), f"{what}: {name!r}")


def end_of_tar(archive):
    """Where the last member ends: behind it are the end marker, index and footer."""
    with tarfile.open(archive, errors="surrogateescape") as tar:
        tar.getmembers()
        return tar.offset


# ---- lies, one by one ----

def with_header(info, **fields):
    """A tar header with fields overwritten, and its sum made right again."""
    header = bytearray(info.tobuf(0, "utf-8", "surrogateescape"))
    places = {"size": (124, 12), "mode": (100, 8), "uid": (108, 8), "mtime": (136, 12),
              "typeflag": (156, 1), "linkname": (157, 100), "name": (0, 100),
              "devmajor": (329, 8), "prefix": (345, 155)}
    for name, value in fields.items():
        at, length = places[name]
        header[at:at + length] = value.ljust(length, b"\0")[:length]
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def pax(*records, kind=b"x"):
    """A pax extended header with these records as they are, sizes not checked."""
    body = b"".join(records)
    info = member("pax", body)[0]
    return with_header(info, typeflag=kind) + body + bytes(-len(body) % 512)


def record(key, value):
    """A pax record, whose length counts its own digits."""
    rest = len(key) + len(value) + 3
    total = rest + len(str(rest))
    total = rest + len(str(total))
    return b"%d %s=%s\n" % (total, key, value)


def file_named(name=b"lie", data=b"data", **fields):
    info = member(name.decode("latin1")[:100] or "x", data)[0]
    return with_header(info, **fields) + data + bytes(-len(data) % 512)


HUGE = (b"\x80" + b"\xff" * 11, b"\xff" * 12, b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7,
        b"\x80" + bytes(3) + b"\x80" + bytes(7), b"77777777777 ", b"777777777777")


def lying_tars():
    """name -> bytes of an archive; all of them must be refused unless the name says 'fine'."""
    for i, size in enumerate(HUGE):
        yield f"size {size!r}", file_named(size=size)
        yield f"long name of size {i}", file_named(size=size, typeflag=b"L")
        yield f"pax header of size {i}", file_named(size=size, typeflag=b"x")
        yield f"old sparse of size {i}", file_named(size=size, typeflag=b"S")
    for value in (b"18446744073709551616", b"9223372036854775807", b"-1", b"99999999"):
        yield f"pax size {value!r}", pax(record(b"size", value)) + file_named()
    yield "a pax name of 1 MiB", pax(record(b"path", b"n/" * (1 << 19))) + file_named()
    yield "a wrong sum", bytearray_with(file_named(), 150, b"7")
    for text in (b"0,5,3,5", b"5,10,0,10", b"0,99999999999", b"-5,10", b"0,9223372036854775807,1,1",
                 b"9223372036854775807,9223372036854775807"):
        count = b"%d" % (text.count(b",") // 2 + 1)
        yield (f"a sparse map of {text!r}",
               pax(record(b"GNU.sparse.major", b"0"), record(b"GNU.sparse.minor", b"1"),
                   record(b"GNU.sparse.size", b"100"), record(b"GNU.sparse.numblocks", count),
                   record(b"GNU.sparse.map", text)) + file_named())


def tars_with_a_member_too_many():
    """name -> members that can't be shown, and are left out."""
    for name in (b"..", b"../x", b"a/../../x", b"/../x", b"./../x", b"x/.."):
        yield f"name {name!r}", file_named(name=name)
        yield f"pax name {name!r}", pax(record(b"path", name)) + file_named()
    yield "a name of 256 bytes", pax(record(b"path", b"n" * 256)) + file_named()
    yield "a hard link to itself alone", file_named(b"a", b"", typeflag=b"1", linkname=b"a")
    yield ("hard links in a circle", file_named(b"a", b"", typeflag=b"1", linkname=b"b")
           + file_named(b"b", b"", typeflag=b"1", linkname=b"a"))
    yield "a record that claims more than there is", pax(b"9999 path=x\n") + file_named()
    yield "a record without a number", pax(b"path=x\n") + file_named()
    yield "a record of length 0", pax(b"0 path=x\n") + file_named()
    yield "a hard link that leads out", file_named(b"a", b"", typeflag=b"1", linkname=b"../../x")


def bytearray_with(data, at, value):
    out = bytearray(data)
    out[at:at + len(value)] = value
    return bytes(out)


def around(lies):
    """(what, an archive with a good member before it and another behind it) of each."""
    for what, lie in lies:
        yield what, file_named(b"good", b"before") + lie + file_named(b"after", b"after") + bytes(1024)


def test_lying_tars(work):
    for what, path, listing, _ in each_listed(work, "lie.tar", around(lying_tars())):
        check(listing is None, f"{what}: is not refused, and lists {listing!r}")
        check(try_mount(work, path, what) is None, f"{what}: is not refused by mount")


def test_members_that_lie_are_left_out(work):
    for what, path, listing, said in each_listed(work, "lie.tar", around(tars_with_a_member_too_many())):
        check(listing is not None and len(said) == 1 and "left out" in said[0], f"{what}: {said}")
        check_equal(try_mount(work, path, what), {b"good": b"before", b"after": b"after"}, what)


def test_odd_tars_that_are_fine(work):
    """What is unusual and yet says clearly what is meant."""
    cases = {
        "symbolic links in a circle": (file_named(b"a", b"", typeflag=b"2", linkname=b"b")
                                       + file_named(b"b", b"", typeflag=b"2", linkname=b"a")),
        "a symbolic link that leads out": file_named(b"a", b"", typeflag=b"2",
                                                     linkname=b"../../../etc/passwd"),
        "an unknown pax key": pax(record(b"VENDOR.thing", b"1"), record(b"comment", b"x"))
                              + file_named(),
        "a file of an unknown type": file_named(typeflag=b"Z"),
        "a contiguous file": file_named(typeflag=b"7"),
        "a global header": pax(record(b"comment", b"x"), kind=b"g") + file_named(),
    }
    archive = work / "odd.tar"
    for what, data in cases.items():
        tree.write(archive, data + file_named(b"after", b"after") + bytes(1024))
        contents = try_mount(work, archive, what)
        check(contents is not None, f"{what}: is refused")
        check_equal(contents.get(b"after"), b"after", f"{what}: the file behind it")


# ---- SquashFS that lies ----

def superblock_lies(image):
    """name -> image with one field of the superblock wrong."""
    fields = {"inodes": (4, "<I"), "block_size": (12, "<I"), "fragments": (16, "<I"),
              "compression": (20, "<H"), "block_log": (22, "<H"), "flags": (24, "<H"),
              "ids": (26, "<H"), "major": (28, "<H"), "root_inode": (32, "<Q"),
              "bytes_used": (40, "<Q"), "id_table": (48, "<Q"), "xattr_table": (56, "<Q"),
              "inode_table": (64, "<Q"), "directory_table": (72, "<Q"),
              "fragment_table": (80, "<Q"), "export_table": (88, "<Q")}
    for name, (at, form) in fields.items():
        right = struct.unpack_from(form, image, at)[0]
        top = (1 << 8 * struct.calcsize(form)) - 1
        for value in (0, 1, top, top >> 1, right + 1, right - 1, right ^ 0x8000, len(image)):
            if 0 <= value <= top and value != right:
                out = bytearray(image)
                struct.pack_into(form, out, at, value)
                yield f"{name} {value} for {right}", bytes(out)


def test_lying_superblocks(work):
    image = make_squashfs_stored(work, small_tree(work))
    with open(image, "rb") as f:
        data = f.read()
    refused = total = 0
    for i, (what, path, listing, _) in enumerate(each_listed(work, image, superblock_lies(data))):
        refused += listing is None
        total += 1
        if listing is not None or i % 8 == 0:
            try_mount(work, path, what)
    check(refused > total // 3, f"only {refused} of {total} were refused")


def entry_of(image, name):
    """Where the directory entry of a name lies in an image with stored tables."""
    start = struct.unpack_from("<Q", image, 72)[0]
    at = image.index(name, start) - 8
    check_equal(struct.unpack_from("<H", image, at + 6)[0], len(name) - 1, "size of the name")
    return at


def test_squashfs_directories_that_lie(work):
    source = work.make("source")
    for name in ("cycle-aa", "cycle-bb"):
        os.mkdir(os.path.join(source, name))
        os.mkdir(os.path.join(source, name, name[::-1]))
    tree.write(os.path.join(source, "plain-ff"), b"data" * 100)
    tree.write(os.path.join(source, "plain-gg"), b"data" * 100)
    image = make_squashfs_stored(work, source)
    with open(image, "rb") as f:
        data = f.read()
    check(try_list(image, "as it was made") is not None, "the image is refused as it was made")
    root = struct.unpack_from("<Q", data, 32)[0] & 0xffff
    other = struct.unpack_from("<H", data, entry_of(data, b"cycle-aa"))[0]
    lies = {"a directory that holds the root": (b"cycle-aa", "inode", root),
            "a directory that holds the root, further down": (b"aa-elcyc", "inode", root),
            "a directory that holds itself": (b"aa-elcyc", "inode", other),
            "a directory with two names": (b"cycle-bb", "inode", other),
            "two entries of one name": (b"plain-gg", "name", b"plain-ff"),
            "names out of order": (b"cycle-aa", "name", b"zzzzz-aa"),
            "a name with a slash": (b"plain-ff", "name", b"plain/ff"),
            "a name that leads out": (b"plain-ff", "name", b"../../gg"),
            "a name with a NUL": (b"plain-ff", "name", b"plain\0ff"),
            "a name that is '..'": (b"plain-ff", "name 2", b"..")}

    def lying(name, field, value):
        out = bytearray(data)
        at = entry_of(data, name)
        if field == "inode":
            struct.pack_into("<H", out, at, value)
        else:
            out[at + 8:at + 8 + len(value)] = value
        if field == "name 2":
            struct.pack_into("<H", out, at + 6, 1)
        return bytes(out)

    for what, path, listing, _ in each_listed(work, image, ((what, lying(*lie)) for what, lie in lies.items())):
        contents = try_mount(work, path, what)
        # These may be shown in some way that is safe.
        if what not in ("names out of order", "a directory with two names",
                        "two entries of one name"):
            check(listing is None and contents is None, f"{what}: is not refused")


# ---- what is no archive ----

def strange_files(work):
    rng = random.Random(f"garbage {SEED}")
    for size in (1, 10, 511, 512, 1024, 10_240, 300_000):
        tree.write(work / "garbage", rng.randbytes(size))
        yield f"{size} random bytes", work / "garbage"
    for magic in (b"hsqs", b"sqsh", b"\x1f\x8b\x08", b"BZh9", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd",
                  b"\x04\x22\x4d\x18", b"PK\x03\x04", b"x" * 257 + b"ustar\x0000",
                  b"x" * 257 + b"ustar  \0"):
        tree.write(work / "garbage", magic + rng.randbytes(5000))
        yield f"garbage after {magic[:10]!r}", work / "garbage"
    tree.write(work / "text", b"hello\n" * 1000)
    yield "a text", work / "text"
    tree.write(work / "empty", b"")
    yield "an empty file", work / "empty"
    yield "a directory", work.make("a directory")
    os.mkfifo(work / "fifo")
    yield "a FIFO that nobody writes to", work / "fifo"
    yield "a device without end", "/dev/zero"
    yield "a device without content", "/dev/null"
    yield "a terminal, if there is one", "/dev/tty"
    yield "no file", work / "none"
    os.symlink("nowhere", work / "dangling")
    yield "a link to nothing", work / "dangling"
    os.symlink("loop", work / "loop")
    yield "a link to itself", work / "loop"
    yield "a name with a newline", work / "new\nline"
    yield "a name that is no UTF-8", os.fsencode(work / "raw-") + b"\xff\xfe"
    yield "a name with an escape", work / "\x1b[31mred"
    yield "a file in place of a directory", work / "text/x.tar"
    yield "a file of /proc", "/proc/self/maps"


def test_what_is_no_archive(work):
    for what, path in strange_files(work):
        check(try_list(path, what) is None, f"{what}: ls takes it for an archive")
        check(try_mount(work, path, what) is None, f"{what}: mount takes it for an archive")


def test_an_empty_name(work):
    check(try_list("", "an empty name") is None, "ls takes an empty name for an archive")
    done = harness.onepot("mount", "", status=2)
    check(b"name is empty" in done.stderr, f"mount does not say why: {done.stderr!r}")


def test_unreadable_file(work):
    archive = work / "secret.tar"
    write_tar(archive, [member("a", b"1")])
    os.chmod(archive, 0)
    nobody = {}
    if os.geteuid() == 0:
        nobody = {"user": 65534, "group": 65534}
        os.chmod(work.path, 0o711)
    done = harness.onepot("ls", archive, status=1, **nobody)
    check_said(done, "an unreadable file")
    check(b"ermission" in done.stderr, f"it does not say why: {done.stderr!r}")


# ---- saved indexes ----

def test_saved_indexes_are_not_trusted(work):
    harness.need_command("index")
    source = small_tree(work)
    archive = make_pax(work, source)
    right = try_list(archive, "without a saved index")
    harness.onepot("index", archive)
    saved = archive + SAVED
    with open(saved, "rb") as f:
        data = f.read()
    check_equal(try_list(archive, "with a saved index"), right, "the listing by a saved index")
    rng = random.Random(f"index {SEED}")
    cases = [("whole", data), ("empty", b""), ("garbage", rng.randbytes(20_000)), ("doubled", data + data)]
    cases += [(f"cut to {n}", data[:n]) for n in (1, 64, 4096, len(data) - 1, len(data) // 2)]
    cases += damages(data, ((0, min(512, len(data))), (0, len(data))), 60, "index")
    paths = [os.path.join(work.make(f"{i}"), "x.tar") for i in range(len(cases))]
    for path in paths:  # before any index, for a link changes a time of the archive
        os.link(archive, path)
    for path, (_, wrong) in zip(paths, cases):
        tree.write(path + SAVED, wrong)
    origin = json.loads(harness.onepot("info", "--json", paths[0]).stdout)[0]["index_origin"]
    check_equal(origin, "saved", "where the whole index is from")
    lists = lists_of(paths, "saved indexes")
    for i, (path, (what, wrong)) in enumerate(zip(paths, cases)):
        listing = lists[path][0]
        check(listing is None or listing == right, f"a saved index, {what}: lists something else")
        if i % 6 == 0:
            tree.write(path + SAVED, wrong)
            try_mount(work, path, f"a saved index, {what}")


def test_index_of_an_archive_that_changed(work):
    harness.need_command("index")
    archive = work / "changing.tar"
    write_tar(archive, [member("a", b"1"), member("b", b"2" * 600)])
    harness.onepot("index", archive)
    with open(archive + SAVED, "rb") as f:
        saved = f.read()
    for members in ([member("a", b"1"), member("c", b"2" * 600)], [member("a", b"x" * 5000)]):
        before = os.stat(archive)
        write_tar(archive, members)
        tree.write(archive + SAVED, saved)
        # Not even the same time makes it the same archive.
        os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))
        contents = try_mount(work, archive, "a changed archive with its old index")
        check_equal(contents, {os.fsencode(info.name): data for info, data in members},
                    "a changed archive with its old index")


def test_onepot_that_others_appended_to(work):
    need_program("tar")
    source = small_tree(work)
    archive = make_onepot(work, source)
    tree.write(os.path.join(source, "file-4"), b"newer")
    tree.write(os.path.join(source, "added"), b"added")
    run("tar", "-rf", archive, "-C", source, "file-4", "added")
    contents = try_mount(work, archive, "an archive that tar appended to")
    check_equal((contents[b"file-4"], contents[b"added"]), (b"newer", b"added"),
                "what tar appended to an archive of onepot")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True, seconds=int(120 * max(1, ROUNDS)))

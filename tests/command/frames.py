"""Compressed tars of frames are read at random, with an index, and without being unpacked.

Usage: frames.py ONEPOT [SOURCE_ROOT]. The bytes have to be those of the same tar, not
compressed, whoever wrote the frames: zstd, pzstd, bgzip, gzip, bzip2, xz; damage is an error, and
what is no file of frames is unpacked as ever.
"""

import bz2
import gzip
import json
import lzma
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

import harness  # pylint: disable=wrong-import-position

ONEPOT = os.path.abspath(sys.argv[1])
READS = os.environ["READS"].split()
failed = []


def run(*command, status=0, **options):
    done = subprocess.run(command, capture_output=True, check=False, **options)
    if status is not None and done.returncode != status:
        failed.append(f"status {done.returncode}, not {status}, of {command}: {done.stderr!r}")
    return done


def check(condition, what):
    if not condition:
        failed.append(what)


def make_tree(path):
    made = random.Random(5)
    os.makedirs(f"{path}/folder")
    for i in range(100):
        with open(f"{path}/folder/{i:03d}", "wb") as f:
            f.write(made.randbytes(made.choice((0, 1, 511, 512, 3000, 70_000))))
    with open(f"{path}/zeros", "wb") as f:
        f.write(bytes(2_000_000))
    with open(f"{path}/sparse", "wb") as f:
        f.seek(1_000_000)
        f.write(b"data")
        f.truncate(3_000_000)
    with open(f"{path}/all holes", "wb") as f:
        f.truncate(500_000)
    os.link(f"{path}/zeros", f"{path}/link")
    os.symlink("zeros", f"{path}/symlink")


def bgzf(data, size=65280):
    out = b""
    for i in range(0, len(data), size):
        piece = data[i:i + size]
        c = zlib.compressobj(6, zlib.DEFLATED, -15)
        packed = c.compress(piece) + c.flush()
        out += struct.pack("<4BI2BH2BHH", 31, 139, 8, 4, 0, 0, 255, 6, 66, 67, 2, len(packed) + 25)
        out += packed + struct.pack("<II", zlib.crc32(piece), len(piece))
    return out + bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def member(data):
    """With all the fields that a header may have."""
    packed = gzip.compress(data)[10:]
    head = struct.pack("<4BI2B", 31, 139, 8, 2 + 4 + 8 + 16, 0, 0, 255)
    head += struct.pack("<H", 9) + b"XY\x05\0extra" + b"a name\0" + b"a comment\0"
    return head + struct.pack("<H", zlib.crc32(head) & 0xffff) + packed


def flushed(data):
    """One stream with many empty blocks, some of them at odd bits."""
    c = zlib.compressobj(6, zlib.DEFLATED, 31)
    modes = (zlib.Z_SYNC_FLUSH, zlib.Z_PARTIAL_FLUSH, zlib.Z_FULL_FLUSH, zlib.Z_BLOCK)
    parts = [c.compress(p) + c.flush(modes[i % 4]) for i, p in enumerate(pieces(data, 70_003))]
    return b"".join(parts) + c.flush()


def zstd(data, *options):
    return run("zstd", "-q", "-c", *options, input=data).stdout


def pieces(data, size):
    return [data[i:i + size] for i in range(0, len(data), size)]


SKIPPED = struct.pack("<II", 0x184D2A5E, 9) + b"any bytes"
# A seek table of the seekable format that lies: 7 frames of one byte.
LYING = struct.pack("<I", 7) + b"\0" + struct.pack("<I", 0x8F92EAB1)
LYING = struct.pack("<II", 0x184D2A5E, len(LYING) + 56) + struct.pack("<14I", *[1] * 14) + LYING


def archives(data):
    """Name, bytes."""
    if "gzip" in READS:
        yield "bgzf.tar.gz", bgzf(data)
        yield "members.tar.gz", b"".join(gzip.compress(p) for p in pieces(data, 300_001))
        yield "one.tar.gz", gzip.compress(data)
        yield "long.tar.gz", b"".join(member(p) for p in pieces(data, 1_700_001))
        yield "stored.tar.gz", gzip.compress(data, 0)
        yield "mixed.tar.gz", (gzip.compress(data[:1000]) + gzip.compress(b"") + member(data[1000:])
                               + gzip.compress(b""))
        yield "flushed.tar.gz", flushed(data)
        yield "padded.tar.gz", b"".join(gzip.compress(p) for p in pieces(data, 300_001)) + bytes(700)
    else:
        print("skipped part: built without points in gzip, its members are unpacked")
    if "bzip2" in READS:
        yield "one.tar.bz2", bz2.compress(data, 1)
        yield "streams.tar.bz2", b"".join(bz2.compress(p) for p in pieces(data, 1_700_001)) + bytes(9)
        yield "empty.tar.bz2", bz2.compress(b"") + bz2.compress(data) + bz2.compress(b"")
    else:
        print("skipped part: built without libbz2")
    if "xz" in READS:
        yield "blocks.tar.xz", run("xz", "-c", "-0", "-T2", "--block-size=300KiB", input=data).stdout
        yield "streams.tar.xz", bytes(8).join(lzma.compress(p) for p in pieces(data, 700_001)) + bytes(4)
    else:
        print("skipped part: built without liblzma")
    if not shutil.which("zstd"):
        print("skipped part: there is no zstd program")
        return
    parts = pieces(data, 150_000)
    yield "sums.tar.zst", b"".join(zstd(p) for p in parts)
    yield "plain.tar.zst", b"".join(zstd(p, "--no-check") for p in parts)
    yield "skipped.tar.zst", SKIPPED + SKIPPED.join(zstd(p) for p in parts) + SKIPPED
    yield "lying.tar.zst", b"".join(zstd(p) for p in parts) + LYING
    yield "empty.tar.zst", zstd(b"").join(zstd(p) for p in parts)
    if shutil.which("pzstd"):
        yield "pzstd.tar.zst", run("pzstd", "-q", "-c", "-p", "4", input=data).stdout


def listing(archive, **env):
    return run(ONEPOT, "ls", "-lR", archive, env={**os.environ, **env}).stdout


def compare_trees(expected, found, what):
    done = subprocess.run(["diff", "-r", "--no-dereference", expected, found],
                          capture_output=True, check=False)
    check(done.returncode == 0, f"{what}: {done.stdout[:300]!r}")


def check_framed(name, plain_listing):
    about = json.loads(run(ONEPOT, "info", "--json", name).stdout)[0]
    if name.startswith("pzstd") and about["compression"]:
        return  # made one frame of so little
    check(about["compression"] is None and
          about["codec"].split(", ")[0] in ("zstd", "gzip members", "deflate from points",
                                            "bzip2 blocks", "xz blocks"),
          f"{name}: it was unpacked: {about}")
    for remote in ("0", "1"):
        check(listing(name, ONEPOT_ASSUME_REMOTE=remote) == plain_listing,
              f"{name}: its listing is another (remote: {remote})")
        run(ONEPOT, "extract", "-C", "out", name, env={**os.environ, "ONEPOT_ASSUME_REMOTE": remote})
        compare_trees("tree", "out/tree", f"{name} extracted (remote: {remote})")
        shutil.rmtree("out/tree", ignore_errors=True)
    check(os.stat(name).st_size < 40_000_000, name)
    run(ONEPOT, "verify", name)
    run(ONEPOT, "index", name)
    about = json.loads(run(ONEPOT, "info", "--json", name).stdout)[0]
    check("onepot-index" in json.dumps(about), f"{name}: the saved index is not used: {about}")
    check(listing(name) == plain_listing, f"{name}: its listing by the saved index")
    with open("tree/folder/007", "rb") as f:
        check(run(ONEPOT, "cat", name, "tree/folder/007").stdout == f.read(), f"{name}: cat")


def check_damaged(name, data):
    """A byte in the middle or in the first frame, and an end that is missing; with sums all
    are always noticed."""
    half, first = len(data) // 2, 3000
    for what, bad in (("changed", data[:half] + bytes([data[half] ^ 0x55]) + data[half + 1:]),
                      ("begun", data[:first] + bytes([data[first] ^ 0x55]) + data[first + 1:]),
                      ("cut", data[:half])):
        with open("damaged", "wb") as f:
            f.write(bad)
        done = run(ONEPOT, "ls", "-R", "damaged", status=1)
        check(b"damaged" in done.stderr and done.stderr.count(b"\n") == 1,
              f"{name} {what}: {done.stderr!r}")


def check_single(data):
    """One stream without points: as ever."""
    with open("single.tar.xz", "wb") as f:
        f.write(lzma.compress(data))
    about = json.loads(run(ONEPOT, "info", "--json", "single.tar.xz").stdout)[0]
    check(about["compression"] == "xz", f"one block: {about}")
    with open("text.gz", "wb") as f:
        f.write(gzip.compress(b"no tar " * 50_000) + gzip.compress(b"at all " * 50_000))
    check(b"no tar archive in it" in run(ONEPOT, "ls", "text.gz", status=1).stderr, "no tar")


def check_mounted(name):
    if run(ONEPOT, "mount", "--help", status=None).returncode or not os.path.exists("/dev/fuse"):
        print("skipped part: nothing can be mounted")
        return
    at = run(ONEPOT, "mount", name).stdout.decode().strip()
    try:
        compare_trees("tree", f"{at}/tree", f"{name} mounted")
    finally:
        run(ONEPOT, "umount", at)


def main():
    harness.isolate()
    make_tree("tree")
    os.mkdir("out")
    run("tar", "--sort=name", "-S", "-cf", "plain.tar", "tree")
    with open("plain.tar", "rb") as f:
        data = f.read()
    plain_listing = listing("plain.tar")
    for name, packed in archives(data):
        with open(name, "wb") as f:
            f.write(packed)
        check_framed(name, plain_listing)
        if name in ("bgzf.tar.gz", "one.tar.gz", "long.tar.gz", "sums.tar.zst", "one.tar.bz2",
                    "blocks.tar.xz"):
            check_damaged(name, packed)
            check_mounted(name)
    check_single(data)


sys.excepthook = lambda *a: (print("\n".join(failed)), sys.__excepthook__(*a))

with tempfile.TemporaryDirectory(prefix="onepot-frames-", dir=os.environ.get("ONEPOT_TESTS_MEMORY")) as folder:
    os.chdir(folder)
    for variable, path in (("XDG_CACHE_HOME", "cache"), ("ONEPOT_RUNTIME_DIR", "run")):
        os.environ[variable] = os.path.join(folder, path)
        os.mkdir(path, 0o700)
    main()
    os.chdir("/")
for line in failed:
    print("FAILED:", line)
print("frames are read at random" if not failed else f"{len(failed)} failed")
sys.exit(1 if failed else 0)

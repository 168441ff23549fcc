"""mount --verify on storage that returns wrong bytes for a while, without an error: the bytes
that were summed are the bytes that are served, and wrong ones are kept nowhere.
slowfs is the storage, and flips bits on a signal."""

import contextlib
import mmap
import os
import zipfile
from errno import EIO

import life
import harness
import tree
from faults import read
from harness import check, check_equal, environment, wait_for
from slow import Slow

FILES = 40


def contents(number, size):
    return tree.content(size, number)


def make_source(work, size, pack):
    """`size` is a multiple of 4 KiB, so that each file has a bit to flip."""
    source, files = work.make("source"), work.make("files")
    for i in range(FILES):
        tree.write(os.path.join(files, f"{i:03d}"), contents(i, size))
    if pack == "zip":
        with zipfile.ZipFile(os.path.join(source, "data"), "w") as archive:
            for i in range(FILES):
                archive.write(os.path.join(files, f"{i:03d}"), f"{i:03d}", i % 2 * zipfile.ZIP_DEFLATED)
    else:
        harness.onepot("pack", "-q", *pack, "-o", os.path.join(source, "data"), files)
    return source


@contextlib.contextmanager
def served(work, size, pack, *mount_options):
    source = make_source(work, size, pack)
    with Slow(work, "--toggle=flip", source) as slow:
        with work.mount(slow / "data", "--verify", *mount_options, env=environment()) as mount:
            os.listdir(mount.path)
            life.forget(slow / "data")
            yield mount, slow
    for name in os.listdir(work.path):
        if name in ("source", "files", "stage"):
            harness.shutil.rmtree(work / name)


def check_not_wrong(mount, number, size, what):
    """Right, or an error. True: right."""
    found = read(mount / f"{number:03d}")
    check(found in (EIO, contents(number, size)),
          f"{what}: file {number} is {harness.shorten(found, 50)}")
    return found != EIO


def check_all_come_right(mount, size, what):
    """What was wrong is refused for some seconds, and then read from storage again."""
    for i in range(FILES):
        wait_for(lambda i=i: check_not_wrong(mount, i, size, f"{what}, later"),
                 f"{what}: file {i}", seconds=30)


def flip_while_reading(work, size, pack, *options):
    what = f"files of {size}, {pack} {options}"
    with served(work, size, pack, *options) as (mount, slow):
        slow.toggle()
        right = [check_not_wrong(mount, i, size, f"{what}, flipping") for i in range(8)]
        slow.toggle()
        for i in range(FILES):
            check_not_wrong(mount, i, size, f"{what}, afterwards")
        check_all_come_right(mount, size, what)
        return right


SMALL, MIDDLE, LARGE = 20 << 10, 200 << 10, 1200 << 10


def test_bits_that_flip_for_a_moment_reach_nobody(work):
    for size in (SMALL, MIDDLE, LARGE):
        check_equal(any(flip_while_reading(work, size, ())), False, "files that were right")


def test_nor_from_a_cache_that_holds_less_than_a_file(work):
    for cache in ("0", "512K"):
        flip_while_reading(work, LARGE, (), "--cache", cache)


def test_nor_from_compressed_blocks_and_those_that_files_share(work):
    for size in (SMALL, LARGE):
        flip_while_reading(work, size, ("--zstd",))


def test_nor_from_a_zip(work):
    for size in (SMALL, MIDDLE):
        flip_while_reading(work, size, "zip")


def test_a_copy_that_is_whole_and_wrong_is_mended(work):
    source = make_source(work, MIDDLE, ())
    with Slow(work, "--toggle=flip", "--hold", source) as slow:  # but for what opening reads
        with work.mount(slow / "data", "--verify", f"--stage={work.make('stage')}",
                        env=environment()) as mount:
            def staged():
                return mount.stat()["stage"]
            wait_for(lambda: staged()["here_bytes"] == staged()["bytes"], "the whole copy")
            right = [check_not_wrong(mount, i, MIDDLE, "flipping") for i in range(FILES)]
            check(0 < sum(right) < FILES, f"files that are right: {right}")
            slow.toggle()
            check_all_come_right(mount, MIDDLE, "a copy")


def test_a_file_that_was_right_is_compared_each_time(work):
    """Nothing stays cached from its check to a later read."""
    for size in (SMALL, LARGE):
        with served(work, size, (), "--cache", "0", "--readahead", "off") as (mount, slow):
            for i in range(4):
                check(check_not_wrong(mount, i, size, "at first"), f"file {i}")
                life.forget(mount / f"{i:03d}")
            life.forget(slow / "data")
            slow.toggle()
            for i in range(4):
                check_equal(check_not_wrong(mount, i, size, "flipping"), False, f"file {i} is right")
            slow.toggle()
            for i in range(4):
                wait_for(lambda i=i: check_not_wrong(mount, i, size, "later"), f"file {i}")


def page(path, at):
    """Of a mapping: the page, or None for a SIGBUS."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        fd = os.open(path, os.O_RDONLY)
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as m:
            os.write(writing, m[at:at + 4096])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as f:
        found = f.read()
    os.waitpid(child, 0)
    return found or None


def test_mappings_and_parts_of_files_are_compared_too(work):
    with served(work, LARGE, (), "--cache", "4M") as (mount, slow):
        slow.toggle()
        for i in range(4):
            check_equal(page(mount / f"{i:03d}", 300 << 10), None, "a page, flipping")
        slow.toggle()
        for i in range(4):
            at = (70 << 10) * i + 4096
            wait_for(lambda i=i, at=at: page(mount / f"{i:03d}", at) is not None, "a page")
            check(page(mount / f"{i:03d}", at) == contents(i, LARGE)[at:at + 4096], "wrong page")
            with open(mount / f"{i:03d}", "rb", buffering=0) as f:
                for at, n in ((0, 1), (LARGE - 5, 9), (131071, 2), (500_000, 300_000)):
                    check(os.pread(f.fileno(), n, at) == contents(i, LARGE)[at:at + n],
                          f"wrong bytes at {at}")


def test_the_library_does_not_read_past_the_sums(work):
    """Under `run`, each process would read the archive by itself."""
    source = make_source(work, SMALL, ())
    with work.mount(os.path.join(source, "data"), "--verify") as mount:
        read(mount / "000")
        harness.onepot("run", "--verify", os.path.join(source, "data"), "--", "cat", "{}/001")
        check_equal(mount.stat()["direct_files"], 0, "files that it read")


if __name__ == "__main__":
    harness.main(globals())

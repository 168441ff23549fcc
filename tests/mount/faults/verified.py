"""mount --verify: no byte of a file that is not what was packed reaches a reader, however
it reads; all else is served as ever."""

import os
import random
import threading
from errno import EIO

import harness
from harness import check, check_equal, onepot, wait_for

SMALL = 200
LARGE_BYTES = 6 << 20
BAD_SMALL = ("d/017", "d/018")
BAD_LARGE = "large_bad"


def contents(name, size):
    return random.Random(name).randbytes(size)


def make_changed(work):
    """An archive where some files changed after it was packed, and what they should be."""
    source = work.make("source")
    os.mkdir(os.path.join(source, "d"))
    files = {f"d/{i:03d}": contents(str(i), 20_000) for i in range(SMALL)}
    files["large"] = contents("large", LARGE_BYTES)
    files[BAD_LARGE] = contents("bad", LARGE_BYTES)
    files["empty"] = b""
    for name, data in files.items():
        with open(os.path.join(source, name), "wb") as f:
            f.write(data)
    with open(os.path.join(source, "hole"), "wb") as f:
        f.seek(1 << 20)
        f.write(b"behind a hole")
    files["hole"] = bytes(1 << 20) + b"behind a hole"
    archive = work / "data.tar"
    onepot("pack", "-q", "-o", archive, source)
    with open(archive, "r+b") as f:
        whole = f.read()
        for name in (*BAD_SMALL, BAD_LARGE):
            at = whole.index(files[name][:64]) + len(files[name]) - 100
            f.seek(at)
            f.write(bytes([whole[at] ^ 1]))
    return archive, files


def read_error(path, offset=0, size=1 << 30):
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.pread(fd, min(size, 1 << 20), offset)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno
    return 0


def test_wrong_bytes_are_an_error_and_all_else_is_served(work):
    archive, files = make_changed(work)
    with work.mount(archive, "--verify", "--log", work / "log") as m:
        for name, data in files.items():
            if name in BAD_SMALL or name == BAD_LARGE:
                for _ in range(2):
                    check_equal(read_error(m / name), EIO, name)
                wait_for(lambda n=name: n in m.stat()["last_error"], f"the error of {name}")
                continue
            with open(m / name, "rb") as f:
                check(f.read() == data, f"{name} differs")
        with open(work / "log") as f:
            log = f.read()
        for name in (*BAD_SMALL, BAD_LARGE):
            check_equal(log.count(f"{name}: its bytes do not have the sum"), 1, f"{name} in the log")
        check_equal(log.count("do not have the sum"), 3, "complaints")


def test_no_part_of_a_large_file_is_served_before_the_whole_was_read(work):
    archive, files = make_changed(work)
    with work.mount(archive, "--verify") as m:
        # The wrong byte is near its end; nobody comes near it.
        check_equal(read_error(m / BAD_LARGE, 2 << 20, 4096), EIO, "a read before the damage")
        check_equal(read_error(m / BAD_LARGE, 0, 4096), EIO, "a read of the beginning")
    with work.mount(archive) as m:
        check_equal(read_error(m / BAD_LARGE, 2 << 20, 4096), 0, "without --verify")


def test_many_readers_of_one_file_wait_for_one_check(work):
    archive, files = make_changed(work)
    wrong = []

    def reader(path, data, seed):
        rng = random.Random(seed)
        with open(path, "rb", buffering=0) as f:
            for _ in range(20):
                at = rng.randrange(len(data) - 5000)
                if os.pread(f.fileno(), 5000, at) != data[at:at + 5000]:
                    wrong.append((path, at))

    with work.mount(archive, "--verify") as m:
        threads = [threading.Thread(target=reader, args=(m / name, files[name], i))
                   for i in range(6) for name in ("large", f"d/{i:03d}")]
        threads += [threading.Thread(target=read_error, args=(m / BAD_LARGE, i << 19))
                    for i in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check_equal(wrong, [], "what differs")
        check_equal(read_error(m / BAD_LARGE), EIO, "the bad one afterwards")


def test_an_archive_without_sums_is_mounted_with_a_note(work):
    source = work.make("source")
    with open(os.path.join(source, "a"), "wb") as f:
        f.write(b"a")
    harness.run("tar", "-C", source, "-cf", work / "plain.tar", ".")
    with work.mount(work / "plain.tar", "--verify") as m:
        check("--verify compares nothing" in m.notes, m.notes)
        with open(m / "a", "rb") as f:
            check_equal(f.read(), b"a", "a")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

"""How many requests the kernel sends for a known script: the promise of DESIGN, section 6.

Counted by the daemon, read by `onepot stat`, which asks neither mount nor daemon. Files
lie two levels down and are opened relative to their directory: entries of the root are
valid for a second only, by design, so that a path that starts there may cost a LOOKUP.
"""

import errno
import os
import time

import harness
import tree
from tars import member, write_tar
from harness import Counter, Failure, Skip, check, check_equal

COUNT = 50
SIZES = [1, 511, 4096, 4097, 20_000, 65_536, 100_000, 131_071, 131_072]
# What the kernel sends on its own, at times of its own.


def make_tree(work, links=False):
    members = [member("a", directory=True), member("a/b", directory=True),
               member("a/warm", directory=True), member("a/warm/w", b"w")]
    for i in range(COUNT):
        members.append(member(f"a/b/f{i:03d}", tree.content(SIZES[i % len(SIZES)], i)))
    if links:
        members.append(member("a/b/hard", link="a/b/f000"))
        members.append(member("a/b/soft", symlink="f001"))
    archive = work / "requests.tar"
    write_tar(archive, members)
    return archive


def check_free(counter, action, what):
    """Done again, it costs nothing. A kernel may drop what it cached at any time, so one
    round of a few is enough; a mount that is not cached never has one."""
    for _ in range(5):
        action()
        asked = counter.asked()
        if not asked:
            return
    raise Failure(f"{what}: {asked}, each time")


def check_cold(asked, what, **others):
    """One READ for each file; some have two, where the kernel drops a page before its reader has it."""
    reads = asked.get("READ", 0)
    check(COUNT <= reads <= COUNT * 3 // 2, f"{what}: {asked}")
    check_equal({**asked, "READ": COUNT}, {**others, "READ": COUNT}, what)


class Mounted:
    """A mount whose kernel knows already what it need not ask, and a directory of files."""

    def __init__(self, work, archive):
        self.mount = work.mount(archive)

    def __enter__(self):
        self.mount.__enter__()
        # The first of a kind is refused once and for all: OPEN, OPENDIR, FLUSH.
        os.listdir(self.mount / "a/warm")
        read_file(self.mount / "a/warm/w")
        self.fd = os.open(self.mount / "a/b", os.O_RDONLY | os.O_DIRECTORY)
        self.counter = Counter(self.mount)
        return self

    def __exit__(self, *how):
        os.close(self.fd)
        return self.mount.__exit__(*how)


def read_file(path, dir_fd=None):
    """As training code in C would: open, fstat, read to the end, close."""
    fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    left = os.fstat(fd).st_size
    while left:
        piece = os.read(fd, 1 << 20)
        check(piece, f"{path} ends too early")
        left -= len(piece)
    check_equal(os.read(fd, 1 << 20), b"", "at the end")
    os.close(fd)


def read_all(dir_fd):
    for name in names():
        read_file(name, dir_fd)


def names():
    return [f"f{i:03d}" for i in range(COUNT)]


def list_with_stat(fd):
    with os.scandir(fd) as entries:
        return {e.name: e.stat(follow_symlinks=False).st_size for e in entries}


def test_one_request_for_a_listed_file(work):
    with Mounted(work, make_tree(work)) as m:
        sizes = list_with_stat(m.fd)
        check_equal(len(sizes), COUNT, "files listed")
        asked = m.counter.asked()
        check_equal(set(asked), {"READDIRPLUS"}, f"requests of a listing with stat: {asked}")
        check(asked["READDIRPLUS"] < COUNT / 4, f"a listing of {COUNT} files took {asked}")
        read_all(m.fd)
        check_cold(m.counter.asked(), f"requests of {COUNT} cold files, listed")
        check_free(m.counter, lambda: read_all(m.fd), "the same files again")
        check_free(m.counter, lambda: check_equal(list_with_stat(m.fd), sizes, "the listing again"),
                   "the same listing again")


def test_two_requests_for_a_file_not_listed(work):
    with Mounted(work, make_tree(work)) as m:
        read_all(m.fd)
        check_cold(m.counter.asked(), f"requests of {COUNT} cold files", LOOKUP=COUNT)
        check_free(m.counter, lambda: read_all(m.fd), "the same files again")


def test_whole_paths(work):
    with Mounted(work, make_tree(work)) as m:
        start = time.monotonic()
        for name in names():
            read_file(m.mount / f"a/b/{name}")
        asked = m.counter.asked()
        # The entry of "a" is asked for at most once a second.
        allowed = int(time.monotonic() - start) + 1
        extra = asked.pop("LOOKUP", 0) - COUNT
        check(0 <= extra <= allowed, f"{extra} LOOKUPs of the root's entries, {allowed} allowed")
        check_cold(asked, "other requests")
        check_free(m.counter, lambda: [read_file(m.mount / f"a/b/{n}") for n in names()],
                   "the same paths again")


def test_python_open_adds_isatty_alone(work):
    with Mounted(work, make_tree(work)) as m:
        list_with_stat(m.fd)
        m.counter.asked()
        for _ in range(5):
            for name in names():
                with open(os.open(name, os.O_RDONLY, dir_fd=m.fd), "rb") as f:
                    f.read()
            asked = m.counter.asked()
            check_equal(set(asked) - {"READ", "IOCTL"}, set(), f"other requests: {asked}")
            check(asked.get("IOCTL", 0) <= COUNT, f"more than one IOCTL a file: {asked}")
            if "READ" not in asked:
                return
        raise Failure(f"what was read is read again, each time: {asked}")


def test_absent_names_are_remembered(work):
    with Mounted(work, make_tree(work)) as m:
        absent = [f"none-{i}" for i in range(COUNT)]

        def look():
            for name in absent:
                try:
                    os.stat(name, dir_fd=m.fd)
                except FileNotFoundError:
                    continue
                raise Failure(f"{name} exists")

        look()
        check_equal(m.counter.asked(), {"LOOKUP": COUNT}, "requests for names that do not exist")
        check_free(m.counter, look, "the same names again")


def test_links(work):
    if tuple(int(n) for n in os.uname().release.split(".")[:2]) < (4, 20):
        raise Skip("this kernel does not keep what links lead to (FUSE_CACHE_SYMLINKS, Linux 4.20)")
    with Mounted(work, make_tree(work, links=True)) as m:
        read_file("f000", m.fd)
        m.counter.asked()
        os.stat("hard", dir_fd=m.fd)
        check_equal(m.counter.asked(), {"LOOKUP": 1}, "requests for another name of a file")
        check_free(m.counter, lambda: (read_file("f000", m.fd), read_file("hard", m.fd)),
                   "both names of a file")
        os.readlink("soft", dir_fd=m.fd)
        check_equal(m.counter.asked(), {"LOOKUP": 1, "READLINK": 1}, "requests of a readlink")
        check_free(m.counter, lambda: os.readlink("soft", dir_fd=m.fd), "the same link again")


def test_what_an_archive_has_not(work):
    with Mounted(work, make_tree(work)) as m:
        list_with_stat(m.fd)
        fds = [os.open(name, os.O_RDONLY, dir_fd=m.fd) for name in names()]
        m.counter.asked()
        for call, request, wanted in (
                (lambda fd: os.getxattr(fd, "user.x"), "GETXATTR", errno.EOPNOTSUPP),
                (os.listxattr, "LISTXATTR", errno.EOPNOTSUPP),
                (lambda fd: os.lseek(fd, 0, os.SEEK_HOLE), "LSEEK", None)):
            for fd in fds:
                try:
                    call(fd)
                except OSError as error:
                    check_equal(error.errno, wanted, f"errno of {request}")
            check_equal(m.counter.asked(), {request: 1}, "requests for what there is none of")
        for fd in fds:
            os.close(fd)


def test_no_request_of_another_process(work):
    with Mounted(work, make_tree(work)) as m:
        list_with_stat(m.fd)
        read_all(m.fd)
        m.counter.asked()
        check_free(m.counter, lambda: in_another_process(lambda: read_all(m.fd)),
                   "a process that reads what is cached")


def in_another_process(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    check_equal(os.waitpid(pid, 0)[1], 0, "status of the other process")


def test_large_files_in_large_requests(work):
    size = 8 << 20
    archive = work / "large.tar"
    write_tar(archive, [member("a", directory=True), member("a/b", directory=True),
                        member("a/warm", directory=True), member("a/warm/w", b"w"),
                        member("a/b/large", tree.content(size, 1))])
    with Mounted(work, archive) as m:
        list_with_stat(m.fd)
        m.counter.asked()
        read_file("large", m.fd)
        asked = m.counter.asked()
        check_equal(set(asked), {"READ"}, "requests of a large file")
        check(asked["READ"] <= size // 131_072 + 4, f"READs of {size} bytes: {asked['READ']}")


def test_other_formats_ask_no_more(work):
    source = work.make("source")
    os.makedirs(os.path.join(source, "a/b"))
    os.mkdir(os.path.join(source, "a/warm"))
    tree.write(os.path.join(source, "a/warm/w"), b"w")
    for i, name in enumerate(names()):
        tree.write(os.path.join(source, "a/b", name), tree.content(SIZES[i % len(SIZES)], i))
    made = []
    if harness.onepot("pack", "--help", status=None).returncode == 0:
        harness.onepot("pack", "-o", work / "requests.onepot", source)
        made.append(work / "requests.onepot")
    if harness.shutil.which("mksquashfs"):
        harness.run("mksquashfs", source, work / "requests.squashfs", "-noappend", "-quiet",
                    "-no-progress")
        made.append(work / "requests.squashfs")
    if not made:
        raise Skip("neither onepot pack nor mksquashfs is there")
    for archive in made:
        with Mounted(work, archive) as m:
            list_with_stat(m.fd)
            check_equal(set(m.counter.asked()), {"READDIRPLUS"}, f"{archive}: listing")
            read_all(m.fd)
            check_cold(m.counter.asked(), f"{archive}: requests of the files")
            check_free(m.counter, lambda: read_all(m.fd), f"{archive}: the files again")


if __name__ == "__main__":
    harness.main(globals())

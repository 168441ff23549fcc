"""onepot stat: each field is explained in its manual page; the file in the mount says the same,
also where nothing but the mount is seen; and reads are counted by where their bytes came from."""

import json
import os
import re
import subprocess
import sys

import harness
from tars import write_folder
from harness import check, check_equal, environment, need_program, onepot, run, wait_for

FILES, BYTES = 40, 5000
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../man/onepot-stat.1")


def make_folder(work):
    return write_folder(work / "data.tar", ((f"{i:02d}", bytes([i]) * BYTES) for i in range(FILES)))


def distant():
    return environment(ONEPOT_ASSUME_REMOTE="1")


def read_file(mount, number):
    """The kernel forgets it then, so that the next read is one of the daemon's, too."""
    fd = os.open(mount / f"d/{number:02d}", os.O_RDONLY)
    try:
        check_equal(os.read(fd, 2 * BYTES), bytes([number]) * BYTES, f"file {number}")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def names_in_the_page():
    """What it sets in italics behind "What it has", and the tags there that are fields."""
    with open(PAGE, encoding="utf-8") as f:
        text = f.read()
    text = text[text.index("The fields:"):text.index(".SH EXIT STATUS")]
    names = set()
    for line in text.splitlines():
        if not line.startswith((".I ", ".IR ")):
            continue
        words = re.sub(r'"[^"]*"', " ", line.split(" ", 1)[1]).replace("\\fR", " ")
        names |= set(re.findall(r"[a-z_]+", words))
    return names


def names_in(value, inside=""):
    """All keys of an object, but for the names of requests."""
    if isinstance(value, list):
        return set().union(*(names_in(v, inside) for v in value)) if value else set()
    if not isinstance(value, dict) or inside == "requests":
        return set()
    return set(value).union(*(names_in(v, k) for k, v in value.items()))


def test_a_mount_is_found_by_each_name_of_its_mount_point(work):
    with work.mount(make_folder(work)) as mount:
        os.symlink(mount.path, work / "link")
        for name, folder in (("link", work.path), ("./link/", work.path), (".", mount.path), ("..", mount / "d")):
            shown = json.loads(onepot("stat", "--json", name, cwd=folder).stdout)
            check_equal(shown["mountpoint"], os.path.realpath(mount.path), f"{name} in {folder}")


def test_the_page_names_each_field_and_no_other(work):
    archive = make_folder(work)
    with open(work / "order", "w", encoding="ascii") as f:
        f.writelines(f"d/{i:02d}\n" for i in range(FILES))
    found = set()
    for options in (("--order", work / "order"), ("--stage",)):
        with work.mount(*options, archive, env=distant()) as mount:
            read_file(mount, 0)
            if options[0] == "--order":
                wait_for(lambda m=mount: m.stat()["foreseen"]["order"], "the order")
            found |= names_in(mount.stat())
    files = onepot("mount", "--extract", archive).stdout.decode().strip()
    found |= names_in(json.loads(onepot("stat", "--json", files).stdout))
    onepot("umount", files)
    page = names_in_the_page()
    check_equal(sorted(found - page), [], "fields that onepot-stat(1) does not name")
    check_equal(sorted(page - found), [], "fields that onepot-stat(1) names and are not there")


def settled(numbers):
    """Without what changes by itself."""
    return {k: v for k, v in numbers.items() if k not in ("uptime_seconds", "last_request_ns_ago")}


def settled_lines(text):
    return [line for line in text.splitlines()
            if not line.startswith(("  daemon ", "  read ", "  last request "))]


def test_the_file_in_the_mount_says_what_the_command_says(work):
    with work.mount(make_folder(work), env=distant()) as mount:
        for i in range(FILES):
            read_file(mount, i)
        # Who reads is a moment ahead of the counts, which may move between two looks.
        wait_for(lambda: settled(mount.stat()) == settled(json.loads(inside(mount, "stat.json"))),
                 "the same in numbers")
        wait_for(lambda: settled_lines(onepot("stat", mount.path).stdout.decode()) ==
                 settled_lines(inside(mount, "stat")), "the same lines")


RANK = """
import os, subprocess, sys, time
top, rank, world, meeting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
open(f"{meeting}/{rank}", "w").close()
while len(os.listdir(meeting)) < world:  # so that all of them share one mount
    time.sleep(0.01)
mine = sorted(os.listdir(f"{top}/d"))[rank::world]

def read(name, *pieces):
    fd = os.open(f"{top}/d/{name}", os.O_RDONLY)
    for at, size in pieces:
        os.pread(fd, size, at) if at else os.read(fd, size)
    os.close(fd)

for name in mine[::3]:
    read(name, (0, 10), (0, 10000))
    read(name, (0, 10000))  # a file counts once
pid = os.fork()
if pid == 0:  # reads whatever it likes to, and is killed
    for name in mine[1::3]:
        read(name, (2000, 100), (0, 10000))
    os.kill(os.getpid(), 9)
os.waitpid(pid, 0)
subprocess.run(["cat"] + [f"{top}/d/{name}" for name in mine[2::3]], stdout=subprocess.DEVNULL, check=True)
"""


def test_each_file_counts_once_whoever_reads_it(work):
    """Four ranks share a mount; each has a part of the files, and processes that are killed."""
    archive = make_folder(work)
    for mode in "on", "off":
        for world in 1, 4:
            meeting = work.make(f"{mode}{world}")
            env = environment(SLURM_JOB_ID="1", SLURM_STEP_ID=str(world))
            ranks = [subprocess.Popen(
                [harness.onepot_program(), "run", f"--intercept={mode}", archive, "--", sys.executable,
                 "-c", RANK, "{}", str(rank), str(world), meeting],
                env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) for rank in range(world)]
            said = b"".join(rank.communicate()[1] for rank in ranks)
            check_equal([rank.returncode for rank in ranks], [0] * world, f"statuses, with {said!r}")
            check_equal(re.findall(rb"([\d,]+) files?, ", said), [b"%d" % FILES], f"{mode}, {world}: files in {said!r}")


def inside(mount, name):
    with open(mount / f".onepot/{name}", encoding="utf-8") as f:
        return f.read()


def test_it_can_be_read_where_only_the_mount_is_seen(work):
    """As in a container: another view of processes and of all that the host keeps."""
    harness.need_root("make namespaces")
    need_program("unshare")
    with work.mount(make_folder(work), env=environment()) as mount:
        read_file(mount, 3)
        wait_for(lambda: mount.stat()["read_files"] >= 1, "the read to be counted")
        files, pid = (mount.stat()[k] for k in ("read_files", "daemon_pid"))
        script = ('mount -t tmpfs none "$1" && mount -t tmpfs none /dev/shm && '
                  'mount -t proc none /proc && [ ! -e /proc/$3/stat ] && ! "$4" stat "$2" && '
                  'cat "$2/.onepot/stat.json" && head -1 "$2/.onepot/stat"')
        done = run("unshare", "--mount", "--pid", "--fork", "--propagation", "private", "sh", "-c",
                   script, "sh", work / ".home", mount.path, str(pid), harness.onepot_program())
        said, last = done.stdout.decode().rsplit("\n", 2)[:2]
        check_equal(json.loads(said)["read_files"], files, "files")
        check_equal(last, mount.path + ":", "the first line of the text")


def reads_from(mount, count):
    """Where the answers to so many READs came from; who reads may be a moment ahead of them."""
    looks = []

    def counted():
        looks.append(mount.stat())
        by_origin = sum(looks[-1]["reads_from"].values())
        return by_origin >= count and by_origin == looks[-1]["requests"].get("READ", 0)

    wait_for(counted, f"{count} READs to be counted, all of them by origin")
    return {k: v for k, v in looks[-1]["reads_from"].items() if v}


def test_reads_of_an_archive_on_this_node_come_from_the_page_cache(work):
    with work.mount(make_folder(work), "--readahead", "off", env=environment()) as mount:
        for i in range(10):
            read_file(mount, i)
        found = reads_from(mount, 10)
        # The kernel may drop a page of the archive at any time, or one of the mount, and ask again.
        check(set(found) <= {"page_cache", "storage"}, f"{found}")
        check(found.get("page_cache", 0) > 0, f"{found}")


def test_reads_of_a_distant_archive_come_from_storage_and_then_from_the_cache(work):
    with work.mount(make_folder(work), "--readahead", "off", env=distant()) as mount:
        for _ in range(3):
            for i in range(10):
                read_file(mount, i)
        found = reads_from(mount, 30)
        # The kernel may drop a page before its reader has it, and asks again.
        cached = found.get("block_cache", 0)
        check_equal((found, cached >= 20), ({"storage": 10, "block_cache": cached}, True), "origins")
        text = onepot("stat", mount.path).stdout.decode()
        check(f"reads from   the block cache {cached}, storage 10\n" in text, text)
        note = onepot("umount", mount.path).stderr.decode()
        mount.mounted = False
        # The rest is in `stat`.
        check(re.fullmatch(r"onepot: \S+: \d+ files, [^;]+ read in [^;]+/s\); readers waited [^;]+; \d+ requests to storage\n",
                           note), note)


def test_the_closing_line_says_that_a_mount_was_only_listed(work):
    with work.mount(make_folder(work)) as mount:
        os.listdir(mount / "d")
        note = onepot("umount", mount.path).stderr.decode()
        mount.mounted = False
        check(note.endswith(": nothing was read, only listed\n"), note)


def test_what_was_read_ahead_is_told_from_what_was_read_before(work):
    with open(work / "order", "w", encoding="ascii") as f:
        f.writelines(f"d/{i:02d}\n" for i in range(FILES))
    with work.mount(make_folder(work), "--order", work / "order", env=distant()) as mount:
        wait_for(lambda: mount.stat()["prefetched"] >= FILES, "all to be read ahead")
        for i in range(FILES):
            read_file(mount, i)
        found = reads_from(mount, FILES)
        check(found.get("prefetched", 0) >= FILES // 2, f"of the first use: {found}")
        for i in range(FILES):
            read_file(mount, i)
        again = reads_from(mount, 2 * FILES)
        check(again.get("block_cache", 0) >= FILES // 2, f"and then: {again}")


def test_reads_of_a_staged_archive_come_from_the_copy(work):
    with work.mount(make_folder(work), "--stage", "--readahead", "off", env=distant()) as mount:
        wait_for(lambda: mount.stat()["stage"]["here_bytes"] == mount.stat()["stage"]["bytes"],
                 "the copy")
        for i in range(10):
            read_file(mount, i)
        check_equal(set(reads_from(mount, 10)), {"staged"}, "origins")


def test_holes_come_from_nothing(work):
    need_program("tar")
    with open(work / "sparse", "wb") as f:
        f.truncate(1 << 20)
        f.seek(1 << 20)
        f.write(b"end")
    run("tar", "-C", work.path, "-cSf", work / "sparse.tar", "sparse")
    with work.mount(work / "sparse.tar", "--readahead", "off", env=environment()) as mount:
        fd = os.open(mount / "sparse", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        check_equal(os.pread(fd, 4096, 0), bytes(4096), "the hole")
        os.close(fd)
        check_equal(set(reads_from(mount, 1)), {"nothing"}, "origins")


if __name__ == "__main__":
    harness.main(globals())

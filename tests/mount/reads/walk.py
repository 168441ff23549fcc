"""Listing ahead: who walks through a tree finds the next directories listed, by a process of the
daemon's own, and who opens files by their names alone finds the names around them; others are left
alone. A program that is still starting finds all names. What is shown is the same in any case."""

import itertools
import os
import random
import signal
import stat as modes
import subprocess
import time

import harness
import life
from tars import member, write_tar
from harness import Skip, check, check_equal
from populate import fetchers_of, settled

FOLDERS = 120
FILES = 60  # of each


def folder_of(number):
    """Some lie beside others, some in them."""
    return f"top/{number:03d}" if number % 3 else f"top/{number:03d}/in"


def make_tree(work):
    members = [member("top", directory=True)]
    for i in range(FOLDERS):
        if i % 3 == 0:
            members.append(member(f"top/{i:03d}", directory=True))
        members.append(member(folder_of(i), directory=True))
        members += [member(f"{folder_of(i)}/{k:04d}", b"x" * (k % 7)) for k in range(FILES)]
    write_tar(work / "tree.tar", members)
    return work / "tree.tar"


def mount_tree(work, *options):
    """Without such a bound all of the tree would be listed before anybody asks."""
    return work.mount(make_tree(work), *(options or ["--readahead", "1T"]))


def walk(folder, rest=lambda: None):
    """Every entry with its size, as find -size comes by it."""
    found = {}
    for path, folders, files in os.walk(folder):
        rest()
        for name in folders + files:
            st = os.stat(os.path.join(path, name), follow_symlinks=False)
            found[os.path.relpath(os.path.join(path, name), folder)] = (
                None if modes.S_ISDIR(st.st_mode) else st.st_size)
    return found


def until_helped(mount):
    """Rests now and then until the fetcher has come, which is late where others use the machine."""
    directories = itertools.count()

    def rest():
        if next(directories) % 8 == 7 and mount.stat()["ahead_requests"] <= 40:
            time.sleep(0.1)
    return rest


def expected():
    found = {"top": None}
    for i in range(FOLDERS):
        found[f"top/{i:03d}"] = None
        found[folder_of(i)] = None
        found |= {f"{folder_of(i)}/{k:04d}": k % 7 for k in range(FILES)}
    return found


def need_two_cpus(mount):
    if mount.stat()["threads"] < 2:
        raise Skip("one CPU: nothing would be gained")


def test_a_walk_is_listed_ahead_and_right(work):
    with mount_tree(work) as mount:
        check_equal(walk(mount.path, until_helped(mount)), expected(), "what the walk found")
        need_two_cpus(mount)
        stat = settled(mount)
        check(stat["ahead_requests"] > 20, f"{stat['ahead_requests']} requests of its own")
        listings = stat["requests"]["READDIRPLUS"]
        folders = 1 + list(expected().values()).count(None)
        check(listings < 2 * folders - 20, f"{listings} requests for {folders} directories")
        check_equal(walk(mount.path), expected(), "what a second walk found")


def test_other_orders_are_left_alone(work):
    """Whoever jumps about: at most a few directories are listed in vain."""
    numbers = list(range(FOLDERS))
    random.Random(3).shuffle(numbers)
    with mount_tree(work) as mount:
        for i in numbers:
            check_equal(len(os.listdir(mount / folder_of(i))), FILES, "entries")
        check(settled(mount)["ahead_requests"] < 2 * FOLDERS, "listings in vain")


def names_in_any_order():
    names = [name for name, size in expected().items() if size is not None]
    random.Random(5).shuffle(names)
    return names


def test_names_around_the_ones_that_are_looked_up_are_listed(work):
    with mount_tree(work) as mount:
        rest, sizes = until_helped(mount), expected()
        for name in names_in_any_order():
            rest()
            check_equal(os.stat(mount / name).st_size, sizes[name], name)
        stat = settled(mount)
        check(stat["ahead_requests"] > 20, f"{stat['ahead_requests']} requests of its own")
        looked_up = stat["requests"]["LOOKUP"]
        check(looked_up < FOLDERS * FILES / 2, f"{looked_up} look-ups of {FOLDERS * FILES} files")


def test_who_opens_few_files_pays_nothing(work):
    with mount_tree(work) as mount:
        for name in names_in_any_order()[:15]:
            os.stat(mount / name)
        check_equal(settled(mount)["ahead_requests"], 0, "requests of its own")


def test_all_names_are_listed_while_a_program_starts(work):
    with work.mount(make_tree(work)) as mount:
        need_two_cpus(mount)
        harness.wait_for(lambda: mount.stat()["ahead_requests"] > FOLDERS, "the names of all folders")
        settled(mount)
        counter = harness.Counter(mount)
        sizes = expected()
        for name in names_in_any_order():
            check_equal(os.stat(mount / name).st_size, sizes[name], name)
        asked = counter.asked()
        check(asked.get("LOOKUP", 0) < FOLDERS, f"{asked} for {FOLDERS * FILES} files")


def test_an_unmount_while_a_program_starts_ends_it(work):
    archive = make_tree(work)
    for listed in (0, 10, 40):
        with work.mount(archive) as mount:
            need_two_cpus(mount)
            harness.wait_for(lambda: mount.stat()["ahead_requests"] >= listed, "names")
            daemon = mount.stat()["daemon_pid"]
            harness.onepot("umount", mount.path)
            mount.mounted = False
            life.wait_gone(daemon)


def test_all_names_are_left_alone_where_they_would_take_the_budget(work):
    """8 MB have room for 950 names with attributes: those are for who asks."""
    with work.mount(make_tree(work), "--cache", "8M") as mount:
        settled(mount)
        counter = harness.Counter(mount)
        names = os.listdir(mount / folder_of(FOLDERS - 1))
        check_equal(len([os.stat(mount / f"{folder_of(FOLDERS - 1)}/{name}") for name in names]), FILES, "files")
        asked = counter.asked()
        check(asked.get("LOOKUP", 0) < 10, f"{asked}: names come without attributes")


def test_off_is_off(work):
    with mount_tree(work, "--readahead", "off") as mount:
        check_equal(walk(mount.path), expected(), "what the walk found")
        for name in names_in_any_order():
            os.stat(mount / name)
        check_equal(mount.stat()["ahead_requests"], 0, "requests of its own")


def test_where_attributes_are_not_told_it_ends(work):
    """A budget of a megabyte has no room for them: names alone are not worth a walk."""
    with mount_tree(work, "--cache", "1M") as mount:
        check_equal(walk(mount.path), expected(), "what the walk found")
        check(settled(mount)["ahead_requests"] < FOLDERS, "listings in vain")


def test_below_a_subdirectory(work):
    with mount_tree(work, "--readahead", "1T", "--subdir", "top") as mount:
        top = {name[4:]: size for name, size in expected().items() if name != "top"}
        check_equal(walk(mount.path, until_helped(mount)), top, "what the walk found")
        need_two_cpus(mount)
        check(settled(mount)["ahead_requests"] > 20, "requests of its own")


def test_below_a_subdirectory_with_a_long_path(work):
    """With the path of the mount before it no process can name what lies there."""
    folders = [chr(97 + i) * 250 for i in range(16)]
    members = [member("/".join(folders[:i + 1]), directory=True) for i in range(16)]
    write_tar(work / "deep.tar", [*members, member("/".join([*folders, "file"]), b"x")])
    with work.mount(work / "deep.tar", "--subdir", "/".join(folders)) as mount:
        check_equal(os.listdir(mount.path), ["file"], "names")


def test_an_unmount_in_the_middle_succeeds(work):
    for count in (6, 9, 20):
        with mount_tree(work) as mount:
            for i in range(count):
                os.listdir(mount / folder_of(i))
            harness.run("umount" if os.geteuid() == 0 else "fusermount3",
                        *([] if os.geteuid() == 0 else ["-u"]), mount.path)
            mount.mounted = False


def test_a_killed_daemon_takes_it_along(work):
    for count in (6, 12, 40):
        with mount_tree(work) as mount:
            daemon = mount.stat()["daemon_pid"]
            for i in range(count):
                os.listdir(mount / folder_of(i))
            fetchers = fetchers_of(mount.stat()["daemon_pid"])
            os.kill(daemon, signal.SIGKILL)
            for pid in [*fetchers, daemon]:
                life.wait_gone(pid)
            mount.mounted = False
            harness.onepot("umount", mount.path)


def test_several_walks_at_once(work):
    with mount_tree(work) as mount:
        walks = [subprocess.Popen(["find", mount.path, "-size", "-100", "-type", "f"],
                                  stdout=subprocess.PIPE) for _ in range(3)]
        for one in walks:
            check_equal(one.communicate()[0].count(b"\n"), FOLDERS * FILES, "files found")


if __name__ == "__main__":
    harness.main(globals())

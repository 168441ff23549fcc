"""What a mount tells of itself: .onepot/stat is found by name, is always new, and is met by
nobody who lists or copies the mount."""

import json
import os
import shutil

import harness
from tars import member, write_tar
from harness import check, check_equal, environment, need_program, run, wait_for

FILES = 8


def make_folder(work, *more):
    write_tar(work / "data.tar", [member("d", directory=True)] +
              [member(f"d/{i}", b"x" * 1000) for i in range(FILES)] + list(more))
    return work / "data.tar"


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def numbers(mount):
    return json.loads(text_of(mount / ".onepot/stat.json"))


def test_it_is_what_stat_prints_and_always_new(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        text = text_of(mount / ".onepot/stat")
        shown = harness.onepot("stat", mount.path).stdout.decode()
        labels = [line.split()[0] for line in text.splitlines()[:3]]
        check_equal(labels, [line.split()[0] for line in shown.splitlines()[:3]], "first lines")
        check("0 files" in text and "serving" in text, f"before anything was read: {text}")
        for i in range(3):
            text_of(mount / f"d/{i}")
            wait_for(lambda n=i + 1: numbers(mount)["read_files"] >= n, "the read to be counted")
            # More, where the kernel drops a page too soon; and one may be counted between two looks.
            wait_for(lambda: f"{numbers(mount)['read_files']} files" in text_of(mount / ".onepot/stat"),
                     "stat to move")
        check_equal(os.stat(mount / ".onepot/stat").st_size > 200, True, "its size")


def test_it_is_not_counted(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        text_of(mount / "d/0")
        wait_for(lambda: mount.stat()["read_files"] >= 1, "the read to be counted")
        before = mount.stat()
        for _ in range(100):  # more than are kept
            text_of(mount / ".onepot/stat")
        after = mount.stat()
        check_equal([after[k] for k in ("read_files", "read_bytes", "errors")],
                    [before[k] for k in ("read_files", "read_bytes", "errors")], "counts")


def test_nobody_meets_it(work):
    need_program("find", "tar", "cp")
    with work.mount(make_folder(work), env=environment()) as mount:
        text_of(mount / ".onepot/stat")  # the kernel knows the name now
        check_equal(os.listdir(mount.path), ["d"], "names")
        check_equal(run("ls", "-a", mount.path).stdout.split(), [b".", b"..", b"d"], "ls -a")
        found = run("find", mount.path).stdout.decode()
        check(".onepot" not in found, f"find meets it: {found}")
        run("cp", "-r", mount.path, work / "copy")
        check_equal(os.listdir(work / "copy"), ["d"], "a copy")
        listed = run("tar", "-C", mount.path, "-cf", "-", ".").stdout
        check(b".onepot" not in listed, "tar meets it")


def test_it_can_be_copied_and_listed_by_name(work):
    need_program("cp", "ls")
    with work.mount(make_folder(work), env=environment()) as mount:
        check_equal(sorted(os.listdir(mount / ".onepot")), ["stat", "stat.json"], "its folder")
        run("ls", "-la", mount / ".onepot")
        run("cp", mount / ".onepot/stat", work / "kept")
        check(mount.path in text_of(work / "kept"), "the copy is something else")
        shutil.copytree(mount / ".onepot", work / "folder")
        check_equal(json.loads(text_of(work / "folder/stat.json"))["state"], "serving", "state")
        for path in (".onepot/none", "d/.onepot", ".onepot/stat/x", ".onepot2"):
            check(not os.path.exists(mount / path), f"{path} is there")
        for attempt in (lambda: open(mount / ".onepot/stat", "w"),
                        lambda: os.unlink(mount / ".onepot/stat")):
            try:
                attempt()
            except OSError:
                continue
            raise harness.Failure("it could be changed")


def test_the_archives_own_entry_comes_first(work):
    archive = make_folder(work, member(".onepot", directory=True), member(".onepot/stat", b"mine"))
    with work.mount(archive, env=environment()) as mount:
        check_equal(text_of(mount / ".onepot/stat"), "mine", "the archive's file")
        check_equal(sorted(os.listdir(mount.path)), [".onepot", "d"], "names")


def test_subdir_and_attributes(work):
    with work.mount(make_folder(work), "--subdir", "d", "--uid", "7", "--gid", "8",
                    env=environment()) as mount:
        st = os.stat(mount / ".onepot/stat")
        check_equal((st.st_uid, st.st_gid, st.st_mode & 0o7777), (7, 8, 0o444), "attributes")
        again = os.stat(mount / ".onepot/stat")
        check_equal(again.st_ino, st.st_ino, "inode number")
        try:
            check_equal(os.listxattr(mount / ".onepot/stat"), [], "extended attributes")
        except OSError as error:
            check(error.errno == 95, f"listxattr: {error}")


if __name__ == "__main__":
    harness.main(globals())

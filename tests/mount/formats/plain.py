"""A folder of files shown as it is (--plain): no archive, no index beside it, and only the bytes that were listed."""

import json
import os
import random
import resource
import shutil
import socket
import struct
import subprocess
import tarfile
import threading

import harness
import tree
from harness import check, check_equal, onepot, run, wait_for
from slow import Slow

LARGE = 3 << 20


def content(name, count):
    return random.Random(name).randbytes(count)


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)


def read(path):
    """The bytes, or the error's number."""
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError as error:
        return error.errno


def make_folder(work):
    """Large and small files, in two folders, and an archive among them."""
    folder = work.make("model")
    os.mkdir(os.path.join(folder, "sub"))
    for name, count in {"a": LARGE, "b": LARGE + 12345, "c": 100, "sub/d": 70_000, "sub/empty": 0}.items():
        write(os.path.join(folder, name), content(name, count))
    with tarfile.open(os.path.join(folder, "shard-0.tar"), "w") as tar:
        tar.add(os.path.join(folder, "c"), "c")
    return folder


def remote(**more):
    """Local storage counts as distant: the mount keeps blocks of its own."""
    return harness.environment(ONEPOT_ASSUME_REMOTE="1", **more)


def test_a_folder_is_shown_as_it_is(work):
    folder = make_folder(work)
    os.symlink("../a", os.path.join(folder, "sub/link"))
    os.mkfifo(os.path.join(folder, "fifo"), 0o640)
    os.mkdir(os.path.join(folder, "none"), 0o750)
    write(os.fsencode(folder) + b"/\xff\n\x01 name", b"x")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.join(folder, "socket"))
    before = tree.snapshot(folder)
    for env in harness.environment(), remote():
        with work.mount("--plain", folder + "//", env=env) as mount:
            tree.compare(tree.snapshot(mount.path), before, "plain")
            check_equal(mount.notes, "", "what mount says")
            check_equal(mount.stat()["format"], "folder", "format")
    check_equal(tree.snapshot(folder), before, "the folder afterwards")


def test_a_folder_without_bytes(work):
    folder = work.make("folder")
    done = onepot("run", "--plain", folder, "--", "ls", "-A", "{}")
    check_equal(done.stdout, b"", "an empty folder")
    write(os.path.join(folder, "empty"), b"")
    for stage in [], ["--stage"]:
        done = onepot("run", *stage, "--plain", folder, "--", "ls", "{}", env=remote())
        check_equal(done.stdout, b"empty\n", "an empty file")


def test_what_is_no_folder_or_more_than_one(work):
    folder = make_folder(work)
    said = onepot("run", "--plain", os.path.join(folder, "a"), "--", "true", status=125).stderr
    check(b"is not a folder; leave out --plain" in said, said)
    said = onepot("run", folder, "--", "true", status=125).stderr
    check(b"/a: is not an archive of a known format; --plain shows the files of a folder as they are" in said, said)
    said = onepot("run", "--plain", work / "nowhere", "--", "true", status=125).stderr
    check(b"no such file" in said, said)
    said = onepot("run", "--plain", folder, folder, "--", "true", status=2).stderr
    check(b"--plain shows one folder" in said, said)
    said = onepot("run", "--plain", "--nested", folder, "--", "true", status=125).stderr
    check(b"archives in it are files" in said, said)


def test_what_no_archive_can_hold(work):
    folder = make_folder(work)
    at = os.open(folder, os.O_RDONLY)
    for _ in range(17):  # paths of up to 4266 bytes
        os.mkdir("d" * 250, dir_fd=at)
        above, at = at, os.open("d" * 250, os.O_RDONLY, dir_fd=at)
        os.close(above)
    os.close(at)
    said = onepot("run", "--plain", folder, "--", "cat", "{}/c").stderr.decode()
    check(said.startswith(f"onepot: {folder}: ddd") and "more than 4095 bytes" in said and "it is left out" in said, said)
    with work.kernel_mount("tmpfs", "huge", "huge") as huge:
        for name in "ab":
            write(os.path.join(huge, name), b"")
            os.truncate(os.path.join(huge, name), (1 << 63) - (1 << 20))
        said = onepot("run", "--plain", huge, "--", "true", status=125).stderr
        check(b"its files have more than 8 EiB together, holes included\n" in said, said)


def test_views_of_a_folder(work):
    folder = make_folder(work)
    done = onepot("run", "--plain", "--include=*.tar", folder, "--", "ls", "-A", "{}")
    check_equal(done.stdout, b"shard-0.tar\n", "--include")
    done = onepot("run", "--plain", "--subdir=sub", folder, "--", "cat", "{}/d")
    check_equal(done.stdout, content("sub/d", 70_000), "--subdir")


def test_links_that_lead_out_are_told(work):
    folder = make_folder(work)
    os.symlink("../../etc/passwd", os.path.join(folder, "sub/out"))
    with work.mount("--plain", folder) as mount:
        check("sub/out is a symbolic link that leads out of it" in mount.notes, mount.notes)
        check_equal(os.readlink(mount / "sub/out"), "../../etc/passwd", "the link")
    os.symlink("/etc", os.path.join(folder, "etc"))
    with work.mount("--plain", folder) as mount:
        check("2 symbolic links lead out of it, first etc" in mount.notes, mount.notes)
        check(not os.path.isdir(os.path.join(mount.path, "etc", "model")), "it was followed")


def test_files_that_are_changed_fail_and_the_others_do_not(work):
    def grow(path):
        with open(path, "ab") as f:
            f.write(b"x")

    def overwrite(path):
        with open(path, "r+b") as f:
            f.write(b"x" * LARGE)

    def replace(path):
        st = os.stat(path)
        write(path + ".new", bytes(st.st_size))
        os.utime(path + ".new", ns=(st.st_atime_ns, st.st_mtime_ns))
        os.rename(path + ".new", path)

    def link(path):
        os.rename(path, path + ".moved")
        os.symlink(os.path.basename(path) + ".moved", path)

    def fifo(path):
        os.unlink(path)
        os.mkfifo(path)

    def link_folder(path):
        os.rename(os.path.dirname(path), os.path.dirname(path) + ".moved")
        os.symlink(os.path.basename(os.path.dirname(path)) + ".moved", os.path.dirname(path))

    ways = {"grow": grow, "shrink": lambda path: os.truncate(path, 10), "overwrite": overwrite, "replace": replace,
            "remove": os.unlink, "link": link, "fifo": fifo, "folder": link_folder}
    for env in harness.environment(), remote():
        for opened in False, True:
            folder = work.make("changing")
            for name in ways:
                os.mkdir(os.path.join(folder, name))
                write(os.path.join(folder, name, "f"), content(name, LARGE))
            write(os.path.join(folder, "stays"), content("stays", LARGE))
            log = work / "log"
            with work.mount("--plain", "--readahead=off", "--log", log, folder, env=env) as mount:
                for name in ways if opened else []:  # of its beginning the kernel keeps pages
                    with open(mount / (name + "/f"), "rb", buffering=0) as f:
                        check_equal(f.read(100), content(name, LARGE)[:100], name)
                for name, change in ways.items():
                    change(os.path.join(folder, name, "f"))
                for name in ways:
                    with open(mount / (name + "/f"), "rb", buffering=0) as f:
                        f.seek(2 << 20)
                        # An open file that was only moved or unlinked has the same bytes.
                        kept = opened and name in ("replace", "remove", "link", "fifo", "folder")
                        try:
                            check_equal((name, kept, f.read(4096)),
                                        (name, True, content(name, LARGE)[2 << 20:][:4096]), "bytes")
                        except OSError as error:
                            check_equal((name, kept, error.errno), (name, False, 5), "error")
                check(read(mount / "stays") == content("stays", LARGE), "a file that was not changed")
                check("changed/" not in mount.notes, mount.notes)
            with open(log, encoding="utf-8") as f:
                said = f.read()
            check(folder + "/overwrite/f: it was changed or removed while it is mounted" in said, said)
            check("stays" not in said, said)
            shutil.rmtree(folder)
            os.unlink(log)


def test_a_mount_is_shared_while_nothing_changes(work):
    folder = make_folder(work)
    at = work / "at"
    for _ in range(2):
        done = onepot("mount", "--plain", "--at", at, folder)
        check_equal(done.stdout, os.fsencode(at) + b"\n", "the mount")
    check_equal(len(harness.mountpoints(at)), 1, "mounts")
    os.rename(os.path.join(folder, "a"), os.path.join(folder, "z"))
    done = onepot("run", "--plain", folder, "--", "ls", "{}")
    check_equal(done.stdout, b"b\nc\nshard-0.tar\nsub\nz\n", "the names by now")
    for _ in range(2):
        onepot("umount", folder)
    check_equal(harness.mountpoints(work.path), [], "mounts")


def test_another_filesystem_inside_is_left_out(work):
    """It may be a mount of onepot's own, which its daemon must not touch."""
    folder = make_folder(work)
    archive = os.path.join(folder, "shard-0.tar")
    os.mkdir(os.path.join(folder, "inside"))
    with work.mount(archive, name="model/inside"):
        with work.mount("--plain", folder) as mount:
            check("inside: another filesystem is mounted there; it is left out" in mount.notes, mount.notes)
            check_equal(sorted(os.listdir(mount.path)), ["a", "b", "c", "shard-0.tar", "sub"], "names")


def test_a_filesystem_of_several_devices_is_one(work):
    """Files of an overlay's layers, as in a container, may have a device each."""
    with work.kernel_mount("tmpfs", "lower", "lower") as lower, work.kernel_mount("tmpfs", "upper", "upper") as upper:
        for at in lower + "/sub", upper + "/up/sub", upper + "/work":
            os.makedirs(at)
        write(lower + "/sub/a", content("a", LARGE))
        write(upper + "/up/sub/b", b"b")
        options = f"lowerdir={lower},upperdir={upper}/up,workdir={upper}/work,xino=off"
        with work.kernel_mount("overlay", "overlay", "folder", "-o", options) as folder:
            check(os.stat(folder + "/sub/a").st_dev != os.stat(folder).st_dev, "the overlay has one device")
            with work.kernel_mount("tmpfs", "inside", "folder/inside"), work.mount("--plain", folder) as mount:
                check("inside: another filesystem is mounted there; it is left out\n" in mount.notes, mount.notes)
                check_equal(sorted(os.listdir(mount.path)), ["sub"], "names")
                check_equal((read(mount / "sub/a") == content("a", LARGE), read(mount / "sub/b")), (True, b"b"), "bytes")


def test_what_may_not_be_read_is_left_out(work):
    harness.need_root("be another user")
    folder = make_folder(work)
    os.chmod(work.path, 0o755)
    os.chmod(os.path.join(folder, "b"), 0o600)
    os.chmod(os.path.join(folder, "sub"), 0o700)
    with harness.program_for_others() as program:
        done = run(program, "run", "--extract", "--plain", folder, "--", "ls", "-R", "{}", user=65534, group=65534,
                   extra_groups=[], env=harness.environment(ONEPOT_RUNTIME_DIR=None, TMPDIR=None))
    said = done.stderr.decode()
    check("b: may not be read by this user; it is left out, and so is 1 more" in said, said)
    check_equal(done.stdout.split()[1:5], [b"a", b"c", b"shard-0.tar", b"sub"], "names")
    check_equal(len(done.stdout.split()), 6, "names, and two folders'")


def test_access_control_lists_count(work):
    """Beside one, the mode's group bits are a mask: the group itself may have no rights."""
    harness.need_root("be another user")
    folder = work.make("folder")
    os.chmod(work.path, 0o755)
    for name in "file", "other":
        write(os.path.join(folder, name), name.encode())
        os.chown(os.path.join(folder, name), 0, 4001)
        os.chmod(os.path.join(folder, name), 0o640)
    # user::rw-, user:4000:r--, group::---, mask::r--, other::---
    entries = (1, 6, -1), (2, 4, 4000), (4, 0, -1), (0x10, 4, -1), (0x20, 0, -1)
    try:
        os.setxattr(os.path.join(folder, "file"), "system.posix_acl_access",
                    struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries))
    except OSError as error:
        raise harness.Skip(f"no access control lists in {work.path}: {error}")
    may = lambda at: {(name, user, group): run("cat", os.path.join(at, name), user=user, group=group, extra_groups=[],
                                               status=None).returncode == 0
                      for name in ("file", "other") for user, group in ((4000, 4002), (4003, 4001), (4003, 4002))}
    check_equal(list(may(folder).values()), [True, False, False, False, True, False], "who may read the folder's files")
    with work.mount("--plain", "--allow-other", folder) as mount:
        check_equal(may(mount.path), may(folder), "who may read the mount's")
        os.removexattr(os.path.join(folder, "file"), "system.posix_acl_access")
        os.chmod(os.path.join(folder, "file"), 0o640)
        with work.mount("--plain", "--allow-other", folder, name="anew") as anew:
            check_equal(may(anew.path), may(folder), "who may read it without a list")


def test_many_files_take_few_descriptors(work):
    folder = work.make("folder")
    names = ["%04d" % i for i in range(1200)]
    for name in names:
        write(os.path.join(folder, name), name.encode() * 50)
    limits = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    for env in harness.environment(), remote():
        at = work / "at"
        os.makedirs(at, exist_ok=True)
        run(harness.onepot_program(), "mount", "--plain", "--at", at, folder, env=env, preexec_fn=limits)
        try:
            random.Random(1).shuffle(names)
            harness.in_threads([lambda part=part: [check_equal(read(os.path.join(at, name)), name.encode() * 50, name)
                                                   for name in names[part::4]] for part in range(4)])
            pid = json.loads(onepot("stat", "--json", at).stdout)["daemon_pid"]
            has = len([1 for fd in os.listdir("/proc/%d/fd" % pid)
                       if os.readlink("/proc/%d/fd/%s" % (pid, fd)).startswith(folder + "/")])
            check(0 < has <= 32 + 8, "%d open files" % has)
        finally:
            onepot("umount", at)


def test_too_many_files_are_refused(work):
    folder = work.make("folder")
    for i in range(100):
        os.mkdir("%s/%d" % (folder, i))
    write(folder + "/0/0", b"")
    for i in range(1, 100_000):  # one inode: links take a third of the time
        os.link("%s/%d/%d" % (folder, (i - 1) // 10_000, (i - 1) // 10_000 * 10_000),
                "%s/%d/%d" % (folder, i // 10_000, i)) if i % 10_000 else write(
                    "%s/%d/%d" % (folder, i // 10_000, i), b"")
    onepot("run", "--plain", folder, "--", "true")
    write(folder + "/one-more", b"")
    said = onepot("run", "--plain", folder, "--", "true", status=125).stderr
    check(b"has more than the 100000 files that can be shown as they are; make an archive of it with 'onepot pack'"
          in said, said)


def test_readers_side_by_side_fetch_each_byte_once(work):
    """They share what the cache keeps of what is read ahead: none drives out what another one will read."""
    folder, readers, count = work.make("shards"), 4, 24
    for i in range(readers):
        write(os.path.join(folder, str(i)), content(i, 1 << 20) * count)

    def go_through(path, i):
        with open(path, "rb", buffering=0) as f:
            for _ in range(count):
                check(f.read(1 << 20) == content(i, 1 << 20), path)

    with Slow(work, "--read=2ms", "--bandwidth=500M", folder) as slow, \
            work.mount("--plain", "--cache=16M", slow.at) as mount:
        harness.in_threads([lambda i=i: go_through(mount / str(i), i) for i in range(readers)])
        asked, size = slow.counts(), readers * count << 20
        check(asked["bytes"] < 1.1 * size, f"{asked['bytes']} bytes were fetched of {size}")


def test_a_large_file_that_can_t_be_extracted_is_one_problem(work):
    folder = work.make("folder")
    write(os.path.join(folder, "large"), b"")
    os.truncate(os.path.join(folder, "large"), 100 << 20)  # several threads extract it
    with Slow(work, "--fail-every=1", folder) as slow:
        said = onepot("run", "--extract", "--plain", slow.at, "--", "true", status=125).stderr.decode()
    check_equal(said.count("large: can't be read"), 1, "lines of " + said)
    check("slow: 1 of its members can't be extracted" in said, said)


# ---- --stage ----

def staged(mount):
    return mount.stat()["stage"]


def await_whole(mount):
    wait_for(lambda: staged(mount)["here_bytes"] == staged(mount)["bytes"], "the whole copy")


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def test_readers_of_a_node_read_storage_once(work):
    folder = make_folder(work)
    size = folder_bytes(folder)
    with Slow(work, "--read=2ms", folder) as slow:
        with work.mount("--stage", "--plain", slow.at, name="one") as one, \
                work.mount("--stage", "--plain", "--idle=1000", slow.at, name="two") as two:
            harness.in_threads([lambda path=mount / name, name=name, count=count:
                                check(read(path) == content(name, count), name)
                                for mount in (one, two) for name, count in
                                {"a": LARGE, "b": LARGE + 12345, "sub/d": 70_000}.items()])
            await_whole(two)
            asked = slow.counts()["bytes"]
            # Twice what both fetched at once, and pages at the ends of chunks.
            check(size <= asked <= size + staged(one)["past_bytes"] + staged(two)["past_bytes"] + (16 << 12),
                  f"{asked} bytes were fetched of {size}")
            tree.compare(tree.snapshot(two.path), tree.snapshot(folder), "staged")


def test_a_folder_is_staged_ahead_of_time(work):
    folder = make_folder(work)
    onepot("stage", "--plain", "--keep", folder)
    with work.mount("--stage", "--plain", folder, env=remote()) as mount:
        check_equal(staged(mount)["here_bytes"], staged(mount)["bytes"], "the whole copy")
        tree.compare(tree.snapshot(mount.path), tree.snapshot(folder), "staged")
    said = onepot("stage", "--plain", "--adopt", os.path.join(folder, "a"), folder, status=1).stderr
    check(b"--adopt takes a copy of one file, and this is a folder" in said, said)
    onepot("unstage", folder)
    onepot("unstage", folder, status=1)


def test_a_copy_is_not_used_for_bytes_that_have_the_old_time(work):
    folder = make_folder(work)
    path = os.path.join(folder, "a")
    onepot("stage", "--plain", "--keep", folder)
    st = os.stat(path)
    with open(path, "r+b") as f:
        f.write(b"other bytes")
    os.utime(path, ns=(st.st_atime_ns, st.st_mtime_ns))
    with work.mount("--stage", "--plain", folder, env=remote()) as mount:
        check_equal(read(mount / "a")[:11], b"other bytes", "the file's beginning")
    onepot("unstage", folder)


def test_a_file_that_changes_while_it_is_staged(work):
    folder = make_folder(work)
    with Slow(work, "--read=20ms", "--attr-timeout=0", "--entry-timeout=0", "--pages=none", folder) as slow:
        with work.mount("--stage", "--plain", slow.at) as mount:
            with open(os.path.join(folder, "b"), "r+b") as f:
                f.seek(LARGE)
                f.write(b"x")
            wait_for(lambda: staged(mount)["failure"] or staged(mount)["here_bytes"] == staged(mount)["bytes"], "its end")
            for name, count in {"a": LARGE, "b": LARGE + 12345, "c": 100, "sub/d": 70_000}.items():
                check(read(mount / name) in (content(name, count), 5), name)
            check(read(mount / "a") == content("a", LARGE), "a file that was not changed")


def test_a_file_that_changes_is_why_staging_fails(work):
    folder = make_folder(work)
    with Slow(work, "--toggle=stall", "--attr-timeout=0", "--entry-timeout=0", "--pages=none", folder) as slow:
        slow.toggle()
        done = {}
        staging = threading.Thread(target=lambda: done.update(stage=onepot("stage", "--plain", slow.at, status=1)))
        staging.start()
        try:
            wait_for(lambda: slow.counts()["stalls"] > 0, "a read of the copier")
            write(os.path.join(folder, "b"), b"x")
        finally:
            slow.toggle()
            staging.join()
    said = done["stage"].stderr
    check(b"it could not be staged: a file of it was changed or removed meanwhile\n" in said, said)


def test_files_behind_a_large_one_that_changes_are_staged(work):
    folder = work.make("folder")
    for name in "a", "c":
        write(os.path.join(folder, name), content(name, LARGE))
    write(os.path.join(folder, "b"), b"")
    os.truncate(os.path.join(folder, "b"), 200 << 20)
    with Slow(work, "--toggle=stall", "--bandwidth=20M", "--attr-timeout=0", "--entry-timeout=0", "--pages=none",
              folder) as slow:
        with work.mount("--stage", "--plain", slow.at) as mount:
            slow.toggle()  # by now most of it is missing
            os.truncate(os.path.join(folder, "b"), 1)
            slow.toggle()
            wait_for(lambda: staged(mount)["failure"], "the copier's end")
            check(staged(mount)["here_bytes"] >= 2 * LARGE - (2 << 20), "a file is missing: %s" % staged(mount))


def test_without_room_for_a_copy_it_is_read_all_the_same(work):
    folder = make_folder(work)
    with work.kernel_mount("tmpfs", "small", "small", "-o", "size=2m") as place:
        env = remote(ONEPOT_RUNTIME_DIR=place, TMPDIR=place)
        done = onepot("run", "--stage", "--plain", folder, "--", "cat", "{}/a", env=env, status=None)
    said = done.stderr.decode()
    check_equal(done.returncode, 0, said)
    check(done.stdout == content("a", LARGE), "bytes")
    check("7 MiB can't be staged: " in said and "has 1 MiB for it" in said and
          "it is read without a copy" in said, said)


if __name__ == "__main__":
    harness.main(globals())

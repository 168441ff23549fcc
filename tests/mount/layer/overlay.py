"""A mount as a lower layer of overlayfs: how containers put a writable layer over data."""

import contextlib
import os
import stat
import time

import harness
import tree
from harness import Skip, check, check_equal, need_program, need_root, run


def make_lower(work, name="lower"):
    need_root("mount an overlay")
    need_program("tar")
    source = work.make(f"{name}-source")
    tree.build(source)
    archive = work / f"{name}.tar"
    run("tar", "--format=pax", "--xattrs", "--xattrs-include=*", "--sparse", "--numeric-owner",
        "-cf", archive, "-C", source, ".")
    return source, archive


@contextlib.contextmanager
def overlay(work, *lower):
    upper, scratch, merged = (work.make(n) for n in ("upper", "scratch", "merged"))
    options = f"lowerdir={':'.join(lower)},upperdir={upper},workdir={scratch}"
    done = run("mount", "-t", "overlay", "overlay", "-o", options, merged, status=None)
    if done.returncode != 0:
        if "overlay" not in open("/proc/filesystems", encoding="ascii").read():
            raise Skip("this kernel has no overlayfs")
        raise harness.Failure(f"overlay can't be mounted: {done.stderr.decode().strip()}")
    try:
        yield merged
    finally:
        harness.unmount(merged)


# An overlay has inode numbers and link counts of its own.
OWN = ("links", ("nlink", stat.S_IFDIR))


def test_overlay_shows_the_same(work):
    _, archive = make_lower(work)
    with work.mount(archive) as mount:
        lower = tree.snapshot(mount.path)
        with overlay(work, mount.path) as merged:
            lower[b""]["mtime_ns"] = os.stat(merged).st_mtime_ns  # its root is the upper layer's
            tree.compare(tree.snapshot(merged), lower, "the overlay", OWN)
            time.sleep(1.1)  # entries of the mount's root are asked for again each second
            tree.compare(tree.snapshot(merged), lower, "the overlay, later", OWN)


def test_changes_go_to_the_upper_layer(work):
    _, archive = make_lower(work)
    with work.mount(archive) as mount:
        before = tree.snapshot(mount.path)
        with overlay(work, mount.path) as merged:
            change(merged)
            check_changed(merged, mount.path)
        tree.compare(tree.snapshot(mount.path), before, "the mount after changes above it")


def change(merged):
    def path(name):
        return os.path.join(merged, name)

    with open(path("sizes/1048577"), "ab") as f:
        f.write(b"appended")
    with open(path("sizes/131072"), "r+b") as f:
        f.seek(70_000)
        f.write(b"changed")
    with open(path("sparse/pieces"), "r+b") as f:
        f.write(b"copied up")
    os.chmod(path("sizes/512"), 0o600)
    os.chown(path("sizes/513"), 12345, 12345)
    os.unlink(path("sizes/4096"))
    os.rename(path("sizes/4097"), path("sizes/renamed"))
    os.unlink(path("sizes/1"))
    tree.write(path("sizes/1"), b"made anew")
    harness.shutil.rmtree(path("many"))
    os.mkdir(path("many"))
    tree.write(path("many/only"), b"one")
    os.mkdir(path("new"))
    os.link(path("sizes/4095"), path("new/linked"))
    if os.path.exists(path("xattrs")):
        os.setxattr(path("xattrs/everything"), "user.added", b"new")


def check_changed(merged, lower):
    def read(root, name):
        with open(os.path.join(root, name), "rb") as f:
            return f.read()

    check_equal(read(merged, "sizes/1048577") == read(lower, "sizes/1048577") + b"appended", True,
                "appended")
    data = bytearray(read(lower, "sizes/131072"))
    data[70_000:70_007] = b"changed"
    check_equal(read(merged, "sizes/131072") == bytes(data), True, "changed in the middle")
    data = bytearray(read(lower, "sparse/pieces"))
    data[:9] = b"copied up"
    check_equal(read(merged, "sparse/pieces") == bytes(data), True, "a sparse file copied up")
    check_equal(stat.S_IMODE(os.stat(os.path.join(merged, "sizes/512")).st_mode), 0o600, "chmod")
    check_equal(read(merged, "sizes/512") == read(lower, "sizes/512"), True, "its content")
    check_equal(os.stat(os.path.join(merged, "sizes/513")).st_uid, 12345, "chown")
    check(not os.path.lexists(os.path.join(merged, "sizes/4096")), "what was removed is there")
    check_equal(read(merged, "sizes/renamed") == read(lower, "sizes/4097"), True, "renamed")
    check("4096" not in os.listdir(os.path.join(merged, "sizes")), "what was removed is listed")
    check_equal(read(merged, "sizes/1"), b"made anew", "made anew")
    check_equal(os.listdir(os.path.join(merged, "many")), ["only"], "an opaque directory")
    check_equal(read(merged, "new/linked") == read(lower, "sizes/4095"), True, "linked")
    if os.path.exists(os.path.join(lower, "xattrs")):
        attributes = tree.xattrs_of(os.path.join(merged, "xattrs/everything"))
        expected = tree.xattrs_of(os.path.join(lower, "xattrs/everything"))
        check_equal(attributes, {**expected, "user.added": b"new"}, "attributes after copy-up")


def test_two_mounts_below(work):
    need_root("mount an overlay")
    need_program("tar")
    sources = [work.make(n) for n in ("one", "two")]
    for i, source in enumerate(sources):
        os.mkdir(os.path.join(source, "shared"))
        tree.write(os.path.join(source, "shared", "both"), b"from %d" % i)
        tree.write(os.path.join(source, "shared", f"own-{i}"), b"%d" % i)
        run("tar", "-cf", work / f"{i}.tar", "-C", source, ".")
    with work.mount(work / "0.tar", name="m0") as first, \
            work.mount(work / "1.tar", name="m1") as second:
        with overlay(work, first.path, second.path) as merged:
            check_equal(sorted(os.listdir(os.path.join(merged, "shared"))),
                        ["both", "own-0", "own-1"], "the merged directory")
            with open(os.path.join(merged, "shared/both"), "rb") as f:
                check_equal(f.read(), b"from 0", "the first layer's")


if __name__ == "__main__":
    harness.main(globals())

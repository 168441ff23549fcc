"""A mount shows what extracting the archive would leave behind.

For each format, and each program that writes it: the tree of tree.py is packed, and the
mount is compared with what tar, bsdtar, unsquashfs or the kernel make of the archive. The
mount must be consistent in itself, too: listings with attributes, inode numbers, counts.
"""

import dataclasses
import errno
import io
import json
import os
import pathlib
import random
import stat
import tarfile

import harness
import tree
from harness import Failure, Skip, check, check_equal, need_program, onepot, run

SYMLINK = stat.S_IFLNK


def make_tree(work, limits, name="tree"):
    path = work.make(name)
    tree.build(path, limits)
    return path


def extract(work, program, archive, name):
    """What a program extracts, as a snapshot."""
    need_program(program)
    path = work.make(name)
    if program == "tar":
        command = ["tar", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", archive,
                   "-C", path]
    elif program == "bsdtar":
        need_program("bsdtar")
        command = ["bsdtar", "--numeric-owner", "-xpf", archive, "-C", path]
    else:
        need_program("unsquashfs")
        command = ["unsquashfs", "-quiet", "-no-progress", "-force", "-dest", path, archive]
    run(*command)
    return tree.snapshot(path)


def forgive_root(extracted, source):
    """bsdtar writes into the root after it has set its time."""
    extracted[b""]["mtime_ns"] = os.stat(source).st_mtime_ns


def check_mount(work, archive, expected, what, ignore=(), env=None):
    with work.mount(archive, env=env) as mount:
        tree.compare(tree.snapshot(mount.path), expected, what, ignore)
        tree.check_consistent(mount.path)


def gnu_tar(work, source, archive, *options):
    need_program("tar")
    path = work / archive
    run("tar", "--numeric-owner", *options, "-cf", path, "-C", source, ".")
    return path


def bsd_tar(work, source, archive, *options):
    need_program("bsdtar")
    path = work / archive
    run("bsdtar", "--numeric-owner", *options, "-cf", path, "-C", source, ".")
    return path


def python_tar(work, source, archive, form):
    path = work / archive
    with tarfile.open(path, "w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        tar.add(source, ".")
    return path


# ---- tar ----

def test_tar_v7(work):
    source = make_tree(work, tree.V7)
    archive = gnu_tar(work, source, "gnu.tar", "--format=v7")
    check_mount(work, archive, extract(work, "tar", archive, "out"), "v7 by GNU tar")


def test_tar_ustar(work):
    source = make_tree(work, tree.USTAR)
    archive = gnu_tar(work, source, "gnu.tar", "--format=ustar")
    expected = extract(work, "tar", archive, "out")
    check_mount(work, archive, expected, "ustar by GNU tar")
    archive = python_tar(work, source, "python.tar", tarfile.USTAR_FORMAT)
    check_mount(work, archive, extract(work, "tar", archive, "python"), "ustar by Python")


def test_tar_by_bsdtar(work):
    limits = dataclasses.replace(tree.USTAR, largest_id=262143)  # it writes six octal digits
    source = make_tree(work, limits)
    for form in ("ustar", "gnutar"):
        archive = bsd_tar(work, source, f"{form}.tar", f"--format={form}")
        expected = extract(work, "bsdtar", archive, f"out-{form}")
        forgive_root(expected, source)
        check_mount(work, archive, expected, f"{form} by bsdtar")


def test_tar_gnu(work):
    source = make_tree(work, tree.GNU)
    archive = gnu_tar(work, source, "gnu.tar", "--format=gnu", "--sparse")
    expected = extract(work, "tar", archive, "out")
    check_mount(work, archive, expected, "GNU format by GNU tar")
    # Names are bytes, whatever the locale of the job.
    check_mount(work, archive, expected, "GNU format, in the C locale",
                env=harness.environment(LC_ALL="C"))
    archive = python_tar(work, source, "python.tar", tarfile.GNU_FORMAT)
    check_mount(work, archive, extract(work, "tar", archive, "python"), "GNU format by Python")


def test_tar_pax(work):
    source = make_tree(work, tree.Limits(depth=tree.DEEP))
    archive = gnu_tar(work, source, "gnu.tar", "--format=pax", "--xattrs", "--xattrs-include=*")
    expected = extract(work, "tar", archive, "out")
    check_mount(work, archive, expected, "pax by GNU tar")
    check_mount(work, archive, expected, "pax, in the C locale",
                env=harness.environment(LC_ALL="C"))


def test_tar_pax_and_bsdtar(work):
    # It extracts no names that are no UTF-8, and times before 1970 only by whole seconds.
    limits = tree.Limits(raw_names=False, oldest=0)
    source = make_tree(work, limits)
    archive = gnu_tar(work, source, "gnu.tar", "--format=pax", "--xattrs", "--xattrs-include=*")
    expected = extract(work, "bsdtar", archive, "out")
    forgive_root(expected, source)
    check_mount(work, archive, expected, "pax by GNU tar, as bsdtar has it")
    source = make_tree(work, tree.Limits(oldest=0), "raw")
    archive = bsd_tar(work, source, "bsd.tar", "--format=pax", "--xattrs")
    expected = extract(work, "bsdtar", archive, "raw-out")
    forgive_root(expected, source)
    check_mount(work, archive, expected, "pax by bsdtar")


def test_tar_pax_by_python(work):
    source = make_tree(work, tree.PAX)
    archive = python_tar(work, source, "python.tar", tarfile.PAX_FORMAT)
    check_mount(work, archive, extract(work, "tar", archive, "python"), "pax by Python")


def sparse_maps(root):
    base = os.path.join(root, "sparse")
    return {name: tree.data_map(os.path.join(base, name)) for name in sorted(os.listdir(base))}


def test_tar_sparse(work):
    source = work.make("tree")
    tree.build_sparse(os.fsencode(source))
    expected = tree.snapshot(source)
    maps = sparse_maps(source)
    if maps["only-hole"]:
        raise Skip(f"the filesystem of {work.path} has no holes")
    kinds = [("GNU", gnu_tar, ["--format=gnu", "--sparse"])]
    kinds += [(f"pax {v}", gnu_tar, ["--format=pax", "--sparse", f"--sparse-version={v}"])
              for v in ("0.0", "0.1", "1.0")]
    kinds += [("bsdtar", bsd_tar, ["--format=pax", "--read-sparse"])]
    for what, make, options in kinds:
        archive = make(work, source, what.replace(" ", "-") + ".tar", *options)
        check(os.path.getsize(archive) < 2_000_000, f"{what}: the archive is not sparse")
        ignore = ("mtime_ns",) if what == "GNU" else ()
        with work.mount(archive) as mount:
            tree.compare(tree.snapshot(mount.path), expected, f"sparse, {what}", ignore)
            check_equal(sparse_maps(mount.path), maps, f"sparse, {what}: where data lies")
            tree.check_consistent(mount.path)


def test_tar_compressed(work):
    """Without the sparse files, which the tar would hold as twice as many bytes as all else."""
    source = make_tree(work, dataclasses.replace(tree.PAX, sparse=False))
    plain = gnu_tar(work, source, "plain.tar", "--format=pax", "--xattrs", "--xattrs-include=*")
    expected = extract(work, "tar", plain, "out")
    tried = []
    for program, suffix in (("gzip", "gz"), ("bzip2", "bz2"), ("xz", "xz"), ("zstd", "zst"),
                            ("lz4", "lz4")):
        if harness.shutil.which(program) is None:
            print(f"skipped part: there is no program '{program}'")
            continue
        archive = work / f"packed.tar.{suffix}"
        with open(plain, "rb") as i, open(archive, "wb") as o:
            run(program, "-1", "-c", stdin=i, stdout=o)
        with work.mount(archive) as mount:
            # It is built with zlib, libbz2.
            reads_points = program in ("gzip", "bzip2") and mount.notes == ""
            check(reads_points or
                  mount.notes.startswith("onepot: ") and mount.notes.count("\n") == 1,
                  f"{program}: no line says that it is decompressed first: {mount.notes!r}")
            tree.compare(tree.snapshot(mount.path), expected, f"tar by {program}")
            tree.check_consistent(mount.path)
        tried.append(program)
    if not tried:
        raise Skip("there is no program that compresses")


def test_small_files_of_a_gzip_in_any_order(work):
    """Of the part that a file lies in, only the beginning may be decompressed."""
    chance = random.Random(1)
    contents = [" ".join(map(str, chance.choices(range(10**6), k=3000))).encode()
                for _ in range(200)]
    with tarfile.open(work / "small.tar.gz", "w:gz", compresslevel=6) as tar:
        for i, content in enumerate(contents):
            info = tarfile.TarInfo(f"f{i:03}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    forward = list(range(len(contents)))
    for order in forward, forward[::-1], chance.sample(forward, len(forward)):
        with work.mount(work / "small.tar.gz", "--readahead=off") as mount:
            for i in order:
                check_equal(pathlib.Path(mount / f"f{i:03}").read_bytes(), contents[i], f"f{i:03}")


# ---- SquashFS ----

def squashfs(work, source, archive, *options):
    need_program("mksquashfs")
    path = work / archive
    done = run("mksquashfs", source, path, "-noappend", "-quiet", "-no-progress", *options,
               status=None)
    said = done.stdout + done.stderr
    if done.returncode != 0 and b"ompressor" in said:
        return None
    check(done.returncode == 0, f"mksquashfs {options}: {said!r}")
    return path


def unsquashed(work, source, image, name):
    """What unsquashfs extracts. It sets no setuid and setgid bits unless it is root's."""
    entries = extract(work, "unsquashfs", image, name)
    if os.geteuid() != 0:
        for path, entry in entries.items():
            entry["mode"] |= os.lstat(os.path.join(os.fsencode(source), path)).st_mode & 0o6000
    return entries


SQUASHFS_KINDS = [
    ("gzip", "-comp", "gzip"),
    ("gzip-4K", "-comp", "gzip", "-b", "4K"),
    ("gzip-no-fragments", "-comp", "gzip", "-no-fragments"),
    ("xz", "-comp", "xz"),
    ("lzo", "-comp", "lzo"),
    ("lz4", "-comp", "lz4", "-b", "4K", "-no-fragments"),
    ("lz4-1M", "-comp", "lz4", "-b", "1M", "-always-use-fragments"),
    ("zstd", "-comp", "zstd", "-Xcompression-level", "3"),
    ("zstd-1M", "-comp", "zstd", "-Xcompression-level", "3", "-b", "1M"),
    ("zstd-no-duplicates", "-comp", "zstd", "-Xcompression-level", "3", "-no-duplicates",
     "-always-use-fragments", "-b", "4K"),
    ("stored", "-noI", "-noId", "-noD", "-noF", "-noX"),
    ("stored-1M", "-noI", "-noId", "-noD", "-noF", "-noX", "-b", "1M", "-no-fragments"),
    ("no-sparse", "-comp", "zstd", "-Xcompression-level", "3", "-no-sparse"),
]


def test_squashfs(work):
    """Against the kernel where it mounts, else against unsquashfs: the first image, as all have the same
    tree, but that mksquashfs now and then makes two links of a link to a symbolic one."""
    source = make_tree(work, dataclasses.replace(tree.SQUASHFS, depth=40))
    expected, ignore = None, ()
    for name, *options in SQUASHFS_KINDS:
        image = squashfs(work, source, f"{name}.squashfs", *options)
        if image is None:
            print(f"skipped part: mksquashfs has no {options[1]}")
            continue
        expected = expected or as_others_read(work, source, image)
        check_mount(work, image, expected, f"SquashFS {name}", ignore)
        ignore = [("nlink", SYMLINK), ("links", SYMLINK)]
        os.unlink(image)


test_squashfs.seconds = 240


def as_others_read(work, source, image):
    try:
        with work.kernel_mount("squashfs", image, "kernel", "-o", "ro,loop") as kernel:
            return tree.snapshot(kernel)
    except Skip as skip:
        print(f"compared with unsquashfs alone: {skip}")
        return unsquashed(work, source, image, "out")


def test_squashfs_as_extracted(work):
    source = make_tree(work, dataclasses.replace(tree.SQUASHFS, depth=tree.DEEP))
    image = squashfs(work, source, "image.squashfs")
    expected = unsquashed(work, source, image, "out")
    check_mount(work, image, expected, "SquashFS, as unsquashfs has it")
    tree.compare(expected, tree.snapshot(source), "unsquashfs, as it was",
                 ignore=[("nlink", SYMLINK), ("links", SYMLINK)])  # mksquashfs may split them


def test_squashfs_holes(work):
    source = work.make("tree")
    tree.build_sparse(os.fsencode(source))
    image = squashfs(work, source, "image.squashfs", "-b", "4K", "-no-fragments")
    with work.mount(image) as mount:
        for name, ranges in sparse_maps(mount.path).items():
            with open(os.path.join(source, "sparse", name), "rb") as f:
                data = f.read()
            shown = bytearray(len(data))
            for start, end in ranges:
                shown[start:end] = data[start:end]
            check_equal(bytes(shown) == data, True, f"{name}: holes hold nothing but zeros")
        check_equal(sparse_maps(mount.path)["only-hole"], [], "a file that is one hole")
        held = sum(b - a for a, b in sparse_maps(mount.path)["pieces"])
        check(held < 1 << 20, f"a sparse file has {held} bytes of data")


# ---- the digest ----

def digest(archive, *options):
    return json.loads(onepot("info", "--json", *options, archive).stdout)[0]["digest"]


def plant(work, name):
    """What every format can hold."""
    root = pathlib.Path(work.make(name))
    for folder in ("a", "b/c", "empty"):
        (root / folder).mkdir(parents=True)
    for path, data in (("a/zero", b""), ("a/x", b"x" * 5000), ("b/c/y", bytes(range(256)) * 3000),
                       ("b/zeros", bytes(200_000)), (os.fsdecode(b"a/\xff\xfe \t\x01"), b"any bytes")):
        (root / path).write_bytes(data)
    tree.write_sparse(root / "b/sparse", 3 << 20, [(1_000_000, b"data")])
    os.symlink("../a/x", root / "b/link")
    os.link(root / "a/x", root / "a/again")
    os.chmod(root / "a/x", 0o640)
    os.chmod(root / "empty", 0o711)
    return root


def pack_in_all_formats(work, root):
    """Archives of one tree; each program is missing somewhere."""
    yield gnu_tar(work, root, "plain.tar")
    yield gnu_tar(work, root, "sparse.tar", "--sparse", "--sort=name")
    run("tar", "-czf", work / "packed.tar.gz", "-C", root, ".")
    yield work / "packed.tar.gz"
    for name in ("a", "b"):
        run("tar", "-cf", work / f"part-{name}.tar", "-C", root, name)
    run("tar", "-cf", work / "part-c.tar", "-C", root, "empty")
    yield work / "part-*.tar"
    for name, *options in (("own.onepot", "-q"), ("own.zst", "-q", "--zstd", "--block=64K")):
        onepot("pack", *options, "-o", work / name, root)
        yield work / name
    programs = onepot("--version", "--json").stdout
    if harness.shutil.which("zip") and b"deflate" in programs:
        run("zip", "-qry", work / "a.zip", ".", cwd=root)
        yield work / "a.zip"
    if harness.shutil.which("mksquashfs") and b"SquashFS" in programs:
        for name, *options in (("a.sqsh",), ("b.sqsh", "-no-sparse", "-b", "16K")):
            yield squashfs(work, root, name, *options)


def test_the_digest_of_a_tree_is_the_same_in_any_format(work):
    root = plant(work, "tree")
    found = {str(archive): digest(archive, "--digest") for archive in pack_in_all_formats(work, root)}
    check_equal(set(found.values()), {found[str(work / "plain.tar")]}, f"{found}")
    check_equal(len(found[str(work / "plain.tar")]), 32, "digits")
    check_equal(digest(work / "plain.tar"), None, "without reading files")
    for name in ("a/x", "b"):
        os.utime(root / name, (1, 1))
    check_equal(digest(gnu_tar(work, root, "times.tar", "--owner=7"), "--digest"),
                found[str(work / "plain.tar")], "with other times and owners")


def test_what_a_digest_is_of(work):
    root = plant(work, "tree")

    def change(what):
        what()
        onepot("pack", "-qf", "-o", work / "a.tar", root / "a", "--exclude=unused")
        return digest(work / "a.tar")
    found = [change(what) for what in (
        lambda: None, lambda: os.chmod(root / "a/x", 0o600), lambda: os.rename(root / "a/x", root / "a/z"),
        lambda: (root / "a/z").write_bytes(b"y" * 5000), lambda: os.symlink("z", root / "a/l"),
        lambda: (os.unlink(root / "a/l"), os.symlink("y", root / "a/l")),
        lambda: os.mkdir(root / "a/d"), lambda: os.chmod(root / "a/d", 0o700))]
    check(None not in found, "an archive by pack has it without reading")
    check_equal(len(set(found)), len(found), f"digests: {found}")


# ---- onepot's own ----

def test_onepot(work):
    harness.need_command("pack")
    source = make_tree(work, dataclasses.replace(tree.ONEPOT, depth=tree.DEEP))
    archive = work / "packed.onepot"
    harness.onepot("pack", "-o", archive, source)
    expected = tree.snapshot(source)
    check_mount(work, archive, expected, "onepot's own, as it was")
    tree.compare(extract(work, "tar", archive, "out"), expected, "tar of onepot's own")
    with work.mount(archive) as mount:
        check_equal(sparse_maps(mount.path), sparse_maps(source), "where data lies")
    need_program("bsdtar")
    run("bsdtar", "-tf", archive, env=harness.environment(LC_ALL="C"))


def test_onepot_again(work):
    """A mount packed once more is the same archive."""
    harness.need_command("pack")
    source = make_tree(work, tree.ONEPOT)
    first, second = work / "first.onepot", work / "second.onepot"
    harness.onepot("pack", "-o", first, source)
    with work.mount(first) as mount:
        harness.onepot("pack", "-o", second, mount.path)
    with open(first, "rb") as a, open(second, "rb") as b:
        check(a.read() == b.read(), "packing a mount gives other bytes than packing its source")


# ---- a mount as programs see it ----

def test_programs_see_the_tree(work):
    source = make_tree(work, tree.PAX)
    archive = gnu_tar(work, source, "gnu.tar", "--format=pax", "--xattrs", "--xattrs-include=*",
                      "--sparse")
    with work.mount(archive) as mount:
        check_find(source, mount.path)
        check_du(mount.path)
        check_tar_of_mount(work, source, mount.path)
        check_refusals(mount.path)


def check_find(source, mounted):
    need_program("find")
    form = "%y %m %U %G %n %s %T@ %l %P\\0"
    for options in ([], ["-depth"], ["-type", "f", "-size", "+1000c"], ["-type", "l"],
                    ["-empty", "-type", "f"], ["-links", "+1", "-not", "-type", "d"],
                    ["-newermt", "2010-01-01"], ["-perm", "-4000"]):
        found, expected = (
            sorted(strip_directory_sizes(
                run("find", root, *options, "-printf", form).stdout.split(b"\0")))
            for root in (mounted, source))
        check_equal(found, expected, f"find {options}")


def strip_directory_sizes(lines):
    """The size of a directory is the filesystem's own business."""
    for line in lines:
        fields = line.split(b" ", 8)
        if fields[0] == b"d":
            fields[5] = b"0"
        yield b" ".join(fields)


def check_du(mounted):
    need_program("du")
    blocks, seen = 0, set()
    for path in tree.walk(mounted):
        st = os.lstat(os.path.join(os.fsencode(mounted), path) if path else mounted)
        if st.st_ino not in seen:
            seen.add(st.st_ino)
            blocks += st.st_blocks
    said = run("du", "-s", "--block-size=512", mounted).stdout.split()[0]
    check_equal(int(said), blocks, "du")


def check_tar_of_mount(work, source, mounted):
    """tar -S goes by st_blocks: a file that claims none would be stored as a hole."""
    copy = work / "of-mount.tar"
    run("tar", "--format=pax", "--sparse", "--xattrs", "--xattrs-include=*", "--numeric-owner",
        "-cf", copy, "-C", mounted, ".")
    tree.compare(extract(work, "tar", copy, "of-mount"), tree.snapshot(source),
                 "tar -S of the mount")


def check_refusals(mounted):
    path = os.path.join(mounted, "sizes/4096")
    for what, call in (("open for writing", lambda: os.open(path, os.O_RDWR)),
                       ("unlink", lambda: os.unlink(path)),
                       ("mkdir", lambda: os.mkdir(os.path.join(mounted, "new"))),
                       ("rename", lambda: os.rename(path, path + "x")),
                       ("chmod", lambda: os.chmod(path, 0o600)),
                       ("utime", lambda: os.utime(path)),
                       ("setxattr", lambda: os.setxattr(path, "user.x", b"")),
                       ("symlink", lambda: os.symlink("x", os.path.join(mounted, "s")))):
        try:
            call()
        except OSError as error:
            check_equal(error.errno, errno.EROFS, f"errno of {what}")
        else:
            raise Failure(f"{what} is allowed")
    for name, wanted in (("none", errno.ENOENT), ("sizes/none", errno.ENOENT),
                         ("sizes/4096/none", errno.ENOTDIR), ("n" * 255, errno.ENOENT),
                         ("n" * 256, errno.ENAMETOOLONG), ("n" * 1100, errno.ENAMETOOLONG)):
        try:
            os.lstat(os.path.join(mounted, name))
        except OSError as error:
            check_equal(error.errno, wanted, f"errno of the name {name[:20]}, which is not there")
        else:
            raise Failure(f"{name} exists")
    try:
        os.getxattr(path, "user.none")
    except OSError as error:
        check_equal(error.errno, errno.ENODATA, "errno of an attribute that is not there")


def test_what_is_executable_goes_by_the_modes(work):
    """Any of the three bits, as nothing else is checked; and only access(2) costs a request."""
    modes = {0o644: False, 0o755: True, 0o100: True, 0o010: True, 0o001: True, 0o000: False,
             0o4644: False}
    archive, content = work / "programs.tar", b"#!/bin/sh\necho ran\n"
    with tarfile.open(archive, "w") as programs:  # whose files not everybody could open
        for mode in modes:
            member = tarfile.TarInfo(oct(mode))
            member.mode, member.size = mode, len(content)
            programs.addfile(member, io.BytesIO(content))

    def asked(mount):
        with open(mount / ".onepot/stat.json", encoding="utf-8") as f:
            return json.load(f)["requests"].get("ACCESS", 0)

    with work.mount(archive) as mount:
        for _ in range(2):
            for mode in modes:
                os.stat(mount / oct(mode))
                with open(mount / oct(mode), "rb") as f:
                    f.read()
        check_equal(run(mount / "0o755").stdout, b"ran\n", "a program of the mount")
        check_equal(asked(mount), 0, "requests of stat, open, read and exec")
        for path in mount.path, mount / ".onepot":
            check(os.access(path, os.X_OK | os.R_OK), f"{path} can't be entered")
        check(not os.access(mount / ".onepot/stat", os.X_OK), "the report is a program")
        for mode, expected in modes.items():
            path = mount / oct(mode)
            check_equal([os.access(path, how) for how in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)],
                        [True, True, False, expected], f"access of {oct(mode)}")
        check_equal(run("find", mount.path, "-type", "f", "-executable", "-printf", "%f ").stdout.split(),
                    run("find", mount.path, "-type", "f", "-perm", "/111", "-printf", "%f ").stdout.split(),
                    "find -executable")
        check(asked(mount) > 0, "access(2) was not asked for")


def test_changed_times_show(work):
    """Reading changes nothing: atime, as everything else, stays."""
    source = make_tree(work, tree.USTAR)
    archive = gnu_tar(work, source, "gnu.tar", "--format=ustar")
    with work.mount(archive) as mount:
        before = tree.snapshot(mount.path)
        atimes = {p: os.lstat(os.path.join(os.fsencode(mount.path), p)).st_atime_ns
                  for p in before if p}
        tree.compare(tree.snapshot(mount.path), before, "the same once more")
        for path, atime in atimes.items():
            found = os.lstat(os.path.join(os.fsencode(mount.path), path)).st_atime_ns
            check_equal(found, atime, f"{path!r}: atime after reading")


def test_attributes_of_other_systems_are_left_out_and_counted(work):
    need_program("cp")
    archives = []
    for name in ("one", "two"):
        archives.append(work / f"{name}.tar")
        with tarfile.open(archives[-1], "w", format=tarfile.PAX_FORMAT) as t:
            member = tarfile.TarInfo(name)
            member.pax_headers = {"SCHILY.xattr.com.apple.provenance": "1",
                                  "LIBARCHIVE.xattr.com.apple.quarantine": "Mg"}
            t.addfile(member)

    def left_out(*words):
        return json.loads(onepot("info", "--json", *words).stdout)[0]["xattrs_left_out"]

    check_equal(left_out(archives[0]), 2, "info")
    check(b"2 extended attributes that Linux has no place for" in onepot("info", archives[0]).stdout,
          "info, for people")
    onepot("verify", archives[0])
    with work.mount(*archives) as mount:
        run("cp", "--preserve=all", mount / "one", mount / "two", work.make("copies"))
        check_equal(mount.notes, "", "what it said")
    os.mkdir(work / "set")
    for archive in archives:
        os.rename(archive, work / f"set/{os.path.basename(archive)}")
    check_equal(left_out(work / "set"), 4, "a union")
    onepot("pack", "-o", work / "packed.tar", work / "set/one.tar")
    check_equal(left_out(work / "packed.tar"), 0, "packed anew")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

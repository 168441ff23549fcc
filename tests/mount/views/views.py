"""Views: a part of an archive, or its members under other names, is what every command sees."""

import os
import random
import stat
import subprocess
import tarfile

import harness
from harness import check, check_equal, need_program, onepot, run

ODD = [b"new\nline", b"a\ttab", b"no\xffutf8", b"-dash", b"glob*[x]?", b"back\\slash", b"#hash"]


def make_tree(work):
    """What the archives here have; the path of each file, and its bytes."""
    files = {b"train/a/1.jpg": b"one", b"train/a/2.jpg": b"two" * 5000, b"train/a/note.txt": b"n",
             b"train/b/1.jpg": b"b one", b"val/a/1.jpg": b"val one", b"readme": b"hello"}
    for i, name in enumerate(ODD):
        files[b"odd/" + name] = b"odd %d" % i
    root = os.fsencode(work.make("tree"))
    for path, data in files.items():
        os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
        with open(os.path.join(root, path), "wb") as f:
            f.write(data)
    os.mkdir(os.path.join(root, b"empty"), 0o711)
    os.link(os.path.join(root, b"train/a/1.jpg"), os.path.join(root, b"train/b/link.jpg"))
    files[b"train/b/link.jpg"] = b"one"
    os.chmod(os.path.join(root, b"train"), 0o750)
    return os.fsdecode(root), files


def make_tar(work, name="a.tar", *options):
    root, files = make_tree(work)
    run("tar", "-C", root, *options, "-cf", work / name, ".")
    return work / name, files


def shown(*arguments, **options):
    """The paths that ls -R prints."""
    return set(onepot("ls", "-R", "-0", *arguments, **options).stdout.split(b"\0")) - {b""}


def write(path, data):
    with open(path, "wb") as f:
        f.write(data)
    return path


def check_tree(mount, expected):
    """The files below a directory are these, with these bytes."""
    found = {}
    for folder, _, names in os.walk(os.fsencode(mount)):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as f:
                found[os.path.relpath(path, os.fsencode(mount))] = f.read()
    check_equal(found, expected, "the files")


# ---- patterns ----

def test_the_first_pattern_that_matches_decides(work):
    archive, _ = make_tar(work)
    cases = [
        (["--include", "train"], {b"train", b"train/a", b"train/a/1.jpg", b"train/a/2.jpg",
                                  b"train/a/note.txt", b"train/b", b"train/b/1.jpg",
                                  b"train/b/link.jpg"}),
        (["--include", "*.txt"], {b"train", b"train/a", b"train/a/note.txt"}),
        (["--include", "val/*"], {b"val", b"val/a", b"val/a/1.jpg"}),
        (["--include", "/readme"], {b"readme"}),
        (["--include", "empty"], {b"empty"}),
        (["--include", "b/"], {b"train", b"train/b", b"train/b/1.jpg", b"train/b/link.jpg"}),
        (["--exclude", "*.jpg", "--include", "train"],
         {b"train", b"train/a", b"train/a/note.txt", b"train/b"}),
        (["--include", "note.txt", "--exclude", "a", "--include", "train"],
         {b"train", b"train/b", b"train/b/1.jpg", b"train/b/link.jpg"}),
        (["--include", "2.*", "--exclude", "*.jpg", "--exclude", "odd", "--exclude", "val/"],
         {b"train", b"train/a", b"train/a/2.jpg", b"train/a/note.txt", b"train/b", b"readme",
          b"empty"}),
    ]
    for options, expected in cases:
        check_equal(shown(*options, archive), expected, str(options))


def test_glob_characters_can_be_meant(work):
    archive, _ = make_tar(work)
    check_equal(shown("--include", "glob\\*\\[x\\]\\?", archive), {b"odd", b"odd/glob*[x]?"}, "quoted")
    check_equal(shown("--include", b"*\xff*", archive), {b"odd", b"odd/no\xffutf8"}, "bytes")


def test_a_pattern_that_shows_nothing_is_an_error(work):
    archive, _ = make_tar(work)
    done = onepot("ls", "--include", "trian/*", archive, status=1)
    check(b"nothing in it matches --include 'trian/*'" in done.stderr, done.stderr)
    check_equal(shown("--exclude", "*", archive), set(), "all excluded")


# ---- lists ----

def test_a_list_has_the_names_in_any_order(work):
    archive, _ = make_tar(work)
    names = [b"val/a/", b"./train//a/2.jpg", b"/readme", b"train/b/link.jpg", b"readme", b"empty"]
    expected = {b"val", b"val/a", b"val/a/1.jpg", b"train", b"train/a", b"train/a/2.jpg",
                b"train/b", b"train/b/link.jpg", b"readme", b"empty"}
    for end in b"\n", b"\0":
        path = write(work / "list", b"".join(name + end for name in names))
        check_equal(shown("--files-from", path, archive), expected, "names")
        check_equal(shown("--files-from", "-", archive, input=b"".join(n + end for n in names),
                          stdin=None), expected, "of standard input")
    odd = [b"odd/" + name for name in ODD]
    path = write(work / "list", b"\0".join(odd) + b"\0")
    check_equal(shown("--files-from", path, archive), {b"odd", *odd}, "odd names")
    check_equal(shown("--files-from", write(work / "list", b""), archive), set(), "no names")
    path = write(work / "list", b"train/\nreadme\n")
    check_equal(shown("--files-from", path, "--include", "*.txt", archive),
                {b"train", b"train/a", b"train/a/note.txt"}, "a pattern applies to the list")


def test_names_that_the_archive_lacks_are_an_error(work):
    archive, _ = make_tar(work)
    path = write(work / "list", b"readme\nval/none\nreadme/below\ntrain/a/1.jpgx\n")
    done = onepot("ls", "--files-from", path, archive, status=1)
    check(b"readme/below: the archive does not have it" in done.stderr and
          b"nor 2 more of its names" in done.stderr, done.stderr)
    done = onepot("ls", "--files-from", write(work / "list", b"a/../b\n"), archive, status=1)
    check(b"'..'" in done.stderr, done.stderr)
    done = onepot("ls", "--files-from", work / "none", archive, status=1)
    check(b"none: No such file" in done.stderr, done.stderr)
    onepot("ls", "--files-from", work.path, archive, status=1)


def test_a_list_of_many_names(work):
    """A tenth of many, not in their order."""
    count = 300_000
    with open(work / "big.tar", "wb") as f:
        header = bytearray(tarfile.TarInfo("d000/f000").tobuf())
        header[0:9], header[148:156] = bytes(9), b" " * 8
        rest = sum(header)
        for i in range(count):
            name = b"d%03d/f%03d" % (i // 1000, i % 1000)
            header[0:9] = name
            header[148:156] = b"%06o\0 " % (rest + sum(name))
            f.write(header)
        f.write(bytes(1024))
    numbers = random.Random(1).sample(range(count), count // 10)
    names = [b"d%03d/f%03d" % (i // 1000, i % 1000) for i in numbers]
    path = write(work / "list", b"\n".join(names))
    found = shown("--files-from", path, work / "big.tar")
    check_equal(len(found), count // 10 + count // 1000, "entries")
    check(found.issuperset(names), "a name is lacking")
    check_equal(len(shown("--include", "d00[12]/*", work / "big.tar")), 2002, "of two folders")


# ---- maps ----

def test_a_map_gives_other_names(work):
    archive, files = make_tar(work)
    lines = [b"train/a\tclasses/cat", b"", b"val/a/1.jpg\tclasses/dog/1.jpg",
             b"train/b/link.jpg\tlink", b"readme\tagain/readme", b"readme\t./twice//readme",
             b"odd/new\\nline\ttab\\tnewline\\n", b"odd/back\\\\slash\tback\\\\", b"odd/#hash\t#hash"]
    path = write(work / "map", b"\n".join(lines))
    expected = {b"classes/cat/1.jpg": b"one", b"classes/cat/2.jpg": files[b"train/a/2.jpg"],
                b"classes/cat/note.txt": b"n", b"classes/dog/1.jpg": b"val one", b"link": b"one",
                b"again/readme": b"hello", b"twice/readme": b"hello",
                b"tab\tnewline\n": files[b"odd/new\nline"], b"back\\": files[b"odd/back\\slash"],
                b"#hash": files[b"odd/#hash"]}
    with work.mount(archive, "--map", path) as mount:
        check_tree(mount.path, expected)
        check_equal(os.stat(mount.path + "/link").st_ino,
                    os.stat(mount.path + "/classes/cat/1.jpg").st_ino, "inode of links")
        check_equal(os.stat(mount.path + "/twice/readme").st_nlink, 2, "links")


def test_maps_that_make_no_sense(work):
    archive, _ = make_tar(work)
    cases = [(b"readme\tx\nval/a/1.jpg\tx\n", b"val/a/1.jpg: would have the name that 'readme' has (line 2"),
             (b"train/a\tx\ntrain/b\tx\n", b"train/b/1.jpg: would have the name that 'train/a/1.jpg' has (line 2"),
             (b"readme\tx\nval/a/1.jpg\tx/y\n", b"val/a/1.jpg: would have the name that 'readme' has (line 2"),
             (b"readme\tx\n\nnone\ty\n", b"none: the archive does not have it (line 3 of"),
             (b"readme x\n", b"line 1 has no tab"), (b"readme\tx\ty\n", b"line 1 has two tabs"),
             (b"readme\t../x\n", b"line 1 has an empty name, or '..'"), (b"readme\t\n", b"line 1 has an empty"),
             (b"\tx\n", b"line 1 has an empty"), (b"readme\t/\n", b"line 1 has an empty"),
             (b"readme\tx\\y\n", b"line 1 has a backslash"), (b"readme\tx\\\n", b"line 1 has a backslash"),
             (b"readme\tx\0y\n", b"line 1 has a zero byte"),
             (b"readme\t" + b"x" * 256 + b"\n", b"more than 255")]
    for text, message in cases:
        done = onepot("ls", "--map", write(work / "map", text), archive, status=1)
        check(message in done.stderr, (text[:40], done.stderr))
        check_equal(done.stderr.count(b"\n"), 1, "lines")
    same = write(work / "map", b"readme\tx\nreadme\tx\ntrain\ty\ntrain/a\ty/a\n")
    check_equal(shown("--map", same, archive) & {b"x", b"y", b"y/a/1.jpg"},
                {b"x", b"y", b"y/a/1.jpg"}, "a member twice under one name")
    onepot("ls", "--map", same, "--files-from", same, archive, status=2)
    for option in "--map", "--files-from":
        done = onepot("ls", option, same, option, same, archive, status=2)
        check(b"can be given once" in done.stderr, done.stderr)


# ---- every command, every format ----

def test_every_command_sees_the_view(work):
    archive, files = make_tar(work)
    view = ["--exclude", "*.txt", "--include", "train/a"]
    expected = {b"train/a/1.jpg": b"one", b"train/a/2.jpg": files[b"train/a/2.jpg"]}
    inside = {b"a/1.jpg": b"one", b"a/2.jpg": files[b"train/a/2.jpg"]}
    check_equal(onepot("cat", *view, archive, "train/a/1.jpg").stdout, b"one", "cat")
    onepot("cat", *view, archive, "readme", status=1)
    check(b"2 files, 3 directories" in onepot("info", *view, archive).stdout, "info")
    onepot("extract", *view, archive, "-C", work.make("out"))
    check_tree(work / "out", expected)
    onepot("pack", "-q", *view, archive, "-o", work / "packed.tar")
    onepot("extract", work / "packed.tar", "-C", work.make("packed"))
    check_tree(work / "packed", expected)
    listed = write(work / "list", b"train/a/1.jpg\n")
    onepot("pack", "-q", "--files-from", listed, archive, "-o", work / "listed.tar")
    check_equal(shown(work / "listed.tar"), {b"train", b"train/a", b"train/a/1.jpg"}, "pack")
    onepot("pack", "-q", "--map", write(work / "map", b"train/a\tx"), archive, "-o", work / "m.tar")
    check(b"x/1.jpg" in shown(work / "m.tar"), "pack --map")
    done = onepot("pack", *view, work / "tree", "-o", work / "no.tar", status=2)
    check(b"--include, --map and --nested are for archives" in done.stderr, done.stderr)
    done = onepot("run", *view, archive, "--at", work.make("run"), "--", "find", work / "run", "-type", "f")
    check_equal(len(done.stdout.splitlines()), 2, "run")
    with work.mount(*view, archive) as mount:
        check_tree(mount.path, expected)
        check_equal(stat.S_IMODE(os.stat(mount.path + "/train").st_mode), 0o750, "mode")
    with work.mount(*view, "--subdir", "train", archive) as mount:
        check_tree(mount.path, inside)


def check_formats(work, archive, files, sums=False):
    expected = {path: data for path, data in files.items() if path.endswith(b".jpg")}
    for options in [], ["--stage"], ["--verify"]:
        with work.mount("--include", "*.jpg", *options, archive) as mount:
            check_tree(mount.path, expected)
            check_equal("compares nothing" in mount.notes, "--verify" in options and not sums,
                        f"sums, {archive}")


def test_views_of_all_formats(work):
    root, files = make_tree(work)
    tar = work / "a.tar"
    run("tar", "-C", root, "-cf", tar, ".")
    onepot("pack", "-q", root, "-o", work / "plain.onepot.tar")
    onepot("pack", "-q", "--zstd", root, "-o", work / "zstd.onepot.tar.zst")
    check_formats(work, tar, files)
    check_formats(work, work / "plain.onepot.tar", files, sums=True)
    check_formats(work, work / "zstd.onepot.tar.zst", files, sums=True)


def test_a_view_of_a_zip(work):
    need_program("zip")
    root, files = make_tree(work)
    run("zip", "-q", "-r", work / "a.zip", "train", "val", cwd=root)
    check_formats(work, work / "a.zip", files, sums=True)


def test_a_view_of_squashfs(work):
    need_program("mksquashfs")
    root, files = make_tree(work)
    run("mksquashfs", root, work / "a.squashfs", "-quiet", "-no-progress")
    check_formats(work, work / "a.squashfs", files)


def test_a_view_of_a_stream(work):
    root, files = make_tree(work)
    with open(work / "a.tar.gz", "wb") as f:
        subprocess.run(["tar", "-C", root, "-cz", "."], stdout=f, check=True)
    check_formats(work, work / "a.tar.gz", files)
    onepot("index", work / "a.tar.gz")
    check_formats(work, work / "a.tar.gz", files)
    onepot("index", "--include", "*.jpg", work / "a.tar.gz")
    check_formats(work, work / "a.tar.gz", files)


# ---- saved ----

def saved(work):
    folder = os.path.join(work.path, ".home", "cache", "onepot")
    return sorted(os.path.join(folder, name) for name in os.listdir(folder)) if os.path.isdir(folder) else []


def test_a_saved_view_is_used_for_the_same_view_alone(work):
    archive, files = make_tar(work)
    listed = write(work / "list", b"readme\n")
    view = ["--files-from", listed]
    done = onepot("index", *view, archive)
    check(b"saved in" in done.stdout, done.stdout)
    check_equal(len(saved(work)), 1, "saved views")
    check(b"saved in" in onepot("info", *view, archive).stdout, "not used")
    check(b"made just now" in onepot("info", "--include", "val", archive).stdout, "another view")
    write(listed, b"./readme\n")
    check(b"saved in" in onepot("info", *view, archive).stdout, "the same names")
    write(listed, b"readme\nval/a/1.jpg\n")
    check(b"made just now" in onepot("info", *view, archive).stdout, "another list")
    check_equal(shown(*view, archive), {b"readme", b"val", b"val/a", b"val/a/1.jpg"}, "the list")
    write(listed, b"readme\n")
    os.utime(archive, (1, 1))
    check(b"made just now" in onepot("info", *view, archive).stdout, "another archive")
    check_equal(set(files) < shown(archive), True, "the archive without a view")


def test_a_damaged_saved_view_is_made_anew(work):
    archive, _ = make_tar(work)
    view = ["--include", "readme"]
    onepot("index", *view, archive)
    [path] = saved(work)
    with open(path, "rb") as f:
        image = f.read()
    for size in range(0, len(image), 37):
        write(path, image[:size])
        check_equal(shown(*view, archive), {b"readme"}, f"cut at {size}")
    write(path, image[:300] + bytes([image[300] ^ 1]) + image[301:])
    done = onepot("ls", *view, archive)
    check_equal((done.stdout, done.stderr.count(b"is damaged")), (b"readme\n", 1), "damaged")
    write(path, image)
    os.chmod(path, 0o666)
    done = onepot("info", *view, archive)
    check(done.stderr.count(b"can be written to by others") == 1 and b"made just now" in done.stdout, "trust")


def test_mounts_of_two_views_are_two(work):
    archive, _ = make_tar(work)
    a = onepot("mount", "--include", "readme", archive).stdout
    b = onepot("mount", "--include", "val", archive).stdout
    again = onepot("mount", "--include", "readme", archive).stdout
    try:
        check(a != b and a == again, (a, b, again))
        check_equal(os.listdir(a.strip()), [b"readme"], "the first")
        check_equal(os.listdir(b.strip()), [b"val"], "the second")
    finally:
        for path in a, b, again:
            onepot("umount", path.strip())


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

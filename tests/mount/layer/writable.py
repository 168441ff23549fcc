"""run --writable: what a command writes is seen by it, is gone or kept at its end, and never in the
archive."""

import fcntl
import io
import json
import os
import random
import signal
import stat
import sys
import tarfile
import time

import harness
import life
from harness import Skip, check, check_equal, need_program, need_root, run
from life import check_nothing_left, ended, fails, make_archive, read, said, write

PYTHON = sys.executable
ODD_NAME = 'a:b,c\\d "e\nf'

CHANGE = """
import os, sys
os.chdir(sys.argv[1])
with open("sub/0000", "ab") as f:
    f.write(b"appended")
with open("sub/0001", "r+b") as f:
    f.write(b"HEAD")
os.unlink("sub/0002")
os.rename("sub/0003", "sub/renamed")
os.mkdir("new")
with open("new/file", "w") as f:
    f.write("new")
os.chmod("sub/0004", 0o600)
os.unlink("readme")
os.mkdir("readme")
"""


def need_overlay():
    with open("/proc/filesystems", encoding="ascii") as f:
        if "overlay" not in f.read():
            raise Skip("this kernel has no overlayfs")


def writable(archive, *command, where=None, **options):
    """`onepot run --writable -- COMMAND`."""
    need_overlay()
    option = "--writable" if where is None else f"--writable={where}"
    return harness.onepot("run", option, archive, "--", *command, **options)


def python(script):
    return [PYTHON, "-c", script, "{}"]


def check_changed(path):
    """What CHANGE has made of the files."""
    sub = os.path.join(path, "sub")
    check_equal(read(f"{sub}/0000"), b"0000" * 500 + b"appended", "appended")
    check_equal(read(f"{sub}/0001"), b"HEAD" + b"0001" * 499, "changed in the middle")
    check(not os.path.exists(f"{sub}/0002"), "what was removed is there")
    check_equal(read(f"{sub}/renamed"), b"0003" * 500, "renamed")
    check("0003" not in os.listdir(sub), "it is listed by its old name")
    check_equal(read(f"{path}/new/file"), b"new", "a new file")
    check_equal(stat.S_IMODE(os.stat(f"{sub}/0004").st_mode), 0o600, "a mode")
    check_equal(os.listdir(f"{path}/readme"), [], "a directory in the place of a file")


def check_extracted(work, name):
    """A copy of the view that a command has made."""
    check_changed(work / name)
    harness.shutil.rmtree(work / name)


def test_memory_is_gone_at_the_end(work):
    archive = make_archive(work)
    before = read(archive)
    done = writable(archive, "sh", "-c", '"$0" -c "$1" "$2" && cp -r "$2" "$3"', PYTHON, CHANGE, "{}", work / "seen")
    check_extracted(work, "seen")
    check("of changes lay in memory, and are gone" in said(done), f"the last line: {said(done)!r}")
    check_nothing_left()
    check_equal(read(archive) == before, True, "the archive is the same")
    done = writable(archive, "cat", "{}/readme")
    check_equal(done.stdout, b"hello\n", "what the next one sees")
    check("of changes" not in said(done), f"nothing was written: {said(done)!r}")
    check_nothing_left()


def test_a_folder_keeps_it_for_the_next(work):
    archive = make_archive(work)
    for where in work / "kept", work / ODD_NAME:
        done = writable(archive, *python(CHANGE), where=where)
        check("of changes lie in" in said(done), f"the last line: {said(done)!r}")
        check_nothing_left()
        writable(archive, "cp", "-r", "{}", work / "seen", where=where)
        check_extracted(work, "seen")
        check_equal(sorted(os.listdir(where)), ["archive", "changes", "lock", "view", "work"], "what lies there")
    os.symlink("kept", work / "link")
    writable(archive, "cp", "-r", "{}", work / "seen", where="link", cwd=work.path)
    check_extracted(work, "seen")
    check_nothing_left()


def test_root_renames_folders_of_the_archive_in_memory(work):
    """As git does, which copies nothing. In DIR the attributes of an ordinary user can't say where one came from."""
    need_root("have trusted attributes")
    archive = make_archive(work)
    script = "import os, sys\nos.chdir(sys.argv[1])\nos.rename('sub', 'moved')\nos.rename('moved', 'again')\nprint(len(os.listdir('again')))"
    done = writable(archive, *python(script))
    check_equal(done.stdout, b"%d\n" % life.FILES, "files of a folder that was renamed twice")
    done = writable(archive, *python(script), where=work / "kept", status=1)
    check("Invalid cross-device link" in said(done), f"what it says in DIR: {said(done)!r}")
    writable(archive, "sh", "-c", "mv {}/sub {}/moved && cat {}/moved/0007", where=work / "kept")
    if run("unshare", "-Ur", "true", status=None).returncode == 0:  # the root of a container has no such attributes
        run("unshare", "-Ur", harness.onepot_program(), "run", "--writable", archive, "--", "sh", "-c",
            "mv {}/sub {}/moved && mkdir {}/sub && cat {}/moved/0007")
    if harness.shutil.which("git"):
        writable(archive, "sh", "-c", 'cd "$0" && git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm a && '
                 "git mv sub moved && git status --porcelain -s | grep -c ^R", "{}", env=harness.environment(HOME=work.path))
    check_nothing_left()


def test_packing_the_view_keeps_the_changes(work):
    archive = make_archive(work)
    writable(archive, "sh", "-c", '"$0" -c "$1" "$2" && "$3" pack -o "$4" "$2"', PYTHON, CHANGE, "{}",
             harness.onepot_program(), work / "new.tar")
    with work.mount(work / "new.tar") as mount:
        check_changed(mount.path)


def test_an_ordinary_user_may_change_the_files_of_any_owner(work):
    """In a user namespace, where nobody else has a number."""
    need_root("give files away")
    need_program("unshare", "tar")
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if run(*user, "true", status=None).returncode:
        raise Skip("there are no user namespaces by numbers here")
    need_overlay()
    archive = make_archive(work)
    for name in "trusted.of-root", "security.of-root":
        try:
            os.setxattr(work / "source/sub/0000", name, b"value")
        except OSError as e:
            print(f"without {name}: {e}")
    run("tar", "--owner=1234", "--group=1234", "--format=pax", "--xattrs", "--xattrs-include=*", "-cf", archive, "-C",
        work / "source", ".")
    for option in "--writable", f"--writable={work.path}/kept":
        run(*user, harness.onepot_program(), "run", "--intercept=off", option, archive, "--", "sh", "-c",
            'id -u; "$0" -c "$1" "$2" && rm -r "$2/new" && mkdir "$2/new" && echo -n new >"$2/new/file" && '
            'cp -r "$2" "$3"', PYTHON, CHANGE, "{}", work / "seen")
        check_extracted(work, "seen")
        check_nothing_left(option)


def test_members_that_nobody_may_read_are_read_as_without_a_layer(work):
    need_program("unshare", "tar")
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if os.geteuid() != 0:
        user = []
    elif run(*user, "true", status=None).returncode:
        raise Skip("there are no user namespaces by numbers here")
    need_overlay()
    os.makedirs(work / "source/closed")
    for name in "source/file", "source/closed/file":
        life.write(work / name, b"text")
    run("tar", "--mode=0", "-cf", work / "a.tar", "-C", work / "source", "file", "closed")
    for options in [], ["--writable"]:
        done = run(*user, harness.onepot_program(), "run", *options, work / "a.tar", "--", "sh", "-c",
                   "cd {} && cat file closed/file")
        check_equal(done.stdout, b"texttext", f"what is read, {options}")


def labelled(path, names):
    """A tar of 300 files, each with these attributes."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for i in range(300):
            member = tarfile.TarInfo(f"sub/{i:04}")
            member.size, member.uid = 4, os.geteuid()
            member.pax_headers = {f"SCHILY.xattr.{name}": "value" for name in names}
            tar.addfile(member, io.BytesIO(b"%04d" % i))


def test_attributes_that_nobody_sees_cost_an_ordinary_user_nothing(work):
    """SELinux labels all files, and an overlay asks each file that it meets for an attribute."""
    need_overlay()
    user = []
    if os.geteuid() == 0:
        need_program("unshare")
        user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
        if run(*user, "true", status=None).returncode:
            raise Skip("there are no user namespaces by numbers here")
    script = """
import json, os, sys
os.chdir(sys.argv[1] + "/sub")
for name in sorted(os.listdir(".")):
    assert open(name, "rb").read() == name.encode()
print(json.dumps(os.listxattr("0007")))
print(open(sys.argv[1] + "/.onepot/stat.json").read())
"""
    for names, shown, few in ((["security.selinux", "trusted.x"], [], True), (["security.selinux", "user.x"], ["user.x"], False)):
        labelled(work / "a.tar", names)
        done = run(*user, harness.onepot_program(), "run", "--intercept=off", "--writable", work / "a.tar", "--", PYTHON, "-c",
                   script, "{}")
        seen, text = done.stdout.decode().split("\n", 1)
        check_equal(json.loads(seen), shown, "the attributes that are listed")
        asked = json.loads(text)["requests"].get("GETXATTR", 0)
        check((asked <= 2) == few, f"{asked} requests for attributes, with {names}")
    check_nothing_left()


REPORT = """
import json, os, sys
os.chdir(sys.argv[1])
for i in range(100):
    with open(".onepot/stat.json", encoding="utf-8") as f:
        before = json.load(f)
    with open(".onepot/stat", encoding="utf-8") as f:
        assert "serving" in f.read()
open("sub/0000", "rb").read()
while True:
    with open(".onepot/stat.json", encoding="utf-8") as f:
        if json.load(f)["read_files"] > before["read_files"]:
            break
for attempt in (lambda: open(".onepot/stat", "w"), lambda: open(".onepot/stat.json", "r+"), lambda: open(".onepot/new", "w"),
                lambda: os.unlink(".onepot/stat"), lambda: os.chmod(".onepot", 0o777), lambda: os.mkdir(".onepot/new")):
    try:
        attempt()
        print("done")
    except OSError as e:
        print(e.errno)
print(os.listdir("."))
"""


def test_the_report_is_read_as_often_as_one_likes_and_never_written(work):
    """An overlay gives a file that has become another one up, with ESTALE, and copies what it can."""
    need_overlay()
    archive = make_archive(work)
    for where in None, work / "kept":
        done = writable(archive, *python(REPORT), where=where)
        lines = done.stdout.decode().splitlines()
        check_equal(set(lines[:-1]), {"30"} if os.geteuid() == 0 else {"13", "30"}, "errors of writing")
        check(".onepot" not in lines[-1], f"it is listed: {lines[-1]}")
    check_equal(os.listdir(work / "kept/changes"), [], "what was copied to the layer")
    check_nothing_left()


# ---- whose it is ----

def test_what_can_t_be_a_folder_for_it_is_refused_in_a_line(work):
    archive = make_archive(work)
    need_overlay()
    write(work / "file", b"")
    work.make("full")
    write(work / "full/mine", b"")
    for where, words in ((work / "file", ["ot a directory"]), (work / "full", ["holds other files"]),
                         (work / "absent/dir", ["No such file"]), (work / "at/dir", ["No such file"])):
        fails("run", f"--writable={where}", archive, "--at", work / "at", "--", "true", status=125, words=words)
    fails("run", "--writable=", archive, "--", "true", status=2)
    fails("run", "--writable", "--private=off", archive, "--", "true", status=2, words=["--private=off"])
    check_equal(os.listdir(work / "full"), ["mine"], "what lies there")
    os.chmod(work.make("open"), 0o777)
    fails("run", f"--writable={work.path}/open", archive, "--", "true", status=125, words=["anybody may write"])
    work.make("at")
    fails("run", f"--writable={work.path}/at/dir", "-o", "nonempty", archive, "--at", work / "at", "--", "true", status=125,
          words=["would hide it"])
    if os.geteuid() == 0:
        os.chown(work.make("theirs"), 1234, 1234)
        fails("run", f"--writable={work.path}/theirs", archive, "--", "true", status=125, words=["belongs to user 1234"])
        os.makedirs(work / "given/changes")
        write(work / "given/lock", b"")
        os.chown(work / "given/changes", 1234, 1234)
        fails("run", f"--writable={work.path}/given", archive, "--", "true", status=125,
              words=["'changes' belongs to user 1234", f"chown 0 {work.path}/given/changes"])
        run("chown", "0", work / "given/changes")
        harness.onepot("run", f"--writable={work.path}/given", archive, "--", "true")
    check_nothing_left()


def test_overlayfs_has_the_last_word(work):
    """It takes no folder of another overlay, nor of the mount itself."""
    archive = make_archive(work)
    done = writable(archive, harness.onepot_program(), "run", "--writable={}/dir", archive, "--", "true", status=125)
    check("overlayfs does not take it" in said(done), f"what it says: {said(done)!r}")
    check_nothing_left()


def test_a_folder_of_another_node_is_refused(work):
    """As NFS and Lustre are: by a filesystem that has to be asked whether a name is still good."""
    need_overlay()
    need_program("fuse-overlayfs", "fusermount3")
    archive, net = make_archive(work), work.make("net")
    parts = ",".join(f"{part}dir={work.make(part)}" for part in ("lower", "upper", "work"))
    run("fuse-overlayfs", "-o", parts, net)
    try:
        fails("run", f"--writable={net}/kept", archive, "--", "true", status=125,
              words=["overlayfs does not take it", "a disk of this node"])
    finally:
        run("fusermount3", "-u", net)
    check_nothing_left()


def test_one_job_at_a_time_and_all_its_ranks_write_to_a_folder(work):
    archive, kept = make_archive(work), work / "kept"
    need_overlay()
    command = ["run", f"--writable={kept}", archive, "--"]
    with life.background(*command, "sh", "-c", "echo first >{}/one; echo; cat; cat {}/two",
                         stdin=harness.subprocess.PIPE) as first:
        life.first_line(first)
        done = harness.onepot(*command, "sh", "-c", "cat {}/one; echo second >{}/two")
        check_equal(done.stdout, b"first\n", "what a rank of the same step sees")
        fails(*command, "true", status=125, words=["another job or session writes there", str(first.pid)],
              env=harness.environment(SLURM_JOB_ID="77"))
        status, out, errors = ended_after_input(first)
        check_equal((status, out), (0, b"second\n"), f"what the first one sees: {errors}")
    check_nothing_left()
    harness.onepot(*command, "true", env=harness.environment(SLURM_JOB_ID="77"))
    check_nothing_left()


def test_outside_of_jobs_a_layer_is_its_session_s(work):
    """Another terminal's commands know nothing of it; who joins one that was changed is told."""
    archive = make_archive(work)
    need_overlay()
    told = "other commands of this session have changed it"
    for option in "--writable", f"--writable={work.path}/kept":
        command = ["run", option, archive, "--"]
        with life.background(*command, "sh", "-c", "echo; read word; rm {}/sub/0001; echo; read word; true",
                             stdin=harness.subprocess.PIPE) as first:
            life.first_line(first)
            done = harness.onepot(*command, "ls", "{}/sub")
            check_equal((len(done.stdout.split()), told in said(done)), (life.FILES, False), "who comes before any change")
            first.stdin.write(b"\n")
            first.stdin.flush()
            life.first_line(first)
            done = harness.onepot(*command, "ls", "{}/sub")
            check_equal((len(done.stdout.split()), said(done).count(told)), (life.FILES - 1, 1), f"who joins: {said(done)}")
            check_equal(harness.onepot(*command, "ls", "{}/sub").stdout, done.stdout, "who joins when another one that did has ended")
            if option == "--writable":
                done = harness.onepot(*command, "ls", "{}/sub", start_new_session=True)
                check_equal((len(done.stdout.split()), told in said(done)), (life.FILES, False), "another session")
            else:
                fails(*command, "true", status=125, words=["another job or session writes there", str(first.pid)],
                      start_new_session=True)
            check_equal(ended_after_input(first)[0], 0, "the first one's status")
    check_nothing_left()


def ended_after_input(p):
    p.stdin.close()
    p.stdin = None
    return ended(p)


def changed(work, archive, *options, where=None, status=0):
    """Written over an archive: what is said."""
    return said(harness.onepot("run", f"--writable={where or work / 'kept'}", *options, archive, "--", "sh", "-c", "echo new >{}/new",
                               status=status))


def test_changes_lie_over_no_archive_but_theirs(work):
    need_overlay()
    old, kept = make_archive(work), work / "kept"
    write(work / "source/readme", b"other\n")
    new = make_archive(work, "newer.tar")
    check("another archive" not in changed(work, old), "the first archive is refused")
    text = changed(work, new, status=125)
    check_equal(text.count("\n"), 1, f"lines of {text!r}")
    for word in f"'{old}'", f"'{new}'", "is another archive":
        check(word in text, f"{word} is missing: {text!r}")
    command = text[text.index("onepot run --writable"):].strip()
    run("sh", "-c", command.replace("onepot ", f"{harness.onepot_program()} "), cwd=work.path, env=harness.environment())
    check_equal(harness.onepot("cat", work / "new.tar", "new", "readme").stdout, b"new\nhello\n", "what the told command packs")
    check("earlier '" not in text, f"an archive by another name: {text!r}")
    os.replace(make_archive(work, "other.tar"), old)
    text = changed(work, old, status=125)
    check("an earlier '" in text and f"{kept}/changes" in text, f"an archive in the same place: {text!r}")
    os.unlink(f"{kept}/archive")
    text = changed(work, old)
    check("nothing says of which archive" in text, f"a folder without a note: {text!r}")
    check("nothing says" not in changed(work, old), "said once")
    check_nothing_left()


def test_an_archive_is_known_by_its_content(work):
    """Packed anew, or under another name, where it has sums; else by size, time and samples."""
    need_overlay()
    make_archive(work)
    packed = [work / "packed.tar", work / "again.tar"]
    for i, path in enumerate(packed):
        harness.onepot("pack", *([[], ["--align=4096"]][i]), "-o", path, work / "source")
    os.utime(packed[1], (1, 1))
    for path in packed:
        check("another" not in changed(work, path), "the same content is refused")
    for options in ["--subdir", "sub"], ["--exclude=readme"], ["--each"]:
        text = changed(work, packed[0], *options, status=125)
        check("another part or arrangement" in text, f"{options}: {text!r}")
        where = work / f"kept{options[0]}"
        changed(work, packed[0], *options, where=where)
        if options != ["--each"]:  # which shows the archive's name
            check("another" not in changed(work, packed[1], *options, where=where), f"{options} again")
    plain = make_archive(work, "plain.tar")
    changed(work, plain, where=work / "of-plain")
    run("cp", "-p", plain, work / "copy.tar")
    changed(work, work / "copy.tar", where=work / "of-plain")
    with open(work / "copy.tar", "r+b") as f:
        f.seek(1000)
        f.write(b"x")
    st = os.stat(plain)
    os.utime(work / "copy.tar", ns=(st.st_mtime_ns, st.st_mtime_ns))
    check("an earlier '" in changed(work, work / "copy.tar", where=work / "of-plain", status=125), "of another sample")
    shards = [make_archive(work, f"shard-{i}.tar") for i in range(2)]
    both = ["--on-conflict=first", *shards]
    changed(work, *both, where=work / "of-shards")
    changed(work, *both, where=work / "of-shards")
    os.utime(shards[1], (5, 5000000000))
    check("earlier" in changed(work, *both, where=work / "of-shards", status=125), "one of two changed")
    check_nothing_left()


def test_changes_over_sparse_files_belong_to_their_archive_with_and_without_expect(work):
    need_overlay()
    plain, own = make_archive(work), work / "own.tar"
    with open(work / "source/sparse", "wb") as f:
        f.truncate(1 << 20)
    harness.onepot("pack", "-qo", own, work / "source")
    for archive in (own, plain):
        digest = json.loads(harness.onepot("info", "--json", "--digest", archive).stdout)[0]["digest"]
        for first, then in ([], [f"--expect={digest}"]), ([f"--expect={digest}"], []):
            where = work / f"kept-{os.path.basename(archive)}-{len(first)}"
            for options in (first, then, then, first):
                changed(work, archive, *options, where=where)
    check_nothing_left()


def test_a_folder_without_changes_takes_any_archive(work):
    need_overlay()
    old = make_archive(work)
    writable(old, "true", where=work / "kept")
    write(work / "kept/archive", b"damaged")
    new = make_archive(work, "new.tar")
    check_equal("another" in changed(work, new), False, "a folder that nothing was written to")
    check("is another archive" in changed(work, old, status=125), "and then it is the new one's")
    for make in (lambda path: write(path, b"onepot-layer 1\n"), os.mkfifo, lambda path: os.symlink("/etc/passwd", path)):
        harness.remove(work / "kept/archive")
        make(work / "kept/archive")
        text = changed(work, new, status=125)
        check("no such file of yours" in text, f"another note: {text!r}")
    if os.geteuid() == 0:
        harness.remove(work / "kept/archive")
        changed(work, new)
        os.chown(work / "kept/archive", 1234, 1234)
        check("no such file of yours" in changed(work, new, status=125), "another user's note")
    check_nothing_left()


CACHE = """
import hashlib, os, sys
cache = os.path.join(sys.argv[1], ".cache")
os.makedirs(cache, exist_ok=True)
for i in range(5):
    name = hashlib.sha256(os.path.join(sys.argv[1], "sub", f"{i:04}").encode()).hexdigest()
    if not os.path.exists(os.path.join(cache, name)):
        open(os.path.join(cache, name), "w").close()
print(len(os.listdir(cache)), sys.argv[1])
"""


def test_caches_by_path_are_found_by_every_job(work):
    """The path of what DIR keeps has no job's number in it, and two jobs run beside each other."""
    archive = make_archive(work)
    need_overlay()
    for job in "1", "2", "":
        env = harness.environment(SLURM_JOB_ID=job) if job else None
        done = writable(archive, *python(CACHE), where=work / "kept", env=env)
        check_equal(done.stdout.decode(), f"5 {work.path}/kept/view\n", f"what job {job} finds")
    with life.background("run", f"--writable={work.path}/kept", archive, "--", "sh", "-c", "echo {}; read word; cat {}/sub/0007",
                         stdin=harness.subprocess.PIPE, env=harness.environment(SLURM_JOB_ID="1")) as first:
        check_equal(life.first_line(first), f"{work.path}/kept/view", "where the first one is")
        done = writable(archive, "sh", "-c", "echo {}; cat {}/readme", where=work / "other", env=harness.environment(SLURM_JOB_ID="2"))
        check_equal(done.stdout.decode(), f"{work.path}/other/view\nhello\n", "another job beside it")
        check_equal(os.listdir(work / "kept/view"), [], "what others see there")
        check_equal(ended_after_input(first)[1], b"0007" * 500, "the first one")
    os.chmod(work.make("open"), 0o777)
    done = writable(archive, "cat", "{}/readme", where=work / "open/kept")
    check("others could replace it" in said(done) and done.stdout == b"hello\n", f"in a folder that anybody may write to: {said(done)!r}")
    check(not os.path.exists(work / "open/kept/view"), "it is shown where others could replace it")
    os.rmdir(work / "kept/view")
    os.symlink(work / "source", work / "kept/view")
    fails("run", f"--writable={work.path}/kept", archive, "--", "true", status=125, words=["is no directory"])
    check_nothing_left()


def test_a_run_in_a_run_has_a_layer_of_its_own(work):
    archive = make_archive(work)
    done = writable(archive, "sh", "-c", 'echo outer >"$0/one"; "$1" run --writable "$2" -- ls "{}"; ls "$0"', "{}",
                    harness.onepot_program(), archive)
    check(b"one" in done.stdout, f"what they see: {done.stdout}")
    check_nothing_left()


# ---- ends ----

def test_status_and_signals_pass(work):
    archive = make_archive(work)
    writable(archive, "sh", "-c", "touch {}/x; exit 77", status=77)
    writable(archive, "no-such-command", status=127)
    with life.background("run", "--writable", archive, "--", "sh", "-c", "touch {}/x; echo; exec sleep 60") as p:
        life.first_line(p)
        p.send_signal(signal.SIGTERM)
        check_equal(ended(p)[0], 128 + signal.SIGTERM, "the status after a signal")
    check_nothing_left()


SCRIBBLE = """
import os, sys
os.chdir(sys.argv[1])
i = 0
os.write(1, b"%d\\n" % os.getpid())
while True:
    i += 1
    with open("new%d" % (i % 50), "w") as f:
        f.write("x" * 1000)
    with open("sub/0001", "a") as f:
        f.write("y")
    if i % 50 == 49:
        os.replace("new1", "sub/moved%d" % (i % 7))
"""


def test_a_killed_command_leaves_a_whole_folder(work):
    archive, kept = make_archive(work), work / "kept"
    need_overlay()
    for i in range(12):
        with life.background("run", f"--writable={kept}", archive, "--", *python(SCRIBBLE)) as p:
            command = int(life.first_line(p))
            time.sleep(random.random() * 0.1)
            if i % 2:
                p.kill()
                p.wait()
            life.kill(command)
            p.wait()
        check_nothing_left(f"kill {i}")
        with open(f"{kept}/lock", "rb") as f:
            fcntl.flock(f, fcntl.LOCK_EX)  # it goes with the last process that a killed run has left
    done = writable(archive, "sh", "-c", "cat {}/sub/0000; head -c 8 {}/sub/0001", where=kept)
    check_equal(done.stdout, b"0000" * 500 + b"00010001", "what the next one sees")


def test_the_next_one_is_told_which_process_a_killed_run_has_left(work):
    archive, kept = make_archive(work), work / "kept"
    need_overlay()
    for how in "as a zombie", "gone":
        with life.background("run", f"--writable={kept}", archive, "--", "sh", "-c", "echo $$; exec sleep 1000") as p:
            command = int(life.first_line(p))
            p.kill()
            if how == "gone":
                p.wait()
            for _ in range(2):
                fails("run", f"--writable={kept}", archive, "--", "true", status=125,
                      words=[f"process {command}, of a 'run' that was killed, still writes there; end it first"],
                      env=harness.environment(SLURM_JOB_ID="77"))
            life.kill(command)
        check_nothing_left(how)
    harness.onepot("run", f"--writable={kept}", archive, "--", "true")


def test_a_full_layer_stops_the_writer_alone(work):
    archive = make_archive(work)
    script = ("import os, sys\nos.chdir(sys.argv[1])\nf = open('big', 'wb', 0)\ntry:\n    while True:\n"
              "        f.write(bytes(65536))\nexcept OSError as e:\n    print(e.errno)\nprint(open('sub/0007').read(8))")
    with work.kernel_mount("tmpfs", "none", "small", "-o", "size=1m") as small:
        done = writable(archive, *python(script), where=os.path.join(small, "kept"))
        check_equal(done.stdout, b"28\n00070007\n", "ENOSPC, and a file")
    check_nothing_left()


def test_a_file_that_is_open_shows_what_others_write_to_it(work):
    archive = make_archive(work)
    script = """
import os, sys
os.chdir(sys.argv[1])
files = [open(f"sub/{i:04}", "rb", 0) for i in range(20)]
for i, f in enumerate(files):
    assert f.read(4) == b"%04d" % i
if os.fork() == 0:
    for i, f in enumerate(files):
        with open(f"sub/{i:04}", "r+b") as w:
            w.write(b"%08x" % i)
    os._exit(0)
os.wait()
for i, f in enumerate(files):
    f.seek(0)
    assert f.read(8) == b"%08x" % i, i
    assert os.pread(f.fileno(), 8, 0) == b"%08x" % i, i
    with open(f"sub/{i:04}", "rb") as again:
        assert again.read() == b"%08x" % i + b"%04d" % i * 498, i
"""
    for where in None, work / "kept":
        writable(archive, *python(script), where=where)
    check_nothing_left()


def test_unchanged_files_are_read_without_the_daemon(work):
    """And a file that was changed never is, though it keeps inode and device."""
    archive = make_archive(work)
    script = """
import os, sys
os.chdir(sys.argv[1] + "/sub")
names = [f"{i:04}" for i in range(50)]
held = [open(name, "rb", 0) for name in names]
for name, f in zip(names, held):
    assert f.read(4) == name.encode()
    assert open(name, "rb").read() == name.encode() * 500
before = [os.fstat(f.fileno()) for f in held]
for name in names[:10]:
    with open(name, "r+b") as f:
        f.write(b"HEAD")
for i in range(10, 20):
    os.chmod(names[i], 0o600)
os.rename("0020", "moved")
os.unlink("0021")
os.replace("0022", "0023")
for i, (name, f, st) in enumerate(zip(names, held, before)):
    assert os.fstat(f.fileno()).st_ino == st.st_ino
    assert os.pread(f.fileno(), 4, 0) == (b"HEAD" if i < 10 else name.encode()), name
assert open("moved", "rb").read(4) == b"0020"
assert open("0023", "rb").read(4) == b"0022"
"""
    need_overlay()
    harness.onepot("run", archive, "--", *harness.counting(work, "cat", "{}/sub/0000"))
    if harness.directly_read(work) == 0:
        raise Skip("there is no preloaded library here")
    for option in "--writable", f"--writable={work.path}/new":
        harness.onepot("run", option, archive, "--", *harness.counting(work, PYTHON, "-c", script, "{}"))
        check(harness.directly_read(work) >= 50, f"{harness.directly_read(work)} files were read directly")
    check_nothing_left()


# ---- without overlayfs ----

def need_program_layer():
    need_program("fuse-overlayfs")
    return harness.environment(ONEPOT_WITHOUT_OVERLAYFS="1")


def fuse_overlays(env):
    """The programs of this test: by the state folder in their environment."""
    mine = f"ONEPOT_RUNTIME_DIR={env['ONEPOT_RUNTIME_DIR']}".encode()
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"fuse-overlayfs" in read(f"/proc/{pid}/cmdline") and mine in read(f"/proc/{pid}/environ").split(b"\0"):
                found.append(int(pid))
        except OSError:
            pass
    return [pid for pid in found if not life.is_gone(pid)]


def check_program_ended(env, what):
    check_nothing_left(what)
    life.wait_for(lambda: not fuse_overlays(env), f"fuse-overlayfs to end after {what}")


def test_without_overlayfs_a_program_takes_its_place_in_memory(work):
    env = need_program_layer()
    archive = make_archive(work)
    user = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    for prefix in ([], user) if os.geteuid() == 0 and run(*user, "true", status=None).returncode == 0 else ([],):
        done = run(*prefix, harness.onepot_program(), "run", "--writable", archive, "--", "sh", "-c",
                   '"$0" -c "$1" "$2" && cp -r "$2" "$3"', PYTHON, CHANGE, "{}", work / "seen", env=env)
        check_extracted(work, "seen")
        check("of changes lay in memory" in said(done), f"the last line: {said(done)!r}")
        check_program_ended(env, "a run")
    fails("run", f"--writable={work.path}/kept", archive, "--", "true", status=125, words=["overlayfs"], env=env)
    check_program_ended(env, "a folder")


def test_ranks_share_the_program_and_signals_pass_it_by(work):
    env = need_program_layer()
    command = ["run", "--writable", make_archive(work), "--"]
    script = "trap 'echo told' TERM; echo first >{}/one; echo; read word; read word; cat {}/two; cat {}/sub/0001 | head -c 4"
    with life.background(*command, "sh", "-c", script, stdin=harness.subprocess.PIPE, env=env) as first:
        life.first_line(first)
        done = harness.onepot(*command, "sh", "-c", "cat {}/one; echo second >{}/two", env=env)
        check_equal(done.stdout, b"first\n", "what another rank sees")
        for pid in fuse_overlays(env):
            os.kill(pid, signal.SIGTERM)
        first.stdin.write(b"\n\n")
        status, out, errors = ended_after_input(first)
        check_equal((status, out), (0, b"second\n0001"), f"what the first one sees: {errors}")
    check_program_ended(env, "both")


def test_the_program_ends_when_all_else_was_killed(work):
    env = need_program_layer()
    archive = make_archive(work)
    for i in range(6):
        with life.background("run", "--writable", archive, "--", *python(SCRIBBLE), env=env) as p:
            command = int(life.first_line(p))
            for pid in (p.pid, command) if i % 2 else (command, p.pid):
                life.kill(pid)
            p.wait()
        check_program_ended(env, f"kill {i}")


def test_who_can_t_write_hears_of_the_option_once(work):
    archive = make_archive(work)
    harness.onepot("run", archive, "--", *harness.counting(work, "cat", "{}/sub/0000"))
    if harness.directly_read(work) == 0:
        raise Skip("there is no preloaded library here")
    for script in ("open('new', 'w')", "os.mkdir('new')", "os.makedirs('sub/new/newer')", "open('sub/0001', 'r+b')",
                   "os.open(os.path.abspath('sub/new'), os.O_CREAT | os.O_WRONLY)"):
        attempt = ("import os, sys\nos.chdir(sys.argv[1])\nfor i in range(3):\n    try:\n"
                   f"        {script}\n    except OSError as e:\n        print(e.errno)")
        done = harness.onepot("run", archive, "--", *python(attempt))
        check_equal(done.stdout, b"30\n" * 3, f"errno of {script}")
        check_equal(said(done).count("--writable,"), 1, f"it is said once after {script}: {said(done)!r}")
    done = writable(archive, *python("import sys\nopen(sys.argv[1] + '/new', 'w')"))
    check("--writable," not in said(done), f"with it: {said(done)!r}")
    need_root("mount read-only")
    with work.kernel_mount("tmpfs", "none", "sealed", "-o", "ro") as sealed:
        done = harness.onepot("run", archive, "--", "sh", "-c", 'cat {}/sub/0000 >/dev/null; echo >"$0/x" || mkdir "$0/y"', sealed,
                              status=1)
        check("--writable," not in said(done), f"of another filesystem: {said(done)!r}")
    check_nothing_left()


if __name__ == "__main__":
    harness.main(globals())

"""mount --writable: what is written into a mount that all see, and the end of it, whoever brings that
about. As root by overlayfs, as an ordinary user by fuse-overlayfs."""

import contextlib
import os
import random
import signal

import harness
import life
import users
import writable
from harness import Skip, check, check_equal, need_program, need_root, onepot, run, wait_for
from life import check_nothing_left, daemon_of, fails, make_archive, mount, mounted, read, said, umount, write

# As writable.CHANGE, without a Python that may lie in root's home.
CHANGE = """cd "$0" && printf appended >>sub/0000 && printf HEAD | dd conv=notrunc of=sub/0001 status=none &&
rm sub/0002 && mv sub/0003 sub/renamed && mkdir new && printf new >new/file && chmod 600 sub/0004 && rm readme && mkdir readme"""


def need_layer():
    if os.geteuid() == 0:
        writable.need_overlay()
    else:
        need_program("fuse-overlayfs", "fusermount3")


def layers(below=""):
    """Mounts of ours, and the parts of layers."""
    with open("/proc/self/mountinfo", encoding="ascii", errors="surrogateescape") as f:
        return [line for line in f if below in line and (" - overlay onepot-" in line or " - tmpfs onepot-" in line or
                                                         " - fuse.onepot " in line or " - fuse.fuse-overlayfs " in line)]


def marked():
    return layers(os.environ[harness.MARK])


def wait_end(what):
    wait_for(lambda: not marked(), f"the layer to go after {what}")
    check_nothing_left(what)


def read_changes(path, who, seen):
    run("cp", "-r", path, seen, **who)
    writable.check_changed(seen)
    harness.shutil.rmtree(seen)


def kill_daemon(path):
    pid = daemon_of(path)
    life.kill(pid)
    life.wait_gone(pid)


def names(path, who):
    return run("ls", path, **who).stdout.split()


def check_kept(archive, **options):
    """DIR keeps the changes for the next mount, and for no other job meanwhile."""
    kept, who = options.pop("kept"), without_status(options)
    path = mount(f"--writable={kept}", archive, **options)
    run("sh", "-c", CHANGE, path, **who)
    done = umount(path, **options)
    check(f"of changes lie in {kept}" in said(done), f"what umount says: {said(done)!r}")
    path = mount(f"--writable={kept}", archive, **options)
    read_changes(path, who, f"{kept}.seen")
    other = dict(options)
    other["env"] = dict(options.get("env") or harness.environment(), SLURM_JOB_ID="77")
    fails("mount", f"--writable={kept}", archive, words=["another job or session writes there", str(daemon_of(path, **options))], **other)
    umount(path, **options)


def without_status(options):
    return {name: options[name] for name in ("user", "group", "extra_groups") if name in options}


def check_life(archive, kept, **options):
    """Written, seen by others, listed, gone with a line; busy; detached."""
    who = without_status(options)
    path = mount("--writable", archive, **options)
    check_equal(mounted(path, **options)["mountpoint"], path, "what stat tells of")
    run("sh", "-c", CHANGE, path, **who)
    read_changes(path, who, f"{kept}.seen")
    check_equal(mount("--writable", archive, **options), path, "the same, for the same job")
    umount(path, **options)
    check(layers(path), "its layer went with one of two shares")
    done = umount(path, **options)
    check("of changes lay in memory, and are gone" in said(done), f"what umount says: {said(done)!r}")
    wait_for(lambda: not layers(path), "the layer to go")
    check_kept(archive, kept=kept, **options)
    path = mount("--writable", archive, **options)
    check_equal(names(path, who), [b"readme", b"sub"], "what a new layer shows")
    with life.process("sh", "-c", 'cd "$0" && echo late >late && echo && read word && cat late sub/0007 | head -c 13', path,
                      stdin=harness.subprocess.PIPE, stdout=harness.subprocess.PIPE, **who) as user:
        life.first_line(user)
        fails("umount", "--wait", "0", path, words=["sh ("], **options)
        check(layers(path), "its layer went although it was busy")
        onepot("umount", "--lazy", path, **options)
        wait_for(lambda: not layers(path), "the layer to leave the tree")
        out, _ = user.communicate(b"\n")
        check_equal(out, b"late\n00070007", "what its user still reads")


def test_what_is_written_is_gone_or_kept(work):
    need_layer()
    check_life(make_archive(work), work / "kept")
    wait_end("all")


def test_an_ordinary_user_has_the_program(work):
    need_program("fuse-overlayfs")
    with users.node(work) as archive:
        users.own("/srv/kept", users.VICTIM)
        user = users.as_user(users.VICTIM, **users.plain())
        check_life(archive, "/srv/kept/dir", **user)
        wait_for(lambda: os.listdir(f"/dev/shm/onepot-{users.VICTIM}") == ["lock"], "the user's state to go")
        check_equal(run("sh", "-c", "echo x >/srv/kept/dir/changes/x", user=users.MALLORY, group=users.MALLORY,
                        extra_groups=[], status=None).returncode != 0, True, "another user writes there")
        path = mount("--writable", archive, **user)
        run("sh", "-c", 'echo x >"$0/new" && mkdir "$0/closed" && echo x >"$0/closed/x" && chmod 500 "$0/closed"', path, **without_status(user))
        for pid in harness.marked_processes(os.environ[harness.MARK]):
            if read(f"/proc/{pid}/comm").strip() in (b"onepot", b"fuse-overlayfs"):
                life.kill(pid)
                life.wait_gone(pid)
        life.wait_away(users.VICTIM)
        done = onepot("clean", "--all", env=harness.environment(**users.plain()))
        check("of changes lay in memory" in said(done), f"what root's clean says: {said(done)!r}")
        check_equal(layers(path), [], "mounts of a killed job")
        check(not os.path.lexists(f"/dev/shm/onepot-{users.VICTIM}"), "root's clean left the user's folder")
        fails("run", "--writable=/srv/kept/dir", archive, "--", "true", status=125, words=["fuse-overlayfs wrote it"], **user)
        onepot("run", "--writable=/srv/kept/other", archive, "--", "touch", "{}/x", **user)
        fails("mount", "--writable=/srv/kept/other", archive, words=["the kernel's overlayfs wrote it"], **user)


def test_outside_of_jobs_a_layer_is_its_session_s(work):
    need_layer()
    archive, told = make_archive(work), "other commands of this session have changed it"
    path = mount("--writable", archive)
    done = onepot("mount", "--writable", archive)
    check_equal((said(done), os.fsdecode(done.stdout)), ("", f"{path}\n"), "who joins before any change")
    os.unlink(f"{path}/sub/0001")
    done = onepot("mount", "--writable", archive)
    check(told in said(done), f"who joins a changed one hears {said(done)!r}")
    with life.process("sh", "-c", '"$0" mount --writable "$1"; echo; read word', harness.onepot_program(), archive,
                      start_new_session=True, stdin=harness.subprocess.PIPE) as other:
        there = life.first_line(other)
        life.first_line(other)
        check_equal((there != path, len(os.listdir(f"{there}/sub"))), (True, life.FILES), "another session's")
        umount("--lazy", there)
    for _ in range(3):
        umount(path)
    wait_end("both")


def test_what_can_t_be_is_refused_in_a_line(work):
    need_layer()
    archive = make_archive(work)
    write(work / "file", b"")
    for where, words in ((work / "file", ["ot a directory"]), (work / "absent/dir", ["No such file"]),
                         (work / "at/dir", ["No such file"])):
        fails("mount", f"--writable={where}", archive, "--at", work / "at", words=words)
    wait_end("refusals")
    with open("/dev/null", "rb") as f:
        fails("mount", "--writable", archive, f"/dev/fd/{f.fileno()}", pass_fds=[f.fileno()])
    wait_end("a device")


# ---- ends ----

def test_by_hand_and_by_signals(work):
    """The daemon takes the rest off, and logs how much it was."""
    need_layer()
    archive = make_archive(work)
    by_hand = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    for end in "hand", "TERM", "owner", "last file":
        log = work / f"log of {end}"
        with life.process("sleep", "1000") as owner:
            path = mount("--writable", "--log", log, "--owner", str(owner.pid), archive)
            write(f"{path}/new", b"0" * 10000)
            if end == "hand":
                run(*by_hand, path)
            elif end == "TERM":
                os.kill(daemon_of(path), signal.SIGTERM)
            elif end == "owner":
                owner.kill()
            else:
                held = open(f"{path}/new", "rb")
                onepot("umount", "--lazy", path)
                check_equal(held.read(), b"0" * 10000, "an open file after --lazy")
                held.close()
            wait_end(end)
            owner.kill()
        check_equal(read(log).count(b"of changes lay in memory, and are gone"), 1, f"the log after {end}: {read(log)}")


def after_the_kill(how, path, archive):
    """Each finds what a killed daemon left."""
    if how == "umount":
        return said(umount(path))
    if how == "clean":
        return said(onepot("clean"))
    again = mount("--writable", archive)
    check_equal(again, path, "the path of the next one")
    check(not os.path.exists(f"{again}/new"), "the next one has the old files")
    check_equal(read(f"{again}/readme"), b"hello\n", "the next one")
    return said(umount(again))


def test_a_killed_daemon_s_layer_is_found(work):
    need_layer()
    archive = make_archive(work)
    other = harness.environment(ONEPOT_RUNTIME_DIR=work.make("other"))
    for how in "umount", "clean", "mount":
        for where in "", f"={work.path}/kept":
            path = mount(f"--writable{where}", archive)
            write(f"{path}/sub/0001", b"new")
            kill_daemon(path)
            check_equal(read(f"{path}/sub/0001"), b"new", "what was written, without the daemon")
            if where:
                fails("mount", f"--writable{where}", archive, words=["whose daemon was killed"], env=other)
            text = after_the_kill(how, path, archive) if not where else said(umount(path))
            check(how == "mount" or "of changes l" in text, f"what {how} says: {text!r}")
            wait_end(how)


def test_kills_at_any_time(work):
    """Of the command that mounts, of its daemon, and of both; the next one always works."""
    need_layer()
    archive = make_archive(work)
    for i in range(20):
        where = f"={work.path}/kept" if i % 3 == 2 else ""
        with life.background("mount", f"--writable{where}", archive) as p:
            with contextlib.suppress(harness.subprocess.TimeoutExpired):
                p.wait(random.random() * 0.1)
            p.kill()
            p.wait()
        onepot("umount", "--all", "--lazy", status=None)
        path = mount(f"--writable{where}", archive)
        write(f"{path}/new", b"new")
        kill_daemon(path)
        done = onepot(*random.choice((["clean"], ["umount", path], ["umount", "--all"])))
        wait_end(f"kill {i}, {done.args[1:]}: {said(done)}")


# ---- what others mount there ----

def test_what_somebody_else_mounts_over_it_stays(work):
    need_root("mount")
    need_layer()
    archive = make_archive(work)
    for kind, options in (("tmpfs", []), ("overlay", ["-o", f"lowerdir={work.path},upperdir={work.make('u')},workdir={work.make('w')}"])):
        for is_killed in False, True:
            path = mount("--writable", archive)
            daemon = daemon_of(path)
            run("mount", "-t", kind, *options, "onepot-1234-0-0", path)
            if is_killed:
                life.kill(daemon)
                life.wait_gone(daemon)
                done = onepot("clean", status=1)
                check("can't be unmounted" in said(done), f"what clean says: {said(done)!r}")
            else:
                fails("umount", "--wait", "0", path, words=["covered: something else is mounted over it"])
                fails("umount", "--wait", "0", "--lazy", path)
            check_equal(len([line for line in layers(path) if "onepot-1234-0-0" in line]), 1, f"the other {kind}")
            check_equal(len(layers(path)), 4, "mounts that lie there")
            run("umount", path)
            umount(path)
            wait_end(kind)


def test_a_link_in_place_of_the_folder_is_not_followed(work):
    need_root("mount")
    need_layer()
    archive, other = make_archive(work), work.make("other")
    work.make("above")
    with work.kernel_mount("tmpfs", "none", "other/at") as stays:
        path = mount("--writable", archive, "--at", work / "above/at")
        kill_daemon(path)
        os.rename(work / "above", work / "moved")
        os.symlink(other, work / "above")
        onepot("clean", status=None)
        check(os.path.ismount(stays), "another mount was taken off")
        check_equal(len(layers(f"{work.path}/moved/at")), 3, "parts that lie there")
        os.unlink(work / "above")
        os.rename(work / "moved", work / "above")
        onepot("clean", status=None)
        while layers(path):
            run("umount", path)


def test_nobody_else_sees_a_closed_one(work):
    need_root("be several users")
    need_layer()
    archive = make_archive(work)
    at = work.make("at")
    run("chmod", "755", work.path, at)
    other = {"user": users.MALLORY, "group": users.MALLORY, "extra_groups": []}
    program = [harness.environment(ONEPOT_WITHOUT_OVERLAYFS="1")] if harness.shutil.which("fuse-overlayfs") else []
    for option, status, env in [(option, status, env) for env in [None, *program]
                                for option, status in (("--writable", 1), ("--allow-other", 0))]:
        path = mount("--writable", option, archive, "--at", at, env=env)
        check_equal(run("cat", f"{path}/readme", status=None, **other).returncode, status, f"another user's look, with {option}")
        umount(path)
        wait_end(option)


def test_root_s_layer_is_closed_to_the_archive_s_owner(work):
    """The archive names the owner of its top folder, and anybody may have packed it."""
    need_root("be several users")
    need_layer()
    need_program("tar")
    os.makedirs(work / "source")
    write(work / "source/mod.py", b"x = 1\n")
    archive, at, kept = work / "theirs.tar", work.make("at"), work / "kept"
    other = {"user": users.MALLORY, "group": users.MALLORY, "extra_groups": []}
    run("tar", f"--owner={users.MALLORY}", f"--group={users.MALLORY}", "--mode=0755", "-cf", archive, "-C", work / "source", ".")
    run("chmod", "755", work.path, at)
    os.chmod(archive, 0o600)
    as_other = ["setpriv", f"--reuid={users.MALLORY}", f"--regid={users.MALLORY}", "--clear-groups"]
    for where in "", f"={kept}":
        mount(f"--writable{where}", archive, "--at", at)
        for attempt in f"cat {at}/mod.py", f"rm {at}/mod.py", f"echo x >{at}/new", f"ls {at}", f"cd {at}":
            done = run("sh", "-c", attempt, status=None, **other)
            check(done.returncode != 0, f"{attempt} with --writable{where}: {done.stdout!r}")
        check_equal((os.stat(at).st_uid, os.stat(at).st_mode & 0o7777), (0, 0o700), "the top's owner and mode")
        umount(at)
        onepot("run", f"--writable{where}", archive, "--at", at, "--", *as_other, "cat", "{}/mod.py", status=1)
    check_equal([(name, os.stat(f"{kept}/{name}").st_uid, os.stat(f"{kept}/{name}").st_mode & 0o7777) for name in ("changes", "work")],
                [("changes", 0, 0o700), ("work", 0, 0o700)], "what lies in DIR")
    onepot("run", f"--writable={kept}", "--allow-other", archive, "--at", at, "--", *as_other, "cat", "{}/mod.py")
    onepot("run", f"--writable={kept}", archive, "--at", at, "--", *as_other, "cat", "{}/mod.py", status=1)
    wait_end("a closed one")


# ---- use ----

def test_a_full_layer_stops_the_writer_alone(work):
    need_root("mount a small disk")
    need_layer()
    archive = make_archive(work)
    with work.kernel_mount("tmpfs", "none", "small", "-o", "size=1m") as small:
        path = mount(f"--writable={small}/kept", archive)
        with open(f"{path}/big", "wb", 0) as f:
            try:
                while True:
                    f.write(bytes(65536))
            except OSError as e:
                check_equal(e.errno, 28, "the error of a full layer")
        check_equal(read(f"{path}/sub/0007"), b"0007" * 500, "a reader")
        umount(path)
    wait_end("a full one")


def test_the_library_knows_what_lies_below(work):
    need_root("have the kernel's overlayfs here")
    need_layer()
    archive = make_archive(work)
    harness.onepot("run", archive, "--", *harness.counting(work, "cat", "{}/sub/0000"))
    if harness.directly_read(work) == 0:
        raise Skip("there is no preloaded library here")
    script = 'eval "$("$0" mount --export --writable "$1")"; echo new >"$data/sub/0001"; cat "$data/sub/0001"; exec "$@"'
    done = run("bash", "-c", script.replace('exec "$@"', 'shift; "$@" "$data/sub/0007" | head -c 4'), harness.onepot_program(),
               archive, *harness.counting(work, "cat"))
    check_equal(done.stdout, b"new\n0007", "a changed file, and another")
    wait_end("a script")


if __name__ == "__main__":
    harness.main(globals())

"""--extract: plain files in place of a mount, and none of them left, whatever dies."""

import contextlib
import os
import resource
import select
import shutil
import signal
import stat
import sys
import tarfile
import time

import harness
import life
import memory
import tars
import tree
from harness import (Skip, check, check_equal, environment, need_program, need_root, onepot,
                     wait_for)
from life import check_nothing_left, ended, folder, make_archive, read, said, slots

PYTHON = sys.executable
MANY = 3_000
WAITS = ["sh", "-c", "echo $ONEPOT_MOUNT; read line; ls $ONEPOT_MOUNT/sub | wc -l"]


def run(*arguments, **options):
    return onepot("run", "--extract", *arguments, **options)


def mount(*arguments, **options):
    return life.mount("--extract", *arguments, **options)


def background(*arguments, command=(), **options):
    """A `run` whose command waits for a line, or is another one."""
    return life.background("run", "--extract", *arguments, "--", *(command or WAITS), stdin=-1, **options)


def end(p, words=b"50\n", status=0):
    p.stdin.write(b"\n")
    p.stdin.close()
    p.stdin = None
    code, out, said_last = ended(p)
    check_equal((code, out), (status, words), f"status and output ({said_last})")
    return said_last


def signalled(moment, number, *arguments):
    """A onepot command that gets a signal before a certain one of its calls."""
    program = os.environ.get("CRASH_AT")
    if not program:
        raise Skip("CRASH_AT does not name the program; 'meson test' sets it")
    without_leaks = "ASAN_OPTIONS=" + os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # ptrace
    return ["env", without_leaks, program, str(moment), str(int(number)), harness.onepot_program(), *arguments]


def keeper_of(path):
    return life.daemon_of(path)


# ---- the files ----

def test_they_are_as_extract_makes_them(work):
    source = work.make("tree")
    tree.build(source)
    archive = work / "tree.onepot"
    onepot("pack", "-q", "-o", archive, source)
    out = work / "out"
    onepot("extract", "-q", "-C", out, archive)
    path = mount(archive)
    expected, found = tree.snapshot(out), tree.snapshot(path)
    tree.compare(found, expected, "the files")
    check_equal(stat.S_IMODE(os.stat(folder()).st_mode), 0o700, "the private folder's mode")
    check_equal(harness.mountpoints(os.path.dirname(path)), [], "mounts")
    known = life.mounted(path)
    check(known["extracted"]["bytes"] >= known["total_bytes"], f"stat says {known['extracted']}")
    check("which take" in os.fsdecode(onepot("stat", path).stdout), "stat's text")
    done = life.umount(path)
    check("extracted in" in said(done), f"umount says {said(done)!r}")
    check_nothing_left()


def test_the_last_line_tells_which_data_they_were(work):
    archive = make_archive(work)
    onepot("pack", "-q", "-o", work / "own.onepot", archive)
    digest = onepot("index", "--digest", work / "own.onepot").stdout.split()[-1].decode()
    check(len(digest) == 32, f"the digest is {digest!r}")
    done = run(work / "own.onepot", "--expect", digest, "--", "true")
    check(said(done).endswith(f"; digest {digest[:8]}\n"), f"it says {said(done)!r}")


def test_any_program_may_do_anything_with_them(work):
    archive = make_archive(work)
    script = ("import mmap, os, sys; os.chdir(sys.argv[1])\n"
              "f = open('sub/0007', 'r+b'); m = mmap.mmap(f.fileno(), 0); print(m[:4], m[-4:])\n"
              "m[:4] = b'abcd'; f.close(); print(open('sub/0007', 'rb').read(8))\n"
              "os.rename('sub/0008', 'new'); os.unlink('sub/0009'); open('made', 'w').close()\n"
              "open('program', 'w').write('#!/bin/sh\\necho runs $0\\n'); os.chmod('program', 0o755)\n"
              "sys.stdout.flush(); os.execl('program', 'program')")
    done = run(archive, "--", PYTHON, "-c", script, "{}")
    check_equal(done.stdout, b"b'0007' b'0007'\nb'abcd0007'\nruns program\n", "what it does")
    check_equal(run(archive, "--", "sh", "-c", "exit 7", status=7).stdout, b"", "a status")
    check_nothing_left()


def test_only_what_is_shown_is_extracted(work):
    archive = make_archive(work)
    shutil.copytree(work / "source", work / "more")
    os.rename(work / "more/readme", work / "more/other")
    os.rename(work / "more/sub", work / "more/bus")
    harness.run("tar", "-cf", work / "more.tar", "-C", work / "more", ".")
    harness.run("tar", "-czf", work / "stream.tar.gz", "-C", work / "source", ".")
    harness.run("tar", "-cf", work / "outer.tar", "-C", work.path, "data.tar")
    for arguments, names in (([archive, work / "more.tar"], "bus other readme sub"),
                             ([archive, "--subdir", "sub", "--include", "sub/000?"], " ".join(f"000{i}" for i in range(10))),
                             ([archive, "--exclude", "sub"], "readme"),
                             ([work / "stream.tar.gz"], "readme sub"),
                             ([work / "outer.tar", "--nested"], "data"),
                             ([work / "outer.tar", "--nested", "--subdir", "data"], "readme sub")):
        done = run(*arguments, "--", "ls", "{}")
        check_equal(done.stdout.decode().split(), names.split(), f"the names of {arguments[1:]}")
    done = run(archive, "--subdir", "sub", "--", "sh", "-c", "cat {}/0003; ls -d {}/..")
    check(done.stdout.startswith(b"0003"), "a file of --subdir")
    check_nothing_left()


def test_what_is_for_mounts_is_refused(work):
    archive = make_archive(work)
    for option in (["--at", work / "at"], ["--writable"], ["--stage"], ["--cache", "1M"], ["--order", "x"],
                   ["--allow-other"], ["--uid", "1"], ["--private=on"], ["-o", "noexec"], ["-o", "default_permissions"]):
        done = run(archive, *option, "--", "true", status=2)
        name = " ".join(option) if option[0] == "-o" else option[0].partition("=")[0]
        check(name + " is for mounts" in said(done), f"{option}: {said(done)!r}")
    check(not os.path.exists(work / "at"), "something was made")
    check_nothing_left()


def test_a_member_that_can_t_be_extracted_is_no_small_matter(work):
    source = work.make("in")
    life.write(work / "in/good", b"good" * 1000)
    life.write(work / "in/bad", b"bad!" * 1000)
    onepot("pack", "-q", "-o", work / "x.onepot", source)
    data = read(work / "x.onepot")
    life.write(work / "x.onepot", data.replace(b"bad!" * 1000, b"bad?" * 1000))
    done = run(work / "x.onepot", "--", "touch", work / "was-run", status=125)
    check("bad" in said(done) and "1 of its members can't be extracted" in said(done), f"it says {said(done)!r}")
    check(not os.path.exists(work / "was-run"), "the command was run")
    check_nothing_left()


# ---- room ----

@contextlib.contextmanager
def small_memory(work, *options):
    need_root("mount a tmpfs")
    path = work.make("small")
    harness.run("mount", "-t", "tmpfs", "-o", "size=8M" + "".join(options), "none", path)
    try:
        yield environment(ONEPOT_RUNTIME_DIR=path), path
    finally:
        harness.unmount(path)


def test_what_does_not_fit_is_refused_before_a_byte_is_written(work):
    harness.need_mounts()
    life.write(work / "large", os.urandom(9 << 20))
    harness.run("tar", "-cf", work / "large.tar", "-C", work.path, "large")
    with small_memory(work) as (env, path):
        onepot("run", "--extract", make_archive(work), "--", "true", env=env)
        before = os.statvfs(path)
        done = run(work / "large.tar", "--", "touch", work / "was-run", env=env, status=125)
        for word in ("9.0 MiB", f"MiB in {path}/onepot-0; name a folder on a disk", "--extract=DIR", "without --extract"):
            check(word in said(done), f"it says {said(done)!r}, without {word!r}")
        after = os.statvfs(path)
        check_equal((after.f_bfree, after.f_ffree), (before.f_bfree, before.f_ffree), "free blocks and inodes")
        # Where nothing can be mounted, --extract is named if it fits.
        no_way = {**env, "ONEPOT_MOUNT_METHODS": "namespace"}
        for archive, is_named in ((make_archive(work), True), (work / "large.tar", False)):
            done = onepot("mount", archive, env=no_way, status=1)
            check("can't be mounted" in said(done), f"it says {said(done)!r}")
            check_equal("or use --extract, which makes plain files and takes " in said(done), is_named, said(done))
        # It mounts, and fits elsewhere.
        onepot("run", work / "large.tar", "--", "cat", "{}/large", env=env)
        run_in = onepot("run", "--extract=" + work.path, work / "large.tar", "--", "cat", "{}/large", env=env)
        check_equal(len(run_in.stdout), 9 << 20, "bytes")
    check(not os.path.exists(work / "was-run"), "the command was run")


def test_a_job_s_limit_is_asked_for_and_not_the_node_s_memory(work):
    tars.write_folder(work / "large.tar", {"zeros": bytes(100 << 20)})
    with harness.shared_memory(), memory.Limited() as job:
        env = environment(ONEPOT_RUNTIME_DIR=None)
        done = run(work / "large.tar", "--", "true", env=env, status=125, preexec_fn=job.join)
        for word in ("100.0 MiB", "in the memory of this job; ask for more memory, name a folder on a disk"):
            check(word in said(done), f"it says {said(done)!r}, without {word!r}")
        check_equal(job.kills(), 0, "processes that the kernel killed")
        check_equal(os.listdir("/dev/shm/onepot-%d" % os.geteuid()), ["lock"], "what is left")


@life.not_starved
def test_what_others_have_still_to_write_is_no_room(work):
    many(work, 1000)  # 5 MB in pages and inodes
    if not os.path.exists(work / "large.tar"):
        tars.write_folder(work / "large.tar", {"zeros": bytes(7 << 19)})
    with small_memory(work) as (env, path):
        with stopped_maker(work, at=f"{path}/onepot-{os.geteuid()}", env=env) as p:
            done = run(work / "large.tar", "--", "true", env=env, status=125)
            check("it takes 3.5 MiB, and there is room for" in said(done), f"it says {said(done)!r}")
            os.kill(p.pid, signal.SIGCONT)
            life.first_line(p)
            end(p, b"1000\n")
        run(work / "large.tar", "--", "true", env=env)


@life.not_starved
def test_room_that_goes_meanwhile_is_told_as_such(work):
    many(work, 1000)
    with small_memory(work) as (env, path):
        with stopped_maker(work, at=f"{path}/onepot-{os.geteuid()}", env=env) as p:
            with contextlib.suppress(OSError), open(os.path.join(path, "full"), "wb", 0) as f:
                while True:
                    f.write(bytes(4096))
            os.kill(p.pid, signal.SIGCONT)
            status, out, errors = ended(p)
        check_equal((status, out, errors.count("\n")), (125, b"", 1), f"status, output and lines ({errors})")
        check("No space left" in errors and "(--extract=DIR), or mount it" in errors and "-C" not in errors, errors)
        check_equal(sorted(os.listdir(f"{path}/onepot-{os.geteuid()}")), ["lock"], "what is left")


def test_inodes_are_room_too(work):
    archive = make_archive(work)
    with small_memory(work, ",nr_inodes=40") as (env, _):
        done = run(archive, "--", "true", env=env, status=125)
        check("53 files and directories" in said(done) and "room for" in said(done), f"it says {said(done)!r}")


def test_they_count_among_what_the_job_shares(work):
    """A mount beside them has less for its cache, until they are gone."""
    harness.need_mounts()
    life.write(work / "large", os.urandom(32 << 20))
    harness.run("tar", "-cf", work / "large.tar", "-C", work.path, "large")
    with harness.shared_memory():
        env = environment(ONEPOT_RUNTIME_DIR=None)
        archive = make_archive(work)
        beside = life.mount(archive, env=env)
        budget = lambda: life.mounted(beside, env=env)["cache"]["budget_bytes"]
        alone = budget()
        claims = lambda: [n for n in os.listdir(os.path.dirname(beside)) if ".cache-" in n]
        check_equal(len(claims()), 1, "claims of a mount alone")
        path = mount(work / "large.tar", env=env)
        wait_for(lambda: budget() <= alone - (32 << 20), f"less than {alone} for the cache of a mount")
        life.umount(path, env=env)
        check_equal(len(claims()), 1, "claims after the end of the files")
        life.umount(beside, env=env)


# ---- sharing ----

JOB = {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_JOBID": "77"}


def many(work, files=MANY):
    if not os.path.exists(work / "many.tar"):
        tars.write_folder(work / "many.tar", [(f"{i:05}", b"x" * 100) for i in range(files)], "sub")


@contextlib.contextmanager
def stopped_maker(work, *mount, at=None, **options):
    """A `run`, or a `mount` of these words, that was stopped while it extracts to a folder."""
    at, words = at or folder(), ("--extract", "--threads", "1", work / "many.tar")
    with life.background(*mount, *words, **options) if mount else background(*words[1:], **options) as p:
        def is_at_work():
            return os.path.exists(os.path.join(at, "77.0-many.tar/sub")) or os.path.exists(os.path.join(at, "many.tar/sub"))
        end_s = time.monotonic() + 60
        while not is_at_work():
            check(time.monotonic() < end_s, "it never begins")
        os.kill(p.pid, signal.SIGSTOP)
        name = [n for n in os.listdir(at) if n.endswith(".stat")][0][:-5]
        if life.mounted(os.path.join(at, name), env=options.get("env"))["state"] != "starting":
            raise life.Starved("it was done before it was stopped")
        yield p


@life.not_starved
def test_ranks_share_one_copy_and_wait_for_it(work):
    many(work)
    env = environment(**JOB)
    with stopped_maker(work, env=env) as first, background(work / "many.tar", "--threads", "1", env=env) as second:
        line = second.stderr.readline().decode()
        check("another process of this job extracts it; waiting" in line, f"it says {line!r}")
        os.kill(first.pid, signal.SIGCONT)
        path = life.first_line(first)
        check_equal(life.first_line(second), path, "the other's path")
        check_equal(slots(), sorted([os.path.basename(path), os.path.basename(path) + ".lock",
                                     os.path.basename(path) + ".stat"]), "slots")
        end(first, b"%d\n" % MANY)
        check(os.path.exists(path + "/sub/00000"), "the files went with the first of two")
        end(second, b"%d\n" % MANY)
    check_nothing_left()


@life.not_starved
def test_a_killed_maker_leaves_nothing_and_the_next_begins_anew(work):
    many(work)
    env = environment(**JOB)
    with stopped_maker(work, env=env) as first, background(work / "many.tar", "--threads", "1", env=env) as second:
        second.stderr.readline()
        os.kill(first.pid, signal.SIGKILL)
        path = life.first_line(second)
        check_equal(len(os.listdir(path + "/sub")), MANY, "files")
        end(second, b"%d\n" % MANY)
    check_nothing_left()


@life.not_starved
def test_a_signal_while_it_extracts_removes_all(work):
    many(work)
    with stopped_maker(work) as p:
        os.kill(p.pid, signal.SIGTERM)
        os.kill(p.pid, signal.SIGCONT)
        check_equal(ended(p)[0], -signal.SIGTERM, "its end")
        check_equal(slots(), [], "slots")


@life.not_starved
def test_a_signal_ends_a_rank_that_waits_for_another_whenever_it_comes(work):
    """Also right before it waits: the rank is stopped at each of its calls until then."""
    many(work)
    env, stops = environment(**JOB), 0
    words = ["run", "--extract", "--threads", "1", work / "many.tar", "--", "true"]
    with stopped_maker(work, env=env):
        while True:
            with life.process(*signalled(stops + 1, signal.SIGSTOP, *words), env=env) as p:
                waits = lambda: bool(select.select([p.stderr], [], [], 0)[0])
                wait_for(lambda: waits() or "T" in map(life.process_state, life.children_of(p.pid)), "a rank to stop, or to wait")
                is_waiting, (rank,) = waits(), life.children_of(p.pid)
                os.kill(rank, signal.SIGTERM)
                os.kill(rank, signal.SIGCONT)
                try:
                    ended(p, 30)
                finally:
                    life.kill(rank)
                if is_waiting:
                    break
                stops += 1
    check(stops > 2, f"there were only {stops} calls")


def test_sessions_outside_of_jobs_have_their_own(work):
    archive = make_archive(work)
    with background(archive) as p:
        path = life.first_line(p)
        done = run(archive, "--", "sh", "-c", "echo {}; rm {}/readme", start_new_session=True)
        check_equal(done.stdout.decode(), path + "-2\n", "another session's path")
        check(os.path.exists(path + "/readme"), "another session has removed a file")
        end(p)
    check_nothing_left()


def test_mount_and_run_share_them(work):
    archive = make_archive(work)
    path = mount(archive)
    done = run(archive, "--", "sh", "-c", "echo {}; touch {}/new")
    check_equal(done.stdout.decode(), path + "\n", "the path")
    check(os.path.exists(path + "/new"), "what the command has written is gone")
    life.umount(archive)
    check_nothing_left()


# ---- kills ----

@contextlib.contextmanager
def killed(work, *options, script="echo $ONEPOT_MOUNT; read line"):
    """The files of a `run` of which no process is left, and their path."""
    with background(make_archive(work), *options, command=["sh", "-c", script]) as p:
        path = life.first_line(p)
        pids = [p.pid, keeper_of(path), *life.children_of(p.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            life.kill(pid)
        p.wait(60)
        for pid in pids:
            life.wait_gone(pid)
    check(os.path.exists(path + "/sub/0000"), "the files are gone before anybody could remove them")
    yield path


OUT = ("cd $ONEPOT_MOUNT; mkdir closed; ln -s {0} out; ln -s {0} closed/out; ln -s ../../../../.. sub/up; touch closed/x; "
       "cd closed; i=0; while [ $i -lt 300 ]; do mkdir deep; cd deep; i=$((i + 1)); done; touch end; ln -s {0} out; "
       "chmod 0 $ONEPOT_MOUNT/closed $ONEPOT_MOUNT/sub; echo $ONEPOT_MOUNT; read line; true")


def test_what_all_killed_leave_goes_with_the_next_start(work):
    outside = work.make("outside")
    life.write(work / "outside/kept", b"kept")
    for clean in (["clean"], ["clean", "--job", "nothing"], ["run", "--extract", make_archive(work), "--", "true"], ["umount", "--all"],
                  ["mount", "--extract", "--owner=none", make_archive(work)]):
        with killed(work, script="chmod 755 $ONEPOT_MOUNT; echo $ONEPOT_MOUNT; read line") as path:
            onepot(*clean)
            if clean[0] == "mount":
                life.umount("--all")
            check_nothing_left(" ".join(clean))
    with killed(work, script="echo $ONEPOT_MOUNT; " + OUT.format(outside)) as path:
        few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
        onepot("clean", preexec_fn=few)
        check(not os.path.exists(path), "files are left")
        check_nothing_left("a tree with links, closed and deep")
    check_equal(read(work / "outside/kept"), b"kept", "a file outside")


def test_the_end_removes_what_the_command_has_made_of_them(work):
    outside = work.make("outside")
    life.write(work / "outside/kept", b"kept")
    run(make_archive(work), "--", "sh", "-c", OUT.format(outside))
    check_nothing_left()
    check_equal(read(work / "outside/kept"), b"kept", "a file outside")


def test_root_s_epilog_removes_them(work):
    need_root("clean up after all users")
    with killed(work) as path:
        onepot("clean", "--all")
        check(not os.path.exists(path), "files are left")


def test_nothing_that_is_mounted_among_them_is_removed(work):
    need_root("mount")
    outside = work.make("outside")
    life.write(work / "outside/kept", b"kept")
    done = run(make_archive(work), "--", "sh", "-c", f"mkdir {{}}/on; mount --bind {outside} {{}}/on")
    check("can't be" in said(done), f"it says {said(done)!r}")
    check_equal(read(work / "outside/kept"), b"kept", "a file outside")
    for path in harness.mountpoints(folder()):
        harness.unmount(path)
    onepot("clean")
    check_nothing_left()


def test_files_that_something_was_mounted_over_are_not_forgotten(work):
    need_root("mount")
    with killed(work, script="mount -t tmpfs none $ONEPOT_MOUNT; mkdir $ONEPOT_MOUNT/sub; touch $ONEPOT_MOUNT/sub/0000; "
                             "echo $ONEPOT_MOUNT; read line") as path:
        life.fails("clean", words=[path, "can't be unmounted"])
        harness.unmount(path)
        onepot("clean")
    check_nothing_left()


def test_if_run_alone_is_killed_they_go(work):
    with background(make_archive(work)) as p:
        life.first_line(p)
        children = life.children_of(p.pid)
        life.kill(p.pid)
        check_nothing_left("the death of 'run'")
        for pid in children:
            life.kill(pid)


def test_without_their_keeper_they_stay_until_the_end(work):
    archive = make_archive(work)
    with background(archive) as p:
        path = life.first_line(p)
        keeper = keeper_of(path)
        life.kill(keeper)
        life.wait_gone(keeper)
        onepot("clean")
        # Another one shares them.
        check_equal(run(archive, "--", "sh", "-c", "echo {}").stdout.decode(), path + "\n", "the path")
        check(os.path.exists(path + "/sub/0000"), "they are gone")
        # A `mount` does not, whose files would go after that.
        other = mount(archive)
        end(p)
    check(not os.path.exists(path), "they are left")
    onepot("clean")
    check(os.path.exists(other + "/sub/0000"), "the mount's files are gone")
    life.umount(other)
    check_nothing_left()


def test_a_mount_s_files_go_with_its_owner(work):
    with life.process("sleep", "1000") as owner:
        path = mount(make_archive(work), "--owner", str(owner.pid))
        keeper = keeper_of(path)
        os.kill(keeper, signal.SIGTERM)  # as a batch system does, and then the job goes on
        pending = int(life.thread_status(keeper, keeper)["ShdPnd"], 16)
        check(pending >> signal.SIGTERM - 1 & 1, "the signal does not wait for ever")
        check(os.path.exists(path + "/sub/0000"), "they are gone")
        owner.kill()
        owner.wait()
        check_nothing_left("the owner's end")


@life.not_starved
def test_an_owner_that_ends_meanwhile_ends_them_without_a_line_for_each_file(work):
    many(work)
    with life.process("sleep", "1000") as owner:
        with stopped_maker(work, "mount", "--owner", str(owner.pid), "--log", work / "log") as p:
            owner.kill()
            owner.wait()
            wait_for(lambda: b"owner has ended" in read(work / "log"), "the keeper to notice")
            check(b"at most" not in read(work / "log"), "the keeper does not wait for the maker")
            os.kill(p.pid, signal.SIGCONT)
            status, out, errors = ended(p)
    check_equal((status, out, errors.count("\n")), (1, b"", 1), f"status, output and lines ({errors})")
    check_nothing_left()


def test_an_umount_that_was_killed_is_made_up_for_by_the_next(work):
    archive, moment, done = make_archive(work, files=3), 0, None
    while not done or done.returncode != 99:
        path = mount(archive)
        moment += 1
        done = harness.run(*signalled(moment, signal.SIGKILL, "umount", path), status=None)
        if done.returncode == 77:
            onepot("umount", path)
            raise Skip(said(done))
        onepot("umount", "--all")
        check_nothing_left(f"umount, killed before call {moment} ({done.stdout.decode()!r})")
    check(moment > 8, f"there were only {moment} moments")


def test_what_run_uses_is_not_unmounted(work):
    archive = make_archive(work)
    with background(archive) as p:
        path = life.first_line(p)
        life.fails("umount", path, words=["'onepot run' (process"])
        end(p)
    check_nothing_left()


# ---- places ----

def test_a_folder_s_other_content_is_left_alone(work):
    archive, disk = make_archive(work), work.make("disk")
    life.write(work / "disk/kept", b"kept")
    private = os.path.join(disk, f"onepot-{os.geteuid()}")
    done = onepot("run", f"--extract={disk}", archive, "--", "sh", "-c", "echo {}; cat {}/readme")
    check_equal(done.stdout.decode(), f"{private}/data.tar\nhello\n", "the path and a file")
    check_equal(sorted(os.listdir(disk)), sorted(["kept", os.path.basename(private)]), "what is in the folder")
    check_equal(os.listdir(private), ["lock"], "what is in the private folder")
    check_equal(stat.S_IMODE(os.stat(private).st_mode), 0o700, "its mode")
    # Every command finds them without the name of the folder.
    path = onepot("mount", f"--extract={disk}", archive).stdout.decode().rstrip("\n")
    check_equal(life.mounted(path)["state"], "serving", "the state")
    life.umount("--all")
    check_equal(os.listdir(private), ["lock"], "what is in the private folder")
    with background(archive, f"--extract={disk}") as p:
        path = life.first_line(p)
        keeper = keeper_of(path)
        for pid in (keeper, p.pid, *life.children_of(p.pid)):
            life.kill(pid)
        life.wait_gone(keeper)
        life.wait_gone(p.pid)
        onepot("clean")
    check(not os.path.exists(path), "files are left")
    check_equal(read(work / "disk/kept"), b"kept", "a file that was there")


def test_folders_that_are_gone_are_forgotten(work):
    """As those of jobs, of which each has one."""
    archive = make_archive(work)
    disks = [work.make(f"disk-{i}") for i in range(8)]
    for disk in disks[:-1]:
        onepot("mount", f"--extract={disk}", archive)
    life.fails("mount", f"--extract={disks[-1]}", archive, words=["too many other folders"])
    life.umount("--all")
    for disk in disks[:-1]:
        shutil.rmtree(disk)
    onepot("run", f"--extract={disks[-1]}", archive, "--", "true")
    check_equal(slots(), [".at-0"], "links to folders")


def test_a_name_that_somebody_has_taken_is_not_used(work):
    archive, disk, outside = make_archive(work), work.make("disk"), work.make("outside")
    private = os.path.join(disk, f"onepot-{os.geteuid()}")
    os.symlink(outside, private)
    life.fails("run", f"--extract={disk}", archive, "--", "true", status=125, words=[private])
    os.unlink(private)
    os.mkdir(private, 0o755)
    os.chmod(private, 0o755)
    life.fails("run", f"--extract={disk}", archive, "--", "true", status=125,
               words=[private, "; name another folder (--extract=DIR)"])
    check_equal(os.listdir(outside), [], "what was made elsewhere")
    life.fails("run", f"--extract={work / 'absent'}", archive, "--", "true", status=125, words=["absent"])


def test_others_can_t_look_into_them(work):
    need_root("become another user")
    path = mount(make_archive(work))
    def look():
        os.setgid(65534)
        os.setuid(65534)
    done = harness.run("ls", path, status=None, preexec_fn=look)
    check(done.returncode != 0, "another user sees them")
    life.umount(path)


# ---- where nothing can be mounted ----

def test_neither_device_nor_namespaces_are_needed(work):
    """In a container of its own: no /dev/fuse, no further user namespace, no capability."""
    need_program("unshare")
    archive, program = make_archive(work), harness.onepot_program()
    with tarfile.open(archive, "a") as tar:  # of an owner without a number there
        member = tarfile.TarInfo("strange")
        member.uid = member.gid = 1_234_567
        tar.addfile(member)
    script = ("mount -t tmpfs none /dev/ && echo 0 >/proc/sys/user/max_user_namespaces && "
              f"! {program} run {archive} -- true 2>said && grep -q 'or use --extract' said && {program} run --extract {archive} -- cat {{}}/readme && "
              f"p=$({program} mount --extract {archive}) && cat $p/readme && {program} umount $p")
    done = harness.run("unshare", "-Urm", "--propagation", "slave", "sh", "-c", script, status=None, cwd=work.path)
    if b"unshare" in done.stderr and done.returncode:
        raise Skip("no user namespace can be made here")
    check_equal((done.returncode, done.stdout), (0, b"hello\nhello\n"), f"what it does ({said(done)})")
    check_nothing_left()


def test_in_a_container_of_bubblewrap(work):
    need_program("bwrap")
    archive, program = make_archive(work), harness.onepot_program()
    done = harness.run("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/dev/shm", "--bind",
                       work.path, work.path, "--unshare-user", "--unshare-pid", program, "run", "--extract", archive, "--",
                       "sh", "-c", "test ! -e /dev/fuse && cat {}/readme",
                       env=environment(ONEPOT_RUNTIME_DIR="/dev/shm"), status=None)
    if b"bwrap: " in done.stderr:
        raise Skip(f"bubblewrap makes no container here: {said(done)}")
    check_equal((done.returncode, done.stdout), (0, b"hello\n"), f"what it does ({said(done)})")


if __name__ == "__main__":
    harness.main(globals(), mounts=False)

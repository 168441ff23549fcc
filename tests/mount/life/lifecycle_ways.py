"""Ways to mount: each alone, by the variable that hides the others and by taking away what
they need; as root without privileges, as an ordinary user, and where none is left."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import tarfile

import harness
import life
from harness import (Skip, check, check_equal, environment, mountpoints,
                     need_program, need_root, need_users, onepot, onepot_program, run, wait_for)
from life import check_nothing_left, fails, make_archive, mount, read, said, slots, umount

USER = 54325  # of no one, and of no other suite: limits are of all of a user's processes


def only(*ways):
    return environment(ONEPOT_MOUNT_METHODS=",".join(ways))


def need_helper(name):
    if shutil.which(name) is None:
        raise Skip(f"there is no {name}")


# ---- hidden by the variable ----

def test_each_way_mounts_and_unmounts(work):
    archive = make_archive(work, "odd, na\\me é.tar")
    for way in ("mount", "fusermount3", "fusermount"):
        if way != "mount":
            need_helper(way)
        elif os.geteuid() != 0:
            continue
        env = only(way)
        path = mount(archive, env=env)
        check_equal(read(f"{path}/readme"), b"hello\n", f"a file by {way}")
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            line = next(l.split() for l in f if f" {path} " in l)
        after = line[line.index("-") + 1:]
        check_equal((after[0], harness.unescape(after[1])), ("fuse.onepot", archive),
                    f"type and source by {way}")
        check_equal(set("ro nosuid nodev noatime".split()) - set(line[5].split(",")), set(),
                    f"options by {way}")
        with life.opened(f"{path}/readme"):
            done = umount("--wait", "0", path, env=env, status=1)
            check("used by" in said(done), f"busy by {way}: {said(done)!r}")
        umount(path, env=env)
        check_nothing_left(way)


def test_options_reach_the_kernel_by_each_way(work):
    archive = make_archive(work)
    for way in ("mount", "fusermount3", "fusermount"):
        if way != "mount":
            need_helper(way)
        need_root("mount, and allow others in without a word in fuse.conf")
        at = work / "at"
        mount(archive, "--at", at, "--allow-other", "-o", "noexec,fsname=me", env=only(way))
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            line = next(l.split() for l in f if f" {at} " in l)
        check("noexec" in line[5], f"options by {way}: {line}")
        check_equal(line[line.index("-") + 2], "me", f"the source by {way}")
        check("allow_other" in line[-1] and "default_permissions" in line[-1], f"{way}: {line}")
        umount(at)
        check_nothing_left(way)


def test_allow_other_lets_others_in_by_the_permissions_of_files(work):
    need_root("let others in")
    need_program("setpriv")
    archive = make_archive(work)
    os.chmod(work.path, 0o755)
    os.chmod(work / "source/readme", 0o600)
    os.chmod(work / "source/sub/0001", 0o644)
    os.chmod(work / "source", 0o755)
    os.chmod(work / "source/sub", 0o755)
    run("tar", "-cf", archive, "-C", work / "source", ".")

    def other(path):
        return run("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "cat", path,
                   status=None).returncode == 0

    at = work / "at"
    mount(archive, "--at", at)
    check(not other(f"{at}/sub/0001"), "others are in a private mount")
    umount(at)
    mount(archive, "--at", at, "--allow-other")
    check(other(f"{at}/sub/0001"), "others can't read what they may")
    check(not other(f"{at}/readme"), "others read what they may not")
    umount(at)
    fails("mount", archive, "--allow-other", words=["--at"], status=2)
    check_nothing_left()


def test_allow_other_goes_by_access_control_lists(work):
    need_root("let others in")
    need_program("setpriv")
    group = USER + 1
    lists = {  # (group of the file, its list): may a user read it who is in that group?
        "denied": (group, f"user::rw-,user:u:---:{USER},group::r--,mask::r--,other::---"),
        "granted": (0, f"user::rw-,user:u:r--:{USER},group::---,mask::r--,other::---"),
        "by group": (0, f"user::rw-,group::---,group:g:r--:{group},mask::r--,other::---"),
        "masked": (0, f"user::rw-,user:u:rw-:{USER},group::---,mask::---,other::---"),
        "plain": (group, None),
    }
    archive, at = work / "lists.tar", work / "at"
    os.chmod(work.path, 0o755)
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        root = tarfile.TarInfo(".")
        root.type, root.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(root)
        for name, (gid, acl) in lists.items():
            member = tarfile.TarInfo(name)
            member.mode = 0o600 if name == "masked" else 0o640
            member.gid, member.size = gid, 2
            member.pax_headers = {"SCHILY.acl.access": acl} if acl else {}
            tar.addfile(member, io.BytesIO(b"x\n"))

    def readable(*who):
        return {name for name in lists if run("setpriv", *who, "cat", f"{at}/{name}",
                                              status=None).returncode == 0}

    user = [f"--reuid={USER}", f"--regid={USER}", f"--groups={group}"]
    other = [f"--reuid={USER + 2}", f"--regid={USER + 2}", "--clear-groups"]
    member = [f"--reuid={USER + 2}", f"--regid={USER + 2}", f"--groups={group}"]
    for options in (["--allow-other"], ["-o", "allow_other"]):
        mount(archive, "--at", at, *options)
        check_equal(readable(*user), {"granted", "by group", "plain"}, "what the user reads")
        check_equal(readable(*member), {"denied", "by group", "plain"}, "what a member reads")
        check_equal(readable(*other), set(), "what others read")
        umount(at)
    mount(archive, "--at", at)
    check_equal({name for name in lists if read(f"{at}/{name}") == b"x\n"}, set(lists),
                "what its one user reads of a private mount")
    umount(at)
    check_nothing_left()


def test_a_private_namespace_serves_a_run(work):
    archive = make_archive(work)
    env = only("namespace")
    done = onepot("run", archive, "--", "sh", "-c", "cat {}/readme; id -u; id -g; ls {}/sub | wc -l",
                  env=env, status=None)
    if done.returncode != 0 and "namespace" in said(done):
        raise Skip(f"no user namespaces here: {said(done)}")
    check_equal(done.stdout.decode().split(),
                ["hello", str(os.geteuid()), str(os.getegid()), str(life.FILES)], "what it says")
    check("1 file" in said(done), f"the last line: {said(done)!r}")
    check_nothing_left("a private namespace")
    for command, status in (("exit 3", 3), ("kill -9 $$", 137)):
        onepot("run", archive, "--", "sh", "-c", command, env=env, status=status)
    onepot("run", archive, "--", "no-such-command", env=env, status=127)
    with life.background("run", archive, "--", "sh", "-c", "cat {}/readme; read x", stdin=-1,
                         env=env) as one:
        life.first_line(one)
        check_equal(mountpoints(work.path), [], "mounts that all can see")
        done = onepot("run", archive, "--", "cat", "{}/readme", env=env)
        check_equal(done.stdout, b"hello\n", "a file, for a second run")
        fails("umount", archive, words=["alone"])
        fails("umount", "--all", words=["alone"])
        one.communicate(b"\n", timeout=90)
    check_nothing_left()


def test_processes_left_in_a_private_namespace_lose_the_mount(work):
    archive = make_archive(work)
    done = onepot("run", archive, "--", "sh", "-c", "cd {}/sub; sleep 60 >/dev/null 2>&1 & exit 4",
                  env=only("namespace"), status=None)
    if done.returncode == 125:
        raise Skip(f"no user namespaces here: {said(done)}")
    check_equal(done.returncode, 4, "the status")
    check_nothing_left()
    life.kill_left_behind("sleep")


def test_a_wrapper_that_is_killed_takes_its_private_mount_along(work):
    archive = make_archive(work)
    with life.background("run", archive, "--", "sh", "-c", "echo; read x", stdin=subprocess.PIPE,
                         env=only("namespace")) as wrapper:
        if not wrapper.stdout.readline():
            raise Skip(f"no user namespaces here: {wrapper.stderr.read()}")
        wrapper.kill()
        wrapper.wait()
        wrapper.stdin.close()  # its command ends, and the namespace with it
        wrapper.stdin = None
        check_nothing_left("the wrapper's death")


# ---- one directory, several jobs ----

def archive_of(work, name):
    """A tar with one file, which says its name."""
    path = work / f"{name}.tar"
    with tarfile.open(path, "w") as tar:
        member = tarfile.TarInfo("who")
        member.size = len(name)
        tar.addfile(member, io.BytesIO(name.encode()))
    return path


TELL = "echo $(readlink /proc/self/ns/mnt) $(cat {}/who); read x; cat {}/who"


def in_job(job, archive, *options, command=TELL):
    return life.background("run", archive, *options, "--", "sh", "-c", command,
                           stdin=subprocess.PIPE, env=environment(SLURM_JOB_ID=str(job)))


def told(process):
    """(mount namespace, what it has read)"""
    line = life.first_line(process).split()
    check_equal(len(line), 2, f"words of {line}")
    return line


def end(process, expected):
    out, errors = process.communicate(b"\n", timeout=90)
    check_equal((process.returncode, out.decode()), (0, expected),
                f"status and what is read last; it says {errors!r}")


def need_private(work, archive, at):
    done = onepot("run", archive, "--private=on", "--at", at, "--", "true", status=None)
    if done.returncode == 125 and "namespace" in said(done):
        raise Skip(f"no private namespaces here: {said(done)}")
    check_equal(done.returncode, 0, f"status of run, which says {said(done)!r}")


def test_jobs_of_one_node_have_each_its_archive_at_one_directory(work):
    at, names = work / "at", ["one", "two", "three"]
    archives = {name: archive_of(work, name) for name in names}
    need_private(work, archives["one"], at)
    for order, kind in ((names, "shared"), (names[::-1], "private"),
                        (["two", "one", "three"], "shared")):
        if os.geteuid() == 0:  # as on most nodes, and as in most containers
            run("mount", f"--make-r{kind}", "/")
        with contextlib.ExitStack() as stack:
            jobs = {}
            for number, name in enumerate(names, 1):
                jobs[name] = stack.enter_context(in_job(number, archives[name], "--at", at))
                check_equal(told(jobs[name])[1], name, "what a job reads")
            check_equal(read(f"{at}/who"), b"one", "what others read")
            check_equal(life.mounted(at)["job"], "1", "whose mount it is outside")
            listed = [m["job"] for m in json.loads(onepot("stat", "--json").stdout)]
            check_equal(sorted(listed), ["1", "2", "3"], "jobs that stat shows")
            for name in order:
                end(jobs[name], name)
        check_nothing_left(f"the end of {order}")
        check(not os.path.exists(at), "the directory is left")


def test_ranks_of_a_step_share_the_namespace_of_the_first(work):
    at, first, mine = work / "at", archive_of(work, "first"), archive_of(work, "mine")
    need_private(work, first, at)
    with in_job(1, first, "--at", at) as other:
        told(other)
        with contextlib.ExitStack() as stack:
            ranks = [stack.enter_context(in_job(2, mine, "--at", at)) for _ in range(4)]
            words = [told(rank) for rank in ranks]
            check_equal({name for _, name in words}, {"mine"}, "what the ranks read")
            check_equal(len({ns for ns, _ in words}), 1, f"namespaces of the ranks: {words}")
            mounts = json.loads(onepot("stat", "--json").stdout)
            check_equal(sorted(m["job"] for m in mounts), ["1", "2"], "mounts")
            end(ranks[0], "mine")
            late = stack.enter_context(in_job(2, mine, "--at", at))
            check_equal(told(late)[1], "mine", "what a late rank reads")
            for rank in (*ranks[1:], late):
                end(rank, "mine")
        wait_for(lambda: len(json.loads(onepot("stat", "--json").stdout)) == 1,
                 "the mount of the ranks to end")
        end(other, "first")
    check_nothing_left()


def test_a_command_in_a_namespace_of_its_own_is_where_it_was(work):
    archive, at = archive_of(work, "mine"), work.make("at")
    need_private(work, archive, at)
    show = "pwd; id -u; id -g; cat {}/who; echo; read x"
    with in_job(1, archive, "--at", at, "--private", "on", command=show) as one:
        words = [life.first_line(one) for _ in range(4)]
        check_equal(words, ["/", str(os.geteuid()), str(os.getegid()), "mine"], "what it says")
        check_equal((mountpoints(work.path), os.listdir(at)), ([], []), "what others see")
        done = run(onepot_program(), "run", archive, "--at", at, "--private=on", "--", "pwd",
                   cwd=work.path, env=environment(SLURM_JOB_ID="1"))
        check_equal(done.stdout.decode(), work.path + "\n", "where one that joins it is")
        one.communicate(b"\n", timeout=90)
    check_nothing_left()


def test_where_a_directory_is_taken_the_message_tells_by_whom(work):
    first, mine, at = archive_of(work, "first"), archive_of(work, "mine"), work / "at"
    with in_job(17, first, "--at", at) as other:
        told(other)
        words = ["first.tar", "job 17", f"process {life.daemon_of(at)}", "another --at"]
        for options, env in ((["--private=off"], environment(SLURM_JOB_ID="2")),
                             ([], environment(SLURM_JOB_ID="2", ONEPOT_MOUNT_METHODS="mount,fusermount3"))):
            done = fails("run", mine, "--at", at, *options, "--", "true", env=env, status=125,
                         words=words)
            check("unmount" not in said(done), f"it advises to harm others: {said(done)!r}")
        fails("mount", mine, "--at", at, env=environment(SLURM_JOB_ID="2"),
              words=[*words, "onepot run"])
        fails("mount", mine, "--at", at, "--private=on", status=2, words=["--private"])
        end(other, "first")
    check_nothing_left()


def test_an_ordinary_user_has_a_directory_in_several_jobs_too(work):
    need_helper("fusermount3")
    for name in ("one", "two"):
        archive_of(work, name)
    done = Node(work).script(f"""
        cd $TMPDIR; mkfifo come go
        exec 3<>come 4<>go # nobody waits for the other end of one
        export SLURM_JOB_ID=1
        {{ $ONEPOT run {work.path}/one.tar --at $TMPDIR/at -- sh -c 'echo up >come; read x <go' || echo failed >&3; }} &
        read how <&3
        [ $how = up ]
        export SLURM_JOB_ID=2
        $ONEPOT run {work.path}/two.tar --at $TMPDIR/at -- sh -c 'cat {{}}/who; echo " $(id -u)"' || S=$?
        cat $TMPDIR/at/who
        echo down >&4
        wait
        exit ${{S:-0}}
        """, status=None)
    if done.returncode == 125 and "not possible here" in said(done):
        check("job 1" in said(done), f"it says {said(done)!r}")
        raise Skip(f"no user namespaces here: {said(done)}")
    check_equal((done.returncode, done.stdout.decode()), (0, f"two {USER}\none"),
                f"status and what is read; it says {said(done)!r}")
    life.check_no_state_of(USER)


def test_where_no_way_is_left_one_line_says_why(work):
    archive = make_archive(work)
    for ways in (["fusermount"], ["fusermount3", "fusermount"]):
        # A helper that fails stands for one that may not.
        tools = work / "tools"
        os.makedirs(tools, exist_ok=True)
        for name in ways:
            life.write(f"{tools}/{name}", f"#!/bin/sh\necho '{name}: not today' >&2\nexit 1\n".encode())
            os.chmod(f"{tools}/{name}", 0o755)
        env = environment(ONEPOT_MOUNT_METHODS=",".join(ways), PATH=f"{tools}:{os.environ['PATH']}")
        fails("mount", archive, env=env, words=["not today", *(f"{w}: " for w in ways)])
        fails("run", archive, "--", "true", env=env, status=125, words=["not today"])
        check_nothing_left()
    fails("mount", archive, env=only("namespace"), words=["no way"])
    fails("mount", archive, env=only("magic"), words=["ONEPOT_MOUNT_METHODS"])
    check_nothing_left()


# ---- taken away in earnest ----

def without_privileges(*more):
    """Root's user ID and files, but of its capabilities only the one that a user namespace for
    root needs."""
    need_root("drop privileges")
    need_program("setpriv")
    return ["setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all", *more]


def test_without_capabilities_and_with_no_new_privs_a_namespace_is_left(work):
    archive = make_archive(work)
    bare = without_privileges("--no-new-privs")
    done = run(*bare, onepot_program(), "mount", archive, status=1)
    for word in ("mount(2): Operation not permitted", "fusermount3: ", "no_new_privs"):
        check(word in said(done), f"{word!r} is not in {said(done)!r}")
    check_nothing_left()
    done = run(*bare, onepot_program(), "run", archive, "--", "cat", "{}/readme", status=None)
    if done.returncode != 0:
        raise Skip(f"no user namespaces here: {said(done)}")
    check_equal(done.stdout, b"hello\n", "a file")
    check_nothing_left()


class Node:
    """A mount namespace that looks like an ordinary node to an ordinary user: /dev/fuse may
    be opened by all. Commands run in it as that user; `hide` puts nothing in place of files."""

    def __init__(self, work, hide=(), flags=()):
        need_root("make a mount namespace and a device")
        need_program("unshare", "setpriv")
        need_users()
        self.work = work
        os.chmod(work.path, 0o755)
        for name in (".home", ".home/run", ".home/tmp", ".home/cache"):
            os.chmod(work / name, 0o1777)
        os.makedirs(work / "devices", exist_ok=True)
        prepare = [f"mount -t tmpfs -o mode=755 none {work / 'devices'}",
                   f"mknod -m 666 {work / 'devices/fuse'} c 10 229",
                   f"mount --bind {work / 'devices/fuse'} /dev/fuse",
                   f"cat /etc/passwd >{work / 'devices/passwd'}",
                   f"echo tester:x:{USER}:{USER}::/:/bin/sh >>{work / 'devices/passwd'}",
                   f"mount --bind {work / 'devices/passwd'} /etc/passwd"]
        for name in hide:
            path = shutil.which(name)
            if path:
                prepare.append(f"mount --bind /dev/null {os.path.realpath(path)}")
        user = " ".join(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *flags])
        self.prefix = " && ".join(prepare) + f" && exec {user} "

    def script(self, script, **options):
        """A shell script of the user; $ONEPOT and $ARCHIVE are set."""
        path = self.work / "script"
        life.write(path, script.encode())
        os.chmod(path, 0o755)
        env = environment(ONEPOT=onepot_program(), ARCHIVE=self.work / "data.tar")
        return run("unshare", "-m", "sh", "-c", self.prefix + f"sh -eu {path}", env=env, **options)


MOUNT_AND_UMOUNT = """
M=$($ONEPOT mount $ARCHIVE)
cat $M/readme
grep " $M " /proc/self/mountinfo | grep -o "user_id=[0-9]*"
M2=$($ONEPOT mount $ARCHIVE --at $TMPDIR/at)
cat $M2/readme
cd $M2; ! $ONEPOT umount --wait 0 $M2 2>$TMPDIR/said; cd /
grep -q "used by" $TMPDIR/said
$ONEPOT umount --all
test ! -e $TMPDIR/at
$ONEPOT run $ARCHIVE -- cat {}/readme
"""


def test_an_ordinary_user_mounts_by_either_helper(work):
    make_archive(work)
    for hidden in ([], ["fusermount3"]):
        for name in {"fusermount3", "fusermount"} - set(hidden):
            need_helper(name)
        if hidden and os.path.realpath(shutil.which("fusermount")) == \
                os.path.realpath(shutil.which("fusermount3")):
            continue  # one program by two names
        done = Node(work, hide=hidden).script(MOUNT_AND_UMOUNT)
        check_equal(done.stdout.decode().split(), ["hello", f"user_id={USER}", "hello", "hello"],
                    f"what it says without {hidden}")
        life.check_no_state_of(USER)


def test_an_ordinary_user_without_helpers_has_run(work):
    make_archive(work)
    for node in (Node(work, hide=["fusermount3", "fusermount"]), Node(work, flags=["--no-new-privs"])):
        done = node.script("! $ONEPOT mount $ARCHIVE\n$ONEPOT run $ARCHIVE -- cat {}/readme",
                           status=None)
        if done.returncode != 0 and "namespace" in said(done):
            raise Skip(f"no user namespaces here: {said(done)}")
        check_equal((done.returncode, done.stdout), (0, b"hello\n"), f"run, which says {said(done)!r}")
        check("it can't be mounted" in said(done), f"mount says {said(done)!r}")
        life.check_no_state_of(USER)


def test_a_killed_daemon_of_an_ordinary_user_is_healed(work):
    make_archive(work)
    need_helper("fusermount3")
    done = Node(work).script("""
        pid() { $ONEPOT stat --json $1 | grep -o '"daemon_pid": *[0-9]*' | grep -o '[0-9]*$'; }
        M=$($ONEPOT mount $ARCHIVE)
        kill -9 $(pid $M)
        sleep 0.2
        M=$($ONEPOT mount $ARCHIVE)
        cat $M/readme
        kill -9 $(pid $M)
        sleep 0.2
        $ONEPOT umount $M
        """)
    check_equal(done.stdout, b"hello\n", "a file after the first death")
    life.check_no_state_of(USER)


def test_the_limit_of_processes_is_named_where_it_is_the_reason(work):
    make_archive(work)
    need_program("prlimit")
    done = Node(work).script("""
        export ASAN_OPTIONS=${ASAN_OPTIONS-}:detect_leaks=0  # that needs a process of its own
        for how in parse know; do  # the first process is one that parses, or a helper that mounts
            for n in 1 2 3 4 5 6 8 12 20 40; do
                rm -rf $XDG_CACHE_HOME/*
                [ $how = parse ] || $ONEPOT index $ARCHIVE
                prlimit --nproc=$n $ONEPOT run $ARCHIVE -- true && break
                $ONEPOT umount --all
            done
        done
        """, status=None)
    reasons = [line for line in said(done).splitlines() if "temporarily unavailable" in line]
    check(reasons, f"no limit was reached: {said(done)!r}")
    for line in reasons:
        check("ulimit -u" in line or "still mounted" in line, f"it says {line!r}")
    life.check_no_state_of(USER)


HELPER = """#!/bin/sh
case $1 in -u*) if [ -e {0}/broken ]; then echo 'no process can be made' >&2; exit 1; fi;; esac
{1} "$@" || exit
case $1 in -o) if [ -e {0}/broken ]; then kill -TERM $PPID; fi;; esac
"""


def test_a_mount_that_its_helper_does_not_end_is_found_again(work):
    archive = make_archive(work)
    need_helper("fusermount3")
    folder = work.make("bin")
    for name in ("fusermount3", "fusermount"):
        with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
            f.write(HELPER.format(work.path, shutil.which("fusermount3")))
        os.chmod(f"{folder}/{name}", 0o755)
    env = environment(ONEPOT_MOUNT_METHODS="fusermount3", PATH=f"{folder}:{os.environ['PATH']}")
    broken = work / "broken"
    touch = f"touch {broken}"
    for command, word in ((["run", archive, "--", "sh", "-c", touch], "can't be unmounted"),
                          (["mount", archive], "still mounted")):
        if word == "still mounted":
            run("sh", "-c", touch)
        done = onepot(*command, env=env, status=None)
        check(word in said(done), f"{command[0]} says {said(done)!r}")
        check(mountpoints(work.path), "the mount is gone, and should not be: the test tests nothing")
        os.unlink(broken)
        onepot("umount", "--all", env=env)
        check_nothing_left()


def test_where_shared_memory_is_full_the_next_folder_is_taken(work):
    make_archive(work)
    need_root("mount a small /dev/shm")
    done = run("unshare", "-m", "sh", "-euc",
               "mount -t tmpfs -o size=16k none /dev/shm; M=$($ONEPOT mount $ARCHIVE); echo $M;"
               "cat $M/readme; $ONEPOT umount --all; ls -A /dev/shm/*",
               env=environment(ONEPOT_RUNTIME_DIR=None, ONEPOT=onepot_program(),
                               ARCHIVE=work / "data.tar"))
    path = os.path.join(work.path, ".home/tmp/onepot-0/data.tar")
    check_equal(done.stdout.decode(), f"{path}\nhello\nlock\n", "what it says")
    check_equal(os.listdir(os.path.dirname(path)), ["lock"], "what is left")


def test_inside_a_user_namespace_mount_works_directly(work):
    archive = make_archive(work)
    need_program("unshare")
    done = run("unshare", "-Urm", "--propagation", "slave", "sh", "-eu", "-c",
               f"M=$({onepot_program()} mount {archive}); cat $M/readme; "
               f"{onepot_program()} umount $M", status=None,
               env=only("mount"))
    if done.returncode != 0 and "unshare" in said(done):
        raise Skip(f"no user namespaces here: {said(done)}")
    if done.returncode != 0 and "/dev/fuse" in said(done):
        raise Skip(f"/dev/fuse is not for all here: {said(done)}")
    check_equal((done.returncode, done.stdout), (0, b"hello\n"), f"it says {said(done)!r}")
    check_equal(slots(), [], "what is left")


if __name__ == "__main__":
    harness.main(globals())

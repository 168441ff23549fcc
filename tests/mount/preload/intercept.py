"""The short circuit: with the preloaded library programs get the bytes, results and errors that
the mount gives, whatever they do; it notices what changes; and it costs nobody else anything.

ONEPOT_SEQUENCES in the environment: how many random sequences of calls to compare (a soak)."""

import json
import os
import random
import shutil
import subprocess
import sys
import textwrap

import harness
import life
from slow import Slow
from tars import write_folder
from harness import Skip, check, check_equal, directly_read, environment, need_program, onepot, run, wait_for

SEQUENCES = int(os.environ.get("ONEPOT_SEQUENCES", "600"))
PYTHON = sys.executable

SIZES = {"empty": 0, "one": 1, "hundred": 100, "page-": 4095, "page": 4096, "page+": 4097,
         "alarm": 5000, "twenty": 20480, "big": 300000}


def content(name, size):
    return random.Random(name).randbytes(size)


def make_folder(work, name="data.tar", files=None, **kept):
    """A tar of these files (name: size), in the folder `in`."""
    files = SIZES if files is None else files
    return write_folder(work / name, ((n, content(kept.get("seed", "") + n, s)) for n, s in files.items()),
                        folder="in")


def sequence_tree(work):
    """All kinds of files, holes included."""
    top = work.make("tree")
    for name, size in SIZES.items():
        with open(f"{top}/{name}", "wb") as f:
            f.write(content(name, size))
    with open(f"{top}/sparse", "wb") as f:
        f.write(b"a" * 5000)
        f.seek(100000)
        f.write(b"b" * 9000)
        f.truncate(150000)
    os.mkdir(f"{top}/dir")
    os.symlink("twenty", f"{top}/link")
    os.symlink("nowhere", f"{top}/dangling")
    os.link(f"{top}/big", f"{top}/hard")
    run("tar", "-C", top, "-cSf", work / "tree.tar", ".")
    return work / "tree.tar"


def intercepted(work, archive, *command, status=0, mode="on", **options):
    """The command under `run`, with its state in the private directory."""
    env = environment(**{name: os.environ[name] for name in options.pop("passes", ())})
    result = onepot("run", f"--intercept={mode}", *options.pop("arguments", ()), archive, "--",
                    *harness.counting(work, *command), env=env, status=status, **options)
    life.check_nothing_left("the command")  # or what another test's namespace sees of it
    return result


def python(work, archive, program, *arguments, **options):
    """A Python program under `run`: {} is the mount, behind its own arguments."""
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write("import os, sys, threading\n" + textwrap.dedent(program))
    return intercepted(work, archive, PYTHON, path, "{}", *arguments, **options)


def test_random_calls_have_the_same_results(work):
    need_program("tar", "head")
    calls = os.environ.get("INTERCEPT_CALLS")
    if not calls:
        raise Skip("INTERCEPT_CALLS names no program")
    archive = sequence_tree(work)
    seed = os.environ.get("ONEPOT_SEED", "7")
    command = [calls, "{}", seed, "0", str(SEQUENCES)]
    plain = intercepted(work, archive, *command, mode="off", timeout=3600).stdout.splitlines()
    short = intercepted(work, archive, *command, timeout=3600)
    check(directly_read(work), f"nothing was read directly: {short.stderr}")
    check_equal(len(plain), SEQUENCES, "sequences")
    differ = [a.split()[0].decode() for a, b in zip(plain, short.stdout.splitlines()) if a != b]
    check_equal(differ, [], f"sequences of seed {seed} that differ (see intercept_calls --tell)")


def test_bytes_are_counted_and_shown(work):
    archive = make_folder(work)
    result = python(work, archive, """
        import json, subprocess, time
        top = sys.argv[1]
        for _ in range(50):
            for name in os.listdir(top + "/in"):
                with open(f"{top}/in/{name}", "rb") as f:
                    f.read()
        for _ in range(600):  # the daemon looks now and then
            with open(top + "/.onepot/stat.json") as f:
                shown = json.load(f)
            if shown["direct_bytes"] > 40 * int(sys.argv[2]):
                break
            time.sleep(0.1)
        print(json.dumps(shown))
    """, str(sum(SIZES.values())))
    shown = json.loads(result.stdout)
    check_equal(shown["read_files"], len(SIZES) - 1, "files with bytes")
    check(0 < shown["direct_files"] < len(SIZES), shown)  # the mount may have answered a first read
    check(shown["direct_bytes"] > 40 * sum(SIZES.values()), shown)
    check(directly_read(work), result.stderr)


def test_threads_and_children_share_a_position(work):
    """Each byte once, by whoever reads: threads of a process, processes of a fork."""
    archive = make_folder(work, files={"numbers": 400000})
    result = python(work, archive, """
        top = sys.argv[1]
        path = top + "/in/numbers"
        whole = open(path, "rb").read()

        def take(fd, to):
            while piece := os.read(fd, 977):
                to.append(piece)

        for children in False, True:
            for _ in range(10):
                fd = os.open(path, os.O_RDONLY)
                got = [[] for _ in range(4)]
                if children:
                    pipes = [os.pipe() for _ in got]
                    for _, end in pipes:
                        if os.fork() == 0:
                            take(fd, got[0])
                            with open(end, "wb") as out:
                                out.write(b"".join(got[0]))
                            os._exit(0)
                        os.close(end)
                    parts = [[open(start, "rb").read()] for start, _ in pipes]
                    for _ in pipes:
                        os.wait()
                else:
                    threads = [threading.Thread(target=take, args=(fd, g)) for g in got]
                    for t in threads:
                        t.start()
                    for t in threads:
                        t.join()
                    parts = got
                assert os.lseek(fd, 0, os.SEEK_CUR) == len(whole)
                os.close(fd)
                found = b"".join(p for part in parts for p in part)
                assert len(found) == len(whole), (children, len(found))
                assert sorted(found) == sorted(whole), children
        print("same")
    """)
    check_equal(result.stdout, b"same\n", "what the readers found")
    check(directly_read(work), result.stderr)


def test_a_descriptor_that_becomes_another_files(work):
    """One thread reads, another puts other files in the place of its descriptor, by dup2 and by
    close and open: each read has bytes of one of them, and no position is moved but its own."""
    archive = make_folder(work, files={"a": 200000, "b": 200000})
    result = python(work, archive, """
        import time
        top = sys.argv[1]
        texts = [open(f"{top}/in/{n}", "rb").read() for n in "ab"]
        known = {t[i:i + 500] for t in texts for i in range(0, 200000, 500)}
        place = os.dup(os.open(top + "/in/a", os.O_RDONLY))
        wrong = []
        ended = False

        def read():
            while not ended:
                try:
                    piece = os.read(place, 500)
                except OSError:
                    continue
                if piece and piece not in known:
                    wrong.append(piece)

        threads = [threading.Thread(target=read) for _ in range(2)]
        for t in threads:
            t.start()
        until = time.monotonic() + 3
        rounds = 0
        while time.monotonic() < until or rounds <= 10:
            rounds += 1
            fd = os.open(f"{top}/in/{'ab'[rounds % 2]}", os.O_RDONLY)
            os.dup2(fd, place)
            os.close(fd)
            # Of a file that is only written to nobody may move the position.
            out = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, place)
            os.write(out, b"x" * 100)
            assert os.lseek(out, 0, os.SEEK_CUR) == 100, "the position was moved"
            os.close(out)
        ended = True
        for t in threads:
            t.join()
        assert not wrong, len(wrong)
        print("same")
    """, work / "out")
    check_equal(result.stdout, b"same\n", "what the reader found")


def test_descriptors_that_are_closed_unseen(work):
    """Numbers are used again without notice, also those that are the library's own."""
    archive = make_folder(work)
    with open(work / "other", "wb") as f:
        f.write(b"other" * 100000)
    result = python(work, archive, """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        top, other = sys.argv[1:]
        names = sorted(os.listdir(top + "/in"))
        whole = {}
        for name in names:
            with open(f"{top}/in/{name}", "rb") as f:
                whole[name] = f.read()
        CLOSE_RANGE, CLOSE = 436, 3 if os.uname().machine == "x86_64" else 57
        for round in range(30):
            for name in names:
                fd = os.open(f"{top}/in/{name}", os.O_RDONLY)
                assert os.read(fd, 10) == whole[name][:10]
                libc.syscall(CLOSE, fd)
                again = os.open(other, os.O_RDONLY)
                assert os.read(again, 10) == b"otherother", round
                libc.syscall(CLOSE, again)
            # Everything above 2, and then something else in all of these places.
            if libc.syscall(CLOSE_RANGE, 3, 0x7fffffff, 0) < 0:
                os.closerange(3, 1500)
            kept = [os.open(other, os.O_RDONLY)]
            while kept[-1] < 1000:
                kept.append(os.dup(kept[0]))
            for name in names:
                fd = os.open(f"{top}/in/{name}", os.O_RDONLY)
                assert os.pread(fd, 1 << 20, 0) == whole[name], name
                os.close(fd)
            assert all(os.lseek(fd, 0, os.SEEK_CUR) == 0 for fd in kept)
            for fd in kept:
                os.close(fd)
        # A descriptor that only names a file, in the place of one that was read.
        import errno, termios
        path = os.open(top + "/in/big", os.O_PATH)
        fd = os.open(top + "/in/big", os.O_RDONLY)
        assert os.read(fd, 10) == whole["big"][:10]
        libc.syscall(CLOSE, fd)
        assert os.dup(path) == fd
        for call in (lambda: os.read(fd, 10), lambda: os.pread(fd, 10, 0),
                     lambda: termios.tcgetattr(fd)):
            try:
                call()
            except (OSError, termios.error) as e:
                assert e.args[0] == errno.EBADF, e
            else:
                raise SystemExit("it can be read")
        print("same")
    """, work / "other")
    check_equal(result.stdout, b"same\n", "what was read")


def test_an_archive_that_changes(work):
    """Never bytes of something else: what the mount answers, or an error."""
    files = {f"f{i}": 50000 for i in range(40)}
    archive = make_folder(work, files=files)
    make_folder(work, "other.tar", files=files, seed="other ")
    program = """
        top, archive, other, how = sys.argv[1:]
        import json, random
        def content(name):
            return random.Random(name).randbytes(50000)
        def direct():
            with open(top + "/.onepot/stat.json") as f:
                return json.load(f)["direct_bytes"]
        for i in range(5):
            with open(f"{top}/in/f{i}", "rb") as f:
                assert f.read() == content(f"f{i}")
        before = direct()
        assert before > 0
        if how == "cut":
            os.truncate(archive, 300000)
        else:
            with open(other, "rb") as f, open(archive, "r+b") as to:
                st = os.stat(archive)
                to.write(f.read())
            os.utime(archive, ns=(st.st_atime_ns, st.st_mtime_ns))
        failed = wrong = 0
        for i in range(40):
            try:
                with open(f"{top}/in/f{i}", "rb") as f:
                    found = f.read()
            except OSError as e:
                failed += 1
                continue
            wrong += found != content(f"f{i}")
        print(how, failed, wrong, direct() - before)
    """
    cut = python(work, archive, program, archive, work / "other.tar", "cut").stdout.split()
    check(int(cut[1]) >= 30 and cut[2:] == [b"0", b"0"], f"an archive cut short: {cut}")
    make_folder(work, files=files)
    # The mount itself takes seconds to notice; but nobody reads past it any more.
    replaced = python(work, archive, program, archive, work / "other.tar", "replaced")
    check_equal(replaced.stdout.split()[3], b"0", "bytes read directly after the change")


def test_a_killed_daemon(work):
    archive = make_folder(work)
    mount = onepot("mount", "--at", work / "mnt", archive, env=environment())
    check_equal(mount.stdout.decode().strip(), work / "mnt", "the mount")
    library = library_of(work)
    program = """
        import signal, time
        top, pid = sys.argv[1], int(sys.argv[2])
        fd = os.open(top + "/in/big", os.O_RDONLY)
        whole = os.pread(fd, 1 << 20, 0)
        assert len(whole) == 300000
        os.kill(pid, signal.SIGKILL)
        for _ in range(3000):
            try:
                os.close(os.open(top + "/in/hundred", os.O_RDONLY))
            except OSError as e:
                break
            time.sleep(0.01)
        else:
            raise SystemExit("files can still be opened")
        assert os.read(fd, 1 << 20) == whole
        print("same")
    """
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write("import os, sys\n" + textwrap.dedent(program))
    try:
        pid = json.loads(onepot("stat", "--json", work / "mnt", env=environment()).stdout)
        result = run(PYTHON, path, work / "mnt", str(pid["daemon_pid"]),
                     env=environment(LD_PRELOAD=library))
        check_equal(result.stdout, b"same\n", "what was read")
    finally:
        onepot("umount", "--all", env=environment(), status=None)


def library_of(work):
    """A copy of the library, as a mount made for export has it."""
    archive = make_folder(work, "library.tar", files={"x": 1})
    made = onepot("mount", "--export", "--intercept=on", archive, env=environment())
    value = [line.split("=", 1)[1].strip("'") for line in made.stdout.decode().splitlines()
             if line.startswith("export LD_PRELOAD")]
    check_equal(len(value), 1, made.stdout)
    with open(value[0].split(":")[-1], "rb") as f, open(work / "io.so", "wb") as to:
        to.write(f.read())
    onepot("umount", archive, env=environment())
    return str(work / "io.so")


def test_one_mount_after_another(work):
    """A process outlives mounts, of which each gets the device number of the one before."""
    library = library_of(work)
    names = {f"f{i}": 3000 + i for i in range(20)}
    archives = [make_folder(work, f"{k}.tar", files=names, seed=f"{k} ") for k in range(3)]
    program = """
        import random, subprocess
        program, at, *archives = sys.argv[1:]
        environ = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        devices = set()
        for round in range(4):
            for k, archive in enumerate(archives):
                subprocess.run([program, "mount", "--at", at, archive], check=True, env=environ,
                               stdout=subprocess.DEVNULL)
                devices.add(os.stat(at).st_dev)
                for i in range(20):
                    with open(f"{at}/in/f{i}", "rb") as f:
                        assert f.read() == random.Random(f"{k} f{i}").randbytes(3000 + i), (round, k, i)
                subprocess.run([program, "umount", at], check=True, env=environ)
        print("same")
    """
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write("import os, sys\n" + textwrap.dedent(program))
    result = run(PYTHON, path, harness.onepot_program(), work / "mnt", *archives,
                 env=environment(LD_PRELOAD=library))
    check_equal(result.stdout, b"same\n", "what was read")


def test_what_is_left_of_a_mount_that_ended(work):
    """A process that has read from it keeps no descriptor of the archive, nor the table's memory."""
    library = library_of(work)
    archive = make_folder(work, files={f"f{i}": 10 for i in range(20000)})
    program = """
        import glob, subprocess, time
        program, at, archive = sys.argv[1:]
        environ = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
        def kept():
            os.close(os.open("/dev/null", os.O_RDONLY))
            links = (os.readlink(f) for f in glob.glob("/proc/self/fd/*") if os.path.lexists(f))
            with open("/proc/self/smaps") as f:
                parts = f.read().split("/memfd:onepot-io")[1:]
            shown = (line.split() for part in parts for line in part.splitlines()[:6])
            return archive in links, sum(int(s[1]) for s in shown if s and s[0] == "Rss:")
        subprocess.run([program, "mount", "--at", at, archive], check=True, env=environ, stdout=2)
        for i in range(20000):
            with open(f"{at}/in/f{i}", "rb") as f:
                f.read()
        is_open, before = kept()
        assert is_open and before > 150, before
        subprocess.run([program, "umount", at], check=True, env=environ, stdout=2)
        for _ in range(600):  # the daemon may end a little later
            is_open, after = kept()
            if not is_open:
                break
            time.sleep(0.1)
        print(is_open, after < 70)
    """
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write("import os, sys\n" + textwrap.dedent(program))
    result = run(PYTHON, path, harness.onepot_program(), work / "mnt", archive,
                 env=environment(LD_PRELOAD=library))
    check_equal(result.stdout, b"False True\n", "whether the archive is open, and the memory given back")


def test_a_child_of_vfork_when_a_mount_has_ended(work):
    """It has the memory of its parent, and none of its descriptors to close."""
    need_program("cc")
    library = library_of(work)
    archive = make_folder(work)
    with open(work / "vfork.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <stdio.h>
                   #include <string.h>
                   #include <sys/wait.h>
                   #include <unistd.h>
                   int main(int argc, char **argv) {
                       char b[4096] = "";
                       int found = 0, fd = open(argv[1], O_RDONLY);
                       if (argc < 3 || read(fd, b, 100) != 100 || close(fd) < 0 || puts("read") < 0)
                           return 1;
                       fflush(stdout);
                       if (getchar() != '\\n')
                           return 1;
                       if (vfork() == 0)
                           _exit(open("/dev/null", O_RDONLY) < 0);
                       wait(NULL);
                       open("/dev/null", O_RDONLY);
                       for (fd = 0; fd < 1024; fd++) {
                           char path[40];
                           snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
                           memset(b, 0, sizeof(b));
                           found += readlink(path, b, sizeof(b) - 1) > 0 && strcmp(b, argv[2]) == 0;
                       }
                       printf("%d\\n", found);
                       return 0;
                   }""")
    run("cc", "-w", "-o", work / "vfork", work / "vfork.c")
    onepot("mount", "--at", work / "mnt", archive, env=environment())
    daemon = json.loads(onepot("stat", "--json", work / "mnt", env=environment()).stdout)["daemon_pid"]
    with subprocess.Popen([work / "vfork", work / "mnt/in/big", archive], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env=environment(LD_PRELOAD=library)) as program:
        check_equal(program.stdout.readline(), b"read\n", "the program")
        onepot("umount", work / "mnt", env=environment())
        wait_for(lambda: not os.path.exists(f"/proc/{daemon}"), "the daemon's end")
        check_equal(program.communicate(b"\n", timeout=60)[0], b"0\n", "descriptors of the archive")


def test_programs_of_all_kinds(work):
    """Shell, tools and children of every kind, with and without."""
    need_program("bash", "sha256sum", "cp", "tail", "sort", "dd")
    archive = make_folder(work)
    script = r"""
        set -e
        cd "$1/in"
        sha256sum *
        cat big twenty | sha256sum
        cp -r . "$2"
        (cd "$2" && sha256sum *)
        while read -r line; do echo ${#line}; break; done < hundred
        { head -c 7 >/dev/null; sha256sum; } < twenty
        exec 7< big; tail -c +100 <&7 | sha256sum; exec 7<&-
        dd if=big bs=1000 skip=3 count=5 2>/dev/null | sha256sum
        sort big | sha256sum
        test -t 0 < one && echo terminal || echo no terminal
        for i in 1 2 3; do sha256sum < page+ & wait $!; done
        if command -v perl >/dev/null; then
            perl -e 'for (@ARGV) { open F, "<", $_; local $/; print length(<F>), " ", -t F ? 1 : 0, "\n" }' *
        fi
        if command -v git >/dev/null; then git hash-object *; fi
        if command -v rsync >/dev/null; then rsync -ac . "$2/rsync"; (cd "$2/rsync" && sha256sum *); fi
        if command -v node >/dev/null; then
            node -e 'for (const f of process.argv.slice(1))
                console.log(f, require("fs").readFileSync(f).length)' *
        fi
        if command -v java >/dev/null && command -v javac >/dev/null; then
            printf '%s' 'public class Sum { public static void main(String[] a) throws Exception {
                for (String f : a) System.out.println(java.util.Arrays.hashCode(
                    java.nio.file.Files.readAllBytes(java.nio.file.Path.of(f))) + " " +
                    new java.io.FileInputStream(f).readAllBytes().length); } }' > "$2/Sum.java"
            java "$2/Sum.java" *
        fi
    """
    found = []
    for mode in "off", "on":
        out = work.make(f"copy-{mode}")
        result = intercepted(work, archive, "bash", "-c", script, "sh", "{}", out, mode=mode)
        found.append(result.stdout)
    check_equal(found[1], found[0], "what the script printed")
    check(b"no terminal" in found[0], found[0])


def test_programs_that_are_left_alone(work):
    """Of another C library, or static: they start, and read through the mount."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "read.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <stdio.h>
                   #include <unistd.h>
                   int main(int argc, char **argv) {
                       char b[100];
                       int fd = open(argv[1], O_RDONLY);
                       printf("%d %d\\n", argc, (int)read(fd, b, 100));
                       return isatty(fd);
                   }""")
    ways = [("cc", "-static")] + [("musl-gcc",)] * (shutil.which("musl-gcc") is not None)
    for way in ways:
        run(*way, "-o", work / "read", work / "read.c")
        result = intercepted(work, archive, work / "read", "{}/in/big")
        check_equal(result.stdout, b"2 100\n", f"{way}: what it read")
        check_equal(result.stderr.count(b"\n"), 1, f"{way}: {result.stderr}")
        check(not directly_read(work), f"{way}: {result.stderr}")


def test_programs_in_a_sandbox(work):
    """They may call read and exit, and nothing that they don't know of."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "strict.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <linux/seccomp.h>
                   #include <stdio.h>
                   #include <sys/prctl.h>
                   #include <sys/syscall.h>
                   #include <sys/wait.h>
                   #include <unistd.h>
                   int main(int argc, char **argv) {
                       char b[100];
                       int ends[2], status, fd = open(argv[1], O_RDONLY);
                       if (argc < 2 || pipe(ends) < 0 || write(ends[1], b, 3) != 3)
                           return 1;
                       if (fork() == 0) {
                           prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
                           int is_good = read(ends[0], b, 100) == 3 && read(fd, b, 100) == 100;
                           syscall(SYS_exit, is_good ? 0 : 1);
                       }
                       wait(&status);
                       printf("%#x\\n", (unsigned)status);
                       return 0;
                   }""")
    run("cc", "-o", work / "strict", work / "strict.c")
    result = intercepted(work, archive, work / "strict", "{}/in/big")
    check_equal(result.stdout, b"0\n", "how it ended")


FILTERED = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Runs a program under a filter that ends it for these calls, or for none. */
int main(int argc, char **argv) {
    static const int calls[] = {SYS_fstatfs, SYS_statfs, SYS_ioctl, SYS_socket, SYS_connect, SYS_fstat,
                                SYS_lseek, SYS_fcntl, SYS_preadv2, SYS_sched_yield};
    enum { CALLS = sizeof(calls) / sizeof(calls[0]) };
    struct sock_filter code[2 * CALLS + 2] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int n = 1;
    for (int i = 0; i < CALLS && strcmp(argv[1], "kill") == 0; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {n, code};
    if (argc < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
        return 1;
    execv(argv[2], argv + 2);
    return 1;
}
"""


def test_a_filter_that_was_inherited(work):
    """A reader is not ended for calls of the library, neither at a mount's file nor at others."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "filtered.c", "w", encoding="utf-8") as f:
        f.write(FILTERED)
    with open(work / "reader.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <unistd.h>
                   int main(int argc, char **argv) {
                       char b[100];
                       for (int i = 1; i < argc; i++)
                           if (read(open(argv[i], O_RDONLY), b, 100) <= 0)
                               return 1;
                       return write(1, "read\\n", 5) != 5;
                   }""")
    for name in "filtered", "reader":
        run("cc", "-w", "-o", work / name, work / f"{name}.c")
    big = ["{}/in/big"] * 2
    files = [*big, "/proc/version", work / "reader.c"]
    result = intercepted(work, archive, work / "filtered", "kill", work / "reader", *files)
    check_equal(result.stdout, b"read\n", "under a filter")
    check_equal(directly_read(work, "bytes"), 0, "bytes read without the mount")
    # A filter that `onepot` has, too, is one under which it makes such calls itself.
    for known in 0, 1:
        intercepted(work, archive, "env", f"ONEPOT_SECCOMP_FILTERS={known}", work / "filtered", "allow",
                    work / "reader", *files)
        check_equal(directly_read(work, "bytes") > 0, known == 1,
                    f"bytes are read without the mount, where {known} filters are known")
    at = work.make("mnt")
    inner = run(work / "filtered", "allow", harness.onepot_program(), "run", "--at", at, archive, "--",
                *harness.counting(work, "sh", "-c", '"$@"; echo $ONEPOT_SECCOMP_FILTERS', "sh", work / "reader", *big),
                env=environment(), status=None)
    if inner.returncode == 0:  # fusermount3 may be needed, which gains no rights here
        check_equal((inner.stdout, directly_read(work, "bytes") > 0), (b"read\n1\n", True), "where onepot has the filter, too")


def test_other_filesystems_are_asked_once(work):
    """Though there are more of them than a process usually meets."""
    harness.need_root("mount filesystems")
    need_program("unshare", "strace", "mount")
    archive = make_folder(work)
    places = [work.make(f"place-{i}") for i in range(12)]
    reader = f"for _ in range(3):\n  for place in {places!r}:\n    assert open(place + '/file').read() == 'text'\n"
    script = "for place; do mount -t tmpfs none $place; printf text > $place/file; done\n" + \
             'exec strace -y -qq -o "$TRACE" -e trace=fstatfs "$PYTHON" -c "$READER"'
    intercepted(work, archive, "env", f"PYTHON={PYTHON}", f"READER={reader}", f"TRACE={work / 'trace'}", "unshare",
                "--mount", "sh", "-euc", script, "sh", *places)
    with open(work / "trace", encoding="utf-8") as f:
        asked = [line for line in f if "/place-" in line]
    check_equal(len(asked), len(places), f"questions: {asked}")


def test_a_handler_with_a_small_stack(work):
    """It opens and reads a file of the mount, the first that the process meets."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "handler.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <signal.h>
                   #include <stdio.h>
                   #include <sys/auxv.h>
                   #include <sys/mman.h>
                   #include <unistd.h>
                   static const char *path;
                   static volatile int got;
                   static char b[100];
                   static void on_signal(int number) {
                       int fd = open(path, O_RDONLY);
                       (void)number;
                       got = (int)read(fd, b, 100);
                       close(fd);
                   }
                   int main(int argc, char **argv) {
                       enum { PAGES = 1 << 20, ROOM = 2560 };
                       char *low = mmap(NULL, PAGES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                       unsigned long least = getauxval(51 /* AT_MINSIGSTKSZ */);
                       size_t bytes = (least ? least : 8192) + ROOM;
                       /* It ends where a page begins that can't be touched. */
                       mprotect(low + PAGES / 2, bytes, PROT_READ | PROT_WRITE);
                       stack_t stack = {.ss_sp = low + PAGES / 2, .ss_size = bytes};
                       struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
                       path = argv[argc - 1];
                       sigaltstack(&stack, NULL);
                       sigaction(SIGUSR1, &action, NULL);
                       raise(SIGUSR1);
                       printf("%d\\n", got);
                       return 0;
                   }""")
    run("cc", "-D_GNU_SOURCE", "-Wl,-z,now", "-o", work / "handler", work / "handler.c")
    result = intercepted(work, archive, work / "handler", "{}/in/big")
    check_equal(result.stdout, b"100\n", "what it read")
    check(directly_read(work), result.stderr)


def test_threads_that_are_cancelled(work):
    """A thread ends in a read, though none of them gets as far as the kernel."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "cancel.c", "w", encoding="utf-8") as f:
        f.write("""#include <fcntl.h>
                   #include <pthread.h>
                   #include <sched.h>
                   #include <stdio.h>
                   #include <string.h>
                   #include <unistd.h>
                   static int fd;
                   static _Atomic int rounds;
                   static _Atomic int over;
                   static void *read_on(void *how) {
                       char b[100];
                       for (; !over; rounds++)
                           if (strcmp(how, "pread") == 0)
                               pread(fd, b, sizeof(b), 0);
                           else if (read(fd, b, sizeof(b)) > 0)
                               lseek(fd, 0, SEEK_SET); /* the end is the mount's */
                       return NULL;
                   }
                   int main(int argc, char **argv) {
                       pthread_t thread;
                       void *end;
                       fd = open(argv[1], O_RDONLY);
                       pthread_create(&thread, NULL, read_on, argv[argc - 1]);
                       while (rounds < 100)
                           sched_yield();
                       pthread_cancel(thread);
                       for (int before = rounds; rounds < before + 100000;)
                           if (pthread_tryjoin_np(thread, &end) == 0)
                               return puts("cancelled") < 0;
                       over = 1;
                       pthread_join(thread, &end);
                       return puts(end == PTHREAD_CANCELED ? "cancelled" : "it read on") < 0;
                   }""")
    run("cc", "-D_GNU_SOURCE", "-pthread", "-o", work / "cancel", work / "cancel.c")
    for how in "read", "pread":
        result = intercepted(work, archive, work / "cancel", "{}/in/big", how)
        check_equal(result.stdout, b"cancelled\n", f"a thread that calls {how}")


def test_where_no_names_with_64_are_found(work):
    """As by dlsym of musl 1.2.4: here by one that the program has in its place."""
    need_program("cc")
    archive = make_folder(work)
    with open(work / "names.c", "w", encoding="utf-8") as f:
        f.write("""#include <dlfcn.h>
                   #include <fcntl.h>
                   #include <stdio.h>
                   #include <string.h>
                   #include <unistd.h>
                   int fcntl64(int fd, int command, ...);
                   void *dlsym(void *handle, const char *name) {
                       void *(*find)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", VERSION);
                       void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
                       (void)handle;
                       return strstr(name, "64") ? NULL : find(libc, name);
                   }
                   int main(int argc, char **argv) {
                       char b[100];
                       int fd = open64(argv[1], O_RDONLY), other = openat64(AT_FDCWD, argv[1], O_RDONLY);
                       printf("%d %d %d\\n", argc, (int)pread64(fd, b, 100, 7), (int)pread(other, b, 100, 7));
                       return fcntl64(fd, F_GETFD) != 0;
                   }""")
    version = "GLIBC_2.2.5" if os.uname().machine == "x86_64" else "GLIBC_2.17"
    run("cc", "-D_GNU_SOURCE", f'-DVERSION="{version}"', "-rdynamic", "-o", work / "names", work / "names.c", "-ldl")
    result = intercepted(work, archive, work / "names", "{}/in/big")
    check_equal(result.stdout, b"2 100 100\n", "what it read")


def test_a_filesystem_that_pretends_to_be_a_mount(work):
    """It names the socket of one; its files are its own all the same."""
    harness.need_root("mount a filesystem of its own")
    archive = make_folder(work)
    at, point = work.make("mnt"), work.make("impostor")
    impostor = None
    onepot("mount", "--at", at, archive, env=environment())
    try:
        library = library_of(work)
        daemon = json.loads(onepot("stat", "--json", at, env=environment()).stdout)["daemon_pid"]
        with open("/proc/net/unix", encoding="utf-8", errors="surrogateescape") as f:
            name = next(line.split("@")[1].strip() for line in f if f"@onepot-io-{daemon}-" in line)
        st = os.stat(f"{at}/in/big")
        impostor = subprocess.Popen(
            [PYTHON, os.path.join(os.path.dirname(__file__), "impostor.py"), point, str(st.st_size),
             str(st.st_ino), str(st.st_atime_ns // 10**9), str(st.st_atime_ns % 10**9), name],
            env=environment(), stdout=subprocess.PIPE)
        check_equal(impostor.stdout.readline(), b"mounted\n", "the impostor")
        found = run(PYTHON, "-c", "import os, sys; sys.stdout.buffer.write("
                    "os.read(os.open(sys.argv[1], os.O_RDONLY), 1000))", f"{point}/file",
                    env=environment(LD_PRELOAD=library))
        check_equal(found.stdout, b"i" * 1000, "its bytes")
    finally:
        run("umount", "-l", point, status=None)
        if impostor:
            impostor.wait(60)
        onepot("umount", at, env=environment(), status=None)


def test_users_without_a_number(work):
    """In a user namespace that has none for them, one can't be told from another."""
    need_program("unshare")
    if run("unshare", "--user", "true", status=None).returncode:
        raise Skip("no user namespaces here")
    archive = make_folder(work)
    onepot("mount", "--at", work / "mnt", archive, env=environment())
    try:
        library = library_of(work)
        for unshare, expected in ([], True), (["unshare", "--user"], False), (["unshare", "--user", "-r"], True):
            run(*unshare, PYTHON, "-c", f"import sys; assert len(open('{work.path}/mnt/in/big', 'rb').read()) == 300000\n"
                f"assert ('memfd:onepot-io' in open('/proc/self/maps').read()) == {expected}",
                env=environment(LD_PRELOAD=library))
    finally:
        onepot("umount", work / "mnt", env=environment())


def test_other_users_get_no_key(work):
    """Those who may read, too: with it another filesystem could say that its files are these."""
    harness.need_root("become another user")
    archive = make_folder(work)
    at = work.make("mnt")
    os.chmod(work.path, 0o755)
    onepot("mount", "--allow-other", "--at", at, archive, env=environment())
    ask = ("import fcntl, os, sys; os.setuid(int(sys.argv[2]))\n"
           "fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x80504f70, bytearray(80))")
    try:
        run(PYTHON, "-c", ask, f"{at}/in/one", "0")
        refused = run(PYTHON, "-c", ask, f"{at}/in/one", "65534", status=1)
        check(b"Inappropriate ioctl" in refused.stderr, refused.stderr)
    finally:
        onepot("umount", at, env=environment())


def test_where_the_mount_answers(work):
    """Compressed archives, sums that are compared: read right, through the mount, and --intercept=on
    says why."""
    need_program("zip")
    top = work.make("tree")
    with open(f"{top}/text", "wb") as f:
        f.write(b"some words " * 10000)
    run("zip", "-qr", work / "data.zip", ".", cwd=top)
    program = """
        for _ in range(3):
            with open(sys.argv[1] + "/text", "rb") as f:
                assert not f.isatty() and f.read() == b"some words " * 10000
        print("same")
    """
    check_equal(python(work, work / "data.zip", program).stdout, b"same\n", "a deflated member")
    onepot("pack", "-o", work / "packed.tar", top, env=environment())
    result = python(work, work / "packed.tar", program, arguments=["--verify"])
    check_equal(result.stdout, b"same\n", "a file whose sum is compared")
    check(b"it is read through the mount" in result.stderr, result.stderr)


def test_a_tree_of_several_archives(work):
    archives = [make_folder(work, f"{k}.tar", files={f"{k}-{i}": 5000 for i in range(10)})
                for k in range(4)]
    result = python(work, archives[0], """
        import random
        names = sorted(os.listdir(sys.argv[1] + "/in"))
        assert len(names) == 40
        for _ in range(5):
            for name in names:
                with open(f"{sys.argv[1]}/in/{name}", "rb") as f:
                    assert f.read() == random.Random(name).randbytes(5000)
        print("same")
    """, arguments=archives[1:])
    check_equal(result.stdout, b"same\n", "what was read")
    check(directly_read(work), result.stderr)


def test_bytes_that_are_not_in_memory(work):
    """The daemon reads these, and may read ahead; on a tmpfs there are none."""
    files = {f"f{i}": 30000 for i in range(20)}
    archive = make_folder(work, files=files)
    result = python(work, archive, """
        import random
        top, archive = sys.argv[1:]
        fd = os.open(archive, os.O_RDONLY)
        os.fsync(fd)
        for _ in range(3):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for i in range(20):
                with open(f"{top}/in/f{i}", "rb") as f:
                    assert f.read() == random.Random(f"f{i}").randbytes(30000)
        print("same")
    """, archive)
    check_equal(result.stdout, b"same\n", "what was read")


def test_a_copy_on_this_node(work):
    """Staged from far away: through the mount until all of the copy is there, then directly."""
    source = work.make("source")
    make_folder(work, name="source/data.tar", files={"big": 300000, "rest": 30000000})
    with Slow(work, "--bandwidth=20M", "--pages=none", source) as slow:
        onepot("run", "--intercept=on", "--stage", slow / "data.tar", "--", PYTHON, "-c", textwrap.dedent("""
            import json, random, sys, time
            top, big = sys.argv[1], random.Random("big").randbytes(300000)
            for _ in range(3000):
                with open(top + "/in/big", "rb") as f:
                    assert f.read() == big, "other bytes"
                with open(top + "/.onepot/stat.json") as f:
                    told = json.load(f)
                stage = told["stage"]
                is_whole = stage["here_bytes"] == stage["bytes"]
                if told["direct_bytes"] > 0:
                    assert is_whole, told
                    break
                time.sleep(0.02)
            else:
                sys.exit("nothing is read directly")
        """), "{}", env=environment())
    life.check_nothing_left("the command")


def test_directories_are_listed_where_opens_are_slow(work):
    """Where the mount lists nothing ahead: most names come by listings, not by a look-up each."""
    files = {f"f{i:04}": 10 for i in range(3000)}
    archive = make_folder(work, files=files)
    counts = {}
    for mode in "off", "on":
        result = python(work, archive, """
            import json, random
            top = sys.argv[1]
            names = [f"f{i:04}" for i in range(3000)]
            random.Random(1).shuffle(names)
            os.chdir(top + "/in")
            for name in names:
                with open(name, "rb") as f:
                    assert len(f.read()) == 10
            with open(top + "/.onepot/stat.json") as f:
                print(json.dumps(json.load(f)["requests"]))
        """, mode=mode, arguments=["--readahead=off"])
        counts[mode] = json.loads(result.stdout).get("LOOKUP", 0)
    check(counts["off"] >= 3000 and counts["on"] < 1500, f"look-ups: {counts}")


def traced(work, archive, program, *arguments, calls, times=1, options=()):
    """The system calls of a Python program, as lines of each process, which run one after the
    other in one mount."""
    need_program("strace", "bash")
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write("import os, sys\n" + textwrap.dedent(program))
    if run("strace", "-o", work / "strace", "true", status=None).returncode:
        raise Skip("strace may not trace here")
    traces = [f"{work / 'strace'}.{i}" for i in range(times)]
    result = intercepted(work, archive, "bash", "-c", """
        set -e
        program=$1 calls=$2 traces=$3
        shift 3
        for i in $traces; do strace -qq -o "$i" -e "trace=$calls" "$program" "$@"; done
    """, "sh", PYTHON, calls, " ".join(traces), path, "{}", *arguments, arguments=options)
    check(directly_read(work), result.stderr)
    lines = []
    for trace in traces:
        with open(trace, encoding="utf-8", errors="replace") as f:
            lines.append(f.read().splitlines())
    return lines


def test_a_listed_directory_is_not_opened_again(work):
    """Under strace every open is slow, and the mount lists nothing ahead. Once all names have come, it is just an open, also in the
    next process."""
    archive = make_folder(work, files={f"f{i:03}": 10 for i in range(300)})
    first, second = traced(work, archive, """
        for _ in range(3):
            for i in range(300):
                fd = os.open(f"{sys.argv[1]}/in/f{i:03}", os.O_RDONLY)
                assert len(os.read(fd, 100)) == 10
                os.close(fd)
    """, calls="openat,getdents64", times=2, options=["--readahead=off"])

    def listings(lines):
        return [i for i, line in enumerate(lines) if '/in"' in line and "O_DIRECTORY" in line]
    opened = listings(first)
    check(len(opened) > 0, "the first process has not listed the directory")
    ends = [i for i, line in enumerate(first) if i > opened[0] and "getdents64(" in line and line.endswith("= 0")]
    check(len(ends) > 0, f"it has opened it {len(opened)} times, and not listed all of it")
    files = sum("/in/f" in line for line in first[ends[0]:])
    check(files > 300, f"it has listed all of it {files} files before its end")
    check_equal([i for i in opened if i > ends[0]], [], "it has opened it again")
    check(len(listings(second)) <= 1, f"the next process: {len(listings(second))} times")


def test_python_is_as_it_was(work):
    """The tests of Python that know most of descriptors pass with the library loaded."""
    modules = ["test_fileio", "test_mmap", "test_posix"]
    python = [p for p in (PYTHON, shutil.which("python3"))
              if p and run(p, "-c", "import test.test_fileio", status=None).returncode == 0]
    if not python:
        raise Skip("Python's own tests are not installed")
    archive = make_folder(work)
    if os.environ.get("ONEPOT_SOAK"):
        modules += ["test_io", "test_os", "test_subprocess"]
    command = [python[0], "-m", "test", "-j1", *modules]
    result = intercepted(work, archive, *command, cwd=work.path, status=None, timeout=1200)
    if result.returncode != 0:
        without = run(*command, cwd=work.path, env=environment(), status=None, timeout=1200)
        check_equal(result.returncode, without.returncode, f"its end: {result.stdout[-2000:]}")


if __name__ == "__main__":
    harness.main(globals())

"""Where the preloaded library lies, who gets it, and that nobody hears of it: ld.so prints a line
at each exec for a file that it can't load, and whoever can put a file there runs code."""

import os
import re
import shutil
import sys

import harness
import life
from harness import Skip, check, check_equal, environment, need_program, need_root, onepot_program, run

NOBODY = 65534
HAS_IT = "grep -c onepot-io /proc/self/maps"  # prints 0 where it is not loaded


def make_one_file(work):
    with open(work / "file", "wb") as f:
        f.write(b"hello\n" * 5000)
    run("tar", "-C", work.path, "-cf", work / "data.tar", "file")
    os.chmod(work.path, 0o755)
    return work / "data.tar"


def under_run(work, *command, options=(), **more):
    """What a command under `run` prints; `run` itself has one line at the end."""
    done = run(onepot_program(), "run", "--intercept=on", *options, make_one_file(work), "--", *command, **more)
    said = done.stderr.splitlines()
    return done.stdout.decode(), [line for line in said if not line.startswith(b"onepot: ")], said


def silent(work, *command, **more):
    out, errors, _ = under_run(work, *command, **more)
    check_equal(errors, [], f"what {command} says")
    return out


def build(work, name, *options, text='#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'):
    need_program("cc")
    with open(work / f"{name}.c", "w", encoding="ascii") as f:
        f.write(text)
    if run("cc", "-D_GNU_SOURCE", *options, "-o", work / name, work / f"{name}.c", status=None).returncode:
        raise Skip(f"cc makes no programs with {options}")
    return work / name


def alone(work, script, *arguments, **more):
    """A script of root with a /var/cache of its own: $1 is onepot, $2 an archive."""
    need_root("mount a filesystem of its own")
    need_program("unshare")
    more.setdefault("env", environment(XDG_CACHE_HOME=None, HOME="/nonexistent"))
    return run("unshare", "--mount", "--propagation", "private", "sh", "-euc",
               "mount -t tmpfs -o mode=755 none /var/cache\n" + script, "sh", onepot_program(),
               make_one_file(work), *arguments, **more)


# ---- small stacks ----

def test_a_thread_with_the_least_stack_starts_programs(work):
    """However many variables there are."""
    program = build(work, "small", "-pthread", text="""
        #include <limits.h>
        #include <pthread.h>
        #include <spawn.h>
        #include <sys/wait.h>
        #include <unistd.h>
        static void *start(void *ret)
        {
            char *argv[] = {"true", NULL};
            pid_t pid;
            if (posix_spawnp(&pid, "true", NULL, NULL, argv, environ) == 0)
                waitpid(pid, ret, 0);
            return NULL;
        }
        int main(void)
        {
            pthread_attr_t attributes;
            pthread_t thread;
            int status = 1;
            return pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) ||
                   pthread_create(&thread, &attributes, start, &status) || pthread_join(thread, NULL) || status;
        }
        """)
    for count in 900, 1500, 3900:
        done = run(onepot_program(), "run", "--intercept=on", make_one_file(work), "--", program, status=None,
                   env=environment(**{f"V{i}": "x" for i in range(count)}))
        check_equal(done.returncode, 0, f"status, with {count} variables")


# ---- silence ----

def test_a_program_of_another_cpu(work):
    program = build(work, "small", "-m32")
    check_equal(silent(work, program), "hello\n", "as the command")
    with open(work / "script", "w", encoding="ascii") as f:
        f.write(f"#!{program}\n")
    os.chmod(work / "script", 0o755)
    out = silent(work, "bash", "-c", '"$1"; "$2"; PATH=$3 small; exec env "$1"', "sh", program, work / "script",
                 f"{work.path}:{os.environ['PATH']}")
    check_equal(out, "hello\n" * 4, "from a shell")


def test_a_program_with_the_address_sanitizer(work):
    program = build(work, "asan", "-fsanitize=address")
    clean = environment(ASAN_OPTIONS="detect_leaks=0")
    check_equal(silent(work, program, env=clean), "hello\n", "as the command")
    out = silent(work, "bash", "-c", f'"$1"; {HAS_IT}', "sh", program, env=clean).split()
    check(out[0] == "hello" and int(out[1]) > 0, f"from a shell: {out}")
    out = run("bash", "-euc", 'eval "$("$1" mount --export --intercept=on "$2")"; "$3"; echo "$ASAN_OPTIONS"', "sh",
              onepot_program(), work / "data.tar", program, env=environment(ASAN_OPTIONS="detect_leaks=0"))
    check_equal(out.stdout, b"hello\ndetect_leaks=0:verify_asan_link_order=0\n", "after --export")


def test_another_user(work):
    need_root("become another user")
    need_program("setpriv")
    who = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    check_equal(silent(work, *who, "sh", "-c", "id -u; id -u"), f"{NOBODY}\n" * 2, "as another user")
    out = alone(work, '"$1" run "$2" -- "$3" --reuid=65534 --regid=65534 --clear-groups '
                f'sh -c "chmod 700 /var/cache 2>/dev/null; {HAS_IT}"', shutil.which("setpriv"))
    check(int(out.stdout) > 0, "root's copy is readable to all")
    out = alone(work, '"$1" run "$2" -- sh -c "chmod 700 /var/cache; exec setpriv --reuid=65534 sh -c true"')
    check(b"preloaded" not in out.stderr, out.stderr)


def test_another_root(work):
    need_root("change the root")
    need_program("chroot", "ldd")
    root = life.make_root(work, "sh", "cat")
    out = silent(work, "chroot", root, "/bin/sh", "-c", "/bin/cat /etc/hosts; exec /bin/cat /etc/hosts")
    check_equal(out, "", "in it")


def test_a_container(work):
    need_program("bwrap")
    if run("bwrap", "--ro-bind", "/", "/", "true", status=None).returncode:
        raise Skip("bwrap can't make a container here")
    out = silent(work, "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--bind", "{}", "/mnt", "--", "ls", "/mnt")
    check_equal(out, "file\n", "in a container with the same files")
    need_program("ldd")
    root = life.make_root(work, "sh", "cat")
    silent(work, "bwrap", "--ro-bind", root, "/", "--", "/bin/sh", "-c", "/bin/cat /etc/hosts; /bin/cat /etc/hosts")


def test_what_outlives_the_mount(work):
    """Its environment still names a library that is there."""
    out = run("bash", "-euc", 'eval "$("$1" mount --export --intercept=on "$2")"; [[ $LD_PRELOAD = *onepot-io* ]]\n'
              '"$1" umount "$data"; trap - EXIT; exec 2>&1; ls -d /; bash -c "ls -d /"', "sh", onepot_program(),
              make_one_file(work))
    check_equal(out.stdout, b"/\n/\n", "after the end of the mount")
    check(b"preloaded" not in out.stderr, out.stderr)
    silent(work, "bash", "-c", '(until ! mountpoint -q "$1"; do sleep 0.1; done; ls -d /) > "$2" 2>&1 &', "sh", "{}",
           work / "after")
    harness.wait_for(lambda: os.path.exists(work / "after") and os.path.getsize(work / "after"), "a child's output")
    with open(work / "after", "rb") as f:
        check_equal(f.read(), b"/\n", "what a child says that was left behind")


def test_an_environment_that_goes_elsewhere(work):
    """No program finds the library in it; so where there is none, nothing is said."""
    def words(text):
        return dict(word.split("=", 1) for word in text.split("\0") if "=" in word)
    found = words(silent(work, "env", "-0"))
    check("LD_PRELOAD" not in found and "onepot-io" in found["ONEPOT_PRELOAD"], f"under run: {found}")
    libm = run("sh", "-c", "ldd $(command -v awk) $(command -v python3) | grep -o '/.*libm.so[^ ]*' | head -n 1").stdout
    if libm.strip() and not life.is_sanitized():  # whose runtime wants to be the first library
        other = libm.decode().strip()
        check_equal(words(silent(work, "env", "-0", env=environment(LD_PRELOAD=other))).get("LD_PRELOAD"), other,
                    "a library of somebody else")
    exported = run("bash", "-euc", 'eval "$("$1" mount --export --intercept=on "$2")"; env -0', "sh",
                   onepot_program(), make_one_file(work)).stdout.decode()
    check("LD_PRELOAD" not in words(exported), f"after --export: {words(exported)}")
    check_equal(silent(work, "env", "-i", shutil.which("env")), "", "an empty environment")


# ---- children ----

WAYS = r"""
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
int execveat(int, const char *, char *const *, char *const *, int);
extern char **environ;
#define ARGS "grep", "-c", "onepot-io", "/proc/self/maps"
#define COMMAND "grep -c onepot-io /proc/self/maps"
int main(int argc, char **argv) {
    char *args[] = {ARGS, NULL}, *path = argv[1], *way = argv[argc - 1], line[100];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    pid_t pid = 0;
#define WAY(name) if (strcmp(way, name) == 0)
    WAY("system") return system(COMMAND);
    WAY("popen") return puts(fgets(line, 100, popen(COMMAND, "r"))) < 0;
    WAY("posix_spawn") posix_spawn(&pid, path, NULL, NULL, args, environ);
    WAY("posix_spawnp") posix_spawnp(&pid, "grep", NULL, NULL, args, environ);
    WAY("vfork") if ((pid = vfork()) == 0) { execve(path, args, environ); _exit(1); }
    if (pid) return waitpid(pid, NULL, 0) < 0;
    WAY("execve") execve(path, args, environ);
    WAY("execv") execv(path, args);
    WAY("execvp") execvp("grep", args);
    WAY("execvpe") execvpe("grep", args, environ);
    WAY("execl") execl(path, ARGS, NULL);
    WAY("execlp") execlp("grep", ARGS, NULL);
    WAY("execle") execle(path, ARGS, NULL, environ);
    WAY("fexecve") fexecve(fd, args, environ);
    WAY("execveat") execveat(fd, "", args, environ, 0x1000);
    WAY("null") execve(path, args, NULL);
    return 1;
}
"""


def test_children_have_it(work):
    program, grep = build(work, "ways", text=WAYS), shutil.which("grep")
    ways = re.findall(r'WAY\("(\w+)"\)', WAYS)
    script = 'for way; do echo "$way" $("$0" "$GREP" "$way"); done'
    out = silent(work, "bash", "-c", script, program, *ways, env=environment(GREP=grep))
    found = dict(line.split() for line in out.splitlines())
    check_equal(sorted(found), sorted(ways), "ways")
    without = [way for way in ways if int(found[way]) == 0]
    check_equal(without, ["null"], "ways that lose it")


def test_children_of_python_and_make(work):
    out = silent(work, sys.executable, "-c", f"import os, subprocess; subprocess.run({HAS_IT.split()!r})\n"
                 f"os.system({HAS_IT!r}); os.execvp('grep', {HAS_IT.split()!r})")
    check(all(int(n) > 0 for n in out.split()) and len(out.split()) == 3, f"Python's: {out}")
    if shutil.which("make"):
        with open(work / "Makefile", "w", encoding="ascii") as f:
            f.write(f"all:\n\t@{HAS_IT}\n\t@true; {HAS_IT}\n")
        out = silent(work, "make", "-s", "-C", work.path)
        check(all(int(n) > 0 for n in out.split()) and len(out.split()) == 2, f"make's: {out}")


def test_a_large_environment(work):
    """Beyond a thousand variables it is passed on as it is: children read through the mount."""
    for count, has_it in (900, True), (3000, False):
        large = {f"VARIABLE_{i}": "x" for i in range(count)}
        out = silent(work, "bash", "-c", f"{HAS_IT}; env | grep -c VARIABLE_", env=environment(**large)).split()
        check((int(out[0]) > 0) == has_it and out[1] == str(count), f"what a child has: {out}")


def test_a_run_within_a_run(work):
    """The inner one's library takes the place of what is there, or of nothing."""
    program = onepot_program()
    out = silent(work, program, "run", work / "data.tar", "--", "sh", "-c", f"{HAS_IT}; env | grep -c LD_PRELOAD; true")
    check(int(out.split()[0]) > 0 and out.split()[1] == "0", f"within: {out}")
    out = silent(work, program, "run", "--intercept=off", work / "data.tar", "--", "sh", "-c", HAS_IT + "; true")
    check_equal(out, "0\n", "with --intercept=off")


# ---- where it lies ----

def preloaded(done):
    return [word for word in done.stdout.decode().split("\n") if word.startswith("export LD_PRELOAD")]


def test_a_copy_that_is_there_is_checked(work):
    """Of other bytes, or of another user: it is written anew, or not used."""
    done = alone(work, """
        "$1" run "$2" -- true; first=$(ls -i /var/cache/onepot)
        "$1" run "$2" -- true; second=$(ls -i /var/cache/onepot)
        [ "$first" = "$second" ]; set -- "$@" /var/cache/onepot/*
        stat -c '%a %U' "$3"
        printf x | dd of="$3" bs=1 conv=notrunc 2>/dev/null
        "$1" run "$2" -- true; [ "$(head -c 1 "$3" | od -An -c | tr -d ' ')" = 177 ]
        ls -A /var/cache/onepot | wc -l
        chown 65534 /var/cache/onepot; "$1" mount --export "$2"; "$1" umount --all
    """)
    check_equal(done.stdout.split()[:3], [b"644", b"root", b"1"], "its mode, its owner, files beside it")
    check_equal(preloaded(done), [], "a library in another user's folder")
    check_equal(done.stderr.count(b"no place for libonepot-io.so"), 1, f"lines: {done.stderr}")


def test_no_folder_that_others_write_to(work):
    for folder in "/tmp", "/dev/shm", work.make("open"):
        done = alone(work, 'chmod 1777 /var/cache; "$1" mount --export "$2"; "$1" umount --all',
                     env=environment(XDG_CACHE_HOME=folder, HOME=folder))
        check_equal(preloaded(done), [], f"a library below {folder}")
        check(b"no place for libonepot-io.so" in done.stderr, done.stderr)


def test_a_user_has_it_in_the_cache_folder(work):
    """A home that is the user's alone, below folders of root."""
    need_program("setpriv")
    done = alone(work, """
        mkdir -m 700 /var/cache/home; chown 65534 /var/cache/home
        setpriv --reuid=65534 --regid=65534 --clear-groups "$1" doctor >/dev/null || true
        find /var/cache -name '*.so' -printf '%m %p\\n'
    """, env=environment(XDG_CACHE_HOME=None, HOME="/var/cache/home"))
    check(re.search(rb"600 /var/cache/home/.cache/onepot/libonepot-io-\w+.so\n$", done.stdout), done)
    done = alone(work, """
        mkdir -m 700 /var/cache/home; chown 65534 /var/cache/home
        setpriv --reuid=65534 --regid=65534 --clear-groups "$1" doctor >/dev/null || true
        find /var/cache/home -printf '%m %p\n'
    """, env=environment(XDG_CACHE_HOME="/var/cache/home/new/"))
    check(re.search(rb"^700 /var/cache/home/new\n(.|\n)*600 /var/cache/home/new/onepot/libonepot-io-\w+.so\n", done.stdout,
                    re.MULTILINE), done)


def test_a_folder_that_others_write_to_is_named_and_not_what_is_missing_in_it(work):
    need_program("setpriv")
    done = alone(work, """
        mkdir -m 1777 /var/cache/open; mkdir -m 700 /var/cache/open/home; chown 65534 /var/cache/open/home
        setpriv --reuid=65534 --regid=65534 --clear-groups "$1" doctor || true
    """, env=environment(XDG_CACHE_HOME=None, HOME="/var/cache/open/home"))
    check(re.search(rb"libonepot-io.so: .*/var/cache/open: .*mode 1777", done.stdout), done)


def test_copies_of_other_versions_go(work):
    """After ninety days without use, when another one is written."""
    done = alone(work, """
        mkdir -m 755 /var/cache/onepot; cd /var/cache/onepot
        touch -d '-100 days' libonepot-io-0123.so libonepot-io-0123.so.77 other; touch -d '-80 days' libonepot-io-4567.so
        "$1" run "$2" -- true; ls | grep -v "$(basename "$(ls -t | head -n 1)")"
        touch -d '-50 days' libonepot-io-*.so; "$1" run "$2" -- true; find . -name 'libonepot-io-*' -mtime -1 | wc -l
    """)
    check_equal(done.stdout.split(), [b"libonepot-io-4567.so", b"other", b"1"], "what is left, and what was used")


def test_an_entry_that_another_user_could_replace(work):
    out, _, said = under_run(work, "sh", "-c", f"{HAS_IT}; env | grep -c LD_PRELOAD; true",
                             env=environment(LD_PRELOAD="/tmp/onepot-77/data.tar.so"))
    check(int(out.split()[0]) > 0 and out.split()[1] == "0", f"what the command has: {out}")
    lines = [line for line in said if b"is left out of LD_PRELOAD" in line]
    check(len(lines) == 1 and b"/tmp/onepot-77/data.tar.so" in lines[0], f"said: {said}")


if __name__ == "__main__":
    harness.main(globals())

"""onepot run: the command's status, its signals, and no mount left, whatever dies."""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import time

import harness
import life
from harness import (check, check_equal, environment, mountpoints, need_program,
                     onepot, onepot_program, wait_for)
from life import Clock, check_nothing_left, ended, make_archive, mount, read, said

PYTHON = sys.executable


def run(*arguments, **options):
    return onepot("run", *arguments, **options)


# ---- the command ----

def test_the_status_is_the_command_s(work):
    archive = make_archive(work)
    life.write(work / "script", b"#!/no/such/interpreter\n")
    os.chmod(work / "script", 0o755)
    for command, status in ((["true"], 0), (["false"], 1), (["sh", "-c", "exit 77"], 77),
                            (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
                            (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
                            (["no-such-command"], 127), ([work / "absent"], 127),
                            ([archive], 126), ([work.path], 126), ([work / "script"], 127)):
        run(archive, "--", *command, status=status)
        check_nothing_left(f"{command}")


def test_our_own_failures_are_125_and_the_command_is_not_run(work):
    archive = make_archive(work)
    life.write(work / "noise", b"\xff" * 100_000)
    for arguments in (["absent.tar"], ["noise"], [archive, "--subdir", "absent"],
                      [archive, "--at", "noise"]):
        life.fails("run", *arguments, "--", "touch", "was-run", status=125, cwd=work.path)
    for arguments in ([archive], [archive, "--"], ["--", "true"], [archive, "--stage=", "--", "true"],
                      ["-f", archive, "--", "true"]):
        life.fails("run", *arguments, status=2, cwd=work.path)
    check(not os.path.exists(work / "was-run"), "the command was run")
    check_nothing_left()


def test_other_data_than_expected_are_refused_before_the_command_runs(work):
    archive = make_archive(work)
    digest = json.loads(onepot("info", "--json", "--digest", archive).stdout)[0]["digest"]
    other = ("1" if digest[0] == "0" else "0") + digest[1:]
    for wanted in (other, other[:8]):
        done = run("--expect", wanted, archive, "--", "touch", work / "was-run", status=125)
        check(digest in said(done) and wanted in said(done), f"both are named: {said(done)}")
        run("--extract", "--expect", wanted, archive, "--", "touch", work / "was-run", status=125)
        onepot("mount", "--expect", wanted, archive, status=1)
    for wanted in (digest[:7], digest + "0", "x" * 32, ""):
        run("--expect", wanted, archive, "--", "touch", work / "was-run", status=2)
    check(not os.path.exists(work / "was-run"), "the command was run")
    for wanted, *way in (digest,), (digest[:8].upper(),), (digest, "--extract"):
        done = run(*way, "--expect", wanted, archive, "--", "true")
        check(f"digest {digest[:8]}" in said(done), f"the closing line: {said(done)}")
    shown = run("--expect", digest, archive, "--", onepot_program(), "stat", "--json", "{}")
    check_equal(json.loads(shown.stdout)["digest"], digest, "stat")
    check_nothing_left()


def test_the_path_reaches_the_command(work):
    archive, at = make_archive(work), work / "at"
    script = "import os, sys; print(sys.argv[1:], os.environ['ONEPOT_MOUNT'])"
    done = run(archive, "--at", at, "--", PYTHON, "-c", script, "{}", "a{}/b{}", "{", "{}{}", "--",
               "--at", "")
    check_equal(done.stdout.decode(),
                f"{[at, f'a{at}/b{at}', '{', at + at, '--', '--at', '']} {at}\n", "arguments")
    done = run(archive, "--", "cat", "{}/readme")
    check_equal(done.stdout, b"hello\n", "a file")
    check("1 file" in said(done), f"the last line: {said(done)!r}")
    check_nothing_left()


def test_the_command_gets_what_run_was_given(work):
    archive = make_archive(work)
    reader, writer = os.pipe()
    done = run(archive, "--", "sh", "-c", f"pwd; cat; echo inherited >&{writer}; umask", input=b"in\n",
               stdin=None, cwd=work.path, pass_fds=[writer], umask=0o027)
    os.close(writer)
    check_equal(done.stdout.decode(), f"{work.path}\nin\n0027\n", "what it says")
    check_equal(os.read(reader, 100), b"inherited\n", "an inherited descriptor")
    script = ("import os, signal; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1], "
              "signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGHUP), "
              "signal.getsignal(signal.SIGTTOU))")
    expected = subprocess.run([PYTHON, "-c", script], stdout=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, check=True).stdout
    check_equal(run(archive, "--", PYTHON, "-c", script).stdout, expected, "descriptors and signals")
    check_nothing_left()


def test_the_daemon_holds_no_pipe_of_the_command(work):
    archive = make_archive(work)
    with Clock() as clock:
        done = subprocess.run(["sh", "-c", f"{onepot_program()} run {archive} -- echo x 2>&1 | cat"],
                              env=environment(), stdout=subprocess.PIPE, timeout=90, check=True)
    check(done.stdout.startswith(b"x\n"), f"what it says: {done.stdout!r}")
    check(clock.seconds < 40, f"it took {clock.seconds} s")
    check_nothing_left()


# ---- signals ----

COUNT_SIGNALS = """
import os, signal, sys, time
got = []
numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT]
def take(n, frame):
    got.append(int(n))
    os.write(1, b"got %d\\n" % n)
for n in numbers:
    signal.signal(n, take)
print("ready", flush=True)
end = time.monotonic() + 90
while signal.SIGUSR2 not in got and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.3)
print(" ".join(map(str, got)), flush=True)
"""


def test_signals_are_passed_on(work):
    archive = make_archive(work)
    with life.background("run", archive, "--", PYTHON, "-c", COUNT_SIGNALS) as wrapper:
        check_equal(life.first_line(wrapper), "ready", "what the command says")
        sent = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGUSR2]
        for number in sent:
            wrapper.send_signal(number)
            check_equal(life.first_line(wrapper), f"got {int(number)}", "what arrived")
        last_line = life.first_line(wrapper)
        status = ended(wrapper)[0]
    check_equal(last_line.split(), [str(int(n)) for n in sent], "signals that arrived")
    check_equal(status, 0, "the status")
    check_nothing_left()


# Counts signals, and tells of each. A handler that ran inside itself would have lost its work.
# The interpreter runs handlers only between its own steps: a signal just before a blocking read
# would wait for that read, so it waits for the descriptor to which the interpreter writes each.
COUNT_EACH = """
import os, select, signal, sys
if sys.argv[1] == "apart":
    os.setpgrp()
came, writes = os.pipe()
os.set_blocking(writes, False)
signal.set_wakeup_fd(writes)
inside = set()
def take(n, frame):
    assert n not in inside, "reentrant"
    inside.add(n)
    with open(sys.argv[2], "w") as f:  # a checkpoint
        f.write("x" * 100_000)
    inside.remove(n)
    os.write(1, b"got %d\\n" % n)
for n in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGQUIT,
          signal.SIGCONT):
    signal.signal(n, take)
os.write(1, b"ready\\n")
while 0 not in select.select([0, came], [], [])[0]:
    os.read(came, 4096)
"""


def all_of(pid):
    """A process and those below it, in the order in which they were started."""
    return [pid] + [p for child in life.children_of(pid) for p in all_of(child)]


def cmdline(pid, what="cmdline"):
    """Nothing if it has gone."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return read(f"/proc/{pid}/{what}").replace(b"\0", b" ")
    return b""


def send_to_each(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# Whom a signal is sent to. A group that the command has left does not reach it.
WAYS = {
    "onepot alone": lambda wrapper, number: os.kill(wrapper, number),
    "its group": lambda wrapper, number: os.killpg(wrapper, number),
    "each process of a job": lambda wrapper, number: send_to_each(all_of(wrapper), number),
    "each, the last one first": lambda wrapper, number: send_to_each(all_of(wrapper)[::-1], number),
    "those with the script's name": lambda wrapper, number: send_to_each(
        [p for p in all_of(wrapper) if b"count.py" in cmdline(p)], number),
    "those with the archive's name": lambda wrapper, number: send_to_each(
        [p for p in all_of(wrapper) if b"data.tar --" in cmdline(p)], number),
}


def test_a_signal_comes_once_whoever_sends_it_to_whom(work):
    archive = make_archive(work)
    life.write(work / "count.py", COUNT_EACH.encode())
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    for where in "beside", "apart":
        with life.background("run", archive, "--", PYTHON, work / "count.py", where, work / "saved",
                             stdin=subprocess.PIPE, preexec_fn=os.setpgrp) as wrapper:
            check_equal(life.first_line(wrapper), "ready", "what the command says")
            for way, send in WAYS.items():
                for number in numbers + numbers[:1]:
                    send(wrapper.pid, number)
                    check_equal(life.first_line(wrapper), f"got {int(number)}",
                                f"{number!r} to {way}, the command {where}")
                    # Signals to onepot alone are passed on one after the other, the lowest first.
                    wrapper.send_signal(signal.SIGCONT)
                    check_equal(life.first_line(wrapper), f"got {int(signal.SIGCONT)}",
                                f"what comes after {number!r} to {way}, the command {where}")
            _, errors = wrapper.communicate(timeout=90)
            check_equal(wrapper.returncode, 0, f"the status: {errors!r}")
        check_nothing_left(where)


def test_nobody_stays_to_watch_for_signals(work):
    archive = make_archive(work)
    with holder(archive) as wrapper:
        daemon = life.daemon_of(life.first_line(wrapper))
        def witnesses_of(wrapper):
            return [p for p in all_of(wrapper.pid) if cmdline(p, "comm") == b"signal-witness\n"]
        wait_for(lambda: len(witnesses_of(wrapper)) == 2, "the witnesses")
        witnesses = witnesses_of(wrapper)
        wrapper.kill()
        wrapper.wait()
        for pid in witnesses:
            life.wait_gone(pid)
        life.wait_gone(daemon)
    check_nothing_left()


def test_a_signal_ends_the_command_and_then_the_mount(work):
    archive = make_archive(work)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        with life.background("run", archive, "--", "sh", "-c", "echo; exec sleep 60") as wrapper:
            life.first_line(wrapper)
            wrapper.send_signal(number)
            check_equal(ended(wrapper)[0], 128 + number, f"status after signal {number}")
        check_nothing_left(f"signal {number}")


class Terminal:
    """A shell with job control on a terminal."""

    def __enter__(self):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment(PS1="$ "))
        self.seen = b""
        return self

    def __exit__(self, *unused):
        os.close(self.fd)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def type(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, text):
        def is_there():
            os.set_blocking(self.fd, False)
            try:
                self.seen += os.read(self.fd, 65536)
            except (BlockingIOError, OSError):
                pass
            return text.encode() in self.seen
        wait_for(is_there, f"{text!r} on the terminal; there is {self.seen!r}")
        self.seen = self.seen.partition(text.encode())[2]


def test_an_interrupt_of_the_terminal_reaches_the_command_once(work):
    need_program("bash")
    archive = make_archive(work)
    life.write(work / "count.py", COUNT_SIGNALS.encode())
    with Terminal() as terminal:
        terminal.type(f"{onepot_program()} run {archive} -- {PYTHON} {work / 'count.py'}\n")
        terminal.wait_for("ready")
        wrapper = life.children_of(terminal.pid)[0]
        terminal.type("\x03")
        terminal.wait_for(f"got {int(signal.SIGINT)}\r\n")
        os.kill(wrapper, signal.SIGUSR2)
        terminal.wait_for(f"{int(signal.SIGINT)} {int(signal.SIGUSR2)}")
        terminal.type("echo status $?\n")
        terminal.wait_for("status 0")
    check_nothing_left()


def test_job_control_stops_the_command_and_not_the_daemon(work):
    need_program("bash")
    archive = make_archive(work)
    with Terminal() as terminal:
        # A shell that starts programs would take vfork: its child may stop before exec, and the shell
        # then never does.
        os.mkfifo(work / "go")
        go = os.open(work / "go", os.O_RDWR)
        script = f"echo re''ady; read -r word <{work / 'go'}; echo do''ne"
        life.write(work / "script", script.encode())
        terminal.type(f"{onepot_program()} run {archive} -- sh {work / 'script'}\n")
        terminal.wait_for("ready")
        wrapper = life.children_of(terminal.pid)[0]
        path = mountpoints(work.path)[0]
        daemon = life.daemon_of(path)
        command = next(p for p in life.children_of(wrapper) if cmdline(p).startswith(b"sh "))
        terminal.type("\x1a")
        wait_for(lambda: life.process_state(wrapper) == "T" and life.process_state(command) == "T",
                 "both to stop")
        check(life.process_state(daemon) in ("S", "R", "D"), "the daemon is stopped too")
        check_equal(read(f"{path}/readme"), b"hello\n", "a file meanwhile")
        os.write(go, b"now\n")
        terminal.type("fg\n")
        terminal.wait_for("done")
        terminal.type("echo status $?\n")
        terminal.wait_for("status 0")
    check_nothing_left()


def test_a_stop_that_only_the_wrapper_gets_is_passed_on(work):
    archive = make_archive(work)
    with life.background("run", archive, "--", "sh", "-c", "echo $$; exec sleep 60",
                         preexec_fn=os.setpgrp) as wrapper:
        command = int(life.first_line(wrapper))
        wrapper.send_signal(signal.SIGTSTP)
        # Nobody could continue an orphaned group: it may as well go on.
        with contextlib.suppress(harness.Failure):
            wait_for(lambda: life.process_state(wrapper.pid) == "T", "it to stop", 5)
        wrapper.send_signal(signal.SIGCONT)
        wait_for(lambda: life.process_state(command) == "S", "the command to go on")
        wrapper.terminate()
        check_equal(ended(wrapper)[0], 128 + signal.SIGTERM, "its status")
    check_nothing_left()


# ---- what the command leaves behind ----

def test_processes_that_the_command_left_lose_the_mount_in_bounded_time(work):
    archive = make_archive(work)
    script = "cd {}/sub; sleep 60 >/dev/null 2>&1 & exit 5"
    with Clock() as clock:
        done = run(archive, "--", "sh", "-c", script, status=5)
    check(clock.seconds < 50, f"it took {clock.seconds} s")
    check("sleep (" in said(done), f"it says {said(done)!r}")
    check_nothing_left()
    life.kill_left_behind("sleep")


def test_a_command_that_ends_while_its_children_still_end_waits_for_them(work):
    archive = make_archive(work)
    done = run(archive, "--", "sh", "-c", "cd {}/sub; sleep 1 >/dev/null 2>&1 & exit 0")
    check("still" not in said(done), f"it says {said(done)!r}")
    check_nothing_left()


# ---- the daemon dies ----

def test_a_daemon_that_dies_is_a_failure_even_if_the_command_was_content(work):
    archive = make_archive(work)
    for status in (0, 3):
        with life.background("run", archive, "--", "sh", "-c", f"echo {{}}; read x; exit {status}",
                             stdin=subprocess.PIPE) as wrapper:
            path = life.first_line(wrapper)
            pid = life.daemon_of(path)
            os.kill(pid, signal.SIGKILL)
            life.wait_gone(pid)
            try:
                read(f"{path}/sub/0001")
                raise harness.Failure("a dead mount was read")
            except OSError:
                pass
            out, errors = wrapper.communicate(b"\n", timeout=90)
        check_equal(wrapper.returncode, status or 125, "the status")
        check(b"signal 9" in errors, f"it says {errors!r}")
        check_nothing_left("the daemon's death")


# ---- many ----

def holder(archive, **options):
    """A run that holds its mount until it gets a line."""
    return life.background("run", archive, "--", "sh", "-c", "echo {}; read x",
                           stdin=subprocess.PIPE, **options)


def release(wrapper, status=0):
    _, errors = wrapper.communicate(b"\n", timeout=90)
    check_equal(wrapper.returncode, status, f"status of run, which says {errors!r}")
    return errors.decode(errors="replace")


def test_many_at_once_share_one_mount(work):
    archive = make_archive(work)
    wrappers = [subprocess.Popen([onepot_program(), "run", archive, "--", "sh", "-c",
                                  "echo {}; read x; cat {}/readme"],
                                 env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE) for _ in range(32)]
    try:
        paths = {life.first_line(w) for w in wrappers}
        check_equal(len(paths), 1, f"different mounts: {paths}")
        check_equal(mountpoints(work.path), list(paths), "mounts")
        path = paths.pop()
        check_equal(life.mounted(path)["files"], life.FILES + 1, "files")
        said = []
        for w in wrappers:
            out, errors = w.communicate(b"\n", timeout=90)
            check_equal((w.returncode, out), (0, b"hello\n"), f"a run, which says {errors!r}")
            said += [errors] if b"data.tar" in errors else []
        check_equal(len(said), 1, f"closing lines: {said}")
    finally:
        for w in wrappers:
            if w.poll() is None:
                w.kill()
                w.communicate()
    check_nothing_left()


@harness.within(300)
def test_waves_of_short_runs_all_succeed(work):
    archive = make_archive(work)
    script = f"""
        for wave in 1 2 3 4 5; do
            for i in $(seq 32); do
                {onepot_program()} run {archive} -- grep -q hello {{}}/readme ||
                    echo failed: $? &
            done
            wait
        done 2>&1 | grep -v 'data.tar: .*readers waited' | grep -v 'nothing was read'
    """
    done = harness.run("bash", "-c", script, status=1, timeout=250)  # of grep: no such line
    check_equal(done.stdout, b"", "what went wrong")
    check_nothing_left()


def test_the_last_one_out_unmounts_also_when_the_maker_left_first(work):
    archive = make_archive(work)
    with holder(archive) as first:
        path = life.first_line(first)
        pid = life.daemon_of(path)
        with holder(archive) as second:
            check_equal(life.first_line(second), path, "the path")
            release(first)
            check_equal(read(f"{path}/readme"), b"hello\n", "a file")
            check(not life.is_gone(pid), "the daemon has left the second run")
            time.sleep(2.5)
            check_equal(read(f"{path}/sub/0002"), b"0002" * 500, "a file, later")
            check("data.tar" in release(second), "the last one says nothing")
    life.wait_gone(pid)
    check_nothing_left()


def test_jobs_have_mounts_of_their_own(work):
    archive = make_archive(work)
    with holder(archive, env=environment(SLURM_JOB_ID="1")) as one:
        with holder(archive, env=environment(SLURM_JOB_ID="2")) as two:
            check(life.first_line(one) != life.first_line(two), "two jobs share a mount")
            release(two)
        check_equal(len(mountpoints(work.path)), 1, "mounts")
        release(one)
    check_nothing_left()


def test_run_and_mount_share(work):
    archive = make_archive(work)
    with holder(archive) as wrapper:
        path = life.first_line(wrapper)
        check_equal(mount(archive), path, "the path of mount")
        check("data.tar" not in release(wrapper), "run has ended a mount of another command")
    time.sleep(3)
    check_equal(read(f"{path}/readme"), b"hello\n", "a file, after the run")
    run(archive, "--", "true")
    check_equal(read(f"{path}/readme"), b"hello\n", "a file, after another run")
    onepot("umount", path)
    check_nothing_left()


# ---- killed ----

def test_a_wrapper_that_is_killed_takes_its_mount_along(work):
    archive = make_archive(work)
    with holder(archive) as wrapper:
        path = life.first_line(wrapper)
        pid = life.daemon_of(path)
        wrapper.kill()
        wrapper.wait()
        life.wait_gone(pid)  # when nobody has read for two seconds
    check_nothing_left()


def test_a_wrapper_that_is_killed_leaves_those_who_share_in_peace(work):
    archive = make_archive(work)
    with holder(archive) as first:
        path = life.first_line(first)
        with holder(archive) as second:
            life.first_line(second)
            first.kill()
            first.wait()
            time.sleep(4)
            check_equal(read(f"{path}/sub/0003"), b"0003" * 500, "a file")
            release(second)
    check_nothing_left()


READ_ON = """
import os, sys, time
print(sys.argv[1], flush=True)
longest, how, last = 0, "fine", time.monotonic()
try:
    for i in range(60):
        time.sleep(0.1)
        longest = max(longest, time.monotonic() - last)
        open(sys.argv[1] + "/sub/0001").read()
        last = time.monotonic()
except OSError as error:
    how = str(error)
with open(sys.argv[2] + ".part", "w") as f:
    f.write(f"{max(longest, time.monotonic() - last)} {how}")
os.rename(sys.argv[2] + ".part", sys.argv[2])
"""


@life.not_starved
def test_a_killed_wrapper_s_command_that_reads_on_keeps_the_mount(work):
    archive, result = make_archive(work), work / "result"
    harness.remove(result)
    with life.background("run", archive, "--", PYTHON, "-c", READ_ON, "{}", result) as wrapper:
        path = life.first_line(wrapper)
        pid = life.daemon_of(path)
        wrapper.kill()
        wrapper.wait()
        wait_for(lambda: os.path.exists(result), "the command's end")
        longest, _, how = read(result).decode().partition(" ")
        if how != "fine" and float(longest) > life.STARVED_SECONDS:
            raise life.Starved(f"the command waited for {longest} s")
        check_equal(how, "fine", "how it read on")
        life.wait_gone(pid)
    check_nothing_left()


def test_what_a_killed_daemon_and_wrapper_left_is_healed_by_the_next(work):
    archive = make_archive(work)
    with holder(archive) as wrapper:
        path = life.first_line(wrapper)
        os.kill(life.daemon_of(path), signal.SIGKILL)
        wrapper.kill()
        wrapper.wait()
    check_equal(mountpoints(work.path), [path], "mounts that are left")
    check_equal(run(archive, "--", "cat", "{}/readme").stdout, b"hello\n", "a file")
    check_nothing_left()


def test_a_signal_before_the_command_runs_leaves_nothing(work):
    archive = make_archive(work)
    for delay in (0.002, 0.005, 0.01, 0.02, 0.04):
        with life.background("run", archive, "--", "sleep", "60") as wrapper:
            time.sleep(delay)
            wrapper.terminate()
            status, _, errors = ended(wrapper)
        check(status in (-signal.SIGTERM, 128 + signal.SIGTERM), f"status {status}: {errors!r}")
        check_nothing_left(f"a signal after {delay} s")


if __name__ == "__main__":
    harness.main(globals())

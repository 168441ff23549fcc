"""onepot top: rates on a terminal, drawn over and over, and as plain text in a pipe."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import harness
from tars import write_folder
from harness import check, check_equal, environment, run

FILES = 30


def make_folder(work, name="data.tar"):
    return write_folder(work / name, ((f"{i:02d}", b"x" * 100_000) for i in range(FILES)))


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, *command):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave,
                                        stderr=self.slave, env=environment(TERM="xterm"),
                                        start_new_session=True)
        self.text = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            self.text += os.read(self.master, 65536).decode()

    def expect(self, pattern, seconds=60):
        """Read on until it has appeared; what was read so far is gone then."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            check(time.monotonic() < end, f"waited in vain for {pattern!r}: {self.text[-500:]!r}")
            self.read(0.2)
        found, self.text = self.text, ""
        return found

    def press(self, keys):
        os.write(self.master, keys.encode())

    def wait(self, seconds=60):
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            check(time.monotonic() < end, "it does not end")
            self.read(0.1)
        while select.select([self.master], [], [], 0)[0]:
            self.read(0)  # its last words
        return self.process.returncode


def check_restored(terminal):
    check("\033[?1049l" in terminal.text and "\033[?25h" in terminal.text,
          f"the screen is not given back: {terminal.text[-200:]!r}")
    check_equal(termios.tcgetattr(terminal.slave)[3], terminal.before[3], "the terminal's modes")


def test_a_terminal_is_drawn_over_and_given_back(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        with Terminal(harness.onepot_program(), "top", "-d", "0.2") as terminal:
            first = terminal.expect(r"0 files, 0 bytes in")
            check("\033[?1049h" in first and "1 mount," in first, f"first picture: {first!r}")
            check(mount.path in first and "serving" in first, f"first picture: {first!r}")
            for i in range(FILES):
                with open(mount / f"d/{i:02d}", "rb") as f:
                    f.read()
            terminal.expect(r"in all *30 files, 2\.9 MiB in")
            terminal.expect(r"now *0 files/s, 0 bytes/s, 0 requests/s")
            check("\n" not in terminal.text.replace("\r\n", ""), "lines that go astray")
            terminal.press("x")
            terminal.expect("every 0.2 s")
            terminal.press("q")
            check_equal(terminal.wait(), 0, "exit status after q")
            check_restored(terminal)


def test_a_signal_gives_the_terminal_back(work):
    with work.mount(make_folder(work), env=environment()):
        for number in (signal.SIGINT, signal.SIGTERM):
            with Terminal(harness.onepot_program(), "top") as terminal:
                terminal.expect("in all")
                terminal.process.send_signal(number)
                check_equal(terminal.wait(), -number, "exit status")
                check_restored(terminal)


def test_space_looks_at_once(work):
    with work.mount(make_folder(work), env=environment()):
        with Terminal(harness.onepot_program(), "top", "-d", "3600", "-n", "3") as terminal:
            terminal.expect("in all")
            terminal.press(" ")
            terminal.expect("in all")
            terminal.press(" ")
            check_equal(terminal.wait(), 0, "exit status after three pictures")


def test_h_shows_and_hides_the_keys(work):
    with work.mount(make_folder(work), env=environment()):
        with Terminal(harness.onepot_program(), "top", "-d", "3600") as terminal:
            terminal.expect("h: keys")
            for key in "h?":
                terminal.press(key)
                terminal.expect("show or hide the keys" if key == "h" else "in all")
            terminal.press("q")
            check_equal(terminal.wait(), 0, "exit status after q")


def test_it_says_whose_job_a_mount_is(work):
    with work.mount(make_folder(work), env=environment(SLURM_JOB_ID="4711", SLURM_STEP_ID="3")):
        text = harness.onepot("top", "-n", "1").stdout.decode()
        check(re.search(r"^  job +\S*4711, step \S*3$", text, re.M), text)
    with work.mount(make_folder(work, "other.tar"), env=environment()):
        text = harness.onepot("top", "-n", "1").stdout.decode()
        check(re.search(r"^  job +none$", text, re.M), text)


def test_a_pipe_gets_one_picture_after_the_other(work):
    with work.mount(make_folder(work), env=environment(), name="one") as one:
        with work.mount(make_folder(work, "other.tar"), env=environment(), name="two") as two:
            text = harness.onepot("top", "-n", "3", "-d", "0.1").stdout.decode()
            check_equal(text.count("2 mounts, every 0.1 s"), 3, "pictures")
            check_equal((text.count(one.path + ":"), text.count(two.path + ":")), (3, 3), "mounts")
            check("\033" not in text, "escape sequences in a pipe")
            text = harness.onepot("top", "-n", "1", two.path).stdout.decode()
            check(two.path in text and one.path + ":" not in text, f"the wrong mount: {text}")


def test_it_ends_with_the_mounts_that_were_named(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        with subprocess.Popen([harness.onepot_program(), "top", "-d", "0.1", mount.path],
                              stdout=subprocess.DEVNULL, env=environment()) as top:
            time.sleep(0.3)
            check_equal(top.poll(), None, "its status while the mount is there")
            mount.end()
            check_equal(top.wait(60), 0, "its status when the mount has gone")


def test_wrong_words_are_refused(work):
    for words in (("-d", "0"), ("-d", "x"), ("-n", "0"), ("-n", "-1"), ("--nonsense",)):
        run(harness.onepot_program(), "top", *words, status=2)
    said = run(harness.onepot_program(), "top", "-n", "1", work.path, status=1).stderr.decode()
    check("you have no onepot mount there" in said, said)
    text = harness.onepot("top", "-n", "1").stdout.decode()
    check("0 mounts" in text, f"without mounts: {text}")


if __name__ == "__main__":
    harness.main(globals())

"""onepot top: rates on a terminal, drawn over and over, and as plain text in a pipe."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import stat
import struct
import subprocess
import termios
import time

import harness
from tars import write_folder
from harness import check, check_equal, environment, run
from life import mount
from users import MALLORY, THIRD, VICTIM, as_user, mount_of_mallory, node, own, plain

FILES = 30


def make_folder(work, name="data.tar"):
    return write_folder(work / name, ((f"{i:02d}", b"x" * 100_000) for i in range(FILES)))


class Terminal:
    """A program on a terminal of its own, which the last picture is read from."""

    def __init__(self, *command, lines=24, columns=100, user=None, **variables):
        self.master, self.slave = pty.openpty()
        self.resize(lines, columns)
        self.before = termios.tcgetattr(self.slave)
        # The terminal controls it, as a person's does: keys and a new size become signals.
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        env=environment(**{"TERM": "xterm", **variables}), start_new_session=True,
                                        preexec_fn=self.take_terminal, user=user)
        self.text = ""
        self.chosen = None  # in the last picture: a match, whose group is the archive of an inverted row

    @staticmethod
    def take_terminal():
        """Signals are as in a person's shell, whatever a test in the background was told to ignore."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, lines, columns):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

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

    def picture(self, is_it=lambda lines: True, seconds=60):
        """The lines of the next whole picture that is the one, without colours."""
        end = time.monotonic() + seconds
        lines = []
        while time.monotonic() < end:
            begin, done = self.text.find("\033[H"), self.text.find("\033[J")
            if done < 0:
                self.read(0.2)
                continue
            picture, self.text = self.text[begin + 3:done], self.text[done + 3:]
            self.chosen = re.search("\033\\[7m[^\r]*?(\\w+)\\.tar\033\\[27m", picture)
            lines = [line.rstrip() for line in re.sub("\033\\[[0-9]*[mK]", "", picture).split("\r\n")]
            if len(lines) > 1 and not lines[-1]:
                del lines[-1]
            check("\033" not in "".join(lines), f"a strange sequence: {picture!r}")
            if is_it(lines):
                return lines
        raise harness.Failure(f"waited in vain for a picture; the last one: {lines}")

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
    check("\033[?1049l" in terminal.text and "\033[?25h" in terminal.text and "\033[?7h" in terminal.text,
          f"the screen is not given back: {terminal.text[-200:]!r}")
    check_equal(termios.tcgetattr(terminal.slave), terminal.before, "the terminal's modes")


def read_all(mount):
    for i in range(FILES):
        with open(mount / f"d/{i:02d}", "rb") as f:
            f.read()


def top(*words, **options):
    return Terminal(harness.onepot_program(), "top", *words, **options)


@contextlib.contextmanager
def mounts(work, *names):
    """One mount for each name, of an archive NAME.tar."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(work.mount(make_folder(work, f"{name}.tar"), env=environment(), name=name))
               for name in names]


def names_in(lines):
    """The archives of a table's rows, from top to bottom."""
    return [os.path.basename(line.split()[-1])[:-len(".tar")] for line in lines[2:]]


def test_a_mount_is_a_row_and_the_busiest_is_the_first(work):
    with mounts(work, "one", "two", "three") as (_, two, _):
        with top("-d", "0.2") as terminal:
            lines = terminal.picture()
            check(lines[0].startswith("onepot top, 3 mounts by MiB/s, h: keys; "), lines[0])
            user = ["user"] if os.geteuid() == 0 else []
            check_equal(lines[1].split(), ["files/s", "MiB/s", "waiting", "cached", *user, "job", "archive"], "headings")
            check_equal(names_in(lines), ["one", "three", "two"], "idle mounts, by name")
            read_all(two)
            lines = terminal.picture(lambda lines: names_in(lines)[0] == "two")
            check_equal(names_in(lines), ["two", "one", "three"], "the busiest first")
            row = lines[2].split()
            check(int(row[0]) > 0 and float(row[1]) > 0, f"its rates: {lines[2]}")
            check_equal(len(lines[3].split("0 %")), 2, f"an idle one waits for nothing: {lines[3]}")
            lines = terminal.picture(lambda lines: names_in(lines)[0] == "one")
            check_equal([line.split()[0] for line in lines[2:]], ["0"] * 3, "files/s when all are idle")
            terminal.press("q")
            check_equal(terminal.wait(), 0, "exit status after q")
            check_restored(terminal)


def test_a_dead_mount_is_called_dead(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        os.kill(mount.stat()["daemon_pid"], signal.SIGKILL)
        with top("-d", "0.1", lines=10, columns=40) as terminal:
            terminal.picture(lambda lines: re.search(r" dead +\S*data\.tar$", lines[2]))


def test_what_can_not_be_shown_is_counted(work):
    with work.mount(make_folder(work), env=environment()):
        folder = f"{environment()['ONEPOT_RUNTIME_DIR']}/onepot-{os.geteuid()}"
        for name in [name for name in os.listdir(folder) if name.endswith((".stat", ".lock"))]:
            with open(f"{folder}/{name}", "rb") as f:
                put(f"{folder}/other{name}", f.read().replace(b"onepotc", b"another"), os.geteuid())
        text = harness.onepot("top", "-n", "1").stdout.decode()
        check(" 1 mount, every 2 s; 1 more can't be shown\n" in text, text)
        with top("-d", "3600") as terminal:
            check(terminal.picture()[0].endswith(", every 3600 s; 1 more can't be shown"), "on a terminal")


def test_extracted_files_are_no_idle_mount(work):
    path = harness.onepot("mount", "--extract", make_folder(work)).stdout.decode().strip()
    text = harness.onepot("top", "-n", "1").stdout.decode()
    check(f"\n  extracted    {FILES} files, 2.9 MiB; nobody counts how they are read\n" in text, text)
    with top("-d", "3600", lines=10, columns=40) as terminal:
        check(" extracted " in terminal.picture()[2], "its row")
    harness.onepot("umount", path)


def test_any_size_shows_whole_rows(work):
    names = [f"m{i}" for i in range(10)]
    with mounts(work, *names):
        for lines, columns in ((24, 80), (10, 40), (30, 200), (4, 20)):
            with top("-d", "3600", lines=lines, columns=columns) as terminal:
                picture = terminal.picture()
                check(len(picture) <= lines, f"{len(picture)} lines on {lines}")
                check(max(map(len, picture)) <= columns, f"too wide for {columns}: {picture}")
                if columns >= 40:
                    check_equal(names_in(picture), names[:lines - 2], f"rows on {lines} lines of {columns}")
                    check("h: keys" in picture[0], picture[0])


def test_a_terminal_may_change_its_size(work):
    with mounts(work, *"abcdefghij"):
        with top("-d", "3600") as terminal:
            check_equal(len(terminal.picture()), 12, "lines of ten mounts")
            terminal.resize(6, 40)
            lines = terminal.picture(lambda lines: len(lines) == 6)
            check(max(map(len, lines)) <= 40, f"too wide for 40: {lines}")
            terminal.resize(20, 120)
            lines = terminal.picture(lambda lines: len(lines) == 12)
            check(any(len(line) > 60 for line in lines), f"it stays narrow: {lines}")


def test_keys_choose_a_mount_and_scroll(work):
    names = [f"m{i}" for i in range(10)]
    with mounts(work, *names):
        with top("-d", "3600", lines=6) as terminal:
            terminal.picture()
            check_equal(terminal.chosen[1], "m0", "chosen at first")
            for key, chosen in (("\033[B", "m1"), ("j", "m2"), ("\033OA", "m1"), ("\033[6~", "m5"), ("G", "m9"),
                                ("\033[B", "m9"), ("\033[5~", "m5"), ("\033[F", "m9"), ("k", "m8"), ("\033[H", "m0")):
                terminal.press(key)
                terminal.picture()
                check_equal(terminal.chosen[1], chosen, f"chosen after {key!r}")
            terminal.press("G")
            check_equal(names_in(terminal.picture()), names[-4:], "rows after the end was chosen")


def test_the_chosen_mount_stays_chosen(work):
    with mounts(work, "one", "two") as (_, two):
        with top("-d", "0.2") as terminal:
            terminal.picture()
            terminal.press("j")
            terminal.picture(lambda lines: terminal.chosen[1] == "two")
            read_all(two)
            terminal.picture(lambda lines: names_in(lines) == ["two", "one"])
            check_equal(terminal.chosen[1], "two", "chosen when it is the first")


def test_s_sorts_by_the_next_column(work):
    with mounts(work, "one", "two") as (_, two):
        read_all(two)
        harness.wait_for(lambda: two.stat()["read_files"] == FILES, "the count of what was read")
        with top("-d", "3600") as terminal:
            terminal.picture(lambda lines: names_in(lines) == ["two", "one"])
            for column in ("files/s", "waiting"):
                terminal.press("s")
                lines = terminal.picture(lambda lines, c=column: f"by {c}," in lines[0])
                check_equal(names_in(lines), ["two", "one"], f"by {column}")
            for column in ("job", "archive"):
                terminal.press("s")
                lines = terminal.picture(lambda lines, c=column: f"by {c}," in lines[0])
                check_equal(names_in(lines), ["one", "two"], f"by {column}")
            terminal.press("s")
            terminal.picture(lambda lines: "by MiB/s," in lines[0])


def test_enter_shows_one_mount_and_its_history(work):
    with mounts(work, "one", "two") as (_, two):
        with top("-d", "0.2") as terminal:
            terminal.picture()
            terminal.press("j\n")
            lines = terminal.picture(lambda lines: lines[1].startswith(two.path + ": serving"))
            check("one.tar" not in "".join(lines), f"another mount: {lines}")
            read_all(two)
            lines = terminal.picture(lambda lines: re.search("^  in all +30 files, 2.9 MiB in", "\n".join(lines), re.M))
            for label in ("MiB/s", "files/s", "waiting"):
                check(re.search(f"^  {label} .*█", "\n".join(lines), re.M), f"no history of {label}: {lines}")
            terminal.resize(6, 30)
            lines = terminal.picture(lambda lines: len(lines) == 6)
            check(max(map(len, lines)) <= 30, f"too wide for 30: {lines}")
            check("".join(lines[1:]).startswith(two.path), f"a long line is folded: {lines}")
            terminal.press("G")
            terminal.picture(lambda lines: lines[-1].startswith("  waiting"))
            terminal.press("\033")
            terminal.picture(lambda lines: lines[1].startswith("files/s"))


def test_a_mount_that_ends_is_not_shown_any_more(work):
    with mounts(work, "one", "two") as (one, _):
        with top("-d", "0.2") as terminal:
            terminal.press("\n")
            terminal.picture(lambda lines: lines[1].startswith(one.path))
            one.end()
            lines = terminal.picture(lambda lines: lines[1].startswith("files/s"))
            check_equal(names_in(lines), ["two"], "rows")


def test_names_can_not_control_the_terminal(work):
    hostile = "\033]0;x\007\033[2J\n\x9b5m.tar"
    with work.mount(make_folder(work, hostile), env=environment(SLURM_JOB_ID="1\033[2J")) as mount:
        with top("-d", "3600", columns=200) as terminal:
            lines = terminal.picture()
            check(lines[2].endswith("\\x1b]0;x\\x07\\x1b[2J\\x0a\\xc2\\x9b5m.tar"), f"its row: {lines[2]!r}")
            terminal.press("\n")
            lines = terminal.picture(lambda lines: lines[1].startswith(mount.path))
            check(any("\\x1b]0;x\\x07" in line for line in lines), f"in words: {lines}")


def test_colours_and_blocks_only_where_they_are_wanted(work):
    with work.mount(make_folder(work), env=environment()) as mount:
        read_all(mount)
        harness.wait_for(lambda: mount.stat()["read_files"] == FILES, "the count of what was read")
        for variables, is_coloured, has_blocks in (({}, True, True), ({"NO_COLOR": "1"}, False, True),
                                                   ({"NO_COLOR": ""}, True, True), ({"TERM": "vt220"}, False, True),
                                                   ({"LC_ALL": "C"}, True, False)):
            with top("-d", "3600", **variables) as terminal:
                text = terminal.expect(r"(?s)data\.tar.*\033\[J")
                check_equal(bool(re.search("\033\\[3[1-9]m", text)), is_coloured, f"colours with {variables}")
                terminal.press("\n")
                lines = terminal.picture(lambda lines: lines[1].startswith(mount.path))
                (history,) = [line.split()[-1] for line in lines if line.startswith("  files/s")]
                check_equal(history, "█" if has_blocks else "#", f"history with {variables}")
        with top("-n", "1", TERM="dumb") as terminal:
            check_equal(terminal.wait(), 0, "exit status on a dumb terminal")
            check("\033" not in terminal.text and "  in all" in terminal.text, f"on a dumb one: {terminal.text!r}")


def test_a_signal_gives_the_terminal_back(work):
    with work.mount(make_folder(work), env=environment()):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with top() as terminal:
                terminal.picture()
                terminal.process.send_signal(number)
                check_equal(terminal.wait(), -number, "exit status")
                check_restored(terminal)
        for key, number in (("\x03", signal.SIGINT), ("\x1c", signal.SIGQUIT)):
            with top() as terminal:
                terminal.picture()
                terminal.press(key)
                check_equal(terminal.wait(), -number, f"exit status after {key!r}")
                check_restored(terminal)


def test_a_stop_gives_the_terminal_back_for_as_long(work):
    script = '"$0" top -d 3600; echo STOPPED; read -r line; fg; echo ENDED with $?'
    with work.mount(make_folder(work), env=environment()):
        with Terminal("bash", "-mc", script, harness.onepot_program()) as terminal:
            terminal.picture()
            terminal.press("\x1a")
            harness.wait_for(lambda: terminal.read(0.1) or "STOPPED" in terminal.text, "the shell after the stop")
            check_restored(terminal)
            terminal.text = ""
            terminal.press("\n")
            check("data.tar" in terminal.picture()[2], "the picture after it")
            terminal.press("h")  # a single key again
            terminal.picture(lambda lines: "end" in lines[1])
            terminal.press("q")
            terminal.expect("ENDED with 0")


def test_it_draws_anew_after_a_stop_that_asks_nobody(work):
    with work.mount(make_folder(work), env=environment()):
        with top("-d", "3600") as terminal:
            terminal.picture()
            os.kill(terminal.process.pid, signal.SIGSTOP)
            harness.wait_for(lambda: stopped(terminal.process.pid), "the stop")
            termios.tcsetattr(terminal.slave, termios.TCSANOW, terminal.before)  # as a shell does
            os.kill(terminal.process.pid, signal.SIGCONT)
            terminal.picture()
            terminal.press("q")
            check_equal(terminal.wait(), 0, "exit status after q")
            check_restored(terminal)


def stopped(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rpartition(")")[2].split()[0] == "T"


def test_space_looks_at_once(work):
    with work.mount(make_folder(work), env=environment()):
        with top("-d", "3600", "-n", "3") as terminal:
            terminal.picture()
            terminal.press(" ")
            terminal.picture()
            terminal.press(" ")
            check_equal(terminal.wait(), 0, "exit status after three pictures")


def test_h_shows_and_hides_the_keys(work):
    with work.mount(make_folder(work), env=environment()):
        for key in "h?":
            with top("-d", "3600", lines=10, columns=40) as terminal:
                terminal.picture()
                terminal.press("\033[15~")  # F5, which means nothing
                terminal.press(key)
                lines = terminal.picture(lambda lines: "end" in lines[1])
                check("show or hide the keys" in lines[-1] and len(lines) == 9, f"keys: {lines}")
                terminal.press(key)
                terminal.picture(lambda lines: lines[1].startswith("files/s"))


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


def told_to_root():
    return harness.onepot("top", "-n", "1", timeout=30, env=environment(**plain())).stdout.decode()


def test_root_sees_the_mounts_of_all_users_and_others_their_own(work):
    with node(work) as archive:
        of_victim = mount(archive, **as_user(VICTIM, **plain()))
        of_mallory = mount(archive, **as_user(MALLORY, **plain(XDG_RUNTIME_DIR=own(f"/run/user/{MALLORY}", MALLORY),
                                                          ONEPOT_RUNTIME_DIR=f"/run/user/{MALLORY}")))
        own_one = mount(archive, env=environment(**plain()))
        users = {of_victim: "victim", of_mallory: "mallory", own_one: "root"}
        with top("-d", "3600", lines=24, columns=80, **plain()) as terminal:
            lines = terminal.picture()
            check(lines[0].startswith("onepot top, 3 mounts by MiB/s, h: keys; ") and "shown" not in lines[0], lines[0])
            check_equal(lines[1].split(), ["files/s", "MiB/s", "waiting", "cached", "user", "job", "archive"], "headings")
            check_equal(sorted(line.split()[-3] for line in lines[2:]), sorted(users.values()), "users")
            check(all(line.endswith("data.tar") and len(line) <= 80 for line in lines[2:]), f"rows: {lines}")
            terminal.resize(10, 40)
            lines = terminal.picture(lambda lines: len(lines[0]) <= 40)
            check("user" not in lines[1] and max(map(len, lines)) <= 40 and len(lines) == 5, f"in 40 columns: {lines}")
            terminal.press("\n")
            lines = terminal.picture(lambda lines: "serving" in "".join(lines[1:3]))
            check(any(re.fullmatch("  user +(victim|mallory|root)", line) for line in lines), f"one in words: {lines}")
        text = told_to_root()
        check_equal({path: user for path, user in re.findall(r"^(\S+): serving\n  archive .*\n  user +(\S+)$", text, re.M)},
                    users, "mounts and users")
        text = harness.onepot("top", "-n", "1", of_victim, env=environment(**plain())).stdout.decode()
        check("1 mount," in text and "victim" in text, f"by its name: {text}")
        text = harness.onepot("top", "-n", "1", **as_user(VICTIM, **plain())).stdout.decode()
        check("1 mount," in text and of_victim in text and "  user" not in text, f"told to one user: {text}")
        with Terminal(harness.onepot_program(), "top", "-n", "1", user=VICTIM, **plain()) as terminal:
            check("user" not in terminal.picture()[1], "a column of users for one")
        for path, uid in ((of_victim, VICTIM), (of_mallory, MALLORY)):
            harness.onepot("umount", path, **as_user(uid, **plain(
                ONEPOT_RUNTIME_DIR=f"/run/user/{MALLORY}" if uid == MALLORY else None)))
        harness.onepot("umount", own_one, env=environment(**plain()))


def put(path, data, uid=MALLORY):
    with open(path, "wb") as f:
        f.write(data)
    os.chown(path, uid, -1)
    os.chmod(path, 0o600)


def test_another_user_can_not_deceive_or_stop_root(work):
    with node(work) as archive:
        path = mount(archive, **as_user(VICTIM, **plain()))
        with open(f"/dev/shm/onepot-{VICTIM}/data.tar.stat", "rb") as f:
            record = f.read()
        folder = own(f"/dev/shm/onepot-{MALLORY}", MALLORY)
        fuses = []

        # What is a mount of the victim's by its words, what is none, and what can't be read without waiting.
        put(f"{folder}/claim.stat", record)
        put(f"{folder}/short.stat", record[:1000])
        put(f"{folder}/long.stat", record + b"x")
        put(f"{folder}/other.stat", b"another" + record[7:])
        put(f"{folder}/not-mine.stat", record.replace(path.encode(), b"/" * len(path)), VICTIM)
        at = record.index(archive.encode() + b"\0")
        endless = record[:at] + b"x" * 4096 + record[at + 4096:]
        put(f"{folder}/endless.stat", endless.replace(path.encode(), b"/" * len(path)))
        os.symlink(f"/dev/shm/onepot-{VICTIM}/data.tar.stat", f"{folder}/link.stat")
        os.mkfifo(f"{folder}/fifo.stat")
        os.chown(f"{folder}/fifo.stat", MALLORY, MALLORY)
        put(f"{folder}/fuse.stat", record)
        fuses.append((f"{folder}/fuse.stat", mount_of_mallory(f"{folder}/fuse.stat", stat.S_IFREG)))
        put(f"{folder}/leased.stat", record)
        leased = os.open(f"{folder}/leased.stat", os.O_RDWR)
        fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        bad = 10
        fuses.append((f"/tmp/onepot-{MALLORY}", mount_of_mallory(own(f"/tmp/onepot-{MALLORY}", MALLORY))))
        os.symlink(f"/dev/shm/onepot-{VICTIM}", f"/tmp/onepot-{THIRD}")
        own(f"/dev/shm/onepot-{THIRD}", MALLORY)
        put(f"/dev/shm/onepot-{THIRD}/x.stat", record.replace(path.encode(), b"/" * len(path)))
        text = told_to_root()
        check(f" 1 mount, every 2 s; {bad} more can't be shown\n" in text, f"the bad ones: {text}")
        check_equal(re.findall("^  user +(.*)$", text, re.M), ["victim"], "whose they are")
        check_equal(os.path.getsize(f"{folder}/short.stat"), 1000, "what was read was not written")

        # A mount that nothing contradicts is the user's who tells of it, and no other's.
        name = (b"/\x1b[2J" + path.encode())[:len(path)]
        put(f"{folder}/told.stat", record.replace(path.encode(), name))
        text = told_to_root()
        check("2 mounts" in text and "\\x1b[2J" in text and "\033" not in text, f"a name of mallory's: {text}")
        check_equal(sorted(re.findall("^  user +(.*)$", text, re.M)), ["mallory", "victim"], "whose they are")
        said = harness.onepot("top", "-n", "1", f"{path}/sub", status=1, env=environment(**plain()))
        check(b"no onepot mount there" in said.stderr, f"the victim's mount is asked: {said.stderr}")
        with top("-d", "0.2", columns=200, **plain()) as terminal:
            terminal.picture(lambda lines: len(lines) == 4)
            read_file = run("cat", f"{path}/readme", user=VICTIM, group=VICTIM, extra_groups=[])
            check_equal(read_file.stdout, b"hello\n", "what the victim reads")
            lines = terminal.picture(lambda lines: float(lines[2].split()[0]) > 0)
            check("victim" in lines[2] and " mallory " in lines[3] and lines[3].split()[0] == "0", f"rates: {lines}")
            terminal.picture(lambda lines: [line.split()[0] for line in lines[2:]] == ["0", "0"])

        # Root's own comes first where the kernel has nothing, also before one that seems to live.
        killed = mount(archive, f"--at={own('/srv/killed', 0)}", env=environment(**plain()))
        with open("/dev/shm/onepot-0/data.tar.stat", "rb") as f:
            record_of_root = f.read()
        os.kill(struct.unpack_from("i", record_of_root, 20)[0], signal.SIGKILL)
        harness.detach(killed)
        put(f"{folder}/later.stat", record_of_root[:32] + struct.pack("q", 1 << 40) + record_of_root[40:])
        def told_of_killed():
            text = harness.onepot("top", "-n", "1", killed, env=environment(**plain())).stdout.decode()
            check_equal(re.findall("^  user +(.*)$", text, re.M), ["root"], "whose it is")
            return text
        with open(f"{folder}/later.stat", "rb") as living:
            fcntl.flock(living, fcntl.LOCK_EX)
            harness.wait_for(lambda: f"{killed}: dead" in told_of_killed(), "root's own to be known as dead")
        harness.onepot("clean", env=environment(**plain()))

        # So many that it would take long: a part is shown.
        for i in range(1500):
            put(f"{folder}/{i}.stat", record.replace(path.encode(), b"%0*d" % (len(path), i)))
        text = told_to_root()
        shown = re.findall("^  user +(.*)$", text, re.M)
        check_equal((shown.count("victim"), shown.count("mallory") <= 64), (1, True), f"who is shown: {shown}")
        (left_out,) = re.findall("; ([0-9]+) more can't be shown", text)
        check(900 < int(left_out) <= 1026, f"how many can't be shown: {left_out}")
        os.close(leased)
        for at, device in fuses:
            harness.detach(at)
            os.close(device)
        harness.onepot("umount", path, **as_user(VICTIM, **plain()))


def test_wrong_words_are_refused(work):
    for words in (("-d", "0"), ("-d", "x"), ("-n", "0"), ("-n", "-1"), ("--nonsense",)):
        run(harness.onepot_program(), "top", *words, status=2)
    said = run(harness.onepot_program(), "top", "-n", "1", work.path, status=1).stderr.decode()
    check("you have no onepot mount there" in said, said)
    text = harness.onepot("top", "-n", "1").stdout.decode()
    check("0 mounts" in text, f"without mounts: {text}")


if __name__ == "__main__":
    harness.main(globals())

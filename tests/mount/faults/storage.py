"""The archive's storage fails: reads fail once or for good, stall, or lose their handles.
slowfs is the storage, and does on a signal what it was told."""

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from errno import EIO

import harness
import life
import tree
from tars import member, write_folder, write_tar
from faults import read
from harness import check, check_equal, environment, wait_for
from slow import Slow

FILES = 120
FILE_BYTES = 20_000
THREADS = 32  # that read ahead, at most


def contents(number):
    return tree.content(FILE_BYTES + number, number)


def make_source(work, name="data.tar"):
    source = work / "source"
    os.makedirs(source, exist_ok=True)
    write_folder(os.path.join(source, name), ((f"{i:03d}", contents(i)) for i in range(FILES)))
    return source


@contextlib.contextmanager
def served(work, *options, mount_options=()):
    """A mount of an archive on slowfs; no page of it stays in the kernel, and nothing is read
    before it is asked for."""
    source = make_source(work)
    with Slow(work, "--pages=none", *options, source) as slow:
        with work.mount(slow / "data.tar", "--readahead", "off", *mount_options,
                        env=environment()) as mount:
            yield mount, slow, source


def outlive_stalls():
    """A file whose read stalled fails at once for 0.2 s: the kernel asks for it twice."""
    time.sleep(0.3)


def wait_for_counts(mount, good, what):
    """The daemon writes them down several times a second."""
    wait_for(lambda: good(mount.stat()), lambda: f"{what}: {mount.stat()}")
    return mount.stat()


def check_files(mount, numbers, what):
    for i in numbers:
        check_equal(read(mount / f"d/{i:03d}") == contents(i), True, f"{what}: d/{i:03d}")


def errors_of(mount, numbers):
    return {read(mount / f"d/{i:03d}") for i in numbers}


def test_requests_are_counted_as_the_storage_counts_them(work):
    with served(work) as (mount, slow, _):
        for _ in range(2):
            check_files(mount, range(FILES), "an epoch")
        asked = slow.counts()
        state = wait_for_counts(mount, lambda s: s["storage_bytes"] >= asked["bytes"] - 1, "bytes")
        # The kernel cuts the long reads of indexing; `mount` opens it first, and reads a byte.
        cut = asked["open"] + asked["read"] - state["storage_requests"]
        check(2 <= cut <= 2 + (asked["bytes"] >> 20), f"{state['storage_requests']} of {asked}")
        check_equal(state["storage_bytes"], asked["bytes"] - 1, "bytes")
        check(FILES < asked["read"] < 2 * FILES, f"a second epoch asked again: {asked}")
        text = harness.onepot("stat", mount.path).stdout.decode()
        check(f"  to storage   {state['storage_requests']} requests, " in text, text)


def test_a_large_file_takes_hardly_more_requests_than_the_archive(work):
    """Not twice as many, for pages that two requests have in common."""
    source, size = work.make("source"), 64 << 20
    write_tar(os.path.join(source, "large.tar"),
              [member("large", os.urandom(1 << 20) * (size >> 20))])
    with Slow(work, "--read=5ms", source) as slow:
        before = slow.counts()["read"]
        with open(slow / "large.tar", "rb") as f:
            content = f.read()[512:512 + size]
        archive = slow.counts()["read"] - before
    with Slow(work, "--read=5ms", source) as slow, \
            work.mount(slow / "large.tar", "--cache", "512M", env=environment()) as mount:
        before = slow.counts()["read"]
        check_equal(read(mount / "large") == content, True, "bytes")
        file = slow.counts()["read"] - before
        check(file < 1.5 * archive, f"{file} requests, and {archive} for the archive")


def test_reads_that_fail_once_reach_nobody(work):
    with served(work, "--fail-every=7") as (mount, slow, _):
        check_files(mount, range(FILES), "every 7th read fails")
        check(slow.counts()["read"] > FILES, "slowfs was not asked")
        state = wait_for_counts(mount, lambda s: s["source_retries"] >= FILES // 7, "retries")
        check_equal(state["errors"], 0, "errors of readers")
        check_equal(state["source_failures"], 0, "reads given up")
        check("tried again" in state["last_error"], f"last error: {state['last_error']!r}")
        shown = harness.onepot("stat", mount.path).stdout.decode()
        check("failed reads tried again" in shown, f"stat shows no retries: {shown}")


def test_bytes_that_came_while_a_read_failed_are_not_kept(work):
    """Storage that fails may also return wrong bytes: they answer who waits, and no more."""
    with served(work, "--toggle=fail", mount_options=("--retries", "20")) as (mount, slow, _):
        def reads_of(number):
            before = slow.counts()["read"]
            check_files(mount, (number,), "a file")
            life.forget(mount / f"d/{number:03d}")
            return slow.counts()["read"] - before

        check_equal((reads_of(1), reads_of(1)), (1, 0), "reads of one that came in peace")
        slow.toggle()
        reader = harness.in_thread(reads_of, 2)
        wait_for_counts(mount, lambda s: s["source_retries"] >= 1, "a retry")
        slow.toggle()
        check(reader() >= 2, "the read did not fail")
        check_equal((reads_of(2), reads_of(2)), (1, 0), "reads of one that came meanwhile")


def test_no_retries_if_so_wanted(work):
    with served(work, "--toggle=fail", mount_options=("--retries", "0")) as (mount, slow, _):
        check_files(mount, range(3), "before")
        slow.toggle()
        check_equal(read(mount / "d/005"), EIO, "a read that fails")
        state = wait_for_counts(mount, lambda s: s["source_failures"] >= 1, "reads given up")
        check_equal(state["source_retries"], 0, "retries")
        slow.toggle()
        check_files(mount, (5, 6), "when it is over")


def test_storage_that_is_gone_and_comes_back(work):
    """EIO for each read, soon; what is cached is served; and no restart is needed."""
    with served(work, "--toggle=fail", "--fail-error=ETIMEDOUT",
                mount_options=("--retries", "1")) as (mount, slow, _):
        check_files(mount, range(10), "before")
        slow.toggle()
        check_equal(errors_of(mount, range(20, 40)), {EIO}, "what readers get")
        check_equal(len(os.listdir(mount / "d")), FILES, "names")
        state = wait_for_counts(mount, lambda s: s["source_failures"] >= 20, "reads given up")
        check("d/039" in state["last_error"], f"last error: {state['last_error']!r}")
        slow.toggle()
        check_files(mount, range(FILES), "when it is over")


def test_stale_handle_is_opened_again(work):
    with served(work, "--toggle=stale") as (mount, slow, _):
        check_files(mount, range(3), "before")
        for turn in range(2):
            slow.toggle()
            check_files(mount, range(10 + 40 * turn, 50 + 40 * turn), "after it went stale")
        state = wait_for_counts(mount, lambda s: s["source_reopened"] == 2, "openings")
        check_equal(state["errors"], 0, "errors")
        check("opened again" in state["last_error"], f"last error: {state['last_error']!r}")


def test_stale_handle_of_an_archive_that_was_replaced(work):
    """Another archive has its name: its bytes are not those that the index speaks of."""
    with served(work, "--toggle=stale", "--entry-timeout=0", "--attr-timeout=0",
                mount_options=("--retries", "1")) as (mount, slow, source):
        check_files(mount, range(3), "before")
        write_folder(os.path.join(source, "new"),
                     ((f"{i:03d}", contents(i)[::-1]) for i in range(FILES)))
        os.rename(os.path.join(source, "new"), os.path.join(source, "data.tar"))
        slow.toggle()
        check_equal(errors_of(mount, range(20, 30)), {EIO}, "what readers get")
        check_equal(mount.stat()["source_reopened"], 0, "openings")


def test_a_reader_waits_once_for_what_stalls(work):
    """The kernel asks again for the page that its reading ahead did not bring."""
    stalls = []
    with served(work, "--toggle=stall", mount_options=("--io-timeout", "1")) as (mount, slow, _):
        check_files(mount, range(2), "before")
        for i in range(5, 17, 2):  # the kernel asks late where others use the machine
            before = mount.stat()["stalls"]
            slow.toggle()
            check_equal(errors_of(mount, (i, i + 1)), {EIO}, "readers of what stalls")
            state = wait_for_counts(mount, lambda s: s["stalls"] >= before + 2, "stalls")
            stalls.append(state["stalls"] - before)
            slow.toggle()
            outlive_stalls()
            check_files(mount, (i, i + 1), "when it goes on")
            if stalls[-1] == 2:
                return
    check(False, f"stalls of two reads: {stalls}")


def test_a_reader_waits_once_for_what_fails(work):
    """The same for a read that is tried again for seconds, and fails."""
    given_up = []
    with served(work, "--toggle=fail") as (mount, slow, _):
        check_files(mount, range(2), "before")
        for i in range(5, 13):  # the kernel asks late where others use the machine
            before = mount.stat()["source_failures"]
            slow.toggle()
            check_equal(read(mount / f"d/{i:03d}"), EIO, "a read that fails")
            wait_for_counts(mount, lambda s: s["source_failures"] > before, "failures")
            slow.toggle()
            check_files(mount, (i + 10,), "when it is over")
            time.sleep(0.5)  # until the last of them is written down, too
            given_up.append(mount.stat()["source_failures"] - before)
            if given_up[-1] == 1:
                return
    check(False, f"reads of the archive for one of a file: {given_up}")


@life.not_starved
def test_time_for_which_the_daemon_is_stopped_is_no_stall(work):
    limit = 4
    with served(work, "--toggle=stall", mount_options=("--io-timeout", str(limit))) as (mount, slow, _):
        check_files(mount, range(2), "before")
        pid = mount.stat()["daemon_pid"]
        asked = slow.counts()["read"]
        slow.toggle()
        with life.Clock() as before:
            reader = harness.in_thread(read, mount / "d/050")
            wait_for(lambda: slow.counts()["read"] > asked, "the read")
            os.kill(pid, signal.SIGSTOP)  # the thread that reads stays where it is
            wait_for(lambda: life.thread_state(pid, pid) == "T", "the daemon to stop")
        time.sleep(limit + 1)
        with life.Clock() as after:
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.5)  # a few looks of the watchdog
            slow.toggle()
        if before.seconds + after.seconds > limit - life.STARVED_SECONDS:
            raise life.Starved("the read waited for too long while the daemon was not stopped")
        check_equal(reader() == contents(50), True, "what the reader got")
        check_equal(mount.stat()["stalls"], 0, "stalls")


def test_threads_come_back_from_a_stall(work):
    """More stalls, a few at a time, than there may ever be threads (512)."""
    options = ("--io-timeout", "1", "--cache", "0")  # or what stalled is there the next time
    with served(work, "--toggle=stall", mount_options=options) as (mount, slow, _):
        for turn in range(6):
            slow.toggle()
            readers = [harness.in_thread(read, mount / f"d/{i:03d}") for i in range(90)]
            check_equal({r() for r in readers}, {EIO}, "readers of what stalls")
            slow.toggle()
            outlive_stalls()
            check_files(mount, (100 + turn,), "when it goes on")
        check_files(mount, range(FILES), "at last")
        # One is counted when it was answered: its reader may be a moment ahead.
        wait_for_counts(mount, lambda s: s["stalls"] >= 540, "stalls")


def test_a_read_that_is_lost_is_made_anew(work):
    """Its thread hangs for good; who wants the same block later does not hang behind it."""
    source = work.make("source")
    tree_of_files = work.make("tree")
    for i in range(20):
        tree.write(os.path.join(tree_of_files, f"{i:02d}"), contents(i))
    harness.onepot("pack", "--zstd", "-o", os.path.join(source, "data.tar.zst"), tree_of_files)
    for name, options in (("data.tar.zst", ()), ("data.tar", ("--cache", "4M"))):
        if name == "data.tar":
            harness.onepot("pack", "-o", os.path.join(source, name), tree_of_files)
        with Slow(work, "--pages=none", "--toggle=lose", source) as slow:
            with work.mount(slow / name, "--io-timeout", "2", "--readahead", "off", *options,
                            env=environment()) as mount:
                os.listdir(mount.path)
                slow.toggle()
                lost = [harness.in_thread(read, mount / f"{i:02d}") for i in (3, 3, 4)]
                check_equal({r() for r in lost}, {EIO}, f"{name}: reads that are lost")
                slow.toggle()
                outlive_stalls()
                for i in (3, 4, 5):
                    check_equal(read(mount / f"{i:02d}") == contents(i), True,
                                f"{name}: file {i} when the storage is back")
                os.kill(slow.pid(), signal.SIGTERM)  # which answers them after all
                wait_for(lambda: not harness.mountpoints(slow.at), "the end of slowfs")


def read_of_the_mount(mount, number):
    """One that the kernel has no pages for: the daemon sees it."""
    life.forget(mount / f"d/{number:03d}")
    check_files(mount, (number,), "what was read before")
    return mount.stat()


@life.not_starved
def test_reading_ahead_goes_on_when_its_threads_hang(work):
    """All 32 of them, in reads that get no answer; others take their place."""
    source = make_source(work)
    with open(work / "order", "w", encoding="ascii") as f:
        f.writelines(f"d/{i:03d}\n" for i in range(FILES))
    ahead = 40  # and no more: nothing is on its way when the storage stops answering
    options = ("--io-timeout", "3", "--order", work / "order", "--cache", "16M",
               "--readahead", str(sum(FILE_BYTES + i for i in range(ahead))))
    with Slow(work, "--pages=none", "--toggle=lose", source) as slow:
        with work.mount(slow / "data.tar", *options, env=environment()) as mount:
            wait_for_counts(mount, lambda s: s["prefetched"] == ahead, "files ahead")
            slow.toggle()
            before = slow.counts()["read"]
            for i in range(THREADS):  # a file that was read makes room for one more
                check_files(mount, (i,), "what was there")
                wait_for(lambda n=before + i: slow.counts()["read"] > n, f"thread {i} to hang")
            slow.toggle()
            if mount.stat()["threads_replaced"]:
                raise life.Starved("threads were taken for stuck meanwhile: others hang as well")
            # They are looked for while something is read.
            wait_for(lambda: read_of_the_mount(mount, 0)["threads_replaced"] == THREADS,
                     "all of them to be replaced")
            for i in range(THREADS, FILES):  # in time for whoever is to be ahead of this
                check_equal(errors_of(mount, (i,)) & {EIO}, set(), f"file {i}")
                time.sleep(0.01)
            wait_for_counts(mount, lambda s: s["prefetched_used"] > ahead + 10, "files used")
            check_equal(mount.stat()["threads_replaced"], THREADS, "threads replaced")
            os.kill(slow.pid(), signal.SIGTERM)  # which answers the others after all
            wait_for(lambda: not harness.mountpoints(slow.at), "the end of slowfs")


def test_a_start_on_storage_that_stalls_ends(work):
    """By itself when its time is over, at once when it is asked to."""
    source = make_source(work)
    with Slow(work, "--toggle=stall", "--entry-timeout=0", "--attr-timeout=0", source) as slow:
        slow.toggle()
        done = harness.onepot("mount", slow / "data.tar", "--io-timeout", "1", status=1)
        check("has not answered for 1 s" in done.stderr.decode(), f"it said {done.stderr!r}")
        done = harness.onepot("run", slow / "data.tar", "--io-timeout", "1", "--", "true",
                              status=125)
        check("has not answered for 1 s" in done.stderr.decode(), f"run said {done.stderr!r}")
        for command in (["mount", slow / "data.tar"], ["run", slow / "data.tar", "--", "true"]):
            start = subprocess.Popen([harness.onepot_program(), *map(str, command)],
                                     stderr=subprocess.DEVNULL, env=environment())
            time.sleep(0.5)
            start.send_signal(signal.SIGTERM)
            check_equal(start.wait(timeout=90), -signal.SIGTERM, "how it ended")
        slow.toggle()
        with work.mount(slow / "data.tar", env=environment()) as mount:
            check_files(mount, range(3), "when the storage is back")


@contextlib.contextmanager
def stuck(slow, *command):
    """A command that waits for a read which slowfs has taken; then slowfs is stopped, so that not
    even a signal that kills ends the wait."""
    slow.toggle()
    before = slow.counts()["read"]
    pid = slow.pid()
    with life.background(*command) as started:
        try:
            wait_for(lambda: slow.counts()["read"] > before or started.poll() is not None, "a read")
            os.kill(pid, signal.SIGSTOP)
            yield started
        finally:
            os.kill(pid, signal.SIGCONT)
    slow.toggle()


def test_storage_that_never_answers_holds_no_mount(work):
    source = make_source(work)
    with Slow(work, "--toggle=stall", "--pages=none", source) as slow:
        archive, link = slow / "data.tar", work / "link.tar"
        os.symlink(archive, link)
        for status, command in ((1, ["mount", archive]), (125, ["run", archive, "--", "true"]),
                                (1, ["mount", "-f", archive]), (1, ["mount", link])):
            with stuck(slow, command[0], "--io-timeout", "3", *command[1:]) as started:
                code, _, errors = life.ended(started, 60)
            check_equal(code, status, f"the status of {command}")
            check("has not answered for 3 s" in errors, f"{command} said {errors!r}")
        with work.mount(archive) as mount:
            check_files(mount, range(3), "when the storage is back")
        wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [slow.pid()],
                 "what was left behind to end")
    life.check_nothing_left()


def test_a_signal_ends_a_command_that_waits_for_storage(work):
    """For a name, and for the first bytes: the kernel lets go of a request that nobody has taken."""
    with Slow(work, "--pages=none", "--entry-timeout=0", "--attr-timeout=0", make_source(work)) as slow:
        archive, pid = slow / "data.tar", slow.pid()
        for command in (["ls", archive], ["cat", archive, "d/000"], ["info", archive], ["verify", archive],
                        ["extract", "-C", work / "out", archive], ["pack", "-o", work / "new.tar", archive],
                        ["index", archive], ["stage", archive], ["mount", archive],
                        ["run", archive, "--", "true"], ["doctor", archive]):
            os.kill(pid, signal.SIGSTOP)
            try:
                with life.background(*command) as started:
                    wait_for(lambda p=started.pid: any(map(life.waits_for_a_daemon, [p, *life.children_of(p)])),
                             f"{command} to ask the storage")
                    started.terminate()
                    code, _, errors = life.ended(started, 20)
            finally:
                os.kill(pid, signal.SIGCONT)
            check_equal((code, errors), (-signal.SIGTERM, ""), f"the end of {command}")
        wait_for(lambda: harness.marked_processes(os.environ[harness.MARK]) == [pid], "all of them to end")
    life.check_nothing_left()


# ---- pack ----

def is_pending(pid, number):
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        line = [line for line in f if line.startswith("ShdPnd")][0]
    return int(line.split()[1], 16) >> (number - 1) & 1


def interrupt_pack(slow, output, *options, change=lambda: None, files=None,
                   says="what was written is kept", also=""):
    """TERM, while it waits for the large file in the middle, which it then writes to its end."""
    opened = slow.counts()["open"]
    with life.background("pack", "-j2", "-q", "--resume", *options, "-o", output, slow.at) as p:
        # When the last file was opened, ahead of its turn, those before the large one are written.
        wait_for(lambda: slow.counts()["open"] - opened == (files or TREE_FILES), lambda: f"all opened: {slow.counts()}")
        change()
        p.terminate()
        # The thread that takes the signal may itself wait for the file: then it comes first there.
        for _ in range(100):
            if not is_pending(p.pid, signal.SIGTERM):
                break
            time.sleep(0.01)
        slow.toggle()
        _, _, errors = life.ended(p)
    check(f"interrupted; {says}" in errors and also in errors, f"it says {errors}")
    slow.toggle()


TREE_FILES = 2 * 120 + 2


def make_tree(work, more=(), ending=""):
    source = work.make("tree" + ending)
    for folder in "az":
        for i in range(120):
            os.makedirs(f"{source}/{folder}", exist_ok=True)
            life.write(f"{source}/{folder}/{i:03d}{ending}", contents(i)[:3000])
    life.write(f"{source}/large", tree.content(3 << 20, 1))
    for name, data in more:
        os.makedirs(os.path.dirname(f"{source}/{name}"), exist_ok=True)
        life.write(f"{source}/{name}", data)
        for path in (name, os.path.dirname(name)):
            os.utime(f"{source}/{path}", (1, 1))
    os.link(f"{source}/a/001{ending}", f"{source}/z/hard")
    os.symlink(f"001{ending}", f"{source}/a/link")
    for name in (f"a/001{ending}", "a/link", f"z/005{ending}"):
        os.utime(f"{source}/{name}", (1, 1), follow_symlinks=False)
    wait_until_old(source)
    return source


def wait_until_old(source):
    """What changed up to 2 s before a run begins is not taken from what the run has kept."""
    changed = max(os.lstat(os.path.join(folder, name)).st_ctime
                  for folder, folders, files in os.walk(source) for name in [".", *folders, *files])
    wait_for(lambda: time.time() > changed + 4, "the tree to be old")


def kept_files(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".kept"))


def outputs(folder):
    found = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as f:
            found[name] = f.read()
    return found


def test_pack_goes_on_from_what_an_interrupted_one_has_kept(work):
    for kind, options in enumerate(([], ["--zstd", "--block=16K"], ["--shards=3"], ["--normalize=NFC"])):
        is_nfc = options == ["--normalize=NFC"]
        if is_nfc and "without libutf8proc" in life.said(harness.onepot("pack", *options, work / "nowhere", status=1)):
            continue
        if kind == 0 or is_nfc:
            source = make_tree(work, ending="e\u0301" if is_nfc else "")
        wanted, out = work.make(f"wanted{kind}"), work.make(f"out{kind}")
        with Slow(work, "--pages=none", "--toggle=stall", "--hold", source) as slow:
            slow.toggle()
            harness.onepot("pack", "-q", *options, "-o", f"{wanted}/x.tar", slow.at)
            all_reads = slow.counts()["read"]
            slow.toggle()
            interrupt_pack(slow, f"{out}/x.tar", *options)
            kept = kept_files(out)
            check_equal(len(kept), 3 if kind == 2 else 1, f"{options}: {os.listdir(out)}")
            check_equal(set(os.listdir(out)), {os.path.basename(path) for path in kept}, "what is there")
            check_equal(os.stat(kept[0]).st_mode & 0o777, 0o600, "who may read it")
            for path in kept:
                harness.onepot("verify", "-q", path)
            slow.toggle()
            partial = kept[0].replace(".kept", ".partial")
            life.write(partial, b"of a killed run")
            os.utime(partial, (1, 1))
            before = slow.counts()["read"]
            done = harness.onepot("pack", "--resume", "-q", *options, "-o", f"{out}/x.tar", slow.at,
                                  env=environment(ONEPOT_ASSUME_REMOTE="1"))
            check("goes on from" in life.said(done), life.said(done))
            reads = slow.counts()["read"] - before
            check(reads <= all_reads - 121, f"{options}: {reads} reads, and {all_reads} without")
            check_equal(outputs(out) == outputs(wanted), True, f"{options}: the bytes")


def test_pack_goes_on_from_shards_that_wait_for_other_ranks(work):
    source, out, wanted = make_tree(work), work.make("out"), work.make("wanted")
    with Slow(work, "--pages=none", source) as slow:
        def pack(rank, folder, *options):
            before = slow.counts()["read"]
            done = harness.onepot("pack", "-q", "--shards=4", f"--rank={rank}", "--world=2", *options, "-o",
                                  f"{folder}/x.tar", slow.at)
            return slow.counts()["read"] - before, life.said(done)
        for rank in range(2):
            pack(rank, wanted)
        pack(0, out)
        reads, told = pack(0, out, "--resume")
        check(reads <= 1 and "goes on from" in told, f"{reads} reads: {told}")
        pack(1, out, "--resume")
        check_equal(outputs(out) == outputs(wanted), True, f"the bytes: {os.listdir(out)}")


def test_pack_keeps_complete_shards_when_it_is_interrupted_before_they_have_their_names(work):
    source, out, wanted = make_tree(work), work.make("out"), work.make("wanted")
    pack = ["pack", "-q", "--resume", "--shards=3", "-o"]

    def ready():
        return sorted(name for name in os.listdir(out) if name.endswith(".ready"))
    with Slow(work, "--pages=none", "--toggle=stall", "--hold", source) as slow:
        with life.background(*pack, f"{out}/x.tar", slow.at) as p:
            wait_for(lambda: slow.counts()["stalls"], "the large file")
            with open(f"{out}/.x-%-of-00003.tar.exchange", "wb") as record:
                fcntl.flock(record, fcntl.LOCK_EX)
                slow.toggle()
                wait_for(lambda: len(ready()) == 3, lambda: f"complete shards: {os.listdir(out)}")
                p.terminate()
                _, _, errors = life.ended(p)
        check("interrupted; what was written is kept" in errors, f"it says {errors}")
        os.unlink(f"{out}/.x-%-of-00003.tar.exchange")
        check_equal(sorted(os.listdir(out)), ready(), "what is there")
        before = slow.counts()["read"]
        harness.onepot(*pack, f"{out}/x.tar", slow.at)
        check_equal(slow.counts()["read"] - before, 0, "reads of a tree that was packed already")
        harness.onepot(*pack, f"{wanted}/x.tar", slow.at)
        check_equal(outputs(out) == outputs(wanted), True, f"the bytes: {os.listdir(out)}")


def test_a_killed_pack_leaves_the_complete_shards_that_it_went_on_from(work):
    source, out, wanted = make_tree(work), work.make("out"), work.make("wanted")
    pack = ["pack", "-q", "--shards=4", "--rank=0", "--world=2", "-o"]
    harness.onepot(*pack, f"{out}/x.tar", source)
    for i in range(8):
        life.write(f"{source}/z/new{i}", tree.content(1 << 20, i))
    with Slow(work, "--pages=none", "--toggle=stall", "--hold", source) as slow:
        with life.background(*pack, f"{out}/x.tar", "--resume", slow.at) as p:
            wait_for(lambda: slow.counts()["stalls"] or slow.counts()["in_flight"], "a read")
            wait_for(lambda: any(name.endswith(".partial") for name in os.listdir(out)), "a partial file")
            p.kill()
            slow.toggle()
            life.ended(p)
        check_equal(len(kept_files(out)), 2, f"shards kept: {os.listdir(out)}")
        done = harness.onepot(*pack, f"{out}/x.tar", "--resume", slow.at)
        check("goes on from" in life.said(done), life.said(done))
        harness.onepot(*pack, f"{wanted}/x.tar", slow.at)
        check_equal(outputs(out) == outputs(wanted), True, f"the bytes: {os.listdir(out)}")


def test_pack_keeps_no_file_that_could_not_be_read_whole(work):
    source, wanted = make_tree(work), work.make("wanted")
    toggle = ("--attr-timeout=0", "--pages=none", "--toggle=stall", "--hold")
    for what, options, change in (
            ("errors", ("--fail-every=50",), lambda: None),
            ("cut", (), lambda: os.truncate(f"{source}/large", 1 << 19))):
        for shards in (1, 3):
            out, sharded = work.make(f"{what}{shards}"), [f"--shards={shards}"] if shards > 1 else []
            with Slow(work, *toggle, *options, source) as slow:
                interrupt_pack(slow, f"{out}/x.tar", *sharded, change=change,
                               says="" if sharded else "nothing is left of it",
                               also="not kept: a file in it could not be packed as it is")
            check(len(kept_files(out)) < shards, f"{what}, {shards} shards: {kept_files(out)}")
            life.write(f"{source}/large", tree.content(3 << 20, 1))
            whole = work.make(f"{what}{shards}.whole")
            for folder in (out, whole):
                harness.onepot("pack", "--resume", "-q", *sharded, "-o", f"{folder}/x.tar", source)
            check_equal(outputs(out) == outputs(whole), True, f"{what}, {shards} shards: the bytes")
    # A complete shard of a rank that goes on, too.
    out, harmed = work.make("out"), work.make("harmed")
    ranks = ["--shards=2", "--world=2", "--rank"]
    with Slow(work, "--pages=none", "--fail-every=50", source) as slow:
        harness.onepot("pack", "-q", *ranks, "0", "-o", f"{harmed}/x.tar", slow.at, status=1)
        harness.onepot("pack", "-q", *ranks, "0", "-o", f"{out}/x.tar", slow.at, status=1)
        slow.umount()
        slow.arguments = ("--pages=none", source)
        slow.start()
        for rank in "01":
            harness.onepot("pack", "-q", *ranks, rank, "-o", f"{wanted}/x.tar", slow.at)
            done = harness.onepot("pack", "--resume", "-q", *ranks, rank, "-o", f"{out}/x.tar", slow.at)
            check("goes on" not in life.said(done), life.said(done))
            check_equal(life.said(done).count("not used: a file in it could not"), 1 - int(rank), "what it tells")
        check_equal(outputs(out) == outputs(wanted), True, f"the bytes: {os.listdir(out)}")
        harness.onepot("pack", "-q", *ranks, "1", "-o", f"{harmed}/x.tar", slow.at)
        times = [os.stat(f"{harmed}/{name}").st_mtime for name in os.listdir(harmed)]
        check(min(times) > os.stat(source).st_mtime, f"times of shards: {times}")


def test_what_pack_has_kept_counts_only_as_its_own_and_unchanged(work):
    source, out = make_tree(work), work.make("out")
    with Slow(work, "--pages=none", "--attr-timeout=0", "--toggle=stall", "--hold", source) as slow:
        larger = f"{out}/x.tar.abcdef.kept"
        life.write(f"{out}/x.tar.abcdeg.kept", b"of an earlier run, and smaller")
        with open(larger, "wb") as f:
            f.truncate(1 << 30)
        interrupt_pack(slow, f"{out}/x.tar")
        slow.toggle()
        os.unlink(larger)
        check_equal(len(kept_files(out)), 1, "what is kept")
        kept = kept_files(out)[0]
        whole, times = read(kept), os.stat(kept)
        # The archive may be named by a link, and part of a long name is left out.
        target, link, long = work.make("target"), f"{out}/link.tar", "n" * 250 + ".tar"
        life.write(f"{target}/real.tar", b"")
        os.symlink(f"{target}/real.tar", link)
        for name, there in ((link, f"{target}/real.tar.abcdef.kept"),
                            (f"{out}/{long}", f"{out}/{long[:240]}.abcdef.kept")):
            harness.run("cp", "-a", kept, there)
            done = harness.onepot("pack", "--resume", "-q", "-f", "-o", name, slow.at)
            check("goes on from" in life.said(done), f"{name}: {life.said(done)}")
            check(not os.path.exists(there), f"{there} is left")
            os.unlink(name)

        def packed(what, goes_on, **changes):
            life.write(kept, changes.get("data", whole))
            os.chmod(kept, changes.get("mode", 0o600))
            os.utime(kept, ns=(times.st_atime_ns, times.st_mtime_ns))
            done = harness.onepot("pack", "--resume", "-q", "-f", "-o", f"{out}/x.tar", slow.at)
            check_equal("goes on from" in life.said(done), goes_on, f"{what}: {life.said(done)}")
            check(goes_on or what in life.said(done), f"{what}: {life.said(done)}")
            harness.onepot("pack", "-q", "-f", "-o", f"{out}/y.tar", slow.at)
            check_equal(read(f"{out}/x.tar") == read(f"{out}/y.tar"), True, f"{what}: the bytes")
            harness.onepot("verify", "-q", f"{out}/x.tar")
        at = whole.index(contents(20)[:3000])
        packed("a file in it is damaged", True, data=whole[:at] + b"?" + whole[at + 1:])
        life.write(f"{source}/a/007", contents(8)[:3000])
        packed("a file has changed", True)
        life.write(f"{source}/a/new", b"new")
        os.unlink(f"{source}/a/009")
        os.chmod(f"{source}/a/010", 0o600)
        packed("files have come and gone", True)
        packed("it has no index with sums", False, data=whole[:-5000])
        packed("can't be used", False, data=b"none")
        packed("others may write to it", False, mode=0o620)
        check_equal(kept_files(out), [], "what is kept in the end")
        os.link(f"{out}/y.tar", kept)
        done = harness.onepot("pack", "--resume", "-q", "-f", "-o", f"{out}/x.tar", slow.at)
        check("goes on" not in life.said(done), "it has another name")
        good = f"{out}/good"
        life.write(good, whole)
        os.chmod(good, 0o600)
        for what, plant in (("it is another user's", lambda: (harness.run("cp", "-a", good, kept), os.chown(kept, 54321, 54321))),
                            ("it is a link", lambda: os.symlink(good, kept)), ("it is a pipe", lambda: os.mkfifo(kept))):
            if os.path.lexists(kept):
                os.unlink(kept)
            if os.geteuid() != 0 and "user" in what:
                continue
            plant()
            done = harness.onepot("pack", "--resume", "-q", "-f", "-o", f"{out}/x.tar", slow.at)
            check("goes on" not in life.said(done), what)
            check(os.path.lexists(kept), f"{what}: it was removed")


def test_pack_names_what_it_has_kept_of_a_large_file_that_is_damaged(work):
    source = make_tree(work)
    with Slow(work, "--pages=none", "--toggle=stall", "--hold", source) as slow:
        for kind, options in enumerate(([], ["--zstd"], ["--shards=3"])):
            out, wanted = work.make(f"out{kind}"), work.make(f"wanted{kind}")
            interrupt_pack(slow, f"{out}/x.tar", *options)
            slow.toggle()
            kept = kept_files(out)
            held = [path for path in kept if b"large" in harness.onepot("ls", path).stdout.split()][0]
            whole, times = read(held), os.stat(held)
            at = max(whole.find(read(f"{source}/large")[:4096]), len(whole) // 2)
            for data in whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:], whole:
                life.write(held, data)
                os.utime(held, ns=(times.st_atime_ns, times.st_mtime_ns))
                pack = ["pack", "--resume", "-q", *options, "-o", f"{out}/x.tar", slow.at]
                if data is whole:
                    harness.onepot(*pack)
                    break
                said = life.said(harness.onepot(*pack, status=1))
                check(f"onepot: {held}: large: kept by an interrupted run, but damaged" in said, said)
                check("remove this file, or pack without --resume" in said, said)
                check_equal(kept_files(out), kept, "what is there")
            harness.onepot("pack", "-q", *options, "-o", f"{wanted}/x.tar", slow.at)
            check_equal(outputs(out) == outputs(wanted), True, f"{options}: the bytes")
            slow.toggle()


def test_what_changed_since_an_interrupted_pack_began_is_packed_anew(work):
    """Also where size and time are as they were."""
    more = [("b/one/0", b"1"), ("b/one/1", b"1"), ("b/two/0", b"2"), ("b/two/1", b"2")]
    source, out = make_tree(work, more), work.make("out")

    def rewrite(name, data):
        times = os.stat(f"{source}/{name}")
        with open(f"{source}/{name}", "r+b") as f:
            f.write(data)
        os.utime(f"{source}/{name}", ns=(times.st_atime_ns, times.st_mtime_ns))

    def exchange_folders():
        for names in (("one", "three"), ("two", "one"), ("three", "two")):
            os.rename(*(f"{source}/b/{name}" for name in names))
    changes = {
        "a file": lambda: rewrite("a/011", b"after"),
        "a mode": lambda: os.chmod(f"{source}/a/012", 0o600),
        "an attribute": lambda: os.setxattr(f"{source}/a/013", "user.new", b"value"),
        "folders": exchange_folders,
        "kinds": lambda: (os.unlink(f"{source}/a/014"), os.mkdir(f"{source}/a/014"),
                          os.unlink(f"{source}/a/015"), os.symlink("016", f"{source}/a/015")),
        "names": lambda: (os.rename(f"{source}/a/017", f"{source}/a/018"),
                          os.unlink(f"{source}/a/019"), os.link(f"{source}/a/020", f"{source}/a/019"))}
    with Slow(work, "--pages=none", "--attr-timeout=0", "--entry-timeout=0", "--toggle=stall", "--hold",
              source) as slow:
        # While it is written, but after it was read, and long before its end.
        interrupt_pack(slow, f"{out}/x.tar", files=TREE_FILES + len(more),
                       change=lambda: (rewrite("a/010", b"meanwhile"), wait_until_old(source)))
        slow.toggle()
        kept = kept_files(out)[0]
        for what, change in changes.items():
            check_equal(kept_files(out), [kept], "what is kept")
            harness.run("cp", "-a", kept, f"{out}/saved")
            change()
            done = harness.onepot("pack", "--resume", "-q", "-f", "-o", f"{out}/x.tar", slow.at)
            check("goes on from" in life.said(done), f"{what}: {life.said(done)}")
            harness.onepot("pack", "-q", "-f", "-o", f"{out}/y.tar", slow.at)
            check_equal(read(f"{out}/x.tar") == read(f"{out}/y.tar"), True, f"{what}: the bytes")
            os.rename(f"{out}/saved", kept)


if __name__ == "__main__":
    harness.main(globals())

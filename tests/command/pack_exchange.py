"""onepot pack --shards over a set that exists: the old set or the new one, whatever happens.

Runs of pack are killed, interrupted and out of room at moments that are chosen by chance, and at
each call of one that changes the folder. Afterwards a shard is opened, which changes nothing: the set
is that of before or the new one, whole, or the command says how the exchange is finished. The next
pack finishes it.

Usage: pack_exchange.py CRASH_AT; ONEPOT is set, and the Python module, if there is one, is found.
"""

import fcntl
import os
import random
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import harness  # noqa: E402

ONEPOT = os.path.realpath(os.environ["ONEPOT"])
CRASH_AT = os.path.realpath(sys.argv[1])
MOMENTS = int(os.environ.get("MOMENTS", "30"))  # of each signal
NO_SUCH_CALL, SKIPPED = 99, 77
STRANGER = 54321  # some user
TREES = ("old", "new")
failures = 0


def fail(text):
    global failures
    failures += 1
    print("FAILED:", text, flush=True)


def run(*command, status=0, **options):
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)
    if status is not None and done.returncode != status:
        fail(f"{command} ended with {done.returncode}, and should with {status}: {done.stdout}")
    return done


def start(command, environment=None):
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def pack(tree, shards, *options, folder="set", force="-qf"):
    return [ONEPOT, "pack", force, *options, "--shards", str(shards), "-o", f"{folder}/s-%03d.tar", tree]


def make_trees(files):
    for tree in TREES:
        os.mkdir(tree)
        for i in range(files):
            with open(f"{tree}/{i}", "w") as f:
                f.write(f"{tree} {i}\n" * (i % 7))


def golden(tree, shards):
    """The shards that the tree makes: a folder that never changes."""
    folder = f"{tree}.{shards}"
    if not os.path.isdir(folder):
        os.mkdir(folder)
        run(*pack(tree, shards, folder=folder))
    return folder


def read(folder):
    found = {}
    for name in os.listdir(folder):
        with open(f"{folder}/{name}", "rb") as f:
            found[name] = f.read()
    return found


class Exchange:
    """A set of `before` shards of the old tree is to be one of `after` shards of the new one."""

    def __init__(self, before, after):
        self.before, self.after = before, after
        self.sets = {"old": read(golden("old", before)) if before else {},
                     "new": read(golden("new", after))}

    def reset(self):
        shutil.rmtree("set", ignore_errors=True)
        if self.before:
            shutil.copytree(golden("old", self.before), "set", copy_function=os.link)
        else:
            os.mkdir("set")

    def check(self, what, allowed=TREES, clean=False):
        """Which one is it? `clean`: and nothing besides."""
        found = read("set")
        shards = {name: data for name, data in found.items() if name.endswith(".tar")}
        which = [name for name in allowed if self.sets[name] == shards]
        if not which:
            count = {name: sum(full.get(n) == data for n, data in shards.items())
                     for name, full in self.sets.items()}
            fail(f"{what}: {len(shards)} shards, {count['old']} of {self.before} old, "
                 f"{count['new']} of {self.after} new ones")
            return None
        if clean and len(found) > len(shards):
            fail(f"{what}: besides the set: {sorted(set(found) - set(shards))}")
        return which[0]

    def check_opened(self, what, number, clean=False):
        """Open a shard. `clean`: if nothing was interrupted, nothing is besides the set."""
        if not open_shard(number):
            return self.check(what, clean=clean)
        end_exchange(self.after)
        return self.check(what + ", finished", ("new",))

    def pack_again(self, what):
        run(*pack("new", self.after))
        self.check(what + ", packed again", ("new",), clean=True)


def open_shard(number):
    """Is the set being exchanged? Opening says so, and changes nothing."""
    before = read("set")
    done = run(ONEPOT, "ls", f"set/s-{number:03}.tar", status=None)
    if read("set") != before:
        fail(f"opening changed the folder: {sorted(before)} {sorted(read('set'))}")
    is_busy = "just being replaced" in done.stdout
    if is_busy and (done.returncode != 1 or "onepot pack -f --shards" not in done.stdout):
        fail(f"a shard of an unfinished exchange: {done.returncode} {done.stdout}")
    return is_busy


def end_exchange(shards):
    """A pack that finishes what was interrupted, and then fails."""
    run(*pack("new", shards), status=None,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))


def has_module():
    return run(sys.executable, "-c", "import onepot", status=None).returncode == 0


def open_in_loader(paths):
    """The number of samples that the loader finds, or what it says."""
    done = run(sys.executable, "-c", "import onepot, sys\n"
               "try: print(len(onepot.Archive(sys.argv[1])))\n"
               "except Exception as e: print(e)", paths, status=None)
    return done.stdout.strip()


# ---- moments by chance ----


def take_moment(command, environment, seconds, number):
    """Start it, and send the signal after this time, if it still runs."""
    process = start(command, environment)
    time.sleep(seconds)
    process.send_signal(number)
    try:
        return process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return "a hang"


def duration(exchange, command):
    seconds = []
    for _ in range(7):
        exchange.reset()
        start = time.monotonic()
        run(*command)
        seconds.append(time.monotonic() - start)
    return statistics.median(seconds)


def moments_by_chance(shards):
    exchange = Exchange(shards, shards)
    command = pack("new", shards)
    seconds = duration(exchange, command)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        count = {"old": 0, "new": 0, None: 0}
        for i in range(MOMENTS):
            exchange.reset()
            status = take_moment(command, None, random.uniform(0, 1.1 * seconds), number)
            killed = number == signal.SIGKILL
            what = f"{number.name} after part of {seconds * 1000:.0f} ms, moment {i}"
            if status not in (0, -number):
                fail(f"{what}: ended with {status}")
            if killed and i % 2:
                count[exchange.check_opened(what, random.randrange(shards))] += 1
            elif killed:
                exchange.pack_again(what)
            else:
                # A signal that comes before it is caught kills; then nothing was written.
                count[exchange.check(what, clean=True)] += 1
        print(f"{number.name}: {MOMENTS} moments, {shards} shards:", count, flush=True)


# ---- each call that changes something ----


def crash(n, number, command):
    return run(CRASH_AT, n, int(number), *command, status=None)


def each_call(before, after):
    """Killed there; then one of the shards is opened, each in turn, and the set packed again."""
    exchange = Exchange(before, after)
    count = {"old": 0, "new": 0, None: 0}
    shards = [0, min(before, after, 1), max(before, after) - 1]
    for n in range(1, 10000):
        exchange.reset()
        done = crash(n, signal.SIGKILL, pack("new", after))
        if done.returncode == NO_SUCH_CALL:
            break
        what = f"{before} to {after} shards, killed at call {n} ({done.stdout.strip()})"
        if done.returncode != 0:
            fail(f"{what}: {done.stdout}")
        names = [f"set/s-{i:03}.tar" for i in shards]
        opened = [i for i, name in zip(shards, names) if os.path.exists(name)] or [0]
        count[exchange.check_opened(what, opened[n % len(opened)])] += 1
        exchange.pack_again(what)
    print(f"{before} to {after} shards, killed at each of {n - 1} calls:", count, flush=True)
    if n < 20 or not count["old"] or not count["new"]:
        fail("there should be more moments, of both kinds")


def each_call_with_signals():
    exchange = Exchange(4, 4)
    for number in (signal.SIGINT, signal.SIGTERM):
        n = 1
        while True:
            exchange.reset()
            done = crash(n, number, pack("new", 4))
            if done.returncode == NO_SUCH_CALL:
                break
            exchange.check(f"{number.name} at call {n} ({done.stdout.strip()})", clean=True)
            n += 1
        print(f"{number.name} at each of {n - 1} calls", flush=True)


def stop_behind_commit(exchange):
    """Killed at the first renaming behind the record. Returns its path."""
    for n in range(1, 10000):
        exchange.reset()
        done = crash(n, signal.SIGKILL, pack("new", exchange.after))
        records = [f for f in os.listdir("set") if f.endswith(".exchange")]
        if done.stdout.startswith("rename") and records and os.stat(f"set/{records[0]}").st_size:
            return f"set/{records[0]}"
        if done.returncode != 0:
            sys.exit(f"no moment behind the record was found: {done.stdout}")


def records():
    """A record of which a part is missing, or wrong, counts for nothing; loaders heed a whole one."""
    exchange = Exchange(3, 5)
    record = stop_behind_commit(exchange)
    with open(record, "rb") as f:
        text = f.read()
    for i in range(len(text)):
        for torn in (text[:i], text[:i] + b"\0" * (len(text) - i)):
            if torn != text:
                with open(record, "wb") as f:
                    f.write(torn)
                if open_shard(0):
                    fail(f"a torn record counts: {torn}")
    exchange.pack_again("a torn record")
    stop_behind_commit(exchange)
    before = read("set")
    for options in ((), ("--skip-damaged",)):
        done = run(ONEPOT, "ls", *options, "set", status=1)
        if "just being replaced" not in done.stdout or read("set") != before:
            fail(f"the folder, with {options}: {done.stdout}")
    os.symlink("set/s-000.tar", "latest.tar")  # whose own name is no shard's
    done = run(ONEPOT, "ls", "latest.tar", status=1)
    if "just being replaced" not in done.stdout:
        fail(f"a shard by a link: {done.stdout}")
    os.unlink("latest.tar")
    if not has_module():
        print("not tested: the loader (there is no Python module for this Python)")
        return
    for paths in ("set", "set/s-*.tar"):
        stop_behind_commit(exchange)
        before = read("set")
        if "just being replaced" not in (said := open_in_loader(paths)):
            fail(f"a loader of {paths} is told: {said}")
        if read("set") != before:
            fail(f"a loader of {paths} changed the folder")


def copied():
    """A copy of a folder in which a pack was interrupted counts for nothing, and is told."""
    exchange = Exchange(5, 2)
    record = stop_behind_commit(exchange)
    os.rename("set", "interrupted")
    shutil.copytree("interrupted", "set", symlinks=True)
    before = read("set")
    done = run(ONEPOT, "ls", "set/s-000.tar")
    if record.rsplit("/")[-1] not in done.stdout:
        fail(f"a copied record is not told: {done.stdout}")
    for force in ("-q", "-qf"):
        run(*pack("new", 5, "--strict", force=force, folder="set"), status=None,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    if {n: b for n, b in read("set").items() if n.endswith(".tar")} != \
            {n: b for n, b in before.items() if n.endswith(".tar")}:
        fail("a copied record moves or removes files")
    shutil.rmtree("interrupted")
    exchange.pack_again("a copied record")


def has_open(pid, path):
    try:
        return any(os.path.realpath(f"/proc/{pid}/fd/{fd}") == os.path.realpath(path)
                   for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def waits_for_the_lock():
    """A wait ends by a signal, and by itself with a line that names who holds the lock."""
    exchange = Exchange(3, 3)
    exchange.reset()
    record = "set/.s-%.tar.exchange"
    with open(record, "w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for number in (signal.SIGINT, signal.SIGTERM):
            p = start(pack("new", 3))
            while not has_open(p.pid, record):
                if p.poll() is not None:
                    fail(f"a run that finds the set locked ends with {p.returncode}")
                    return
                time.sleep(0.01)
            p.send_signal(number)
            try:
                if p.wait(5) == 0:
                    fail("it was interrupted, and ends with 0")
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                fail(f"a run that waits for the lock does not hear {number.name}")
        done = run(*pack("new", 3), status=1, timeout=60)
        if f"process {os.getpid()} holds its lock" not in done.stdout:
            fail(f"a run that waits in vain says: {done.stdout}")
        run(ONEPOT, "ls", "set/s-000.tar", timeout=60)  # waits for nothing
    os.unlink(record)
    exchange.check("a lock that is held", ("old",))


def other_users():
    if os.geteuid() != 0:
        print("not tested: other users (it takes root)")
        return
    exchange = Exchange(3, 3)
    record = stop_behind_commit(exchange)
    os.chmod(os.getcwd(), 0o755)
    os.chmod("set", 0o755)

    def as_stranger():
        os.setgroups([])
        os.setgid(STRANGER)
        os.setuid(STRANGER)

    with harness.program_for_others() as program:
        done = run(program, "ls", "set/s-001.tar", status=1, preexec_fn=as_stranger)
    if "user 0 finishes it by: onepot pack -f" not in done.stdout:
        fail(f"another user is told: {done.stdout}")
    for mode in (0o1777, 0o775):  # where a stranger may put a record beside files of others
        os.chmod("set", mode)
        os.chown(record, STRANGER, STRANGER)
        before = read("set")
        if open_shard(0):
            fail(f"a stranger's record counts in a folder {mode:o}")
        with open(record, encoding="utf-8") as held:  # and never let go of it
            fcntl.flock(held, fcntl.LOCK_EX)
            done = run(*pack("new", 2), status=1, timeout=60)
            if f"user {STRANGER}'s" not in done.stdout:
                fail(f"a stranger's record that is locked: {done.stdout}")
        if read("set") != before:
            fail(f"a stranger's record changed the folder {mode:o}")
    os.chown(record, 0, 0)
    if not open_shard(0):
        fail("the owner's record does not count")
    end_exchange(3)
    exchange.check("the owner's record", ("new",))


# ---- ranks ----


def rank_options(rank, world):
    return "--rank", str(rank), "--world", str(world)


def in_step(step, rank, world):
    """As Slurm has it."""
    return {**os.environ, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": str(step),
            "SLURM_NTASKS": str(world), "SLURM_PROCID": str(rank)}


def ranks(shards, world, moments):
    """One of several is killed: nothing is exchanged without it, and the next run is whole."""
    exchange = Exchange(shards, shards)
    by_option = [(pack("new", shards, *rank_options(r, world)), None) for r in range(world)]
    seconds = duration(exchange, by_option[0][0])
    count = {"old": 0, "new": 0, None: 0}
    for i in range(moments):
        exchange.reset()
        steps = [[(pack("new", shards), in_step(step, r, world)) for r in range(world)]
                 for step in (2 * i, 2 * i + 1)]
        commands = by_option if i % 2 else steps[0]
        others = [start(*c) for c in commands[1:]]
        status = take_moment(*commands[0], random.uniform(0, 1.5 * seconds), signal.SIGKILL)
        if any([other.wait() for other in others]):
            fail("a rank that was not killed failed")
        what = f"{world} ranks, one killed, moment {i}"
        which = exchange.check_opened(what, random.randrange(shards))
        if status == 0 and which != "new":
            fail(f"{what}: it ended well, and the set is {which}")
        count[which] += 1
        again = [] if which == "new" else commands[:1] if i % 2 else steps[1]
        if any([other.wait() for other in [start(*c) for c in again]]):
            fail(f"{what}: a rank fails when it is run again")
        exchange.check(what + ", run again", ("new",), clean=bool(again))
    print(f"{moments} moments, one of {world} ranks killed:", count, flush=True)


def last_rank_at_each_call(shards, world):
    exchange = Exchange(shards, shards)
    commands = [pack("new", shards, *rank_options(r, world)) for r in range(world)]
    for n in range(1, 10000):
        exchange.reset()
        for command in commands[:-1]:
            run(*command)
            exchange.check("before the last rank", ("old",))
        done = crash(n, signal.SIGKILL, commands[-1])
        if done.returncode == NO_SUCH_CALL:
            break
        what = f"the last rank killed at call {n} ({done.stdout.strip()})"
        if exchange.check_opened(what, n % shards) == "old":
            run(*commands[-1])
        exchange.check(what + ", run again", ("new",))
    exchange.check("all ranks", ("new",), clean=True)
    print(f"the last of {world} ranks killed at each of {n - 1} calls", flush=True)


def runs_do_not_mix():
    """What a rank of another start, or with other options, had ready is not taken."""
    exchange = Exchange(4, 4)
    exchange.reset()
    run(*pack("new", 4), env=in_step(0, 0, 2))
    run(*pack("new", 4), env=in_step(1, 1, 2))
    exchange.check("ranks of two steps", ("old",))
    run(*pack("new", 4, *rank_options(1, 2), "--align", "4096"))
    exchange.check("ranks with other options", ("old",))
    run(*pack("new", 4), env=in_step(0, 0, 2))
    run(*pack("new", 4), env=in_step(0, 1, 2))
    exchange.check("ranks of one step", ("new",), clean=True)


# ---- no room ----


def full_disk():
    """In a mount namespace of its own, started by `no_room`."""
    exchange = Exchange(3, 4)
    exchange.reset()
    shutil.copytree("set", "disk/set")
    shutil.rmtree("set")
    os.symlink("disk/set", "set")
    room = sum(os.stat(f"{golden('new', 4)}/{f}").st_blocks * 512 for f in os.listdir(golden("new", 4)))
    used = os.statvfs("disk")
    used_bytes = (used.f_blocks - used.f_bfree) * used.f_frsize
    used_inodes = used.f_files - used.f_ffree
    sizes = [*range(0, room - (1 << 17), 1 << 16), *range(room - (1 << 17), room + 16384, 4096)]
    limits = [f"size={used_bytes + extra},nr_inodes=1000" for extra in sizes]
    limits += [f"size=64M,nr_inodes={used_inodes + extra}" for extra in range(8)]
    failed = 0
    for limit in limits:
        run("mount", "-o", f"remount,{limit}", "none", "disk")
        done = run(*pack("new", 4), status=None)
        which = exchange.check(f"a disk with {limit}", ("old",) if done.returncode else ("new",), clean=True)
        failed += which == "old"
        run("mount", "-o", "remount,size=64M,nr_inodes=1000", "none", "disk")
        if which != "old":
            shutil.rmtree("disk/set")
            shutil.copytree(golden("old", 3), "disk/set")
    os.unlink("set")
    print(f"{len(limits)} limits of a disk, {failed} packs failed", flush=True)
    if not 0 < failed < len(limits):
        fail("some packs should have room, and some not")


def no_room():
    """In a folder of its own: without root's rights all files have another owner there."""
    unshare = ["unshare", "--mount", "--propagation", "slave"] + (["--map-root-user"] if os.geteuid() else [])
    os.makedirs("room/disk")
    for tree in TREES:
        shutil.copytree(tree, f"room/{tree}")
    if run(*unshare, "mount", "-t", "tmpfs", "none", "room/disk", status=None).returncode != 0:
        print("not tested: a full disk (it takes a mount of tmpfs)")
        return
    done = run(*unshare, "sh", "-c", 'mount -t tmpfs -o size=64M,nr_inodes=1000 none disk && exec "$@"',
               "-", sys.executable, os.path.realpath(__file__), CRASH_AT, "full_disk", status=None, cwd="room")
    print(done.stdout, end="")
    if done.returncode != 0:
        fail("a full disk, see above")


def refusals():
    exchange = Exchange(3, 3)
    exchange.reset()
    done = run(*pack("new", 3, force="-q"), status=1)
    if "already exists" not in done.stdout:
        fail(f"without -f: {done.stdout}")
    exchange.check("without -f", ("old",), clean=True)
    os.rename("set/s-001.tar", "s-001.tar")
    os.symlink("../s-001.tar", "set/s-001.tar")
    if "symbolic link" not in run(*pack("new", 3), status=1).stdout:
        fail("a link that is called like a shard is not refused")
    exchange.check("a link in the set", ("old",), clean=True)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a shell ignores it
    os.environ["ASAN_OPTIONS"] = "detect_leaks=0:" + os.environ.get("ASAN_OPTIONS", "")  # ptrace
    if sys.argv[2:] == ["full_disk"]:
        full_disk()
        return
    seed = int(os.environ.get("SEED", time.time_ns() % 1000000))
    random.seed(seed)
    print("SEED =", seed)
    make_trees(300)
    refusals()
    moments_by_chance(24)
    ranks(6, 3, max(MOMENTS // 4, 1))
    runs_do_not_mix()
    no_room()
    probe = run(CRASH_AT, 1, 9, "/bin/true", status=None)
    if probe.returncode == SKIPPED:
        print("not tested: each call by itself:", probe.stdout, end="")
        return
    for before, after in ((4, 4), (5, 3), (3, 5), (0, 3)):
        each_call(before, after)
    each_call_with_signals()
    last_rank_at_each_call(4, 3)
    records()
    copied()
    waits_for_the_lock()
    other_users()


# In memory the runs take a quarter of the time.
memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) and shutil.disk_usage("/dev/shm").free > 1 << 28 else None
with tempfile.TemporaryDirectory(dir=memory) as work:
    if sys.argv[2:] != ["full_disk"]:
        os.chdir(work)
    main()
print(f"{failures} failed" if failures else "all as it should be")
sys.exit(failures > 0)

"""Reading ahead of a distant archive: orders of training are recognised, given and recorded, scans
and large files are foreseen, and a reader in no order at all is left alone. Judged by counters."""

import hashlib
import os
import random
import signal
import subprocess
import threading

import harness
import life
from tars import member, write_tar
from harness import check, check_equal, environment, onepot

CLASSES, FILES, FILE_BYTES = 12, 3000, 6000
CACHE = FILES * FILE_BYTES // 4


def path_of(number):
    """The files in the order of ImageFolder: number -> path."""
    per_class = FILES // CLASSES
    return f"train/c{number // per_class:02d}/{number % per_class:05d}.jpg"


def content_of(path):
    return (hashlib.sha256(path.encode()).digest() * (FILE_BYTES // 32 + 1))[:FILE_BYTES]


def make_training_set(work):
    members = [member("train", directory=True)]
    members += [member(f"train/c{i:02d}", directory=True) for i in range(CLASSES)]
    files = map(path_of, range(FILES))
    return work.made_once("train.tar", lambda path: write_tar(
        path, members + [member(name, content_of(name)) for name in files]))


def distant(work, *options, cache=CACHE):
    return work.mount(make_training_set(work), "--cache", str(cache), *options,
                      env=environment(ONEPOT_ASSUME_REMOTE="1"))


def read_file(mount, path):
    """Its bytes are right; and the kernel forgets them, as if it had little memory."""
    fd = os.open(mount / path, os.O_RDONLY)
    try:
        check(os.read(fd, 2 * FILE_BYTES) == content_of(path), f"{path}: other bytes")
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def torchs_order(epoch, rank=0, world=1, seed=0):
    harness.need_command("order")
    done = onepot("order", "--size", str(FILES), "--epoch", str(epoch), "--rank", str(rank),
                  "--world", str(world), "--seed", str(seed))
    return [int(line) for line in done.stdout.split()]


def foreseen(mount):
    harness.wait_for(lambda: mount.stat()["foreseen"] is not None, "counters")
    return mount.stat()["foreseen"]


def settled(mount, condition, what):
    """Counters are a moment behind the reads."""
    harness.wait_for(lambda: condition(mount.stat()["foreseen"]), what)
    return mount.stat()


def reader(mount, numbers):
    return lambda: [read_file(mount, path_of(number)) for number in numbers]


def ranks_in_step(mount, orders, batch=16):
    """Ranks wait for each other behind each batch."""
    step = threading.Barrier(len(orders))

    def rank(numbers):
        try:
            for i, number in enumerate(numbers):
                if i % batch == 0:
                    step.wait(timeout=60)
                read_file(mount, path_of(number))
        except BaseException:
            step.abort()
            raise
    harness.in_threads([lambda numbers=numbers: rank(numbers) for numbers in orders])


def test_an_order_of_torch_is_recognised_and_its_reads_are_served_from_memory(work):
    with distant(work, "--log", work / "log") as mount:
        for epoch in (2, 3):
            reader(mount, torchs_order(epoch))()
        # The first reads of the last epoch make as many.
        stat = settled(mount, lambda f: f["in_order"] >= FILES and f["order"]["epoch"] == 3,
                       "reads in order")
        order = stat["foreseen"]["order"]
        check_equal((order["folder"], order["files"], order["epoch"], order["world"]),
                    ("train", FILES, 3, 1), "the order")
        check(order["reads"] < FILES // 2, f"it took {order['reads']} reads")
        check_equal(stat["foreseen"]["recognised"], 1, "recognised")
        # How many is a matter of who is faster: the archive is no slow one.
        check(stat["foreseen"]["used"] > FILES // 20, f"{stat['foreseen']}")
        check(stat["prefetched_used"] > FILES // 20, f"{stat['prefetched_used']} blocks were used")
        check("the order is recognised" in open(work / "log", encoding="utf-8").read(), "log")


def test_ranks_of_other_nodes_are_left_alone(work):
    with distant(work) as mount:
        ranks_in_step(mount, [torchs_order(1, rank, 8) for rank in (2, 3)])
        stat = settled(mount, lambda f: f["in_order"] > FILES // 8, "reads in order")
        order = stat["foreseen"]["order"]
        check_equal((order["world"], order["local"]), (8, 2), "ranks")
        check(stat["foreseen"]["requests"] <= FILES // 2, f"{stat['foreseen']}")


def test_another_seed_is_told(work):
    with distant(work, "--seed", "42") as mount:
        reader(mount, torchs_order(0, seed=42))()
        stat = settled(mount, lambda f: f["recognised"] == 1, "recognised")
        check_equal(stat["foreseen"]["order"]["epoch"], 0, "epoch")


def test_a_reader_in_no_order_is_left_alone(work):
    numbers = list(range(FILES))
    random.Random(3).shuffle(numbers)
    with distant(work) as mount:
        reader(mount, numbers)()
        stat = mount.stat()
        check_equal(stat["foreseen"]["recognised"], 0, "recognised")
        check(stat["foreseen"]["requests"] <= FILES // 20, f"{stat['foreseen']}")


def test_a_scan_is_foreseen(work):
    with distant(work) as mount:
        reader(mount, range(FILES))()
        stat = settled(mount, lambda f: f["used"] > FILES // 20, "files used")
        check_equal(stat["foreseen"]["kind"], "directory", "kind")


def test_off_is_off(work):
    with distant(work, "--readahead", "off") as mount:
        reader(mount, range(FILES))()
        check_equal(mount.stat()["foreseen"]["requests"], 0, "requests")


def test_a_large_file_is_foreseen(work):
    """The reader waits for what is read ahead, which on a busy machine may come behind it."""
    piece = 4 << 20
    content = os.urandom(1 << 20) * 24
    write_tar(work / "large.tar", [member("large", content)])
    with work.mount(work / "large.tar", "--cache", "64M",
                    env=environment(ONEPOT_ASSUME_REMOTE="1")) as mount:
        with open(mount / "large", "rb", buffering=0) as f:
            for at in range(0, len(content), piece):
                settled(mount, lambda f, at=at: f["bytes"] >= at // 2, "bytes")
                check(f.read(piece) == content[at:at + piece], f"other bytes at {at}")
        check_equal(mount.stat()["foreseen"]["kind"], "file", "kind")


def shuffled_paths(seed):
    paths = [path_of(number) for number in range(FILES)]
    random.Random(seed).shuffle(paths)
    return paths


def test_a_recorded_order_is_replayed(work):
    paths = shuffled_paths(5)
    numbers = {path_of(number): number for number in range(FILES)}
    with distant(work, "--record", work / "record") as mount:
        for path in paths:
            read_file(mount, path)
        check(not os.path.exists(work / "record"), "the record is there too early")
    with open(work / "record", encoding="utf-8") as f:
        check_equal(f.read().split("\n")[:-1], paths, "the record")
    check(not os.path.exists(work / "record.part"), "the unfinished record is still there")
    with distant(work, "--order", work / "record") as mount:
        ranks_in_step(mount, [[numbers[path] for path in paths[i::3]] for i in range(3)])
        stat = settled(mount, lambda f: f["in_order"] == FILES, "reads in order")
        check_equal(stat["foreseen"]["kind"], "given", "kind")
        check(stat["foreseen"]["used"] > FILES // 20, f"{stat['foreseen']}")


def test_an_order_of_numbers_from_standard_input(work):
    numbers = torchs_order(0, seed=7)
    archive = make_training_set(work)
    path = work.make("mnt")
    env = environment(ONEPOT_ASSUME_REMOTE="1")
    try:
        done = subprocess.run(
            [harness.onepot_program(), "mount", archive, "--at", path, "--subdir", "train",
             "--cache", str(CACHE), "--order", "-"],
            input="".join(f"{n}\n" for n in numbers).encode(), env=env, capture_output=True,
            timeout=60, check=False)
        check_equal(done.returncode, 0, f"status, {done.stderr}")
        for number in numbers[:1500]:
            with open(os.path.join(path, path_of(number)[6:]), "rb") as f:
                check(f.read() == content_of(path_of(number)), "other bytes")
        mount = work.mount(env=env)
        settled(mount, lambda f: f["in_order"] == 1500, "reads in order")
    finally:
        onepot("umount", path, env=env, status=None)


def test_wrong_orders_are_refused(work):
    archive = make_training_set(work)
    with open(work / "wrong", "w", encoding="utf-8") as f:
        f.write(path_of(0) + "\n" + "train/none.jpg\n" + "train/no.jpg\n")
    for options, words in ((("--order", work / "wrong"), ("wrong: line 2", "train/none.jpg")),
                           (("--order", work / "nowhere"), ("nowhere",)),
                           (("--order", work.path), ("directory",)),
                           (("--record", work / "no/where"), ("no/where",)),
                           (("--record", work.path), ("directory",))):
        said = onepot("mount", archive, *options, "--at", work / "refused", status=1).stderr
        check_equal(len(said.splitlines()), 1, f"lines of {said}")
        for word in words:
            check(word in said.decode().replace("Is a d", "is a d"), f"'{word}' in {said}")
    onepot("mount", archive, "--seed", "x", "--at", work / "refused", status=2)
    check_equal([name for name in os.listdir(work.path) if name.endswith(".part")], [], "left")


def test_a_list_of_another_version_of_the_data_is_of_use(work):
    """Made where the data lay, on Windows, and a file has gone since."""
    numbers = list(range(0, FILES, 3))
    random.Random(11).shuffle(numbers)
    with open(work / "list", "w", encoding="utf-8", newline="") as f:
        f.write("/data/set/train/c00/gone.jpg\r\n")
        f.writelines(f"/data/set/{path_of(number)}\r\n" for number in numbers)
    env = environment(ONEPOT_ASSUME_REMOTE="1")
    path, archive = work.make("mnt"), make_training_set(work)
    try:
        said = onepot("mount", archive, "--at", path, "--order", work / "list", env=env).stderr
        check_equal(len(said.splitlines()), 1, f"lines of {said}")
        for words in ("line 1:", "c00/gone.jpg", "1 of 1001 lines"):
            check(words in said.decode(), f"'{words}' in {said}")
        mount = work.mount(env=env)
        reader(mount, numbers)()
        settled(mount, lambda f: f["in_order"] == len(numbers), "reads in order")
    finally:
        onepot("umount", path, env=env, status=None)


def test_names_with_a_newline_are_recorded(work):
    names = ["a", "two\nlines", '"quoted"', "return\r"]
    write_tar(work / "odd.tar", [member(name, content_of(name)) for name in names])
    env = environment(ONEPOT_ASSUME_REMOTE="1")
    for options in (("--record", work / "record"), ("--order", work / "record")):
        with work.mount(work / "odd.tar", *options, env=env) as mount:
            for name in names:
                read_file(mount, name)
            settled(mount, lambda f: "--record" in options or f["in_order"] == len(names), "order")
    with open(work / "record", encoding="utf-8", newline="") as f:
        check_equal(len(f.read().split("\n")[:-1]), len(names), "lines of the record")


def test_a_record_survives_signals(work):
    """TERM ends it in order; after KILL there is what had been written."""
    paths = shuffled_paths(9)[:200]
    with distant(work, "--record", work / "term") as mount:
        for path in paths:
            read_file(mount, path)
        os.kill(mount.stat()["daemon_pid"], signal.SIGTERM)
        harness.wait_for(lambda: os.path.exists(work / "term"), "the record")
        with open(work / "term", encoding="utf-8") as f:
            check_equal(f.read().split("\n")[:-1], paths, "the record")
        harness.wait_for(lambda: not harness.mountpoints(mount.path), "the end")
        mount.mounted = False
    with distant(work, "--record", work / "kill") as mount:
        for path in paths:
            read_file(mount, path)
        # It is written now and then: a pause among the reads makes two pieces of them.
        harness.wait_for(lambda: life.read(work / "kill.part").count(b"\n") == len(paths), "what was written")
        pid = mount.stat()["daemon_pid"]
        os.kill(pid, signal.SIGKILL)
        life.wait_gone(pid)
        mount.mounted = False
        onepot("umount", mount.path, env=mount.env)
    with open(work / "kill.part", encoding="utf-8") as f:
        check_equal(f.read().split("\n")[:-1], paths, "what is left")


if __name__ == "__main__":
    harness.main(globals())

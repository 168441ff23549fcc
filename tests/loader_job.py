#!/usr/bin/env python3
"""onepot.stage() in a job of several nodes: processes with places for copies of their own, whose
group is a hub in this process that hands their blocks round, or loses and damages them.

What a node reads from storage is what its program reads of the archive (rchar in /proc counts the
copy as well, so the C tests count it); here all nodes have to end, with the archive's bytes.
"""
import ctypes
import glob
import io
import os
import random
import signal
import socket
import struct
import tarfile
import tempfile
import threading
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


class Job(unittest.TestCase):
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

    def node(self, rank, sock, act, archives):
        """In a process of its own. Its exit status is what happened."""
        os.environ.update(ONEPOT_ASSUME_REMOTE="1", ONEPOT_RUNTIME_DIR=self.place(rank))
        os.makedirs(self.place(rank), mode=0o700)
        group = Group(rank, sock)
        act(rank, group)
        archive = archives.get(rank, self.archive)
        with onepot.stage(archive, group, ["--keep"]):
            copies = glob.glob(os.path.join(self.place(rank), "onepot-stage-*", "*.copy"))
            with open(copies[0], "rb") as copy, open(archive, "rb") as f:
                assert copy.read() == f.read(), "other bytes"
        left = glob.glob(os.path.join(self.place(rank), "*", "*"))
        assert not left, left

    def play(self, act=lambda rank, group: None, damage=None, archives=()):
        """Exit statuses of all nodes, and what they said."""
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
        statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        hub.join()
        try:
            while os.wait():  # the program of a node that was killed
                pass
        except ChildProcessError:
            pass
        texts = []
        for out in said:
            out.seek(0)
            texts.append(out.read().decode())
            out.close()
        return statuses, texts, hub.exchanges

    def test_all_nodes_have_the_archive(self):
        statuses, texts, exchanges = self.play()
        self.assertEqual((statuses, texts), ([0] * NODES, [""] * NODES))
        self.assertEqual(exchanges, 2)  # of shapes, and of one group of runs of 7 chunks

    def test_broadcasts_serve_where_gathering_takes_too_much(self):
        def little(_rank, _group):
            _stage._MEMORY_BYTES = 1
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
        def act(rank, group):
            if rank == 1:
                def kill(_mine):
                    group.exchanges += 1
                    if group.exchanges == 2:
                        os.kill(os.getpid(), signal.SIGKILL)
                group.before = kill
        statuses, texts, _ = self.play(act)
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
                real = _stage._hand_round

                def hand_round(engine, child):
                    group.before = lambda mine: group.exchanges == 0 and (
                        child.kill(), child.wait(), setattr(group, "exchanges", 1))
                    real(engine, child)
                _stage._hand_round = hand_round
        statuses, texts, exchanges = self.play(act)
        self.assertEqual(statuses, [0, 1, 0], texts)
        self.assertLessEqual(exchanges, 2)


if __name__ == "__main__":
    unittest.main()

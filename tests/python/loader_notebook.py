#!/usr/bin/env python3
"""What a person at a prompt meets of the Python module: examples in docstrings, types, help,
progress, Ctrl-C."""
import doctest
import io
import os
import pathlib
import pickle
import pty
import pydoc
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zlib

import onepot
from onepot import _progress

ONEPOT = os.path.abspath(os.environ["ONEPOT"])
HERE = os.path.dirname(os.path.abspath(__file__))
STUB = os.path.join(HERE, "..", "..", "loader", "python", "onepot", "__init__.pyi")


def png(width, height):
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data
                + struct.pack(">I", zlib.crc32(kind + data)))

    rows = b"".join(b"\0" + bytes((x * 5 + y) % 256 for x in range(3 * width))
                    for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def setUpModule():
    global WORK
    WORK = os.path.realpath(tempfile.mkdtemp(prefix="onepot-notebook."))
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")
    os.chdir(WORK)
    with onepot.Writer("train.tar") as writer:
        for folder in ("cat", "dog"):
            for i in range(4):
                writer.add("%s/%d.png" % (folder, i), png(40 + i, 30))


def tearDownModule():
    os.chdir("/")
    shutil.rmtree(WORK)


class Docstrings(unittest.TestCase):
    def test_examples_do_what_they_say(self):
        examples = 0
        for name in ["onepot"] + ["onepot." + name for name in onepot.__all__]:
            thing = eval(name, {"onepot": onepot})
            text = getattr(thing, "__doc__", None) or ""
            if isinstance(thing, (str, tuple)) or ">>>" not in text:
                continue
            found = doctest.DocTestParser().get_doctest(text, {"onepot": onepot}, name, name, 0)
            runner, said = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), []
            runner.run(found, out=said.append)
            self.assertEqual(runner.summarize(False).failed, 0, "".join(said))
            examples += len(found.examples)
        self.assertGreater(examples, 20)

    def test_all_that_is_public_has_one(self):
        for name in onepot.__all__:
            thing = getattr(onepot, name)
            if name in ("IMG_EXTENSIONS", "__version__"):
                continue
            self.assertTrue((thing.__doc__ or "").strip(), name)
            self.assertIn(name.rpartition(".")[2], pydoc.render_doc(thing))
            for member, value in vars(thing).items() if isinstance(thing, type) else ():
                if not member.startswith("_") and callable(value):
                    self.assertTrue(value.__doc__, "%s.%s" % (name, member))

    def test_completion_offers_what_there_is(self):
        archive = onepot.Archive("train.tar")
        for thing, names in ((archive, ("names", "classes", "find", "subset", "close", "digest")),
                             (archive[0], ("name", "label", "data", "read", "archive")),
                             (next(iter(onepot.Loader(archive, 2))), ("tensors", "labels", "data")),
                             (archive[0].data, ("shape", "dtype"))):
            self.assertEqual([name for name in names if name not in dir(thing)], [])


class Prompt(unittest.TestCase):
    def test_everything_says_what_it_is(self):
        dataset = onepot.Dataset("train.tar")
        for thing, text in (
                (dataset[[1, 2]], "<onepot.TensorBatch of 2 samples>"),
                (dataset.__getitems__([1, 2]),
                 "<onepot.SampleList of <onepot.TensorBatch of 2 samples>>"),
                (onepot.Dataset("train.tar", images=onepot.Images(8))[[1]],
                 "<onepot.TensorBatch of 1 samples: uint8 (3, 8, 8)>"),
                (dataset.archive.labels, "<onepot.Buffer: int64 (8,)>")):
            self.assertEqual(repr(thing), text)
        self.assertEqual(dataset.archive.labels.tolist(), 4 * [0] + 4 * [1])

    def test_mistakes_say_what_to_do(self):
        archive = onepot.Archive("train.tar")
        for key in ([1, 2], 1.5, None):
            with self.assertRaisesRegex(TypeError, "a number, a slice or a name.*subset"):
                archive[key]


class Types(unittest.TestCase):
    PROGRAM = '''
import onepot

with onepot.Archive("train.tar", progress=False) as archive:
    first: onepot.Sample = archive[0]
    named: onepot.Sample = archive["cat/0.png"]
    part: onepot.Archive = archive[1:3]
    names: "list[str]" = [sample.name for sample in archive]
    with onepot.Loader(archive, 2, images=onepot.Images(8)) as loader:
        for batch in loader:
            shape: "tuple[int, ...]" = batch.labels.shape
            number: int = batch.epoch
'''
    WRONG = '''
import onepot

archive = onepot.Archive(5)
archive["cat/0.png"].nothing
onepot.Loader(archive)
label: str = archive[0].label
onepot.Archive("a", progress=True)
'''

    @classmethod
    def setUpClass(cls):
        cls.stubs = tempfile.mkdtemp(dir=WORK)
        for path, text in (("torch/__init__.pyi", "class device: ...\n"),
                           ("torch/utils/__init__.pyi", ""),
                           ("torch/utils/data.pyi",
                            "from typing import Generic, TypeVar\nT = TypeVar('T')\n"
                            "class Dataset(Generic[T]): ...\nclass IterableDataset(Dataset[T]): ...\n")):
            path = os.path.join(cls.stubs, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
        os.mkdir(os.path.join(cls.stubs, "onepot"))
        shutil.copy(STUB, os.path.join(cls.stubs, "onepot"))

    def run_tool(self, name, *arguments):
        tool = shutil.which(name)
        if tool is None:
            self.skipTest("%s is not installed (Debian's package mypy)" % name)
        environment = dict(os.environ, MYPYPATH=self.stubs,
                           MYPY_CACHE_DIR=os.path.join(self.stubs, "cache"))
        done = subprocess.run([tool, *arguments], cwd=self.stubs, env=environment,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    def check(self, text):
        with open(os.path.join(self.stubs, "program.py"), "w") as f:
            f.write(text)
        return self.run_tool("mypy", "--strict", "program.py", "onepot/__init__.pyi")

    def test_a_program_and_the_stub_are_strict(self):
        status, said = self.check(self.PROGRAM)
        self.assertEqual(status, 0, said)

    def test_mistakes_are_found(self):
        status, said = self.check(self.WRONG)
        self.assertEqual(status, 1)
        lines = sorted({int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line})
        self.assertEqual(lines, [4, 5, 6, 7, 8], said)

    def test_the_stub_says_what_is_there(self):
        allowed = os.path.join(self.stubs, "allowed")
        with open(allowed, "w") as f:
            # made by the package alone; a name for the stub's own use; where torch is not loaded
            f.write("onepot\\.(Names|SampleList|TensorBatch)\\.__init__\nonepot\\.Path\n"
                    "onepot\\.Buffer\\.__buffer__\nonepot\\.MountPath\\.environment\n")
        status, said = self.run_tool("stubtest", "onepot", "--ignore-missing-stub", "--concise",
                                     "--allowlist", allowed, "--ignore-unused-allowlist")
        self.assertEqual(status, 0, said)


class Mounts(unittest.TestCase):
    """onepot.mount is a path from one cell to the next."""

    def setUp(self):
        if subprocess.run([ONEPOT, "mount", "--help"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode or not os.access(
                              "/dev/fuse", os.W_OK):
            self.skipTest("nothing can be mounted here")
        self.addCleanup(os.environ.__setitem__, "PATH", os.environ["PATH"])
        os.environ["PATH"] = os.path.dirname(ONEPOT) + ":" + os.environ["PATH"]

    def test_a_mount_is_a_path_from_its_creation_until_it_is_closed(self):
        d = onepot.mount("train.tar")
        self.addCleanup(d.close)
        self.assertEqual(sorted(os.listdir(d)), ["cat", "dog"])
        self.assertIsInstance(d, os.PathLike)
        self.assertEqual(os.fspath(d), str(d))
        self.assertEqual(len(os.listdir(pathlib.Path(d) / "cat")), 4)
        self.assertEqual(repr(d), "<onepot.mount of 'train.tar' at %r>" % str(d))
        copy = pickle.loads(pickle.dumps(d))
        self.assertEqual((copy, type(copy)), (d, str))
        pid = os.fork()
        if pid == 0:
            d.close()  # the parent's
            os._exit(0)
        os.waitpid(pid, 0)
        self.assertTrue(os.path.ismount(d))
        with open(os.path.join(d, "cat/0.png"), "rb"):
            with self.assertRaisesRegex(OSError, "use"):
                d.close()
        self.assertFalse(d.closed)
        d.close()
        self.assertTrue(d.closed)
        self.assertFalse(os.path.ismount(d))
        self.assertIn(" was at ", repr(d))
        d.close()
        with onepot.mount("train.tar") as path:
            self.assertIs(type(path), onepot.MountPath)
        self.assertTrue(path.closed)

    def test_it_ends_with_the_interpreter_however_that_ends(self):
        program = ("import onepot, os, sys\nd = onepot.mount('train.tar')\n"
                   "print(d, flush=True)\nsys.stdin.read()\n")
        for end in ("exits", "killed"):
            kernel = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)
            path = os.fsdecode(kernel.stdout.readline()[:-1])
            self.assertTrue(os.path.ismount(path))
            if end == "killed":
                kernel.kill()
            kernel.communicate()
            while os.path.ismount(path):  # by its daemon
                time.sleep(0.01)


class Progress(unittest.TestCase):
    def test_a_function_is_told_of_a_first_pass(self):
        calls = []
        with tarfile.open("other.tar", "w") as tar:
            tar.add("train.tar", "a/b")
        archive = onepot.Archive("other.tar", progress=lambda *call: calls.append(call))
        self.assertEqual(len(archive), 1)
        self.assertGreaterEqual(len(calls), 1)
        path, doing, done, total = calls[-1]
        self.assertEqual((path, doing), ("other.tar", "indexing"))
        self.assertLessEqual(done, total)
        onepot.Archive("train.tar", progress=lambda *call: self.fail("it has an index"))

    def test_what_it_raises_is_raised(self):
        with tarfile.open("another.tar", "w") as tar:
            tar.add("train.tar", "a/b")
        with self.assertRaises(ZeroDivisionError):
            onepot.Archive("another.tar", progress=lambda *call: 1 / 0)
        self.assertEqual(len(onepot.Archive("another.tar", progress=False)), 1)
        with self.assertRaises(TypeError):
            onepot.Archive("another.tar", progress=True)

    def test_it_is_a_line_on_a_terminal(self):
        before = sys.stderr
        master, slave = pty.openpty()
        try:
            with open(slave, "w") as sys.stderr:
                line = _progress.of_argument(None)
                line._began += 3600
                line("some/a.tar", "indexing", 1, 3 << 20)  # too early
                line._began -= 3601
                line("some/a.tar", "indexing", 3 << 19, 3 << 20)
                line.end()
                self.assertIs(_progress.of_argument(False), None)
                expected = b"\r\033[Ka.tar: indexing: 1.5 MiB of 3.0 MiB (50 %)\r\033[K"
                said = b""
                while len(said) < len(expected):  # it may come in pieces
                    said += os.read(master, 1000)
            sys.stderr = io.StringIO()
            self.assertIs(_progress.of_argument(None), None)
        finally:
            sys.stderr = before
            os.close(master)
        self.assertEqual(said, expected)

    def test_a_pickle_opens_in_silence(self):
        archive = onepot.Archive("train.tar", progress=lambda *call: None)
        self.assertEqual(len(pickle.loads(pickle.dumps(archive))), 8)


class Stops(unittest.TestCase):
    """An error in progress ends the first pass, and nothing of that is left."""

    def stop(self, path, error):
        calls = []

        def told(*call):
            calls.append(call)
            raise error

        def things():
            return (sorted(os.listdir(WORK)), sorted(os.listdir("/proc/self/fd")),
                    len(os.listdir("/proc/self/task")))

        before = things()
        used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        with self.assertRaises(type(error)) as raised:
            onepot.Archive(path, progress=told)
        self.assertIs(raised.exception, error)
        end = time.monotonic() + 60
        while things() != before and time.monotonic() < end:
            time.sleep(0.001)  # the kernel lists a thread for a moment after it was joined
        self.assertEqual(things(), before)
        self.assertEqual(len(calls), 1)
        with self.assertRaises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - used

    def test_indexing_is_ended(self):
        with open("many.tar", "wb") as f:
            header = tarfile.TarInfo("x" * 90).tobuf()
            for _ in range(32):
                f.write(header * 4096)
        for error in ZeroDivisionError("mine"), KeyboardInterrupt():
            self.stop("many.tar", error)
        os.unlink("many.tar")

    def test_unpacking_is_ended(self):
        # All of it would take many seconds.
        with open("zeros.tar.gz", "wb") as f:
            info = tarfile.TarInfo("zeros")
            info.size = 16 << 30
            packer = zlib.compressobj(1, zlib.DEFLATED, 31)
            f.write(packer.compress(info.tobuf()) + packer.flush(zlib.Z_FULL_FLUSH))
            f.write(packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH))
            again = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
            f.write(again * (16 << 10))
        self.assertLess(self.stop("zeros.tar.gz", KeyboardInterrupt()), 2)
        os.unlink("zeros.tar.gz")


class Interrupts(unittest.TestCase):
    def test_ctrl_c_ends_a_first_pass(self):
        os.mkfifo("begun")
        script = ("import onepot, os\nlast = []\n"
                  "def told(*call):\n"
                  "    if not last:\n"
                  "        last.append(os.open('begun', os.O_WRONLY))\n"
                  "try:\n    onepot.Archive('long.tar', progress=told)\n"
                  "except KeyboardInterrupt:\n    print('interrupted')\n")
        with open("long.tar", "wb") as f:  # more headers than are read before it comes
            header = tarfile.TarInfo("x" * 90).tobuf()
            for _ in range(32):
                f.write(header * 4096)
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as process:
            with open("begun", "rb") as begun:
                process.send_signal(signal.SIGINT)
                begun.read()
            out, err = process.communicate()
        self.assertIn("interrupted", out, err)


if __name__ == "__main__":
    unittest.main()

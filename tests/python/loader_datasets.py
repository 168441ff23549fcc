#!/usr/bin/env python3
"""The datasets of the Python module, the writer and the mount: with torch where it is installed,
and without it."""
import collections.abc
import contextlib
import copy
import ctypes
import errno
import io
import multiprocessing
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

import onepot

try:
    import torch
    from torch.utils.data import BatchSampler, DataLoader
except ImportError:
    torch = None
try:
    import torchvision
    from PIL import Image
except ImportError:
    torchvision = None

ONEPOT = os.environ["ONEPOT"]
FILES = 101


def content(i):
    return b"%05d" % i * (i % 11)


def setUpModule():
    global WORK, TAR, ZSTD, EQUAL
    WORK = tempfile.mkdtemp(prefix="onepot-datasets.", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")
    TAR, ZSTD, EQUAL = (os.path.join(WORK, name) for name in ("a.tar", "a.tar.zst", "equal.tar"))
    for path, level in ((TAR, 0), (ZSTD, 3)):
        with onepot.Writer(path, sync=False, zstd=level) as writer:
            for i in range(FILES):
                writer.add("class%d/%03d.bin" % (i // 30, i), content(i))
    with onepot.Writer(EQUAL, sync=False) as writer:
        for i in range(20):
            writer.add("c/%02d" % i, bytes([i]) * 12)


def tearDownModule():
    shutil.rmtree(WORK)


def twice(data):
    return bytes(data) * 2


def lambda_free(image):
    return image.size[0]


def negative(label):
    return -label


class Lengths(onepot.Dataset):
    """What users write: one sample made of one of ours."""

    def __getitem__(self, index):
        data, label = super().__getitem__(index)
        return len(data), label


class AtOnce(Lengths):
    def __getitems__(self, indices):
        return [("at once", index) for index in indices]


def decoder(function):
    """A capsule of a function that a loader's threads call, and what keeps it."""
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p,
                            ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t,
                            ctypes.POINTER(ctypes.c_size_t))
    in_c, name = kind(function), ctypes.c_char_p(b"onepot.decode")
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p,
                                                   ctypes.c_void_p)
    return new(ctypes.cast(in_c, ctypes.c_void_p), name, None), (in_c, name)


def in_child(dataset, queue):
    data, label = dataset[40]
    queue.put((bytes(data), label, len(dataset)))


class Without(unittest.TestCase):
    """What needs no torch."""

    def test_without_torch_samples_are_buffers(self):
        script = """if True:
            import sys, pickle, onepot
            dataset = onepot.Dataset(%r)
            data, label = dataset[33]
            assert (bytes(data), label) == (b"00033" * 0, 1), (bytes(data), label)
            batch = onepot.collate(dataset.__getitems__([5, 2]))
            assert [bytes(t) for t in batch.tensors()] == [b"00005" * 5, b"00002" * 2]
            assert (batch.labels.tolist(), batch.indices.tolist()) == ([0, 0], [5, 2])
            assert batch.valid.tolist() == [True, True]
            other = pickle.loads(pickle.dumps(batch))
            assert bytes(other[1]) == bytes(batch[1]) == b"00002" * 2
            stream = onepot.IterableDataset(%r, 10, rank=0, world_size=1)
            assert sum(len(batch) for batch in stream) == %d
            equal = onepot.Dataset(%r)[range(4)].data
            assert equal.shape == (4, 12), equal.shape
            assert "torch" not in sys.modules and "numpy" not in sys.modules
            """ % (TAR, TAR, FILES, EQUAL)
        done = subprocess.run([sys.executable, "-c", script], timeout=240)
        self.assertEqual(done.returncode, 0)

    def test_names_are_a_lazy_sequence(self):
        names = onepot.Archive(TAR).names
        self.assertEqual((len(names), names[0], names[-1]),
                         (FILES, "class0/000.bin", "class3/100.bin"))
        with self.assertRaises(IndexError):
            names[FILES]
        self.assertEqual(names[1:4], ["class0/001.bin", "class0/002.bin", "class0/003.bin"])
        self.assertEqual(names[:-FILES - 1:-50], [names[100], names[50], names[0]])
        self.assertEqual((names.index(names[40]), names.count(names[40]), names.count("x")),
                         (40, 1, 0))
        with self.assertRaises(ValueError):
            names.index("x")
        self.assertIn("class3/100.bin", names)
        self.assertIsInstance(names, collections.abc.Sequence)
        self.assertEqual(list(pickle.loads(pickle.dumps(names))), list(names))

    def test_a_slice_of_an_archive_is_an_archive(self):
        archive = onepot.Archive(TAR)
        part = archive[90:10:-40]
        self.assertEqual(list(part.names), [archive.names[90], archive.names[50]])
        self.assertEqual(list(pickle.loads(pickle.dumps(part)).names), list(part.names))
        self.assertEqual((len(archive[:]), len(archive[5:5]), archive[-1].index),
                         (FILES, 0, FILES - 1))
        for wrong in (FILES, -FILES - 1, 2**70):
            with self.assertRaises(IndexError):
                archive[wrong]
        with self.assertRaises(TypeError):
            archive[1.5]
        self.assertEqual(repr(part), "<onepot.Archive %r: 2 samples, 4 classes>" % TAR)

    def test_samplers_say_what_they_were_given_and_pickle(self):
        data = range(11)
        sampler = onepot.DistributedSampler(data, 3, 1, seed=4, drop_last=True)
        sampler.load_state_dict({"epoch": 6, "yielded": 1})
        for one in (sampler, pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
            self.assertEqual((one.dataset, one.num_replicas, one.rank, one.shuffle, one.seed,
                              one.drop_last, one.epoch, one.num_samples, one.total_size),
                             (data, 3, 1, True, 4, True, 6, 3, 9))
            self.assertEqual(one.state_dict(), {"epoch": 6, "yielded": 1})
        self.assertEqual(onepot.DistributedSampler(11, 3, 0).total_size, 12)
        other = pickle.loads(pickle.dumps(onepot.DistributedSampler(99, 2, 1, block=3, window=2)))
        self.assertEqual(list(other), list(onepot.DistributedSampler(99, 2, 1, block=3, window=2)))

    def test_what_a_transform_writes_is_not_in_the_next_epoch(self):
        def inverted(data):
            view = memoryview(data.numpy() if torch else data)
            view[:] = bytes(255 - byte for byte in view)
            return bytes(view)
        for path in (TAR, ZSTD):
            dataset = onepot.Dataset(path, transform=inverted)
            for _ in range(2):
                self.assertEqual(dataset[10][0], bytes(255 - byte for byte in content(10)))
                self.assertEqual(dataset[[10]][0][0], dataset[10][0])
            self.assertEqual(bytes(dataset.archive[10]), content(10))

    def test_views_of_samples_are_read_only(self):
        for path in (TAR, ZSTD):
            sample = onepot.Archive(path)[10]
            self.assertTrue(memoryview(sample.data).readonly)
            with self.assertRaises(TypeError):
                memoryview(sample.data)[0] = 1
            with self.assertRaises((TypeError, BufferError)):
                io.BytesIO(b"x").readinto(sample.data)
            memoryview(sample.read())[0] = 1
            self.assertEqual(bytes(sample), content(10))

    def test_samples_are_read_in_pieces(self):
        sample = onepot.Archive(TAR)[10]
        for offset, size in ((0, 7), (3, 9), (45, 99), (50, 1), (99, 1), (5, 0)):
            self.assertEqual(bytes(sample.read(offset, size)), content(10)[offset:offset + size])
        self.assertEqual(bytes(sample.read(offset=3)), content(10)[3:])
        for offset, size in ((-1, 1), (0, -1)):
            with self.assertRaises(ValueError):
                sample.read(offset, size)

    def test_an_archive_is_mapped_once_and_shared(self):
        path = os.path.join(WORK, "once.tar")
        with onepot.Writer(path, sync=False) as writer:
            writer.add("c/x", bytes(1 << 20))
        archive = onepot.Archive(path)
        dataset, views = onepot.Dataset(archive), [sample.data for sample in archive]
        self.assertEqual((len(views), len(dataset[0][0])), (1, 1 << 20))
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
            maps = [line.split()[1] for line in f if line.rstrip().endswith(path)]
        self.assertTrue(maps)
        self.assertFalse([m for m in maps if "w" in m], maps)

    def test_a_dataset_takes_its_root_by_that_name(self):
        self.assertEqual(len(onepot.Dataset(root=TAR)), FILES)
        for wrong in ({}, {"archive": TAR, "root": TAR}):
            with self.assertRaises(TypeError):
                onepot.Dataset(**wrong)

    def test_samples_pickle_by_reference(self):
        sample = onepot.Archive(TAR)[41]
        other = pickle.loads(pickle.dumps(sample))
        self.assertEqual((other.name, bytes(other)), (sample.name, content(41)))

    def test_how_many_samples_fit(self):
        mean, worst = onepot.Archive(EQUAL).batch_for(970)
        self.assertEqual((mean, worst), (10, 10))  # 64 and 33 bytes each
        mean, worst = onepot.Archive(TAR).batch_for(1000)
        self.assertGreater(mean, worst)
        self.assertEqual(onepot.Archive(TAR).batch_for(10), (0, 0))

    def test_a_batch_names_what_it_can_not_read(self):
        path = os.path.join(WORK, "cut.tar")
        shutil.copy(TAR, path)
        dataset = onepot.Dataset(path)
        os.truncate(path, 512)
        with self.assertRaisesRegex(OSError, "cut.tar"):
            dataset[[1, 2, 3]]
        with self.assertRaises(IndexError):
            dataset[[FILES]]
        self.assertEqual(len(dataset[[]]), 0)

    def test_workers_of_a_sampler_share_its_order(self):
        whole = list(onepot.DistributedSampler(100, 2, 1))
        parts = [list(onepot.DistributedSampler(100, 2, 1, worker=w, workers=3))
                 for w in range(3)]
        for w in range(3):
            self.assertEqual(parts[w], whole[w::3])

    def test_a_loader_decodes_by_a_function_in_c(self):
        archive = onepot.Archive(TAR)
        with self.assertRaises(TypeError):
            onepot.Loader(archive, 4, 0, 1, decode=twice)

        def turned(_ctx, sample, data, length, out, room, ret_len):
            made = b"%d:" % sample + ctypes.string_at(data, length)[::-1]
            ctypes.memmove(out, made, min(len(made), room))
            ret_len[0] = len(made)
            return 0
        capsule, _kept = decoder(turned)
        loader = onepot.Loader(archive, 4, 0, 1, decode=capsule, decoded_bytes=100)
        for batch in loader:
            for i, data in zip(memoryview(batch.indices), batch.tensors()):
                self.assertEqual(bytes(data), b"%d:" % i + content(i)[::-1])
        capsule, _kept = decoder(lambda *_: -errno.EIO)
        with self.assertRaisesRegex(OSError, "class"):
            next(iter(onepot.Loader(archive, 4, 0, 1, decode=capsule, decoded_bytes=100)))

    def test_a_wait_for_a_batch_ends_by_ctrl_c(self):
        begun, go_on = threading.Event(), threading.Event()

        def slow(*_):
            begun.set()
            go_on.wait()
            return 0

        def interrupt():
            begun.wait()
            time.sleep(0.3)  # most likely it waits by then; if not, it is interrupted before
            os.kill(os.getpid(), signal.SIGINT)
        capsule, _kept = decoder(slow)
        thread = threading.Thread(target=interrupt)
        with self.assertRaises(KeyboardInterrupt):
            loader = onepot.Loader(onepot.Archive(TAR), 4, 0, 1, decode=capsule, decoded_bytes=9)
            thread.start()
            next(iter(loader))
        self.assertFalse(go_on.is_set())
        go_on.set()
        thread.join()
        self.assertEqual(len(next(iter(loader))), 4)

    def test_gathering_from_slow_storage(self):
        script = """if True:
            import onepot
            archive = onepot.Archive(%r)
            order = list(range(%d))[::-1]
            batch = onepot.Dataset(archive)[order]
            assert [bytes(t) for t in batch.tensors()] == [bytes(archive[i]) for i in order]
            """ % (TAR, FILES)
        done = subprocess.run([sys.executable, "-c", script], timeout=240,
                              env={**os.environ, "ONEPOT_ASSUME_REMOTE": "1"})
        self.assertEqual(done.returncode, 0)


class Writers(unittest.TestCase):
    def test_what_was_written_is_read_by_tar_and_by_onepot(self):
        path = os.path.join(WORK, "written.tar")
        files = {"a/b/%d" % i: os.urandom(i * 100) for i in range(20)}
        for options in ({}, {"zstd": 3}, {"align": 4096}):
            with onepot.Writer(path, overwrite=True, sync=False, **options) as writer:
                for name, data in files.items():
                    writer.add(name, data, mode=0o640, mtime=1.5)
            archive = onepot.Archive(path)
            self.assertEqual({s.name: bytes(s) for s in archive}, files)
            subprocess.run([ONEPOT, "verify", path], check=True, stdout=subprocess.DEVNULL)
        out = subprocess.run(["tar", "-tvf", path], check=True, stdout=subprocess.PIPE)
        self.assertEqual(out.stdout.count(b"-rw-r-----"), 20)

    def test_an_exception_leaves_nothing(self):
        folder = os.path.join(WORK, "writer")
        os.mkdir(folder)
        path = os.path.join(folder, "x.tar")
        with self.assertRaises(ZeroDivisionError):
            with onepot.Writer(path) as writer:
                writer.add("a", b"")
                1 // 0
        self.assertEqual(os.listdir(folder), [])
        writer = onepot.Writer(path)
        del writer
        self.assertEqual(os.listdir(folder), [])

    def test_errors_have_their_kind(self):
        path = os.path.join(WORK, "errors.tar")
        with onepot.Writer(path, sync=False) as writer:
            for name in ("", "/a", "a/", "a//b", "../a", "a/./b", "x" * 256):
                with self.assertRaises(ValueError):
                    writer.add(name, b"1")
            writer.add("good", b"1")
        with self.assertRaises(ValueError):
            writer.add("late", b"")
        writer.close()
        self.assertEqual(onepot.Archive(path).names[0], "good")
        with self.assertRaises(FileExistsError):
            onepot.Writer(path)
        for options in ({"zstd": 23}, {"block": 5000}, {"align": 100}, {"zstd": 1, "align": 4096}):
            with self.assertRaises(ValueError):
                onepot.Writer(path, overwrite=True, **options)

    def test_a_name_that_conflicts_spoils_nothing(self):
        path = os.path.join(WORK, "conflicts.tar")
        with onepot.Writer(path, sync=False) as writer:
            writer.add("a/b", b"1")
            for name in ("a", "a/b", "a/b/c"):
                with self.assertRaises(FileExistsError):
                    writer.add(name, b"2")
            writer.add("a/c", b"3")
        self.assertEqual([bytes(sample) for sample in onepot.Archive(path)], [b"1", b"3"])

    def test_the_error_that_ended_a_writer_is_told_again(self):
        path = os.path.join(WORK, "ended.tar")
        writer = onepot.Writer(path, sync=False)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
        try:
            with self.assertRaises(OSError) as first:
                writer.add("a", bytes(16 << 20))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        self.assertEqual(first.exception.errno, errno.EFBIG)
        for end in (lambda: writer.add("c", b"3"), writer.close):
            with self.assertRaisesRegex(OSError, "earlier error"):
                end()
        self.assertFalse(os.path.exists(path))

    def test_a_child_does_not_end_what_its_parent_writes(self):
        path = os.path.join(WORK, "forked.tar")
        writer = onepot.Writer(path, sync=False)
        writer.add("a", b"1")
        child = os.fork()
        if child == 0:
            with contextlib.suppress(ValueError):
                writer.add("b", b"2")
                os._exit(1)
            del writer
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        writer.close()
        self.assertEqual(list(onepot.Archive(path).names), ["a"])


@unittest.skipUnless(os.path.exists("/dev/fuse") and os.geteuid() == 0, "no /dev/fuse, or not root")
class Mounts(unittest.TestCase):
    def setUp(self):
        if subprocess.run([ONEPOT, "mount", "--help"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False).returncode:
            self.skipTest("built without FUSE")
        self.addCleanup(os.environ.__setitem__, "PATH", os.environ["PATH"])
        os.environ["PATH"] = os.path.dirname(ONEPOT) + ":" + os.environ["PATH"]

    def test_a_mount_lasts_as_long_as_its_block(self):
        with onepot.mount(TAR) as folder:
            with open(os.path.join(folder, "class1", "040.bin"), "rb") as f:
                self.assertEqual(f.read(), content(40))
        self.assertFalse(os.path.ismount(folder))
        outer = os.path.join(WORK, "outer.tar")
        with tarfile.open(outer, "w") as tar:
            tar.add(TAR, "in.tar")
            tar.add(TAR, "other")
        for nested, expected in ((True, "in"), ("oth*", "other")):
            with onepot.mount(outer, nested=nested) as folder:
                with open(os.path.join(folder, expected, "class1", "040.bin"), "rb") as f:
                    self.assertEqual(f.read(), content(40))
        with self.assertRaisesRegex(OSError, "nowhere.tar"):
            with onepot.mount(os.path.join(WORK, "nowhere.tar")):
                pass

    def test_the_path_of_a_mount_may_have_any_character(self):
        place = os.path.join(WORK, "it's $HOME\n`a` place")
        with onepot.mount(TAR, at=place) as folder:
            self.assertEqual(folder, place)
            self.assertEqual(len(os.listdir(folder)), 1 + (FILES - 1) // 30)

    @unittest.skipUnless(os.uname().machine in ("x86_64", "aarch64"), "no short circuit here")
    def test_children_may_read_without_the_daemon(self):
        program = """
import sys
with open(sys.argv[1] + "/class1/040.bin", "rb") as f:
    assert f.read() == b"00040" * 7
with open("/proc/self/maps") as f:
    print(f.read())
"""
        for options, expected in ((), ["LD_PRELOAD", "ONEPOT_PRELOAD", "ASAN_OPTIONS"]), (("--intercept=off",), []):
            with onepot.mount(TAR, options=options) as folder:
                self.assertIsInstance(folder, onepot.MountPath)
                self.assertEqual(list(folder.environment), expected)
                maps = subprocess.run([sys.executable, "-c", program, folder],
                                      env={**os.environ, **folder.environment}, check=True,
                                      stdout=subprocess.PIPE).stdout.decode()
                for name in expected[:2]:
                    self.assertIn(folder.environment[name].split(":")[-1], maps)
                # The table that the mount's daemon hands out.
                self.assertEqual("memfd:onepot-io" in maps, bool(expected), maps)

    def test_workers_that_are_spawned_get_it_by_the_environment(self):
        with onepot.mount(TAR) as folder:
            before = dict(os.environ)
            os.environ.update(folder.environment)
            try:
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    said = [pool.apply(os.getenv, (name,)) for name in ("LD_PRELOAD", "ONEPOT_PRELOAD")]
            finally:
                os.environ.clear()
                os.environ.update(before)
            # Where the library is, LD_PRELOAD no longer names it.
            self.assertEqual(said, [before.get("LD_PRELOAD"), folder.environment.get("ONEPOT_PRELOAD")])


@unittest.skipUnless(torch, "torch is not installed")
class Datasets(unittest.TestCase):
    def check_batch(self, batch):
        for index, tensor, label in zip(batch.indices.tolist(), batch.tensors(),
                                        batch.labels.tolist()):
            self.assertEqual(bytes(tensor.numpy()), content(index))
            self.assertEqual(label, index // 30)
        return batch.indices.tolist()

    def loaders(self, dataset, workers, **options):
        """As this torch can have whole batches."""
        sampler = onepot.DistributedSampler(dataset, 1, 0, seed=3)
        if hasattr(torch.utils.data._utils.fetch, "_MapDatasetFetcher") and \
                int(torch.__version__.split(".")[0]) >= 2:
            yield DataLoader(dataset, batch_size=10, sampler=sampler, num_workers=workers,
                             collate_fn=onepot.collate, **options)
        yield DataLoader(dataset, batch_size=None, num_workers=workers,
                         sampler=BatchSampler(sampler, 10, False), **options)

    def test_batches_come_through_torchs_dataloader(self):
        expected = list(onepot.DistributedSampler(FILES, 1, 0, seed=3))
        dataset = onepot.Dataset(TAR)
        self.assertIsInstance(dataset, torch.utils.data.Dataset)
        for workers, options in ((0, {}), (4, {"persistent_workers": True})):
            for loader in self.loaders(dataset, workers, **options):
                for _ in range(2):
                    seen = []
                    for batch in loader:
                        seen += self.check_batch(batch)
                    self.assertEqual(seen, expected)

    def test_memory_of_workers_is_used_again_when_its_last_view_is_gone(self):
        dataset = onepot.Dataset(TAR)
        for loader in self.loaders(dataset, 1, persistent_workers=True):
            for _ in range(5):
                for batch in loader:
                    self.check_batch(batch)
            (_, slabs), = onepot._shared._known.values()
            self.assertLess(len(slabs), 9)
            batches = list(loader)  # nothing is used again
            views = [view for batch in batches for view in batch.tensors()]
            order = [i for batch in batches for i in self.check_batch(batch)]
            del batch, batches
            for _ in loader:
                pass
            self.assertEqual([bytes(view.numpy()) for view in views],
                             [content(i) for i in order])
            del loader
            onepot._shared._known.clear()
        # More than a worker has slabs.
        sampler = BatchSampler(range(FILES), 1, False)
        kept = list(DataLoader(dataset, batch_size=None, sampler=sampler, num_workers=1))
        self.assertEqual([self.check_batch(batch) for batch in kept], [[i] for i in range(FILES)])

    def test_a_worker_may_keep_what_it_sent(self):
        class Keeping(torch.utils.data.IterableDataset):
            def __iter__(_):
                dataset, kept = onepot.Dataset(TAR), []
                for i in range(FILES):
                    kept = kept[-20:] + [dataset[[i, FILES - 1 - i]]]
                    yield kept[-1]
                    for batch, at in zip(reversed(kept), range(i, -1, -1)):
                        self.assertEqual(self.check_batch(batch), [at, FILES - 1 - at])
        seen = [self.check_batch(batch) for batch in
                DataLoader(Keeping(), batch_size=None, num_workers=1)]
        self.assertEqual(seen, [[i, FILES - 1 - i] for i in range(FILES)])

    def test_shared_memory_is_in_use_until_both_sides_are_done_with_it(self):
        shared = onepot._shared
        memory, place = shared.take(1000)
        flags = place.slab.flags
        self.assertEqual(list(flags), [1, 0])
        received = shared.receive(*shared.send(place))
        child = os.fork()
        if child == 0:
            del memory, place, received
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(list(flags), [1, 1])
        del memory, place
        self.assertEqual(list(flags), [0, 1])
        self.assertIsNot(shared.take(1000)[1].slab.flags, flags)
        del received
        self.assertEqual(list(flags), [0, 0])
        self.assertIs(shared.take(1000)[1].slab.flags, flags)
        shared._known.clear()

    def test_memory_of_one_process_is_used_again_when_its_last_view_is_gone(self):
        path = os.path.join(WORK, "mapped.tar")
        with onepot.Writer(path, sync=False, overwrite=True) as writer:
            for i in range(12):
                writer.add("%02d" % i, bytes([i]) * (300000 + i))
        dataset = onepot.Dataset(path)
        kept = [dataset[[i]] for i in range(12)]  # more than there are slabs
        view = kept[3][0]
        del kept
        for i in range(12):
            batch = dataset[[i, 11 - i]]
            self.assertEqual(bytes(batch[0].numpy()), bytes([i]) * (300000 + i))
            self.assertEqual(bytes(batch[1].numpy()), bytes([11 - i]) * (300011 - i))
        self.assertEqual(bytes(view.numpy()), bytes([3]) * 300003)
        self.assertLess(len(onepot._shared._alone.slabs), 5)

    def test_processes_of_all_kinds(self):
        dataset = onepot.Dataset(TAR)
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                queue = context.SimpleQueue()
                child = context.Process(target=in_child, args=(dataset, queue))
                child.start()
                self.assertEqual(queue.get(), (content(40), 1, FILES))
                child.join(240)
        loader = next(self.loaders(dataset, 1, multiprocessing_context="spawn"))
        self.assertEqual(sum(len(self.check_batch(batch)) for batch in loader), FILES)

    def test_a_sample_is_a_tensor_that_may_be_written_to(self):
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data, label = onepot.Dataset(TAR)[40]
        self.assertEqual((data.dtype, bytes(data.numpy()), label), (torch.uint8, content(40), 1))
        data += 1
        self.assertEqual(len(onepot.Dataset(TAR)[0][0]), 0)

    def test_transforms_and_lists_of_samples(self):
        dataset = onepot.Dataset(TAR, transform=twice, target_transform=negative)
        self.assertEqual(dataset[40], (content(40) * 2, -1))
        self.assertEqual(dataset[torch.tensor(40)], dataset[40])
        self.assertEqual(dataset[[40, 5]], [(content(40) * 2, -1), (content(5) * 2, 0)])
        pairs = onepot.Dataset(TAR).__getitems__([40, 5])
        self.assertEqual([(bytes(d.numpy()), n) for d, n in pairs],
                         [(content(40), 1), (content(5), 0)])
        part = torch.utils.data.Subset(onepot.Dataset(EQUAL), [3, 9])
        (data, labels), = DataLoader(part, batch_size=2)
        self.assertEqual((data.tolist(), labels.tolist()), ([[3] * 12, [9] * 12], [0, 0]))

    def test_a_subclass_makes_samples_of_its_own(self):
        batches = list(DataLoader(Lengths(TAR), batch_size=40, num_workers=1))
        self.assertEqual([int(n) for sizes, _ in batches for n in sizes],
                         [len(content(i)) for i in range(FILES)])
        self.assertEqual(Lengths(TAR)[12], (5, 0))
        self.assertEqual(AtOnce(TAR).__getitems__([3]), [("at once", 3)])
        self.assertIsInstance(onepot.Dataset(TAR).__getitems__([3]), onepot.SampleList)

    def test_a_sampler_is_one_of_torchs(self):
        sampler = onepot.DistributedSampler(10, 2, 0)
        self.assertIsInstance(sampler, torch.utils.data.DistributedSampler)
        self.assertIsInstance(pickle.loads(pickle.dumps(sampler)), type(sampler))

    def test_samples_of_one_size_are_a_matrix(self):
        batch = onepot.Dataset(EQUAL)[torch.tensor([7, 2])]
        self.assertEqual(batch.data.tolist(), [[7] * 12, [2] * 12])
        self.assertEqual(batch.to(torch.int64).slab.dtype, torch.int64)


@unittest.skipUnless(torch, "torch is not installed")
class Streams(unittest.TestCase):
    def test_batches_are_the_same_for_any_number_of_workers(self):
        dataset = onepot.IterableDataset(TAR, 7, rank=1, world_size=2, seed=4)
        self.assertIsInstance(dataset, torch.utils.data.IterableDataset)
        dataset.set_epoch(3)
        sampler = onepot.DistributedSampler(FILES, 2, 1, seed=4)
        sampler.set_epoch(3)
        for workers in (0, 1, 3):
            loader = DataLoader(dataset, batch_size=None, num_workers=workers)
            batches = [batch.indices.tolist() for batch in loader]
            self.assertEqual(sum(batches, []), list(sampler))
            self.assertEqual((len(batches), len(loader)), (8, 8))

    def test_each_sample_comes_once_over_ranks_and_workers_and_steps_are_equal(self):
        seen, steps = [], set()
        for rank in range(3):
            dataset = onepot.IterableDataset(TAR, rank=rank, world_size=3)
            loader = DataLoader(dataset, batch_size=5, num_workers=2, collate_fn=list)
            batches = list(loader)
            steps.add(len(batches))
            seen += [bytes(data.numpy()) for batch in batches for data, _ in batch]
        self.assertEqual(len(steps), 1)
        self.assertEqual(len(seen), 102)  # one is padding
        self.assertEqual(set(seen), {content(i) for i in range(FILES)})

    def test_workers_that_live_on_see_the_epoch(self):
        dataset = onepot.IterableDataset(TAR, 50, rank=0, world_size=1)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
        for epoch in (0, 5):
            dataset.set_epoch(epoch)
            sampler = onepot.DistributedSampler(FILES, 1, 0)
            sampler.set_epoch(epoch)
            self.assertEqual(sum((b.indices.tolist() for b in loader), []), list(sampler))

    def test_what_is_dropped(self):
        dataset = onepot.IterableDataset(TAR, 10, rank=0, world_size=2, drop_last=True)
        self.assertEqual([len(batch) for batch in dataset], [10] * 5)
        self.assertEqual(len(dataset), 5)
        other = pickle.loads(pickle.dumps(dataset))
        self.assertEqual(len(list(other)), 5)


@unittest.skipUnless(torchvision and torch, "torchvision is not installed")
class Folders(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = os.path.join(WORK, "images")
        for i in range(12):
            name = os.path.join(cls.tree, ("b", "a", "c/deep")[i % 3], "%d.%s" % (
                i, ("png", "JPG", "bmp")[i % 2]))
            os.makedirs(os.path.dirname(name), exist_ok=True)
            Image.new("RGB", (4 + i, 3), (i, 2 * i, 0)).save(name)
        for name in ("a/notes.txt", "top.png"):
            with open(os.path.join(cls.tree, name), "w") as f:
                f.write("no image")
        cls.path = os.path.join(WORK, "images.tar")
        subprocess.run([ONEPOT, "pack", "-o", cls.path, cls.tree], check=True)

    def test_it_is_a_drop_in(self):
        from torchvision.transforms import functional
        options = dict(transform=functional.to_tensor, target_transform=negative)
        theirs = torchvision.datasets.ImageFolder(self.tree, **options)
        ours = onepot.ImageFolder(self.path, **options)
        self.assertEqual((ours.classes, ours.class_to_idx), (theirs.classes, theirs.class_to_idx))
        self.assertEqual(ours.targets, theirs.targets)
        self.assertEqual([(os.path.join(self.tree, name), label) for name, label in ours.samples],
                         theirs.samples)
        self.assertEqual(ours.imgs[2:4], ours.samples[2:4])
        self.assertEqual(len(ours), len(theirs))
        self.assertEqual(ours[torch.tensor(3)][1], ours[3][1])
        for (image, label), (other, number) in zip(ours, theirs):
            self.assertTrue(torch.equal(image, other))
            self.assertEqual(label, number)
        loader = DataLoader(ours, batch_size=1, num_workers=2, multiprocessing_context="spawn")
        self.assertEqual([int(label) for _, label in loader], [n for _, n in theirs])

    def test_files_are_chosen_and_loaded_as_one_wishes(self):
        def loader(file):
            return file.name, isinstance(file, io.BytesIO)
        chosen = onepot.ImageFolder(self.path, loader=loader,
                                    is_valid_file=lambda name: name.endswith((".png", "0.bmp")))
        theirs = torchvision.datasets.ImageFolder(
            self.tree, is_valid_file=lambda name: name.endswith((".png", "0.bmp")))
        self.assertEqual([(name, label) for (name, good), label in chosen if good],
                         [(os.path.relpath(p, self.tree), n) for p, n in theirs.samples])
        with self.assertRaisesRegex(FileNotFoundError, "classes b"):
            onepot.ImageFolder(self.path, is_valid_file=lambda name: name.startswith(("a", "c")))
        with self.assertRaisesRegex(FileNotFoundError, "any class"):
            onepot.ImageFolder(self.path, folder="c/deep")
        self.assertEqual(onepot.ImageFolder(self.path, folder="c").classes, ["deep"])

    def both(self, use, **options):
        """The same code on torchvision's ImageFolder and on ours: what it returns, with paths as
        they are in the archive."""
        def plain(what):
            if isinstance(what, str):
                return os.path.relpath(what, self.tree) if what.startswith(self.tree) else what
            if isinstance(what, Image.Image):
                return what.tobytes()
            if isinstance(what, (list, tuple)):
                return type(what)(map(plain, what))
            return what
        theirs, ours = (plain(use(cls(root=path, **options))) for cls, path in
                        ((torchvision.datasets.ImageFolder, self.tree),
                         (onepot.ImageFolder, self.path)))
        self.assertEqual(ours, theirs)
        return ours

    def test_code_for_torchvisions_runs_on_ours(self):
        def lists(data):
            self.assertTrue(all(type(what) is list for what in
                                (data.samples, data.imgs, data.targets, data.classes)))
            path, target = data.samples[0]
            return [data.samples, data.imgs == data.samples, data.imgs is data.samples,
                    data.targets, data.targets.count(1), data.targets.index(2),
                    data.samples[-3:], data.samples + data.samples[:1], (path, target) in data.imgs,
                    sorted(data.samples, reverse=True)[0], os.path.basename(path),
                    [data.classes[number] for number in data.targets]]

        def fewer(data):
            data.samples = data.samples[1::2]
            data.targets = [number for _, number in data.samples]
            return [len(data), data.samples, data.targets, list(data)]

        def turned(data):
            data.samples.reverse()
            return [len(data), [data[i] for i in range(len(data))], data[-1], data.imgs[0]]

        def other_numbers(data):
            data.samples = [(path, 9 - number) for path, number in data.samples]
            return [number for _, number in data]

        def more(data):
            data.samples.append((os.path.join(self.tree, "b", "0.png"), 77))
            data.imgs += data.imgs[:2]
            return [len(data), data[len(data) - 3], data[-1]]

        def fields(data):
            return [data.extensions, data.transform, data.target_transform, data.transforms,
                    data.find_classes(data.root), data.class_to_idx, isinstance(data.root, str),
                    "ImageFolder" in repr(data), "Number of datapoints: 12" in repr(data)]

        def transforms(data):
            return [data.transforms(2, 3), data.transforms.transform is data.transform,
                    data.transform(4), data[1][1]]

        def subset(data):
            part = torch.utils.data.Subset(data, [3, 1])
            return [list(part), [data.targets[i] for i in part.indices]]
        for use in (lists, fewer, turned, other_numbers, more, fields, subset):
            with self.subTest(use.__name__):
                self.both(use)
        self.both(transforms, transform=lambda image: image, target_transform=negative)

    def test_a_class_may_be_empty_where_that_is_allowed(self):
        data = onepot.ImageFolder(self.path, allow_empty=True,
                                  is_valid_file=lambda path: path.startswith("a/"))
        self.assertEqual((data.classes, set(data.targets)), (["a", "b", "c"], {0}))
        data = onepot.ImageFolder(self.path, extensions=[".txt"], allow_empty=True)
        self.assertEqual((data.samples, data.extensions), ([("a/notes.txt", 0)], (".txt",)))

    def test_a_subclass_chooses_classes_as_torchvisions_does(self):
        def chosen(base):
            class Chosen(base):
                def find_classes(self, directory):
                    return ["c", "a"], {"c": 0, "a": 5}
            return Chosen
        theirs = chosen(torchvision.datasets.ImageFolder)(self.tree)
        ours = chosen(onepot.ImageFolder)(self.path)
        self.assertEqual((ours.classes, ours.class_to_idx), (theirs.classes, theirs.class_to_idx))
        self.assertEqual([(os.path.join(self.tree, path), number) for path, number in ours.samples],
                         theirs.samples)
        self.assertEqual([number for _, number in ours], theirs.targets)
        self.assertEqual([number for _, number in chosen(onepot.ImageFolder)(self.path)],
                         theirs.targets)

    def test_a_list_that_was_asked_for_goes_to_the_workers(self):
        data = onepot.ImageFolder(self.path, transform=lambda_free, target_transform=negative)
        data.samples = data.samples[::-1]
        loader = DataLoader(data, batch_size=1, num_workers=1, multiprocessing_context="spawn")
        self.assertEqual([int(number) for _, number in loader],
                         [-number for _, number in data.samples])


if __name__ == "__main__":
    signal.alarm(580)
    unittest.main()

#!/usr/bin/env python3
"""The Python module onepot: samples, batches, states, buffers, processes.

Tests that need numpy or torch are skipped, and say so, where these are not installed.
"""
import array
import ctypes
import errno
import functools
import gc
import io
import itertools
import json
import mmap
import multiprocessing
import os
import pathlib
import pickle
import pty
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import unittest.mock
import warnings
import zlib

import onepot
from dlpack_consumer import DLManaged, DLVersioned, elements, take

needs_devices = unittest.skipIf(os.environ.get("WITHOUT_DEVICES"), "built with -Dgpu=disabled")

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None

ONEPOT = os.environ["ONEPOT"]
FILES = 103


def content(i):
    return b"%07d" % i * (1 + i % 13)


def setUpModule():
    global WORK, TAR
    WORK = tempfile.mkdtemp(prefix="onepot-python.", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")
    tree = os.path.join(WORK, "tree")
    for i in range(FILES):
        folder = os.path.join(tree, "class%d" % (i // 30))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "%03d.bin" % i), "wb") as f:
            f.write(content(i))
    TAR = os.path.join(WORK, "a.tar")
    subprocess.run([ONEPOT, "pack", "-o", TAR, tree], check=True)


def tearDownModule():
    shutil.rmtree(WORK)


def drain(loader):
    return [(b.epoch, b.first, list(memoryview(b.indices))) for b in loader]


def limited(function):
    """Where no process gets as much memory as it wants."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 36, before[1]))
    try:
        return function()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def in_child(archive, loader, queue):
    """For multiprocessing: what a child sees of both."""
    queue.put((bytes(archive[5]), len(archive), None if loader is None else drain(loader)))


class Archives(unittest.TestCase):
    def test_what_no_directory_can_show_is_counted(self):
        path = os.path.join(WORK, "partly.tar")
        with tarfile.open(path, "w") as tar:
            tar.addfile(tarfile.TarInfo("a"))
            link = tarfile.TarInfo("b")
            link.type, link.linkname = tarfile.LNKTYPE, "nothing"
            tar.addfile(link)
        archive = onepot.Archive(path)
        self.assertEqual((list(archive.names), archive.left_out), (["a"], 1))
        self.assertEqual(onepot.Archive([path, TAR, path]).left_out, 2)

    def test_joined_tars_are_one_archive_if_that_is_asked_for(self):
        paths = [os.path.join(WORK, name + ".tar") for name in ("joined", "joined1", "joined2")]
        for path in paths[1:]:
            with tarfile.open(path, "w") as tar:
                tar.addfile(tarfile.TarInfo(os.path.basename(path)))
        with open(paths[0], "wb") as joined:
            for path in paths[1:]:
                with open(path, "rb") as f:
                    joined.write(f.read())
        first = onepot.Archive(paths[0])
        self.assertEqual((list(first.names), first.left_out), (["joined1.tar"], 1))
        both = onepot.Archive(paths[0], ignore_zeros=True)
        self.assertEqual((list(both.names), both.left_out), (["joined1.tar", "joined2.tar"], 0))
        self.assertEqual(list(pickle.loads(pickle.dumps(both)).names), ["joined1.tar", "joined2.tar"])

    def test_files_of_a_plain_folder_are_samples(self):
        folder = os.path.join(WORK, "plain")
        for i in range(3):
            os.makedirs(os.path.join(folder, "class%d" % i))
            with open(os.path.join(folder, "class%d" % i, "shard.tar"), "wb") as f:
                f.write(bytes([i]) * 100_000)
        for given in {}, {"stage": WORK}, {"include": "class*"}:
            archive = onepot.Archive(folder, plain=True, **given)
            self.assertEqual([(bytes(sample), sample.label) for sample in archive],
                             [(bytes([i]) * 100_000, i) for i in range(3)])
        self.assertEqual(len(pickle.loads(pickle.dumps(archive))), 3)
        with onepot.Loader(onepot.Archive([folder, folder], plain=True), 4) as loader:
            self.assertEqual(sum(len(batch) for batch in loader), 6)
        with open(os.path.join(folder, "class1", "shard.tar"), "ab") as f:
            f.write(b"x")
        with self.assertRaisesRegex(OSError, "class1/shard.tar: it can't be read"):
            bytes(archive[1])
        self.assertEqual(bytes(archive[2]), bytes([2]) * 100_000)
        with self.assertRaisesRegex(OSError, "is not a folder"):
            onepot.Archive(TAR, plain=True)

    def test_a_plain_folder_gives_descriptors_back_where_none_are_left(self):
        folder = os.path.join(WORK, "many")
        os.mkdir(folder)
        for i in range(100):
            with open(os.path.join(folder, "%02d" % i), "wb") as f:
                f.write(b"%d" % i)
        limit, others = resource.getrlimit(resource.RLIMIT_NOFILE), []
        next_fd = os.dup(0)
        os.close(next_fd)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_fd + 40, limit[1]))
            archive = onepot.Archive(folder, plain=True)
            self.assertEqual([bytes(archive[i]) for i in range(50)], [b"%d" % i for i in range(50)])
            with self.assertRaisesRegex(OSError, "Too many open files"):
                while True:
                    others.append(os.dup(0))
            self.assertEqual([bytes(archive[i]) for i in range(50, 100)], [b"%d" % i for i in range(50, 100)])
        finally:
            for fd in others:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)

    def test_a_plain_folder_without_room_for_a_copy_is_read_all_the_same(self):
        folder = os.path.join(WORK, "sparse")
        os.mkdir(folder)
        with open(os.path.join(folder, "x"), "wb") as f:
            f.truncate(1 << 43)
        with unittest.mock.patch.dict(os.environ, ONEPOT_ASSUME_REMOTE="1"):
            with self.assertWarnsRegex(UserWarning, "can't be staged: .* has [0-9]+ MiB for it.*read without a copy"):
                archive = onepot.Archive(folder, plain=True, stage="")
            with self.assertRaisesRegex(OSError, "can't be staged"):
                onepot.Archive(folder, plain=True, stage=WORK)
        self.assertEqual(archive[0].size, 1 << 43)

    def test_view_is_an_archive_of_what_it_shows(self):
        def names(**view):
            return list(onepot.Archive(TAR, **view).names)
        self.assertEqual(names(include="class1"), ["class1/%03d.bin" % i for i in range(30, 60)])
        self.assertEqual(names(exclude="*[1-9].bin", include=["class0/*", "class1/"]),
                         ["class%d/%03d.bin" % (i // 30, i) for i in range(0, 60, 10)])
        self.assertEqual(names(files_from=["class2/061.bin", "class0/007.bin"]),
                         ["class0/007.bin", "class2/061.bin"])
        mapped = onepot.Archive(TAR, map={"class0": "cat", "class1/031.bin": ["dog/a", "b\\\t\n"]})
        self.assertEqual(mapped.classes, ["cat", "dog"])
        self.assertEqual(bytes(mapped[mapped.find("dog/a")]), content(31))
        self.assertEqual(bytes(mapped[mapped.find("b\\\t\n")]), content(31))
        self.assertEqual(list(pickle.loads(pickle.dumps(mapped)).names), list(mapped.names))
        with self.assertRaisesRegex(FileNotFoundError, r"none: the archive does not have it \(files_from\)"):
            names(files_from=["none"])
        with self.assertRaisesRegex(FileNotFoundError, r"none: .* \(line 2 of map\)"):
            names(map={"class0": "a", "none": "b"})
        with self.assertRaisesRegex(ValueError, "map: line 1 has an empty name"):
            names(map={"class0": ".."})
        with self.assertRaisesRegex(ValueError, "exclude each other"):
            names(map={"class0": "x"}, files_from=["class0"])

    def test_what_all_of_several_archives_lack_is_an_error(self):
        other = os.path.join(WORK, "one.tar")
        with tarfile.open(other, "w") as tar:
            tar.add(TAR, "d/e/only")
        both = [TAR, other]

        self.check_lacking(both, 1)

    def test_names_are_looked_for_once_in_many_archives(self):
        other = os.path.join(WORK, "two.tar")
        with tarfile.open(other, "w") as tar:
            tar.add(TAR, "d/e/only")
        self.check_lacking([TAR] * 8 + [other], 8)
        folder = os.path.join(WORK, "two")
        os.mkdir(folder)
        for i in range(9):
            os.link(other if i else TAR, os.path.join(folder, f"{i}.tar"))
        names = onepot.Archive(folder, files_from=["class0/001.bin", "d/e/only"]).names
        self.assertEqual(sorted(names), ["class0/001.bin"] + 8 * ["d/e/only"])

    def check_lacking(self, both, times):
        def count(**view):
            return len(onepot.Archive(both, allow_empty=True, **view))
        for view, expected in (({"files_from": ["class0/001.bin", "d/e/only"]}, times + 1),
                               ({"files_from": ["class0/", "d/e/", "d"]}, 30 * times + 1),
                               ({"files_from": ["class0/001.bin", "none"], "exclude": "none"}, times),
                               ({"map": {"class0/001.bin": "x", "d/e/only": ["y", "z/z"]}}, times + 2),
                               ({"include": "only"}, 1), ({"exclude": "*"}, 0)):
            self.assertEqual(count(**view), expected, view)
            self.assertEqual(count(**view), expected, view)
        for view, message in (({"files_from": ["d/e/only", "d/e/none", "class0/none"]},
                               r"class0/none: none of the archives has it \(files_from\), nor 1 more"),
                              ({"map": {"class0": "x", "d/none": "y"}},
                               r"d/none: none of the archives has it \(line 2 of map\)"),
                              ({"include": "none"}, "nothing in any of them matches .*none")):
            with self.assertRaisesRegex(FileNotFoundError, message):
                count(**view)

    def test_archives_in_an_archive_are_directories(self):
        path = os.path.join(WORK, "outer.tar")
        with tarfile.open(path, "w") as tar:
            tar.add(TAR, "in.tar")
            tar.add(TAR, "other")
        for nested, classes in ((True, ["in"]), ("other", ["other"]), ("*", ["in", "other"])):
            archive = onepot.Archive(path, nested=nested, include="*/class0/*")
            self.assertEqual(archive.classes, classes)
            self.assertEqual(bytes(archive[archive.find(classes[0] + "/class0/007.bin")]), content(7))
            self.assertEqual(len(pickle.loads(pickle.dumps(archive))), 30 * len(classes))
        self.assertEqual(list(onepot.Archive([path, path], nested=True, filter="007.bin").names),
                         2 * ["in/class0/007.bin"])
        self.assertEqual(list(onepot.Archive(path, nested=False).names), ["in.tar", "other"])
        with self.assertRaises(ValueError):
            onepot.Archive(path, nested="")

    def test_list_of_a_fold_shows_that_fold(self):
        path = os.path.join(WORK, "fold")
        fold = onepot.Archive(TAR).fold(3, 1, held_out=True)
        fold.save_list(path)
        shown = onepot.Archive(TAR, files_from=path)
        self.assertEqual(list(shown.names), list(fold.names))
        self.assertEqual(len(onepot.Archive([TAR, TAR], files_from=path)), 2 * len(fold))
        with self.assertRaises(ValueError):
            onepot.Archive(TAR, group="directory").save_list(path)

    def test_samples_have_name_label_and_bytes(self):
        archive = onepot.Archive(TAR)
        self.assertEqual(len(archive), FILES)
        self.assertEqual(archive.classes, ["class0", "class1", "class2", "class3"])
        self.assertEqual(archive.class_to_idx["class2"], 2)
        for i, sample in enumerate(archive):
            self.assertEqual(sample.name, "class%d/%03d.bin" % (i // 30, i))
            self.assertEqual((sample.label, sample.index), (i // 30, i))
            self.assertEqual(sample.size, len(content(i)))
            self.assertEqual(bytes(sample), content(i))
            self.assertEqual(bytes(sample.data), content(i))
        self.assertEqual(archive[-1].index, FILES - 1)
        self.assertEqual(archive.find("class1/040.bin"), 40)
        self.assertEqual(archive["class1/040.bin"].index, 40)
        self.assertTrue("class1/040.bin" in archive)
        self.assertFalse("class1/nothing" in archive or 40 in archive)
        self.assertEqual(archive[pathlib.PurePath("class1", "040.bin")], archive[40])
        self.assertEqual(len({archive[40], archive[40], archive[41]}), 2)
        self.assertTrue(archive[40] in archive and archive[40] not in onepot.Archive(TAR))
        self.assertIs(archive[40].archive, archive)
        with self.assertRaises(KeyError):
            archive["class1/nothing"]
        self.assertEqual(list(memoryview(archive.labels)), [i // 30 for i in range(FILES)])
        self.assertEqual(list(memoryview(archive.sizes)),
                         [len(content(i)) for i in range(FILES)])
        with self.assertRaises(IndexError):
            archive[FILES]
        with self.assertRaises(KeyError):
            archive.find("class1/nothing")

    def test_errors_have_their_kind(self):
        with self.assertRaisesRegex(FileNotFoundError, "nowhere.tar"):
            onepot.Archive("/nowhere.tar")
        with self.assertRaises(ValueError):
            onepot.Archive(TAR, group="colour")
        with self.assertRaises(TypeError):
            onepot.Archive(5)
        with self.assertRaises(ValueError):
            onepot.Archive(TAR).split(0.5, 2)
        with self.assertRaises(ValueError):
            len(onepot.Archive.__new__(onepot.Archive))
        with self.assertRaises(ValueError):
            iter(onepot.Loader.__new__(onepot.Loader))

    def test_a_sample_outlives_its_archive(self):
        data = onepot.Archive(TAR)[7].data
        gc.collect()
        self.assertEqual(bytes(data), content(7))

    def test_filters_splits_and_pickles(self):
        archive = onepot.Archive([TAR], filter="*[02468].bin", extensions=[".bin"])
        self.assertEqual(len(archive), 52)
        train, test = archive.split(0, 0.7, 3), archive.split(0.7, 1, 3)
        self.assertEqual(len(train) + len(test), 52)
        kept = [len(archive.fold(4, k)) + len(archive.fold(4, k, held_out=True))
                for k in range(4)]
        self.assertEqual(kept, [52] * 4)
        self.assertEqual([len(archive.fold(5, k, True)) for k in range(5)], [11, 10, 11, 10, 10])
        for k in range(4):
            labels = archive.fold(4, k, held_out=True, stratify=True).labels.tolist()
            self.assertEqual(len(labels), 13)
            for label in range(4):
                self.assertIn(labels.count(label) - archive.labels.tolist().count(label) // 4, (0, 1))
        some = train.subset([3, 1])
        for view in (archive, train, test, some, archive.fold(4, 1), archive.fold(4, 1, stratify=True)):
            other = pickle.loads(pickle.dumps(view))
            self.assertEqual(other._selection, view._selection)
            self.assertEqual(other.digest, archive.digest)
            self.assertEqual([s.name for s in other], [s.name for s in view])

    def test_ctrl_c_ends_the_reading_of_labels_for_folds(self):
        path = os.path.join(WORK, "labelled.tar")
        with tarfile.open(path, "w") as tar:
            for name in ("0.txt", "0.cls"):
                info = tarfile.TarInfo(name)
                info.size = 3
                tar.addfile(info, io.BytesIO(b"bad"))
        archive = onepot.Archive(path, extensions=".txt", labels="cls")

        class Seed:  # asked for its number, it sends the signal, and no Python runs before the fold
            __index__ = staticmethod(functools.partial(ctypes.PyDLL(None)["raise"], signal.SIGINT))

        with self.assertRaises(KeyboardInterrupt) as raised:
            archive.fold(2, 0, True, Seed(), stratify=True)
        self.assertIsNone(raised.exception.__context__)  # it ended before the label that is none
        with self.assertRaisesRegex(OSError, "no integer"):
            archive.fold(2, 0, stratify=True)

    def test_other_data_than_expected_are_refused(self):
        def told(*words):
            out = subprocess.run([ONEPOT, "info", "--json", "--digest", *words], check=True,
                                 stdout=subprocess.PIPE).stdout
            return json.loads(out)[0]["digest"]
        foreign = os.path.join(WORK, "expected")
        os.makedirs(foreign)
        for name in os.listdir(os.path.join(WORK, "tree")):
            subprocess.run(["tar", "-cf", os.path.join(foreign, name + ".tar"), "-C",
                            os.path.join(WORK, "tree"), name], check=True)
        shards = os.path.join(foreign, "*.tar")
        self.assertEqual(told(shards), told(TAR))  # read, and from the index
        for path in (TAR, shards):
            digest = onepot.Archive(path).digest
            self.assertEqual(digest, told(TAR))
            with onepot.Loader(path, 4, rank=0, world_size=1, expect=digest[:8].upper()) as loader:
                self.assertEqual(loader.digest, digest)
            other = digest[::-1]
            with self.assertRaisesRegex(ValueError, "%s.*%s" % (digest, other)):
                onepot.Loader(path, 4, rank=0, world_size=1, expect=other)
        for wrong in ("", digest[:7], digest + "0", "x" * 32):
            with self.assertRaisesRegex(ValueError, "first 8"):
                onepot.Loader(TAR, 4, rank=0, world_size=1, expect=wrong)
        here = os.getcwd()
        try:
            os.chdir(foreign)
            relative = onepot.Archive("*.tar")
            os.chdir(here)
            self.assertEqual(relative.digest, digest)
        finally:
            os.chdir(here)
        replaced = onepot.Archive(shards)
        second = os.path.join(foreign, "class1.tar")
        os.rename(second, second + ".old")
        shutil.copy(second + ".old", second)
        with self.assertRaisesRegex(ValueError, "class1.tar.* was replaced"):
            replaced.digest
        os.rename(second + ".old", second)
        self.assertEqual(replaced.digest, digest)
        shutil.rmtree(foreign)
        self.assertEqual(replaced.digest, digest)  # kept
        self.assertEqual(replaced[:3].digest, digest)
        twice = onepot.Archive([TAR, TAR])  # no union: names are in two archives
        self.assertNotIn(twice.digest, (digest, onepot.Archive([TAR, TAR, TAR]).digest))

    def test_signals_end_the_reading_for_a_digest(self):
        tree, path = os.path.join(WORK, "long"), os.path.join(WORK, "long.tar")
        os.makedirs(tree)
        for i in range(100):
            with open(os.path.join(tree, "%d" % i), "wb") as f:
                f.truncate(1 << 40 if i == 64 else 1 << 20)
        subprocess.run([ONEPOT, "pack", "-qo", path, tree], check=True)
        script = """import onepot, signal, sys
archive = onepot.Archive(sys.argv[1])
signal.signal(signal.SIGVTALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_VIRTUAL, 0.5)
try:
    archive.digest
except KeyboardInterrupt:
    sys.exit(3)"""
        self.assertEqual(subprocess.run([sys.executable, "-c", script, path], timeout=60).returncode, 3)

    def test_a_digest_of_several_archives_is_of_the_ones_that_were_opened(self):
        paths = [os.path.join(WORK, "opened%d.tar" % i) for i in range(2)]

        def write(content):
            with tarfile.open(paths[1] + ".new", "w") as tar:
                info = tarfile.TarInfo("second")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            os.rename(paths[1] + ".new", paths[1])
        shutil.copy(TAR, paths[0])
        write(b"old")
        known, archive = onepot.Archive(paths), onepot.Archive(paths)
        digest = known.digest
        write(b"new")
        self.assertEqual(known.digest, digest)
        self.assertEqual(bytes(archive[archive.find("second")]), b"old")
        with self.assertRaisesRegex(ValueError, "opened.*(replaced|changed)"):
            archive.digest

    def test_a_digest_of_several_archives_reads_all_parts_of_each(self):
        alone, joined, part = (os.path.join(WORK, name) for name in ("alone.tar", "joined.tar", "joined.tar.part"))
        for path, name in ((alone, "x"), (joined, "y")):
            with tarfile.open(path, "w") as tar:
                info = tarfile.TarInfo(name)
                info.size = 30000
                tar.addfile(info, io.BytesIO(bytes(range(100)) * 300))
        with open(joined, "rb") as f:
            for end in "aa", "ab":
                with open(part + end, "wb") as to:
                    to.write(f.read(25000))
        self.assertEqual(onepot.Archive([alone, part + "aa"]).digest, onepot.Archive([alone, joined]).digest)

    def test_a_pickle_of_a_changed_archive_is_refused(self):
        path = os.path.join(WORK, "b.tar")
        shutil.copy(TAR, path)
        text = pickle.dumps(onepot.Archive(path))
        os.remove(path)
        subprocess.run([ONEPOT, "pack", "-o", path, os.path.join(WORK, "tree", "class0")],
                       check=True)
        with self.assertRaisesRegex(ValueError, "digest"):
            pickle.loads(text)

    def test_a_digest_that_is_saved_later_changes_no_pickle_and_no_state(self):
        for name, view in (("later", {}), ("view", {"include": "*"})):
            folder = os.path.join(WORK, name)
            os.makedirs(os.path.join(folder, "tree"))
            with open(os.path.join(folder, "tree", "sparse"), "wb") as f:
                f.truncate(1 << 20)
                f.write(b"abc")
            foreign, own = os.path.join(folder, "a.tar"), os.path.join(folder, "own.tar")
            subprocess.run(["tar", "-cf", foreign, "-C", os.path.join(folder, "tree"), "."], check=True)
            subprocess.run([ONEPOT, "pack", "-qo", own, os.path.join(folder, "tree")], check=True)
            options = ["--%s=%s" % option for option in view.items()]
            for path in (foreign, own):
                archive = onepot.Archive(path, **view)
                pickled, state = pickle.dumps(archive), onepot.Loader(archive, 1, 0, 1).state_dict()
                subprocess.run([ONEPOT, "index", "--digest", *options, path], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.assertIn(pickle.loads(pickled).digest,
                              subprocess.run([ONEPOT, "info", "--digest", *options, path], check=True,
                                             stdout=subprocess.PIPE).stdout.decode())
                onepot.Loader(onepot.Archive(path, **view), 1, 0, 1).load_state_dict(state)

    def test_samples_of_nearly_nothing_but_holes_are_refused_as_a_whole(self):
        tree, path = os.path.join(WORK, "holes"), os.path.join(WORK, "holes.tar")
        os.makedirs(tree)
        for name, size in (("large.bin", 8 << 30), ("small.bin", 20 << 20), ("y.bin", 3)):
            with open(os.path.join(tree, name), "wb") as f:
                f.write(b"abc")
                f.truncate(size)
        subprocess.run([ONEPOT, "pack", "-o", path, tree], check=True)
        self.assertLess(os.path.getsize(path), 1 << 20)
        archive = onepot.Archive(path)
        self.assertEqual([s.name for s in archive], ["large.bin", "small.bin", "y.bin"])
        large, small = archive[0], archive[1]
        for read in (lambda: large.data, large.read, lambda: bytes(large), lambda: large.parts,
                     lambda: onepot.Dataset(archive)[0], lambda: onepot.Dataset(archive)[[1, 0]],
                     lambda: drain(onepot.Loader(archive, 3, 0, 1)),
                     lambda: drain(onepot.Loader(archive[:1], 1, 0, 1)),
                     lambda: onepot.Loader(archive[:1], 1, 0, 1, npy=True)):
            with self.assertRaisesRegex(OSError, "large.bin.*8589934592 bytes.*holes.*hole_bytes") \
                    as raised:
                read()
            self.assertEqual(raised.exception.errno, errno.EFBIG)
        self.assertEqual(bytes(large.read(0, 5)), b"abc\0\0")
        self.assertEqual((len(small.data), len(onepot.Dataset(archive)[1][0])), (20 << 20,) * 2)
        batch = next(iter(onepot.Loader(archive, 3, 0, 1, skip_errors=True, shuffle=False)))
        self.assertEqual((list(memoryview(batch.valid)), list(memoryview(batch.sizes))), ([False, True, True],
                                                                  [0, 20 << 20, 3]))
        with self.assertRaisesRegex(OSError, "small.bin"):
            onepot.Archive(path, hole_bytes=1 << 20)[1].data
        allowed = onepot.Archive(path, hole_bytes=1 << 33)[0]
        self.assertRaises(OSError, lambda: archive[0].data)
        self.assertEqual(allowed.size, 8 << 30)
        self.assertEqual(bytes(allowed.read(0, 3)), b"abc")

    def test_sizes_of_parts_whose_sum_overflows_are_refused_whatever_is_allowed(self):
        path = os.path.join(WORK, "overflow.tar")
        with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
            for name, size in (("s.a", 2 ** 63 - 1), ("s.b", 2 ** 63 - 1), ("s.c", 100)):
                info, parts = tarfile.TarInfo("GNUSparseFile.0/" + name), b"1\n5\n1\n"
                info.size, info.pax_headers = 513, {
                    "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name,
                    "GNU.sparse.realsize": str(size)}
                tar.addfile(info, io.BytesIO(parts.ljust(512, b"\0") + b"x"))
        archive = onepot.Archive(path, group="basename", hole_bytes=2 ** 64 - 1)
        self.assertEqual(list(archive.sizes), [2 ** 63 - 1])
        for read in (lambda: archive[0].data, lambda: bytes(archive[0]), lambda: onepot.Dataset(archive)[0],
                     lambda: drain(onepot.Loader(archive, 1, 0, 1)),
                     lambda: drain(onepot.Loader(archive, 1, 0, 1, npy=True)),
                     lambda: drain(onepot.Loader(archive, 1, 0, 1, images=onepot.Images(8)))):
            with self.assertRaisesRegex(OSError, "s.a.*holes") as raised:
                read()
            self.assertEqual(raised.exception.errno, errno.EFBIG)
        self.assertEqual(bytes(archive[0].read(3, 4)), b"\0\0x\0")

    def test_groups_have_parts(self):
        tree = os.path.join(WORK, "groups")
        os.makedirs(tree)
        for name in ("x.cls", "x.jpg", "y.jpg"):
            with open(os.path.join(tree, name), "w") as f:
                f.write(name)
        path = os.path.join(WORK, "groups.tar")
        subprocess.run(["tar", "-C", tree, "-cf", path, "."], check=True)
        archive = onepot.Archive(path, group="basename")
        self.assertEqual([s.name for s in archive], ["x", "y"])
        parts = archive[0].parts
        self.assertEqual({k: bytes(v) for k, v in parts.items()},
                         {"cls": b"x.cls", "jpg": b"x.jpg"})

    def test_files_of_two_folders_are_pairs_and_lacking_partners_are_told(self):
        path = os.path.join(WORK, "pairs.tar")
        with onepot.Writer(path, overwrite=True) as writer:
            for i in range(9):
                writer.add("images/c%d/%d.v1.jpg" % (i % 2, i), b"image %d" % i)
                if i != 4:
                    writer.add("masks/c%d/%d.v1.png" % (i % 2, i), b"mask %d" % i)
            writer.add("masks/lost.png", b"")
        parts = {"image": "images/", "mask": "masks/"}
        with self.assertWarnsRegex(UserWarning, r"without a partner .*: 2; the first is 'masks/lost.png'") as told:
            archive = onepot.Archive(path, parts=parts)
        self.assertEqual((len(told.warnings), len(archive), archive.unpaired, archive[:0].unpaired), (1, 8, 2, 2))
        self.assertEqual(told.filename, __file__)
        self.assertEqual((archive.classes, list(archive.names)[3:5]), (["c0", "c1"], ["c0/8.v1", "c1/1.v1"]))
        for sample in archive:
            number = sample.name[3:-3].encode()
            self.assertEqual({name: bytes(part) for name, part in sample.parts.items()},
                             {"image": b"image " + number, "mask": b"mask " + number})
        batch = next(iter(onepot.Loader(archive, 8, 0, 1, shuffle=False)))
        self.assertEqual(bytes(batch[1]), b"image 2mask 2")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = pickle.loads(pickle.dumps(archive.fold(4, 1)))
        self.assertEqual(list(again.names), list(archive.fold(4, 1).names))
        for given, error, words in ((dict(parts=parts, group="basename"), ValueError, "exclude each other"),
                                    (dict(parts={}), TypeError, "a dict from names to folders"),
                                    (dict(parts=["images"]), TypeError, "a dict from names to folders"),
                                    (dict(parts={"a": 1}), TypeError, "str"),
                                    (dict(parts={"a": "images", "b": "images/c0"}), ValueError, "not apart")):
            with self.assertRaisesRegex(error, words):
                onepot.Archive(path, **given)
        with self.assertRaisesRegex(ValueError, "groups of files"):
            archive.save_list(os.path.join(WORK, "list"))


class Samplers(unittest.TestCase):
    def test_one_that_was_not_initialised_says_so(self):
        sampler = onepot.DistributedSampler.__new__(onepot.DistributedSampler)
        state = {"epoch": 1, "yielded": 2}
        for use in (lambda: sampler.epoch, lambda: sampler.rank, lambda: sampler.num_replicas,
                    sampler.state_dict, lambda: sampler.load_state_dict(state),
                    lambda: sampler.set_epoch(1), lambda: iter(sampler)):
            with self.assertRaisesRegex(ValueError, "not initialised"):
                use()

    def test_the_order_is_torchs(self):
        sampler = onepot.DistributedSampler(10, num_replicas=1, rank=0, seed=42)
        self.assertEqual(list(sampler), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7])
        self.assertIs(onepot.Sampler, onepot.DistributedSampler)

    @unittest.skipUnless(torch, "torch is not installed")
    def test_it_is_a_drop_in(self):
        from torch.utils.data.distributed import DistributedSampler
        data = range(1003)
        for shuffle, drop_last, rank in itertools.product((0, 1), (0, 1), range(3)):
            args = dict(num_replicas=3, rank=rank, shuffle=bool(shuffle), seed=8,
                        drop_last=bool(drop_last))
            ours, theirs = onepot.DistributedSampler(data, **args), DistributedSampler(data, **args)
            for epoch in (0, 5):
                ours.set_epoch(epoch)
                theirs.set_epoch(epoch)
                self.assertEqual(list(ours), list(theirs))
                self.assertEqual(len(ours), len(theirs))
        loader = torch.utils.data.DataLoader(data, batch_size=10, sampler=ours)
        self.assertEqual(torch.cat(list(loader)).tolist(), list(ours))

    def test_a_state_passes_over_what_was_done(self):
        sampler = onepot.DistributedSampler(10, 1, 0, seed=40)
        sampler.load_state_dict({"epoch": 2, "yielded": 4})
        self.assertEqual(list(sampler), [4, 5, 0, 9, 3, 7])
        self.assertEqual(list(sampler), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7])

    def at_terminal(self, shell, *command):
        """What a command says in the first of two tasks that have a terminal: called by a shell
        with job control, or by itself."""
        said, told = os.pipe()
        pid, terminal = pty.fork()
        if pid == 0:
            try:
                os.dup2(told, 1)
                os.dup2(told, 2)
                os.environ.update(SLURM_PROCID="0", SLURM_NTASKS="2", SLURM_STEP_ID="0")
                call = subprocess.call if shell else os.execv
                os._exit(call(command, preexec_fn=os.setpgrp) if shell else call(command[0], command))
            finally:
                os._exit(99)
        os.close(told)
        with open(said, encoding="utf-8") as pipe:
            text = pipe.read()
        self.assertEqual(os.waitpid(pid, 0)[1], 0, text)
        os.close(terminal)
        return text

    def test_a_shell_on_a_terminal_is_one_person(self):
        code = ("import onepot, sys; l = onepot.Loader(sys.argv[1], 10); "
                "print(len(l), len(onepot.DistributedSampler(100)), "
                "len(onepot.DistributedSampler(100, 2, 1)), flush=True)")
        text = self.at_terminal(True, sys.executable, "-c", code, TAR)
        self.assertRegex(text, "RuntimeWarning: Slurm's rank 0 of 2 does not count")
        self.assertIn("11 100 50\n", text)
        text = self.at_terminal(False, sys.executable, "-c", code, TAR)
        self.assertRegex(text, "RuntimeWarning: this is rank 0 of 2, as Slurm says")
        self.assertIn("6 50 50\n", text)
        for shell, shards in ((True, 4), (False, 2)):
            folder = os.path.join(WORK, "shards%d" % shards)
            os.mkdir(folder)
            text = self.at_terminal(shell, ONEPOT, "pack", "--shards", "4", "-o",
                                    os.path.join(folder, "x"), os.path.join(WORK, "tree"))
            self.assertRegex(text, "onepot: .*ank 0 of 2")
            whole = [name for name in os.listdir(folder) if not name.startswith(".")]
            if shell:  # of a rank alone nothing has its name yet
                self.assertEqual(len(whole), shards)

    def test_a_subclass_may_name_its_attributes_as_it_likes(self):
        class Resumable(onepot.DistributedSampler):
            def __init__(self, samples):
                self._handle, self._skip, self._more = "mine", 7, "too"
                super().__init__(samples, num_replicas=2, rank=1, shuffle=False)

        sampler = Resumable(6)
        self.assertEqual(list(sampler), [1, 3, 5])
        self.assertEqual(sampler.state_dict()["yielded"], 0)
        self.assertEqual((sampler._handle, sampler._skip, sampler._more), ("mine", 7, "too"))

    def test_a_subclass_may_count_something_else(self):
        class Batches(onepot.DistributedSampler):
            def __iter__(self):
                elements = super().__iter__()
                return iter(lambda: list(itertools.islice(elements, 4)), [])

            def __len__(self):
                return (super().__len__() + 3) // 4

        sampler = Batches(10, num_replicas=1, rank=0, shuffle=False)
        self.assertEqual(len(sampler), 3)
        self.assertEqual(list(sampler), [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])

    def test_rank_and_world_are_checked(self):
        for args in ((10, 2, 2), (10, 0, 0), (10, 2, None)):
            with self.assertRaises(ValueError):
                onepot.DistributedSampler(*args)


class Loaders(unittest.TestCase):
    def setUp(self):
        self.archive = onepot.Archive(TAR)

    def loader(self, batch_size=10, **options):
        return onepot.Loader(self.archive, batch_size, rank=0, world_size=1, **options)

    def test_batches_hold_the_samples_in_order(self):
        loader = self.loader(seed=5)
        self.assertEqual(len(loader), 11)
        for epoch in range(3):
            sampler = onepot.DistributedSampler(FILES, 1, 0, seed=5)
            sampler.set_epoch(epoch)
            seen = []
            for batch in loader:
                self.assertEqual(batch.epoch, epoch)
                indices = list(memoryview(batch.indices))
                for index, tensor, label in zip(indices, batch.tensors(),
                                                memoryview(batch.labels)):
                    self.assertEqual(bytes(tensor), content(index))
                    self.assertEqual(label, index // 30)
                self.assertEqual(list(memoryview(batch.valid)), [True] * len(batch))
                seen += indices
            self.assertEqual(seen, list(sampler))
        self.assertEqual(loader.stats["samples"], 3 * FILES)

    def test_an_epoch_that_was_left_is_over(self):
        loader = self.loader()
        for batch in loader:
            break
        self.assertEqual({epoch for epoch, _, _ in drain(loader)}, {1})
        for epoch in (7, 3):
            loader.sampler.set_epoch(epoch)
            self.assertEqual({e for e, _, _ in drain(loader)}, {epoch})

    def test_numbers_are_what_python_takes_for_one(self):
        class Number:
            def __index__(self):
                return 1

        loader = onepot.Loader(onepot.Archive(TAR), Number(), rank=0, world_size=Number(),
                               threads=Number(), prefetch=Number(), epoch=Number())
        self.assertEqual((len(loader), loader.epoch), (FILES, 1))
        loader.set_epoch(Number())
        state = loader.state_dict()
        loader.load_state_dict({**state, "epoch": Number()})
        self.assertEqual(loader.state_dict(), state)
        sampler = onepot.DistributedSampler(FILES, Number(), 0)
        sampler.set_epoch(Number())
        sampler.load_state_dict({"epoch": Number(), "yielded": Number()})
        for wrong in ({"batch_size": -1}, {"batch_size": 2.0}, {"memory": -1}, {"threads": -1},
                      {"batch_size": 2**64}, {"rank": -1, "world_size": 2}):
            with self.assertRaises((TypeError, OverflowError, ValueError)):
                onepot.Loader(onepot.Archive(TAR), **{"batch_size": 1, **wrong})

    def test_numbers_that_do_not_fit_are_errors_that_say_what_does(self):
        archive, path = self.archive, os.path.join(WORK, "never.tar")
        small, large = r"is not between 0 and 4294967295$", r"is not between 0 and 18446744073709551615$"
        for text, use in (
                (large, lambda: onepot.Archive(TAR, cache=-1)),
                (large, lambda: onepot.Archive(TAR, cache=2**64)),
                (large, lambda: onepot.Archive(TAR, hole_bytes=-1)),
                (small, lambda: onepot.Archive(TAR, retries=-1)),
                (large, lambda: archive.batch_for(-1)),
                (large, lambda: archive.split(0, 1, 2**64)),
                (small, lambda: archive.fold(2**32 + 2, 0)),
                (small, lambda: self.loader(align=2**64)),
                (small, lambda: self.loader(align=2**32)),
                (small, lambda: self.loader(threads=2**32)),
                (small, lambda: self.loader(device="host", images=(2**32 + 1, 1, 1))),
                (small, lambda: onepot.Writer(path, align=2**64)),
                (small, lambda: onepot.Writer(path, zstd=2**32)),
                (large, lambda: onepot.DistributedSampler(FILES, 1, 0, block=-1))):
            with self.assertRaisesRegex(OverflowError, text):
                use()
        with self.assertRaisesRegex(ValueError, "float32, float16 or bfloat16, not float64"):
            self.loader(dtype="float64")
        for keywords in (dict(align=2**32 - 1), dict(threads=2**31)):
            with self.assertRaises(ValueError):
                self.loader(**keywords)
        with self.assertRaisesRegex(MemoryError, "1099511627776 samples.* 8 bytes for each"):
            limited(lambda: onepot.DistributedSampler(2**40, 1, 0))

    def test_an_iterator_is_of_one_epoch_however_often_it_is_asked_for_itself(self):
        loader = self.loader()
        iterator = iter(loader)
        self.assertIs(iter(iterator), iterator)
        first = next(iterator)
        rest = drain(iterator)
        self.assertEqual({epoch for epoch, _, _ in rest}, {first.epoch})
        self.assertEqual(1 + len(rest), len(loader))
        self.assertEqual(drain(iterator), [])  # and stays at its end
        self.assertEqual({epoch for epoch, _, _ in drain(loader)}, {first.epoch + 1})

    def test_an_iterator_ends_with_its_epoch_also_where_others_go_on(self):
        loader = self.loader()
        old = iter(loader)
        next(old)
        new = iter(loader)
        self.assertEqual(drain(old), [])
        self.assertEqual(len(drain(new)), len(loader))
        self.assertEqual(drain(old), [])
        self.assertEqual(len(drain(loader)), len(loader))

    def test_threads_share_an_iterator_to_the_end_of_its_epoch(self):
        loader = self.loader(batch_size=1, threads=2)
        for epoch in range(40):
            iterator = iter(loader)
            found = []
            threads = [threading.Thread(target=lambda: found.extend(drain(iterator)))
                       for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(f[:2] for f in found), [(epoch, i) for i in range(FILES)])

    def test_list_does_not_hang(self):
        self.assertEqual(len(list(self.loader())), 11)
        loader = self.loader(batch_size=2, memory=1 << 20)
        with self.assertRaisesRegex(BufferError, "memory"):
            list(itertools.chain(loader, loader, loader))

    def test_memory_is_used_again_only_when_its_last_view_is_gone(self):
        loader = self.loader(batch_size=10, prefetch=1)
        batch = next(iter(loader))
        view = memoryview(batch[0])
        expected = bytes(view)
        del batch
        for _ in range(5):
            drain(loader)
        self.assertEqual(bytes(view), expected)
        del loader
        gc.collect()
        self.assertEqual(bytes(view), expected)

    def test_a_path_is_an_archive_too(self):
        for path in (TAR, TAR.encode(), [TAR]):
            self.assertEqual(drain(onepot.Loader(path, 10, 0, 1)), drain(self.loader()))
        with self.assertRaises(FileNotFoundError):
            onepot.Loader("/nowhere.tar", 1)
        with self.assertRaises(TypeError):
            onepot.Loader(3, 1)

    def test_buffers_are_sequences(self):
        batch = next(iter(self.loader(shuffle=False)))
        for buffer, wanted in ((batch.indices, list(range(10))), (batch.valid, [True] * 10),
                               (batch.sizes, [len(content(i)) for i in range(10)]),
                               (batch[3], list(content(3))), (batch.labels, [0] * 10)):
            self.assertEqual(list(buffer), wanted)
            self.assertEqual((buffer[-1], buffer[0], len(buffer)),
                             (wanted[-1], wanted[0], len(wanted)))
            self.assertEqual(list(buffer[2:4]), wanted[2:4])
            self.assertIn(wanted[2], buffer)
            for wrong in (len(wanted), -len(wanted) - 1, 2**70):
                with self.assertRaises(IndexError):
                    buffer[wrong]
        self.assertEqual(bytes(batch[-1]), content(9))
        self.assertEqual([bytes(sample) for sample in batch], [content(i) for i in range(10)])

    def test_they_say_what_they_are(self):
        loader = self.loader()
        batch = next(iter(loader))
        self.assertEqual(repr(batch.indices), "<onepot.Buffer: int64 (10,)>")
        self.assertEqual((batch.indices.shape, batch.indices.dtype), ((10,), "int64"))
        self.assertEqual(repr(batch.valid), "<onepot.Buffer: bool (10,)>")
        self.assertEqual(repr(self.archive[1].data), "<onepot.Buffer: uint8 (14,), read-only>")
        self.assertEqual(repr(batch), "<onepot.Batch of 10 samples: uint8 (%d,), from element 0 of"
                         " epoch 0>" % len(batch.data))
        self.assertEqual(repr(loader), "<onepot.Loader of %r: 11 batches of 10, uint8, epoch 0>"
                         % self.archive)
        self.assertIn("not initialised", repr(onepot.Loader.__new__(onepot.Loader)))

    @needs_devices
    def test_a_device_is_named_in_several_ways(self):
        class Device:
            def __init__(self, name):
                self.name = name

            def __str__(self):
                return self.name
        for device in (None, "cpu", Device("cpu")):
            batch = next(iter(self.loader(device=device)))
            with self.assertRaises(OSError):
                self.loader(device=device).transfer()
        self.assertEqual(self.loader(device=Device("host")).transfer()["epoch"], 0)
        for device in ("cuda:99", 99, Device("cuda:99")):
            with self.assertRaises(OSError) as raised:
                self.loader(device=device)
            self.assertRegex(str(raised.exception), "99|cuda")
        for device in ("gpu", -1, Device("mps"), 1.5):
            with self.assertRaises((ValueError, OverflowError)):
                self.loader(device=device)
        del batch

    @needs_devices
    def test_several_devices_have_batches_in_turn(self):
        names = ["host:%d" % i for i in range(3)]
        plain = [list(b.indices) for b in self.loader()]
        loader = self.loader(devices=names)
        for epoch in range(2):
            places = []
            for batch, want in zip(loader, plain if not epoch else itertools.repeat(None)):
                batch.wait()
                places.append(batch.device)
                self.assertTrue(want is None or list(batch.indices) == want)
            self.assertEqual(places, [names[i % 3] for i in range(len(plain))])
        self.assertEqual(loader.transfer()["batches"], len(plain))
        self.assertEqual([b.device for b in self.loader()], ["cpu"] * len(plain))
        first = self.loader(devices=names)
        next(first)
        state = first.state_dict()
        again = self.loader(devices=names)
        again.load_state_dict(state)
        self.assertEqual([b.device for b in again], [names[i % 3] for i in range(1, len(plain))])

    @needs_devices
    def test_devices_that_make_no_sense_are_told(self):
        for devices, kind, words in (
                ([], ValueError, "empty"), ("host", TypeError, "device names one"),
                (2, TypeError, "a list"), (["host", "cpu"], ValueError, "'cpu' is no device"),
                (["host:1", "host:0", "host:1"], ValueError, "host:1 is there twice"),
                (["host:%d" % (i % 8) for i in range(65)], ValueError, "more than 64"),
                ([None, "host"], ValueError, "cpu"), (["host", "gpu"], ValueError, "gpu"),
                (["host:0", "host:9"], OSError, "no device 9")):
            with self.assertRaisesRegex(kind, words):
                self.loader(devices=devices)
        with self.assertRaisesRegex(ValueError, "only one of them"):
            self.loader(device="host", devices=["host:1"])

    def test_arguments_are_checked_before_an_archive_is_opened(self):
        for wrong in ({"batch_size": -1}, {"align": 2**64}, {"rank": 5}, {"decode": 3}):
            with self.assertRaises((ValueError, OverflowError, TypeError)):
                onepot.Loader("no such archive", **{"batch_size": 4, **wrong})
        with self.assertRaises(FileNotFoundError):
            onepot.Loader("no such archive", 4)

    def test_a_state_goes_on_at_every_step(self):
        whole = drain(self.loader(seed=9))
        for step in range(12):
            loader = self.loader(seed=9)
            taken = list(itertools.islice(loader, step))
            state = json.loads(json.dumps(loader.state_dict()))
            self.assertEqual(state["done"], min(10 * step, FILES))
            other = self.loader()
            other.load_state_dict(state)
            self.assertEqual(drain(other), whole[len(taken):])
        state["digest"] = "0" * 32
        with self.assertRaisesRegex(ValueError, "another archive"):
            other.load_state_dict(state)
        with self.assertRaises(KeyError):
            other.load_state_dict({"version": 1})

    def test_the_end_of_an_epoch_is_one_for_every_number_of_ranks(self):
        for before, after in itertools.permutations((1, 2, 3), 2):
            loader = onepot.Loader(self.archive, 12 // before, 0, before)
            state = [loader.state_dict() for _ in loader][-1]
            other = onepot.Loader(self.archive, 12 // after, 0, after)
            other.load_state_dict(state)
            self.assertEqual(drain(other), [])
            self.assertEqual({epoch for epoch, _, _ in drain(other)}, {1})

    def test_each_sample_comes_once_over_all_ranks(self):
        sums = [0, 0, 0]
        for rank in range(3):
            loader = onepot.Loader(self.archive, 7, rank=rank, world_size=3)
            drain(loader)
            sums = [(a + b) % 2**64 for a, b in zip(sums, loader.delivered)]
        alone = self.loader()
        drain(alone)
        self.assertEqual(tuple(sums), alone.delivered)
        self.assertEqual(sums[0], FILES)

    def test_damage_is_named_and_can_be_skipped(self):
        path = os.path.join(WORK, "damaged.tar")
        with open(TAR, "rb") as f:
            data = bytearray(f.read())
        place = data.index(content(77))
        data[place] ^= 1
        with open(path, "wb") as f:
            f.write(data)
        os.utime(path)
        archive = onepot.Archive(path)
        with self.assertRaisesRegex(OSError, "077.bin"):
            drain(onepot.Loader(archive, 200, 0, 1, verify=True))
        loader = onepot.Loader(archive, 200, 0, 1, verify=True, skip_errors=True)
        batch = next(iter(loader))
        wrong = [i for i, v in zip(memoryview(batch.indices), memoryview(batch.valid)) if not v]
        self.assertEqual(wrong, [77])
        self.assertGreaterEqual(loader.stats["skipped"], 1)

    def test_several_threads_take_batches(self):
        loader = self.loader(batch_size=3, threads=2)
        found = []

        def take():
            for _ in range(10):
                found.append(list(memoryview(next(loader).indices)))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(set(itertools.chain(*found))), 90)

    def test_processes(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method):
                context = multiprocessing.get_context(method)
                queue = context.Queue()
                loader = self.loader() if method == "fork" else None
                if loader:
                    next(loader)
                child = context.Process(target=in_child, args=(self.archive, loader, queue))
                child.start()
                data, length, batches = queue.get(timeout=240)
                child.join(240)
                self.assertEqual((data, length, child.exitcode), (content(5), FILES, 0))
                if loader:
                    self.assertEqual(len(batches), 11)
                    self.assertEqual({e for e, _, _ in batches}, {1})
                    self.assertEqual(len(drain(loader)), 11)

    def test_an_exit_with_batches_out_is_clean(self):
        script = ("import onepot\n"
                  "l = onepot.Loader(onepot.Archive(%r), 10, 0, 1)\n"
                  "b = next(iter(l)); v = memoryview(b.data)\n"
                  "print('ready')\n" % TAR)
        done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE,
                              timeout=240)
        self.assertEqual((done.returncode, done.stdout), (0, b"ready\n"))


def is_mapped():
    with open("/proc/self/maps") as f:
        return TAR in f.read()


class Drawn:
    """A weighted sampler that can say its state."""

    def __init__(self, seed=1):
        self.random = random.Random(seed)

    def __iter__(self):
        return iter(self.random.choices(range(FILES), weights=range(FILES), k=50))

    def state_dict(self):
        return {"random": self.random.getstate()}

    def load_state_dict(self, state):
        self.random.setstate(state["random"])


def numbers(batches):
    return [i for batch in batches for i in batch.indices.tolist()]


class SamplersOfLoaders(unittest.TestCase):
    @staticmethod
    def loader(sampler, rank=0, world_size=1, **options):
        return onepot.Loader(TAR, 8, rank, world_size, sampler=sampler, **options)

    def test_an_iterable_is_the_order_of_each_epoch(self):
        for given in ([5, 5, 90, 0, 7] * 3, (5, 3), range(20, 3, -2), array.array("q", [9, 4]),
                      onepot.Archive(TAR).labels):
            loader = self.loader(given)
            self.assertEqual(len(loader), -(-len(given) // 8))
            for _ in range(2):
                self.assertEqual(numbers(loader), list(given))
        loader = self.loader([1, 2, 3], threads=1)
        batch = next(loader)
        self.assertEqual([bytes(b) for b in batch], [content(i) for i in (1, 2, 3)])
        self.assertRaises(StopIteration, next, loader)
        self.assertEqual(next(loader).epoch, 1)

    def test_nothing_is_read_before_the_sampler_has_given_its_order(self):
        with unittest.mock.patch.dict(os.environ, ONEPOT_ASSUME_REMOTE="1"):
            archive, other = onepot.Archive(TAR), onepot.Archive(TAR)

        def one(epoch):
            drain(onepot.Loader(other, 8, 0, 1))  # so long any thread of the first had time to read
            return [7]

        loader = onepot.Loader(archive, 8, 0, 1, sampler=one)
        self.assertEqual(numbers(loader), [7])
        self.assertEqual((loader.stats["reads"], loader.stats["read_bytes"]), (1, len(content(7))))

    def test_a_function_of_the_epoch_is_a_curriculum(self):
        asked = []

        def easy_first(epoch):
            asked.append(epoch)
            return range(10 * (epoch + 1))

        loader = self.loader(easy_first, epoch=1)
        self.assertEqual([numbers(loader) for _ in range(3)], [list(range(n)) for n in (20, 30, 40)])
        self.assertEqual((asked, len(loader)), ([1, 2, 3], 5))
        loader.set_epoch(7)
        self.assertEqual((asked[-1], len(loader), numbers(loader)), (7, 10, list(range(80))))
        it = iter(loader)
        next(it)
        self.assertEqual(numbers(loader), list(range(100)))  # an epoch left halfway is over
        self.assertEqual(list(it), [])

    def test_ranks_have_their_shares_of_one_order(self):
        order = [i * 7 % FILES for i in range(33)]
        ranks = [self.loader(lambda epoch: order, rank, 2) for rank in range(2)]
        got, valid = zip(*[(numbers([batch]), batch.valid.tolist())
                           for loader in ranks for batch in [next(loader)]])
        self.assertEqual(list(got), [order[0:16:2], order[1:16:2]])
        last = [list(loader)[-1] for loader in [self.loader(lambda epoch: order, rank, 2)
                                                for rank in range(2)]]
        self.assertEqual([batch.valid.tolist() for batch in last], [[True], [False]])
        self.assertEqual([len(self.loader(order, 1, 2, drop_last=True)), len(self.loader(order, 1, 2))], [2, 3])
        dealt = onepot.DistributedSampler(FILES, 2, 1, seed=4)
        with self.assertRaisesRegex(ValueError, "to 2 ranks itself.*rank=0, world_size=1"):
            self.loader(dealt, 1, 2)
        loader = self.loader(dealt)
        for epoch in range(2):
            want = onepot.DistributedSampler(FILES, 2, 1, seed=4)
            want.set_epoch(epoch)
            self.assertEqual(numbers(loader), list(want))

    def test_a_sampler_that_can_say_its_state_resumes(self):
        loader = self.loader(Drawn())
        epochs = [numbers(loader) for _ in range(3)]
        self.assertEqual(len({str(epoch) for epoch in epochs}), 3)
        for stop in range(8):  # 7 is behind the last batch
            loader = self.loader(Drawn())
            numbers(loader)
            it = iter(loader)
            got = numbers(itertools.islice(it, stop))
            state = json.loads(json.dumps(loader.state_dict()))
            state["sampler"]["random"][1] = tuple(state["sampler"]["random"][1])
            state["sampler"]["random"] = tuple(state["sampler"]["random"])
            again = self.loader(Drawn(seed=77))
            again.load_state_dict(state)
            self.assertEqual(got + numbers(again), epochs[1], stop)
            self.assertEqual(numbers(again), epochs[2], stop)
        numbers(it)
        again.load_state_dict(loader.state_dict())  # at the start of an epoch without an order yet
        self.assertEqual(numbers(again), epochs[2])

    def test_a_function_resumes_and_another_order_is_refused(self):
        def order(epoch):
            return [(i * 3 + epoch) % FILES for i in range(30)]
        loader = self.loader(order, epoch=4)
        next(loader)
        state = loader.state_dict()
        self.assertNotIn("sampler", state)
        halves = [onepot.Loader(TAR, 4, rank, 2, sampler=order) for rank in range(2)]
        for half in halves:
            half.load_state_dict(state)
        self.assertEqual([numbers(half) for half in halves], [order(4)[8::2], order(4)[9::2]])
        for other in (lambda epoch: order(epoch + 1), Drawn(), order(5)):
            refusing = self.loader(other)
            with self.assertRaisesRegex(ValueError, "another order of epoch 4"):
                refusing.load_state_dict(state)
            at = refusing.state_dict()
            self.assertEqual((at["epoch"], at["done"]), (4, 0))
        with self.assertRaisesRegex(ValueError, "another order"):
            onepot.Loader(TAR, 8, 0, 1).load_state_dict(state)
        plain = onepot.Loader(TAR, 8, 0, 1)
        next(plain)
        with self.assertRaisesRegex(ValueError, "another order"):
            self.loader(order).load_state_dict(plain.state_dict())
        old = plain.state_dict()
        del old["order"]  # of a version without
        plain.load_state_dict(old)

    def test_what_is_no_sampler_is_named(self):
        for given, error, words in (
                (5, TypeError, "an iterable of sample numbers, or a function"),
                ([FILES], IndexError, "no such sample"), ([-1], IndexError, "no such sample"),
                ([[1, 2]], TypeError, "list"), ([0.5], TypeError, "float"), (lambda epoch: None, TypeError, "iter"),
                (lambda epoch: itertools.count(), IndexError, "no such sample"),
                (iter([1, 2]), TypeError, "an iterator, which ends with the first epoch"),
                ((i for i in [1, 2]), TypeError, "an iterator")):
            with self.assertRaisesRegex(error, words):
                self.loader(given)
        with self.assertRaisesRegex(ValueError, "block and window"):
            self.loader([1], block=3)
        failing = self.loader(lambda epoch: [1, 2] if epoch != 1 else 1 / 0)
        self.assertEqual(numbers(failing), [1, 2])
        self.assertRaises(ZeroDivisionError, iter, failing)
        self.assertRaises(ZeroDivisionError, next, failing)
        failing.set_epoch(2)
        self.assertEqual(numbers(failing), [1, 2])
        failing.close()
        self.assertRaises(ValueError, iter, failing)

    def test_an_epoch_that_another_thread_ends_meanwhile_is_over(self):
        class Shared(onepot.Loader):
            def _go(self, *arguments):
                super()._go(*arguments)
                list(others)  # as by another thread
        others = ()
        loader = Shared(TAR, 8, 0, 1, sampler=range(20))
        others = iter(loader)
        self.assertRaises(StopIteration, next, loader)
        self.assertEqual(loader.epoch, 1)
        self.assertEqual(numbers([next(loader)]), list(range(8)))

    def test_a_child_need_not_wait_for_a_sampler_of_its_parent(self):
        parent, begun, end = os.getpid(), threading.Event(), threading.Event()

        def order(epoch):
            if epoch == 1 and os.getpid() == parent:
                begun.set()
                end.wait()
            return range(epoch + 3)

        loader = self.loader(order)
        thread = threading.Thread(target=loader.set_epoch, args=(1,))
        thread.start()
        begun.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(30)
            try:
                loader.set_epoch(2)
                os._exit(numbers(loader) != list(range(5)))
            finally:
                os._exit(2)
        _, status = os.waitpid(pid, 0)
        end.set()
        thread.join()
        self.assertEqual(status, 0)
        self.assertEqual(numbers(loader), list(range(4)))

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torchs_samplers_are_samplers(self):
        from torch.utils.data import SubsetRandomSampler, WeightedRandomSampler
        weighted = WeightedRandomSampler([0.0] * (FILES - 2) + [1.0, 3.0], 400,
                                         generator=torch.Generator().manual_seed(3))
        got = numbers(self.loader(weighted))
        self.assertEqual(set(got), {FILES - 2, FILES - 1})
        self.assertEqual(len(got), 400)
        self.assertEqual(sorted(numbers(self.loader(SubsetRandomSampler([4, 9, 2])))), [2, 4, 9])
        self.assertEqual(numbers(self.loader(torch.tensor([3, 1]))), [3, 1])


class BatchesToTensors(unittest.TestCase):
    def test_a_batch_has_its_names(self):
        with onepot.Archive(TAR) as archive:
            loader = onepot.Loader(archive[50:], 6, 0, 1, seed=2)
            batch = next(loader)
            want = [archive[50:].names[i] for i in batch.indices.tolist()]
        loader.close()
        self.assertEqual(batch.names, want)
        memoryview(batch.indices)[3] = 2**40  # they may be written to
        self.assertRaises(IndexError, lambda: batch.names)

    def test_sizes_of_batches_that_are_no_numbers_are_named(self):
        for size in (2.5, "4", None):
            with self.assertRaisesRegex(TypeError, "batch_size is a whole number of samples, not"):
                onepot.Loader(TAR, size, 0, 1)
        with self.assertRaisesRegex(TypeError, "batch_size is a whole number of samples, not 2.5"):
            onepot.IterableDataset(TAR, 2.5, rank=0, world_size=1)

    def test_a_file_that_is_no_archive_has_its_number_and_words(self):
        path = os.path.join(WORK, "no-archive.txt")
        with open(path, "w") as f:
            f.write("hello")
        with self.assertRaisesRegex(OSError, "no-archive.txt: is not an archive of a known format") as raised:
            onepot.Archive(path)
        self.assertEqual(raised.exception.errno, errno.ENOMSG)
        self.assertIn("%d (ENOMSG)" % errno.ENOMSG, onepot.Archive.__doc__)

    def test_without_torch_there_are_no_tensors(self):
        program = ("import onepot, sys\nbatch = next(onepot.Loader(sys.argv[1], 4, 0, 1))\n"
                   "try:\n    batch.to('cpu')\nexcept RuntimeError as error:\n    print(error)\n")
        said = subprocess.run([sys.executable, "-c", program, TAR], stdout=subprocess.PIPE, text=True, check=True)
        self.assertIn("import torch", said.stdout)

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_a_batch_goes_to_a_device_in_one_piece(self):
        batch = next(onepot.Loader(TAR, 9, 0, 1))
        there = batch.to("cpu")
        self.assertEqual(there.slab.data_ptr(), torch.from_dlpack(batch.data).data_ptr())  # it is there already
        self.assertIsInstance(there, onepot.TensorBatch)
        for name in ("labels", "indices", "offsets", "sizes", "valid", "data"):
            self.assertEqual(getattr(there, name).tolist(), getattr(batch, name).tolist(), name)
        self.assertEqual([bytes(each.numpy()) for each in there.tensors()], [bytes(each) for each in batch])
        moved = batch.to("cpu", copy=True)
        again = pickle.loads(pickle.dumps(moved))
        del batch, there
        gc.collect()
        self.assertEqual([bytes(each.numpy()) for each in moved.tensors()],
                         [content(i) for i in moved.indices.tolist()])
        self.assertTrue(torch.equal(again.slab, moved.slab))

    @unittest.skipIf(torch is None or numpy is None, "torch or numpy are not installed")
    def test_arrays_go_to_a_device_with_their_type(self):
        path = os.path.join(WORK, "arrays-to.tar")
        for dtype, order in (("<f8", "C"), ("<i4", "C"), ("|u1", "C"), ("<f4", "F")):
            with onepot.Writer(path, overwrite=True, sync=False) as writer:
                for i in range(5):
                    file = io.BytesIO()
                    numpy.save(file, numpy.asarray(numpy.arange(12).reshape(3, 4) + i, dtype, order=order))
                    writer.add("%d.npy" % i, file.getvalue())
            batch = next(onepot.Loader(path, 3, 0, 1, npy=True))
            if order == "F":
                with self.assertRaisesRegex(ValueError, "Fortran"):
                    batch.to("cpu")
                continue
            there = batch.to("cpu", copy=True).tensors()
            self.assertTrue(torch.equal(there, torch.from_dlpack(batch.data)), dtype)

    @needs_devices
    @unittest.skipIf(torch is None, "torch is not installed")
    def test_images_that_a_device_made_go_along(self):
        path = os.path.join(WORK, "pixels-to.tar")
        with onepot.Writer(path, sync=False) as writer:
            for i in range(6):
                writer.add("%d" % i, bytes(range(i, i + 48)))
        batch = next(onepot.Loader(path, 4, 0, 1, images=(4, 4, 3), device="host"))
        batch.wait()
        there = batch.to("cpu", copy=True)
        for each in there, pickle.loads(pickle.dumps(there)):
            self.assertEqual(each.images.tolist(), batch.images.tolist())
            self.assertEqual(each[1].tolist(), batch.images.tolist()[1])
            self.assertEqual(each.labels.tolist(), batch.labels.tolist())

    @unittest.skipIf(torch is None, "torch is not installed")
    def test_torchs_functions_say_how_a_buffer_becomes_a_tensor(self):
        batch = next(onepot.Loader(TAR, 4, 0, 1))
        for call in (lambda: torch.stack(list(batch)), lambda: torch.cat([batch.labels, batch.labels]),
                     lambda: torch.nn.functional.cross_entropy(torch.zeros(4, 3), batch.labels)):
            with self.assertRaisesRegex(TypeError, r"onepot.Buffer: torch.from_dlpack\(buffer\).*torch.as_tensor"):
                call()
        ten = torch.arange(10)
        self.assertEqual(ten[batch.labels].tolist(), batch.labels.tolist())  # as sequences they are indices
        ten[batch.labels] = 0
        self.assertEqual(torch.as_tensor(batch.labels).tolist(), batch.labels.tolist())
        self.assertFalse(ten == batch.labels)


class Closing(unittest.TestCase):
    def test_an_archive_is_closed_at_the_end_of_its_block(self):
        with onepot.Archive(TAR) as archive:
            sample, part, names = archive[5], archive[10:20], archive.names
            shown = sample.data
        archive.close()
        self.assertTrue(archive.closed and not part.closed)
        self.assertEqual(repr(archive), "<onepot.Archive %r, closed>" % TAR)
        self.assertEqual(repr(sample), "<onepot.Sample 5 of a closed archive>")
        for use in (lambda: len(archive), lambda: archive[0], lambda: "a" in archive,
                    lambda: archive.names, lambda: names[0], lambda: archive.labels,
                    lambda: archive.subset([1]), lambda: archive.split(0, 1), lambda: archive[1:],
                    lambda: pickle.dumps(archive), lambda: onepot.Loader(archive, 4),
                    lambda: onepot.Dataset(archive)[0], lambda: sample.name, lambda: len(sample),
                    lambda: sample.label, lambda: sample.data, lambda: sample.read(),
                    lambda: sample.parts, lambda: bytes(sample), lambda: archive.__init__(TAR)):
            with self.assertRaisesRegex(ValueError, "the archive (is closed|was initialised)"):
                use()
        self.assertEqual(bytes(shown), content(5))
        self.assertEqual(bytes(part[0]), content(10))
        del part
        self.assertTrue(is_mapped())
        del shown
        self.assertFalse(is_mapped())

    def test_a_loader_is_closed_with_the_archive_that_it_opened(self):
        with onepot.Loader(TAR, 8, shuffle=False) as loader:
            iterator = iter(loader)
            batch = next(iterator)
        loader.close()
        self.assertTrue(loader.closed)
        self.assertEqual(repr(loader), "<onepot.Loader, closed>")
        for use in (lambda: next(loader), lambda: next(iterator), lambda: iter(loader),
                    lambda: len(loader), lambda: loader.stats, lambda: loader.epoch,
                    lambda: loader.state_dict(), lambda: loader.load_state_dict({}),
                    lambda: loader.set_epoch(1), lambda: loader.delivered):
            with self.assertRaisesRegex(ValueError, "the loader is closed"):
                use()
        self.assertEqual(bytes(batch[7]), content(7))
        del batch
        self.assertFalse(is_mapped())

    def test_a_block_that_fails_closes_too(self):
        with self.assertRaises(ZeroDivisionError):
            with onepot.Archive(TAR) as archive, onepot.Loader(archive, 8) as loader:
                1 / 0
        self.assertTrue(archive.closed and loader.closed)

    def test_a_thread_that_takes_batches_of_a_closed_loader_is_told(self):
        loader, seen = onepot.Loader(TAR, 1), []

        def take():
            try:
                while True:
                    for _ in loader:
                        seen.append(None)
            except ValueError as error:
                seen.append(str(error))

        threads = [threading.Thread(target=take) for _ in range(3)]
        for thread in threads:
            thread.start()
        loader.close()
        for thread in threads:
            thread.join()
        self.assertEqual([said for said in seen if said], 3 * ["the loader is closed"])

    def test_opening_a_thousand_times_leaves_nothing_behind(self):
        def resident():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * mmap.PAGESIZE

        def use():
            archive = onepot.Archive(TAR)
            bytes(archive[3].data), archive.labels, archive["class1/040.bin"], repr(archive)

        for _ in range(100):
            use()
        files, before = len(os.listdir("/proc/self/fd")), resident()
        for _ in range(1000):
            use()
        gc.collect()
        self.assertEqual(len(os.listdir("/proc/self/fd")), files)
        self.assertLess(resident() - before, 1 << 20)


@unittest.skipUnless(numpy, "numpy is not installed")
class Arrays(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        tree = os.path.join(WORK, "npy")
        os.makedirs(tree)
        for i in range(20):
            numpy.save(os.path.join(tree, "%02d.npy" % i),
                       numpy.full((3, 5), i, dtype=numpy.float32))
        cls.path = os.path.join(WORK, "npy.tar")
        subprocess.run([ONEPOT, "pack", "-o", cls.path, tree], check=True)
        cls.archive = onepot.Archive(cls.path)

    def loader(self):
        return onepot.Loader(self.archive, 8, 0, 1, npy=True)

    def test_npy_is_a_dense_array(self):
        for batch in self.loader():
            array = numpy.asarray(batch.data)
            self.assertEqual((array.dtype, array.shape), (numpy.float32, (len(batch), 3, 5)))
            for i, index in enumerate(numpy.asarray(batch.indices)):
                self.assertTrue((array[i] == index).all())
                self.assertTrue((numpy.asarray(batch[i]) == index).all())
            array += 1  # slabs may be written to

    def test_numpy_is_told_that_samples_are_read_only(self):
        array = numpy.asarray(self.archive[3].data)
        self.assertFalse(array.flags.writeable)
        with self.assertRaises(ValueError):
            array += 1
        array = numpy.asarray(self.archive[3].read())
        array += 1
        self.assertEqual(bytes(self.archive[3]), bytes(self.archive[3].data))

    @unittest.skipUnless(torch, "torch is not installed")
    def test_torch_gets_a_copy_of_a_sample(self):
        tensor = torch.from_dlpack(self.archive[3].data)
        tensor += 1
        self.assertEqual(bytes(self.archive[3]), bytes(memoryview((tensor - 1).numpy())))

    def test_arrays_are_sequences_of_arrays(self):
        loader = self.loader()
        batch = next(iter(loader))
        self.assertEqual(repr(batch.data), "<onepot.Buffer: float32 (8, 3, 5)>")
        self.assertRegex(repr(loader), r"3 batches of 8, float32 \(3, 5\)")
        self.assertRegex(repr(batch), r"float32 \(8, 3, 5\)")
        rows = list(batch.data)
        self.assertEqual([row.shape for row in rows], [(3, 5)] * 8)
        for row, index in zip(rows, batch.indices):
            self.assertTrue((numpy.asarray(row) == index).all())
        self.assertEqual(bytes(batch.data[-1]), bytes(batch[7]))
        self.assertEqual(batch.data[2][-1][4], batch.indices[2])
        del batch, loader
        gc.collect()
        self.assertTrue((numpy.asarray(rows[3]) == numpy.asarray(rows[3])[0, 0]).all())
        with self.assertRaises(IndexError):
            rows[0][3]

    def test_samples_of_one_size_are_a_matrix(self):
        batch = next(iter(onepot.Loader(self.archive, 8, 0, 1)))
        array = numpy.asarray(batch.data)
        self.assertEqual((array.dtype, array.shape[0]), (numpy.uint8, 8))
        self.assertEqual(array.shape[1], self.archive[0].size)

    @unittest.skipUnless(torch, "torch is not installed")
    def test_torch_sees_it_without_a_copy(self):
        loader = self.loader()
        for batch in loader:
            tensor = torch.from_dlpack(batch.data)
            self.assertEqual(tuple(tensor.shape), (len(batch), 3, 5))
            self.assertEqual(tensor.data_ptr(), numpy.asarray(batch.data).ctypes.data)
            self.assertEqual(tensor[:, 0, 0].tolist(),
                             numpy.asarray(batch.indices).astype(float).tolist())
            labels = torch.from_dlpack(batch.labels)
            self.assertEqual(labels.dtype, torch.int64)
        del batch, loader
        gc.collect()
        self.assertEqual(tensor[-1, -1, -1], tensor[-1, 0, 0])

    @unittest.skipUnless(torch, "torch is not installed")
    def test_torchs_dataloader_takes_an_archive(self):
        def collate(samples):
            return (torch.tensor([s.index for s in samples]),
                    [torch.frombuffer(bytearray(bytes(s)), dtype=torch.uint8)
                     for s in samples])
        archive = onepot.Archive(TAR)
        for workers in (0, 2):
            loader = torch.utils.data.DataLoader(
                archive, batch_size=10, num_workers=workers, collate_fn=collate,
                sampler=onepot.DistributedSampler(archive, 1, 0))
            seen = []
            for indices, tensors in loader:
                for index, tensor in zip(indices.tolist(), tensors):
                    self.assertEqual(bytes(tensor.numpy()), content(index))
                    seen.append(index)
            self.assertEqual(sorted(seen), list(range(FILES)))


def bytes_of(managed):
    t = managed.contents.tensor
    count = 1
    for i in range(t.dimensions):
        count *= t.shape[i]
    return ctypes.string_at(t.data, count * t.bits // 8)


def npy_file(shape, body, descr="<f4", order="False", length=None):
    """The bytes of an .npy file; `length`: what it says of its header's, if not the truth."""
    header = ("{'descr': '%s', 'fortran_order': %s, 'shape': %s, }\n" % (descr, order, shape)).encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header) if length is None else length) + header + body


def npy_loader(name, *files, **options):
    """A loader of one batch of these files."""
    path = os.path.join(WORK, name + ".tar")
    with tarfile.open(path, "w") as tar:
        for i, data in enumerate(files):
            member = tarfile.TarInfo("%03d.npy" % i)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return onepot.Loader(path, len(files), 0, 1, shuffle=False, npy=True, **options)


class ViewsOfArrays(unittest.TestCase):
    """What a view shows of an array lies in its memory, whatever the file says."""

    def check(self, buffer, shape, content):
        """All ways to look at it agree."""
        self.assertEqual(buffer.shape, shape)
        view = memoryview(buffer)
        self.assertEqual((view.shape, view.nbytes, view.tobytes()), (shape, len(content), content))
        shown = buffer.__array_interface__
        self.assertEqual(shown["shape"], shape)
        for kind, asked in ((DLManaged, {}), (DLVersioned, {"max_version": (1, 0)})):
            for copy in (None, True):
                managed = take(buffer.__dlpack__(copy=copy, **asked), kind)
                tensor = managed.contents.tensor
                self.assertEqual(tuple(tensor.shape[:tensor.dimensions]), shape)
                self.assertEqual(elements(tensor), content)
                if copy and content:  # it may be written to, and is nobody else's
                    ctypes.memset(tensor.data, 0xff, 1)
                    self.assertEqual(view.tobytes(), content)
                managed.contents.deleter(managed)
        for room in (len(content), len(content) + 3):
            to = bytearray(b"x" * room)
            buffer.copy_into(to)
            self.assertEqual(bytes(to), content + bytes(room - len(content)))
        if len(shape) > 1:
            rows, whole = list(buffer), memoryview(content)
            self.assertEqual(b"".join(memoryview(row).tobytes() for row in rows), content)
            for row in rows:
                size = len(content) // len(rows)
                self.check(row, shape[1:], bytes(whole[:size]))
                whole = whole[size:]
        if numpy and content:
            self.assertEqual(numpy.asarray(buffer).tobytes(), content)
            self.assertEqual(numpy.from_dlpack(buffer).tobytes(), content)
        if torch and content:
            self.assertEqual(torch.from_dlpack(buffer).contiguous().numpy().tobytes(), content)

    def test_a_skipped_sample_is_zeros_of_its_shape(self):
        good = npy_file("(200, 500)", b"\1" * 400000)
        batch = next(iter(npy_loader("skipped", good, good[:-1], good[:40], b"", good,
                                     skip_errors=True)))
        self.assertEqual(list(batch.valid), [True, False, False, False, True])
        self.assertEqual(list(batch.sizes), [400000, 0, 0, 0, 400000])
        for i, byte in enumerate(b"\1\0\0\0\1"):
            buffer = batch[i]
            managed = take(buffer.__dlpack__(copy=True))
            tensor = managed.contents.tensor
            self.assertEqual(tuple(tensor.shape[:2]), (200, 500))
            self.assertEqual(ctypes.string_at(tensor.data, 400000), bytes([byte]) * 400000)
            managed.contents.deleter(managed)
            self.assertEqual(memoryview(buffer).nbytes, 400000)
            self.assertEqual(memoryview(batch.data[i]).tobytes(), bytes([byte]) * 400000)

    def test_every_order_and_number_of_dimensions(self):
        numbers = struct.pack("<24f", *range(24))
        fortran = struct.pack("<24f", *(12 * i + 4 * j + k for k in range(4) for j in range(3)
                                        for i in range(2)))
        for shape, order, body in (("()", "False", numbers[:4]), ("()", "True", numbers[:4]),
                                   ("(24,)", "False", numbers), ("(24,)", "True", numbers),
                                   ("(2, 3, 4)", "False", numbers),
                                   ("(2, 3, 4)", "True", fortran),
                                   ("(1, 1, 24)", "True", numbers),
                                   ("(" + "1, " * 32 + ")", "True", numbers[:4])):
            with self.subTest(shape=shape, order=order):
                lengths = tuple(int(n) for n in shape.strip("()").split(",") if n.strip())
                content = numbers[:len(body)]
                batch = next(iter(npy_loader("orders", *[npy_file(shape, body, order=order)] * 2)))
                self.check(batch[1], lengths, content)
                if len(lengths) < 32:  # numpy has no more, nor has memoryview 64 to compare
                    self.check(batch.data, (2, *lengths), 2 * content)

    def test_arrays_without_elements_have_their_shape_and_no_bytes(self):
        for shape in ((0,), (0, 3), (3, 0), (2, 0, 5)):
            for order in ("False", "True"):
                with self.subTest(shape=shape, order=order):
                    files = [npy_file(str(shape), b"", order=order)] * 3
                    for batch in (next(iter(npy_loader("empty", *files))),
                                  next(iter(npy_loader("empty", *files, b"?", skip_errors=True)))):
                        self.check(batch[1], shape, b"")
                        self.check(batch.data, (len(batch), *shape), b"")
                        self.assertEqual(sum(batch.sizes), 0)

    def test_shapes_that_no_memory_has_are_refused(self):
        for shape in ("(9223372036854775808,)", "(4294967296, 4294967296)", "(-1,)", "(2, -3)",
                      "(0, 9223372036854775808)", "(9223372036854775807, 0, 4)",
                      "(4611686018427387904, 0, 2)", "(18446744073709551616,)",
                      "(2305843009213693952,)", "(3,", "3", "(" + "1, " * 33 + ")"):
            with self.subTest(shape=shape), self.assertRaisesRegex(ValueError, "not a .npy file"):
                npy_loader("refused", npy_file(shape, b"\0" * 4))
        for descr in ("|O", ">f", "<f", "<f0", "f4", "<f99999999999", ""):
            with self.subTest(descr=descr), self.assertRaisesRegex(ValueError, "not a .npy file"):
                npy_loader("refused", npy_file("(1,)", b"\0" * 4, descr))
        for length in (0, 65535, 5):
            with self.subTest(length=length), self.assertRaises(ValueError):
                npy_loader("refused", npy_file("(1,)", b"\0" * 4, length=length))

    def test_a_shape_beyond_the_memory_for_batches_is_said(self):
        for shape in ("(2305843009213693951,)", "(1152921504606846975,)", "(1099511627776,)"):
            with self.subTest(shape=shape), self.assertRaisesRegex(BufferError, "needs"):
                for batch in npy_loader("large", npy_file(shape, b""), b"?", skip_errors=True,
                                        memory=1 << 20):
                    memoryview(batch[0])

    def test_types_without_a_name_here_are_bytes(self):
        for descr, size in ((">f4", 4), ("<c8", 8), ("<U1", 4), ("|S3", 3), ("|V7", 7)):
            with self.subTest(descr=descr):
                body = bytes(range(2 * size))
                batch = next(iter(npy_loader("named", *[npy_file("(2,)", body, descr)] * 2, b"",
                                             skip_errors=True)))
                self.check(batch[1], (2 * size,), body)
                self.check(batch[2], (0,), b"")
                self.check(batch.data, (3, 2 * size), 2 * body + bytes(2 * size))

    def test_tables_that_were_written_to_show_no_other_memory(self):
        def spoil(table, number):
            memoryview(table)[0] = number

        for number in (1 << 62, -1, 1 << 40, 1 << 20):
            plain = next(iter(onepot.Loader(TAR, FILES, 0, 1, shuffle=False)))
            spoil(plain.sizes, number)
            with self.assertRaisesRegex(BufferError, "does not fit"):
                plain[0]
            array = next(iter(npy_loader("spoiled", npy_file("(3,)", b"\1" * 12))))
            spoil(array.offsets, number)
            with self.assertRaisesRegex(BufferError, "does not fit"):
                array[0]

    def test_a_header_that_changes_between_epochs_changes_no_shape(self):
        good, body = npy_file("(2, 3)", b"\1" * 24), b"\1" * 24
        loader = npy_loader("changing", good, good, skip_errors=True)
        self.assertEqual(list(next(iter(loader)).valid), [True, True])
        path = os.path.join(WORK, "changing.tar")
        for shape in ("(3, 2)", "(9, 9)", "(0, 0)"):
            with open(path, "r+b") as f:
                f.seek(512)
                f.write(npy_file(shape, body))
            batch = next(iter(loader))
            self.assertEqual(list(batch.valid), [False, True])
            self.check(batch[0], (2, 3), bytes(24))
            self.check(batch[1], (2, 3), body)

    def test_a_view_outlives_everything(self):
        loader = npy_loader("outlived", npy_file("(2, 3)", b"\1" * 24))
        batch = next(iter(loader))
        row, array = batch.data[0][1], batch[0]
        loader.close()
        del batch, loader
        gc.collect()
        self.check(row, (3,), b"\1" * 12)
        self.check(array, (2, 3), b"\1" * 24)

    def test_who_looks_at_no_strides_gets_no_other_bytes(self):
        sample = npy_file("(2, 3)", struct.pack("<6f", 0, 3, 1, 4, 2, 5), order="True")
        batch = next(iter(npy_loader("fortran", sample)))
        row = batch.data[0][1]
        self.assertEqual(list(row), [3, 4, 5])
        self.assertEqual(memoryview(row).tobytes(), struct.pack("<3f", 3, 4, 5))
        for strange in (row, batch.data):
            with self.assertRaises(BufferError):
                zlib.crc32(strange)
        self.assertEqual(zlib.crc32(batch.labels), zlib.crc32(bytes(batch.labels)))


class DLPack(unittest.TestCase):
    def loader(self, **options):
        return onepot.Loader(onepot.Archive(TAR), 16, 0, 1, shuffle=False, **options)

    @needs_devices
    def test_a_consumer_keeps_the_batch_and_needs_no_interpreter_to_give_it_back(self):
        for device in (None, "host"):
            loader = self.loader(device=device, prefetch=2)
            batch = next(iter(loader))
            wanted = bytes(batch.data)
            managed = take(batch.__dlpack__())
            labels = take(batch.labels.__dlpack__())
            del batch
            gc.collect()
            for _ in range(3):
                for other in loader:
                    pass
            self.assertEqual(bytes_of(managed), wanted)
            self.assertEqual(labels.contents.tensor.code, 0)
            self.assertEqual(labels.contents.tensor.bits, 64)
            other = loader = None  # outlives both
            self.assertEqual(bytes_of(managed), wanted)
            threads = [threading.Thread(target=m.contents.deleter, args=(m,))
                       for m in (managed, labels)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def test_array_interfaces_show_the_memory(self):
        batch = next(iter(self.loader()))
        shown = batch.labels.__array_interface__
        self.assertEqual((shown["typestr"], shown["shape"], shown["strides"], shown["version"]),
                         ("<i8", (len(batch),), (8,), 3))
        address, read_only = shown["data"]
        self.assertEqual(ctypes.string_at(address, 8 * len(batch)), bytes(batch.labels))
        self.assertFalse(read_only)
        sample = onepot.Archive(TAR)[10].data.__array_interface__
        self.assertEqual((sample["typestr"], sample["data"][1]), ("|u1", True))
        self.assertFalse(hasattr(batch.data, "__cuda_array_interface__"))

    def test_version_1_is_for_those_that_ask(self):
        batch = next(iter(self.loader()))
        managed = take(batch.data.__dlpack__(max_version=(1, 1)), DLVersioned)
        self.assertEqual(list(managed.contents.version), [1, 0])
        self.assertEqual(managed.contents.flags, 0)
        self.assertEqual(bytes_of(managed), bytes(batch.data))
        managed.contents.deleter(managed)
        managed = take(batch.data.__dlpack__(max_version=(0, 8), dl_device=(1, 0), copy=False))
        managed.contents.deleter(managed)
        with self.assertRaises(BufferError):
            batch.data.__dlpack__(dl_device=(2, 0))
        managed = take(batch.data.__dlpack__(max_version=(1, 0), copy=True), DLVersioned)
        self.assertEqual(managed.contents.flags, 2)  # it is a copy
        self.assertEqual(bytes_of(managed), bytes(batch.data))
        ctypes.memset(managed.contents.tensor.data, 0x55, 1)
        self.assertNotEqual(bytes_of(managed), bytes(batch.data))
        managed.contents.deleter(managed)
        with self.assertRaises(TypeError):
            batch.data.__dlpack__(max_version=1)

    def test_what_can_not_be_written_to_is_told_or_copied(self):
        data = onepot.Archive(TAR)[10].data
        managed = take(data.__dlpack__(max_version=(1, 0)), DLVersioned)
        self.assertEqual((managed.contents.flags, bytes_of(managed)), (1, content(10)))
        managed.contents.deleter(managed)
        managed = take(data.__dlpack__())
        self.assertEqual(bytes_of(managed), content(10))
        ctypes.memset(managed.contents.tensor.data, 0, 5)
        self.assertEqual(bytes(data), content(10))
        managed.contents.deleter(managed)
        with self.assertRaises(BufferError):
            data.__dlpack__(copy=False)

    def test_a_capsule_that_nobody_took_gives_the_batch_back(self):
        loader = self.loader(memory=1 << 18)
        for _ in range(20):
            for batch in loader:
                batch.data.__dlpack__()
                batch.__dlpack__(max_version=(1, 0))

    @needs_devices
    def test_it_is_given_back_while_the_interpreter_ends(self):
        code = ("import sys, onepot\nkept = []\n"
                "for b in onepot.Loader(onepot.Archive(sys.argv[1]), 16, 0, 1, device='host'):\n"
                "    kept.append(b.data.__dlpack__())\n"
                "sys.modules['kept'] = kept\n")
        subprocess.run([sys.executable, "-c", code, TAR], check=True, timeout=240)


@needs_devices
class Devices(unittest.TestCase):
    def test_batches_are_the_same_as_without(self):
        archive = onepot.Archive(TAR)
        plain = onepot.Loader(archive, 16, 0, 1, seed=3)
        loader = onepot.Loader(archive, 16, 0, 1, seed=3, device="host")
        for _ in range(2):
            for b, a in itertools.zip_longest(loader, plain):
                self.assertEqual(b.__dlpack_device__(), (1, 0))
                for name in ("data", "offsets", "sizes", "labels", "indices", "valid"):
                    self.assertEqual(bytes(getattr(a, name)), bytes(getattr(b, name)), name)
                self.assertEqual([bytes(t) for t in a.tensors()],
                                 [bytes(t) for t in b.tensors()])
                self.assertIsNone(b.images)
                b.wait()
        was = loader.transfer()
        self.assertEqual((was["epoch"], was["batches"]), (1, len(loader)))
        self.assertGreater(was["copy_bytes"], 0)
        self.assertGreater(was["peak_bytes_per_second"], 0)
        self.assertEqual(loader.transfer(previous=True)["epoch"], 0)
        with self.assertRaises(OSError):
            plain.transfer()

    def test_the_device_can_gather(self):
        archive = onepot.Archive(TAR)
        plain = onepot.Loader(archive, 16, 0, 1, seed=3)
        loader = onepot.Loader(archive, 16, 0, 1, seed=3, device="host", gather="device")
        for b, a in itertools.zip_longest(loader, plain):
            for name in ("data", "offsets", "sizes", "labels", "indices", "valid"):
                self.assertEqual(bytes(getattr(a, name)), bytes(getattr(b, name)), name)
        self.assertIs(loader.transfer()["gathered_by_device"], True)
        for options in (dict(gather="device"), dict(gather="gpu", device="host"),
                        dict(gather="device", device="host", verify=True)):
            with self.assertRaises(ValueError):
                onepot.Loader(archive, 16, 0, 1, **options)

    def test_streams_that_make_no_sense_are_refused(self):
        batch = next(iter(onepot.Loader(onepot.Archive(TAR), 16, 0, 1, device="host")))
        for stream in (0, -2):
            with self.assertRaises(BufferError):
                batch.data.__dlpack__(stream=stream)
        with self.assertRaises(TypeError):
            batch.data.__dlpack__(stream="legacy")
        with self.assertRaises(TypeError):
            batch.record_stream("a stream")
        managed = take(batch.data.__dlpack__(stream=-1))
        batch.wait()
        self.assertEqual(bytes_of(managed), bytes(batch.data))
        managed.contents.deleter(managed)

    def test_a_batch_is_copied_into_memory_that_stays(self):
        for device in (None, "host"):
            for batch in onepot.Loader(onepot.Archive(TAR), 16, 0, 1, device=device):
                want = bytes(batch.data)
                static = bytearray(b"x" * (len(want) + 5))
                batch.copy_into(static)
                self.assertEqual(bytes(static), want + bytes(5))
                labels = bytearray(8 * len(batch))
                batch.labels.copy_into(labels)
                self.assertEqual(bytes(labels), bytes(batch.labels))
                with self.assertRaisesRegex(ValueError, "room for 7"):
                    batch.labels.copy_into(bytearray(7))
                with self.assertRaisesRegex(ValueError, "written"):
                    batch.copy_into(want)

    def test_images_are_floats_channels_first(self):
        tree, tar = os.path.join(WORK, "pixels"), os.path.join(WORK, "pixels.tar")
        os.makedirs(tree)
        for i in range(20):
            with open(os.path.join(tree, "%02d.raw" % i), "wb") as f:
                f.write(bytes((i + j) % 256 for j in range(2 * 3 * 3)))
        subprocess.run([ONEPOT, "pack", "-o", tar, tree], check=True)
        loader = onepot.Loader(onepot.Archive(tar), 8, 0, 1, device="host", images=(2, 3, 3),
                               mean=(1, 2, 3), scale=0.5)
        for batch in loader:
            view = memoryview(batch.images)
            self.assertEqual((view.shape, view.format), ((len(batch), 3, 2, 3), "f"))
            for i, index in enumerate(memoryview(batch.indices)):
                for c in range(3):
                    for p in range(6):
                        byte = index + 3 * p + c
                        self.assertEqual(view[i, c, p // 3, p % 3], (byte - (1 + c)) * 0.5)
        for kind, code, size in (("float16", 2, 16), ("bfloat16", 4, 16)):
            loader = onepot.Loader(onepot.Archive(tar), 8, 0, 1, device="host",
                                   images=(2, 3, 3), dtype=kind)
            managed = take(next(iter(loader)).__dlpack__())
            tensor = managed.contents.tensor
            self.assertEqual((tensor.code, tensor.bits, tensor.dimensions), (code, size, 4))
            managed.contents.deleter(managed)
        for options in (dict(images=(2, 3, 3)), dict(images=(2, 3, 4), device="host"),
                        dict(images=(2, 3, 3), device="host", dtype="int8"),
                        dict(images=(2, 3, 3), device="host", mean=(1, 2))):
            with self.assertRaises(ValueError):
                onepot.Loader(onepot.Archive(tar), 8, 0, 1, **options)

    def test_a_device_that_is_not_there_is_an_error_with_words(self):
        archive = onepot.Archive(TAR)
        with self.assertRaisesRegex(ValueError, "gpu"):
            onepot.Loader(archive, 16, 0, 1, device="gpu")
        with self.assertRaisesRegex(OSError, "no device 9"):
            onepot.Loader(archive, 16, 0, 1, device="host:9")

    @unittest.skipUnless(torch, "torch is not installed")
    def test_torch_sees_batches_of_the_host_device(self):
        for batch in onepot.Loader(onepot.Archive(TAR), 16, 0, 1, device="host"):
            tensor = torch.from_dlpack(batch)
            self.assertEqual(tensor.numpy().tobytes(), bytes(batch.data))


def lose_page(path, number):
    """One page of the file where it is mapped is, from now on, one that can't be had (SIGBUS)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
    with open("/proc/self/maps") as maps:
        start = next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path))
    at = start + number * mmap.PAGESIZE
    map_fixed = 0x10
    with tempfile.TemporaryFile() as empty:
        got = libc.mmap(at, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED | map_fixed,
                        empty.fileno(), 0)
    if got != at:
        raise OSError(ctypes.get_errno(), "mmap")


class Storage(unittest.TestCase):
    def test_an_archive_that_is_cut_short_is_an_error_and_no_end(self):
        tar, packed = os.path.join(WORK, "cut.tar"), os.path.join(WORK, "cut-packed.tar")
        tree = os.path.join(WORK, "cut")
        os.makedirs(tree)
        for i in range(700):  # so many that the index is mapped, not read
            with open(os.path.join(tree, "%03d.bin" % i), "wb") as f:
                f.write(bytes([i % 251 + 1]) * 5000)
        subprocess.run(["tar", "-C", tree, "-cf", tar, "."], check=True)
        subprocess.run([ONEPOT, "pack", "-q", "-o", packed, tree], check=True)
        archive = onepot.Archive(tar)
        batches = iter(onepot.Loader(archive, 10, 0, 1))
        next(batches)
        os.truncate(tar, 300000)
        with self.assertRaisesRegex(OSError, r"cut\.tar: .*[0-9]{3}\.bin"):
            for batch in batches:
                pass
        archive = onepot.Archive(packed)
        last = archive[699]
        view = memoryview(last.data)
        os.truncate(packed, 300000)
        with self.assertRaises(OSError):
            list(archive.names)
        self.assertEqual(bytes(view), bytes(5000))  # lost, and nobody could be told
        with self.assertRaisesRegex(OSError, "shorter"):
            last.data

    def test_a_page_that_the_disk_fails_to_give_is_never_zeros(self):
        path = os.path.join(WORK, "failing.tar")
        with tarfile.open(path, "w") as tar:
            member = tarfile.TarInfo("c/a.jpg")
            member.size = 10 * mmap.PAGESIZE
            tar.addfile(member, io.BytesIO(b"\1" * member.size))
        ways = (lambda archive: bytes(archive[0]), lambda archive: bytes(archive[0].read()),
                lambda archive: bytes(onepot.Dataset(archive)[0][0]),
                lambda archive: onepot.ImageFolder(archive, loader=lambda f: f.read())[0][0])
        for way in ways:
            archive = onepot.Archive(path)
            archive[0].data  # it is mapped
            lose_page(path, 5)
            self.assertEqual(way(archive), b"\1" * member.size)  # a read may succeed
            archive = None

    def test_time_outs_and_retries_are_options(self):
        archive = onepot.Archive(TAR, retries=0)
        for seconds in (None, 0, 100.5):
            loader = onepot.Loader(archive, 10, rank=0, world_size=1, io_timeout=seconds)
            self.assertEqual(len(drain(loader)), 11)
        # A millisecond: any thread that is interrupted may take as long.
        onepot.Loader(archive, 10, rank=0, world_size=1, io_timeout=0.0001)
        for seconds in (-1, float("nan"), 1e30):
            with self.assertRaises(ValueError):
                onepot.Loader(archive, 10, rank=0, world_size=1, io_timeout=seconds)
        for retries in (-1, 2**32 - 1, 2**70):
            with self.assertRaises((ValueError, OverflowError)):
                onepot.Archive(TAR, retries=retries)
        self.assertEqual(len(pickle.loads(pickle.dumps(archive))), FILES)

    def test_what_is_read_from_storage_is_kept(self):
        os.environ["ONEPOT_ASSUME_REMOTE"] = "1"
        try:
            archive = onepot.Archive(TAR)
        finally:
            del os.environ["ONEPOT_ASSUME_REMOTE"]
        loader = onepot.Loader(archive, 10, rank=0, world_size=1)
        for _ in range(3):
            drain(loader)
        stats = loader.stats
        self.assertLessEqual(stats["reads"], FILES)
        self.assertGreaterEqual(stats["cache_hits"], 2 * FILES)
        self.assertLessEqual(stats["cache_bytes"], stats["cache_part"])
        self.assertLessEqual(stats["slab_bytes"], stats["memory"])


class Signals(unittest.TestCase):
    def test_signals_that_are_handled_do_not_end_the_opening(self):
        """As they come from a profiler's timer, or from a batch system."""
        path = os.path.join(WORK, "foreign.tar")
        with tarfile.open(path, "w") as tar:
            for i in range(2000):
                tar.addfile(tarfile.TarInfo(f"{i % 10}/{i}"))
        me, done, seen = threading.main_thread().ident, threading.Event(), []

        def send():
            while not done.wait(0.001):
                signal.pthread_kill(me, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        sender = threading.Thread(target=send)
        sender.start()
        try:
            while not seen:  # its sender may be late
                time.sleep(0.001)
            self.assertEqual(len(onepot.Archive(path)), 2000)
        finally:
            done.set()
            sender.join()
            signal.signal(signal.SIGUSR1, before)

    def test_a_writer_that_is_interrupted_gives_up_for_that_reason(self):
        class Stop(Exception):
            pass

        def stop(*unused):
            raise Stop

        path = os.path.join(WORK, "interrupted.tar")
        before = signal.signal(signal.SIGALRM, stop)
        try:
            for i in range(200):
                with self.assertRaises(Stop):
                    with onepot.Writer(path, sync=False) as writer:
                        signal.setitimer(signal.ITIMER_REAL, 0.0005 + i * 0.00001)
                        for name in itertools.count():
                            writer.add(str(name), b"x")
                self.assertFalse(os.path.exists(path))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


    def test_after_ctrl_c_in_random_places_no_sample_is_lost_or_comes_twice(self):
        """Goes on with the same iterator, the same loader restored, or another loader."""
        chance, interrupted, armed, is_coming = random.Random(11), 0, False, False
        had, fresh, batch = [], [], None  # had: names by epoch

        def interrupt(*unused):
            nonlocal armed, is_coming
            is_coming = False
            if armed:
                armed = False
                raise KeyboardInterrupt

        def loader():
            return onepot.Loader(TAR, 2, 0, 1, seed=3, threads=1)

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            one, state = loader(), None
            it = iter(one)
            while interrupted < 50 or one.epoch < 2 or state is not None:
                try:
                    armed = interrupted < 50
                    if not is_coming:  # where epochs are short, it comes in a later one
                        is_coming = True
                        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 2e-3))
                    if state is not None:
                        one.load_state_dict(state)
                        it = iter(one)
                        state = None
                    for batch in it:
                        fresh.append(batch)
                    it = iter(one)
                    armed = False
                except KeyboardInterrupt:
                    interrupted += 1
                    if batch is not None and (not fresh or fresh[-1] is not batch):
                        fresh.append(batch)  # the loop's variable has it, so it was delivered
                    how = chance.choice(["goes on", "restored", "another"])
                    if how != "goes on":
                        state = state or one.state_dict()
                        one = loader() if how == "another" else one
                for batch in fresh:
                    had += [[] for _ in range(len(had), batch.epoch + 1)]
                    had[batch.epoch] += batch.names
                fresh, batch = [], None
        finally:
            armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        names = sorted(onepot.Archive(TAR).names)
        self.assertGreater(len(had), 1)
        for epoch in had[:-1]:
            self.assertEqual(sorted(epoch), names)
        self.assertEqual(len(had[-1]), len(set(had[-1])))

    def test_an_iteration_that_ctrl_c_ended_before_its_first_batch_loses_nothing(self):
        loader = onepot.Loader(TAR, 10, 0, 1)
        it = iter(loader)
        next(it)
        state, rest = loader.state_dict(), numbers(it)
        for again in (onepot.Loader(TAR, 10, 0, 1), loader):
            again.load_state_dict(state)
            iter(again)  # as if Ctrl-C came before the first batch
            self.assertEqual(numbers(again), rest)
            again.set_epoch(0)
            next(again)  # the place of the state, but not by it
            self.assertEqual(next(iter(again)).epoch, 1)


class Threads(unittest.TestCase):
    """Objects that several threads use at once; of use above all where there is no GIL."""

    def together(self, *works):
        failed = []
        start = threading.Barrier(len(works))

        def run(work):
            start.wait()
            try:
                work()
            except BaseException as e:
                failed.append(e)

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def test_a_sampler(self):
        sampler = onepot.DistributedSampler(1000, num_replicas=1, rank=0)
        shared = iter(sampler)
        drawn = []

        def draw():
            drawn.extend(shared)

        def turn():
            for epoch in range(50):
                sampler.set_epoch(epoch)
                sampler.load_state_dict({"epoch": epoch, "yielded": epoch})
                self.assertLess(sampler.state_dict()["epoch"], 50)

        def read():
            for _ in range(20):
                self.assertLessEqual(len(list(sampler)), 1000)
                self.assertLess(sampler.epoch, 50)

        self.together(draw, draw, turn, turn, read, read)
        self.assertEqual(len(drawn), 1000)

    def test_a_loader(self):
        loader = onepot.Loader(onepot.Archive(TAR), 7, rank=0, world_size=1)
        state = loader.state_dict()

        def take():
            for _ in range(10):
                for batch in loader:
                    self.assertGreater(len(batch), 0)

        def turn():
            for epoch in range(50):
                loader.set_epoch(epoch)
                loader.load_state_dict(state)
                self.assertEqual(loader.state_dict()["samples"], FILES)
                self.assertGreater(loader.stats["threads"], 0)

        self.together(take, take, turn, turn)
        loader.set_epoch(3)
        self.assertEqual(sorted(i for _, _, b in drain(loader) for i in b), list(range(FILES)))

    def test_a_name_that_conflicts_does_not_spoil_the_archive(self):
        path = os.path.join(WORK, "conflicts.tar")
        for zstd in 0, 3:
            with onepot.Writer(path, overwrite=True, zstd=zstd) as writer:
                writer.add("a/file", b"first" * 1000)
                for name in "a/file", "a", "a/file/below":
                    with self.assertRaises(FileExistsError) as caught:
                        writer.add(name, b"second" * 1000)
                    self.assertIn("'%s'" % name, str(caught.exception))
                writer.add("b", b"last")
            names = subprocess.run([ONEPOT, "ls", path], stdout=subprocess.PIPE, check=True).stdout
            self.assertEqual(names.split(), [b"a", b"b"])
            subprocess.run([ONEPOT, "verify", "-q", path], check=True)
            content = subprocess.run([ONEPOT, "cat", path, "a/file"], stdout=subprocess.PIPE)
            self.assertEqual(content.stdout, b"first" * 1000)

    def test_a_writer_belongs_to_one_at_a_time(self):
        path = os.path.join(WORK, "threads.tar")
        writer = onepot.Writer(path)
        refused, added = [], []

        def add(first):
            for i in range(first, first + 200):
                try:
                    writer.add("%d" % i, b"x" * 1000)
                    added.append(i)
                except RuntimeError:
                    refused.append(i)

        self.together(lambda: add(0), lambda: add(200), lambda: add(400))
        writer.close()
        self.assertEqual(len(added) + len(refused), 600)
        self.assertEqual(len(onepot.Archive(path)), len(added))

    def test_what_an_object_is_about_never_changes(self):
        archive = onepot.Archive(TAR)
        loader = onepot.Loader(archive, 5, rank=0, world_size=1)
        sampler = onepot.DistributedSampler(10, num_replicas=1, rank=0)
        for again in (lambda: archive.__init__(TAR),
                      lambda: loader.__init__(archive, 5, rank=0, world_size=1),
                      lambda: sampler.__init__(10, num_replicas=1, rank=0)):
            with self.assertRaises(ValueError):
                again()
        self.assertEqual(len(archive), FILES)
        self.assertEqual(len(drain(loader)), 21)
        self.assertEqual(len(list(sampler)), 10)


if __name__ == "__main__":
    signal.alarm(580)
    unittest.main()

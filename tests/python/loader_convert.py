"""python -m onepot.convert: what other libraries wrote is what an archive has, and back again.

Each of the other libraries is tested where it is installed.
"""

import importlib.util
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import onepot
import tfrecords

JPEG = b"\xff\xd8\xff" + bytes(range(200))
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(100))


def needs(*modules):
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, "there is no Python module " + ", ".join(missing))


def convert(*arguments, status=0, **options):
    done = subprocess.run([sys.executable, "-m", "onepot.convert", *map(str, arguments)],
                          capture_output=True, check=False, **options)
    if done.returncode != status:
        raise AssertionError(f"convert {arguments}: {done.returncode}, {done.stderr.decode()}")
    return done.stderr.decode() + done.stdout.decode()


def files(path):
    """name -> bytes of all files of an archive, or of shards."""
    return {sample.name: bytes(sample) for sample in onepot.Archive(path)}


class Base(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="onepot-test-convert-", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
        os.environ["XDG_CACHE_HOME"] = os.path.join(self.work, "cache")
        self.addCleanup(shutil.rmtree, self.work)

    def __truediv__(self, name):
        return os.path.join(self.work, name)

    def records(self, count=5):
        return tfrecords.write(self / "in.tfrecord", [
            tfrecords.example({"image": JPEG + b"%d" % i, "label": i % 3, "box": [0.5, float(i)]})
            for i in range(count)])


class Archives(Base):
    def test_records_become_an_archive_and_records_again(self):
        source = self.records()
        said = convert(source, self / "a.tar")
        self.assertIn("5 samples", said)
        expected = files(source)
        self.assertEqual(files(self / "a.tar"), expected)
        convert(self / "a.tar", self / "b.tfrecord")
        again = files(self / "b.tfrecord")
        self.assertEqual({name: data for name, data in again.items() if "__key__" not in name}, expected)
        self.assertEqual(again["00000002.__key__"], b"00000002")
        subprocess.run([os.environ["ONEPOT"], "verify", self / "b.tfrecord"], check=True, capture_output=True)

    def test_classes_are_directories(self):
        convert(self.records(), self / "a.tar", "--classes")
        self.assertEqual(sorted(files(self / "a.tar"))[:2], ["0/00000000.box.f32", "0/00000000.image.jpg"])
        archive = onepot.Archive(self / "a.tar", group="basename")
        self.assertEqual(archive.classes, ["0", "1", "2"])
        convert(self / "in.tfrecord", self / "b.tar", "--classes", "--label", "image.jpg2", status=1)
        self.assertFalse(os.path.exists(self / "b.tar"))

    def test_shards_hold_whole_samples(self):
        source = self.records(20)
        convert(source, self / "s-%03d.tar", "--shard-bytes", "1K")
        shards = sorted(name for name in os.listdir(self.work) if name.startswith("s-"))
        self.assertGreater(len(shards), 3)
        self.assertEqual(files(self / "s-*.tar"), files(source))
        for shard in shards:
            for sample in onepot.Archive(self / shard, group="basename"):
                self.assertEqual(len(sample.parts), 3)

    def test_nothing_is_left_of_a_failure_and_nothing_replaced_unasked(self):
        source = self.records(20)
        with open(source, "r+b") as f:
            f.truncate(os.path.getsize(source) - 5)
        for out in ("a.tar", "s-%d.tar", "b.tfrecord"):
            self.assertIn("truncated", convert(source, self / out, status=1))
        self.assertEqual(os.listdir(self.work), ["in.tfrecord"])
        # Not before the second sample, so that a shard is complete.
        source = tfrecords.write(self / "in.tfrecord", [tfrecords.example({"label": 1, "x": "1"}),
                                                        tfrecords.example({"x": "2"})])
        for out in ("a.tar", "s-%d.tar", "b.tfrecord"):
            self.assertIn("which column", convert(source, self / out, "--classes", "--shard-bytes=1", status=1))
            self.assertEqual(os.listdir(self.work), ["in.tfrecord"])
        source = self.records(2)
        for out in ("a.tar", "b.tfrecord"):
            with open(self / out, "wb") as f:
                f.write(b"mine")
            convert(source, self / out, status=1)
            with open(self / out, "rb") as f:
                self.assertEqual(f.read(), b"mine")
            convert(source, self / out, "--force")
            self.assertEqual(len(onepot.Archive(self / out, group="basename")), 2)

    def test_fewer_shards_replace_more(self):
        def shards():
            return sorted(name for name in os.listdir(self.work) if name != "in.tfrecord")
        source, out = self.records(6), self / "s-%02d.tar"
        convert(source, out, "--shard-bytes=1")
        full = shards()
        self.assertEqual(len(full), 6)
        with open(self / "s-06.tar", "wb") as f:
            f.write(b"not ours" * 100)
        shutil.copy(self / "s-00.tar", self / "s-08.tar")
        shutil.copy(self / "s-00.tar", self / "s-3.tar")
        self.assertIn("exists already", convert(source, out, "--shard-bytes=1", status=1))
        said = convert(source, out, "--shard-bytes=1G", "--force")
        self.assertIn("convert: removed %s to %s: an earlier" % (self / "s-01.tar", self / "s-05.tar"), said)
        self.assertEqual(shards(), ["s-00.tar", "s-06.tar", "s-08.tar", "s-3.tar"])
        self.assertEqual(len(onepot.Archive(self / "s-00.tar", group="basename")), 6)
        self.assertNotIn("removed", convert(source, out, "--shard-bytes=1G", "--force"))

    def test_a_terminal_sees_progress_and_a_file_does_not(self):
        source = self.records(3)
        ours, theirs = pty.openpty()
        subprocess.run([sys.executable, "-m", "onepot.convert", source, self / "a.tar"], stderr=theirs,
                       stdout=subprocess.DEVNULL, check=True)
        os.close(theirs)
        self.assertIn(b"of 3 samples", os.read(ours, 1000))
        os.close(ours)
        self.assertNotIn("\r", convert(source, self / "b.tar"))

    def test_a_missing_library_is_named(self):
        with open(self / "x.parquet", "wb") as f:
            f.write(b"PAR1 and more")
        hidden = self / "hidden"
        os.mkdir(hidden)
        with open(os.path.join(hidden, "pyarrow.py"), "w", encoding="ascii") as f:
            f.write("raise ImportError('not today')\n")
        path = os.pathsep.join((hidden, os.environ.get("PYTHONPATH", "")))
        said = convert(self / "x.parquet", self / "a.tar", status=1, env={**os.environ, "PYTHONPATH": path})
        self.assertIn("pip install pyarrow", said)
        self.assertIn("trust the files", convert("--help"))


@needs("h5py", "numpy")
class Hdf5(Base):
    def test_rows_are_samples(self):
        import h5py
        import numpy
        pixels = numpy.arange(100 * 4 * 4 * 3, dtype="u1").reshape(100, 4, 4, 3)
        with h5py.File(self / "a.h5", "w") as f:
            f["x/pixels"] = pixels
            f["label"] = numpy.arange(100) % 7
            f["score"] = numpy.linspace(0, 1, 100)
            jpegs = f.create_dataset("jpeg", 100, h5py.vlen_dtype("u1"))
            for i in range(100):
                jpegs[i] = numpy.frombuffer(JPEG + b"%d" % i, "u1")
            f["text"] = ["word %d" % i for i in range(100)]
            f.attrs["not"] = "a dataset"
        convert(self / "a.h5", self / "a.tar")
        found = files(self / "a.tar")
        self.assertEqual(len(found), 500)
        self.assertEqual(found["00000042.label.cls"], b"0")
        self.assertEqual(found["00000043.jpeg.jpg"], JPEG + b"43")
        self.assertEqual(json.loads(found["00000099.score.json"]), 1.0)
        self.assertEqual(found["00000005.text"], b"word 5")
        with open(self / "p.npy", "wb") as f:
            f.write(found["00000007.x.pixels.npy"])
        self.assertTrue((numpy.load(self / "p.npy") == pixels[7]).all())
        convert(self / "a.h5", self / "c.tar", "--classes")
        self.assertEqual(onepot.Archive(self / "c.tar").classes, [str(i) for i in range(7)])

    def test_what_has_no_common_rows_is_refused(self):
        import h5py
        with h5py.File(self / "a.h5", "w") as f:
            f["a"], f["b"] = [1, 2], [1, 2, 3]
        self.assertIn("a 2, b 3", convert(self / "a.h5", self / "a.tar", status=1))
        with h5py.File(self / "b.h5", "w"):
            pass
        self.assertIn("no dataset with rows", convert(self / "b.h5", self / "a.tar", status=1))
        with open(self / "c.h5", "wb") as f:
            f.write(b"\x89HDF\r\n\x1a\n and nothing")
        convert(self / "c.h5", self / "a.tar", status=1)


@needs("pyarrow")
class Parquet(Base):
    def table(self):
        import pyarrow
        info = {"info": {"features": {"image": {"_type": "Image"},
                                      "label": {"names": ["cat", "a/dog"], "_type": "ClassLabel"}}}}
        table = pyarrow.table({
            "image": [{"bytes": (PNG if i % 2 else JPEG) + b"%d" % i, "path": "x"} for i in range(200)],
            "label": [i % 2 for i in range(200)], "caption": ["ü %d" % i for i in range(200)],
            "boxes": [[i, i + 1] for i in range(200)], "none": pyarrow.nulls(200, pyarrow.int64())})
        return table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})

    def check(self, path):
        convert(path, self / "a.tar", "--force")
        found = files(self / "a.tar")
        self.assertEqual(len(found), 800)
        self.assertEqual(found["00000150.image.jpg"], JPEG + b"150")
        self.assertEqual(found["00000151.image.png"], PNG + b"151")
        self.assertEqual(found["00000151.label.cls"], b"1")
        self.assertEqual(found["00000009.caption.txt"], "ü 9".encode())
        self.assertEqual(found["00000009.boxes.json"], b"[9, 10]")
        convert(path, self / "b.tar", "--classes", "--force")
        self.assertEqual(onepot.Archive(self / "b.tar").classes, ["a.dog", "cat"])

    def test_parquet_with_image_bytes(self):
        from pyarrow import parquet
        parquet.write_table(self.table(), self / "a.parquet", row_group_size=37)
        self.check(self / "a.parquet")

    def test_feather_files_and_streams(self):
        import pyarrow
        from pyarrow import feather
        feather.write_feather(self.table(), self / "a.feather", compression="lz4")
        self.check(self / "a.feather")
        with pyarrow.OSFile(self / "b.arrow", "wb") as out, pyarrow.ipc.new_stream(out, self.table().schema) as s:
            s.write_table(self.table(), max_chunksize=30)
        self.check(self / "b.arrow")

    def test_an_image_that_lies_elsewhere_is_told_of(self):
        import pyarrow
        from pyarrow import parquet
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        rows = pyarrow.array([{"bytes": None, "path": "/else/where.jpg"}], kind)
        parquet.write_table(pyarrow.table({"image": rows}), self / "a.parquet")
        self.assertIn("/else/where.jpg", convert(self / "a.parquet", self / "a.tar", status=1))
        with open(self / "b.parquet", "wb") as f:
            f.write(b"PAR1 and nothing else")
        convert(self / "b.parquet", self / "a.tar", status=1)


class ManyFiles(Base):
    def test_a_file_of_no_format_is_told_which_there_are(self):
        with open(self / "a.csv", "w") as f:
            f.write("a,b\n1,2\n")
        said = convert(self / "a.csv", self / "a.tar", status=1)
        self.assertIn("a.csv: is none of the formats that are converted: HDF5, Parquet, Arrow", said)
        self.assertFalse(os.path.exists(self / "a.tar"))

    def test_archives_are_one(self):
        for i in range(3):
            with onepot.Writer(self / ("in-%d.tar" % i), sync=False) as writer:
                writer.add("%d.txt" % i, b"%d" % i)
        expected = {"%d.txt" % i: b"%d" % i for i in range(3)}
        convert(self / "in-0.tar", self / "in-1.tar", self / "in-2.tar", self / "a.tar")
        convert(self / "in-*.tar", self / "b.tar")
        self.assertEqual([files(self / name) for name in ("a.tar", "b.tar")], [expected] * 2)

    def test_a_list_of_files_names_none_elsewhere(self):
        for state in ({"_data_files": [{"filename": "../x.arrow"}]}, {"_data_files": [{"filename": "/x"}]},
                      {"_data_files": 3}, {"_data_files": [{"filename": 3}]}, {"_data_files": [{}]}, [], 7):
            with open(self / "state.json", "w") as f:
                json.dump(state, f)
            said = convert(self.work, self / "out.tar", status=1)
            self.assertRegex(said, "outside of its directory|as save_to_disk writes")


@needs("pyarrow")
class ManyTables(Base):
    def parquet(self, name, numbers, **columns):
        import pyarrow
        import pyarrow.parquet
        os.makedirs(os.path.dirname(self / name), exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table({"n": numbers, **columns}), self / name)

    def arrow(self, name, numbers):
        import pyarrow
        os.makedirs(os.path.dirname(self / name), exist_ok=True)
        table = pyarrow.table({"n": numbers})
        with pyarrow.OSFile(self / name, "wb") as f, pyarrow.ipc.new_stream(f, table.schema) as out:
            out.write_table(table)

    def check(self, *sources, expected):
        convert(*sources, self / "out.tar", "--force")
        self.assertEqual(files(self / "out.tar"), expected)

    def test_files_patterns_and_folders_are_read_in_their_order(self):
        for i in range(12):
            self.parquet("in/train-%d.parquet" % i, [2 * i, 2 * i + 1])
        with open(self / "in/_SUCCESS", "w"), open(self / "in/.x.parquet", "w"):
            pass
        expected = {"%08d.n.cls" % i: b"%d" % i for i in range(24)}
        for sources in ([self / "in/train-*.parquet"], [self / "in"],
                        [self / ("in/train-%d.parquet" % i) for i in range(12)]):
            self.check(*sources, expected=expected)

    def test_folders_name_columns(self):
        self.parquet("in/year=2024/kind=a%20b/x.parquet", [1])
        self.parquet("in/year=2025/kind=7/x.parquet", [2])
        self.parquet("in/year=2025/kind=__HIVE_DEFAULT_PARTITION__/x.parquet", [3])
        expected = {"00000000.n.cls": b"1", "00000000.year.cls": b"2024", "00000000.kind.txt": b"a b",
                    "00000001.n.cls": b"2", "00000001.year.cls": b"2025", "00000001.kind.txt": b"7",
                    "00000002.n.cls": b"3", "00000002.year.cls": b"2025"}
        self.check(self / "in", expected=expected)
        self.check(self / "in/*/*/*.parquet", expected=expected)
        convert(self / "in", self / "classes.tar", "--classes", "--label", "year")
        self.assertEqual(onepot.Archive(self / "classes.tar").classes, ["2024", "2025"])

    def test_what_save_to_disk_wrote(self):
        def save(folder, parts):
            for i, numbers in enumerate(parts):
                self.arrow("%s/data-%d.arrow" % (folder, i), numbers)
            self.arrow(folder + "/cache-0.arrow", [99])  # of a later map(): no part of it
            with open(self / (folder + "/state.json"), "w") as f:
                json.dump({"_data_files": [{"filename": "data-%d.arrow" % i}
                                           for i in reversed(range(len(parts)))]}, f)

        save("all/train", [[3], [1, 2]])
        save("all/test", [[4]])
        self.check(self / "all/train", expected={"%08d.n.cls" % i: b"%d" % (i + 1) for i in range(3)})
        with open(self / "all/dataset_dict.json", "w") as f:
            json.dump({"splits": ["train", "test"]}, f)
        convert(self / "all", self / "splits.tar")
        self.assertEqual(sorted((name.split("/")[0], data) for name, data in
                                files(self / "splits.tar").items()),
                         [("test", b"4"), ("train", b"1"), ("train", b"2"), ("train", b"3")])

    def test_formats_are_not_mixed(self):
        self.parquet("in/a.parquet", [1])
        self.arrow("in/b.arrow", [1])
        said = convert(self / "in", self / "out.tar", status=1)
        self.assertIn("b.arrow: has another format than", said)

    def test_nothing_is_left_if_a_later_file_fails(self):
        self.parquet("in/a.parquet", [1])
        with open(self / "in/b.parquet", "w") as f:
            f.write("PAR1")
        convert(self / "in", self / "out.tar", status=1)
        self.assertFalse(os.path.exists(self / "out.tar"))


@needs("lmdb")
class Lmdb(Base):
    def test_entries_are_samples(self):
        import lmdb
        for name, subdir in (("folder", True), ("file.lmdb", False)):
            with lmdb.open(self / name, subdir=subdir, map_size=1 << 24) as e, e.begin(write=True) as t:
                for i in range(50):
                    t.put(b"a/n01.%04d" % i, JPEG + b"%d" % i)
                t.put(b"meta", struct.pack("<d", 1.5))
            convert(self / name, self / "a.tar", "--force")
            found = files(self / "a.tar")
            self.assertEqual(len(found), 51)
            self.assertEqual(found["a/n01_0007.jpg"], JPEG + b"7")
            self.assertEqual(found["meta.bin"], struct.pack("<d", 1.5))
        with open(self / "bad.lmdb", "wb") as f:
            f.write(b"no database" * 1000)
        convert(self / "bad.lmdb", self / "b.tar", status=1)


unittest.main()

"""A TFRecord file in the loader: a record is a sample, with parts named by its features."""

import io
import os
import pickle
import shutil
import struct
import tarfile
import tempfile
import unittest

import onepot
import tfrecords

IMAGE = b"\xff\xd8\xff" + bytes(range(200))


class Records(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="onepot-test-records-", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
        os.environ["XDG_CACHE_HOME"] = os.path.join(self.work, "cache")
        self.addCleanup(shutil.rmtree, self.work)
        for shard in range(3):
            tfrecords.write(os.path.join(self.work, f"{shard}.tfrecord"), [
                tfrecords.example({"image/encoded": IMAGE + b"%d %d" % (shard, i), "label": 100 * shard + i,
                                   "box": [0.5, float(i)]}) for i in range(10)])
        self.one = os.path.join(self.work, "1.tfrecord")

    def test_a_record_is_a_sample(self):
        archive = onepot.Archive(self.one, group="basename")
        self.assertEqual(list(archive.names), [f"{i:08}" for i in range(10)])
        parts = archive[7].parts
        self.assertEqual({name: bytes(part) for name, part in parts.items()},
                         {"box.f32": struct.pack("<2f", 0.5, 7), "label.cls": b"107",
                          "image.encoded.jpg": IMAGE + b"1 7"})
        self.assertEqual(int(bytes(parts["label.cls"])), 107)

    def test_shards_are_one_dataset(self):
        archive = onepot.Archive(self.work, group="basename")
        labels = [int(bytes(sample.parts["label.cls"])) for sample in archive]
        self.assertEqual(sorted(labels), [100 * shard + i for shard in range(3) for i in range(10)])

    def test_batches_have_what_the_records_have(self):
        archive = onepot.Archive(self.one, group="basename")
        seen = []
        for batch in onepot.Loader(archive, batch_size=4, shuffle=False):
            seen += [bytes(sample) for sample in batch]
        self.assertEqual(seen, [bytes(sample) for sample in archive])
        self.assertTrue(all(b"%d" % (100 + i) in seen[i] for i in range(10)))

    def check_labels(self, archive, expected):
        """However they are asked for."""
        self.assertEqual([sample.label for sample in archive], expected)
        self.assertEqual(list(memoryview(archive.labels)), expected)
        self.assertEqual(archive.classes, [])
        for verify in (False, True):
            loader = onepot.Loader(archive, batch_size=4, shuffle=False, verify=verify)
            self.assertEqual([label for batch in loader for label in memoryview(batch.labels)], expected)

    def test_a_feature_is_the_label(self):
        for labels in "label", "label.cls":
            for options in {"group": "basename"}, {"extensions": ".jpg"}:
                self.check_labels(onepot.Archive(self.one, labels=labels, **options),
                                  [100 + i for i in range(10)])
        shards = onepot.Archive(self.work, extensions=".jpg", labels="label")
        self.assertEqual(sorted(memoryview(shards.labels)), [100 * s + i for s in range(3) for i in range(10)])
        fold = shards.fold(3, 1)
        self.assertEqual(list(memoryview(pickle.loads(pickle.dumps(fold)).labels)), list(memoryview(fold.labels)))

    def test_labels_that_are_none(self):
        path = os.path.join(self.work, "other")
        features = [{"x": b"0", "a/b": 7}, {"x": b"1", "a/b": -2**63}, {"x": b"2"}, {"x": b"3", "a/b": [1, 2]},
                    {"x": b"4", "a/b": b"5"}, {"x": b"5", "a/b": b"x"}]
        tfrecords.write(path, [tfrecords.example(f) for f in features])
        archive = onepot.Archive(path, group="basename", labels="a/b")
        self.check_labels(archive.subset([0, 1, 2, 4]), [7, -2**63, -1, 5])
        for i, name in (3, "00000003.a.b.cls"), (5, "00000005.a.b"):
            bad = archive.subset([i, 0])
            message = "%s: it is to be a label, and is no integer" % name
            for read in (lambda: bad[0].label, lambda: bad.labels, lambda: bad._fill([0, 1], 0, bytearray(4096)),
                         lambda: list(onepot.Loader(bad, batch_size=2, shuffle=False))):
                with self.assertRaisesRegex(OSError, message):
                    read()
            for batch in onepot.Loader(bad, batch_size=2, shuffle=False, skip_errors=True):
                self.assertEqual((list(memoryview(batch.labels)), list(memoryview(batch.valid))), ([-1, 7], [0, 1]))
        with self.assertRaisesRegex(FileNotFoundError, "no sample has a part 'c' or 'c.cls'"):
            onepot.Archive(path, group="basename", labels="c")
        with self.assertRaises(ValueError):
            onepot.Archive(path, labels="")

    def test_parts_of_webdataset_are_labels(self):
        path = os.path.join(self.work, "shard.tar")
        texts = [b"3", b" 4\n", b"+5\r\n", b"-6", b"7" * 70, b"", b"8 9", b"9223372036854775808", b"0x1"]
        with tarfile.open(path, "w") as tar:
            for i, text in enumerate(texts):
                for name, data in ("d/%d.jpg" % i, IMAGE), ("d/%d.cls" % i, text):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
        for options in {"group": "basename"}, {"filter": "*.jpg"}:
            archive = onepot.Archive(path, labels="cls", **options)
            self.check_labels(archive.subset(range(4)), [3, 4, 5, -6])
            for i in range(4, len(texts)):
                with self.assertRaisesRegex(OSError, "%d.cls: it is to be a label" % i):
                    archive[i].label  # pylint: disable=pointless-statement
        os.truncate(path, 2000)
        with self.assertRaises(OSError):
            list(onepot.Loader(archive.subset(range(4)), batch_size=4))

    def test_a_damaged_label_is_named_itself(self):
        path = os.path.join(self.work, "damaged.tar")
        with onepot.Writer(path) as writer:
            for i in range(4):
                writer.add("%d.jpg" % i, IMAGE)
                writer.add("%d.cls" % i, b"100%d" % i)
        with open(path, "r+b") as file:
            at = file.read().index(b"1002")
            file.seek(at)
            file.write(b"9")
        archive = onepot.Archive(path, extensions=".jpg", labels="cls")
        with self.assertRaisesRegex(OSError, "2.cls: its data does not match its sum"):
            list(onepot.Loader(archive, batch_size=4, verify=True))

    def test_images_alone(self):
        archive = onepot.Archive(self.one, extensions=".jpg")
        self.assertEqual([bytes(sample.read()) for sample in archive], [IMAGE + b"1 %d" % i for i in range(10)])


unittest.main()

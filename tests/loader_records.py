"""A TFRecord file in the loader: a record is a sample, with parts named by its features."""

import os
import shutil
import struct
import tempfile
import unittest

import onepot
import tfrecords

IMAGE = b"\xff\xd8\xff" + bytes(range(200))


class Records(unittest.TestCase):
    def setUp(self):
        self.work = tempfile.mkdtemp(prefix="onepot-test-records-")
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

    def test_images_alone(self):
        archive = onepot.Archive(self.one, extensions=".jpg")
        self.assertEqual([bytes(sample.read()) for sample in archive], [IMAGE + b"1 %d" % i for i in range(10)])


unittest.main()

#!/usr/bin/env python3
"""Batches in the memory of a GPU, from Python; the GPU is played by the host (played.h)."""
import base64
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import onepot
from dlpack_consumer import DLVersioned, take

FILES = 60

# 40 by 30 pixels in colour, baseline.
JPEG = (
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAA0JCgsKCA0LCgsODg0PEyAVExISEyccHhcgLikxMC4pLSwzOko+MzZGNy"
    "wtQFdBRkxOUlNSMj5aYVpQYEpRUk//2wBDAQ4ODhMREyYVFSZPNS01T09PT09PT09PT09PT09PT09PT09PT09PT09P"
    "T09PT09PT09PT09PT09PT09PT09PT0//wAARCAAeACgDASIAAhEBAxEB/8QAGAABAAMBAAAAAAAAAAAAAAAABQACBg"
    "T/xAApEAABAwMCBAYDAAAAAAAAAAABAAIEAwURBhIhc7GyExQVMUNjIjJB/8QAFgEBAQEAAAAAAAAAAAAAAAAABAUG"
    "/8QAHxEAAQQCAgMAAAAAAAAAAAAAAAECAwQFIREjExQk/9oADAMBAAIRAxEAPwCum5Gy41jn4D3NXbOn4J4oKxPInV"
    "uSeoVbpXcMpV2TvUbkJVWwp2epfl+yShT8kcVgPPO8fbkrQWuu52EZz9BHyaEtSSN9xonPwDucouC+PJnUuSOpUVyp"
    "IvhaaOjKvrtL2GmXT63JPUKXOKXE8EjpmgHXKsPoPc1IzYbST7Kbdj4nUkZCLiypgfTj4ucJy2xS0jgkvIs3fxIQ4b"
    "QR7I7maCPj0Zy/Uy2fR5I6lRJamoBtyoj6B3OUVypH0tNJRh+dp//Z")


def setUpModule():
    global WORK, TAR, CUDA
    WORK = tempfile.mkdtemp(prefix="onepot-cuda.")
    for i in range(FILES):
        folder = os.path.join(WORK, "tree", "class%d" % (i // 30))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "%03d.bin" % i), "wb") as f:
            f.write(bytes([i]) * 12)
    TAR = os.path.join(WORK, "a.tar")
    subprocess.run([os.environ["ONEPOT"], "pack", "-o", TAR, os.path.join(WORK, "tree")],
                   check=True)
    CUDA = ctypes.CDLL(os.environ["ONEPOT_CUDA"])
    CUDA.played_at.restype = ctypes.c_void_p
    CUDA.played_at.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    CUDA.played_stream.restype = ctypes.c_void_p
    CUDA.played_stream_on.restype = ctypes.c_void_p
    CUDA.played_device_of.argtypes = [ctypes.c_void_p]
    CUDA.played_context_events.restype = ctypes.c_ulong


def tearDownModule():
    shutil.rmtree(WORK)


def on_device(managed):
    """The bytes of a tensor that is in the memory of the device."""
    t = managed.contents.tensor
    count = t.bits // 8
    for i in range(t.dimensions):
        count *= t.shape[i]
    return ctypes.string_at(CUDA.played_at(t.data, count), count)


class Played(unittest.TestCase):
    def jpegs(self):
        """An archive of six JPEG files, which are cropped in six ways."""
        if not os.path.exists(os.path.join(os.path.dirname(os.environ["ONEPOT_CUDA"]),
                                           "libnvjpeg.so.12")):
            self.skipTest("built without libjpeg-turbo")
        tree = os.path.join(WORK, "jpegs")
        os.makedirs(tree, exist_ok=True)
        for i in range(6):
            with open(os.path.join(tree, "%d.jpg" % i), "wb") as f:
                f.write(base64.b64decode(JPEG))
        subprocess.run([os.environ["ONEPOT"], "pack", "-o", tree + ".tar", tree], check=True)
        return onepot.Archive(tree + ".tar")

    def loader(self, **options):
        return onepot.Loader(onepot.Archive(TAR), 16, 0, 1, seed=5, **options)

    def check(self, **options):
        plain = self.loader()
        loader = self.loader(device="cuda:0", **options)
        for b, a in itertools.zip_longest(loader, plain):
            self.assertEqual(b.__dlpack_device__(), (2, 0))
            with self.assertRaises(BufferError):
                b.__dlpack__(stream=0)
            capsule = b.__dlpack__(stream=1)
            b.wait()
            managed = take(capsule)
            self.assertEqual(list(managed.contents.tensor.device), [2, 0])
            self.assertEqual(on_device(managed), bytes(a.data))
            managed.contents.deleter(managed)
            managed = take(b.labels.__dlpack__(stream=2, max_version=(1, 0)), DLVersioned)
            self.assertEqual(on_device(managed), bytes(a.labels))
            managed.contents.deleter(managed)
            b.record_stream(1)
        return loader.transfer()

    def test_batches_are_in_the_memory_of_the_device(self):
        was = self.check()
        self.assertEqual(was["batches"], 4)
        self.assertGreater(was["copy_bytes"], 0)

    def test_also_those_that_it_gathers(self):
        self.assertIs(self.check(gather="device")["gathered_by_device"], True)

    def test_a_consumer_may_name_no_stream_or_see_to_it_itself(self):
        for b, a in zip(self.loader(device="cuda:0"), self.loader()):
            default, own = b.__dlpack__(), b.__dlpack__(stream=-1)
            b.record_stream(2)
            b.wait()
            for capsule in default, own:
                managed = take(capsule)
                self.assertEqual(on_device(managed), bytes(a.data))
                managed.contents.deleter(managed)
            for wrong in 0, -2:
                self.assertRaises(BufferError, b.__dlpack__, stream=wrong)

    def test_a_consumer_that_may_compute_in_other_streams_is_waited_for(self):
        loader = self.loader(device="cuda:0")
        batches = itertools.chain(loader, loader, loader)  # keeps none of them
        own = CUDA.played_stream()

        def followed(stream, told=None):
            batch = next(batches)
            if told is not None:
                batch.record_stream(told)
            managed = take(batch.__dlpack__() if stream is None
                           else batch.__dlpack__(stream=stream))
            was = CUDA.played_context_events()
            del batch
            self.assertEqual(CUDA.played_context_events(), was)  # the tensor keeps it
            managed.contents.deleter(managed)
            return CUDA.played_context_events() - was

        self.assertEqual(followed(-1), 1)
        self.assertEqual(followed(None), 1)
        self.assertEqual(followed(1), 0)
        self.assertEqual(followed(2), 0)
        self.assertEqual(followed(own), 1)
        self.assertEqual(followed(own, told=own), 0)
        self.assertEqual(followed(-1, told=own), 1)
        self.assertEqual(followed(None, told=1), 0)

    def test_a_tensor_outlives_batch_and_loader(self):
        loader = self.loader(device="cuda:0")
        batch = next(iter(loader))
        want = bytes(next(iter(self.loader())).data)
        managed = take(batch.__dlpack__(stream=1))
        batch.wait()
        del batch, loader
        self.assertEqual(on_device(managed), want)
        managed.contents.deleter(managed)

    def test_the_array_interface_shows_what_has_arrived(self):
        for b, a in zip(self.loader(device="cuda:0"), self.loader()):
            shown = b.labels.__cuda_array_interface__
            self.assertEqual((shown["typestr"], shown["shape"], shown["stream"]),
                             ("<i8", (len(b),), None))
            managed = take(b.labels.__dlpack__(stream=1))
            self.assertEqual(managed.contents.tensor.data, shown["data"][0])
            self.assertEqual(on_device(managed), bytes(a.labels))
            managed.contents.deleter(managed)
            self.assertFalse(hasattr(b.labels, "__array_interface__"))

    def test_its_consumer_may_read_in_any_stream(self):
        batches = itertools.chain(self.loader(device="cuda:0"))
        batch = next(batches)
        self.assertTrue(batch.labels.__cuda_array_interface__)
        was = CUDA.played_context_events()
        del batch
        self.assertEqual(CUDA.played_context_events(), was + 1)

    def test_pictures_become_floats_there(self):
        images = onepot.Images(4, raw=(2, 2, 3), mean=0.5, std=0.5, dtype="float32")
        host = self.loader(images=images)
        for b, a in zip(self.loader(device="cuda:0", images=images), host):
            managed = take(b.images.__dlpack__(stream=1))
            b.wait()
            t = managed.contents.tensor
            self.assertEqual([t.shape[i] for i in range(t.dimensions)], [len(b), 3, 4, 4])
            self.assertEqual(on_device(managed), bytes(memoryview(a.images).cast("B")))
            managed.contents.deleter(managed)

    def test_jpeg_is_decoded_there(self):
        with self.jpegs() as archive:
            options = dict(size=20, exact=True, dtype="float32", std=0.5)
            there = onepot.Loader(archive, 4, 0, 1, device="cuda:0",
                                  images=onepot.Images(decoder="gpu", **options))
            here = onepot.Loader(archive, 4, 0, 1, images=onepot.Images(**options))
            for b, a in itertools.zip_longest(there, here):
                managed = take(b.images.__dlpack__(stream=1))
                b.wait()
                self.assertEqual(on_device(managed), bytes(memoryview(a.images).cast("B")))
                managed.contents.deleter(managed)
            self.assertEqual(there.decoder, "nvJPEG 12.4 (hardware)")
            self.assertGreaterEqual(there.stats["gpu_decoded"], 6)
            self.assertEqual(here.decoder, "host")
            there.close()
            here.close()

    def test_a_decoder_that_is_missing_is_told(self):
        code = ("import sys, onepot\n"
                "options = dict(batch_size=4, rank=0, world_size=1, device='cuda:0')\n"
                "auto = onepot.Loader(sys.argv[1], images=onepot.Images(decoder='auto',"
                " raw=(2, 2, 3)), **options)\n"
                "assert auto.decoder.startswith('host: nvJPEG is not there: /nowhere'),"
                " auto.decoder\n"
                "try:\n"
                "    onepot.Loader(sys.argv[1], images=onepot.Images(decoder='gpu'), **options)\n"
                "except OSError as e:\n"
                "    assert 'ONEPOT_NVJPEG' in str(e), e\n"
                "else:\n"
                "    raise AssertionError('no error')\n")
        subprocess.run([sys.executable, "-c", code, TAR], check=True, timeout=240,
                       env=dict(os.environ, ONEPOT_NVJPEG="/nowhere"))
        with self.assertRaisesRegex(ValueError, "decoder is one of 'host', 'auto', 'gpu'"):
            onepot.Images(decoder="cuda")

    def zstd(self):
        """An archive of the same files many times, in blocks of zstd."""
        path = os.path.join(WORK, "zstd.tar")
        with onepot.Writer(path, zstd=3, block=4096, overwrite=True) as writer:
            for i in range(FILES):
                writer.add("%02d.txt" % i, b"words %d " % i * (100 + 9 * i))
        return onepot.Archive(path)

    def test_blocks_are_decompressed_there(self):
        with self.zstd() as archive:
            there = onepot.Loader(archive, 8, 0, 1, device="cuda:0", decompress="gpu")
            here = onepot.Loader(archive, 8, 0, 1)
            for _ in range(2):
                for b, a in itertools.zip_longest(there, here):
                    managed = take(b.__dlpack__(stream=1))
                    b.wait()
                    self.assertEqual(on_device(managed), bytes(a.data))
                    managed.contents.deleter(managed)
            self.assertEqual(there.decompressor, "nvCOMP 5.3")
            self.assertGreaterEqual(there.stats["gpu_decompressed"], FILES)
            self.assertEqual(here.decompressor, "host")
            self.assertEqual(here.stats["gpu_decompressed"], 0)
            there.close()
            here.close()
            with self.assertRaisesRegex(ValueError, "decompress: there is no device"):
                onepot.Loader(archive, 8, 0, 1, decompress="gpu")
        with self.assertRaisesRegex(ValueError, "decompress is 'host', 'auto' or 'gpu'"):
            self.loader(device="cuda:0", decompress="device")

    def test_a_decompressor_that_is_missing_is_told(self):
        code = ("import sys, onepot\n"
                "options = dict(batch_size=4, rank=0, world_size=1, device='cuda:0')\n"
                "auto = onepot.Loader(sys.argv[1], decompress='auto', **options)\n"
                "assert auto.decompressor.startswith('host: nvCOMP is not there: /nowhere'),"
                " auto.decompressor\n"
                "try:\n"
                "    onepot.Loader(sys.argv[1], decompress='gpu', **options)\n"
                "except OSError as e:\n"
                "    assert 'ONEPOT_NVCOMP' in str(e), e\n"
                "else:\n"
                "    raise AssertionError('no error')\n")
        self.zstd().close()
        subprocess.run([sys.executable, "-c", code, os.path.join(WORK, "zstd.tar")], check=True,
                       timeout=240, env=dict(os.environ, ONEPOT_NVCOMP="/nowhere"))

    def test_a_batch_is_copied_into_memory_that_stays(self):
        """The last one is smaller: zeros follow it."""
        loader, plain = self.loader(device="cuda:0"), [bytes(a.data) for a in self.loader()]
        stream = CUDA.played_stream()
        batches = list(loader)
        static = batches[0].data
        for batch, want in list(zip(batches, plain))[1:]:
            batch.copy_into(static, stream)
            batches[0].record_stream(stream)
            CUDA.played_quiet()
            address = static.__cuda_array_interface__["data"][0]
            got = ctypes.string_at(CUDA.played_at(address, len(plain[0])), len(plain[0]))
            self.assertEqual(got, want + bytes(len(plain[0]) - len(want)))
        self.assertLess(len(plain[-1]), len(plain[0]))
        with self.assertRaisesRegex(ValueError, "batch has int64, the memory is for uint8"):
            batches[1].labels.copy_into(static, stream)
        with self.assertRaisesRegex(ValueError, "is copied|are copied"):
            batches[0].copy_into(batches[-1].data, stream)
        with self.assertRaises(AttributeError):
            batches[0].copy_into(bytearray(1000), stream)

    def test_not_in_a_stream_that_captures(self):
        batches = list(self.loader(device="cuda:0"))
        stream = CUDA.played_stream()
        CUDA.played_begin_capture(ctypes.c_void_p(stream))
        for call in (lambda: batches[1].copy_into(batches[0].data, stream),
                     lambda: batches[1].record_stream(stream),
                     lambda: batches[1].__dlpack__(stream=stream)):
            with self.assertRaisesRegex(OSError, "captures a graph"):
                call()
        self.assertEqual(CUDA.played_end_capture(ctypes.c_void_p(stream)), 0)

    def test_a_stream_is_kept_as_long_as_its_batch(self):
        class Stream:
            ptr = CUDA.played_stream()
        batch, stream = next(iter(self.loader(device="cuda:0"))), Stream()
        batch.record_stream(stream)
        seen = weakref.ref(stream)
        del stream
        self.assertIsNotNone(seen())
        del batch
        self.assertIsNone(seen())

    def test_an_object_shows_its_stream(self):
        """By the protocol of cuda.core and numba: a method, or an attribute."""
        class Method:
            def __init__(self, version=0, handle=CUDA.played_stream()):
                self.shown = version, handle
                self.calls = 0

            def __cuda_stream__(self):
                self.calls += 1
                return self.shown

        class Attribute:
            __cuda_stream__ = (0, 0)  # the default stream

        batches = list(self.loader(device="cuda:0"))
        for stream in Method(), Attribute():
            batches[0].record_stream(stream)
            batches[1].copy_into(batches[0].data, stream)
            managed = take(batches[2].__dlpack__(stream=stream))
            managed.contents.deleter(managed)
        stream = Method()
        managed = take(batches[3].__dlpack__(stream=stream))
        seen, calls = weakref.ref(stream), stream.calls
        del stream, batches[3]
        self.assertIsNotNone(seen())  # the tensor keeps it
        self.assertEqual(calls, 1)
        managed.contents.deleter(managed)
        self.assertIsNone(seen())
        with self.assertRaisesRegex(ValueError, "version 7"):
            batches[0].record_stream(Method(7))
        for wrong in (0,), 5, "ab":
            shown = Attribute()
            shown.__cuda_stream__ = wrong
            with self.assertRaisesRegex(TypeError, "not .version, handle."):
                batches[0].record_stream(shown)
        with self.assertRaisesRegex(TypeError, "__cuda_stream__, cuda_stream or ptr"):
            batches[0].record_stream("1")
        CUDA.played_begin_capture(ctypes.c_void_p(Method().shown[1]))
        with self.assertRaisesRegex(OSError, "captures a graph"):
            batches[0].record_stream(Method())
        CUDA.played_end_capture(ctypes.c_void_p(Method().shown[1]))

    def test_images_are_made_there(self):
        for b, a in zip(self.loader(device="cuda:0", images=(2, 2, 3)), self.loader()):
            managed = take(b.images.__dlpack__(stream=1))
            b.wait()
            t = managed.contents.tensor
            self.assertEqual([t.shape[i] for i in range(t.dimensions)], [len(b), 3, 2, 2])
            floats = memoryview(on_device(managed)).cast("f")
            self.assertEqual(list(floats[::12]), [float(i) for i in memoryview(a.indices)])
            managed.contents.deleter(managed)

    def test_they_are_given_back_while_the_interpreter_ends(self):
        code = ("import sys, onepot\nkept = []\n"
                "for b in onepot.Loader(onepot.Archive(sys.argv[1]), 16, 0, 1,"
                " device='cuda:0'):\n"
                "    kept.append(b.__dlpack__(stream=1))\n"
                "sys.modules['kept'] = kept\n")
        subprocess.run([sys.executable, "-c", code, TAR], check=True, timeout=240)

    def several(self, **options):
        return self.loader(devices=["cuda:0", 1], **options)

    def test_several_devices_have_batches_in_turn(self):
        """Whose memory each is the played GPU tells; consumers learn it by DLPack."""
        loader, plain = self.several(), self.loader()
        for _ in range(3):
            for i, (b, a) in enumerate(itertools.zip_longest(loader, plain)):
                self.assertEqual(b.device, "cuda:%d" % (i % 2))
                self.assertEqual(b.__dlpack_device__(), (2, i % 2))
                self.assertEqual(b[0].__dlpack_device__(), (2, i % 2))
                managed = take(b.__dlpack__(stream=1))
                b.wait()
                t = managed.contents.tensor
                self.assertEqual(list(t.device), [2, i % 2])
                self.assertEqual(CUDA.played_device_of(t.data), i % 2)
                self.assertEqual(on_device(managed), bytes(a.data))
                managed.contents.deleter(managed)
                shown = b.indices.__cuda_array_interface__
                self.assertEqual(CUDA.played_device_of(shown["data"][0]), i % 2)
                b.record_stream(CUDA.played_stream_on(i % 2))
                with self.assertRaisesRegex((OSError, ValueError), "cuda:%d: .*another" % (i % 2)):
                    b.record_stream(CUDA.played_stream_on(1 - i % 2))

    def test_a_resume_goes_on_with_the_device_that_comes_next(self):
        loader = self.several()
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        want = [list(b.__dlpack_device__()) for b in batches]
        again = self.several()
        again.load_state_dict(state)
        self.assertEqual([list(b.__dlpack_device__()) for b in again], want)
        self.assertEqual(want[:2], [[2, 1], [2, 0]])

    def test_images_are_made_on_each_device(self):
        images = onepot.Images(4, raw=(2, 2, 3), mean=0.5, std=0.5, dtype="float32")
        host = self.loader(images=images)
        for i, (b, a) in enumerate(zip(self.several(images=images), host)):
            managed = take(b.images.__dlpack__(stream=1))
            b.wait()
            self.assertEqual(CUDA.played_device_of(managed.contents.tensor.data), i % 2)
            self.assertEqual(on_device(managed), bytes(memoryview(a.images).cast("B")))
            managed.contents.deleter(managed)
        for i, b in enumerate(self.several(images=(2, 2, 3))):
            shown = b.images.__cuda_array_interface__
            self.assertEqual(CUDA.played_device_of(shown["data"][0]), i % 2)

    def test_copies_stay_on_a_device(self):
        batches = list(self.several(memory=4 << 20))
        batches[2].copy_into(batches[0].data, CUDA.played_stream_on(0))
        batches[3].copy_into(batches[1].data, CUDA.played_stream_on(1))
        with self.assertRaisesRegex(ValueError, "another device"):
            batches[1].copy_into(batches[0].data, CUDA.played_stream_on(1))
        for b in batches:
            b.record_stream(CUDA.played_stream_on(int(b.device[-1])))
        CUDA.played_quiet()

    def test_the_devices_can_gather(self):
        loader, plain = self.several(gather="device"), self.loader()
        for b, a in itertools.zip_longest(loader, plain):
            managed = take(b.__dlpack__(stream=1))
            b.wait()
            self.assertEqual(on_device(managed), bytes(a.data))
            managed.contents.deleter(managed)
        self.assertIs(loader.transfer()["gathered_by_device"], True)

    def test_devices_are_not_mixed_with_others(self):
        for devices, words in ((["cuda:0", "host"], "one kind"), (["cuda:0", "cpu"], "'cpu'"),
                               (["cuda:1", 0, "cuda:1"], "cuda:1 is there twice")):
            with self.assertRaisesRegex(ValueError, words):
                self.loader(devices=devices)

    def test_a_device_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(OSError, "no device 3"):
            self.loader(device="cuda:3")


if __name__ == "__main__":
    unittest.main()

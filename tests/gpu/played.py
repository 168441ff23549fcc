#!/usr/bin/env python3
"""Batches in the memory of a GPU, from Python; the GPU is played by the host (played.h)."""
import ctypes
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import weakref

import onepot
from dlpack_consumer import DLVersioned, elements, take

FILES = 60


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

    def test_a_copy_is_the_consumers_own(self):
        """It outlives batch and loader, and the stream of it need not live on."""
        plain = [bytes(a.data) for a in self.loader()]
        loader, copies = self.loader(device="cuda:0"), []
        batches = itertools.chain(loader)
        for given in {}, {"stream": 1}, {"stream": -1}, {"stream": CUDA.played_stream()}:
            batch = next(batches)
            capsule = batch.__dlpack__(copy=True, max_version=(1, 0), **given)
            if given.get("stream", 0) > 1:
                CUDA.played_stream_free(ctypes.c_void_p(given["stream"]))
            copies.append(take(capsule, DLVersioned))
            self.assertEqual(copies[-1].contents.flags, 2)  # a copy, and not read-only
            if given.get("stream") == -1:
                self.assertEqual(on_device(copies[-1]), plain[2])
            self.assertNotEqual(batch.data.__cuda_array_interface__["data"][0],
                                copies[-1].contents.tensor.data)
            was = CUDA.played_context_events()
        del batch, batches
        self.assertEqual(CUDA.played_context_events(), was + 1)  # the array interface lent it
        self.assertEqual(len(list(loader)), 4)
        del loader
        CUDA.played_quiet()
        for managed, want in zip(copies, plain):
            self.assertEqual(list(managed.contents.tensor.device), [2, 0])
            self.assertEqual(on_device(managed), want)
            managed.contents.deleter(managed)

    def test_a_copy_may_be_in_the_hosts_memory(self):
        for b, a in zip(self.loader(device="cuda:0"), self.loader()):
            for there, here in (b.data, a.data), (b.labels, a.labels), (b[1], a[1]):
                managed = take(there.__dlpack__(dl_device=(1, 0)))
                self.assertEqual(list(managed.contents.tensor.device), [1, 0])
                self.assertEqual(elements(managed.contents.tensor), memoryview(here).tobytes())
                managed.contents.deleter(managed)
            for wrong in ({"dl_device": (1, 0), "copy": False}, {"dl_device": (2, 1)},
                          {"dl_device": (1, 0), "stream": 1}, {"dl_device": (3, 0)}):
                self.assertRaises(BufferError, b.__dlpack__, **wrong)

    def test_a_copy_has_the_order_of_the_array(self):
        folder = os.path.join(WORK, "arrays")
        os.makedirs(folder)
        head = b"{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3), }\n"
        for i in range(16):
            with open(os.path.join(folder, "%d.npy" % i), "wb") as f:
                f.write(b"\x93NUMPY\1\0" + bytes([len(head), 0]) + head + bytes(range(i, i + 12)))
        tar = os.path.join(WORK, "arrays.tar")
        subprocess.run([os.environ["ONEPOT"], "pack", "-q", "-o", tar, folder], check=True)
        b, a = (next(iter(onepot.Loader(tar, 16, 0, 1, shuffle=False, npy=True, **given)))
                for given in ({"device": "cuda:0"}, {}))
        managed = take(b.__dlpack__(dl_device=(1, 0)))
        self.assertEqual([managed.contents.tensor.strides[i] for i in range(3)], [6, 1, 2])
        self.assertEqual(elements(managed.contents.tensor), memoryview(a.data).tobytes())
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
                     lambda: batches[1].__dlpack__(stream=stream),
                     lambda: batches[1].__dlpack__(stream=stream, copy=True)):
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

    def in_a_process(self, code):
        """What goes wrong there ends the process, or never ends."""
        whole = ("import ctypes, gc, os, sys, onepot\n"
                 "from dlpack_consumer import take\n"
                 "cuda = ctypes.CDLL(os.environ['ONEPOT_CUDA'])\n"
                 "for name in 'played_stream', 'played_at':\n"
                 "    getattr(cuda, name).restype = ctypes.c_void_p\n"
                 "loader = onepot.Loader(sys.argv[1], 16, 0, 1, device='cuda:0')\n"
                 "batches = iter(loader)\n"
                 "batch = next(batches)\n")
        subprocess.run([sys.executable, "-c", whole + code, TAR], check=True, timeout=60)

    STREAM = ("class Stream:\n"
              "    def __init__(self):\n"
              "        self.ptr = cuda.played_stream()\n"
              "    def __del__(self):\n"
              "        cuda.played_stream_free(ctypes.c_void_p(self.ptr))\n")

    def test_a_tensor_keeps_the_streams_that_its_batch_names(self):
        self.in_a_process(self.STREAM +
                          "managed = take(batch.__dlpack__(stream=1))\n"
                          "batch.record_stream(Stream())\n"
                          "del batch\n"
                          "gc.collect()\n"
                          "managed.contents.deleter(managed)\n")

    def test_a_batch_keeps_the_streams_that_it_was_copied_in(self):
        self.in_a_process(self.STREAM +
                          "to = next(batches)\n"
                          "batch.copy_into(to.data, Stream())\n"
                          "gc.collect()\n"
                          "del batch\n"
                          "gc.collect()\n")

    def test_a_stream_that_a_consumer_named_may_be_gone(self):
        self.in_a_process("stream = cuda.played_stream()\n"
                          "managed = take(batch.__dlpack__(stream=stream))\n"
                          "cuda.played_stream_free(ctypes.c_void_p(stream))\n"
                          "del batch\n"
                          "managed.contents.deleter(managed)\n")

    def test_a_release_lets_others_have_the_interpreter(self):
        """The last one waits for a stream, which waits for a function of Python."""
        begin = ("sys.setswitchinterval(1000)\n"
                 "loader.close()\n"
                 "del loader, batches\n"
                 "done = []\n"
                 "@ctypes.CFUNCTYPE(None, ctypes.c_void_p)\n"
                 "def function(unused):\n"
                 "    done.append(1)\n"
                 "stream = cuda.played_stream()\n"
                 "batch.record_stream(stream)\n"
                 "managed = take(batch.__dlpack__(stream=1))\n")
        call = ("ctypes.PyDLL(os.environ['ONEPOT_CUDA']).played_call(ctypes.c_void_p(stream), function)\n")
        self.in_a_process(begin + "managed.contents.deleter(managed)\n" + call +
                          "del batch\n" + "assert done\n")
        self.in_a_process(begin + "del batch\n"
                          "free = ctypes.cast(managed.contents.deleter,"
                          " ctypes.PYFUNCTYPE(None, ctypes.c_void_p))\n" + call +
                          "free(managed)\n" + "assert done\n")

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

"""The short circuit under the packages that training code reads with: each finds the same in the
mount with the preloaded library as without it, whatever ways it has to read.

ONEPOT_PACKAGES in the environment: another Python to look for the packages with."""

import contextlib
import os
import shutil
import subprocess
import sys
import textwrap

import harness
import life
from harness import Skip, check, check_equal, counting, directly_read, environment, onepot, run

PYTHONS = dict.fromkeys([os.environ.get("ONEPOT_PACKAGES"), sys.executable, "/usr/bin/python3"])

# How data is made, and how a reader tells what it found. Spawned workers get sys.argv as it is then.
COMMON = """
import hashlib, os, random, sys

def path(name):
    return os.path.join(sys.argv[2], name)

def tell(*found):
    print(*(hashlib.sha256(f).hexdigest() if isinstance(f, (bytes, bytearray, memoryview)) else f
            for f in found), flush=True)

def noise(size):
    return random.Random(size).randbytes(size)
"""


# Packages take long to import: one process makes the data, and reads it there and in a mount.
MAIN = """
if __name__ == '__main__':
    if sys.argv[1] == 'make':
        make()
        read()
        print('made', flush=True)
        sys.argv[2] = input()
    read()
"""


@contextlib.contextmanager
def made(work, modules, *command, env):
    """(Python, process, what it read) of the first Python that has the modules, when the data is made."""
    for python in filter(shutil.which, filter(None, PYTHONS)):
        with open(work / "errors", "w+b") as errors:
            with life.process(python, *command, stdin=subprocess.PIPE, stderr=errors, env=env) as process:
                lines = []
                for line in process.stdout:
                    if line == b"made\n":
                        yield python, process, b"".join(lines)
                        return
                    lines.append(line)
                process.wait()
            errors.seek(0)
            said = errors.read()
            check(b"ImportError" in said or b"ModuleNotFoundError" in said, f"{python}: {said[-2000:]!r}")
    raise Skip("no Python here has " + ", ".join(modules))


def check_same(work, modules, make, read, classes=""):
    """`make` fills a folder, `read` tells what it finds there: in a directory, in a mount of its
    archive, and there with the library."""
    path = work / "program.py"
    with open(path, "w", encoding="utf-8") as f:
        f.write(COMMON + textwrap.dedent(classes) + "def make():\n" + textwrap.indent(textwrap.dedent(make), "    ") +
                "\ndef read():\n" + textwrap.indent(textwrap.dedent(read), "    ") + MAIN)
    tree = work.make("tree")
    quiet = environment(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="")
    with made(work, modules, path, "make", tree, env=quiet) as (python, process, expected):
        check(len(expected) > 60, f"it read nothing: {expected}")
        run("tar", "-C", tree, "-cf", work / "data.tar", ".")
        with work.mount(work / "data.tar") as mount:
            found, _ = process.communicate(os.fsencode(mount.path) + b"\n")
        check_equal((process.returncode, found), (0, expected), "what it read without the library")
    result = onepot("run", "--intercept=on", work / "data.tar", "--",
                    *counting(work, python, path, "read", "{}"), env=quiet)
    check_equal(result.stdout, expected, "what it read with the library")
    check(directly_read(work), result.stderr)


def test_numpy(work):
    check_same(work, ["numpy"], """
        import numpy
        for n in 10, 1000, 300000:
            array = numpy.frombuffer(noise(8 * n), "u8")
            numpy.save(path(f"{n}.npy"), array)
            numpy.savez(path(f"{n}.npz"), a=array, b=array[:7])
    """, """
        import numpy
        for n in 10, 1000, 300000:
            for mode in None, "r", "c":
                array = numpy.load(path(f"{n}.npy"), mmap_mode=mode)
                tell(n, mode, array[:: 3].tobytes(), array[-1])
            with open(path(f"{n}.npy"), "rb") as f:
                tell(numpy.load(f).tobytes())
            tell(numpy.fromfile(path(f"{n}.npy"), "u1", 57, offset=7).tobytes())
            tell(numpy.memmap(path(f"{n}.npy"), "u1", "r", 128)[:100].tobytes())
            with numpy.load(path(f"{n}.npz")) as z:
                tell(z["a"].tobytes(), z["b"].tobytes())
    """)


def test_h5py(work):
    check_same(work, ["h5py", "numpy"], """
        import h5py, numpy
        array = numpy.frombuffer(noise(800000), "u4").reshape(-1, 100)
        with h5py.File(path("a.h5"), "w") as f:
            f["whole"] = array
            f.create_dataset("chunks", data=array, chunks=(17, 100))
            f.create_dataset("gzip", data=array, chunks=(64, 50), compression="gzip")
            f["texts"] = [b"some", b"words"]
    """, """
        import h5py
        for driver in None, "sec2", "stdio", "core":
            with h5py.File(path("a.h5"), "r", driver=driver, locking=False) as f:
                for name in "whole", "chunks", "gzip":
                    tell(driver, name, f[name][()].tobytes(), f[name][5:1999:7, 3:50].tobytes())
                tell(f["texts"][1])
        with open(path("a.h5"), "rb") as file, h5py.File(file, "r") as f:
            tell(f["chunks"][100:200].tobytes())
    """)


def test_opencv(work):
    check_same(work, ["cv2", "numpy"], """
        import cv2, numpy
        image = numpy.frombuffer(noise(300 * 400 * 3), "u1").reshape(300, 400, 3)
        image = cv2.GaussianBlur(image, (9, 9), 0)
        for ending in "jpg", "png", "bmp", "tiff":
            for n in range(3):
                assert cv2.imwrite(path(f"{n}.{ending}"), image[n:])
    """, """
        import cv2, numpy
        for name in sorted(os.listdir(path("."))):
            if name[0] != ".":
                tell(name, cv2.imread(path(name)).tobytes(),
                     cv2.imread(path(name), cv2.IMREAD_GRAYSCALE).tobytes(),
                     cv2.imdecode(numpy.fromfile(path(name), "u1"), cv2.IMREAD_COLOR).tobytes())
                with open(path(name), "rb") as f:
                    tell(cv2.imdecode(numpy.frombuffer(f.read(), "u1"), 1).tobytes())
    """)


def test_pillow(work):
    check_same(work, ["PIL"], """
        from PIL import Image
        image = Image.frombytes("RGB", (200, 150), noise(200 * 150 * 3))
        for name in "a.jpg", "b.png", "c.bmp", "d.tif", "e.gif":
            image.save(path(name))
    """, """
        from PIL import Image
        for name in "a.jpg", "b.png", "c.bmp", "d.tif", "e.gif":
            with Image.open(path(name)) as image:
                tell(name, image.convert("RGB").tobytes())
            with open(path(name), "rb") as f:
                tell(Image.open(f).resize((30, 30)).tobytes())
    """)


def test_tensorflow(work):
    check_same(work, ["tensorflow"], """
        import tensorflow as tf
        for n in range(4):
            with tf.io.TFRecordWriter(path(f"{n}.tfrecord")) as writer:
                for i in range(50):
                    writer.write(noise(1000 * n + i))
        image = tf.reshape(tf.io.decode_raw(noise(100 * 80 * 3), tf.uint8), (100, 80, 3))
        tf.io.write_file(path("a.jpg"), tf.io.encode_jpeg(image))
        with open(path("numbers"), "wb") as f:
            f.write(noise(40000))
    """, """
        import tensorflow as tf
        records = sorted(tf.io.gfile.glob(path("*.tfrecord")))
        for buffer, reads in (None, None), (1000, 2), (1 << 20, tf.data.AUTOTUNE):
            for record in tf.data.TFRecordDataset(records, buffer_size=buffer,
                                                  num_parallel_reads=reads).batch(20):
                tell(b"".join(record.numpy()))
        tell(tf.io.decode_jpeg(tf.io.read_file(path("a.jpg"))).numpy().tobytes())
        for record in tf.data.FixedLengthRecordDataset(path("numbers"), 1000).batch(10):
            tell(b"".join(record.numpy()))
        files = tf.data.Dataset.list_files(records, shuffle=False)
        for data in files.map(tf.io.read_file, num_parallel_calls=4):
            tell(data.numpy())
        with tf.io.gfile.GFile(path("numbers"), "rb") as f:
            f.seek(777)
            tell(f.read(100), f.size())
    """)


def test_arrays_of_jax(work):
    check_same(work, ["jax", "numpy"], """
        import numpy
        for n in range(8):
            numpy.frombuffer(noise(4000 + 4 * n), "u1").tofile(path(f"{n}.bin"))
        numpy.save(path("a.npy"), numpy.frombuffer(noise(800000), "u4").reshape(-1, 100))
    """, """
        import jax, numpy
        from jax import numpy as jnp
        tell(numpy.asarray(jnp.load(path("a.npy"))[5:900:7, 3:50]).tobytes())
        kept = numpy.load(path("a.npy"), mmap_mode="r")
        for at in 0, 17, 1900:
            tell(int(jax.jit(jnp.sum)(jax.device_put(kept[at:at + 100]))))
        raw = numpy.memmap(path("a.npy"), "u4", "r", 128, (2000, 100))
        tell(numpy.asarray(jnp.asarray(raw[::31])).tobytes())

        def read(n):
            with open(path(f"{int(n)}.bin"), "rb") as f:
                return numpy.frombuffer(f.read(4000), "u1")
        made = jax.ShapeDtypeStruct((4000,), "uint8")
        load = jax.jit(lambda n: jax.pure_callback(read, made, n))
        for n in range(8):
            tell(numpy.asarray(load(n)).tobytes())
        mesh = jax.sharding.Mesh(jax.devices(), "x")
        parts = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
        whole = jax.make_array_from_callback((2000, 100), parts, lambda index: raw[index])
        tell(numpy.asarray(whole).tobytes())
    """)


def test_checkpoints_of_jax(work):
    """Orbax reads them by tensorstore, which has threads and calls of its own."""
    check_same(work, ["jax", "orbax.checkpoint", "tensorstore"], """
        import jax, orbax.checkpoint as checkpoint
        from jax import numpy as jnp
        state = {"weights": jnp.arange(90000.).reshape(300, 300), "bias": jnp.ones(7) / 3, "step": 5}
        for name, is_one_file in ("ocdbt", True), ("plain", False):
            kept = checkpoint.PyTreeCheckpointer(use_ocdbt=is_one_file)
            kept.save(path(name), state)
        manager = checkpoint.CheckpointManager(path("steps"))
        for step in 1, 2:
            manager.save(step, args=checkpoint.args.StandardSave(state))
        manager.wait_until_finished()
        manager.close()
    """, """
        import jax, numpy, orbax.checkpoint as checkpoint, tensorstore
        for name, is_one_file in ("ocdbt", True), ("plain", False):
            state = checkpoint.PyTreeCheckpointer(use_ocdbt=is_one_file).restore(path(name))
            for key in sorted(state):
                tell(name, key, numpy.asarray(state[key]).tobytes())
        made = {"weights": jax.ShapeDtypeStruct((300, 300), "float32"),
                "bias": jax.ShapeDtypeStruct((7,), "float32"), "step": 0}
        state = checkpoint.StandardCheckpointer().restore(path("steps/2/default"), made)
        tell(*(numpy.asarray(state[key]).tobytes() for key in sorted(state)))
        array = tensorstore.open({"driver": "zarr", "kvstore": {
            "driver": "file", "path": path("plain/weights")}}, read=True, open=True).result()
        tell(array[10:200:7, 5:9].read().result().tobytes())
    """)


def test_readers_of_jax(work):
    check_same(work, ["grain.python", "array_record.python.array_record_module"], """
        from array_record.python.array_record_module import ArrayRecordWriter
        for n in range(2):
            writer = ArrayRecordWriter(path(f"{n}.array_record"), "group_size:1")
            for i in range(40):
                writer.write(noise(2000 * n + i + 1))
            writer.close()
    """, """
        import grain.python as grain
        names = [path(f"{n}.array_record") for n in range(2)]
        source = grain.ArrayRecordDataSource(names)
        tell(len(source), *(source[i] for i in (0, 3, 79)))
        for workers in 0, 2:
            sampler = grain.IndexSampler(80, grain.NoSharding(), shuffle=True, num_epochs=2, seed=3)
            loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers,
                                      operations=[])
            for record in loader:
                tell(record)
    """)


def test_dataloader_of_torch(work):
    check_same(work, ["torch"], """
        import torch
        for n in range(40):
            with open(path(f"{n}.bin"), "wb") as f:
                f.write(noise(5000 + n))
        torch.save({"weights": torch.arange(90000.), "step": 3}, path("state.pt"))
        torch.save(torch.arange(777), path("old.pt"), _use_new_zipfile_serialization=False)
    """, """
        import torch
        from torch.utils.data import DataLoader
        for name in "state.pt", "old.pt":
            found = torch.load(path(name))
            tell(name, bytes(str(found), "utf-8"))
        storage = torch.from_file(path("0.bin"), size=1000, dtype=torch.uint8)
        tell(bytes(storage.tolist()))
        # A worker that does not come from a fork imports all anew.
        for way, workers in (None, 0), ("fork", 2), ("spawn", 1), ("forkserver", 1):
            if sys.argv[1] == "make" and workers == 1:
                workers, way = 0, None
            loader = DataLoader(Files(), batch_size=4, num_workers=workers,
                                multiprocessing_context=way, collate_fn=list)
            for batch in loader:
                tell(*batch)
    """, classes="""
        class Files:
            def __len__(self):
                return 40

            def __getitem__(self, index):
                with open(path(f"{index}.bin"), "rb") as f:
                    return f.read()

    """)


if __name__ == "__main__":
    harness.main(globals(), seconds=900)  # some take ten seconds to import

"""The same samples in each format, made by the writer that the format's own users would take.

    store.py FORMAT TREE OUT       runs in the environment of the peers
"""

import os
import sys
from pathlib import Path


def samples(tree):
    """(name, label, bytes) of every file, in the order of names; labels by directory."""
    folders = sorted(p for p in Path(tree).iterdir() if p.is_dir())
    for label, folder in enumerate(folders):
        for path in sorted(folder.iterdir()):
            yield f"{folder.name}/{path.name}", label, path.read_bytes()


def flat(tree, out):
    """All bytes in one file, and a table of where each sample lies."""
    import numpy

    offsets, labels = [0], []
    with open(out / "data", "wb") as f:
        for _, label, data in samples(tree):
            f.write(data)
            offsets.append(offsets[-1] + len(data))
            labels.append(label)
    numpy.save(out / "offsets.npy", numpy.array(offsets, dtype=numpy.int64))
    numpy.save(out / "labels.npy", numpy.array(labels, dtype=numpy.int64))


def lmdb(tree, out):
    import lmdb as module

    env = module.open(str(out / "lmdb"), map_size=1 << 40, subdir=False, sync=False)
    with env.begin(write=True) as txn:
        for i, (_, label, data) in enumerate(samples(tree)):
            txn.put(i.to_bytes(8, "big"), label.to_bytes(8, "little") + data, append=True)
    env.close()


def arrow(tree, out):
    import pyarrow

    schema = pyarrow.schema([("data", pyarrow.large_binary()), ("label", pyarrow.int64())])
    rows = list(samples(tree))
    with pyarrow.OSFile(str(out / "arrow"), "wb") as sink:
        with pyarrow.ipc.new_file(sink, schema) as writer:
            for first in range(0, len(rows), 1000):
                part = rows[first : first + 1000]
                writer.write(pyarrow.record_batch(
                    [pyarrow.array([r[2] for r in part], pyarrow.large_binary()),
                     pyarrow.array([r[1] for r in part], pyarrow.int64())], schema=schema))


def hdf5(tree, out):
    """All bytes as one flat data set, as those who care for speed have them."""
    import h5py
    import numpy

    rows = list(samples(tree))
    with h5py.File(out / "h5", "w") as f:
        f["offsets"] = numpy.cumsum([0] + [len(r[2]) for r in rows])
        f["labels"] = numpy.array([r[1] for r in rows])
        f["data"] = numpy.frombuffer(b"".join(r[2] for r in rows), dtype=numpy.uint8)


def webdataset(tree, out):
    import webdataset as module

    with module.ShardWriter(str(out / "shard-%04d.tar"), maxcount=2000, verbose=0) as writer:
        for i, (_, label, data) in enumerate(samples(tree)):
            writer.write({"__key__": f"{i:08d}", "bin": data, "cls": label})


def litdata(tree, out):
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(out), chunk_bytes="64MB")
    for i, (_, label, data) in enumerate(samples(tree)):
        writer[i] = (data, label)
    writer.done()
    writer.merge(1)


def mosaicml(tree, out):
    from streaming import MDSWriter

    with MDSWriter(out=str(out / "mds"), columns={"data": "bytes", "label": "int"}) as writer:
        for _, label, data in samples(tree):
            writer.write({"data": data, "label": label})


def ffcv(tree, out):
    import numpy
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    rows = list(samples(tree))

    class Rows:
        def __len__(self):
            return len(rows)

        def __getitem__(self, i):
            return numpy.frombuffer(rows[i][2], dtype=numpy.uint8), rows[i][1]

    fields = {"data": BytesField(), "label": IntField()}
    DatasetWriter(str(out / "beton"), fields, num_workers=1).from_indexed_dataset(Rows())


FORMATS = {f.__name__: f for f in (flat, lmdb, arrow, hdf5, webdataset, litdata, mosaicml, ffcv)}

if __name__ == "__main__":
    name, source, target = sys.argv[1:]
    os.makedirs(target, exist_ok=True)
    FORMATS[name](source, Path(target))

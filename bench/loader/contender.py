"""One contender, in a process of its own: epochs of shuffled batches, each of which ends as one
contiguous piece of memory that the consumer reads once.

    contender.py NAME PATH WORKERS BATCH EPOCHS

Prints a line of JSON: samples a second of each epoch, and CPU seconds of all of them together,
those of worker processes included. Runs in the environment of the peers, with the package onepot in
PYTHONPATH.
"""

import json
import mmap
import resource
import sys
import time
import warnings
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


def gathered(samples):
    """(bytes, label) of each to one tensor with offsets: what a good collate function does."""
    parts = [numpy.frombuffer(data, dtype=numpy.uint8) for data, _ in samples]
    sizes = torch.tensor([len(part) for part in parts])
    return torch.from_numpy(numpy.concatenate(parts)), sizes, torch.tensor([n for _, n in samples])


class Files(Dataset):
    """One file a sample, as ImageFolder has them."""

    def __init__(self, path):
        folders = sorted(p for p in Path(path).iterdir() if p.is_dir())
        self.names = [(str(p), i) for i, f in enumerate(folders) for p in sorted(f.iterdir())]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        name, label = self.names[i]
        with open(name, "rb", buffering=0) as f:
            return f.read(), label


class Flat(Dataset):
    def __init__(self, path):
        with open(Path(path) / "data", "rb") as f:
            self.map = memoryview(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ))
        self.offsets = numpy.load(Path(path) / "offsets.npy").tolist()
        self.labels = numpy.load(Path(path) / "labels.npy").tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.map[self.offsets[i] : self.offsets[i + 1]], self.labels[i]


class Lmdb(Dataset):
    def __init__(self, path):
        self.path, self.txn = str(Path(path) / "lmdb"), None
        with self.open() as env:
            self.length = env.stat()["entries"]

    def open(self):
        import lmdb

        return lmdb.open(self.path, subdir=False, readonly=True, lock=False, readahead=False)

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        if self.txn is None:  # of the process that reads
            self.txn = self.open().begin(buffers=True)
        value = self.txn.get(i.to_bytes(8, "big"))
        return value[8:], int.from_bytes(value[:8], "little")


class Arrow(Dataset):
    def __init__(self, path):
        import pyarrow

        table = pyarrow.ipc.open_file(pyarrow.memory_map(str(Path(path) / "arrow"))).read_all()
        self.parts = [(b.column(0), b.column(1).to_pylist()) for b in table.to_batches()]
        self.length, self.rows = table.num_rows, len(self.parts[0][1])

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        data, labels = self.parts[i // self.rows]
        return data[i % self.rows].as_buffer(), labels[i % self.rows]


class Hdf5(Dataset):
    def __init__(self, path):
        import h5py

        self.path, self.data = str(Path(path) / "h5"), None
        with h5py.File(self.path) as f:
            self.offsets, self.labels = f["offsets"][:].tolist(), f["labels"][:].tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        if self.data is None:
            import h5py

            self.data = h5py.File(self.path)["data"]
        return self.data[self.offsets[i] : self.offsets[i + 1]], self.labels[i]


def map_style(cls):
    def loader(path, workers, batch):
        return DataLoader(cls(path), batch, shuffle=True, num_workers=workers,
                          collate_fn=gathered, persistent_workers=workers > 0)
    return loader


def webdataset(path, workers, batch):
    import webdataset as module

    shards = sorted(str(p) for p in Path(path).glob("*.tar"))
    stream = module.WebDataset(shards, shardshuffle=len(shards), nodesplitter=None,
                               empty_check=False)
    stream = stream.shuffle(1000).map(lambda s: (s["bin"], int(s["cls"])))
    return DataLoader(stream.batched(batch, collation_fn=gathered), batch_size=None,
                      num_workers=workers, persistent_workers=workers > 0)


def litdata(path, workers, batch):
    from litdata import StreamingDataLoader, StreamingDataset

    return StreamingDataLoader(StreamingDataset(str(path), shuffle=True), batch_size=batch,
                               num_workers=workers, collate_fn=gathered)


def mosaicml(path, workers, batch):
    from streaming import StreamingDataset

    class Pairs(StreamingDataset):
        def __getitem__(self, i):
            sample = super().__getitem__(i)
            return sample["data"], sample["label"]

    return DataLoader(Pairs(local=str(Path(path) / "mds"), shuffle=True, batch_size=batch),
                      batch, num_workers=workers, collate_fn=gathered,
                      persistent_workers=workers > 0)


def ffcv(path, workers, batch):
    from ffcv.fields.decoders import BytesDecoder, IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    return Loader(str(Path(path) / "beton"), batch, num_workers=max(workers, 1),
                  order=OrderOption.RANDOM,
                  pipelines={"data": [BytesDecoder(), ToTensor()],
                             "label": [IntDecoder(), ToTensor()]})


def onepot_dataset(path, workers, batch):
    import onepot

    return DataLoader(onepot.Dataset(path), batch, shuffle=True, num_workers=workers,
                      collate_fn=onepot.collate, persistent_workers=workers > 0)


def onepot_loader(path, workers, batch):
    """Threads, not processes: as many as `workers`."""
    import onepot

    return onepot.Loader(onepot.Archive(path), batch, rank=0, world_size=1, threads=workers)


CONTENDERS = {"onepot.Loader": onepot_loader, "onepot.Dataset": onepot_dataset,
              "files": map_style(Files), "flat map": map_style(Flat), "LMDB": map_style(Lmdb),
              "Arrow": map_style(Arrow), "HDF5": map_style(Hdf5), "WebDataset": webdataset,
              "LitData": litdata, "MosaicML": mosaicml, "FFCV": ffcv}


def memory_of(batch):
    """The bytes of a batch as numpy sees them, and how many samples they are."""
    if isinstance(batch, (tuple, list)):
        return batch[0].numpy().reshape(-1), len(batch[-1])
    if hasattr(batch, "slab"):
        return batch.data.numpy().reshape(-1), len(batch)
    return numpy.asarray(batch.data).reshape(-1), len(batch)


def cpu_seconds():
    return sum(u.ru_utime + u.ru_stime for u in map(
        resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    name, path, workers, batch_size, epochs = sys.argv[1:]
    torch.set_num_threads(1)
    loader = CONTENDERS[name](path, int(workers), int(batch_size))
    rates, samples, total, before = [], 0, 0, cpu_seconds()
    for _ in range(int(epochs)):
        start, had = time.monotonic(), 0
        for batch in loader:
            memory, count = memory_of(batch)
            total += int(memory[::64].sum())
            had += count
        rates.append(had / (time.monotonic() - start))
        samples += had
    del loader, batch  # worker processes end, and are counted
    cpu = cpu_seconds() - before
    print(json.dumps({"rates": rates, "samples": samples, "cpu": cpu, "sum": total % 2**32}))


if __name__ == "__main__":
    main()

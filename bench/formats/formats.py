"""The formats of the two tables: how each is written, and a dataset that reads it.

    formats.py write FORMAT SAMPLES OUT             prints seconds
    formats.py read FORMAT PATH COUNT               every sample once, in order; prints seconds
    formats.py epochs FORMAT MMAP PATH WORKERS...   prints a line of JSON

SAMPLES is a file of numpy (.npz): 'data' (all bytes) and 'offsets'. Runs in an environment with
numpy, torch, h5py and pyarrow, with the package onepot in PYTHONPATH.
"""

import json
import mmap
import os
import sys
import time
import warnings
from pathlib import Path

import numpy

warnings.filterwarnings("ignore")


def samples_of(path):
    with numpy.load(path) as file:
        data, offsets = file["data"], file["offsets"].tolist()
    return [data[a:b].tobytes() for a, b in zip(offsets, offsets[1:])]


# ---- writing ----

def one_length(samples):
    return len(set(map(len, samples))) == 1


def write_directory(samples, out):
    out.mkdir()
    for i, data in enumerate(samples):
        (out / f"{i:06}.bin").write_bytes(data)


def write_hdf5(samples, out):
    """A data set for each image, as the table of 2020 had it; one for all where they have one
    length."""
    import h5py

    with h5py.File(out, "w") as f:
        if one_length(samples):
            f["all"] = numpy.frombuffer(b"".join(samples), numpy.uint8).reshape(len(samples), -1)
            return
        for i, data in enumerate(samples):
            f[f"{i:06}"] = numpy.frombuffer(data, dtype=numpy.uint8)


def table_of(samples):
    import pyarrow

    kind = pyarrow.binary(len(samples[0])) if one_length(samples) else pyarrow.large_binary()
    return pyarrow.table({"data": pyarrow.array(samples, kind)})


def write_arrow(samples, out):
    import pyarrow

    table = table_of(samples)
    with pyarrow.OSFile(str(out), "wb") as sink:
        with pyarrow.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


def write_parquet(samples, out):
    import pyarrow.parquet

    pyarrow.parquet.write_table(table_of(samples), out, compression="none",
                                use_dictionary=False)


def write_custom(samples, out):
    """All bytes one behind the other, the table of offsets at the end."""
    offsets = numpy.cumsum([0] + [len(data) for data in samples], dtype=numpy.int64)
    with open(out, "wb") as f:
        for data in samples:
            f.write(data)
        f.write(offsets.tobytes())
        f.write(numpy.int64(len(samples)).tobytes())


def write_onepot(samples, out):
    import onepot

    with onepot.Writer(out) as writer:
        for i, data in enumerate(samples):
            writer.add(f"{i:06}.bin", data)


# ---- reading: of process and worker alike, hence opened at the first sample ----

class Opened:
    def __init__(self, path, mapped):
        self.path, self.mapped, self.file = str(path), mapped, None

    def __getitem__(self, i):
        if self.file is None:
            self.file = self.open()
        return self.get(i)

    def __getstate__(self):
        return {**self.__dict__, "file": None}


class Directory(Opened):
    def open(self):
        return sorted(entry.path for entry in os.scandir(self.path))

    def get(self, i):
        with open(self.file[i], "rb", buffering=0) as f:
            return f.read()


class Hdf5(Opened):
    def open(self):
        import h5py

        file = h5py.File(self.path, "r")
        return file["all"] if "all" in file else file

    def get(self, i):
        return self.file[i if self.file.name == "/all" else f"{i:06}"][:]


class Arrow(Opened):
    def open(self):
        import pyarrow

        source = (pyarrow.memory_map if self.mapped else pyarrow.OSFile)(self.path)
        return pyarrow.ipc.open_file(source).read_all().column("data").chunk(0)

    def get(self, i):
        return self.file[i].as_buffer()


class Parquet(Opened):
    def open(self):
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(self.path, memory_map=self.mapped)
        return table.column("data").combine_chunks()

    def get(self, i):
        return self.file[i].as_buffer()


class Custom(Opened):
    def open(self):
        f = open(self.path, "rb", buffering=0)
        f.seek(-8, os.SEEK_END)
        count = int(numpy.frombuffer(f.read(8), dtype=numpy.int64)[0])
        f.seek(-8 - 8 * (count + 1), os.SEEK_END)
        self.offsets = numpy.frombuffer(f.read(8 * (count + 1)), dtype=numpy.int64).tolist()
        return memoryview(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)) if self.mapped else f

    def get(self, i):
        first, end = self.offsets[i], self.offsets[i + 1]
        return self.file[first:end] if self.mapped else os.pread(
            self.file.fileno(), end - first, first)


class Onepot(Opened):
    def open(self):
        import onepot

        return onepot.Archive(self.path)

    def get(self, i):
        return self.file[i].data


FORMATS = {"directory": (write_directory, Directory), "HDF5": (write_hdf5, Hdf5),
           "Arrow": (write_arrow, Arrow), "Parquet": (write_parquet, Parquet),
           "custom": (write_custom, Custom), "onepot": (write_onepot, Onepot)}


def read_all(name, path, count):
    """Bytes of all samples, in order; onepot.Loader has reads in flight, the others wait for each."""
    if name == "onepot.Loader":
        import onepot

        loader = onepot.Loader(onepot.Archive(path), 64, rank=0, world_size=1, shuffle=False)
        return sum(len(bytes(sample)) for batch in loader for sample in batch.tensors())
    dataset = FORMATS[name][1](path, False)
    return sum(len(bytes(dataset[i])) for i in range(count))


def collate(samples):
    import torch

    parts = [numpy.frombuffer(data, dtype=numpy.uint8) for data in samples]
    return torch.from_numpy(numpy.concatenate(parts)), len(parts)


class Sized:
    """For DataLoader, which asks for a length."""

    def __init__(self, dataset, count):
        self.dataset, self.count = dataset, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.dataset[i]


def loader_of(name, mapped, path, count, shuffled, workers):
    from torch.utils.data import DataLoader

    options = dict(batch_size=64, shuffle=shuffled, num_workers=workers,
                   persistent_workers=workers > 0)
    if name == "onepot":
        import onepot

        return DataLoader(onepot.Dataset(path), collate_fn=onepot.collate, **options)
    return DataLoader(Sized(FORMATS[name][1](path, mapped), count), collate_fn=collate, **options)


def epochs(name, mapped, path, count, workers):
    """Samples a second, [shuffled or not][workers]; the better one of two epochs after the first."""
    rates = {}
    for shuffled in (False, True):
        for number in workers:
            loader = loader_of(name, mapped, path, count, shuffled, number)
            times = []
            for _ in range(3):
                start, had = time.monotonic(), 0
                for batch in loader:
                    memory = batch.data if name == "onepot" else batch[0]
                    had += len(batch) if name == "onepot" else batch[1]
                    int(memory.numpy().reshape(-1)[::64].sum())
                times.append(time.monotonic() - start)
            rates[f"{int(shuffled)} {number}"] = had / min(times[1:])
            del loader
    return rates


def main():
    what, name, *rest = sys.argv[1:]
    if what == "write":
        samples = samples_of(rest[0])
        start = time.monotonic()
        FORMATS[name][0](samples, Path(rest[1]))
        print(time.monotonic() - start)
    elif what == "read":
        start = time.monotonic()
        total = read_all(name, rest[0], int(rest[1]))
        print(time.monotonic() - start, total)
    else:
        mapped, path, count, *workers = rest
        print(json.dumps(epochs(name, mapped == "1", path, int(count), list(map(int, workers)))))


if __name__ == "__main__":
    main()

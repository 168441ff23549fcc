"""python -m onepot.convert IN... OUT: datasets of other libraries as archives, and back.

IN    HDF5 (.h5, .hdf5), Parquet, Arrow (.arrow, .feather), LMDB (a directory with data.mdb, or
      .lmdb, .mdb), or anything that onepot reads (a tar, a zip, an image, TFRecord, ...); several
      files of one format, a pattern ('train-*.parquet'), a directory of them, also one that
      names columns (split=train/year=2024/part-0.parquet), or a dataset that the hub's library
      saved with save_to_disk
OUT   a .tar: an archive of onepot, which WebDataset reads, too; with a number in its name
      (train-%06d.tar): shards; .tfrecord: a tf.train.Example for each sample

Each row, or each entry of an LMDB, is a sample; see `onepot-convert(1)` for how its files are
called. h5py, pyarrow and lmdb are imported where they are needed. They trust the files that they
read: a file that somebody made for the purpose can crash this process or do worse.
"""
import argparse
import errno
import glob
import json
import os
import re
import stat
import struct
import sys
import time
import urllib.parse
from itertools import chain

from onepot import Archive, Writer

IMAGE_MAGIC = ((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG\r\n\x1a\n", ".png"))
LABEL_NAMES = ("label", "labels", "target", "cls", "class", "label.cls")
BLOCK_ROWS, BLOCK_BYTES = 64, 32 << 20  # what is read of HDF5 at once


class Refused(Exception):
    """What a person should read, in place of a traceback."""


def library(name, package):
    """A library that not everybody has."""
    try:
        return __import__(name, fromlist=["x"])
    except ImportError as e:
        raise Refused("this needs the Python module %s: pip install %s (%s)"
                      % (name, package, e)) from None


# ---- values ----

def ending(data):
    for magic, name in IMAGE_MAGIC:
        if bytes(data[:len(magic)]) == magic:
            return name
    return ""


def with_ending(name, wanted):
    return name if (name == wanted[1:] or name.endswith(wanted)) else name + wanted


def part_name(name):
    """A column or feature as a part of a file's name: without slashes and controls."""
    return re.sub(r"[/\0-\x1f]", ".", name).strip(".") or "_"


def is_file(value):
    return isinstance(value, bytes) or (
        isinstance(value, dict) and "bytes" in value and set(value) <= {"bytes", "path"})


def put(parts, name, value):
    """Add what a value is made of to the parts of a sample: name -> bytes."""
    if value is None:
        return
    if isinstance(value, list) and any(map(is_file, value)):
        for i, one in enumerate(value):
            put(parts, "%s.%d" % (name, i), one)
    elif isinstance(value, dict) and "bytes" in value and set(value) <= {"bytes", "path"}:
        if value["bytes"] is None and value.get("path"):
            raise Refused("the bytes of %s are not in the file, but in %s" % (name, value["path"]))
        put(parts, name, value["bytes"])  # an image, as the hub of datasets stores it
    elif isinstance(value, (bytes, bytearray, memoryview)):
        parts[with_ending(name, ending(value)) if ending(value) else name] = bytes(value)
    elif isinstance(value, str):
        parts[with_ending(name, ".txt")] = value.encode("utf-8", "surrogateescape")
    elif isinstance(value, (bool, int)):
        parts[with_ending(name, ".cls")] = b"%d" % value
    elif hasattr(value, "dtype") and hasattr(value, "tobytes"):
        put_array(parts, name, value)
    else:
        parts[with_ending(name, ".json")] = json.dumps(value, default=str).encode()


def put_array(parts, name, value):
    """A scalar or an array of numpy. Arrays keep their shape and type as .npy."""
    if value.dtype.kind in "OSU" and value.shape == ():
        put(parts, name, value.item())
    elif value.shape == () and value.dtype.kind in "biu":
        parts[with_ending(name, ".cls")] = b"%d" % int(value)
    elif value.shape == () and value.dtype.kind == "f":
        put(parts, name, float(value))
    elif value.dtype.kind == "u" and value.dtype.itemsize == 1 and ending(value.tobytes()[:8]):
        put(parts, name, value.tobytes())  # a picture in a file, as HDF5 has bytes
    elif value.dtype.hasobject:
        parts[with_ending(name, ".json")] = json.dumps(value.tolist(), default=str).encode()
    else:
        import io
        import numpy
        out = io.BytesIO()
        numpy.lib.format.write_array(out, numpy.asarray(value), allow_pickle=False)
        parts[with_ending(name, ".npy")] = out.getvalue()


# ---- sources: each gives its number of samples (or None), names of classes, and (key, columns) ----

def open_hdf5(path):
    h5py = library("h5py", "h5py")
    file = h5py.File(path, "r")
    found = {}
    file.visititems(lambda name, item: found.update({name: item})
                    if isinstance(item, h5py.Dataset) and item.shape else None)
    if not found:
        raise Refused("%s: has no dataset with rows" % path)
    counts = {item.shape[0] for item in found.values()}
    if len(counts) > 1:
        raise Refused("%s: its datasets have different numbers of rows: %s" % (
            path, ", ".join("%s %d" % (name, item.shape[0]) for name, item in sorted(found.items()))))

    count = max(counts)
    row_bytes = sum(item.nbytes for item in found.values()) // max(count, 1) + 1
    step = max(1, min(BLOCK_ROWS, BLOCK_BYTES // row_bytes))

    def rows():
        for start in range(0, count, step):
            blocks = {name: item[start:start + step] for name, item in found.items()}
            for i in range(min(step, count - start)):
                yield None, {name: block[i] for name, block in blocks.items()}
    return count, None, rows()


def class_names(schema):
    """Names of a label's classes, as the hub's library leaves them in the schema."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, ValueError, TypeError):
        return {}
    return {name: feature["names"] for name, feature in features.items()
            if isinstance(feature, dict) and isinstance(feature.get("names"), list)}


def rows_of(batches):
    for batch in batches:
        columns = batch.schema.names
        for i in range(batch.num_rows):
            yield None, {name: batch.column(j)[i].as_py() for j, name in enumerate(columns)}


def open_parquet(path):
    parquet = library("pyarrow.parquet", "pyarrow")
    file = parquet.ParquetFile(path)
    return (file.metadata.num_rows, class_names(file.schema_arrow),
            rows_of(file.iter_batches(batch_size=64)))


def open_arrow(path):
    """A file (feather of version 2 is one), or a stream, as the hub's library caches them."""
    ipc, pa = library("pyarrow.ipc", "pyarrow"), library("pyarrow", "pyarrow")
    source = pa.memory_map(os.fspath(path))
    try:
        file = ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = ipc.open_stream(source)
        return None, class_names(stream.schema), rows_of(stream)
    batches = range(file.num_record_batches)
    return (sum(file.get_batch(i).num_rows for i in batches), class_names(file.schema),
            rows_of(file.get_batch(i) for i in batches))


def key_text(key):
    """A key that is no text, such as a number of 4 bytes, is hexadecimal: each its own."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()


def open_lmdb(path):
    lmdb = library("lmdb", "lmdb")
    try:
        environment = lmdb.open(os.fspath(path), subdir=os.path.isdir(path), readonly=True, lock=False)
    except lmdb.Error as e:
        raise Refused(str(e)) from None

    def rows():
        with environment.begin() as transaction:
            for key, value in transaction.cursor():
                yield key_text(key), {"": value}
    return environment.stat()["entries"], None, rows()


class Files(dict):
    """Columns that are files already, with their endings."""


def open_archive(path):
    try:
        archive = Archive(path, group="basename")
    except OSError as e:
        if e.errno != errno.ENOMSG:
            raise
        raise Refused("%s: is none of the formats that are converted: HDF5, Parquet, Arrow (feather), "
                      "LMDB, TFRecord, tar, zip, SquashFS"
                      % (path if isinstance(path, str) else ", ".join(path))) from None

    def rows():
        for sample in archive:
            yield sample.name, Files((name, bytes(part)) for name, part in sample.parts.items())
    return len(archive), None, rows()


# By a name's ending, or by the first bytes.
KINDS = ((open_hdf5, (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n"), (open_parquet, (".parquet",), b"PAR1"),
         (open_arrow, (".arrow", ".feather"), b"ARROW1"), (open_lmdb, (".lmdb", ".mdb"), None))
TABLES = tuple(name for opener, names, _ in KINDS for name in names if opener is not open_lmdb)


def is_pattern(path):
    return any(c in path for c in "*?[") and not os.path.exists(path)


def in_order(paths):
    """part-2 before part-10."""
    return sorted(paths, key=lambda path: [(0, int(t), "") if t.isdigit() else (1, 0, t)
                                           for t in re.split(r"([0-9]+)", path) if t])


def opener_of(path):
    if os.path.isdir(path):
        return open_lmdb if os.path.exists(os.path.join(path, "data.mdb")) else open_archive
    with open(path, "rb") as f:
        head = f.read(16)
    return next((opener for opener, endings, magic in KINDS
                 if path.lower().endswith(endings) or (magic and head.startswith(magic))), open_archive)


def saved_files(root, name, key):
    """The names that a file of save_to_disk lists, or None. They lie in the directory itself."""
    try:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            listed = json.load(f)[key]
        listed = [one["filename"] if isinstance(one, dict) else one for one in listed]
    except FileNotFoundError:
        return None
    except (KeyError, TypeError, ValueError):
        raise Refused("%s: is not as save_to_disk writes it" % os.path.join(root, name)) from None
    for one in listed:
        if not isinstance(one, str) or one in ("", ".", "..") or "/" in one or "\0" in one:
            raise Refused("%s: names a file outside of its directory: %r"
                          % (os.path.join(root, name), one))
    return [os.path.join(root, one) for one in listed]


def tables_in(root):
    """The tables below a directory, and the directory of samples that each belongs to ("": none).
    Names that begin with a dot or _ are of those who wrote them."""
    splits = saved_files(root, "dataset_dict.json", "splits")
    if splits is not None:
        return [(path, os.path.basename(split)) for split in splits
                for path in saved_files(split, "state.json", "_data_files") or []]
    saved = saved_files(root, "state.json", "_data_files")
    if saved is not None:
        return [(path, "") for path in saved]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name[0] not in "._"]
        found += [os.path.join(folder, name) for name in names
                  if name[0] not in "._" and name.lower().endswith(TABLES)]
    return [(path, "") for path in in_order(found)]


def columns_of(path, root):
    """What the directories below root say: year=2024/kind=cat -> {"year": "2024", "kind": "cat"}."""
    pairs = (part.partition("=") for part in os.path.relpath(path, root).split(os.sep)[:-1])
    return {name: urllib.parse.unquote(value) for name, equals, value in pairs if equals and name}


def with_numbers(columns):
    """Columns that have only integers, over all files, are integers."""
    texts = {}
    for one in columns:
        for name, value in one.items():
            texts.setdefault(name, set()).add(value)
    whole = {name for name, values in texts.items()
             if all(re.fullmatch(r"-?[0-9]{1,18}", value) for value in values - {NOTHING})}
    return [{name: None if value == NOTHING else int(value) if name in whole else value
             for name, value in one.items()} for one in columns]


NOTHING = "__HIVE_DEFAULT_PARTITION__"


def expand(source):
    """[(file, directory of its samples, columns by its directories)] of one argument."""
    if is_pattern(source):
        root = os.path.dirname(re.split(r"[*?[]", source)[0]) or "."
        found = [(path, "") for path in in_order(glob.glob(source, recursive=True))]
        if not found or any(opener_of(path) is open_archive for path, _ in found):
            return [(source, "", {})]
    elif os.path.isdir(source) and opener_of(source) is not open_lmdb:
        root, found = source, tables_in(source)
    else:
        return [(source, "", {})]
    return [(path, folder, columns_of(path, root)) for path, folder in found] or [(source, "", {})]


def open_many(found, opener):
    """Files of one format, one after another; each is opened when its turn comes."""
    names = {}

    def rows():
        for (path, folder, _), columns in zip(found, with_numbers([more for _, _, more in found])):
            _, own, of_file = opener(path)
            for name, classes in (own or {}).items():
                if names.setdefault(name, classes) != classes:
                    raise Refused("%s: the classes of %s are others than in %s"
                                  % (path, name, found[0][0]))
            for key, row in of_file:
                yield key, folder, row if isinstance(row, Files) else {**columns, **row}
    return None, names, rows()


def open_source(sources):
    """Number of samples or None, names of classes, (key, directory, columns) of each, and files."""
    found = list(chain.from_iterable(map(expand, sources)))
    openers = [open_archive if is_pattern(path) else opener_of(path) for path, _, _ in found]
    for (path, _, _), opener in zip(found, openers):
        if opener is not openers[0]:
            raise Refused("%s: has another format than %s" % (path, found[0][0]))
    paths = [path for path, _, _ in found]
    if openers[0] is open_archive or found == [(paths[0], "", {})]:
        count, names, rows = openers[0](paths[0] if len(paths) == 1 else paths)
        return count, names, ((key, "", columns) for key, columns in rows), paths
    return (*open_many(found, openers[0]), paths)


# ---- samples: (name, parts) ----

def safe_key(key, number):
    """A key as the beginning of a name: no dot in its last part, which would end it."""
    parts = [part for part in re.sub(r"[\0-\x1f]", "_", key).split("/") if part not in ("", ".", "..")]
    if not parts:
        return "%08d" % number
    return "/".join(parts[:-1] + [parts[-1].replace(".", "_")])


def pick(columns, wanted, usual):
    if wanted and wanted not in columns:
        raise Refused("there is no column '%s': there are %s" % (wanted, ", ".join(columns)))
    return wanted or next((name for name in usual if name in columns), None)


def label_text(value, names):
    """The directory of a class."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bytes):
        value = value.decode("utf-8", "surrogateescape")
    if isinstance(value, int) and names and 0 <= value < len(names):
        value = names[value]
    return part_name(str(value))


def files_of(columns):
    """name -> bytes of a row; a value without a name is called by its type alone."""
    parts = {}
    for column, value in columns.items():
        own = {}
        put(own, part_name(column) if column else "", value)
        for name, data in own.items():
            name = name.lstrip(".") or "bin"
            if name in parts:
                raise Refused("two columns would be the file '%s'" % name)
            parts[name] = data
    return parts


def samples(rows, names, options):
    """(name, {part: bytes}) of each row."""
    for number, (key, above, columns) in enumerate(rows):
        folder = part_name(above) + "/" if above else ""
        if options.classes:
            label = pick(columns, options.label, LABEL_NAMES)
            if label is None:
                raise Refused("which column has the label? --label=NAME; there are %s" % ", ".join(columns))
            folder += label_text(columns.pop(label), (names or {}).get(label)) + "/"
        name = safe_key(key, number) if key is not None else "%08d" % number
        yield folder + name, columns if isinstance(columns, Files) else files_of(columns)


# ---- targets: each has add(name, parts), close() and discard() ----

def is_archive_of_onepot(path):
    """Does it end as Writer ends one?"""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as f:
            f.seek(-512, os.SEEK_END)
            return f.read(8) == b"onepotFT"
    except OSError:
        return False


class Tars:
    """An archive, or shards of about so many bytes. A sample is in one shard."""

    def __init__(self, path, options):
        self.path, self.options = path, options
        self.is_many = re.search(r"%0?\d*d", path) is not None
        try:
            path % 0 if self.is_many else path
        except (TypeError, ValueError):
            raise Refused("%s: shards need one number in their name, such as %%06d" % path) from None
        self.number, self.bytes, self.writer, self.done = 0, 0, None, []

    def makes(self, path):
        """Has a file the name of one of the shards, so that it may be replaced or removed?"""
        return self.is_many and any(os.path.realpath(self.path % int(number)) == os.path.realpath(path)
                                    for number in re.findall(r"\d+", path))

    def _open(self):
        path = self.path % self.number if self.is_many else self.path
        self.writer = Writer(path, overwrite=self.options.force, zstd=self.options.zstd)
        self.done.append(path)
        self.number, self.bytes = self.number + 1, 0

    def add(self, name, parts):
        size = sum(map(len, parts.values()))
        if self.writer and self.is_many and self.bytes and self.bytes + size > self.options.shard_bytes:
            self.writer.close()
            self.writer = None
        if self.writer is None:
            self._open()
        for part in sorted(parts):
            self.writer.add("%s.%s" % (name, part) if part else name, parts[part])
        self.bytes += size

    def close(self):
        if self.writer is None:
            self._open()
        self.writer.close()

    def remove_old(self):
        """The shards that an earlier run had more than this one: those with the numbers that follow,
        as far as they are there and archives of onepot. The last goes first, so that a later run
        finds the others if this one is interrupted."""
        old = []
        while self.is_many and self.options.force and is_archive_of_onepot(self.path % self.number):
            old.append(self.path % self.number)
            self.number += 1
        for path in reversed(old):
            os.unlink(path)
        return old

    def discard(self):
        """Nothing is left but whole shards, which would look complete: they go, too."""
        if self.writer is not None:
            self.writer.discard()
            self.done.pop()
        for path in self.done:
            os.unlink(path)


def crc32c_table():
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        yield byte


def crc32c():
    """The fastest at hand: google-crc32c, crc32c, or a slow one of our own (2 MB/s)."""
    for module, function in (("google_crc32c", "value"), ("crc32c", "crc32c")):
        try:
            return getattr(__import__(module), function)
        except ImportError:
            pass
    table = tuple(crc32c_table())

    def slow(data):
        crc = 0xFFFFFFFF
        for byte in data:
            crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
        return crc ^ 0xFFFFFFFF
    return slow


def varint(value):
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(part, data):
    """Name and message: .cls is integers, .f32 floats, all else bytes."""
    if part == "cls" or part.endswith(".cls"):
        try:
            numbers = [int(line) for line in data.split()]
            if all(-2**63 <= n < 2**63 for n in numbers):
                name = part[:-4] if part.endswith(".cls") else part
                return name, field(3, field(1, b"".join(map(varint, numbers))))
        except ValueError:
            pass
    if part.endswith(".f32") and len(data) % 4 == 0:
        return part[:-4], field(2, field(1, data))
    return part, field(1, field(1, data))


class Records:
    """A TFRecord file. It has its name when it is complete."""

    def __init__(self, path, options):
        if os.path.exists(path) and not options.force:
            raise FileExistsError(17, "it is there already; --force replaces it", path)
        self.path, self.partial = path, "%s.%d.partial" % (path, os.getpid())
        self.file, self.crc = open(self.partial, "xb"), crc32c()

    def _sum(self, data):
        crc = self.crc(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def add(self, name, parts):
        features = {}
        for part in sorted(parts):
            key, message = feature(part, parts[part])
            if key in features or (key != part and key in parts):  # box.cls beside box.f32
                key, message = part, field(1, field(1, parts[part]))
            features[key] = message
        features.setdefault("__key__", field(1, field(1, os.fsencode(name))))
        data = field(1, b"".join(field(1, field(1, os.fsencode(key)) + field(2, message))
                                 for key, message in features.items()))
        length = struct.pack("<Q", len(data))
        self.file.write(length + self._sum(length) + data + self._sum(data))

    def close(self):
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        os.replace(self.partial, self.path)

    def remove_old(self):
        return []

    def discard(self):
        try:
            self.file.close()
        except OSError:
            pass  # bytes that a full disk did not take once
        os.unlink(self.partial)


# ---- the command ----

class Progress:
    """A line on a terminal, a few times a second."""

    def __init__(self, total):
        self.total, self.count, self.bytes, self.shown = total, 0, 0, 0.0
        self.is_shown = stat.S_ISCHR(os.fstat(2).st_mode) and os.isatty(2)

    def step(self, parts):
        self.count += 1
        self.bytes += sum(map(len, parts.values()))
        now = time.monotonic()
        if self.is_shown and now - self.shown > 0.2:
            self.shown = now
            of = " of %d" % self.total if self.total else ""
            print("\r%d%s samples, %.1f MiB\033[K" % (self.count, of, self.bytes / 2**20), end="",
                  file=sys.stderr, flush=True)

    def end(self):
        if self.is_shown and self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def source_files(source):
    """The files that are read, as far as names tell."""
    if os.path.isdir(source):
        return [os.path.join(source, name) for name in os.listdir(source)]
    return [source] if os.path.exists(source) else glob.glob(source)


def convert(sources, out, options):
    """Returns the numbers of samples and bytes. Nothing is left of OUT if it fails."""
    total, names, rows, paths = open_source(sources)
    is_records = out.endswith((".tfrecord", ".tfrecords"))
    if is_records and re.search(r"%0?\d*d", out):
        raise Refused("%s: TFRecords are one file: only archives (.tar) are made in shards" % out)
    target = (Records if is_records else Tars)(out, options)
    for path in [] if is_records else chain.from_iterable(map(source_files, paths)):
        if target.makes(path):
            raise Refused("%s: is read, and has the name of a shard of %s" % (path, out))
    progress = Progress(total)
    try:
        for name, parts in samples(rows, names, options):
            target.add(name, parts)
            progress.step(parts)
        target.close()
    except BaseException:
        target.discard()
        raise
    finally:
        progress.end()
    old = target.remove_old()
    if old:
        print("convert: removed %s%s: an earlier run made more shards"
              % (old[0], " to " + old[-1] if len(old) > 1 else ""), file=sys.stderr)
    return progress.count, progress.bytes


def size(text):
    match = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError("a size is a number, maybe with K, M, G or T")
    return int(match[1]) << 10 * " KMGT".index(match[2] or " ")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m onepot.convert", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__.partition("\n\n")[2], allow_abbrev=False)
    parser.add_argument("sources", metavar="IN", nargs="+")
    parser.add_argument("out", metavar="OUT")
    parser.add_argument("--classes", action="store_true",
                        help="a directory for each class, in place of a file NAME.cls beside each sample")
    parser.add_argument("--label", metavar="NAME", help="the column that has the class (default: label)")
    parser.add_argument("--shard-bytes", type=size, default=1 << 30, metavar="SIZE",
                        help="start another shard after so many bytes (default: 1G)")
    parser.add_argument("--zstd", type=int, default=0, metavar="LEVEL", help="compress the archive")
    parser.add_argument("--force", action="store_true", help="replace OUT, and remove shards of an earlier run that it does not have")
    options = parser.parse_args(arguments)
    try:
        count, written = convert(options.sources, options.out, options)
    except KeyboardInterrupt:
        print("convert: interrupted", file=sys.stderr)
        return 130
    except (Refused, OSError, ValueError, KeyError) as e:
        print("convert: %s" % e, file=sys.stderr)
        return 1
    print("%s: %d samples, %d bytes" % (options.out, count, written))
    return 0


if __name__ == "__main__":
    sys.exit(main())

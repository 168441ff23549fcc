#!/usr/bin/env python3
"""A reader of onepot archives that was written from onepot-archive(5) alone.

It proves that the page is enough, so it takes nothing from the program, and does
things the plain way. It checks everything that the page says.

    onepot_reader.py list ARCHIVE        each entry, one line of JSON
    onepot_reader.py cat ARCHIVE PATH    content of a file
    onepot_reader.py verify ARCHIVE      every sum, bound and zero; exit status 1 if one is wrong
"""
import ctypes
import ctypes.util
import hashlib
import json
import mmap
import os
import stat
import struct
import sys

RECORD = 10240
PAGE = 65536
WINDOW = 1 << 20


class Bad(Exception):
    """The archive is not what the page says."""


def need(condition, what):
    if not condition:
        raise Bad(what)


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
xxhash.XXH3_64bits.restype = ctypes.c_uint64
xxhash.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
xxhash.XXH3_128bits.restype = Hash128
xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
for function, result, *arguments in (
        ("ZSTD_decompress", ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
         ctypes.c_size_t),
        ("ZSTD_isError", ctypes.c_uint, ctypes.c_size_t),
        ("ZSTD_findFrameCompressedSize", ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t),
        ("ZSTD_getFrameContentSize", ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t)):
    getattr(zstd, function).restype = result
    getattr(zstd, function).argtypes = arguments


def next_frame(file, at):
    for longest in (64 << 10, 9 << 20):  # most are short, and to copy so much for each takes long
        data = file[at:at + longest]
        length = zstd.ZSTD_findFrameCompressedSize(data, len(data))
        if not zstd.ZSTD_isError(length):
            return data[:length]
    raise Bad("a frame is damaged")


def unpack_frame(data):
    size = zstd.ZSTD_getFrameContentSize(data, len(data))
    need(size <= 8 << 20, "a frame does not say its size, or is too large")
    buffer = ctypes.create_string_buffer(max(size, 1))
    length = zstd.ZSTD_decompress(buffer, size, data, len(data))
    need(not zstd.ZSTD_isError(length) and length == size, "a frame is damaged")
    return buffer.raw[:size]


def xxh3_64(data):
    data = bytes(data)
    return xxhash.XXH3_64bits(data, len(data))


def xxh3_128(data):
    data = bytes(data)
    value = xxhash.XXH3_128bits(data, len(data))
    return struct.pack(">QQ", value.high, value.low)


class Entry:
    """What ENTRIES, ATTRS and EXTRA say of one position."""

    def __init__(self, position, name, size, data, mtime, attr):
        self.position, self.name, self.size, self.data, self.mtime = position, name, size, data, mtime
        self.mode, self.uid, self.gid, self.flags = attr
        self.kind = self.flags & 15
        self.nlink = 1


class Archive:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.size = os.fstat(f.fileno()).st_size
            need(self.size >= 512, "shorter than a footer")
            self.file = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        self.read_footer()
        self.read_header()
        self.read_blocks()
        self.read_entries()

    # ---- footer ----

    def read_footer(self):
        foot = self.file[-512:]
        need(foot[:8] == b"onepotFT", "no footer")
        need(struct.unpack_from("<Q", foot, 504)[0] == xxh3_64(foot[:504]), "sum of the footer")
        version, _length, incompatible = struct.unpack_from("<IIQ", foot, 8)
        need(version == 1 and incompatible < 2, "a later version")
        self.identifier = foot[32:48]
        (self.end_marker, self.image_offset, self.image_length, file_length, self.archive_length,
         self.tar_length, self.frame_bytes) = struct.unpack_from("<7Q", foot, 48)
        need(file_length == self.size < 1 << 63, "length of the file")
        need(self.end_marker % 512 == 0, "end marker")
        need(round_up(self.end_marker + 1024) == self.tar_length, "length of the tar")
        self.packed = incompatible == 1
        if self.packed:
            self.read_index_frame()
        else:
            need(self.image_offset == self.archive_length == self.tar_length, "place of the index")
            need(round_up(self.image_offset + self.image_length + 512) == self.size, "footer")
            need(self.zeros(self.end_marker, self.end_marker + 1024), "end marker")
            self.image = self.file[self.image_offset:self.image_offset + self.image_length]

    def read_index_frame(self):
        need(self.frame_bytes == 1 << 32, "length of the index's frame")
        need(self.image_offset == (self.archive_length + 8 + 7) // 8 * 8, "place of the index")
        end = self.image_offset + self.image_length
        need(self.image_length <= (1 << 32) - (1 << 17), "length of the index")
        self.check_skippable(self.archive_length, end)
        need(self.zeros(self.archive_length + 8, self.image_offset), "bytes before the index")
        self.check_skippable(end, self.size)
        need(self.size - end == 520, "frame of the footer")
        self.image = self.file[self.image_offset:end]

    def check_skippable(self, start, end):
        need(self.file[start:start + 8] == struct.pack("<II", 0x184D2A5A, end - start - 8),
             "header of a skippable frame")

    def zeros(self, start, end):
        return not any(self.file[start:end])

    # ---- header, sections ----

    def read_header(self):
        image = self.image
        need(len(image) >= 264 and image[:8] == b"onepotIX", "magic of the index")
        (version, self.header_length, table, sections, length, incompatible, self.area_offset,
         self.area_length, self.sums_offset, sums_sum, header_sum, page,
         self.features, form, codec, self.block, self.count, _unused, _nsec, self.files,
         self.directories, self.inodes, self.total_bytes, self.data_bytes, self.name_bytes,
         archive_length, _mtime, _fingerprint, marker) = struct.unpack_from(
             "<4I7Q8I7Q3Q", image, 8)[:29]
        need(self.header_length <= min(65536, len(image)), "length of the header")
        head = bytearray(image[:self.header_length])
        head[72:80] = bytes(8)
        need(xxh3_64(head) == header_sum, "sum of the header")
        need(version == 1 and incompatible == 0 and page == PAGE, "a later version of the index")
        need(form == 3 and length == len(image), "header of the index")
        need(image[192:208] == self.identifier, "identifiers differ")
        need(marker == self.end_marker and archive_length == self.archive_length, "offsets differ")
        need(codec == (6 if self.packed else 0), "codec")
        pages = (self.area_length + PAGE - 1) // PAGE
        need(self.area_offset % 8 == 0 and self.sums_offset % 8 == 0 and pages > 0, "alignment")
        need(self.area_offset + self.area_length <= length, "section area")
        need(self.sums_offset + 8 * pages <= length, "page sums")
        sums = image[self.sums_offset:self.sums_offset + 8 * pages]
        need(xxh3_64(sums) == sums_sum, "sum of the page sums")
        for i, wanted in enumerate(struct.unpack("<%dQ" % pages, sums)):
            start = self.area_offset + i * PAGE
            end = min(start + PAGE, self.area_offset + self.area_length)
            need(xxh3_64(image[start:end]) == wanted, "sum of page %d" % i)
        self.read_sections(table, sections)

    def read_sections(self, table, sections):
        records = {1: 32, 2: 1, 3: 16, 4: 4, 5: 8, 6: 16, 7: 16, 8: 1, 9: 8, 10: 8, 11: 8}
        self.section = {number: b"" for number in records}
        need(table % 8 == 0 and table + 24 * sections <= self.header_length, "section table")
        seen = set()
        for i in range(sections):
            number, record, offset, length = struct.unpack_from("<IIQQ", self.image, table + 24 * i)
            if number not in records:
                continue
            need(number not in seen and record == records[number], "section %d" % number)
            need(offset % 8 == 0 and length % record == 0, "section %d" % number)
            need(self.area_offset <= offset, "section %d" % number)
            need(offset + length <= self.area_offset + self.area_length, "section %d" % number)
            seen.add(number)
            self.section[number] = self.image[offset:offset + length]
        need(len(self.section[1]) == 32 * self.count and self.count > 0, "number of entries")
        need(self.features & 8 and len(self.section[10]) == 8 * self.count, "number of sums")

    # ---- entries ----

    def read_entries(self):
        attrs = list(struct.iter_unpack("<4I", self.section[3]))
        raw = list(struct.iter_unpack("<4Q", self.section[1]))
        ends = [r[0] & (1 << 40) - 1 for r in raw[1:]] + [len(self.section[2])]
        self.extra = {(p, k): v for v, p, k in struct.iter_unpack("<QII", self.section[7])}
        self.entries = []
        for position, (word, size, data, mtime) in enumerate(raw):
            start, end = word & (1 << 40) - 1, ends[position]
            need(start <= end <= len(self.section[2]), "name of entry %d" % position)
            need(0 < word >> 40 < len(attrs), "attributes of entry %d" % position)
            need(mtime != 0, "time of entry %d" % position)
            entry = Entry(position, self.section[2][start:end], size, data, mtime, attrs[word >> 40])
            need(mtime & (1 << 30) - 1 < 10**9, "nanoseconds of entry %d" % position)
            self.entries.append(entry)
        need(stat.S_ISDIR(self.entries[0].mode) and not self.entries[0].name, "root")
        for entry in self.entries:
            if entry.kind != 5 and entry.flags & 0x100:
                entry.nlink = self.extra[entry.position, 1]

    def inode(self, entry):
        if entry.kind != 5:
            return entry
        need(entry.data < entry.position, "alias %d" % entry.position)
        first = self.entries[entry.data]
        need(first.kind != 5 and stat.S_IFMT(first.mode) == stat.S_IFMT(entry.mode), "alias")
        return first

    def mtime_ns(self, entry):
        seconds = (entry.mtime >> 30) - (1 << 31)
        if entry.flags & 0x400:
            seconds = struct.unpack("<q", struct.pack("<Q", self.extra[entry.position, 3]))[0]
        return seconds * 10**9 + (entry.mtime & (1 << 30) - 1)

    def children(self, entry):
        first, count = entry.data & 0xffffffff, entry.data >> 32
        need(count == 0 or first > entry.position, "children of entry %d" % entry.position)
        need(first + count <= self.count, "children of entry %d" % entry.position)
        return self.entries[first:first + count]

    def walk(self, entry=None, path=b"."):
        """All entries with their paths, a directory before what is below it."""
        entry = entry or self.entries[0]
        stack = [(entry, path)]
        while stack:
            entry, path = stack.pop()
            yield path, entry
            if stat.S_ISDIR(entry.mode):
                below = self.children(entry)
                for child in reversed(below):
                    stack.append((child, child.name if path == b"." else path + b"/" + child.name))

    def target(self, entry):
        target = self.section[8][entry.data:entry.data + entry.size]
        need(len(target) == entry.size and 0 < len(target) <= 4095, "target of a link")
        return target

    def xattrs(self, entry):
        if not entry.flags & 0x200:
            return {}
        at = self.extra[entry.position, 2]
        need(at % 8 == 0, "attributes")
        count, length = struct.unpack_from("<II", self.section[9], at)
        need(count > 0 and length > 0, "attributes")
        at += 8
        end = at + length
        result = {}
        for _ in range(count):
            name_len, value_len = struct.unpack_from("<II", self.section[9], at)
            name = self.section[9][at + 8:at + 8 + name_len]
            at += 8 + name_len + value_len
            result[name] = self.section[9][at - value_len:at]
        need(at == end and list(result) == sorted(result), "attributes")
        return result

    # ---- data ----

    def read_blocks(self):
        self.blocks = list(struct.iter_unpack("<QII", self.section[6]))
        for offset, length, content in self.blocks:
            need(0 < length < 1 << 31 and offset + length <= self.archive_length, "block")
            need(0 < content <= self.block, "content of a block")
        self.last_frame = None, b""

    def frame(self, number):
        """What is in a packed frame; the last one is kept."""
        if self.last_frame[0] != number:
            offset, length, content = self.blocks[number]
            data = unpack_frame(self.file[offset:offset + length])
            need(len(data) == content, "content of a frame")
            self.last_frame = number, data
        return self.last_frame[1]

    def pieces(self, entry):
        """(offset in the file, length, offset in the archive or None, frame, offset in that)."""
        if entry.kind == 2:
            result = [(0, entry.size, entry.data, 0, 0)] if entry.size else []
        elif entry.kind == 3:
            result = list(self.in_frames(0, entry.size, entry.data))
        else:
            result = self.ranges_of(entry)
        at = 0
        for offset, length, source, frame, skip in result:
            need(at <= offset and length > 0 and offset + length <= entry.size, "ranges")
            if source is None:
                need(skip + length <= self.blocks[frame][2], "a range past the end of a frame")
            else:
                need(source + length <= self.archive_length, "a range past the end of the tar")
            at = offset + length
        return result

    def in_frames(self, offset, length, place):
        """The pieces of a range that begins in a frame, and goes on in those behind it."""
        frame, skip, end = place & 0xffffffff, place >> 32, offset + length
        each = self.blocks[frame][2]
        while offset < end:
            n = min(end - offset, each - skip)
            need(n > 0, "a range past the end of a frame")
            yield offset, n, None, frame, skip
            offset, frame, skip = offset + n, frame + 1, 0

    def ranges_of(self, entry):
        need(entry.kind == 4 and entry.data % 8 == 0, "kind of data")
        count, word, total = struct.unpack_from("<IIQ", self.section[5], entry.data)
        need(word == 0x45474e52, "ranges")
        result = []
        for source, offset, length in struct.iter_unpack(
                "<3Q", self.section[5][entry.data + 16:][:24 * count]):
            if source >> 63:
                result += self.in_frames(offset, length, source & (1 << 63) - 1)
            else:
                result.append((offset, length, source, 0, 0))
        need(sum(r[1] for r in result) == total, "ranges")
        return result

    def ranges(self, entry):
        """[offset, length] of all that is no hole."""
        result = []
        for offset, length, *_ in self.pieces(entry):
            if result and sum(result[-1]) == offset:
                result[-1][1] += length
            else:
                result.append([offset, length])
        return result

    def stored(self, entry):
        """The file's bytes that are in the archive, holes left out."""
        for _, length, source, frame, skip in self.pieces(entry):
            if source is None:
                yield self.frame(frame)[skip:skip + length]
            else:
                yield from (self.file[at:min(at + (1 << 20), source + length)]
                            for at in range(source, source + length, 1 << 20))

    def sum(self, entry):
        return struct.unpack_from("<Q", self.section[10], 8 * entry.position)[0]

    # ---- everything ----

    def verify(self):
        self.verify_zeros()
        self.verify_tree()
        data = []
        for entry in self.entries:
            if stat.S_ISREG(entry.mode) and entry.kind != 5:
                need(xxh3_64(b"".join(self.stored(entry))) == self.sum(entry),
                     "sum of " + repr(entry.name))
                data += [(source, length, entry) for _, length, source, *_ in self.pieces(entry)
                         if source is not None]
            else:
                need(self.sum(entry) == 0, "sum of what is no file")
        data.sort(key=lambda d: d[:2])
        self.verify_windows()
        self.verify_digest()
        if self.packed:
            self.verify_frames()
        else:
            self.verify_identifier(data)

    def verify_frames(self):
        """All frames make the tar; those that are packed are the index's blocks."""
        at, length, blocks = 0, 0, []
        while at < self.archive_length:
            frame = next_frame(self.file, at)
            content = unpack_frame(frame)
            length += len(content)
            if frame[4] & 4:
                blocks.append((at, len(frame), len(content)))
            at += len(frame)
        need(at == self.archive_length and length == self.tar_length, "length of the tar")
        need(blocks == self.blocks, "blocks")
        need(not any(content[-min(len(content), 1024):]), "end marker")

    def verify_windows(self):
        """Each MiB of the file that holds the tar has a sum."""
        windows = range(0, self.archive_length, WINDOW)
        sums = struct.unpack("<%dQ" % len(windows), self.section[11])
        for at, wanted in zip(windows, sums):
            window = self.file[at:min(at + WINDOW, self.archive_length)]
            need(xxh3_64(window) == wanted, "sum of the window at %d" % at)

    def verify_digest(self):
        hashed, has_holes = [], False
        for entry in self.entries:
            node = self.inode(entry)
            kind = stat.S_IFMT(node.mode)
            mode = kind if kind == stat.S_IFLNK or not entry.name else node.mode
            hashed.append(struct.pack("<II", mode, len(entry.name)) + entry.name)
            has_holes |= kind == stat.S_IFREG and bool(node.flags & 0x800)
            if kind == stat.S_IFDIR:
                hashed.append(struct.pack("<Q", node.data >> 32))
            elif kind == stat.S_IFREG:
                hashed.append(struct.pack("<QQ", node.size, self.sum(node)))
            elif kind == stat.S_IFLNK:
                hashed.append(struct.pack("<Q", node.size) + self.target(node))
            elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                hashed.append(struct.pack("<Q", node.data))
        hashed.append(b"onepot stored  1" if has_holes else b"onepot tree    1")
        number = struct.pack("<I", 4 if has_holes else 3)
        need(self.image[208:228] == xxh3_128(b"".join(hashed)) + number, "digest")

    def verify_zeros(self):
        image = self.image
        need(not any(image[self.header_length:self.area_offset]), "bytes behind the header")
        need(not any(image[self.area_offset + self.area_length:self.sums_offset]), "bytes before sums")
        pages = (self.area_length + PAGE - 1) // PAGE
        need(not any(image[self.sums_offset + 8 * pages:]), "bytes behind the page sums")
        if not self.packed:
            need(self.zeros(self.image_offset + self.image_length, self.size - 512), "padding")
            need(self.zeros(self.end_marker, self.image_offset), "end marker")

    def verify_tree(self):
        seen, next_first = [], 1
        totals = [0, 0, 0, 0, 0]
        for entry in self.entries:
            seen.append(stat.S_ISDIR(entry.mode))
            if stat.S_ISDIR(entry.mode):
                below = self.children(entry)
                need(entry.data & 0xffffffff == next_first, "breadth first")
                next_first += len(below)
                names = [c.name for c in below]
                need(names == sorted(set(names)), "order of names")
                need(all(0 < len(n) <= 255 and b"/" not in n and b"\0" not in n for n in names), "names")
                need(entry.size == sum(stat.S_ISDIR(c.mode) for c in below), "directories below")
            totals[0] += stat.S_ISREG(entry.mode)
            totals[1] += entry.kind != 5
            if stat.S_ISREG(entry.mode) and entry.kind != 5:
                totals[2] += entry.size
                totals[3] += sum(r[1] for r in self.ranges(entry))
        need(next_first == self.count, "entries that no directory has")
        need(totals[:4] == [self.files, self.inodes, self.total_bytes, self.data_bytes], "totals")
        need(sum(seen) == self.directories and self.name_bytes == len(self.section[2]), "totals")
        dirs = [i for i, is_dir in enumerate(seen) if is_dir]
        need(struct.pack("<%dI" % len(dirs), *dirs) == self.section[4], "DIRS")

    def verify_identifier(self, data):
        """Of the headers, which are what is neither data nor padding, and of the sums."""
        hashed, at = [], 0
        for i, (source, length, entry) in enumerate(data):
            hashed.append(self.file[at:source])
            at = source + length
            if i + 1 == len(data) or data[i + 1][2] is not entry:
                hashed.append(struct.pack("<Q", self.sum(entry)))
                at += -sum(r[1] for r in self.ranges(entry)) % 512
        hashed.append(self.file[at:self.end_marker])
        need(xxh3_128(b"".join(hashed)) == self.identifier, "identifier")

    def lookup(self, path):
        entry = self.entries[0]
        for name in path.split(b"/"):
            if name in (b"", b"."):
                continue
            found = [c for c in self.children(entry) if c.name == name]
            need(found, "no such file")
            entry = found[0]
        return self.inode(entry)


def round_up(value):
    return (value + RECORD - 1) // RECORD * RECORD


def describe(archive, path, entry):
    """One line, in the form of pack_tree.py."""
    node = archive.inode(entry)
    line = {"path": os.fsdecode(path), "mode": "%o" % node.mode, "uid": node.uid, "gid": node.gid,
            "mtime_ns": archive.mtime_ns(node)}
    if not stat.S_ISDIR(node.mode):
        line["nlink"] = node.nlink
    if stat.S_ISLNK(node.mode):
        line["target"] = os.fsdecode(archive.target(node))
    if stat.S_ISCHR(node.mode) or stat.S_ISBLK(node.mode):
        line["rdev"] = [node.data & 0xffffffff, node.data >> 32]
    if stat.S_ISREG(node.mode):
        line["size"] = node.size
        line["data"] = [[offset, offset + length] for offset, length in archive.ranges(node)]
        digest = hashlib.sha256()
        for piece in archive.stored(node):
            digest.update(piece)
        line["sha256"] = digest.hexdigest()
    line["xattrs"] = {os.fsdecode(k): v.hex() for k, v in archive.xattrs(node).items()}
    return line


def main(argv):
    if len(argv) < 3 or argv[1] not in ("list", "cat", "verify"):
        sys.exit(__doc__)
    try:
        archive = Archive(argv[2])
        if argv[1] == "verify":
            archive.verify()
        elif argv[1] == "cat":
            for piece in archive.stored(archive.lookup(os.fsencode(argv[3]))):
                sys.stdout.buffer.write(piece)
        else:
            for path, entry in sorted(archive.walk(), key=lambda item: item[0]):
                print(json.dumps(describe(archive, path, entry), sort_keys=True))
    except (Bad, struct.error, KeyError, IndexError) as error:
        sys.exit("onepot_reader: %s: %s" % (argv[2], error or type(error).__name__))


if __name__ == "__main__":
    main(sys.argv)

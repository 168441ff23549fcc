"""TFRecord files as directories, beside what was written into them, and ones that lie."""

import os
import pathlib
import struct

import harness
from harness import check, check_equal, onepot

import tfrecords as t  # noqa: E402  pylint: disable=wrong-import-position

JPEG = b"\xff\xd8\xff\xe0" + bytes(range(256)) * 40
PNG = b"\x89PNG\r\n\x1a\n" + b"pixels"
IDS = [0, -1, 2**63 - 1, -2**63, 127, 128]


def images(count=20):
    return [t.example({"image/encoded": JPEG + b"%d" % i, "image/class/label": i * i})
            for i in range(count)]


def read_all(directory):
    return {name: pathlib.Path(directory, name).read_bytes() for name in os.listdir(directory)}


def shown(work, records, **options):
    """name -> content, of a mounted file of these records."""
    path = t.write(work / f"{len(os.listdir(work / '.'))}.tfrecord", records)
    with work.mount(path, name=path[-14:] + ".d", **options) as mount:
        return read_all(mount / ".")


def test_each_feature_is_a_file(work):
    everything = t.example({
        "image/encoded": JPEG, "mask": PNG, "text": "naïve", "label": 7, "ids": IDS,
        "box": [1.5, -2.25], "frames": [b"", JPEG, b"x"], "none": [], "cls": 3, "nothing": b"",
        "a.jpg": JPEG, "score": 0.5})
    found = shown(work, [everything, t.example({"label": -5})])
    check_equal(found, {
        "00000000.image.encoded.jpg": JPEG, "00000000.mask.png": PNG,
        "00000000.text": "naïve".encode(), "00000000.label.cls": b"7",
        "00000000.ids.cls": "\n".join(map(str, IDS)).encode(),
        "00000000.box.f32": struct.pack("<2f", 1.5, -2.25), "00000000.frames.0": b"",
        "00000000.frames.1.jpg": JPEG, "00000000.frames.2": b"x", "00000000.cls": b"3",
        "00000000.nothing": b"", "00000000.a.jpg": JPEG,
        "00000000.score.f32": struct.pack("<f", 0.5), "00000001.label.cls": b"-5"}, "files")


def test_numbers_one_by_one_are_those_in_a_row(work):
    lists = {b"f": t.float_list([1.0, 2.0, 3.0], in_a_row=False), b"i": t.int64_list(IDS, in_a_row=False),
             b"both": t.field(3, b"\x08\x05" + t.field(1, b"\x06\x07") + b"\x08\x08"),
             b"rows": t.field(2, t.field(1, struct.pack("<f", 1)) + t.field(1, b"") + b"\x0d" +
                              struct.pack("<f", 2) + t.field(1, struct.pack("<2f", 3, 4)))}
    record = t.field(1, b"".join(t.entry(name, value) for name, value in lists.items()))
    check_equal(shown(work, [record]), {
        "00000000.f.f32": struct.pack("<3f", 1, 2, 3), "00000000.i.cls": "\n".join(map(str, IDS)).encode(),
        "00000000.both.cls": b"5\n6\n7\n8", "00000000.rows.f32": struct.pack("<4f", 1, 2, 3, 4)}, "numbers")


def test_records_that_are_no_example_are_one_file(work):
    entry = t.entry("x", t.feature(1))
    records = [
        b"just bytes", b"", t.example({}), t.example({"empty": []}),
        t.field(1, entry) + t.field(2, b""),  # a SequenceExample
        t.field(1, entry)[:-1], t.field(1, entry[:-1]), b"\x08\x01", t.field(1, t.field(1, t.field(3, b""))),
        t.field(1, t.entry("x", t.field(4, b""))), t.field(1, t.entry("x", t.feature(1) + t.feature(2))),
        t.field(1, t.entry("x", t.field(2, t.field(1, b"abc")))), t.field(1, t.entry("x", t.field(2, b"\x08\x01"))),
        t.field(1, t.entry("x", t.field(3, t.field(1, b"\x80")))),
        t.field(1, t.entry("x", t.field(3, t.field(1, b"\xff" * 9 + b"\x02")))),
        t.field(1, t.entry("x", t.field(1, t.field(2, b"no value")))), b"\x0b\x0c", b"\x00\x01",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0a" + b"\xff" * 11, b"\xff" * 30]
    found = shown(work, [*records, t.example({"x": 1})])
    expected = {f"{i:08}.bin": record for i, record in enumerate(records)}
    check_equal(found, {**expected, f"{len(records):08}.x.cls": b"1"}, "records")


def test_entries_in_another_order_and_in_parts(work):
    swapped = t.field(1, t.field(2, t.feature(1)) + t.field(1, b"late"))
    record = t.field(1, swapped) + t.field(1, t.entry("second", t.feature(2)))
    check_equal(shown(work, [record]), {"00000000.late.cls": b"1", "00000000.second.cls": b"2"}, "entries")


def test_names_that_no_file_can_have_are_left_out_alone(work):
    cases = {b"\xc3\xa9": b"00000000.\xc3\xa9.cls", b"": b"00000000..cls", b"../../etc": b"00000000.......etc.cls",
             b"n" * 242: b"00000000." + b"n" * 242 + b".cls", b"n" * 243: None, b"n" * 300: None, b"a\0b": None,
             b"n" * 5000: None, b"/": b"00000000...cls"}
    for i, (name, file) in enumerate(cases.items()):
        path = t.write(work / f"{i}.tfrecord", [t.field(1, t.entry(name, t.feature(1)) + t.entry("z", t.feature(2)))])
        with work.mount(path, name=f"d{i}") as mount:
            check_equal(sorted(os.listdir(os.fsencode(str(mount / ".")))),
                        sorted([b"00000000.z.cls"] + ([file] if file else [])), f"name {name[:20]!r}")
        said = onepot("ls", path).stderr
        check_equal(b"left out" in said, not file, f"what it says of {name[:20]!r}")
    twice = t.write(work / "twice", [t.field(1, t.entry("a/b", t.feature(1)) + t.entry("a.b", t.feature(2)))])
    check_equal(onepot("cat", twice, "00000000.a.b.cls").stdout, b"1", "the first of two")
    check(b"00000000.a.b.cls: is the name of two features" in onepot("ls", twice).stderr, "two names")


def test_all_commands(work):
    path = t.write(work / "train-00000-of-00001", images())
    done = onepot("verify", path)
    check(b"40 files" in done.stdout and b"every record has the sum" in done.stdout, f"verify: {done.stdout!r}")
    onepot("index", path)
    check_equal(onepot("cat", path, "00000003.image.class.label.cls").stdout, b"9", "cat")
    onepot("extract", path, "-C", work / "out")
    onepot("pack", "-o", work / "packed.tar", path)
    onepot("extract", work / "packed.tar", "-C", work / "again")
    expected = {f"{i:08}.image.class.label.cls": b"%d" % (i * i) for i in range(20)}
    expected.update({f"{i:08}.image.encoded.jpg": JPEG + b"%d" % i for i in range(20)})
    check_equal(read_all(work / "out"), expected, "extract")
    check_equal(read_all(work / "again"), expected, "pack and extract")
    check_equal(os.stat(work / "out/00000000.image.encoded.jpg").st_mtime_ns, os.stat(path).st_mtime_ns, "time")


def test_storage_that_is_not_mapped(work):
    big = t.example({"big": bytes(3 << 20), "n": list(range(50000))})
    records = images(300) + [big] + images(3)
    remote = shown(work, records, env=harness.environment(ONEPOT_ASSUME_REMOTE="1"))
    check_equal(len(remote), 608, "files")
    check_equal(remote["00000300.n.cls"], "\n".join(map(str, range(50000))).encode(), "a long list")
    check_equal(remote["00000300.big"], bytes(3 << 20), "large bytes")
    check_equal(remote["00000017.image.class.label.cls"], b"289", "a label")


def test_a_file_of_nothing(work):
    check_equal(shown(work, []), {}, "no records")


def test_each_truncation_is_refused(work):
    whole = b"".join(map(t.frame, (t.example({"label": 1}), b"bin")))
    first = len(t.frame(t.example({"label": 1})))
    pathlib.Path(work / "one.tfrecord").write_bytes(whole[:first])
    onepot("ls", work / "one.tfrecord")
    cuts = ((cut, whole[:cut]) for cut in range(1, len(whole)) if cut != first)
    for cut, line in harness.said_of_each(work, cuts):
        if cut >= 12:
            number = b"record %d: the file is truncated" % (cut > first)
            check(number in line and b"offset" in line, f"cut to {cut}: {line!r}")


def test_damaged_lengths_are_refused_and_damaged_data_is_found(work):
    whole = b"".join(map(t.frame, (t.example({"label": 1, "text": "some text"}), b"second")))
    first = len(whole) - len(t.frame(b"second"))
    path = pathlib.Path(work / "bad.tfrecord")
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 0x10,)) + whole[at + 1:])
        number = int(at >= first)
        done = onepot("verify", path, status=1)
        if at < 12:
            check(b"not an archive of a known format" in done.stderr, f"byte {at}: {done.stderr!r}")
        elif first <= at < first + 12:
            check(b"record 1: its length is damaged" in done.stderr, f"byte {at}: {done.stderr!r}")
        else:
            check(b"record %d: its bytes do not have the sum" % number in done.stderr,
                  f"byte {at}: {done.stderr!r}")
    for length in (2**64 - 1, 2**64 - 16, 2**63, 1 << 40, 100):
        head = struct.pack("<Q", length)
        path.write_bytes(head + struct.pack("<I", t.masked_crc(head)) + bytes(50))
        check(b"record 0: the file is truncated in it" in onepot("ls", path, status=1).stderr, f"length {length}")


def test_compressed_ones_are_refused_by_name(work):
    harness.need_program("gzip")
    path = t.write(work / "a.tfrecord", images())
    harness.run("gzip", path)
    said = onepot("ls", path + ".gz", status=1).stderr
    check(b"is gzip data of a TFRecord file" in said and b"gzip -d" in said, f"it says {said!r}")


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

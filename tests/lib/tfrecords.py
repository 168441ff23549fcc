"""Writes TFRecord files, by hand, from the descriptions of the formats alone.

example() takes {name: bytes, str, int, float, or a list of one kind}; write() takes records.
Both are slow, and do nothing cleverly.
"""

import struct


def _table():
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        yield i


TABLE = tuple(_table())


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(data):
    length = struct.pack("<Q", len(data))
    return (length + struct.pack("<I", masked_crc(length)) + data
            + struct.pack("<I", masked_crc(data)))


def write(path, records):
    with open(path, "wb") as f:
        for record in records:
            f.write(frame(record))
    return path


def varint(value):
    value &= (1 << 64) - 1
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def field(number, data):
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def bytes_list(values):
    return field(1, b"".join(field(1, v) for v in values))


def float_list(values, in_a_row=True):
    if in_a_row:
        return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))
    return field(2, b"".join(b"\x0d" + struct.pack("<f", v) for v in values))


def int64_list(values, in_a_row=True):
    if in_a_row:
        return field(3, field(1, b"".join(map(varint, values))))
    return field(3, b"".join(b"\x08" + varint(v) for v in values))


def feature(values):
    if not isinstance(values, (list, tuple)):
        values = [values]
    if not values:
        return b""
    if isinstance(values[0], int):
        return int64_list(values)
    if isinstance(values[0], float):
        return float_list(values)
    return bytes_list([v.encode() if isinstance(v, str) else v for v in values])


def entry(name, message):
    return field(1, field(1, name if isinstance(name, bytes) else name.encode()) + field(2, message))


def example(features):
    return field(1, b"".join(entry(name, feature(values)) for name, values in features.items()))

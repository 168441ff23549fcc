"""A filesystem with one file, `file`, which pretends to be a mount of onepot: of the same size,
inode and times, and whoever asks is told the name of that mount's socket. All of its bytes are 'i'.

Usage: impostor.py MOUNTPOINT SIZE INODE SEC NSEC SOCKET; it ends when it is unmounted."""

import ctypes
import os
import struct
import sys

LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE, FLUSH, INIT, IOCTL = \
    1, 2, 3, 14, 15, 17, 18, 25, 26, 39
MAGIC = 0x32306f69746f706f


def attributes(node, size, inode, sec, nsec):
    """struct fuse_attr; node 1 is the folder."""
    mode, size, inode = (0o40755, 0, 1) if node == 1 else (0o100444, size, inode)
    return struct.pack("<6Q10I", inode, size, 1, sec, sec, sec, nsec, nsec, nsec, mode, 1, 0, 0, 0, 4096, 0)


def answer(opcode, node, request, told, name):
    """The bytes of an answer; None: not implemented."""
    size = told[0]
    if opcode == INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 0, 0, 0, 0, 4096, 1, 0, 0, *[0] * 8)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", 2, 0, 1000, 1000, 0, 0) + attributes(2, *told)
    if opcode == GETATTR:
        return struct.pack("<QII", 1000, 0, 0) + attributes(node, *told)
    if opcode == STATFS:
        return bytes(80)
    if opcode == OPEN:
        return struct.pack("<QII", 0, 0, 0)
    if opcode == READ:
        _, offset, wanted = struct.unpack_from("<QQI", request)
        return b"i" * max(0, min(wanted, size - offset))
    if opcode == IOCTL:
        out_size = struct.unpack_from("<QIIQII", request)[5]
        made = struct.pack("<QQQQ", MAGIC, *told[2:], 0) + name
        return struct.pack("<iIII", 0, 0, 0, 0) + made[:out_size].ljust(out_size, b"\0")
    return b"" if opcode in (RELEASE, FLUSH) else None


def main(point, size, inode, sec, nsec, name):
    told = [int(size), int(inode), int(sec), int(nsec)]
    fd = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"impostor", point.encode(), b"fuse", 6, options.encode()) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(fd, 1 << 18)
        except OSError:  # unmounted
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        found = answer(opcode, node, request[40:], told, name.encode())
        if opcode == FORGET:
            continue
        body = found if found is not None else b""
        os.write(fd, struct.pack("<IiQ", 16 + len(body), 0 if found is not None else -38, unique) + body)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Tars written member by member, as a test wants them."""

import os
import tarfile

TIME = 1_600_000_000


def member(name, data=None, mode=None, time=TIME, link=None, symlink=None, directory=False):
    info = tarfile.TarInfo()
    info.name = name
    info.mtime = time
    info.uid = info.gid = os.geteuid()
    if directory:
        info.type = tarfile.DIRTYPE
    elif link is not None:
        info.type, info.linkname = tarfile.LNKTYPE, link
    elif symlink is not None:
        info.type, info.linkname = tarfile.SYMTYPE, symlink
    else:
        info.size = len(data)
    info.mode = mode if mode is not None else 0o755 if directory else 0o644
    return info, data


def write_tar(path, members, form=tarfile.GNU_FORMAT):
    with open(path, "wb") as f:
        for info, data in members:
            # tarfile would take the slash from a directory's name, and write it itself.
            header = info.tobuf(form, "utf-8", "surrogateescape")
            f.write(header)
            if data is not None:
                f.write(data + bytes(-len(data) % 512))
        f.write(bytes(10240 - f.tell() % 10240 + 10240))


def write_small(path, names):
    """A tar of very many files, of which each has its name for content: all names, of up to 100 bytes, are
    as long as the first, and so are the headers the same but for the name and the sum."""
    size = len(names[0])
    header = member("x" * size, b"x" * size)[0].tobuf(tarfile.GNU_FORMAT)
    total = int(header[148:154], 8) - size * ord("x")
    with open(path, "wb") as f:
        for name in map(str.encode, names):
            assert len(name) == size, name
            f.write(b"%b%b%06o%b%b%b" % (name, header[size:148], total + sum(name), header[154:], name,
                                         bytes(-size % 512)))
        f.write(bytes(10240 - f.tell() % 10240 + 10240))


def write_folder(path, files, folder="d"):
    """A tar of one folder: files is {name: bytes}, or a number of (name, bytes). Returns the path."""
    files = files.items() if isinstance(files, dict) else files
    write_tar(path, [member(folder, directory=True)] +
              [member(f"{folder}/{name}", data) for name, data in files])
    return path

"""mount(): an archive as a directory, for notebooks and scripts that open files by name."""
import contextlib
import os
import shutil
import subprocess

from onepot._archive import nested_glob


def _program():
    """The program `onepot`: in the installation that has this package, else in PATH."""
    folder = os.path.dirname(os.path.abspath(__file__))
    while folder != os.path.dirname(folder):
        beside = os.path.join(folder, "bin", "onepot")
        if os.access(beside, os.X_OK):
            return beside
        folder = os.path.dirname(folder)
    found = shutil.which("onepot")
    if found is None:
        raise FileNotFoundError("the program 'onepot' is neither beside this package nor in PATH;"
                                " install it, or add its directory to PATH")
    return found


def _run(*command):
    """The command's output as str. OSError with its messages if it failed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise OSError(os.fsdecode(done.stderr).strip() or "%s failed" % " ".join(command[:2]))
    return os.fsdecode(done.stdout)


@contextlib.contextmanager
def mount(archive, at=None, options=(), *, nested=None):
    """mount(archive, at=None, options=(), *, nested=None)

    A context manager that shows an archive as a directory and yields its path:

        with onepot.mount("train.tar") as path:
            os.listdir(path)

    archive: a path, or a list of paths. at: the mount point; None makes a private one. options:
    for `onepot mount`, such as ["--cache", "2G"]. nested: archives in the archive are directories:
    True, or a glob of which ones. The mount ends with the block, and in any case
    with this process. OSError, with the program's message: the archive can't be mounted, or the
    mount is still in use at the end of the block.

    A program that runs already can't preload the library that reads without the mount: start it
    by `onepot run`, or hand `$(onepot mount --export ...)` to the shell that starts it.
    """
    program = _program()
    several = isinstance(archive, (list, tuple))
    archives = [os.fspath(path) for path in (archive if several else [archive])]
    place = ["--at", os.fspath(at)] if at is not None else []
    glob = nested_glob(nested)
    inner = [] if glob is None else ["--nested=" + glob if glob else "--nested"]
    path = _run(program, "mount", "--owner", str(os.getpid()), *options, *inner, *archives, *place)
    path = path.rstrip("\n")
    try:
        yield path
    finally:
        _run(program, "umount", path)

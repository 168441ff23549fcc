"""mount(): an archive as a directory, for notebooks and scripts that open files by name."""
import contextlib
import os
import shlex
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


class MountPath(str):
    """The path of a mount, a str. environment: variables to add to those of a child process, a
    dict; see mount()."""
    environment = None


def _parse_export(lines):
    """The path that `onepot mount --export` tells, as a MountPath."""
    told = {}
    for word in shlex.split(lines):
        name, _, value = word.partition("=")
        told.setdefault(name, value)
    path = MountPath(told["data"])
    path.environment = {name: told[name] for name in ("LD_PRELOAD",) if name in told}
    return path


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

    path.environment is what child processes need to read without the mount's daemon, which is
    faster for many small files: {"LD_PRELOAD": ...}, or {} where that is not possible
    (onepot-run(1), "Reading without the mount"). This process runs already, so it can't use it.

        subprocess.run(command, env={**os.environ, **path.environment})

    Worker processes that multiprocessing or a DataLoader starts by "spawn" or "forkserver" get
    it by os.environ.update(path.environment) before the first of them; those by "fork" can't.
    Take it back at the end of the block, which removes the library.
    """
    program = _program()
    several = isinstance(archive, (list, tuple))
    archives = [os.fspath(path) for path in (archive if several else [archive])]
    place = ["--at", os.fspath(at)] if at is not None else []
    glob = nested_glob(nested)
    inner = [] if glob is None else ["--nested=" + glob if glob else "--nested"]
    path = _parse_export(_run(program, "mount", "--export", "--owner", str(os.getpid()), *options,
                              *inner, *archives, *place))
    try:
        yield path
    finally:
        _run(program, "umount", path)

"""mount(): an archive as a directory, for notebooks and scripts that open files by name."""
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


# What `onepot mount --export` sets for programs that read without the mount.
_ENVIRONMENT = ("LD_PRELOAD", "ONEPOT_PRELOAD", "ONEPOT_SECCOMP_FILTERS", "ASAN_OPTIONS")


class MountPath(str):
    """A mounted archive, and the path of the mount: a str and an os.PathLike. See mount().

    environment: variables to add to those of a child process, a dict."""
    environment = None
    _archive = _program = None
    _owner = 0  # the process that may unmount it; 0: nobody, it is closed

    def __fspath__(self):
        return str(self)

    def __repr__(self):
        return "<onepot.mount of %r %s %r>" % (self._archive, "at" if self._owner else "was at",
                                               str(self))

    def __reduce__(self):  # another process has the path only
        return str, (str(self),)

    @property
    def closed(self):
        """Was it unmounted by close()?"""
        return not self._owner

    def close(self):
        """close(): unmount it. OSError: it is in use. In a forked child, and when it is closed,
        nothing happens."""
        if self._owner == os.getpid():
            _run(self._program, "umount", str(self))
            self._owner = 0

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()


def _parse_export(lines):
    """The path that `onepot mount --export` tells, as a MountPath."""
    told = {}
    for word in shlex.split(lines):
        name, _, value = word.partition("=")
        told.setdefault(name, value)
    path = MountPath(told["data"])
    path.environment = {name: told[name] for name in _ENVIRONMENT if name in told}
    return path


def mount(archive, at=None, options=(), *, nested=None):
    """mount(archive, at=None, options=(), *, nested=None)

    Show an archive as a directory. Returns its path, which can be used like any other:

        d = onepot.mount("train.tar")
        os.listdir(d)

    It lasts until d.close(), or the end of a block, and in any case no longer than this process,
    even if that is killed (a notebook's kernel that is restarted):

        with onepot.mount("train.tar") as path:
            os.listdir(path)

    archive: a path, or a list of paths. at: the mount point; None makes a private one. options:
    for `onepot mount`, such as ["--cache", "2G"]. nested: archives in the archive are directories:
    True, or a glob of which ones. OSError, with the program's message: the archive can't be
    mounted, or the mount is still in use when it is closed.

    path.environment is what child processes need to read without the mount's daemon, which is
    faster for many small files: LD_PRELOAD and others, or {} where that is not possible
    (onepot-run(1), "Reading without the mount"). This process runs already, so it can't use it.

        subprocess.run(command, env={**os.environ, **path.environment})

    Worker processes that multiprocessing or a DataLoader starts by "spawn" or "forkserver" get
    it by os.environ.update(path.environment) before the first of them; those by "fork" can't.
    """
    program = _program()
    several = isinstance(archive, (list, tuple))
    archives = [os.fspath(path) for path in (archive if several else [archive])]
    place = ["--at", os.fspath(at)] if at is not None else []
    glob = nested_glob(nested)
    inner = [] if glob is None else ["--nested=" + glob if glob else "--nested"]
    path = _parse_export(_run(program, "mount", "--export", "--owner", str(os.getpid()), *options,
                              *inner, *archives, *place))
    path._archive = archives if several else archives[0]
    path._program, path._owner = program, os.getpid()
    return path

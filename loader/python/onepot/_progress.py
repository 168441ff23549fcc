"""A line on the terminal while an archive is read for the first time."""
import os
import sys
import time

_PATIENCE = 0.3  # seconds: shorter work needs no line


def _size(count):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            break
        count /= 1024
    else:
        unit = "TiB"
    return "%.*f %s" % (1 if count < 10 and unit != "B" else 0, count, unit)


def _is_first():
    """Of several processes on this node, one shows it."""
    return all(os.environ.get(name, "0") == "0" for name in
               ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"))


class Line:
    """A function for onepot.Archive(progress=)."""

    def __init__(self):
        self._file, self._began = None, time.monotonic()

    def __call__(self, path, doing, done, total):
        if time.monotonic() - self._began < _PATIENCE:
            return
        text = "%s: %s: %s" % (os.path.basename(path), doing, _size(done))
        if total:
            text += " of %s (%d %%)" % (_size(total), 100 * done // total)
        self._file = sys.stderr
        self._file.write("\r\033[K" + text[:_columns() - 1])
        self._file.flush()

    def end(self):
        if self._file is not None:
            self._file.write("\r\033[K")
            self._file.flush()


def _columns():
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns or 80, 20)
    except (OSError, ValueError):
        return 80


def of_argument(progress):
    """The function to call, or None."""
    if progress is None:
        try:
            return Line() if sys.stderr.isatty() and _is_first() else None
        except (AttributeError, ValueError):  # there is no such file, or it is closed
            return None
    if progress is not False and not callable(progress):
        raise TypeError("progress is a function, None or False, not %r" % (progress,))
    return progress or None

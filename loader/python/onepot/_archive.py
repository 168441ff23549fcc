"""Archive: the samples of archives, and selections of them."""
import errno
import os
import threading
import warnings
from collections.abc import Sequence
from glob import has_magic
from itertools import islice
from operator import index

from onepot import _core
from onepot._progress import Line, of_argument

_thread = threading.local()
_GROUPS = {None: 0, "file": 0, "basename": 1, "directory": 2}


def _is_path(given):
    return isinstance(given, (str, bytes)) or hasattr(given, "__fspath__")


def _texts(given):
    """A str, bytes or path, or several of them, as a tuple of bytes."""
    if given is None:
        return ()
    return tuple(os.fsencode(text) for text in ([given] if _is_path(given) else given))


def _retries(given):
    """The library's number: 0 is its default, and _core.NEVER means none."""
    if given is None:
        return 0
    number = index(given)
    if number == _core.NEVER:
        raise ValueError("retries are below %d" % _core.NEVER)
    return number or _core.NEVER


def nested_glob(given):
    """A glob, "" for what has the ending of an archive, or None."""
    if given is True:
        return ""
    if given == "":
        raise ValueError("nested is True, or a pattern")
    return given or None


def _taken(indices, samples):
    """Indices as a tuple. The first one that is wrong ends it, however many follow."""
    taken, items = [], iter(indices)
    while True:
        part = [index(item) for item in islice(items, 1 << 16)]
        if not part:
            return tuple(taken)
        if min(part) < 0 or max(part) >= samples:
            raise IndexError("there is no such sample")
        taken += part


def _list_text(names):
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _map_text(names):
    """The lines of a dict from a name to a name, or to several."""
    def escaped(name):
        name = os.fsencode(name).replace(b"\\", b"\\\\")
        return name.replace(b"\t", b"\\t").replace(b"\n", b"\\n")
    return b"".join(b"%s\t%s\n" % (escaped(name), escaped(shown))
                    for name, given in names.items() for shown in _texts(given))


def _stage_in_job(paths, plain):
    """Start the copy of one archive. All processes of the job must decide alike, also if a node has no such file."""
    from onepot._stage import start_in_job  # which needs this module
    words = _texts(paths)
    is_set = not plain and any(word.startswith(b"@") or has_magic(word) or os.path.isdir(word) for word in words)
    if len(words) == 1 and not is_set:
        start_in_job(os.fsdecode(words[0]), plain)
    return ""


class _Lists:
    """Names given in memory, as the files that the library reads."""

    def __enter__(self):
        self._files, self.name = [], None
        return self

    def __exit__(self, *unused):
        for fd in self._files:
            os.close(fd)

    def file(self, name, given, text):
        if given is None or _is_path(given):
            return given
        fd = os.memfd_create("onepot-names", os.MFD_CLOEXEC)
        self._files.append(fd)
        self.name = name  # for messages
        with open(fd, "wb", closefd=False) as f:
            f.write(text(given))
        return "/proc/self/fd/%d" % fd


class Archive(_core.Archive):
    """Archive(paths, *, filter=None, extensions=None, root=None, group=None, cache=0,
            stage=None, retries=None, hole_bytes=0, include=None, exclude=None,
            files_from=None, map=None, nested=None, ignore_zeros=False, labels=None,
            progress=None, allow_empty=False, parts=None, plain=False)

    The samples of one or more archives, a sequence: len(archive) is their number, archive[i] a
    Sample, and archive[10:20] an Archive of ten samples. It is no dict, but knows names:
    archive["a/1.jpg"] is the sample of that name (KeyError), "a/1.jpg" in archive tells whether
    there is one, and archive.names are all. Samples of several files are looked through for it.

    >>> archive = onepot.Archive("train.tar", extensions=".png")
    >>> len(archive), archive.classes
    (8, ['cat', 'dog'])
    >>> archive[0]
    <onepot.Sample 0: cat/0.png>
    >>> archive[0].label, archive[0].size == len(bytes(archive[0]))
    (0, True)
    >>> archive["dog/1.png"] == archive[5], "dog/9.png" in archive
    (True, False)
    >>> archive.names[:2]
    ['cat/0.png', 'cat/1.png']
    >>> archive[6:], archive.fold(4, 0, held_out=True)
    (<onepot.Archive 'train.tar': 2 samples, 2 classes>, ...)

    with onepot.Archive("train.tar") as archive: closes it at the end, as close() does. Else it
    is closed when nothing refers to it any more.

    paths       an archive, a directory of shards, a pattern ('train-*.tar'), "@LIST" (a file
                with a path a line), or a list of these
    filter      only files that match a glob, or one of several
    extensions  only files with one of these endings ('.jpg'), in upper or lower case
    root        only files below this directory; its children are the classes
    group       'file': each file is a sample (the default); 'basename': files that agree up to
                the first dot are one, as in WebDataset; 'directory': files of one directory are
    cache       bytes for decompressed blocks and for samples of slow storage; 0: this process's
                part of the job's memory
    stage       copy the archives to this directory of the node while they are read; '' chooses
                memory, $TMPDIR or /tmp, the first with enough room. 'job': the same, and the nodes
                of torch's process group, all of whose processes open the archive, read it from
                storage once together (see onepot.stage), while it is read. Without a group, and
                for several archives, 'job' is '', which is 'another program of the job copies it' where
                the environment has ONEPOT_STAGE=job (see onepot-mount(1), --stage=job)
    retries     how often a failed read of the storage is tried again; None: 4
    hole_bytes  most bytes of holes (0: 64 MiB) in a sample that is nearly all holes; a sample
                with more is not read as a whole: OSError (EFBIG)
    exclude     leave out what matches a glob, or one of several, as 'onepot mount --exclude'
    include     then show only what matches a glob, or one of several
    files_from  show only these names: a file that lists them (save_list), or a list of them
    map         show members under other names: a file of lines (name, tab, name to show), or a
                dict from a name to one name, or to a list of names
    nested      archives in the archives are directories: True, or a glob of which ones
    ignore_zeros
                of tars that were joined to one file, take all, as 'onepot mount --ignore-zeros'
    labels      the part of each sample that has its label, an integer as text: 'cls' for x.jpg
                and x.cls of WebDataset, the name of an integer feature of a TFRecord
                ('image/class/label'). It is found by the name up to the first dot, also where
                filter, extensions or group leave it out. Without the part a label is -1, and
                there are no classes. None: the class is the label

    progress    an archive without an index is read once, when it is first opened. None shows a
                line on a terminal if that takes long. progress(path, doing, bytes, total) is
                called up to five times a second, at least once; total is 0 where that is not
                known. What it raises ends the reading and is raised. False: nothing
    allow_empty no samples at all are no error (FileNotFoundError, which says what is there)
    parts       {'image': 'images/', 'mask': 'masks/'}: each sample has one file from each of these
                folders below root, those whose paths in them agree up to the last dot. Sample.parts
                has them by these names. A sample's name is that path, and its first directory the
                class. A UserWarning tells how many files lack a partner, and names the first;
                unpaired is their number. Two files of one folder that differ after the last dot
                alone are a FileExistsError

    plain       paths are folders of few large files, which are the samples, as 'onepot mount --plain'
                shows them: nothing has to be packed. A file that is changed later is not read: OSError.
                Where there is no room for a copy (stage), a UserWarning says so, with both sizes

    A symbolic link that leads to a file is a sample with that file's bytes; directories that
    are links are walked. passed_over is the number of links that lead out of the archive or
    nowhere, of which a UserWarning tells.

    OSError names the file that can't be read; its errno is 42 (ENOMSG) where a file is no archive of
    a known format. ValueError: an argument makes no sense. Any number
    of threads may use an archive. It works on after a fork, and pickles by reference.
    """

    __module__ = "onepot"
    __slots__ = ("_arguments",)  # with which another process opens the same selection

    def __init__(self, paths, *, filter=None, extensions=None, root=None, group=None, cache=0,
                 stage=None, retries=None, hole_bytes=0, include=None, exclude=None,
                 files_from=None, map=None, nested=None, ignore_zeros=False, labels=None,
                 progress=None, allow_empty=False, parts=None, plain=False):
        if group not in _GROUPS:
            raise ValueError("group is 'file', 'basename' or 'directory'")
        if parts is not None:
            if group is not None:
                raise ValueError("group and parts exclude each other")
            if not hasattr(parts, "items") or not parts:
                raise TypeError("parts is a dict from names to folders, as {'image': 'images/',"
                                " 'mask': 'masks/'}")
            parts = dict(parts)
        if stage == "job":  # once, with this name: where it is pickled to, there is no group
            stage = _stage_in_job(paths, plain)
        if files_from is not None and not _is_path(files_from):
            files_from = list(files_from)  # an iterator gives its names once, and can't be pickled
        options = dict(filter=filter, extensions=extensions, root=root, group=group, cache=cache,
                       stage=stage, retries=retries, hole_bytes=hole_bytes, include=include,
                       exclude=exclude, files_from=files_from, map=map, nested=nested,
                       ignore_zeros=ignore_zeros, labels=labels, allow_empty=allow_empty, parts=parts, plain=plain)
        core = dict(options, group=3 if parts else _GROUPS[group], retries=_retries(retries),
                    nested=nested_glob(nested))
        del core["include"], core["exclude"], core["parts"]
        with _Lists() as lists:
            core["files_from"] = lists.file("files_from", files_from, _list_text)
            core["map"] = lists.file("map", map, _map_text)
            core["list_name"] = lists.name
            core["progress"] = line = of_argument(progress)
            texts = [_texts(given) for given in (paths, filter, extensions, include, exclude, parts,
                                                 parts and parts.values())]
            try:
                super().__init__(*texts, core)
            except OSError as error:
                if error.errno != errno.ENOSPC or not plain or stage != "":
                    raise
                warnings.warn("%s: the folder is read without a copy" % error.args[1], stacklevel=2)
                super().__init__(*texts, dict(core, stage=None))
            finally:
                if isinstance(line, Line):
                    line.end()
        usual = Archive.__init__.__kwdefaults__
        given = {name: value for name, value in options.items() if value is not usual[name]}
        self._arguments = paths, given, ()
        for (count, first), what in (
                (self._passed_over, "symbolic links that lead out of the archive or nowhere"),
                (self._unpaired, "files without a partner in each folder of parts")):
            if count and not getattr(_thread, "reopens", False):
                warnings.warn("%s: %s, and so are no samples: %d; the first is %r"
                              % (paths, what, count, first), stacklevel=2)

    def _part(self, method, *args):
        part = Archive.__new__(Archive)
        getattr(part, "_take_" + method)(self, *args)
        paths, options, steps = self._arguments
        part._arguments = paths, options, steps + ((method, args),)
        return part

    def split(self, low, high, seed=0):
        """split(low, high, seed=0): an Archive of the samples whose name's hash lies in
        [low, high) of [0, 1): train 0 to 0.8, test 0.8 to 1. ValueError: no such fractions."""
        if not 0 <= low <= high <= 1:
            raise ValueError("fractions are 0 <= low <= high <= 1")
        return self._part("split", low, high, seed)

    def fold(self, folds, fold, held_out=False, seed=0, *, stratify=False):
        """fold(folds, fold, held_out=False, seed=0, *, stratify=False): an Archive of all samples
        except those of one fold; with held_out, of the samples in that fold. The sizes of folds
        differ by one at most; hashes of names and the seed decide. A file that is added later
        moves few others to another fold (none to another split()). stratify: folds have equally
        many samples of each label, too, to within one; a file that is added later moves others.
        ValueError: no such fold. OSError: a label can't be read."""
        if folds < 2 or not 0 <= fold < folds:
            raise ValueError("there are at least 2 folds, counted from 0")
        return self._part("fold", folds, fold, held_out, seed, stratify)

    def subset(self, indices):
        """subset(indices): an Archive of these samples, in this order. IndexError: no such
        sample."""
        return self._part("subset", _taken(indices, len(self)))

    def _slice(self, key):
        return Archive.subset(self, range(*key.indices(len(self))))

    def save_list(self, path):
        """save_list(path): write the names of the samples, for files_from and 'onepot mount
        --files-from': a line each, or ended by NULs if one has a newline. ValueError: samples
        are groups of files."""
        if self._arguments[1].get("group") not in (None, "file") or "parts" in self._arguments[1]:
            raise ValueError("a list has names of files, and samples are groups of files here")
        if self._arguments[1].get("map") is not None:
            raise ValueError("a list has names in the archive, and a map shows others here")
        names = [os.fsencode(name) for name in self.names]
        end = b"\0" if any(b"\n" in name for name in names) else b"\n"
        with open(path, "wb") as f:
            f.writelines(name + end for name in names)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        """close()"""
        self.close()

    def __contains__(self, name):
        """Is there a sample with this name? Or is this one of its samples?"""
        if isinstance(name, _core.Sample):
            return name.archive is self
        try:
            self.find(name)
        except (KeyError, TypeError):
            return False
        return True

    @property
    def names(self):
        """The name of each sample: a sequence of str, looked up on access."""
        len(self)  # ValueError if it was not opened
        return Names(self)

    @property
    def passed_over(self):
        """The number of symbolic links that lead out of the archive or nowhere, and are no
        samples. They count whatever filter and extensions select."""
        return self._passed_over[0]

    @property
    def unpaired(self):
        """The number of files below the folders of parts that lack a partner, and are no samples."""
        return self._unpaired[0]

    @property
    def class_to_idx(self):
        """From the name of each class to its label: dict."""
        return {name: number for number, name in enumerate(self.classes)}

    def __repr__(self):
        if self.closed:
            return "<onepot.Archive %r, closed>" % (self._arguments[0],)
        try:
            count = len(self)
        except ValueError:
            return "<onepot.Archive, not opened>"
        return "<onepot.Archive %r: %d samples, %d classes>" % (
            self._arguments[0], count, len(self.classes))

    def __reduce__(self):
        """Pickled by its arguments and a digest of its samples."""
        return self._reopen, (self._selection, self._arguments)

    @classmethod
    def _reopen(cls, digest, arguments):
        paths, options, steps = arguments
        _thread.reopens = True  # its warning was given where it was opened first
        try:
            archive = cls(paths, progress=False, **options)
        finally:
            _thread.reopens = False
        for method, args in steps:
            archive = Archive._part(archive, method, *args)
        if archive._selection != digest:
            raise ValueError("the archive is not the one that was pickled: its digest differs")
        return archive


class Names(Sequence):
    """The names of an archive's samples, looked up on access."""

    __module__ = "onepot"
    __slots__ = ("_archive",)

    def __init__(self, archive):
        self._archive = archive

    def __len__(self):
        return len(self._archive)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self._archive._name(j) for j in range(*i.indices(len(self)))]
        return self._archive._name(i)

    def __iter__(self):
        return map(self._archive._name, range(len(self)))

    def __reduce__(self):
        return getattr, (self._archive, "names")

    def __repr__(self):
        return "<onepot.Names of %r>" % (self._archive,)


def expect_digest(archive, expect):
    """ValueError: the archive's digest does not begin with these digits, 8 or more."""
    wanted = expect.lower()
    if not 8 <= len(wanted) <= 32 or wanted.strip("0123456789abcdef"):
        raise ValueError("expect is a digest, or its first 8 or more digits, not %r" % (expect,))
    found = archive.digest
    if not found.startswith(wanted):
        raise ValueError("%r: its digest is %s, and expect is %s: these are other data"
                         % (archive._arguments[0], found, expect))


def as_archive(archive, stage=None):
    """Return an Archive as it is, and open anything else as paths."""
    if not isinstance(archive, Archive):
        return Archive(archive, stage=stage)
    if stage is not None:
        raise ValueError("stage is for an archive that is opened here; give it to Archive()")
    return archive

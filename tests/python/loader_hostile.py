#!/usr/bin/env python3
"""Hostile arguments to every public name of the Python module: none ends the process, stays in C
without looking at signals, or is anything but an answer or an exception.

The names are found by looking, so a new one is tested, too: a class or an argument that needs a
usual value says that it is missing in the tables below. Each name has a process of its own.
"""
import array
import contextlib
import ctypes
import faulthandler
import inspect
import io
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

import onepot

PR_SET_CHILD_SUBREAPER = 36
SAMPLES = 12
CHILD_SECONDS = 240  # until a name is said to hang
CALL_SECONDS = 1  # until a call gets a signal


class Boom(Exception):
    pass


class Interrupted(BaseException):
    pass


# ---- usual values ----

def usual_archive():
    return onepot.Archive(TAR)


def usual_loader(**options):
    return onepot.Loader(TAR, 4, 0, 1, **options)


def usual_images():
    return onepot.Images(4, raw=(2, 2, 3))


INSTANCES = {
    "Archive": usual_archive,
    "Batch": lambda: next(iter(usual_loader())),
    "Buffer": lambda: next(iter(usual_loader())).data,
    "Dataset": lambda: onepot.Dataset(TAR),
    "DistributedSampler": lambda: onepot.DistributedSampler(10, 1, 0),
    "ImageFolder": lambda: onepot.ImageFolder(TAR, extensions=(".bin",), loader=lambda f: f.read()),
    "Images": usual_images,
    "IterableDataset": lambda: onepot.IterableDataset(TAR, rank=0, world_size=1),
    "Loader": usual_loader,
    "MountPath": lambda: onepot.MountPath("/tmp"),
    "Names": lambda: usual_archive().names,
    "Sample": lambda: usual_archive()[0],
    "SampleList": lambda: onepot.SampleList(onepot.Dataset(TAR)[[0, 1]]),
    "TensorBatch": lambda: onepot.Dataset(TAR)[[0, 1]],
    "Writer": lambda: onepot.Writer("new-%d.tar" % next(COUNTER), sync=False),
}

# Of arguments without a default, and of those that must be right for others to be looked at.
USUAL = {
    "archive": lambda: TAR, "paths": lambda: TAR, "root": lambda: TAR, "directory": lambda: TAR,
    "path": lambda: "made-%d.tar" % next(COUNTER), "batch_size": lambda: 4, "rank": lambda: 0,
    "num_replicas": lambda: 1, "world_size": lambda: 1, "dataset": lambda: 10,
    "batch": lambda: onepot.Dataset(TAR)[[0, 1]], "samples": lambda: [(b"a", 1)],
    "slab": lambda: memoryview(bytearray(4096)), "count": lambda: 2, "data_bytes": lambda: 64,
    "stride": lambda: 32, "low": lambda: 0.0, "high": lambda: 0.5, "folds": lambda: 3,
    "fold": lambda: 0, "indices": lambda: [0, 1], "index": lambda: 0, "i": lambda: 0,
    "epoch": lambda: 1, "name": lambda: "0/00.bin", "data": lambda: b"data",
    "bytes": lambda: 4096, "to": lambda: bytearray(1 << 16), "key": lambda: 0, "value": lambda: 0,
    "size": lambda: 4, "height": lambda: 4, "state": lambda: {}, "kind": lambda: None,
    "error": lambda: None, "trace": lambda: None, "extensions": lambda: (".bin",),
    "loader": lambda: (lambda file: file.read()), "raw": lambda: (2, 2, 3), "sync": lambda: False,
    "buffer": lambda: bytearray(8), "shuffle": lambda: True,
}

# Of functions in C whose arguments Python can't tell.
KEYWORDS = {"__dlpack__": ("stream", "max_version", "dl_device", "copy"),
            "copy_into": ("stream",), "add": ("mode", "mtime"), "read": ("offset", "size")}

# What no program calls, or object has.
LEFT_OUT = {"__init__", "__new__", "__class__", "__dict__", "__weakref__", "__module__", "__doc__",
            "__slots__", "__getattribute__", "__setattr__", "__delattr__", "__init_subclass__",
            "__subclasshook__", "__abstractmethods__", "__orig_bases__", "__parameters__",
            "__annotations__", "__qualname__", "__static_attributes__", "__firstlineno__",
            "__sizeof__", "__dir__"}


# ---- hostile values ----

HOOKS = {"__index__": 1, "__int__": 1, "__float__": 0.5, "__len__": 2, "__fspath__": "a",
         "__bool__": True, "__hash__": 7, "__str__": "a", "__iter__": None, "__getitem__": 0,
         "__contains__": True, "__eq__": False, "__lt__": False, "__gt__": True, "__call__": 1,
         "__next__": 3, "tolist": [0], "data_ptr": "no", "cuda_stream": "no", "keys": ["a"]}


def object_with(hook, act):
    """An object with one special method, that does `act`, and then answers."""
    def method(self, *unused, **keywords):
        if hook == "__getitem__" and unused and isinstance(unused[0], int) and unused[0] > 3:
            raise IndexError  # the end of a sequence
        answer = act(hook)
        return iter([0, 1]) if hook == "__iter__" else answer
    return type("With" + hook, (), {hook: method})()


def boom(hook):
    raise Boom(hook)


def liar(hook):
    return {"__index__": 2**62, "__int__": 2**62, "__len__": 2**62, "__float__": float("nan"),
            "__fspath__": "a\0b", "__bool__": True, "__hash__": 2**63 - 1, "__str__": "\udcff",
            }.get(hook, 2**70)


class Subscripted(dict):
    """A dict that changes while it is read."""

    def __getitem__(self, key):
        self.clear()
        return 2**64


def values():
    numbers = [0, -1, 2**31, 2**32 - 1, 2**32, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
               10**30, -(2**62), -(2**63), float("nan"), float("inf"), 1e300, 1j, True]
    texts = ["", "\0", "a\0b", "\udcff", "\ud800", "a" * 70000, b"", b"\0", b"\xff", "..", "/",
             "%s%n", bytearray(b"a"), memoryview(b"abc"), array.array("d", [1.0])]
    things = [None, NotImplemented, object(), object, [], [2**62], [-1], [None], (2**62, 2**62),
              [float("nan")] * 3, {}, {"a": 2**64}, {"epoch": 2**64 - 1, "yielded": 2**64 - 1},
              Subscripted(epoch=1, yielded=1), set(), range(2**62), range(-5, 5),
              slice(None, None, 2**62), slice(2**70, -2**70, -1), slice(None, None, 0), iter(()),
              (i for i in (2**62,)), lambda *unused: 2**62, io.BytesIO(b"a"),
              memoryview(bytearray(24)).cast("B", (2, 3, 4)), memoryview(b"abcdef")[::2]]
    for value in numbers + texts + things:
        yield lambda value=value: value
    for hook in HOOKS:
        for act in (boom, liar):
            yield lambda hook=hook, act=act: object_with(hook, act)


REENTRANT = ("__index__", "__len__", "__fspath__", "__float__", "__bool__", "__iter__", "__str__",
             "__eq__", "__hash__", "__getitem__", "tolist")


def reentrant(instance, hook):
    """An object whose method uses, begins anew, and closes the instance from inside."""
    def act(hook):
        for again in (lambda: list(itertools.islice(iter(instance), 3)),
                      lambda: instance.__init__(TAR), lambda: instance.set_epoch(3),
                      lambda: instance.close(), lambda: instance.discard()):
            with contextlib.suppress(Exception):
                again()
        return HOOKS[hook]
    return object_with(hook, act)


# ---- public names ----

def is_ours(owner):
    return owner.__module__.split(".")[0] == "onepot"


def classes():
    return {name: value for name, value in vars(onepot).items()
            if name in onepot.__all__ and inspect.isclass(value)}


def functions():
    return {name: value for name, value in vars(onepot).items()
            if name in onepot.__all__ and callable(value) and not inspect.isclass(value)}


def attributes(cls):
    """Names that a class of ours in its family defines, and are not private."""
    names = set()
    for owner in cls.__mro__:
        if is_ours(owner):
            names.update(vars(owner))
    return sorted(name for name in names - LEFT_OUT
                  if not name.startswith("_") or name.startswith("__"))


def parameters(function, name):
    """(positional, keyword-only) names of arguments; None: Python can't tell."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in found) and len(found) < 3:
        return None
    positional = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for p in positional:
        if p.default is p.empty and p.name not in USUAL and p.name not in ("self", "other"):
            raise AssertionError("%s: tell USUAL a value for its argument %r" % (name, p.name))
    return ([p.name for p in positional],
            [p.name for p in found if p.kind == p.KEYWORD_ONLY],
            sum(p.default is p.empty for p in positional))


def calls(function, name, value):
    """Functions without arguments that call it with the value in each place."""
    def usual(argument):
        return USUAL.get(argument, lambda: None)()
    keyword_only = KEYWORDS.get(name.split(".")[-1], ())
    known = parameters(function, name)
    if known is None:
        yield lambda: function()
        for count in (1, 2, 3):
            yield lambda count=count: function(*[value() for _ in range(count)])
            yield lambda count=count: function(*["0/00.bin"] * (count - 1), value())
        first = [usual("to")] if name.endswith("copy_into") else \
            ["x-%d" % next(COUNTER), b"x"] if name.endswith(".add") else []
        for keyword in keyword_only:
            yield lambda keyword=keyword: function(*first, **{keyword: value()})
        return
    positional, keywords, required = known
    yield lambda: function(*map(usual, positional[:required]))
    for i, argument in enumerate(positional):
        others = [p for p in positional if p in USUAL and p != argument]
        if i < required or any(positional.index(p) < i for p in others):
            yield lambda i=i: function(*map(usual, positional[:i]), value(),
                                       *map(usual, positional[i + 1:required]))
        else:
            yield lambda argument=argument: function(*map(usual, positional[:required]),
                                                     **{argument: value()})
    for argument in keywords:
        yield lambda argument=argument: function(
            *map(usual, positional[:required]),
            **{a: usual(a) for a in keywords if a in USUAL and a != argument},
            **{argument: value()})


def use(answer):
    """What a program does with an answer next."""
    if isinstance(answer, (onepot.Archive, onepot.Loader, onepot.Buffer, onepot.Batch)) or \
            type(answer).__name__.endswith(("Dataset", "Sampler", "List", "TensorBatch")):
        for look in (len, repr, lambda a: next(iter(a)), lambda a: a[0]):
            with contextlib.suppress(Exception):
                look(answer)
    if isinstance(answer, contextlib.AbstractContextManager) and hasattr(answer, "gen"):
        with answer:  # onepot.mount()
            pass
    if isinstance(answer, (onepot.Archive, onepot.Loader)):
        answer.close()
    if isinstance(answer, onepot.Writer):
        answer.discard()
    if hasattr(answer, "takes_part"):  # onepot.stage()
        answer.close()


def attempt(call, what):
    """An answer or an exception; SystemError is a mistake in C."""
    signal.setitimer(signal.ITIMER_REAL, CALL_SECONDS)
    try:
        try:
            use(call())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except SystemError as error:
        raise AssertionError("%s: SystemError: %s" % (what, error))
    except (Exception, Interrupted):
        pass


def attack_class(name):
    cls, make = getattr(onepot, name), INSTANCES[name]
    with contextlib.suppress(TypeError):
        empty = cls.__new__(cls)
        for attribute in attributes(cls):
            attempt(lambda: getattr(empty, attribute), name)
            attempt(lambda: getattr(empty, attribute)(), name)
        attempt(lambda: repr(empty), name)
    if name not in ("Batch", "Buffer", "Sample"):  # nobody makes those
        for value in values():
            for call in calls(cls, name, value):
                attempt(call, name)
    for attribute in attributes(cls):
        what = "%s.%s" % (name, attribute)
        instance = make()
        if callable(getattr(instance, attribute, None)):
            for value in values():
                for call in calls(getattr(instance, attribute), what, value):
                    attempt(call, what)
        else:
            attempt(lambda: getattr(instance, attribute), what)
            for value in values():
                attempt(lambda: setattr(instance, attribute, value()), what)
                attempt(lambda: getattr(instance, attribute), what)
        if not callable(getattr(make(), attribute, None)):
            continue
        for hook in REENTRANT:
            instance = make()
            value = reentrant(instance, hook)
            for call in calls(getattr(instance, attribute), what, lambda: value):
                attempt(call, what)
            with contextlib.suppress(Exception):
                instance.close()


def attack_function(name):
    for value in values():
        for call in calls(getattr(onepot, name), name, value):
            attempt(call, name)


def on_alarm(*unused):
    raise Interrupted()


def child(attack, name, report):
    """What a process does for one name."""
    os.dup2(report, 2)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # some numbers are files
    os.dup2(nothing, 1)
    sys.modules["torch"] = None  # its functions are its own
    faulthandler.enable()
    faulthandler.dump_traceback_later(CHILD_SECONDS - 10)
    os.chdir(tempfile.mkdtemp(dir=WORK))
    signal.signal(signal.SIGALRM, on_alarm)
    with open("/proc/self/statm") as f:
        size = int(f.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 30),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    attack(name)


def setUpModule():
    global WORK, TAR, COUNTER
    # So that the daemons of a process that has ended can be waited for.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    WORK, COUNTER = tempfile.mkdtemp(prefix="onepot-hostile.", dir=os.environ.get("ONEPOT_TESTS_MEMORY")), itertools.count()
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")
    os.environ["ONEPOT_RUNTIME_DIR"] = os.path.join(WORK, "run")
    os.mkdir(os.environ["ONEPOT_RUNTIME_DIR"], 0o700)
    os.environ["PATH"] = os.path.dirname(os.environ["ONEPOT"]) + ":" + os.environ["PATH"]
    TAR = os.path.join(WORK, "a.tar")
    with tarfile.open(TAR, "w") as tar:
        for i in range(SAMPLES):
            member = tarfile.TarInfo("%d/%02d.bin" % (i // 6, i))
            member.size = 12
            tar.addfile(member, io.BytesIO(bytes([i]) * 12))
    # Else each call that opens it has a child of its own make an index.
    subprocess.run([os.environ["ONEPOT"], "index", TAR], check=True, stdout=subprocess.DEVNULL)


def children():
    with open("/proc/thread-self/children", encoding="ascii") as f:
        return [int(pid) for pid in f.read().split()]


def tearDownModule():
    """What a test has left is ours by now: daemons, whose mounts are in the folder. It is told to end."""
    while pids := children():
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        os.wait()
    shutil.rmtree(WORK)


class Hostile(unittest.TestCase):
    def run_apart(self, attack, name):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.close(read)
                child(attack, name, write)
                status = 0
            except BaseException as error:
                os.write(write, ("%s: %r" % (name, error)).encode("utf-8", "replace"))
            finally:
                os._exit(status)
        os.close(write)
        killer = threading.Timer(CHILD_SECONDS, os.kill, (pid, signal.SIGKILL))
        killer.start()
        with open(read, "rb") as f:
            said = f.read().decode(errors="replace")
        _, status = os.waitpid(pid, 0)
        killer.cancel()
        self.assertEqual(status, 0, "%s (%s)" % (said[-3000:], "signal %d" % (status & 127)))

    def test_every_class_has_an_instance_here(self):
        self.assertEqual(sorted(set(classes()) - set(INSTANCES) - {"Sampler"}), [])

    def test_every_function(self):
        for name in functions():
            with self.subTest(name=name):
                self.run_apart(attack_function, name)


def test_of(name):
    return lambda self: self.run_apart(attack_class, name)


for each in classes():
    if each in INSTANCES:
        setattr(Hostile, "test_every_attribute_of_%s" % each, test_of(each))


class Interrupting(unittest.TestCase):
    """What may take long looks at signals: more than one handler runs before it returns."""

    def check(self, begin):
        signals = itertools.count(1)

        def on_signal(*unused):
            if next(signals) == 2:
                raise Interrupted()

        def work():
            signal.signal(signal.SIGALRM, on_signal)
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            try:
                begin()
            except Interrupted:
                os._exit(0)
            os._exit(3)

        pid = os.fork()
        if pid == 0:
            work()
        killer = threading.Timer(CHILD_SECONDS, os.kill, (pid, signal.SIGKILL))
        killer.start()
        _, status = os.waitpid(pid, 0)
        killer.cancel()
        self.assertEqual(status, 0)

    def test_a_shuffle_is_interrupted(self):
        big = 2 * 10**8
        for options in ({}, {"block": 1}, {"block": 10**6}, {"worker": 0, "workers": 2}):
            with self.subTest(**options):
                self.check(lambda: onepot.DistributedSampler(big, 2, 1, **options))

    def test_the_next_epochs_shuffle_is_interrupted_and_leaves_this_one(self):
        sampler = onepot.DistributedSampler(5 * 10**7, 1, 0)
        first = list(itertools.islice(iter(sampler), 5))

        def go():
            try:
                sampler.set_epoch(1)
            except Interrupted:
                assert sampler.epoch == 0
                raise
            finally:
                assert list(itertools.islice(iter(sampler), 5)) == first
        self.check(go)

    def test_a_list_of_an_order_is_interrupted(self):
        order = onepot.DistributedSampler(2**62, 1, 0, shuffle=False)
        self.check(lambda: all(i >= 0 for i in iter(order)))
        self.check(lambda: sum(iter(order)))

    def test_indices_without_end_are_interrupted(self):
        archive = onepot.Archive(TAR)
        for take in (archive.subset, archive._layout, onepot.Dataset(TAR).__getitems__):
            self.check(lambda: take(itertools.cycle([0])))

    def test_the_first_wrong_index_ends_it(self):
        archive = onepot.Archive(TAR)
        for take in (archive.subset, archive._layout):
            for given in (range(2**62), itertools.count(), [2**64], [-(2**70)]):
                with self.assertRaises(IndexError):
                    take(given)

    def test_an_order_beyond_the_jobs_memory_is_refused(self):
        for samples in (2**40, 2**62, 2**63 - 1):
            with self.subTest(samples=samples), self.assertRaises((MemoryError, ValueError)):
                onepot.DistributedSampler(samples, 1, 0)
        sampler = onepot.DistributedSampler(2**62, 2**40, 5, shuffle=False)
        self.assertEqual(list(itertools.islice(iter(sampler), 2)), [5, 5 + 2**40])


if __name__ == "__main__":
    unittest.main()

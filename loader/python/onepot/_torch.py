"""torch, if the program has imported it. This package never imports it here."""
import sys
import types

_classes = {}


def torch():
    """The module torch, or None if it is not loaded."""
    module = sys.modules.get("torch")
    return module if module is not None and hasattr(module, "utils") else None


def in_worker():
    """Is this a worker process of a DataLoader?"""
    return worker() is not None


def worker():
    """torch's description of this worker process (.id, .num_workers), or None."""
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def _rebuild(cls, state):
    dataset = cls.__new__(cls)
    dataset.__dict__.update(state)
    return dataset


class TorchAware:
    """Makes instances that also belong to torch's class, if torch is loaded when they are made.

    So torch and this package may be imported in any order, and a program without torch can use
    the same classes.
    """

    _torch_name = "Dataset"

    def __new__(cls, *args, **keywords):
        return super().__new__(_torch_class(cls))

    def __reduce__(self):
        cls = type(self)
        return _rebuild, (_plain.get(cls, cls), self.__dict__)


_plain = {}  # from the classes made for torch back to ours


def _torch_class(cls):
    data = sys.modules.get("torch.utils.data")
    base = getattr(data, cls._torch_name, None)
    if base is None or issubclass(cls, base):
        return cls
    if cls not in _classes:
        names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__,
                 "__doc__": cls.__doc__}
        made = types.new_class(cls.__name__, (cls, base), {}, lambda body: body.update(names))
        _classes[cls] = made
        _plain[made] = cls
    return _classes[cls]

"""DLPack from the other side: the structures, and what a consumer does with a capsule."""
import ctypes
import itertools


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class DLManaged(ctypes.Structure):
    pass


class DLVersioned(ctypes.Structure):
    pass


DLManaged._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p),
                      ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManaged)))]
DLVersioned._fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p),
                        ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(DLVersioned))),
                        ("flags", ctypes.c_uint64), ("tensor", DLTensor)]


def take(capsule, kind=DLManaged):
    """What a consumer does: the struct, and the capsule is called used."""
    name = b"dltensor_versioned" if kind is DLVersioned else b"dltensor"
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
    used = take.names.setdefault(name, ctypes.create_string_buffer(b"used_" + name))
    managed = ctypes.cast(api.PyCapsule_GetPointer(capsule, name), ctypes.POINTER(kind))
    api.PyCapsule_SetName(capsule, ctypes.cast(used, ctypes.c_char_p))
    return managed


take.names = {}


def elements(tensor):
    """A DLPack tensor's bytes in C order, as its shape and strides tell."""
    size, count = tensor.bits // 8, tensor.dimensions
    if any(tensor.shape[d] == 0 for d in range(count)):
        return b""
    places = itertools.product(*(range(tensor.shape[d]) for d in range(count)))
    return b"".join(ctypes.string_at(
        tensor.data + size * sum(i * tensor.strides[d] for d, i in enumerate(place)), size)
        for place in places)

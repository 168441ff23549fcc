"""Where copy_into() copies to, and in which stream."""
import sys

from onepot import _core


def _on_device(to):
    """(address, bytes, type) of an array in a GPU's memory: torch's, or one with
    __cuda_array_interface__."""
    if hasattr(to, "data_ptr"):
        if not to.is_contiguous():
            raise ValueError("copy_into needs contiguous memory")
        return to.data_ptr(), to.numel() * to.element_size(), str(to.dtype).split(".")[-1]
    shown = to.__cuda_array_interface__
    address, read_only = shown["data"]
    size = int(shown["typestr"][2:])
    count, step = 1, size
    for length, stride in zip(reversed(shown["shape"]),
                              reversed(shown.get("strides") or shown["shape"])):
        if shown.get("strides") and length > 1 and stride != step:
            raise ValueError("copy_into needs contiguous memory")
        count *= length
        step *= length
    if read_only:
        raise ValueError("copy_into needs memory that may be written to")
    names = {"b": "bool", "i": "int%d", "u": "uint%d", "f": "float%d"}
    name = names.get(shown["typestr"][1], "?")
    return address, count * size, name % (8 * size) if "%" in name else name


def target(buffer, to, stream):
    """(address or writable bytes, their number, stream) for a copy of the buffer."""
    on_gpu = buffer.__dlpack_device__()[0] != 1
    if not on_gpu and not hasattr(to, "data_ptr"):
        memory = memoryview(to)
        if memory.readonly or not memory.c_contiguous:
            raise ValueError("copy_into needs contiguous memory that may be written to")
        return memory.cast("B"), memory.nbytes, stream
    if not on_gpu and to.__dlpack_device__()[0] != 1 or \
            on_gpu and hasattr(to, "__dlpack_device__") and \
            tuple(to.__dlpack_device__()) != buffer.__dlpack_device__():
        raise ValueError("the memory is on another device than the batch")
    address, size, name = _on_device(to)
    if name != buffer.dtype:
        raise ValueError("the batch has %s, the memory is for %s" % (buffer.dtype, name))
    if stream is None and on_gpu:
        torch = sys.modules.get("torch") if hasattr(to, "data_ptr") else None
        stream = torch.cuda.current_stream(to.device) if torch else 1
    return address, size, stream


def _plain(index):
    if isinstance(index, _core.Buffer):
        return index.tolist()
    return tuple(map(_plain, index)) if isinstance(index, tuple) else index


def torch_function(function, given):
    """A function of torch was given a Buffer. As an index it is a sequence of numbers."""
    name = getattr(function, "__name__", function)
    if name in ("__getitem__", "__setitem__"):
        return function(*map(_plain, given))
    raise TypeError("torch's %s() takes tensors, and this is an onepot.Buffer: torch.from_dlpack(buffer) is"
                    " one without a copy (torch.as_tensor may copy it number by number)" % (name,))


def stream_number(stream):
    """The handle of another program's stream: by the protocol of cuda.core and others, or of
    older torch (cuda_stream) or cupy (ptr)."""
    shown = getattr(stream, "__cuda_stream__", None)
    if shown is None:
        for name in ("cuda_stream", "ptr"):
            if hasattr(stream, name):
                return getattr(stream, name)
        raise TypeError("a stream is a number, or has __cuda_stream__, cuda_stream or ptr")
    pair = shown() if callable(shown) else shown
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], int):
        raise TypeError("__cuda_stream__ is not (version, handle)")
    if pair[0] != 0:
        raise ValueError("__cuda_stream__ of version %d, and only 0 is known" % pair[0])
    return pair[1]

"""NVIDIA's driver by ctypes, as far as the checks of a GPU need it: a consumer of batches that is nobody's
library, and memory that it reads them into."""
import ctypes

_NON_BLOCKING = 1
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
_libc = ctypes.CDLL(None)


class NoGpu(Exception):
    """There is no driver, or it has no GPU."""


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("dimensions", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("offset", ctypes.c_uint64)]


class DLManaged(ctypes.Structure):
    pass


DLManaged._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p),
                      ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(DLManaged)))]
_USED = ctypes.create_string_buffer(b"used_dltensor")


class Tensor:
    """What a consumer of DLPack has: it keeps the batch until free()."""

    def __init__(self, shown, stream=None):
        capsule = shown.__dlpack__(stream=stream)
        api = ctypes.pythonapi
        api.PyCapsule_GetPointer.restype = ctypes.c_void_p
        api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
        api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_void_p]
        at = api.PyCapsule_GetPointer(capsule, b"dltensor")
        api.PyCapsule_SetName(capsule, ctypes.addressof(_USED))
        self._managed = ctypes.cast(at, ctypes.POINTER(DLManaged))
        tensor = self._managed.contents.tensor
        self.address = tensor.data
        self.bytes = tensor.bits // 8
        for i in range(tensor.dimensions):
            self.bytes *= tensor.shape[i]

    def free(self):
        self._managed.contents.deleter(self._managed)

    def free_as_library(self):
        """As torch does it: with the interpreter."""
        deleter = ctypes.cast(self._managed.contents.deleter, ctypes.c_void_p).value
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(deleter)(ctypes.addressof(self._managed.contents))

    def on_host(self):
        return ctypes.string_at(self.address, self.bytes)


class Gate:
    """Holds a stream until it is opened, without the interpreter: the driver's thread waits for a semaphore."""

    def __init__(self, gpu):
        self._gpu = gpu
        self._semaphore = ctypes.create_string_buffer(64)
        _libc.sem_init(self._semaphore, 0, 0)

    def hold(self, stream):
        self._gpu.call_in(stream, _libc.sem_wait, ctypes.addressof(self._semaphore))

    def open(self):
        _libc.sem_post(self._semaphore)


class Gpu:
    """A GPU of this process, whose primary context is current in the thread that made it, until close()."""

    def __init__(self, number=0):
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            raise NoGpu("NVIDIA's driver is not installed (%s)" % e) from None
        error = self._cuda.cuInit(0)
        count = ctypes.c_int()
        if error or self._cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
            raise NoGpu("the driver has no GPU" + (" (%s)" % self._text(error) if error else ""))
        self.count, self.number = count.value, ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(self.number), number)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.number)
        self._call("cuCtxPushCurrent_v2", self._context)

    def _text(self, error):
        text = ctypes.c_char_p()
        self._cuda.cuGetErrorString(error, ctypes.byref(text))
        return "%s, %d" % ((text.value or b"no name").decode(), error)

    def _call(self, name, *arguments):
        error = getattr(self._cuda, name)(*arguments)
        if error:
            raise OSError("%s: %s" % (name, self._text(error)))

    def close(self):
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        self._call("cuDevicePrimaryCtxRelease_v2", self.number)

    # ---- what it is ----

    def name(self):
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, len(text), self.number)
        return text.value.decode()

    def driver(self):
        """The library's version, which is not the kernel module's under forward compatibility."""
        version = ctypes.c_int()
        self._call("cuDriverGetVersion", ctypes.byref(version))
        return "CUDA %d.%d" % (version.value // 1000, version.value % 1000 // 10)

    def bus(self):
        text = ctypes.create_string_buffer(32)
        self._call("cuDeviceGetPCIBusId", text, len(text), self.number)
        return text.value.decode().lower()

    def link(self):
        """Of the GPU, or of a bridge before it."""
        found = []
        for name in "current_link_speed", "current_link_width":
            try:
                with open("/sys/bus/pci/devices/%s/%s" % (self.bus()[-12:], name)) as f:
                    found.append(f.read().strip())
            except OSError:
                return "unknown link"
        return "%s x%s" % tuple(found)

    # ---- memory ----

    def free_bytes(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, size):
        memory = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        return memory.value

    def free(self, memory):
        self._call("cuMemFree_v2", ctypes.c_uint64(memory))

    def lock(self, memory):
        self._call("cuMemHostRegister_v2", ctypes.c_void_p(ctypes.addressof(memory)),
                   ctypes.c_size_t(ctypes.sizeof(memory)), 0)

    def unlock(self, memory):
        self._call("cuMemHostUnregister", ctypes.c_void_p(ctypes.addressof(memory)))

    def copy(self, to, source, size, stream):
        """Either side is a number, of the device or the host."""
        self._call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(size),
                   ctypes.c_void_p(stream))

    def read(self, memory, size, stream):
        there = ctypes.create_string_buffer(size)
        self.copy(ctypes.addressof(there), memory, size, stream)
        self.wait(stream)
        return there.raw

    # ---- streams ----

    def stream(self):
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value

    def destroy(self, stream):
        self._call("cuStreamDestroy_v2", ctypes.c_void_p(stream))

    def wait(self, stream):
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def call_in(self, stream, function, argument=None):
        self._call("cuLaunchHostFunc", ctypes.c_void_p(stream), function, ctypes.c_void_p(argument))

    def begin_capture(self, stream):
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _THREAD_LOCAL)

    def end_capture(self, stream):
        """OSError: the capture was broken."""
        graph = ctypes.c_void_p()
        self._call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self._call("cuGraphDestroy", graph)


def first_line(path):
    try:
        with open(path) as f:
            return f.readline().strip()
    except OSError:
        return "unknown"


def module_version():
    """The kernel module's, which decides what may be page-locked."""
    return first_line("/sys/module/nvidia/version")

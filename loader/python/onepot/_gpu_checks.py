"""One check of onepot.verify_gpu, in a process of its own: python -m onepot._gpu_checks NAME FOLDER DEVICE

The last line says what was found. Exit status 77: left out. Whatever a GPU has is compared with what a loader
without a device gives. `begin` makes the archives; `hold` keeps the GPU's context until its input ends.
"""
import ctypes
import gc
import io
import mmap
import os
import platform
import random
import sys
import tarfile
import threading
import time
import traceback
import weakref
import zipfile

import onepot
from onepot._gpu_driver import Gate, Gpu, NoGpu, Tensor, first_line, module_version

NAME, FOLDER, DEVICE = sys.argv[1:4] if len(sys.argv) == 4 else ("", "", "cuda:0")
TAR, RAW, ODD = (os.path.join(FOLDER, name) for name in ("a.tar", "raw.tar", "odd.zip"))
SIZE, COUNT, BATCH = 64 << 10, 1024, 32
PICTURE = (32, 32, 3)
FEW = 24 << 20  # bytes for a loader of TAR, so that each piece of memory is used again in an epoch
SPIN = 20000000  # clocks of a kernel of torch, so that the host is far ahead
TABLES = "offsets", "sizes", "labels", "indices", "valid"


class LeftOut(Exception):
    pass


# ---- archives ----


def add(tar, name, body):
    member = tarfile.TarInfo(name)
    member.size = len(body)
    tar.addfile(member, io.BytesIO(body))


def begin():
    """Files of one size; pictures of raw bytes; samples at all offsets, of all sizes."""
    gpu_number()
    made = random.Random(1)
    block = made.getrandbits(8 * (SIZE + COUNT)).to_bytes(SIZE + COUNT, "little")
    with tarfile.open(TAR, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(COUNT):
            add(tar, "c%d/%04d.bin" % (i % 10, i), block[i:i + SIZE])
    with tarfile.open(RAW, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(1280):
            add(tar, "c%d/%04d.raw" % (i % 10, i), block[7 * i:7 * i + 3072])
    with zipfile.ZipFile(ODD, "w", zipfile.ZIP_STORED) as odd:
        for i in range(2000):
            size = made.choice((0, 1, 15, 16, 500, 4097, 30011)) + i % 17
            odd.writestr("c%d/%04d.bin" % (i % 10, i), block[i:i + size])
    print("made")


def gpu_number():
    """The GPU is there, or the check is left out."""
    gpu = open_gpu()
    gpu.close()
    return gpu.number


def open_gpu():
    try:
        return Gpu(int(DEVICE.partition(":")[2] or 0))
    except NoGpu as e:
        raise LeftOut("no GPU: %s" % e) from None


def hold():
    gpu = open_gpu()
    sys.stdin.read()
    gpu.close()


# ---- what the host has, and what the GPU has ----


def loader(archive=TAR, device=DEVICE, **options):
    return onepot.Loader(archive, BATCH, 0, 1, seed=3, device=device, **options)


def wanted(archive=TAR):
    return [bytes(batch.data) for batch in loader(archive, None)]


def compare(found, archive=TAR):
    """Of each batch the bytes, or their sum."""
    host = wanted(archive)
    bad = [i for i, (a, b) in enumerate(zip(found, host))
           if (a != b if isinstance(a, bytes) else int(a) != sum(b))]
    assert len(found) == len(host) and not bad, "batches %s of %d are wrong" % (bad[:9], len(host))
    print("%d batches have the host's bytes" % len(found))


class Kept:
    """Memory of the checks' own on the GPU, for the batches of one epoch."""

    def __init__(self, gpu, archive=TAR):
        self._gpu = gpu
        self._sizes = [len(each) for each in wanted(archive)]
        self._memory = [gpu.allocate(max(size, 1)) for size in self._sizes]
        self._count = 0

    def add(self, tensor, stream):
        assert tensor.bytes == self._sizes[self._count]
        self._gpu.copy(self._memory[self._count], tensor.address, tensor.bytes, stream)
        self._count += 1

    def take(self, stream):
        """All of it, in host memory."""
        self._gpu.wait(stream)
        found = [self._gpu.read(memory, size, stream) for memory, size in zip(self._memory, self._sizes)]
        for memory in self._memory:
            self._gpu.free(memory)
        return found[:self._count]


class Stream:
    """Of a library: it is destroyed with its object. `ends` says how many were."""

    ends = 0

    def __init__(self, gpu):
        self._gpu, self.ptr = gpu, gpu.stream()

    def __del__(self):
        Stream.ends += 1
        self._gpu.destroy(self.ptr)


# ---- the ten that decide ----


def device():
    gpu = open_gpu()
    library = os.environ.get("ONEPOT_CUDA") or os.path.join(os.path.dirname(onepot.__file__), "libonepot-cuda.so")
    said = [gpu.name(), "%d of %d" % (gpu.number.value + 1, gpu.count), gpu.link(), "driver " + gpu.driver(),
            "module " + module_version(), "kernel " + platform.release(),
            "glibc " + platform.libc_ver()[1], "%d CPUs" % len(os.sched_getaffinity(0)),
            "NUMA nodes " + first_line("/sys/devices/system/node/online"), "Python " + platform.python_version(),
            "onepot " + onepot.__version__,
            "%d bytes of %s" % (os.path.getsize(library), os.path.basename(library))
            if os.path.exists(library) else "there is no " + library]
    batch = next(iter(loader()))
    batch.wait()
    assert batch.device == "cuda:%d" % gpu.number.value, batch.device
    del batch
    gpu.close()
    print(", ".join(said))


def bytes_():
    """Data and tables, read in the default stream."""
    gpu, count = open_gpu(), 0
    for archive in TAR, ODD:
        host = loader(archive, None)
        for here, there in zip(host, loader(archive)):
            for name in ("data",) + TABLES:
                tensor = Tensor(getattr(there, name), 1)
                there.wait()
                found = gpu.read(tensor.address, tensor.bytes, 1) if tensor.bytes else b""
                tensor.free()
                assert found == bytes(getattr(here, name)), "%s of a batch of %s" % (name, archive)
            count += 1
    gpu.close()
    print("%d batches and their tables have the host's bytes" % count)


class Late:
    """Holds a consumer's stream back until the consumer itself has waited for the loader for a while."""

    SECONDS = 0.3

    def __init__(self, gpu, stream):
        self._gate, self._stream, self._lock = Gate(gpu), stream, threading.Lock()
        self._held, self._timer = False, None

    def step(self):
        """Before each batch is read."""
        self.stop()
        with self._lock:
            if not self._held:
                self._gate.hold(self._stream)
            self._held = True
        self._timer = threading.Timer(self.SECONDS, self._open)
        self._timer.start()

    def stop(self):
        if self._timer:
            self._timer.cancel()
            self._timer.join()

    def _open(self):
        with self._lock:
            if self._held:
                self._gate.open()
            self._held = False

    def end(self):
        self.stop()
        self._open()


def read_late(tells):
    """What a stream reads that comes to it late, of an epoch in which the loader uses its memory several times."""
    gpu = open_gpu()
    stream = gpu.stream()
    late, reader = Late(gpu, stream), loader(memory=FEW)
    for batch in reader:  # nothing is allocated later
        pass
    del batch
    reader.set_epoch(0)
    kept = Kept(gpu)
    for batch in reader:
        late.step()
        if tells:
            batch.record_stream(stream)
        tensor = Tensor(batch.data, 1)
        if not tells:
            batch.wait()
        kept.add(tensor, stream)
        del batch
        tensor.free()
    late.end()
    found = kept.take(stream)
    del reader
    gpu.destroy(stream)
    gpu.close()
    return found


def order():
    compare(read_late(True))


def notices():
    """Otherwise `order` would prove nothing."""
    wrong = sum(a != b for a, b in zip(read_late(False), wanted()))
    assert wrong, "a stream that nobody named read all batches unchanged, so `order` can't notice anything"
    print("%d batches were overwritten under a stream that onepot was not told of: `order` can fail" % wrong)


def gone():
    """The stream that DLPack named is destroyed before the batch is, and others get its address."""
    gpu = open_gpu()
    last, kept, others, again, seen = gpu.stream(), Kept(gpu), [], 0, set()
    for batch in loader(memory=FEW):
        stream = gpu.stream()
        again += stream in seen
        seen.add(stream)
        tensor = Tensor(batch.data, stream)
        kept.add(tensor, stream)
        gpu.wait(stream)
        gpu.destroy(stream)
        others += [gpu.stream() for _ in range(2)]
        del batch
        tensor.free()
        for each in others[:-2]:
            gpu.destroy(each)
        del others[:-2]
    found = kept.take(last)
    for each in others + [last]:
        gpu.destroy(each)
    gpu.close()
    compare(found)
    print("%d streams were destroyed before their batches, %d of them had an earlier one's address"
          % (len(seen) + again, again))


def kept():
    """Stream objects live as long as anybody has the batch's memory."""
    gpu = open_gpu()
    batches = list(loader(memory=256 << 20))
    for tell in (lambda batch, stream: batch.record_stream(stream),
                 lambda batch, stream: batch.copy_into(batches[-1].data, stream)):
        batch, stream, ends = batches.pop(0), Stream(gpu), Stream.ends
        tensor, seen = Tensor(batch.data, 1), weakref.ref(stream)
        tell(batch, stream)
        del stream, batch
        gc.collect()
        assert seen() is not None and Stream.ends == ends, "a stream was destroyed while a tensor had its batch"
        tensor.free()
        gc.collect()
        assert seen() is None, "a stream is kept although nobody has its batch"
    del batches
    gpu.close()
    print("streams of record_stream and copy_into live until the last tensor is gone")


def release():
    """The last release waits for a stream, which waits for a function of Python."""
    gpu = open_gpu()
    for last in "batch", "tensor":
        stream, done, reader = gpu.stream(), [], loader()
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda unused: done.append(time.sleep(0.2)))
        batch = [next(iter(reader))]
        tensor = Tensor(batch[0].data, 1)
        batch[0].record_stream(stream)
        reader.close()
        del reader
        if last == "batch":
            tensor.free()
        else:
            batch.clear()
        gpu.call_in(stream, function)
        if last == "batch":
            batch.clear()
        else:
            tensor.free_as_library()
        gpu.wait(stream)
        assert done
        gpu.destroy(stream)
    gpu.close()
    print("the last release lets go of the interpreter")


def gathered():
    """Samples at all offsets, of all sizes, collected by the GPU."""
    gpu, said = open_gpu(), []
    for archive in TAR, ODD:
        stream, found, reader = gpu.stream(), [], loader(archive, gather="device")
        for batch in reader:
            tensor = Tensor(batch.data, stream)
            found.append(gpu.read(tensor.address, tensor.bytes, stream))
            del batch
            tensor.free()
        compare(found, archive)
        said.append(reader.transfer()["gathered_by_device"])
        del reader
        gpu.destroy(stream)
    gpu.close()
    assert all(said), "the GPU did not gather: %s" % said
    print("%s and %s have the host's bytes" % (os.path.basename(TAR), os.path.basename(ODD)))


def images():
    """Bit for bit as the host computes them."""
    gpu = open_gpu()
    for dtype in "float32", "float16", "bfloat16":
        options = dict(images=PICTURE, dtype=dtype, mean=(127.5, 100, 1.25), scale=(1 / 127.5, 0.017, 3))
        for there, here in zip(loader(RAW, **options), loader(RAW, "host", **options)):
            a, b = Tensor(there.images, 1), Tensor(here.images)
            there.wait()
            here.wait()
            assert gpu.read(a.address, a.bytes, 1) == b.on_host(), dtype
            a.free()
            b.free()
    gpu.close()
    print("float32, float16 and bfloat16 have the host's bits")


def exit_():
    batches = list(loader(memory=256 << 20))[:3]
    capsules = [batch.__dlpack__(stream=1) for batch in batches[1:]]
    sys.modules["kept"] = batches, capsules  # they are there when the interpreter ends
    print("the process ends with %d batches and %d capsules" % (len(batches), len(capsules)))


# ---- graphs ----


def beside_captures(lends):
    """How many of 50 captures of this thread break while another one opens loaders and ends their batches."""
    gpu, ended, ends, failed = open_gpu(), threading.Event(), [0], []
    named, stream, memory = gpu.stream(), gpu.stream(), gpu.allocate(2 << 20)

    def churn():
        while not ended.is_set():
            try:
                for batch in loader():
                    if lends:
                        Tensor(batch.data, -1).free()
                    else:
                        batch.record_stream(named)
                    del batch
                    ends[0] += 1
            except OSError as e:
                failed.append(e)

    thread, broken, why = threading.Thread(target=churn), 0, ""
    thread.start()
    try:
        for _ in range(50):
            gpu.begin_capture(stream)
            for _ in range(20):
                try:
                    gpu.copy(memory, memory + (1 << 20), 1 << 20, stream)
                except OSError:
                    pass
                time.sleep(0.001)
            try:
                gpu.end_capture(stream)
            except OSError as e:
                broken, why = broken + 1, str(e)
    finally:
        ended.set()
        thread.join()
    gpu.wait(named)
    gpu.free(memory)
    gpu.destroy(named)
    gpu.destroy(stream)
    gpu.close()
    assert not failed, "a loader failed beside a capture: %s" % failed[0]
    return "%d of 50 captures broke beside %d ended batches%s" % (broken, ends[0], ": " + why if broken else "")


def captures():
    """A stream that captures is refused, and no capture breaks while all streams are named."""
    gpu, batches = open_gpu(), list(loader(memory=256 << 20))
    stream = gpu.stream()
    gpu.begin_capture(stream)
    for call in (lambda: batches[0].record_stream(stream), lambda: batches[0].__dlpack__(stream=stream),
                 lambda: batches[0].copy_into(batches[1].data, stream)):
        try:
            call()
            raise AssertionError("a stream that captures was taken")
        except OSError as e:
            assert "captures a graph" in str(e), e
    gpu.end_capture(stream)
    gpu.destroy(stream)
    del batches
    gpu.close()
    said = beside_captures(False)
    assert said.startswith("0 "), said
    print(said)


def captures_lent():
    """Those that break because a consumer did not name its stream: what the manual warns of."""
    print(beside_captures(True))


# ---- torch, cupy, jax, numba ----


def module(name):
    try:
        return __import__(name)
    except ModuleNotFoundError:
        raise LeftOut("there is no " + name) from None
    except Exception as e:  # libraries of its own are missing, say
        raise LeftOut("%s can't be imported: %r" % (name, e)) from None


def torch_on_gpu():
    torch = module("torch")
    if not torch.cuda.is_available():
        raise LeftOut("torch sees no GPU")
    torch.cuda.set_device(torch.device(DEVICE))
    torch.cuda.init()
    return torch


def cupy_on_gpu():
    cupy = module("cupy")
    try:
        cupy.ones(1).sum().get()
    except Exception as e:
        raise LeftOut("cupy can't use the GPU: %s" % e) from None
    return cupy


def jax_on_gpu():
    jax = module("jax")
    try:
        return jax, jax.devices("gpu")[0]
    except RuntimeError:
        raise LeftOut("jax sees no GPU") from None


def torch_streams(reads):
    """The sums of an epoch's batches, each by reads(batch, stream), which spins first."""
    torch = torch_on_gpu()
    stream, found = torch.cuda.Stream(), []
    for batch in loader(memory=FEW):
        found.append(reads(torch, batch, stream))
        del batch
    torch.cuda.synchronize()
    compare(found)


def late_sum(torch, tensor):
    torch.cuda._sleep(SPIN)
    return tensor.to(torch.int64).sum()


def torch_order():
    def reads(torch, batch, stream):
        batch.record_stream(stream)
        with torch.cuda.stream(stream):
            return late_sum(torch, torch.from_dlpack(batch.data))
    torch_streams(reads)


def torch_unnamed():
    """A stream that DLPack alone names."""
    def reads(torch, batch, stream):
        with torch.cuda.stream(stream):
            return late_sum(torch, torch.from_dlpack(batch.data))
    torch_streams(reads)


def torch_hidden():
    """A stream that onepot never hears of, behind one that it does."""
    hidden = []

    def reads(torch, batch, stream):
        hidden.append(hidden[0] if hidden else torch.cuda.Stream())
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(batch.data)
        hidden[0].wait_stream(stream)
        with torch.cuda.stream(hidden[0]):
            return late_sum(torch, tensor)
    torch_streams(reads)


def torch_graph():
    torch, found = torch_on_gpu(), []
    static = total = graph = None
    for batch in loader():
        if graph is None:
            static = torch.zeros(tuple(batch.data.shape), dtype=torch.uint8, device="cuda")
            static.to(torch.int64).sum()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                total = static.to(torch.int64).sum()
        batch.copy_into(static)
        graph.replay()
        found.append(total.clone())
    compare(found)


def torch_dlpack():
    """The ways to ask for a tensor, and what comes. A refusal is an answer, too."""
    torch = torch_on_gpu()
    batch, said = next(iter(loader())), []
    want = sum(wanted()[0])
    for name, call in (("device=", lambda: torch.from_dlpack(batch.data, device=torch.device(DEVICE))),
                       ("copy=False", lambda: torch.from_dlpack(batch.data, copy=False)),
                       ("copy=True", lambda: torch.from_dlpack(batch.data, copy=True)),
                       ("as_tensor", lambda: torch.as_tensor(batch.data, device="cuda")),
                       ("capsule", lambda: torch.utils.dlpack.from_dlpack(batch.data.__dlpack__()))):
        try:
            tensor = call()
        except (TypeError, BufferError, RuntimeError) as e:
            said.append("%s: %s" % (name, type(e).__name__))
            continue
        torch.cuda.synchronize()
        assert int(tensor.to(torch.int64).sum()) == want, name
        said.append("%s: %s" % (name, tensor.device))
    print("; ".join(said))


def torch_workers():
    """Workers of a DataLoader are forked beside a loader that has a device."""
    torch = torch_on_gpu()
    batches = iter(loader())
    next(batches)
    read = torch.utils.data.DataLoader(onepot.Dataset(TAR), batch_size=BATCH, num_workers=2,
                                       collate_fn=onepot.collate)
    print("%d batches beside forked workers" % (sum(1 for _ in read) + sum(1 for _ in batches)))


def torch_compile():
    torch, found = torch_on_gpu(), []
    add_up = torch.compile(lambda x: x.to(torch.int64).sum())
    for batch in loader():
        static = torch.zeros(tuple(batch.data.shape), dtype=torch.uint8, device="cuda")
        batch.copy_into(static)
        found.append(add_up(static))
    compare(found)


def torch_overlap():
    """Batches beside matrix products: each alone, and both at once."""
    torch = torch_on_gpu()
    a = torch.ones((4096, 4096), dtype=torch.bfloat16, device="cuda")
    batches = COUNT // BATCH

    def seconds(reader, products):
        torch.cuda.synchronize()
        start = time.monotonic()
        for batch in reader:
            if reader is not alone:
                torch.from_dlpack(batch.data)[:, :1].sum()
            for _ in range(products):
                a @ a
        torch.cuda.synchronize()
        return time.monotonic() - start

    said, alone = [], range(batches)
    for gather in "host", "device":
        reader = loader(gather=gather)
        seconds(reader, 1)
        copies = seconds(reader, 0)
        products = max(1, round(copies / max(seconds(alone, 4) / (4 * batches), 1e-9) / batches))
        compute, both = seconds(alone, products), seconds(reader, products)
        said.append("gather=%s: copies %.3f s, products %.3f s, both %.3f s = %.2f of the larger"
                    % (gather, copies, compute, both, both / max(copies, compute)))
        del reader
    print("; ".join(said))


def cupy_order():
    cupy, found = cupy_on_gpu(), []
    stream, busy = cupy.cuda.Stream(non_blocking=True), cupy.ones((4096, 4096), cupy.float32)
    for batch in loader(memory=FEW):
        batch.record_stream(stream)
        with stream:
            busy = busy @ busy * 1e-4
            found.append(cupy.from_dlpack(batch.data).astype(cupy.int64).sum())
        del batch
    stream.synchronize()
    compare(found)


def cupy_default():
    cupy, found = cupy_on_gpu(), []
    busy = cupy.ones((4096, 4096), cupy.float32)
    for batch in loader(memory=FEW):
        busy = busy @ busy * 1e-4
        found.append(cupy.from_dlpack(batch.data).astype(cupy.int64).sum())
        del batch
    compare(found)


def cupy_gone():
    """cupy destroys a stream that nobody has, here before the batch."""
    cupy, found = cupy_on_gpu(), []
    for batch in loader(memory=FEW):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            array = cupy.from_dlpack(batch.data)
            found.append(array.astype(cupy.int64).sum())
        stream.synchronize()
        del stream
        others = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
        del array, batch, others
    compare(found)


def jax_order():
    (jax, gpu), found = jax_on_gpu(), []
    busy = jax.numpy.ones((4096, 4096), device=gpu)
    for batch in loader(memory=FEW):
        busy = busy @ busy * 1e-4
        rows = jax.dlpack.from_dlpack(batch.data).astype(jax.numpy.uint32)
        found.append(rows.sum(axis=1))
        del batch, rows
    compare([sum(rows.tolist()) for rows in found])


def jax_exit():
    """JAX's client ends before the interpreter does, and its streams with it."""
    jax, _ = jax_on_gpu()
    batches = list(loader(memory=256 << 20))[:3]
    total = int(sum(jax.dlpack.from_dlpack(batch.data).astype("uint32").sum() for batch in batches))
    sys.modules["kept"] = batches
    print("the process ends with %d batches that JAX has read (%d)" % (len(batches), total))


def jax_graphs():
    """XLA captures command buffers while another thread ends batches in a stream that it does not name."""
    jax, _ = jax_on_gpu()

    @jax.jit
    def step(x, w):
        y = x.reshape(x.shape[0], -1)[:, :4096].astype(jax.numpy.bfloat16)
        for _ in range(8):
            y = jax.numpy.tanh(y @ w)
        return y.astype(jax.numpy.float32).sum()

    w, found, ended = jax.numpy.ones((4096, 4096), jax.numpy.bfloat16) / 4096, [], threading.Event()

    def churn():
        while not ended.is_set():
            for batch in loader():
                Tensor(batch.data, -1).free()
                del batch

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for n in range(4):
            for batch in loader():
                x = jax.dlpack.from_dlpack(batch.data)
                found.append(step(x[:BATCH - n], w))  # another shape is compiled and captured anew
                del batch, x
        found = [float(each) for each in found]
    finally:
        ended.set()
        thread.join()
    print("%d steps" % len(found))


def numba_bytes():
    """By __cuda_array_interface__."""
    module("numba")
    module("numpy")
    from numba import cuda
    if not cuda.is_available():
        raise LeftOut("numba sees no GPU")
    found = []
    for batch in loader(memory=FEW):
        array = cuda.as_cuda_array(batch.data)
        found.append(array.copy_to_host().tobytes())
        del array, batch
    compare(found)


# ---- rates ----


def bare_rate(gpu, size=64 << 20):
    """Bytes per second of copies from page-locked memory."""
    stream, there, here = gpu.stream(), gpu.allocate(size), (ctypes.c_char * size)()
    gpu.lock(here)
    best = 0.0
    for _ in range(4):
        start = time.perf_counter()
        for _ in range(4):
            gpu.copy(there, ctypes.addressof(here), size, stream)
        gpu.wait(stream)
        best = max(best, 4 * size / (time.perf_counter() - start))
    gpu.unlock(here)
    gpu.free(there)
    gpu.destroy(stream)
    return best


def rate(reader, seconds=0.5):
    """(bytes per second of the copies in the best epoch, bytes per second end to end). The loader works ahead
    between epochs too, so that only many of them together say how fast it is; the first is not counted."""
    best, epochs, start = 0.0, -1, time.perf_counter()
    while epochs < 1 or time.perf_counter() - start < seconds:
        for batch in reader:
            batch.wait()
        del batch
        best = max(best, reader.transfer()["bytes_per_second"])
        epochs += 1
        if epochs == 0:
            start = time.perf_counter()
    return best, epochs * COUNT * SIZE / (time.perf_counter() - start)


def rates():
    """Copies of 16 MB beside the bare copy and the link."""
    gpu = open_gpu()
    bare, said = bare_rate(gpu), []
    for gather in "host", "device":
        reader = onepot.Loader(TAR, (16 << 20) // SIZE, 0, 1, seed=3, device=DEVICE, gather=gather)
        copies, whole = rate(reader)
        said.append("gather=%s %.1f GB/s (%.0f %%), end to end %.1f" % (gather, copies / 1e9, 100 * copies / bare,
                                                                        whole / 1e9))
        del reader
    print("%s; bare copy %.1f GB/s; %s" % (gpu.link(), bare / 1e9, "; ".join(said)))
    gpu.close()


def gather_rates():
    """Gathering of 20 and 100 KB at offsets of 512 and of odd multiples of 16 and 1."""
    gpu, said = open_gpu(), []
    bare, path = bare_rate(gpu), os.path.join(FOLDER, "rates.zip")
    for size in 20 << 10, 100 << 10:
        for shift in 0, 16, 1:
            with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as made:
                for i in range((128 << 20) // size):
                    info = zipfile.ZipInfo("%06d.bin" % i)
                    pad = (shift - made.fp.tell() - 30 - len(info.filename)) % 512
                    pad += 512 if pad < 4 else 0
                    info.extra = b"\x35\xd9" + (pad - 4).to_bytes(2, "little") + bytes(pad - 4)
                    made.writestr(info, bytes(size))
            reader = onepot.Loader(path, (16 << 20) // size, 0, 1, device=DEVICE, gather="device")
            copies, _ = rate(reader)
            said.append("%d KB at 512n+%d %.0f %%" % (size >> 10, shift, 100 * copies / bare))
            del reader
    os.unlink(path)
    gpu.close()
    print("of %.1f GB/s: %s" % (bare / 1e9, ", ".join(said)))


# ---- memory, and several of a kind ----


def take_all_but(gpu, left):
    """Pieces of memory: there may be none that is large enough."""
    taken, size = [], gpu.free_bytes()
    while size >= 2 << 20:
        size = min(size, gpu.free_bytes() - left)
        try:
            taken.append(gpu.allocate(max(size, 1)))
        except OSError:
            size //= 2
    return taken


def memory_full():
    """While another has nearly all memory: an epoch or one clear error; and an epoch afterwards."""
    gpu, said = open_gpu(), []
    for left, options in ((40 << 20, dict(memory=64 << 20, prefetch=16)), (8 << 20, dict(memory=1 << 30))):
        loader().close()  # what a first loader takes
        hogs = take_all_but(gpu, left)
        try:
            said.append("%d batches" % sum(1 for _ in loader(**options)))
        except (MemoryError, OSError, BufferError) as e:
            said.append("%s: %s" % (type(e).__name__, e))
        for hog in hogs:
            gpu.free(hog)
        count = sum(1 for _ in loader())
        assert count == COUNT // BATCH, "%d batches when there is memory again" % count
    gpu.close()
    assert said[0] == "%d batches" % (COUNT // BATCH), "with 40 MB left: " + said[0]
    print("with 40 MB left: %s; with 8 MB: %s; afterwards all" % tuple(said))


def reopen():
    for _ in range(3):
        count = 0
        for batch in loader():
            batch.wait()
            count += len(batch)
        del batch
        assert count == COUNT, count
    print("opened and closed three times, %d samples each" % count)


def fork():
    """A child that was forked beside a loader with a device reads on the host, and is refused the GPU."""
    batches = iter(loader())
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            count = sum(1 for _ in loader(device=None))
            try:
                loader()
            except OSError as e:
                os._exit(0 if count == COUNT // BATCH and "fork" in str(e) else 3)
        finally:
            os._exit(4)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child's status is %d" % status
    print("a forked child reads on the host; %d batches went on" % sum(1 for _ in batches))


def several():
    gpu = open_gpu()
    gpu.close()
    if gpu.count < 2:
        raise LeftOut("there is one GPU")
    host, places = wanted(), []
    reader = onepot.Loader(TAR, BATCH, 0, 1, seed=3, devices=["cuda:0", "cuda:1"])
    for i, batch in enumerate(reader):
        places.append(batch.device)
        tensor = Tensor(batch.data, -1)
        batch.wait()
        gpu = Gpu(i % 2)
        assert gpu.read(tensor.address, tensor.bytes, None) == host[i], "batch %d" % i
        gpu.close()
        tensor.free()
    assert places == ["cuda:%d" % (i % 2) for i in range(len(host))], places
    print("%d batches on two GPUs in turn" % len(places))


def dirty_kb(path):
    """The file's pages that are to be written back: the kernel tells of those that are mapped."""
    path = os.path.realpath(path)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        mapped[::mmap.PAGESIZE]  # so that all are
        with open("/proc/self/smaps", encoding="utf-8", errors="surrogateescape") as maps:
            lines = maps.read().partition(" " + path + "\n")[2].splitlines()
    return sum([int(line.split()[1]) for line in lines if "_Dirty:" in line][:2])


def dirty():
    """Page-locking an archive must not make its pages dirty: all of it would be written back."""
    gpu_number()
    os.sync()
    before = dirty_kb(TAR)
    reader = loader(gather="device")
    for batch in reader:
        batch.wait()
    del batch
    reader.close()
    grown = dirty_kb(TAR) - before
    assert grown < SIZE * COUNT // 1024 // 4, "%s kB more are dirty" % grown
    print("%d kB more are dirty" % max(grown, 0))


def locking():
    """How long a large archive takes, and what waits meanwhile."""
    gpu = open_gpu()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else FOLDER
    room = os.statvfs(memory)
    size = min(4 << 30, room.f_bavail * room.f_frsize // 4) >> 26 << 26
    path = os.path.join(memory, "onepot-verify-%d.tar" % os.getpid())
    stream, there, ended, gaps = gpu.stream(), gpu.allocate(8192), threading.Event(), []

    def launches():
        own = Gpu(gpu.number.value)
        while not ended.wait(0.0005):
            start = time.perf_counter()
            own.copy(there, there + 4096, 4096, stream)
            gaps.append(time.perf_counter() - start)
        own.close()

    thread = threading.Thread(target=launches)
    thread.start()
    try:
        with open(path, "wb") as f:
            for i in range(size >> 26):
                member = tarfile.TarInfo("%05d.bin" % i)
                member.size = (64 << 20) - 512
                f.write(member.tobuf(tarfile.USTAR_FORMAT))
                f.seek(member.size - 1, 1)
                f.write(b"\0")
            f.write(bytes(1024))
        gaps.clear()
        time.sleep(0.5)
        calm = max(gaps)
        gaps.clear()
        start = time.perf_counter()
        try:
            reader = onepot.Loader(path, 1, 0, 1, device=DEVICE, gather="device", memory=512 << 20)
        except MemoryError as e:
            raise LeftOut("%.1f GB: %s" % (size / 1e9, e)) from None
        next(iter(reader)).wait()
        took, busy, start = time.perf_counter() - start, max(gaps), time.perf_counter()
        reader.close()
        print("%.1f GB: first batch after %.2f s, closed in %.2f s; a launch took %.1f ms at most (before: %.1f)"
              % (size / 1e9, took, time.perf_counter() - start, busy * 1e3, calm * 1e3))
    finally:
        ended.set()
        thread.join()
        os.unlink(path)
    gpu.wait(stream)
    gpu.free(there)
    gpu.destroy(stream)
    gpu.close()


def main():
    functions = globals()
    try:
        functions.get(NAME + "_", functions.get(NAME))()
    except LeftOut as e:
        print(e, flush=True)
        os._exit(77)
    except BaseException as e:  # threads and streams may be held, so the process ends at once
        traceback.print_exc()
        print("%s: %s" % (type(e).__name__, e), flush=True)
        sys.stdout.flush()
        os._exit(1)


if __name__ == "__main__":
    main()

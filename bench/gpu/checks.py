"""One check of bench/gpu/verify, in a process of its own.

Usage: checks.py MODULE NAME ARCHIVE DEVICE

The last line says what was found. Exit status 77: the module is not there, or sees no GPU. In the
environment, ONEPOT_CARRIED is a folder with libraries that onepot may need.
"""
import ctypes
import glob
import os
import sys
import time

BATCH = 32


def skip(why):
    print("skipped: " + why)
    sys.exit(77)


def module(name):
    try:
        return __import__(name)
    except ModuleNotFoundError:
        return skip("there is no " + name)
    except Exception as e:  # libraries of its own are missing, say
        return skip("%s can't be imported: %r" % (name, e))


def torch_on_gpu():
    torch = module("torch")
    return torch if torch.cuda.is_available() else skip("torch sees no GPU")


def cupy_on_gpu():
    cupy = module("cupy")
    try:
        cupy.cuda.Device(0).use()
        cupy.ones(1).sum().get()
    except Exception as e:
        skip("cupy can't use the GPU: %s" % e)
    return cupy


def jax_on_gpu():
    jax = module("jax")
    try:
        return jax, jax.devices("gpu")[0]
    except RuntimeError:
        return skip("jax sees no GPU")


def is_there(path):
    try:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        return True
    except OSError:
        return False


def import_onepot():
    """Libraries that this machine has go before those that were carried here: of one name only one is
    in a process, and it may be the older one. They need each other, in an order that is not known."""
    left = glob.glob(os.path.join(os.environ.get("ONEPOT_CARRIED", "-"), "*.so*"))
    left = [path for path in left if not is_there(os.path.basename(path))]
    before = None
    while left and left != before:
        before, left = left, [path for path in left if not is_there(path)]
    import onepot
    return onepot


def loader(**options):
    onepot = import_onepot()
    return onepot.Loader(onepot.Archive(sys.argv[3]), BATCH, 0, 1, seed=3, device=sys.argv[4],
                         **options)


def sums_on_host():
    """The sum of each batch's bytes, of one epoch."""
    onepot = import_onepot()
    host = onepot.Loader(onepot.Archive(sys.argv[3]), BATCH, 0, 1, seed=3)
    return [sum(bytes(b.data)) for b in host]


def compare(found):
    wanted = sums_on_host()
    bad = [i for i, (a, b) in enumerate(zip(found, wanted)) if int(a) != b]
    assert len(found) == len(wanted) and not bad, "batches %s of %d are wrong" % (bad, len(wanted))
    print("%d batches as they should be" % len(found))


def overwrite_torch():
    """A kernel spins before each read, so that the host is far ahead."""
    torch = torch_on_gpu()
    stream, found = torch.cuda.Stream(), []
    for batch in loader(memory=24 << 20):
        batch.record_stream(stream)
        with torch.cuda.stream(stream):
            tensor = torch.from_dlpack(batch.data)
            torch.cuda._sleep(20000000)
            found.append(tensor.to(torch.int64).sum())
        del tensor, batch
    torch.cuda.synchronize()
    compare(found)


def overwrite_cupy():
    cupy, found = cupy_on_gpu(), []
    stream, busy = cupy.cuda.Stream(non_blocking=True), cupy.ones((4096, 4096), cupy.float32)
    for batch in loader(memory=24 << 20):
        batch.record_stream(stream)
        with stream:
            busy = busy @ busy * 1e-4
            found.append(cupy.asarray(cupy.from_dlpack(batch.data)).astype(cupy.int64).sum())
        del batch
    stream.synchronize()
    compare(found)


def overwrite_jax():
    (jax, gpu), found = jax_on_gpu(), []
    busy = jax.numpy.ones((4096, 4096), device=gpu)
    for batch in loader(memory=24 << 20):
        busy = busy @ busy * 1e-4
        pixels = jax.dlpack.from_dlpack(batch.data).astype(jax.numpy.uint32)
        found.append(pixels.sum(axis=1))
        del batch, pixels
    compare([sum(rows.tolist()) for rows in found])


def capture_torch():
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
                try:
                    batch.record_stream(torch.cuda.current_stream())
                    raise AssertionError("a stream that captures was taken")
                except OSError:
                    pass
        batch.copy_into(static)
        graph.replay()
        found.append(total.clone())
    compare(found)


def compile_torch():
    torch, found = torch_on_gpu(), []
    add = torch.compile(lambda x: x.to(torch.int64).sum())
    for batch in loader():
        static = torch.zeros(tuple(batch.data.shape), dtype=torch.uint8, device="cuda")
        batch.copy_into(static)
        found.append(add(static))
    compare(found)


def overlap_torch():
    """Batches beside a matrix product: how long each takes alone, and both at once."""
    torch = torch_on_gpu()
    a = torch.ones((4096, 4096), dtype=torch.bfloat16, device=sys.argv[4])
    reader = loader()

    def epoch(products):
        torch.cuda.synchronize()
        start = time.monotonic()
        for batch in reader:
            torch.from_dlpack(batch.data)[:, :1].sum()
            for _ in range(products):
                a @ a
        torch.cuda.synchronize()
        return time.monotonic() - start

    def compute(products):
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(products):
            a @ a
        torch.cuda.synchronize()
        return time.monotonic() - start

    epoch(1), compute(1)
    copies, one = epoch(0), compute(64) / 64
    batches = 1024 // BATCH
    products = max(1, round(copies / batches / one))
    both, alone = epoch(products), compute(products * batches)
    print("copies %.4f s, %d products %.4f s, both %.4f s: %.2f of the larger"
          % (copies, products * batches, alone, both, both / max(copies, alone)))


def fork_torch():
    """Workers of a DataLoader are forked beside a loader that has a device."""
    torch = torch_on_gpu()
    onepot = import_onepot()
    batches = iter(loader())
    next(batches)
    read = torch.utils.data.DataLoader(onepot.Dataset(sys.argv[3]), batch_size=BATCH, num_workers=2,
                                       collate_fn=onepot.collate)
    count = sum(1 for _ in read) + sum(1 for _ in batches)
    print("%d batches beside forked workers" % count)


def jpegs():
    """An archive of pictures of many sizes, beside the other one."""
    import io
    import tarfile
    image, path = module("PIL.Image"), sys.argv[3] + ".jpegs.tar"
    image = image.Image
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for i in range(8 * BATCH):
            parts = [image.effect_noise((16, 12), 90).resize((320 + 7 * i, 240 + 5 * i),
                                                             image.BICUBIC) for _ in range(3)]
            file = io.BytesIO()
            image.merge("RGB", parts).save(file, "jpeg", quality=60 + i % 36,
                                           subsampling=i % 3)
            member = tarfile.TarInfo("%04d.jpg" % i)
            member.size = file.tell()
            file.seek(0)
            tar.addfile(member, file)
    return path


def decode_torch():
    """nvJPEG's images beside those of libjpeg-turbo: two decoders may differ by a little."""
    torch = torch_on_gpu()
    onepot = import_onepot()
    path = jpegs()

    def images(device, decoder):
        read = onepot.Loader(path, BATCH, 0, 1, seed=3, device=device,
                             images=onepot.Images(exact=True, decoder=decoder))
        for _ in range(2):  # the first epoch has all that happens once
            start = time.monotonic()
            made = [torch.from_dlpack(batch).to("cpu", torch.int16, copy=True) for batch in read]
            took = time.monotonic() - start
        return made, read, took

    try:
        there, read, took = images(sys.argv[4], "gpu")
    except OSError as e:
        skip(str(e))
    here, _, took_here = images(None, "host")
    away = max((a - b).abs().float().mean().item() for a, b in zip(there, here))
    assert len(there) == len(here) and away <= 2, "images are away from the host's by %.2f" % away
    count = read.stats["gpu_decoded"]
    assert count >= 16 * BATCH, "it decoded %d" % count
    print("%s: %d pictures, at most %.2f of 255 away; %.2f s, the host %.2f s"
          % (read.decoder, count, away, took, took_here))


def decompress_torch():
    """nvCOMP's bytes beside those of libzstd."""
    torch = torch_on_gpu()
    import random
    import time
    import onepot
    path, made = sys.argv[3] + ".zstd.tar", random.Random(1)
    words = [bytes(made.choices(b"abcdefgh", k=made.randrange(2, 12))) for _ in range(3000)]
    with onepot.Writer(path, zstd=3, overwrite=True) as writer:
        for i in range(8 * BATCH):
            writer.add("%04d.txt" % i, b" ".join(made.choices(words, k=2000 + 20 * i)))

    def batches(**options):
        read = onepot.Loader(path, BATCH, 0, 1, shuffle=False, **options)
        for _ in range(3):  # the host sees each block first
            start = time.monotonic()
            found = [torch.from_dlpack(batch).to("cpu", copy=True) for batch in read]
            took = time.monotonic() - start
        return found, read, took

    try:
        there, read, took = batches(device=sys.argv[4], decompress="gpu")
    except OSError as e:
        skip(str(e))
    here, _, took_here = batches()
    assert len(there) == len(here) and all(torch.equal(a, b) for a, b in zip(there, here)), \
        "bytes are not the host's"
    count = read.stats["gpu_decompressed"]
    assert count >= 8 * BATCH, "it decompressed %d" % count
    print("%s: %d samples as they should be; %.2f s, the host %.2f s"
          % (read.decompressor, count, took, took_here))


def reopen_onepot():
    for _ in range(3):
        count = 0
        for batch in loader():
            batch.wait()
            count += len(batch)
        del batch
    print("opened and closed three times, %d samples each" % count)


def several_onepot():
    """To two GPUs in turn. Only torch reads what has arrived there."""
    try:
        import torch
    except ImportError:
        torch = None
    onepot = import_onepot()
    try:
        reader = onepot.Loader(onepot.Archive(sys.argv[3]), BATCH, 0, 1, seed=3,
                               devices=["cuda:0", "cuda:1"])
    except OSError as e:
        skip("two GPUs are needed: %s" % e)
    places, found = [], []
    for batch in reader:
        places.append((batch.device, batch.__dlpack_device__()[1]))
        batch.wait()
        if torch is not None and torch.cuda.is_available():
            found.append(torch.from_dlpack(batch.data).to(torch.int64).sum())
            assert str(found[-1].device) == batch.device, (found[-1].device, batch.device)
    wanted = [("cuda:%d" % (i % 2), i % 2) for i in range(len(places))]
    assert places == wanted, "batches are on %s" % places
    if found:
        compare([x.cpu() for x in found])
    print("%d batches on two GPUs in turn%s" % (
        len(places), "" if found else "; torch was not there to read them"))


def exit_onepot():
    kept = list(loader(memory=256 << 20))[:2]
    sys.modules["kept"] = kept  # when the interpreter ends they are still there
    print("the process ends with %d live batches" % len(kept))


def dirty_kb():
    with open("/proc/meminfo") as f:
        found = [int(line.split()[1]) for line in f if line.startswith("Dirty:")]
    return found[0] if found else skip("this kernel does not tell what is dirty")


def locking_onepot():
    os.sync()
    before = dirty_kb()
    reader = loader(gather="device")
    for batch in reader:
        batch.wait()
    after = dirty_kb()
    gathered = reader.transfer()["gathered_by_device"]
    print("%d kB more are dirty, gathered by the device: %s" % (max(after - before, 0), gathered))


if __name__ == "__main__":
    globals()["%s_%s" % (sys.argv[2], sys.argv[1])]()

#!/usr/bin/env python3
"""Pictures in the Python module: beside PIL and torchvision where they are installed, and without
them."""
import io
import os
import pickle
import resource
import shutil
import struct
import sys
import tempfile
import unittest
import zlib

import onepot

needs_devices = unittest.skipIf(os.environ.get("WITHOUT_DEVICES"), "built with -Dgpu=disabled")

try:
    import numpy as np
except ImportError:
    np = None
try:
    from PIL import Image
except ImportError:
    Image = None
try:
    import torch
    from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
except ImportError:
    torch = None
try:
    import torchvision.transforms as T
except ImportError:
    T = None

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
COUNT = 24


def npy(width, height, value):
    """A .npy file: pixel (x, y) of channel c is value(x, y, c)."""
    header = ("{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d, 3), }"
              % (height, width)).ljust(117) + "\n"
    pixels = bytes(value(x, y, c) for y in range(height) for x in range(width) for c in range(3))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header.encode() + pixels


def picture(width, height, seed):
    """Smooth colours with some noise, as a photograph has."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.BICUBIC)).astype(float)
    return Image.fromarray((smooth + rng.normal(0, 9, smooth.shape)).clip(0, 255).astype(np.uint8))


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def setUpModule():
    global WORK, ARRAYS, JPEGS
    WORK = tempfile.mkdtemp(prefix="onepot-images.", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
    os.environ["XDG_CACHE_HOME"] = os.path.join(WORK, "cache")
    ARRAYS = os.path.join(WORK, "arrays.tar")
    with onepot.Writer(ARRAYS, sync=False) as writer:
        for i in range(COUNT):
            writer.add("c%d/%02d.npy" % (i // 8, i),
                       npy(10 + i, 12, lambda x, y, c: (9 * x + 5 * y + 50 * c + i) % 256))
    JPEGS = os.path.join(WORK, "jpegs.tar")
    if Image is not None and has("jpeg"):
        with onepot.Writer(JPEGS, sync=False) as writer:
            for i in range(COUNT):
                writer.add("c%d/%02d.jpg" % (i // 8, i),
                           saved(picture(300 + 10 * i, 280, i), "JPEG", quality=90))


def tearDownModule():
    shutil.rmtree(WORK)


def has(kind):
    """Was the library built with what decodes these files?"""
    start = {"jpeg": b"\xff\xd8\xff\xe0", "png": b"\x89PNG\r\n\x1a\n"}[kind]
    path = os.path.join(WORK, "probe.tar")
    with onepot.Writer(path, sync=False, overwrite=True) as writer:
        writer.add("x", start)
    try:
        onepot.Dataset(path, images=onepot.Images(4))[0]
    except OSError as error:
        return "built without" not in str(error)
    return True


def loaded(archive, images, **options):
    """All images and labels of an epoch, by the samples' numbers."""
    result = {}
    for batch in onepot.Loader(archive, 7, rank=0, world_size=1, images=images, **options):
        shape = memoryview(batch.images).shape
        flat = bytes(memoryview(batch.images).cast("B"))
        size = len(flat) // shape[0]
        for k, i in enumerate(memoryview(batch.indices)):
            result[i] = flat[k * size : (k + 1) * size], memoryview(batch.labels)[k]
    return result


class Options(unittest.TestCase):
    def test_arguments_that_make_no_sense_are_named(self):
        for words, given in (("crop is one of", dict(crop="left")), ("dtype is", dict(dtype="int8")),
                             ("layout is", dict(layout="HW")), ("raw is", dict(raw=(1, 2))),
                             ("mean and std", dict(mean=(1, 2), dtype="float32")),
                             ("not for bytes", dict(mean=0.5, std=0.5)),
                             ("0 by 3 pixels", dict(size=(0, 3))), ("ratio", dict(ratio=(2, 1))),
                             ("on_error is", dict(on_error="ignore")),
                             ("interpolation is one of .*'nearest'", dict(interpolation="area")),
                             ("no value of a mask", dict(interpolation="nearest", on_error="grey")),
                             ("resize is 100", dict(crop="centre", resize=100))):
            with self.assertRaisesRegex(ValueError, words):
                onepot.Images(**given)
        for wrong in ({"a": 5}, {"a": None}, {1: onepot.Images()}, 5):
            with self.assertRaises(TypeError):
                onepot.Loader(ARRAYS, 4, images=wrong)
        for wrong in ({}, {str(i): onepot.Images() for i in range(9)}):
            with self.assertRaisesRegex(ValueError, "images of 1 to 8 parts"):
                onepot.Loader(ARRAYS, 4, images=wrong)
            with self.assertRaisesRegex(ValueError, "images of 1 to 8 parts"):
                onepot.Dataset(ARRAYS, images=wrong)
        with self.assertRaisesRegex(TypeError, "is an onepot.Images"):
            onepot.Dataset(ARRAYS, images=(1, 2, 3))
        with self.assertRaisesRegex(ValueError, "arguments of Images"):
            onepot.Loader(ARRAYS, 4, images=onepot.Images(), dtype="float16")

    def test_options_are_values(self):
        one = onepot.Images((5, 6), crop=None, mean=MEAN, std=STD, dtype="float16", layout="NHWC")
        again = pickle.loads(pickle.dumps(one))
        self.assertEqual((one, one.shape, repr(one)), (again, (5, 6, 3), repr(again)))
        self.assertEqual(hash(one), hash(again))
        self.assertNotEqual(one, onepot.Images((5, 6)))


class Batches(unittest.TestCase):
    def test_a_batch_is_one_array_with_labels(self):
        images = onepot.Images(8)
        batch = next(iter(onepot.Loader(ARRAYS, 7, rank=0, world_size=1, images=images)))
        self.assertEqual(memoryview(batch.images).shape, (7, 3, 8, 8))
        self.assertIn("uint8 (7, 3, 8, 8)", repr(batch))
        for k, i in enumerate(memoryview(batch.indices)):
            self.assertEqual(memoryview(batch.labels)[k], i // 8)
        shape = tuple(batch.tensors().shape) if torch else memoryview(batch.tensors()).shape
        self.assertEqual(shape, (7, 3, 8, 8))

    def test_a_dataset_decodes_the_same(self):
        images = onepot.Images(8)
        whole = loaded(ARRAYS, images, seed=3, epoch=2)
        dataset = onepot.Dataset(ARRAYS, images=images, seed=3)
        dataset.set_epoch(2)
        for i in range(COUNT):
            image, label = dataset[i]
            self.assertEqual((bytes(image.numpy() if torch else image), label), whole[i])
        batch = dataset[[5, 1]]
        self.assertEqual(tuple(batch.images.shape), (2, 3, 8, 8))
        self.assertEqual(bytes(batch[1].numpy() if torch else batch[1]), whole[1][0])

    def test_without_an_epoch_no_two_epochs_are_the_same(self):
        dataset = onepot.Dataset(ARRAYS, images=onepot.Images(8))
        self.assertNotEqual(*[bytes(dataset[range(COUNT)].slab) for _ in range(2)])

    def test_errors_name_the_member(self):
        path = os.path.join(WORK, "bad.tar")
        with onepot.Writer(path, sync=False) as writer:
            writer.add("a/1.txt", b"no picture")
        images = onepot.Images(4)
        with self.assertRaisesRegex(OSError, "bad.tar: a/1.txt: it is neither JPEG nor PNG"):
            onepot.Dataset(path, images=images)[0]
        with self.assertRaisesRegex(OSError, "a/1.txt"):
            next(iter(onepot.Loader(path, 1, rank=0, world_size=1, images=images)))
        for how, valid, value in (("skip", False, 0), ("grey", True, 128)):
            loader = onepot.Loader(path, 1, rank=0, world_size=1,
                                   images=onepot.Images(4, on_error=how))
            batch = next(iter(loader))
            self.assertEqual(set(bytes(memoryview(batch.images).cast("B"))), {value})
            self.assertEqual(memoryview(batch.valid)[0], valid)
            self.assertGreaterEqual(loader.stats["skipped"], 1)  # those of later epochs, too

    @needs_devices
    def test_a_device_gets_floats(self):
        images = onepot.Images(8, mean=MEAN, std=STD, dtype="float32")
        host, device = loaded(ARRAYS, images), {}
        for batch in onepot.Loader(ARRAYS, 7, rank=0, world_size=1, images=images, device="host"):
            batch.wait()
            view = memoryview(batch.images)
            self.assertEqual((view.shape[1:], view.format), ((3, 8, 8), "f"))
            flat = bytes(view.cast("B"))
            size = len(flat) // len(batch)
            for k, i in enumerate(memoryview(batch.indices)):
                device[i] = flat[k * size : (k + 1) * size]
        self.assertEqual({i: image for i, (image, _) in host.items()}, device)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, interlaced, data):
    return (b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced))
            + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b""))


def interlaced(side):
    """All passes of a black picture."""
    return png(side, side, 1, b"".join(
        (b"\0" + bytes(3 * -(-(side - x) // dx))) * -(-(side - y) // dy)
        for x, y, dx, dy in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4),
                             (1, 0, 2, 2), (0, 1, 1, 2))))


class Pairs(unittest.TestCase):
    """Images and masks in two folders. Red is the mask's value, so that both show their crop."""

    SIDE = 31
    HOW = dict(size=(9, 11), flip=True)

    @classmethod
    def setUpClass(cls):
        path = os.path.join(WORK, "masks.tar")
        with onepot.Writer(path, sync=False) as writer:
            for i in range(COUNT):
                def value(x, y, c):
                    return (x * 7 + y * 3 + i) % 21 if c == 0 else x + y + c
                writer.add("images/%02d.v.npy" % i, npy(cls.SIDE + i, 29, value))
                writer.add("masks/%02d.v.png" % i, cls.palette(cls.SIDE + i, 29, value))
        cls.archive = onepot.Archive(path, parts={"image": "images", "mask": "masks"})
        cls.images = {"image": onepot.Images(**cls.HOW, interpolation="nearest", dtype="float32"),
                      "mask": onepot.Images(**cls.HOW, interpolation="nearest", layout="NHWC")}

    @staticmethod
    def palette(width, height, value):
        rows = b"".join(b"\0" + bytes(value(x, y, 0) for x in range(width)) for y in range(height))
        return (b"\x89PNG\r\n\x1a\n"
                + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0))
                + chunk(b"PLTE", bytes((i * 11) % 256 for i in range(3 * 21)))
                + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))

    def setUp(self):
        if not has("png"):
            self.skipTest("this onepot was built without PNG")

    def check(self, images, masks):
        """Of one sample: lists by channels, rows, columns, and by rows, columns, channels."""
        red = [[round(pixel * 255) for pixel in row] for row in images[0]]
        self.assertEqual([[pixel[0] for pixel in row] for row in masks], red)
        self.assertTrue(all(len(set(pixel)) == 1 for row in masks for pixel in row))
        self.assertLess(max(map(max, red)), 21)

    def test_an_image_and_its_mask_have_the_same_crop_and_values_stay(self):
        seen, crops = 0, set()
        for device in (None, "host"):
            if device and os.environ.get("WITHOUT_DEVICES"):
                continue
            loader = onepot.Loader(self.archive, 7, 0, 1, images=self.images, device=device)
            self.assertIn("float32 (3, 9, 11), uint8 (9, 11, 3)", repr(loader))
            for batch in loader:
                batch.wait()
                self.assertEqual(list(batch.images), ["image", "mask"])
                images, masks = batch.images["image"], batch.images["mask"]
                self.assertEqual((images.shape, images.dtype), ((len(batch), 3, 9, 11), "float32"))
                self.assertEqual((masks.shape, masks.dtype), ((len(batch), 9, 11, 3), "uint8"))
                for image, mask in zip(images.tolist(), masks.tolist()):
                    self.check(image, mask)
                    crops.add(str(mask))
                seen += len(batch)
                self.assertEqual(batch.data.shape, (len(batch), 24 * 64))
                self.assertEqual(bytes(batch.data.tolist()[0][1188:1216]), bytes(28))
        self.assertEqual(seen % COUNT, 0)
        self.assertGreater(len(crops), COUNT // 2)

    def test_a_dataset_and_its_batches_have_both(self):
        dataset = onepot.Dataset(self.archive, images=self.images, seed=0)
        dataset.set_epoch(0)
        batch = dataset[[3, 5]]
        self.assertIn("float32 (3, 9, 11), uint8 (9, 11, 3)", repr(batch))
        whole = {i: mask for batch in onepot.Loader(self.archive, 24, 0, 1, images=self.images)
                 for i, mask in zip(batch.indices.tolist(), batch.images["mask"].tolist())}
        for k, i in enumerate((3, 5)):
            one, label = dataset[i]
            for images in batch[k], one:
                self.check(images["image"].tolist(), images["mask"].tolist())
                self.assertEqual(images["mask"].tolist(), whole[i])
            self.assertEqual(batch.images["mask"].tolist()[k], whole[i])
            self.assertEqual(batch.tensors()["mask"].tolist()[k], whole[i])
        again = pickle.loads(pickle.dumps(batch))
        self.assertEqual(again.images["mask"].tolist(), batch.images["mask"].tolist())

    def test_a_part_that_is_not_there_is_named(self):
        loader = onepot.Loader(self.archive, 7, 0, 1, images={"depth": onepot.Images(8)})
        with self.assertRaisesRegex(OSError, "no part 'depth'"):
            next(loader)


class Memory(unittest.TestCase):
    """What pictures take is judged against memory=."""

    def needs_png(self):
        if not has("png"):
            self.skipTest("this onepot was built without PNG")

    @staticmethod
    def loader(name, files, zstd=0, memory=64 << 20, **options):
        path = os.path.join(WORK, name)
        with onepot.Writer(path, sync=False, zstd=zstd, overwrite=True) as writer:
            for i, data in enumerate(files):
                writer.add("%02d.png" % i, data)
        images = onepot.Images(8, crop=None, dtype="uint8", **options)
        return onepot.Loader(path, len(files), 0, 1, shuffle=False, images=images, memory=memory,
                             threads=2)

    def test_a_picture_that_takes_too_much_is_named_or_left_out(self):
        self.needs_png()
        good, bomb = interlaced(8), png(13377, 13377, 1, b"")
        with self.assertRaisesRegex(OSError, "1.png.*decoding it takes [0-9]+ MiB.*32 MiB"):
            next(iter(self.loader("bomb.tar", [good, bomb])))
        batch = next(iter(self.loader("bomb.tar", [good, bomb] * 20, on_error="skip")))
        self.assertEqual(list(batch.valid), [True, False] * 20)

    def test_large_pictures_are_decoded_one_at_a_time(self):
        self.needs_png()
        large = interlaced(2000)  # 16 MB, and 10 for the filter
        loader = self.loader("large.tar", [large] * 4, memory=80 << 20)  # 20 a thread
        self.assertEqual([list(batch.valid) for batch in loader], [[True] * 4])
        with self.assertRaisesRegex(OSError, "decoding it takes 2[0-9] MiB.*20 MiB"):
            next(iter(self.loader("large.tar", [large], memory=40 << 20)))

    def test_a_file_is_no_larger_than_what_may_be_read(self):
        self.needs_png()
        long = png(8, 8, 0, bytes(25 * 8)) + bytes(33 << 20)
        with self.assertRaisesRegex(OSError, "0.png.*its file has 34 MiB.*32 MiB"):
            next(iter(self.loader("long.tar.zst", [long], zstd=1, memory=1 << 20)))
        self.assertEqual(list(next(iter(self.loader("long.tar.zst", [long], zstd=1,
                                                    memory=256 << 20))).valid), [True])

    def test_a_longer_file_than_its_array_is_not_read(self):
        path = os.path.join(WORK, "arrays.tar.zst")
        with onepot.Writer(path, sync=False, zstd=1) as writer:
            writer.add("0.npy", npy(2, 2, lambda x, y, c: 7))
            writer.add("1.npy", npy(2, 2, lambda x, y, c: 7) + bytes(1 << 26))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        batch = next(iter(onepot.Loader(path, 2, 0, 1, shuffle=False, npy=True, skip_errors=True)))
        self.assertEqual(list(batch.valid), [True, False])
        self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 32 << 10)


@unittest.skipIf(Image is None, "PIL is not installed")
class BesidePil(unittest.TestCase):
    def check(self, name, file, most=1.0):
        path = os.path.join(WORK, "one.tar")
        with onepot.Writer(path, sync=False, overwrite=True) as writer:
            writer.add(name, file)
        pil = Image.open(io.BytesIO(file)).convert("RGB")
        images = onepot.Images((pil.height, pil.width), crop=None, exact=True, layout="NHWC")
        ours = np.asarray(onepot.Dataset(path, images=images)[0][0])
        difference = np.abs(ours.astype(int) - np.asarray(pil).astype(int))
        self.assertLess(difference.mean(), most, name)

    def test_jpeg_of_every_kind(self):
        if not has("jpeg"):
            self.skipTest("this onepot was built without JPEG")
        image = picture(97, 71, 1)
        self.check("rgb", saved(image, "JPEG", quality=90), 0.01)
        self.check("444", saved(image, "JPEG", quality=90, subsampling=0), 0.01)
        self.check("422", saved(image, "JPEG", quality=90, subsampling=1), 0.01)
        self.check("progressive", saved(image, "JPEG", progressive=True), 0.01)
        self.check("grey", saved(image.convert("L"), "JPEG"), 0.01)
        self.check("cmyk", saved(image.convert("CMYK"), "JPEG", quality=95), 0.6)
        turned = Image.Exif()
        turned[0x0112] = 6
        self.check("exif", saved(image, "JPEG", exif=turned), 0.01)  # PIL does not turn it

    def test_png_of_every_kind(self):
        if not has("png"):
            self.skipTest("this onepot was built without PNG")
        image = picture(97, 71, 2)
        for mode in "1", "L", "P", "RGB", "RGBA", "LA":
            self.check(mode, saved(image.convert(mode), "PNG"), 1e-9)
        self.check("clear", saved(image.convert("P"), "PNG", transparency=3), 1e-9)

    def test_nearest_is_as_pil_has_it(self):
        if not has("png"):
            self.skipTest("this onepot was built without PNG")
        values = np.random.default_rng(5).integers(0, 16, (29, 41), dtype=np.uint8)
        mask = Image.fromarray(values, "P")  # sides are odd, so that no two pixels are equally near
        mask.putpalette([i * 7 % 256 for i in range(768)])
        for file in saved(mask, "PNG"), saved(mask, "PNG", bits=4), saved(Image.fromarray(values), "PNG"):
            path = os.path.join(WORK, "one.tar")
            with onepot.Writer(path, sync=False, overwrite=True) as writer:
                writer.add("mask.png", file)
            for size in (29, 41), (10, 12), (70, 100):
                images = onepot.Images(size, crop=None, interpolation="nearest", layout="NHWC")
                ours = np.asarray(onepot.Dataset(path, images=images)[0][0])
                want = np.asarray(mask.resize(size[::-1], Image.NEAREST))
                self.assertTrue((ours == want[..., None]).all(), size)

    def test_what_pil_refuses_is_refused(self):
        if not has("jpeg"):
            self.skipTest("this onepot was built without JPEG")
        file = saved(picture(97, 71, 3), "JPEG")
        half = file[: len(file) // 2]
        with self.assertRaisesRegex(OSError, "truncated"):
            Image.open(io.BytesIO(half)).convert("RGB")
        path = os.path.join(WORK, "short.tar")
        with onepot.Writer(path, sync=False) as writer:
            writer.add("short.jpg", half)
        with self.assertRaisesRegex(OSError, "short.tar: short.jpg: the JPEG file is cut short"):
            onepot.Dataset(path, images=onepot.Images(crop=None))[0]


@unittest.skipIf(T is None or torch is None, "torchvision is not installed")
class BesideTorchvision(unittest.TestCase):
    def setUp(self):
        if not os.path.exists(JPEGS):
            self.skipTest("this onepot was built without JPEG")

    def difference(self, transform, images, count=6):
        archive, total = onepot.Archive(JPEGS), 0.0
        dataset = onepot.Dataset(archive, images=images)
        for i in range(0, COUNT, COUNT // count):
            theirs = transform(Image.open(io.BytesIO(archive[i].read())).convert("RGB"))
            total = max(total, (dataset[i][0].float() - theirs.float()).abs().mean().item())
        return total

    def test_evaluation_has_the_same_result(self):
        bicubic = T.InterpolationMode.BICUBIC
        for size, resize in ((224, 256), (64, 73), (100, 260)):
            theirs = T.Compose([T.Resize(resize), T.CenterCrop(size), T.PILToTensor()])
            images = dict(size=size, resize=resize, crop="centre")
            self.assertLess(self.difference(theirs, onepot.Images(exact=True, **images)), 1)
            self.assertLess(self.difference(theirs, onepot.Images(**images)), 2)
            theirs.transforms[0].interpolation = bicubic
            images["interpolation"] = "bicubic"
            self.assertLess(self.difference(theirs, onepot.Images(exact=True, **images)), 1)
        theirs = T.Compose([T.Resize((50, 90)), T.PILToTensor()])
        self.assertLess(self.difference(theirs, onepot.Images((50, 90), crop=None, exact=True)), 1)

    def test_imagefolder_takes_torchvisions_transforms(self):
        theirs = T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize(MEAN, STD)])
        slow, fast = onepot.ImageFolder(JPEGS, theirs), onepot.ImageFolder(JPEGS, theirs, fast=True)
        self.assertEqual(len(slow), len(fast))
        for i in 0, 9, 23:
            (a, label), (b, same) = slow[i], fast[i]
            self.assertEqual((a.shape, a.dtype, label), (b.shape, b.dtype, same))
            self.assertLess((a - b).abs().mean().item(), 2 / 255 / 0.224)
        train = T.Compose([T.RandomResizedCrop(96, scale=(0.5, 1)), T.RandomHorizontalFlip(),
                           T.PILToTensor()])
        self.assertEqual(onepot.ImageFolder(JPEGS, train, fast=True).images,
                         onepot.Images(96, scale=(0.5, 1)))
        for bad, words in ((T.ColorJitter(), "ColorJitter is not known"), (T.ToTensor(), "one size"),
                           (T.Resize(256), "one size"), (T.CenterCrop(224), "follows Resize"),
                           (T.Resize((8, 8), T.InterpolationMode.NEAREST), "'nearest' is for masks")):
            with self.assertRaisesRegex(ValueError, words):
                onepot.ImageFolder(JPEGS, bad, fast=True)

    def test_the_dataloader_gets_the_same_by_workers(self):
        folder = onepot.ImageFolder(JPEGS, target_transform=None, fast=onepot.Images(32), seed=4)
        folder.set_epoch(6)
        want = torch.stack([folder[i][0] for i in range(COUNT)])
        for workers in 0, 2:
            pairs = list(DataLoader(folder, batch_size=5, num_workers=workers))
            self.assertTrue(torch.equal(torch.cat([images for images, _ in pairs]), want))
            self.assertEqual(torch.cat([labels for _, labels in pairs]).tolist(), folder.targets)
            batches = list(DataLoader(
                folder, batch_size=None, num_workers=workers, collate_fn=onepot.collate,
                sampler=BatchSampler(SequentialSampler(folder), 5, False)))
            self.assertTrue(torch.equal(torch.cat([b.tensors() for b in batches]), want))
            self.assertEqual(torch.cat([b.labels for b in batches]).tolist(), folder.targets)

    def test_a_changed_list_of_samples_counts(self):
        folder = onepot.ImageFolder(JPEGS, fast=onepot.Images(8, crop="centre"))
        first = folder[0][0]
        folder.samples = [(path, 7) for path, _ in reversed(folder.samples)]
        self.assertTrue(torch.equal(folder[COUNT - 1][0], first))
        self.assertEqual(folder[[3, 4]].labels.tolist(), [7, 7])


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    unittest.main()

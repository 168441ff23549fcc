#!/usr/bin/env python3
"""Photographs to batches of 224 x 224: one contender, in a process of its own.

Usage: images.py make TREE COUNT                   JPEG files of 500 x 375, about 100 KB each
       images.py NAME WORKERS TREE ARCHIVE EPOCHS  prints JSON: images, seconds, cpu

Each makes uint8 batches of random resized crops, but for spdl, which scales whole pictures.
"""
import json
import os
import resource
import sys
import time

BATCH, SIZE = 64, 224


def make(tree, count):
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    for i in range(count):
        folder = os.path.join(tree, "c%d" % (i % 10))
        os.makedirs(folder, exist_ok=True)
        pixels = np.zeros((375, 500, 3))
        for step, weight in ((32, 0.6), (6, 0.4)):
            small = rng.integers(0, 256, (375 // step, 500 // step, 3), dtype=np.uint8)
            large = Image.fromarray(small).resize((500, 375), Image.BICUBIC)
            pixels += weight * np.asarray(large)
        pixels += rng.normal(0, 15, pixels.shape)
        image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
        image.save(os.path.join(folder, "%05d.jpg" % i), quality=91)


def onepot_loader(workers, tree, archive):
    import onepot

    loader = onepot.Loader(archive, BATCH, rank=0, world_size=1, threads=workers, prefetch=2,
                           images=onepot.Images(SIZE))
    return lambda: sum(len(batch) for batch in loader)


def data_loader(dataset, workers, **options):
    from torch.utils.data import DataLoader

    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, **options)
    return lambda: sum(len(labels) for _, labels in loader)


def torchvision_folder(workers, tree, archive):
    import torch
    import torchvision
    from torchvision import transforms as T

    torch.set_num_threads(1)
    transform = T.Compose([T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.PILToTensor()])
    return data_loader(torchvision.datasets.ImageFolder(tree, transform), workers)


def onepot_folder(workers, tree, archive):
    import torch

    import onepot

    torch.set_num_threads(1)
    return data_loader(onepot.ImageFolder(archive, fast=onepot.Images(SIZE)), workers)


def spdl_threads(workers, tree, archive):
    import random
    from concurrent.futures import ThreadPoolExecutor

    import spdl.io

    paths = [os.path.join(f, name) for f, _, names in os.walk(tree) for name in names]
    scale = spdl.io.get_video_filter_desc(scale_width=SIZE, scale_height=SIZE, pix_fmt="rgb24")

    def frames(path):
        return spdl.io.decode_packets(spdl.io.demux_image(path), filter_desc=scale)

    def epoch():
        random.shuffle(paths)
        count = 0
        with ThreadPoolExecutor(workers) as pool:
            for first in range(0, len(paths), BATCH):
                batch = spdl.io.convert_frames(list(pool.map(frames, paths[first:first + BATCH])))
                count += spdl.io.to_numpy(batch).shape[0]
        return count
    return epoch


def dali_pipeline(workers, tree, archive):
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=BATCH, num_threads=workers, device_id=None)
    def pipeline():
        files, labels = fn.readers.file(file_root=tree, random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(files, device="cpu", output_type=types.RGB,
                                               random_area=[0.08, 1.0])
        images = fn.resize(images, size=[SIZE, SIZE], interp_type=types.INTERP_TRIANGULAR)
        mirror = fn.random.coin_flip()
        return fn.crop_mirror_normalize(images, mirror=mirror, dtype=types.UINT8), labels

    made = pipeline()
    made.build()
    count = made.epoch_size("files")

    def epoch():
        done = 0
        while done < count:
            done += made.run()[0].as_array().shape[0]
        return done
    return epoch


def ffcv_loader(workers, tree, archive):
    import torchvision
    from ffcv.fields import IntField, RGBImageField
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
    from ffcv.writer import DatasetWriter

    path = archive + ".beton"
    if not os.path.exists(path):  # it encodes them again
        fields = {"image": RGBImageField(write_mode="jpg", jpeg_quality=91), "label": IntField()}
        DatasetWriter(path + ".new", fields, num_workers=2).from_indexed_dataset(
            torchvision.datasets.ImageFolder(tree))
        os.rename(path + ".new", path)
    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip(), ToTensor(),
             ToTorchImage()]
    loader = Loader(path, BATCH, num_workers=workers, order=OrderOption.RANDOM,
                    pipelines={"image": image, "label": [IntDecoder(), ToTensor()]})
    for _ in loader:  # compiles the pipeline
        pass
    return lambda: sum(len(labels) for _, labels in loader)


CONTENDERS = {"onepot.Loader": onepot_loader, "onepot.ImageFolder": onepot_folder,
              "torchvision": torchvision_folder, "DALI": dali_pipeline, "spdl": spdl_threads,
              "FFCV": ffcv_loader}


def cpu():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in both)


def main():
    if sys.argv[1] == "make":
        return make(sys.argv[2], int(sys.argv[3]))
    name, workers, tree, archive, epochs = sys.argv[1:]
    epoch = CONTENDERS[name](int(workers), tree, archive)
    start, used = time.monotonic(), cpu()
    images = sum(epoch() for _ in range(int(epochs)))
    print(json.dumps({"images": images, "seconds": time.monotonic() - start, "cpu": cpu() - used}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The examples of the loader, as loader.c and segmentation.py, do what they say.

Environment: ONEPOT, EXAMPLE_LOADER, EXAMPLE_GPU_LOADER (programs), EXAMPLES (the folder), and MODULE, where the
Python module is, or nothing.
"""
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tempfile


def run(*command, **environment):
    """What a command prints, by lines."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                          env={**os.environ, **environment})
    return done.stdout.decode().splitlines()


def sums(line):
    samples, a, b = re.match(r"epoch \d+: (\d+) samples, sums (\w+) (\w+)$", line).groups()
    return int(samples), int(a, 16), int(b, 16)


def main():
    loader, examples = os.environ["EXAMPLE_LOADER"], os.environ["EXAMPLES"]
    with tempfile.TemporaryDirectory(prefix="onepot-examples.") as work:
        os.environ["XDG_CACHE_HOME"] = os.path.join(work, "cache")
        tree, tar = os.path.join(work, "tree"), os.path.join(work, "a.tar")
        for i in range(400):
            folder = os.path.join(tree, "c%d" % (i % 3))
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, str(i)), "w") as f:
                f.write("sample %d" % i * (i % 7))
        run(os.environ["ONEPOT"], "pack", "-o", tar, tree)

        alone = dict(RANK="0", WORLD_SIZE="1")
        state = os.path.join(work, "state")
        first = run(loader, tar, "1", state, **alone)
        rest = run(loader, tar, "3", state, **alone)  # goes on behind the first epoch
        assert [line.split(":")[0] for line in first + rest if ":" in line] == \
            ["epoch 0", "epoch 1", "epoch 2"], (first, rest)
        whole = sums(first[0])
        assert whole[0] == 400 and sums(rest[0]) == sums(rest[1]) == whole, (first, rest)

        ranks = [sums(run(loader, tar, "1", state + str(rank), RANK=str(rank),
                          WORLD_SIZE="3")[0]) for rank in range(3)]
        added = tuple(sum(column) % 2**64 for column in zip(*ranks))
        assert added == whole, (ranks, whole)

        squares = os.path.join(work, "squares.tar")
        run(os.environ["EXAMPLE_WRITER"], squares, "100")
        listed = run(os.environ["ONEPOT"], "cat", squares, "ends-on-9/00000099.txt")
        assert listed == ["9801"], listed

        if os.environ.get("WITHOUT_DEVICES"):
            print("gpu_loader.c and torch_gpu.py left out: built with -Dgpu=disabled")
        else:
            lines = run(os.environ["EXAMPLE_GPU_LOADER"], tar, "host", "2", **alone)
            assert [line.split(":")[0] for line in lines] == \
                ["epoch 0", "epoch 1", "800 samples"], lines

        if not os.environ.get("MODULE"):
            print("resume.py and others left out: there is no Python module in this build")
            return
        command = [sys.executable, os.path.join(examples, "resume.py"), tar]
        alone["PYTHONPATH"] = os.environ["MODULE"]
        first = run(*command, "1", state + ".json", **alone)
        rest = run(*command, "2", state + ".json", **alone)
        assert [line.split()[:2] for line in first + rest] == [["epoch", "0"], ["epoch", "1"]]
        for line in first + rest:
            had, whole = re.search(r"had (\d+) samples of (\d+)$", line).groups()
            assert had == whole, line
        more_python(work, tar, os.path.dirname(command[1]), alone)
        if not os.environ.get("WITHOUT_DEVICES"):
            with_device(work, os.path.dirname(command[1]), alone)
        with_pictures(work, os.path.dirname(command[1]), alone)
        with_masks(work, os.path.dirname(command[1]), alone)
        with_torch(work, tar, os.path.dirname(command[1]), alone)


def more_python(work, tar, examples, environment):
    lines = run(sys.executable, os.path.join(examples, "kfold.py"), tar, "4", **environment)
    numbers = [re.search(r"learns from (\d+) tests (\d+) of 400$", line).groups()
               for line in lines]
    assert [int(tested) for _, tested in numbers] == [100] * 4, lines
    assert all(int(a) + int(b) == 400 for a, b in numbers), lines
    new = os.path.join(work, "features.tar")
    run(sys.executable, os.path.join(examples, "preprocess.py"), tar, new, **environment)
    assert len(run(os.environ["ONEPOT"], "cat", new, "c0/0.crc")) <= 1


def with_device(work, examples, environment):
    if importlib.util.find_spec("torch") is None:
        print("torch_gpu.py left out: torch is not installed")
        return
    pixels, tar = os.path.join(work, "pixels"), os.path.join(work, "pixels.tar")
    for i in range(100):
        folder = os.path.join(pixels, "c%d" % (i % 2))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, str(i)), "wb") as f:
            f.write(bytes([i % 2 * 200 + i % 7]) * 3072)
    run(os.environ["ONEPOT"], "pack", "-o", tar, pixels)
    lines = run(sys.executable, os.path.join(examples, "torch_gpu.py"), tar, "3", "host",
                **dict(environment, OMP_NUM_THREADS="1"))
    losses = [float(re.search(r"loss ([0-9.]+)", line).group(1)) for line in lines]
    assert len(losses) == 3 and losses[2] < losses[0], lines


def npy(shape, pixels):
    header = ("{'descr': '|u1', 'fortran_order': False, 'shape': %s, }" % (shape,)).ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00\x76\x00" + header.encode() + pixels


def with_pictures(work, examples, environment):
    """Two classes, one red and one blue; .npy arrays, as not every build decodes JPEG."""
    if importlib.util.find_spec("torch") is None:
        print("imagenet_train.py left out: torch is not installed")
        return
    tree, tar = os.path.join(work, "pictures"), os.path.join(work, "pictures.tar")
    for i in range(80):
        folder = os.path.join(tree, "c%d" % (i % 2))
        os.makedirs(folder, exist_ok=True)
        pixel = bytes([200 - i, i, 90]) if i % 2 else bytes([90, i, 200 - i])
        with open(os.path.join(folder, "%d.npy" % i), "wb") as f:
            f.write(npy((40, 50, 3), pixel * 2000))
    run(os.environ["ONEPOT"], "pack", "-o", tar, tree)
    # No rank: a process of torch with one would look for the others.
    environment = {k: v for k, v in environment.items() if k not in ("RANK", "WORLD_SIZE")}
    lines = run(sys.executable, os.path.join(examples, "imagenet_train.py"), tar, tar, "4", "32",
                "16", **dict(environment, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))
    right = [float(re.search(r"([0-9.]+) of this", line).group(1)) for line in lines]
    assert len(right) == 4 and right[3] > 0.9, lines
    assert len(open(os.path.join(examples, "imagenet_train.py")).readlines()) < 60


def with_masks(work, examples, environment):
    """Bright columns of class 1 in dark ones of class 0, and an edge of no class."""
    if importlib.util.find_spec("torch") is None:
        print("segmentation.py left out: torch is not installed")
        return
    tree, tar = os.path.join(work, "pairs"), os.path.join(work, "pairs.tar")
    for i in range(24):
        mask = [255 if x < 4 else int(x % 20 > i % 10) for x in range(60)]
        for folder, pixels in (("images", bytes(c for v in mask for c in (220 * (v == 1), i, 90))),
                               ("masks", bytes(mask))):
            os.makedirs(os.path.join(tree, folder), exist_ok=True)
            shape = (40, 60, 3) if folder == "images" else (40, 60)
            with open(os.path.join(tree, folder, "%d.npy" % i), "wb") as f:
                f.write(npy(shape, pixels * 40))
    run(os.environ["ONEPOT"], "pack", "-o", tar, tree)
    environment = {k: v for k, v in environment.items() if k not in ("RANK", "WORLD_SIZE")}
    lines = run(sys.executable, os.path.join(examples, "segmentation.py"), tar, "2", "6", "32", "8",
                **dict(environment, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""))
    right = [float(re.search(r"([0-9.]+) of the pixels of 24 pairs", line).group(1)) for line in lines]
    assert len(right) == 6 and right[5] > 0.95, lines


def two_ranks(command, environment):
    """By torchrun; that of torch 1 does not start with Python 3.11, so that its part is played."""
    major, = run(sys.executable, "-c", "import torch; print(torch.__version__.split('.')[0])")
    if int(major) >= 2:
        return run(sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc_per_node", "2", *command, **environment)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    environment = {**os.environ, **environment, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port}
    ranks = [subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE,
                              env={**environment, "RANK": str(rank)}) for rank in range(2)]
    lines = [rank.communicate(timeout=400)[0].decode().splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], lines
    return lines[0]


def with_torch(work, tar, examples, environment):
    if importlib.util.find_spec("torch") is None:
        print("torch_ddp.py left out: torch is not installed")
        return
    has_gloo = run(sys.executable, "-c", "import torch.distributed as d; print(d.is_available()"
                   " and getattr(d, 'is_gloo_available', lambda: True)())")
    if has_gloo != ["True"]:
        print("torch_ddp.py left out: this torch has no gloo")
        return
    environment = {k: v for k, v in environment.items() if k not in ("RANK", "WORLD_SIZE")}
    lines = two_ranks([os.path.join(examples, "torch_ddp.py"), tar, "2"],
                      dict(environment, OMP_NUM_THREADS="1"))
    for epoch in range(2):
        assert any("epoch %d had 400 samples of 400 by 2 ranks" % epoch in line
                   for line in lines), lines
    if importlib.util.find_spec("torchvision") is None:
        print("imagefolder.py left out: torchvision is not installed")
        return
    from PIL import Image
    for i in range(12):
        folder = os.path.join(work, "images", "class%d" % (i % 2))
        os.makedirs(folder, exist_ok=True)
        Image.new("RGB", (40 + i, 30), (i, 0, 0)).save(os.path.join(folder, "%d.png" % i))
    images = os.path.join(work, "images.tar")
    run(os.environ["ONEPOT"], "pack", "-o", images, os.path.join(work, "images"))
    lines = run(sys.executable, os.path.join(examples, "imagefolder.py"), images, **environment)
    assert lines == ["classes ['class0', 'class1'] images 24"], lines


if __name__ == "__main__":
    main()

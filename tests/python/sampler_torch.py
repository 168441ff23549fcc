#!/usr/bin/env python3
"""`onepot order` beside torch.utils.data.DistributedSampler, for a grid of arguments.

Exit status 77 when torch is not installed.
"""
import itertools
import os
import subprocess
import sys

try:
    import torch
    from torch.utils.data.distributed import DistributedSampler
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)

ONEPOT = os.environ["ONEPOT"]


def order(*args):
    """What `onepot order` prints, as a list."""
    out = subprocess.run([ONEPOT, "order", *map(str, args)], check=True, stdout=subprocess.PIPE)
    return [int(line) for line in out.stdout.split()]


def torchs(n, world, rank, seed, epoch, shuffle, drop_last):
    sampler = DistributedSampler(range(n), num_replicas=world, rank=rank, shuffle=shuffle,
                                 seed=seed, drop_last=drop_last)
    sampler.set_epoch(epoch)
    return list(sampler)


def compare(n, world, rank, seed, epoch, shuffle, drop_last):
    flags = ([] if shuffle else ["--no-shuffle"]) + (["--drop-last"] if drop_last else [])
    ours = order("--size", n, "--world", world, "--rank", rank, "--seed", seed,
                 "--epoch", epoch, *flags)
    if ours != torchs(n, world, rank, seed, epoch, shuffle, drop_last):
        sys.exit(f"not torch's order: n={n} world={world} rank={rank} seed={seed} "
                 f"epoch={epoch} shuffle={shuffle} drop_last={drop_last}")


def main():
    cases = 0
    for n, world in itertools.product((1, 2, 5, 10, 625, 1000), (1, 2, 3, 7, 64)):
        for shuffle, drop_last in itertools.product((True, False), repeat=2):
            for rank in {0, world // 2, world - 1}:
                compare(n, world, rank, cases % 5, cases % 3, shuffle, drop_last)
                cases += 1
    for n, world, rank, seed, epoch in ((1_000_003, 8, 5, 0, 0), (1_000_003, 1, 0, 7, 3),
                                        (65_536, 3, 2, 2**31, 9), (70_001, 2, 1, 2**32 - 1, 1),
                                        (70_001, 2, 0, 2**40 + 17, 1)):
        compare(n, world, rank, seed, epoch, True, False)
        cases += 1
    generator = torch.Generator()
    generator.manual_seed(11)
    if order("--size", 100_000, "--seed", 11) != \
            torch.randperm(100_000, generator=generator).tolist():
        sys.exit("not torch.randperm's order")
    print(f"{cases + 1} orders are those of torch {torch.__version__}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
r"""Data-parallel training by torch on an archive, each rank its share of every epoch.

    torchrun --nproc_per_node 2 torch_ddp.py train.tar [EPOCHS]
    srun --ntasks-per-node=1 torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 4 \
        --rdzv_backend c10d --rdzv_endpoint "$SLURMD_NODENAME:29500" torch_ddp.py train.tar

With stage="job" the nodes copy the archive together while they train, so that storage gives it
once. (onepot.stage(path) does that before anything is read; one node copies it by itself.)

The loader finds rank and world size by itself, gives every rank equally many steps, and marks
padding in batch.valid, so that it does not count. The model is a toy: it learns the class of a
file from its first 64 bytes, on the CPU.
"""
import os
import sys

import onepot
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BYTES = 64


def inputs(batch):
    """float32 [samples, BYTES]; labels and mask: [samples]. The tables need no copy."""
    heads = torch.zeros(len(batch), BYTES)
    for row, sample in zip(heads, batch.tensors()):
        if len(sample):
            bytes_ = torch.from_dlpack(sample)[:BYTES]
            row[: len(bytes_)] = bytes_
    return heads / 255, torch.from_dlpack(batch.labels), torch.frombuffer(
        batch.valid, dtype=torch.bool)


def main():
    path, epochs = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    archive = onepot.Archive(path, stage="job")
    loader = onepot.Loader(archive, batch_size=32, threads=1)
    model = DistributedDataParallel(torch.nn.Linear(BYTES, len(archive.classes)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        loss = torch.zeros(())
        for batch in loader:
            heads, labels, valid = inputs(batch)
            losses = torch.nn.functional.cross_entropy(model(heads), labels, reduction="none")
            loss = (losses * valid).sum() / valid.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        # Did each sample come once? The number of samples, over all ranks:
        had = torch.tensor(loader.delivered[0])
        dist.all_reduce(had)
        if dist.get_rank() == 0:
            print("epoch", epoch, "had", int(had), "samples of", len(archive), "by",
                  dist.get_world_size(), "ranks, loss %.3f" % float(loss.detach()), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit("start it by torchrun: torchrun --nproc_per_node 2 torch_ddp.py train.tar")
    main()

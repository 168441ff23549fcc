#!/usr/bin/env python3
"""Training with batches that are on the GPU before the step needs them.

Usage: torch_gpu.py ARCHIVE EPOCHS [DEVICE]

The archive holds images of 32 by 32 pixels and 3 bytes each, by rows (raw, no files of a
format), in one directory for each class. DEVICE is "cuda" without an argument: the GPU of this
rank, whichever launcher started it (torchrun, srun, mpirun). "host" runs the same without one.

    torchrun --nproc-per-node=4 torch_gpu.py train.tar 10
"""
import sys

import torch

import onepot


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    archive, epochs = onepot.Archive(sys.argv[1]), int(sys.argv[2])
    device = sys.argv[3] if len(sys.argv) == 4 else "cuda"
    loader = onepot.Loader(archive, batch_size=64, device=device, images=(32, 32, 3),
                           mean=127.5, scale=1 / 127.5)
    model = None
    for epoch in range(epochs):
        total = 0.0
        for batch in loader:
            # Views of the loader's memory, on the device: no copy, and nothing waits. They
            # may be dropped as soon as the step is queued.
            images = torch.from_dlpack(batch.images)
            labels = torch.from_dlpack(batch.labels)
            if model is None:
                torch.manual_seed(0)
                model = torch.nn.Sequential(torch.nn.Flatten(),
                                            torch.nn.Linear(3072, len(archive.classes)))
                model.to(images.device)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        was = loader.transfer()
        print("epoch %d: loss %.4f, waited %.3f s, %.2f of the link's peak"
              % (epoch, total / len(loader), was["wait_seconds"], was["fraction_of_peak"]))


if __name__ == "__main__":
    main()

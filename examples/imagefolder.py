#!/usr/bin/env python3
"""A training script with torchvision's ImageFolder, and the three lines that change.

    python imagefolder.py train.tar

What was there before stands behind '# was:'. All the rest is as it was: transforms, the
DataLoader and its workers, the order of classes and samples.
"""
import sys

import onepot  # was: from torchvision.datasets import ImageFolder
import torch
from torch.utils.data import DataLoader
from torchvision import transforms


def main():
    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    data = onepot.ImageFolder(sys.argv[1],  # was: ImageFolder("dataset/train",
                              transform=transform)
    sampler = onepot.DistributedSampler(data, 1, 0)  # was: torch.utils.data.DistributedSampler
    loader = DataLoader(data, batch_size=16, sampler=sampler, num_workers=2)
    images = torch.zeros(())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch, labels in loader:
            images = images + len(batch)
    print("classes", data.classes, "images", int(images))


if __name__ == "__main__":
    main()

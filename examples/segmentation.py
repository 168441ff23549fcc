#!/usr/bin/env python3
"""Training on images and their masks, which lie in two folders: images/a/1.jpg and masks/a/1.png.

Usage: segmentation.py TRAIN CLASSES EPOCHS [SIZE [BATCH]]

TRAIN is an archive. A mask's values are classes: grey, or a palette's numbers; 255 is no class. An image
and its mask get the same random crop. Trains on the CPU, or on a GPU if there is one.

    python segmentation.py voc.tar 21 30
"""
import sys

import torch
from torch import nn

import onepot


def small_net(classes):  # torchvision.models.segmentation's in earnest
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, classes, 1))


def main():
    path, classes, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    size, batch = (int(x) for x in (sys.argv[4:] + ["224", "16"][len(sys.argv) - 4 :]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    archive = onepot.Archive(path, parts={"image": "images/", "mask": "masks/"})
    loader = onepot.Loader(archive, batch, device=device, images={
        "image": onepot.Images(size, scale=(0.5, 1), dtype="float32", mean=0.5, std=0.5),
        "mask": onepot.Images(size, scale=(0.5, 1), interpolation="nearest")})
    torch.manual_seed(0)
    model = small_net(classes).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        right = count = 0
        for samples in loader:
            parts = samples.tensors()
            mask = parts["mask"][:, 0].long()  # all three channels have the class
            found = model(parts["image"])
            loss = nn.functional.cross_entropy(found, mask, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            known = mask != 255
            right += (found.argmax(1) == mask)[known].sum().item()
            count += known.sum().item()
        print("epoch %d: loss %.3f, %.3f of the pixels of %d pairs are right"
              % (epoch, loss.item(), right / count, len(archive)))


if __name__ == "__main__":
    main()

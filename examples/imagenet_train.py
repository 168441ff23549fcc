#!/usr/bin/env python3
"""Training on photographs: JPEG files in one directory for each class, decoded by the loader.

Usage: imagenet_train.py TRAIN VALIDATION EPOCHS [SIZE [BATCH]]

TRAIN and VALIDATION are archives. Each rank has its own GPU, or the CPU. SIZE: pixels a side (224).

    torchrun --nproc-per-node=4 imagenet_train.py train.tar val.tar 90
"""
import os
import sys

import torch
from torch import nn

import onepot


def small_net(classes):  # torchvision.models.resnet50(num_classes=classes) in earnest
    return nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, classes))


def main():
    train, validation = onepot.Archive(sys.argv[1]), onepot.Archive(sys.argv[2])
    epochs, size, batch = (int(x) for x in (sys.argv[3:] + ["224", "64"][len(sys.argv) - 4 :]))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":  # which "cuda" means from here on
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    values = dict(size=size, dtype="float32", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    loader = onepot.Loader(train, batch, device=device, images=onepot.Images(**values))
    test = onepot.Loader(validation, batch, device=device, shuffle=False,
                         images=onepot.Images(crop="centre", **values))
    torch.manual_seed(0)
    model = small_net(len(train.classes)).to(device)
    if "RANK" in os.environ:
        torch.distributed.init_process_group()
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        model.train()
        for samples in loader:
            images, labels = samples.tensors(), torch.from_dlpack(samples.labels)
            loss = nn.functional.cross_entropy(model(images), labels)
            model.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            right = count = 0
            for samples in test:
                found, count = model(samples.tensors()).argmax(1), count + len(samples)
                right += (found == torch.from_dlpack(samples.labels)).sum().item()
        print("epoch %d: loss %.3f, %.3f of this rank's validation samples are right"
              % (epoch, loss.item(), right / count))


if __name__ == "__main__":
    main()

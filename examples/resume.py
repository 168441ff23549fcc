#!/usr/bin/env python3
"""A training loop that can be killed at any time and goes on exactly where it was.

    python resume.py train.tar 3 state.json

Ranks come from the launcher (torchrun, mpirun, srun); each rank has a state of its own, and
they may be used by another number of ranks, as long as batch size times ranks is the same.
"""
import json
import os
import sys

import onepot


def main():
    path, epochs, state_path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    archive = onepot.Archive(path)
    train = archive.split(0, 0.9)  # by names: files that are added later move no other
    loader = onepot.Loader(train, batch_size=32)
    if os.path.exists(state_path):
        with open(state_path) as f:
            loader.load_state_dict(json.load(f))

    steps = 0
    while loader.epoch < epochs:
        epoch = loader.epoch
        for batch in loader:
            # numpy.asarray(batch.labels), torch.from_dlpack(batch.labels): no copy
            for sample, label in zip(batch.tensors(), memoryview(batch.labels)):
                pass  # decode sample (a buffer), learn
            steps += 1
            if steps % 100 == 0:
                save(loader, state_path)
        samples, *sums = loader.delivered
        print("epoch", epoch, "had", samples, "samples of", len(train))
    save(loader, state_path)


def save(loader, path):
    """Under another name first: a kill leaves the old state or the new one."""
    with open(path + ".new", "w") as f:
        json.dump(loader.state_dict(), f)
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()

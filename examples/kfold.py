#!/usr/bin/env python3
"""Cross-validation on an archive: a fold is held out, the others are for training.

    python kfold.py train.tar [FOLDS]

Folds have equal sizes, and equally many samples of each class. Which fold a sample is in depends on names
alone, so that nothing has to be written down.
"""
import sys

import onepot


def main():
    path, folds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 5
    archive = onepot.Archive(path)
    for fold in range(folds):
        train = archive.fold(folds, fold, stratify=True)
        held_out = archive.fold(folds, fold, held_out=True, stratify=True)
        learned = sum(len(batch) for batch in onepot.Loader(train, 32, rank=0, world_size=1))
        tested = 0
        for batch in onepot.Loader(held_out, 32, rank=0, world_size=1, shuffle=False):
            tested += sum(memoryview(batch.valid))  # padding does not count
        print("fold", fold, "learns from", learned, "tests", tested, "of", len(archive))


if __name__ == "__main__":
    main()

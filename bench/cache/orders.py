"""The orders in which training reads, and who of several ranks' workers reads what.

A plan is a list of (worker, batch, index): worker `rank * workers + n` of all, its batches
counted from 0, the index that of a sample of the dataset. The dataset is that of torchvision's
ImageFolder: classes sorted, files sorted within.
"""

import random
from itertools import islice

BATCH = 32
WORD = 0xffffffff


def image_folder(samples):
    """[(path, size)] in the order of the dataset; paths are class/name."""
    return sorted(samples, key=lambda sample: sample[0].split("/"))


def generator(seed):
    """MT19937, seeded as torch seeds it; Python's own has the same recurrence."""
    state = [seed & WORD]
    for j in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + j) & WORD)
    found = random.Random()
    found.setstate((3, (*state, 624), None))
    return found


def torch_permutation(n, seed):
    """torch.randperm(n) of a generator with this seed (n below 2^32 / 20)."""
    numbers, a = generator(seed), list(range(n))
    for i in range(n - 1):
        j = i + numbers.getrandbits(32) % (n - i)
        a[i], a[j] = a[j], a[i]
    return a


def python_permutation(n, seed):
    """What random.shuffle makes of the samples; no sampler of torch has this order."""
    a = list(range(n))
    random.Random(seed).shuffle(a)
    return a


def of_ranks(order, world):
    """As DistributedSampler deals an order out: evenly, the last ones padded from the front."""
    padded = order + order[:-len(order) % world]
    return [padded[rank::world] for rank in range(world)]


def plan_of(order, world, workers):
    """Each rank's batches go to its workers in turn, as a DataLoader's do."""
    plan = []
    for rank, part in enumerate(of_ranks(order, world)):
        for n in range(workers):
            number, taken = rank * workers + n, iter(part)
            for k, batch in enumerate(iter(lambda taken=taken: list(islice(taken, BATCH)), [])):
                if k % workers == n:
                    plan += [(number, k // workers, index) for index in batch]
    return plan


def in_time(order, world, workers):
    """The order in which a node's readers ask, as good as it is known beforehand: rank by rank
    the same step."""
    return [index for step in zip(*of_ranks(order, world)) for index in step]


def check():
    """The permutation of torch, against known values."""
    assert torch_permutation(10, 0) == [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]
    assert torch_permutation(10, 42) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]


check()

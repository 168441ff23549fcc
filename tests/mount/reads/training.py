"""Training with torch's own DataLoader, unchanged: the order is recognised, whoever shuffles, and
what ranks on other nodes read is left alone. Judged by counters."""

import multiprocessing
import os
from contextlib import suppress

import harness
from harness import Skip, check, check_equal
from orders import FILES, FILE_BYTES, distant, settled

WORLD, LOCAL = 4, (1, 2)  # ranks in all, and those of this node
BATCH, WORKERS = 16, 2
LIMIT_S = 200


def torch_data():
    try:
        import torch  # pylint: disable=import-outside-toplevel
        import torch.utils.data  # pylint: disable=import-outside-toplevel
    except ImportError as why:
        raise Skip(f"there is no torch: {why}") from None
    torch.set_num_threads(1)
    return torch


def read_sample(path):
    """And the kernel forgets it, as if it had little memory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        check_equal(len(os.read(fd, 2 * FILE_BYTES)), FILE_BYTES, path)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return len(path)


class Folder:
    """Finds its samples as torchvision's ImageFolder does: where that is not installed."""

    def __init__(self, root, loader):
        self.loader = loader
        self.samples = [os.path.join(folder, name)
                        for entry in sorted(e.name for e in os.scandir(root))
                        for folder, _, names in sorted(os.walk(os.path.join(root, entry)))
                        for name in sorted(names)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        return self.loader(self.samples[i])


def image_folder(root):
    try:
        from torchvision.datasets import ImageFolder  # pylint: disable=import-outside-toplevel
    except (ImportError, RuntimeError):
        ImageFolder = Folder
    return ImageFolder(root, loader=read_sample)


def loader_of(torch, mount, sampler, persistent):
    data = image_folder(mount / "train")
    sampler = sampler(data)
    return torch.utils.data.DataLoader(data, batch_size=BATCH, num_workers=WORKERS,
                                       sampler=sampler, shuffle=sampler is None,
                                       persistent_workers=persistent), sampler


def in_processes(jobs):
    """Each in one that was forked; they are killed if they hang."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=job) for job in jobs]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(LIMIT_S)
        check_equal([process.exitcode for process in processes], [0] * len(jobs), "exit codes")
    finally:
        for process in processes:
            with suppress(OSError):
                process.kill()


def train(torch, mount, rank, step, persistent, epochs):
    """One rank of a job; ranks wait for each other in each step."""
    def sampler(data):
        return torch.utils.data.distributed.DistributedSampler(data, WORLD, rank, shuffle=True)

    loader, sampler = loader_of(torch, mount, sampler, persistent)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for _ in loader:
            step.wait(LIMIT_S)


def distributed(work, persistent):
    torch, epochs = torch_data(), 2
    with distant(work) as mount:
        step = multiprocessing.get_context("fork").Barrier(len(LOCAL))
        in_processes([lambda rank=rank: train(torch, mount, rank, step, persistent, epochs)
                      for rank in LOCAL])
        reads = epochs * len(LOCAL) * FILES // WORLD
        foreseen = settled(mount, lambda f: f["in_order"] > reads * 3 // 4, "reads in order")[
            "foreseen"]
        order = foreseen["order"]
        check_equal((order["folder"], order["files"], order["world"], order["local"]),
                    ("train", FILES, WORLD, len(LOCAL)), "the order")
        check_equal((foreseen["recognised"], foreseen["lost"]), (1, 0), "recognised, and lost")
        check(order["reads"] <= 64 * len(LOCAL), f"it took {order['reads']} reads")
        # Half of the ranks are not here. At its end the next epoch's is begun.
        check(foreseen["requests"] <= reads + FILES // 4, f"too much was read ahead: {foreseen}")


@harness.within(600)
def test_ranks_with_workers_that_stay(work):
    distributed(work, True)


@harness.within(600)
def test_ranks_with_new_workers_in_each_epoch(work):
    distributed(work, False)


if __name__ == "__main__":
    harness.main(globals(), in_memory=True)

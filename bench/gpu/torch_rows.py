"""The same archive by torch: DataLoader, pin_memory and .to(). Usage: torch_rows.py ARCHIVE BATCH
WORKERS. One row, as bench/gpu/gpu prints them; nothing where there is no torch with CUDA."""
import sys
import time

NAME = "torch: DataLoader, pin_memory, .to()"


def main():
    try:
        import torch
    except ImportError:
        print("%s\tleft out: no torch here\t\t" % NAME)
        return
    import onepot
    archive, batch, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if not torch.cuda.is_available():
        print("%s\tleft out: torch sees no GPU\t\t" % NAME)
        return
    loader = torch.utils.data.DataLoader(onepot.Dataset(archive), batch_size=batch, shuffle=True,
                                         num_workers=workers, pin_memory=True,
                                         collate_fn=onepot.collate, persistent_workers=True)
    for epoch in range(2):
        start, total = time.monotonic(), 0
        for b in loader:
            total += b.to("cuda", non_blocking=True).slab.numel()
        torch.cuda.synchronize()
        took = time.monotonic() - start
    print("%s\t%.2f GB/s\t\t" % (NAME, total / took / 1e9))


if __name__ == "__main__":
    main()

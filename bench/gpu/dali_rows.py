"""The same archive by DALI, which reads tars of samples as WebDataset names them. Usage:
dali_rows.py ARCHIVE BATCH THREADS DEVICE. One row, as bench/gpu/gpu prints them; with DEVICE "host"
the pipeline ends on the CPU, which only shows that it works."""
import sys
import tarfile
import time

NAME = "DALI: readers.webdataset, shuffled, .gpu()"


def main():
    archive, batch, threads, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    try:
        from nvidia.dali import fn, pipeline_def
    except ImportError:
        print("%s\tleft out: no DALI here (pip install nvidia-dali-cuda120 or -cuda130)\t\t" % NAME)
        return
    gpu = device != "host"
    number = int(device.partition(":")[2] or 0) if gpu else None

    @pipeline_def
    def samples():
        data = fn.readers.webdataset(paths=[archive], ext=["bin"], random_shuffle=True,
                                     initial_fill=4 * batch, name="reader")
        return data.gpu() if gpu else data

    with tarfile.open(archive) as tar:
        total = sum(member.size for member in tar)
    pipe = samples(batch_size=batch, num_threads=threads, device_id=number, prefetch_queue_depth=3)
    pipe.build()
    steps = -(-pipe.epoch_size("reader") // batch)
    for _ in range(2):  # the first one is not counted
        start, seen = time.monotonic(), 0
        for _ in range(steps):
            seen += len(pipe.run()[0])
        took = time.monotonic() - start
    rate = total * seen / pipe.epoch_size("reader") / took
    print("%s\t%.2f GB/s\t\t" % (NAME, rate / 1e9))


if __name__ == "__main__":
    main()

"""The tables, and what onepot set out to reach, held against the figures."""

from commands import PACK_STORED, PACK_ZSTD
from report import cell, geometric_mean, med, print_table, ratio
from rows import STREAM_BYTES_S


def times_table(title, samples, base, extra=()):
    """Seconds, CPU, memory, size; each one's time and CPU by that of the base."""
    header = ["", "s", "CPU s", "MB memory", "MB size", f"time / {base}", f"CPU / {base}",
              *(label for label, _ in extra)]
    rows = []
    for name in samples:
        def of(figure, scale, form, name=name):
            value = med(samples, name, figure)
            return cell(None if value is None else value * scale, form)
        rows.append([name, of("seconds", 1, "{:.2f}"), of("cpu", 1, "{:.2f}"),
                     of("rss", 2**-20, "{:.0f}"), of("bytes", 1e-6, "{:.1f}"),
                     cell(ratio(samples, name, base, "seconds"), "{:.2f}"),
                     cell(ratio(samples, name, base, "cpu"), "{:.2f}"),
                     *(of(figure, 1, "{:.0f}") for _, figure in extra)])
    print_table(title, header, rows)


def print_absent(absent):
    for row, names in absent.items():
        for name, why in names.items():
            print(f"  {row}: {name}: not available: {why}")


def print_slow(samples, files):
    times_table(f"from slowfs, 1 ms per metadata operation and read, {files} files, nobody "
                "waits for the disk (no fsync on any side)", samples, "onepot",
                (("requests", "requests"), ("in flight", "in flight")))


def print_local(which, what, samples):
    title = f"local disk, page cache warm, no fsync on any side: {which}: {what}"
    for kind, contenders in (("uncompressed", PACK_STORED), ("zstd, level 3", PACK_ZSTD)):
        part = {c.name: samples[c.name] for c in contenders if c.name in samples}
        times_table(f"{title}: {kind}", part, contenders[0].name)


def print_pipe(samples):
    times_table("a tar in the page cache, as a file and from a pipe", samples, "onepot")


def print_extract(kind, samples):
    times_table(f"extract into /dev/shm, {kind}", samples, "onepot extract")


def random_rates(samples):
    """The figures of first epochs, by number of readers: those that read the archive."""
    names = {name for figures in samples.values() for name in figures}
    return sorted(n for n in names if n.startswith(("first/", "listed/")) and " " not in n)


def print_random(samples):
    rates = random_rates(samples)
    rows = [[name] + [cell(med(samples, name, rate), "{:.0f}") for rate in rates]
            for name in samples]
    print_table("random reads through a mount, records, files/s with N readers", ["", *rates],
                rows)


def synthetic_facts(samples, files):
    """Index bytes a file, and how many of them are its name."""
    figures = samples.get("onepot", {})
    if "info" not in figures:
        return None
    info = figures["info"][0]
    return {"index": info["index_bytes"] / files, "name": len("f000000000")}


def print_synthetic(samples, files):
    header = ["files", "s", "files/s", "CPU s", "MB peak memory", "archive MB",
              "index bytes a file", "of these name"]
    facts = synthetic_facts(samples, files)
    if not facts:
        return

    def of(figure, scale, form):
        return cell(med(samples, "onepot", figure) * scale, form)
    print_table("a synthetic tree of files of 100 bytes, packed from slowfs without latency",
                header, [[str(files), of("seconds", 1, "{:.1f}"),
                          f"{files / med(samples, 'onepot', 'seconds'):.0f}",
                          of("cpu", 1, "{:.1f}"), of("rss", 2**-20, "{:.0f}"),
                          of("bytes", 1e-6, "{:.0f}"), f"{facts['index']:.2f}",
                          str(facts["name"])]])


def print_stream(samples):
    rows = [[name, cell(med(samples, name, "rate") / 1e6, "{:.0f}"),
             cell(med(samples, name, "rate") / STREAM_BYTES_S, "{:.3f}")] for name in samples]
    print_table(f"slowfs set to {STREAM_BYTES_S / 1e6:.0f} MB/s and 1 ms, streamed",
                ["", "MB/s", "share"], rows)


class Targets:
    """A line each: reached, missed or not measured. Printed, never a test."""

    def __init__(self):
        print("\n  targets (a ratio is of medians in this run)")

    @staticmethod
    def line(text, value, wanted, at_least=True):
        if value is None:
            verdict, figure = "not measured", "-"
        else:
            reached = value >= wanted if at_least else value <= wanted
            verdict, figure = "reached" if reached else "MISSED", f"{value:.2f}"
        print(f"  {verdict:12}  {figure:>7}  {'>=' if at_least else '<='} {wanted:<6g} {text}")

    def slow(self, samples):
        self.line("slow: tar's time by onepot's",
                  ratio(samples, "tar", "onepot", "seconds"), 20)
        self.line("slow: mksquashfs' time by onepot's",
                  ratio(samples, "mksquashfs", "onepot", "seconds"), 10)

    def local(self, which, samples):
        self.line(f"{which}: tar's time by onepot's, uncompressed",
                  ratio(samples, "tar", "onepot", "seconds"), 1)
        ours, squash, pipe = "onepot --zstd=3", "mksquashfs zstd 3", "tar | zstd -3"
        if which == "noise":
            self.line("noise: time of --zstd=3 by uncompressed packing's",
                      ratio(samples, ours, "onepot", "seconds"), 1.15, False)
            self.line("noise: size of --zstd=3 by uncompressed packing's",
                      ratio(samples, ours, "onepot", "bytes"), 1.01, False)
            return
        self.line(f"{which}: mksquashfs' time by onepot's, zstd 3",
                  ratio(samples, squash, ours, "seconds"), 1)
        self.line(f"{which}: CPU by that of tar | zstd -3",
                  ratio(samples, ours, pipe, "cpu"), 1.1, False)
        sizes = [ratio(samples, ours, other, "bytes") for other in (squash, pipe)]
        self.line(f"{which}: size by the better of the two",
                  None if None in sizes else max(sizes), 1.05, False)

    def random(self, samples):
        ratios = [ratio(samples, "onepot archive zstd", "squashfuse_ll", rate)
                  for rate in random_rates(samples)]
        self.line("random reads: mean of the ratios to squashfuse_ll", geometric_mean(ratios), 3)
        known = [r for r in ratios if r is not None]
        self.line("random reads: the worst of these ratios", min(known, default=None), 3)

    def extract(self, kind, samples):
        """Of a single stream, which tar's .tar.zst is, nobody can extract in parallel."""
        ours = "archive by onepot" in kind
        self.line(f"extract {kind}: tar's time by onepot's",
                  ratio(samples, "tar xf", "onepot extract", "seconds") if ours else None,
                  2 if kind.startswith("zstd") else 1)

    def pipe(self, samples):
        self.line("a pipe: the file's time by the pipe's",
                  ratio(samples, "onepot", "onepot, a pipe", "seconds"), 0.9)

    def synthetic(self, samples, files):
        rss = med(samples, "onepot", "rss")
        self.line(f"synthetic, {files} files: peak memory, GB",
                  None if rss is None else rss / 1e9, 2, False)

    def stream(self, samples):
        for name in samples:
            self.line(f"slowfs: {name}: share of the bandwidth it was set to",
                      med(samples, name, "rate") / STREAM_BYTES_S, 0.95)

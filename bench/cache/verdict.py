"""The tables, and what onepot set out to reach, held against the figures: printed, never a
test."""

from counts import FAIL_EVERY, IO_TIMEOUT_S
from rates import DATA_BY_BUDGET, EPOCHS, PACE_SHARE, WORLD, WORKERS
from report import cell, med, print_table, ratio

STREAM, RANDOM = "bare stream", "bare random preads"
KNOWN = ("recognised", "--order", "--order of that record")


def worst(samples, contender, figure):
    values = samples.get(contender, {}).get(figure)
    return max(values) if values else None


def table(title, samples, columns):
    """columns: (label, figure, scale, form) of what the contenders have."""
    shown = [c for c in columns if any(c[1] in figures for figures in samples.values())]
    rows = []
    for name in samples:
        row = [name]
        for _, figure, scale, form in shown:
            value = med(samples, name, figure)
            row.append(cell(None if value is None else value * scale, form))
        rows.append(row)
    print_table(title, ["", *(label for label, *_ in shown)], rows)


def print_stage(samples, total_bytes):
    table(f"a shuffled first epoch, 4 readers, {total_bytes / 1e9:.2f} GB; squashfuse_ll from a "
          "share of it",
          samples, (("s", "seconds", 1, "{:.2f}"), ("epoch s", "epoch", 1, "{:.2f}"),
                    ("GB/s", "W", 1e-9, "{:.3f}"), ("share read", "share", 1, "{:.2f}"),
                    ("fetched MB", "fetched", 1e-6, "{:.0f}"),
                    ("CPUs", "machine", 1, "{:.1f}")))


def print_known(samples):
    table(f"{WORLD} ranks of {WORKERS} workers, data {DATA_BY_BUDGET} times the budget; paced: "
          f"{PACE_SHARE:g} R; 'there': files that took less than 1 ms",
          samples, (("GB/s", "W", 1e-9, "{:.3f}"), ("R files/s", "R", 1, "{:.0f}"),
                    ("files/s", "rate", 1, "{:.0f}"), ("there", "there", 1, "{:.3f}"),
                    ("fetched / asked", "fetched", 1, "{:.2f}"),
                    ("recognised after", "recognised", 1, "{:.0f}"),
                    ("paced files/s", "rate paced", 1, "{:.0f}"),
                    ("there", "there paced", 1, "{:.3f}"), ("p99 ms", "p99 paced", 1, "{:.1f}"),
                    ("fetched / asked", "fetched paced", 1, "{:.2f}"),
                    ("CPUs", "machine", 1, "{:.1f}")))


def print_unknown(samples):
    table(f"unknown orders, data {DATA_BY_BUDGET} times the budget, {EPOCHS} epochs; from the "
          "second on: hits",
          samples, (("files/s", "rate", 1, "{:.0f}"), ("hits", "hits", 1, "{:.3f}"),
                    ("not fetched", "not fetched", 1, "{:.3f}"),
                    ("fetched / asked, first", "fetched per asked, first", 1, "{:.3f}"),
                    ("all", "fetched per asked", 1, "{:.3f}")))


def print_random(samples):
    table("unknown order, reading ahead off and auto", samples,
          (("files/s", "rate", 1, "{:.0f}"), ("bytes fetched / read", "fetched", 1, "{:.2f}")))


def print_large(samples):
    table("one large file; requests of the storage", samples,
          (("s", "seconds", 1, "{:.3f}"), ("requests", "requests", 1, "{:.0f}"),
           ("fetched MB", "fetched", 1e-6, "{:.0f}")))


def print_counts(title, samples):
    names = dict.fromkeys(f for figures in samples.values() for f in figures if f != "machine")
    rows = [[who, *(cell(worst(samples, who, name), "{:.6g}") for name in names)]
            for who in samples]
    print_table(f"{title} (the worst of the rounds)", ["", *names], rows)


class Targets:
    """A line each: reached, missed or not measured."""

    def __init__(self, results, total_bytes):
        self.results, self.total_bytes = results, total_bytes

    @staticmethod
    def line(text, value, wanted, at_least=True):
        if value is None:
            verdict, figure = "not measured", "-"
        else:
            reached = value >= wanted if at_least else value <= wanted
            verdict, figure = "reached" if reached else "MISSED", f"{value:.3g}"
        print(f"  {verdict:12}  {figure:>7}  {'>=' if at_least else '<='} {wanted:<6g} {text}")

    def print(self):
        print("\n  targets (medians of this run, or the worst of a count)")
        for row, samples in self.results.items():
            getattr(self, row)(samples)

    def stage(self, samples):
        wire, memory = med(samples, STREAM, "W"), med(samples, "epoch from memory", "seconds")
        ours = med(samples, "onepot --stage", "seconds")
        least = self.total_bytes / wire + memory if wire and memory else None
        self.line("stage: first epoch by (bytes / W + the epoch from memory)",
                  ours / least if ours and least else None, 1.3, False)
        self.line("stage: squashfuse_ll's time by that of --stage",
                  ratio(samples, "squashfuse_ll", "onepot --stage", "seconds"), 20)

    def known(self, samples):
        for name in KNOWN:
            rate, bare = med(samples, name, "rate"), med(samples, RANDOM, "R")
            if name == KNOWN[0]:
                self.line("known: reads of a rank until it was recognised, at worst",
                          worst(samples, name, "recognised"), 64, False)
            self.line(f"known: {name}: files/s by R", rate / bare if rate and bare else None, 0.8)
            self.line(f"known: {name}: share that was there for paced readers",
                      med(samples, name, "there paced"), 0.95)

    def unknown(self, samples):
        for name in samples:
            wanted = 0.9 / DATA_BY_BUDGET
            self.line(f"unknown: {name}: hits", med(samples, name, "hits"), wanted)
            self.line(f"unknown: {name}: share of what was asked that was not fetched",
                      med(samples, name, "not fetched"), wanted)
            self.line(f"unknown: {name}: pages fetched per page asked, first epoch",
                      med(samples, name, "fetched per asked, first"), 1.1, False)

    def random(self, samples):
        for name in samples:
            if name.endswith(", auto"):
                off = name.replace(", auto", ", off")
                self.line(f"random: {name} by off", ratio(samples, name, off, "rate"), 0.95)

    def large(self, samples):
        for name in samples:
            way, who = name.split(": ")
            narrow = "little" in way
            for figure, wanted in (("seconds", 0.5 if narrow else 1.1), ("requests", 1.1)):
                if who != "the file":
                    self.line(f"large: {name}: {figure} by those of the file",
                              ratio(samples, name, f"{way}: the file", figure), wanted, False)

    def flight(self, samples):
        for name in samples:
            wanted = 0 if name.endswith("second epoch") else 1
            self.line(f"flight: {name}: decompressions", worst(samples, name, "decompressions"),
                      wanted, False)

    def limit(self, samples):
        for name in samples:
            self.line(f"limit: {name}: processes killed for memory", worst(samples, name, "kills"),
                      0, False)

    def faults(self, samples):
        now_and_then = f"every {FAIL_EVERY}th read fails"
        self.line(f"faults: {now_and_then}: errors that readers saw",
                  worst(samples, now_and_then, "errors"), 0, False)
        for name in ("gone", "no answer"):
            self.line(f"faults: {name}: errors for what was cached",
                      worst(samples, name, "errors"), 0, False)
            self.line(f"faults: {name}: seconds until other reads failed, at worst (time-out + 1)",
                      worst(samples, name, "seconds"), IO_TIMEOUT_S + 1, False)

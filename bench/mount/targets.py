"""What onepot set out to reach, held against the figures: printed, never a test.

Each target is a line: reached, missed or not measured, with the figure it hangs on.
"""

from report import geometric_mean, med, ratio

STORED, OWN_ZSTD = ("onepot archive", "onepot tar"), "onepot archive zstd"

# Other forms of an archive: (ours, what it is compared with, rows, at least this ratio).
FORMS = (("onepot zip stored", "onepot tar", ("first", "listed", "second"), 0.95),
         ("onepot union", "onepot tar", ("first", "listed"), 0.95),
         ("onepot nested", "onepot tar", ("first", "listed"), 0.95),
         ("onepot parts", "onepot tar", ("first", "listed", "second"), 0.97),
         ("onepot zip", "mount-zip", ("first", "listed"), 4),
         ("onepot zip", "ratarmount zip", ("first", "listed"), 8),
         ("onepot zip", "zipfile", ("first",), 8),
         ("onepot tar.gz", "ratarmount tar.gz", ("first",), 5))
# Mounts of archives without an index: (ours, figure, at most this).
WITHOUT_INDEX = (("onepot union", "anew", 0.1), ("onepot union", "again", 0.02),
                 ("onepot nested", "again", 0.02), ("onepot tar.gz", "again", 0.05),
                 ("onepot tar.gz", "index", 0.015))


class Targets:
    def __init__(self, samples, contenders, threads):
        self.samples, self.contenders, self.threads = samples, contenders, threads
        self.ours = [c for c in contenders if c.ours and c.name in samples]
        self.images = [c for c in self.ours if c.baseline.startswith("squashfuse_ll")]

    def line(self, text, value, wanted, at_least=True):
        if value is None:
            verdict, figure = "not measured", "-"
        else:
            reached = value >= wanted if at_least else value <= wanted
            verdict = "reached" if reached else "MISSED"
            figure = f"{value:.{2 if value >= 0.1 else 4}f}"
        print(f"  {verdict:12}  {figure:>7}  {'>=' if at_least else '<='} {wanted:<6g} {text}")

    def speedups(self, c, row):
        return [ratio(self.samples, c.name, c.baseline, f"{row}/{n}") for n in self.threads]

    def random_reads(self):
        for c in self.images:
            every = self.speedups(c, "first") + self.speedups(c, "listed")
            if c.name in STORED:
                for row in ("first", "listed"):
                    self.line(f"{c.name}, {row}, mean of ratios to squashfuse_ll",
                              geometric_mean(self.speedups(c, row)), 4.5)
                known = [r for r in every if r is not None]
                self.line(f"{c.name}, worst of these ratios", min(known, default=None), 3)
            else:
                self.line(f"{c.name}, mean of ratios to squashfuse_ll on a zstd image",
                          geometric_mean(every), 3 if c.name == OWN_ZSTD else 4)

    def second_epoch(self):
        for c in [c for c in self.ours if not c.limit]:
            shares = [ratio(self.samples, c.name, "tmpfs", f"second/{n}") for n in self.threads]
            shares += [ratio(self.samples, c.name, "tmpfs", "python os second")]
            known = [r for r in shares if r is not None]
            self.line(f"{c.name}, second epoch, worst share of tmpfs (C, os.open)",
                      min(known, default=None), 0.75)
        for c in self.images:
            self.line(f"{c.name}, second epoch, builtin open, ratio to squashfuse_ll",
                      ratio(self.samples, c.name, c.baseline, "python open second"), 4)

    def direct(self):
        """Readers with the preloaded library, beside plain files in memory."""
        for c in [c for c in self.ours if c.is_direct]:
            for row, wanted in (("first", 0.75), ("listed", 0.9), ("second", 0.9)):
                self.line(f"{c.name}, builtin open, {row}, share of tmpfs",
                          ratio(self.samples, c.name, "tmpfs", f"python open {row}"), wanted)
            shares = [ratio(self.samples, c.name, "tmpfs", f"listed/{n}") for n in self.threads]
            known = [r for r in [*shares, ratio(self.samples, c.name, "tmpfs",
                                                "python os listed")] if r is not None]
            self.line(f"{c.name}, listed, worst share of tmpfs (C, os.open)",
                      min(known, default=None), 0.85)

    def listing(self):
        for c in self.images:
            self.line(f"{c.name}, listing with stat, ratio to squashfuse_ll",
                      ratio(self.samples, c.name, c.baseline, "list", True), 15)

    def cost(self):
        rows = ["first", "listed", "second", "busy first", "busy listed"]
        for c in self.images:
            for row in rows:
                costs = [ratio(self.samples, c.name, c.baseline, f"{row}/{n} cpu")
                         for n in self.threads]
                known = [r for r in costs if r is not None]
                self.line(f"{c.name}, {row}, worst share of squashfuse_ll's CPU time",
                          max(known, default=None), 1, at_least=False)

    def forms(self):
        names = {c.name for c in self.ours}
        for ours, other, rows, wanted in FORMS:
            ratios = [ratio(self.samples, ours, other, f"{row}/{n}")
                      for row in rows for n in self.threads]
            known = [r for r in ratios if r is not None]
            if ours in names and known:
                self.line(f"{ours}, worst ratio to {other}", min(known), wanted)
        for ours in ("onepot union", "onepot nested"):
            if ours in names:
                self.line(f"{ours}, listing with stat, ratio to one tar",
                          ratio(self.samples, ours, "onepot tar", "list", True), 0.95)
        for ours, figure, wanted in WITHOUT_INDEX:
            value = med(self.samples, ours, figure)
            if ours in names and value is not None:
                self.line(f"{ours}, {figure}", value, wanted, at_least=False)
        if "onepot tar.gz" in names:
            self.line("onepot tar.gz, first mount, times as fast as ratarmount",
                      ratio(self.samples, "onepot tar.gz", "ratarmount tar.gz", "anew", True), 1)

    def ahead_of_all(self):
        """Against every FUSE peer on content of the same set, figure by figure."""
        peers = [p for p in self.contenders
                 if p.program not in ("", "mount", "onepot") and p.name in self.samples]
        behind = []
        rates = [f"{row}/{n}" for row in ("first", "listed", "second") for n in self.threads]
        rates += [f"python {how} {row}" for how in ("os", "open")
                  for row in ("first", "listed", "second")]
        for c in self.ours:
            for figure in [*rates, "list"]:
                for p in [p for p in peers if p.limit == c.limit]:
                    r = ratio(self.samples, c.name, p.name, figure, figure == "list")
                    if r is not None and r < 1:
                        behind.append(f"{c.name} behind {p.name} in {figure} ({r:.2f})")
        if self.ours and peers:
            verdict = "MISSED" if behind else "reached"
            print(f"  {verdict:12}  ahead of every FUSE peer in every row")
            for text in behind:
                print(f"                {text}")

    def mounts(self):
        for c in self.ours:
            memory = med(self.samples, c.name, "memory")
            self.line(f"{c.name}, private memory after two epochs, MB",
                      None if memory is None else memory / 2**20, 16, at_least=False)
            idle = med(self.samples, c.name, "idle")
            self.line(f"{c.name}, idle mount, CPU %", None if idle is None else idle * 100,
                      0.01, at_least=False)

    def print(self):
        if not self.ours:
            return
        print("\n  targets (a ratio is of medians in this run)")
        self.ahead_of_all()
        self.forms()
        self.random_reads()
        self.second_epoch()
        self.direct()
        self.listing()
        self.cost()
        self.mounts()

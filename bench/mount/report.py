"""The tables: medians, and their ratios to the contender each one is compared with.

Figures are kept as lists of samples, one per round. A ratio is a ratio of medians, turned so
that more is better: of rates, or of times upside down.
"""

import math
from statistics import median

PYTHON = {"os": "os.open", "open": "the builtin open()"}
BUSY = {"busy first": "first epoch", "busy listed": "first epoch after a listing with stat"}


def med(samples, contender, figure):
    values = samples.get(contender, {}).get(figure)
    return median(values) if values else None


def ratio(samples, contender, base, figure, less_is_better=False):
    one, other = med(samples, contender, figure), med(samples, base, figure)
    if not one or not other:
        return None
    return other / one if less_is_better else one / other


def geometric_mean(values):
    if not values or None in values:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def cell(value, form):
    return "-" if value is None else form.format(value)


def print_table(title, header, rows):
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, *rows]:
        rest = (text.rjust(width) for text, width in zip(row[1:], widths[1:]))
        print("  " + row[0].ljust(widths[0]) + "  " + "  ".join(rest))


def rate_table(title, samples, contenders, columns, mean):
    """Files a second, then ratios to the baseline and to tmpfs; with a geometric
    mean of the ratios where the columns are numbers of readers."""
    header = [""] + [label for label, _ in columns]
    for base in ("peer", "tmpfs"):
        header += [f"/{base} {label}" for label, _ in columns] + (["mean"] if mean else [])
    rows = []
    for c in contenders:
        row = [c.name] + [cell(med(samples, c.name, f), "{:.0f}") for _, f in columns]
        for base in (c.baseline, "tmpfs"):
            ratios = [ratio(samples, c.name, base, f) for _, f in columns]
            row += [cell(r, "{:.2f}") for r in ratios]
            row += [cell(geometric_mean(ratios), "{:.2f}")] if mean else []
        rows.append(row)
    print_table(title, header, rows)


def cost_table(title, samples, contenders, columns):
    """CPU seconds per 1,000 files, and the share of the baseline's."""
    header = [""] + [label for label, _ in columns] + [f"/peer {label}" for label, _ in columns]
    rows = [[c.name] + [cell(med(samples, c.name, f), "{:.3f}") for _, f in columns]
            + [cell(ratio(samples, c.name, c.baseline, f), "{:.2f}") for _, f in columns]
            for c in contenders]
    print_table(title, header, rows)


def mount_table(samples, contenders):
    header = ["", "list s", "times faster", "ready ms", "no index ms", "then ms", "index %",
              "private MB", "mapped MB", "idle CPU %"]
    rows = []
    for c in contenders:
        def of(figure, scale, form):
            value = med(samples, c.name, figure)
            return cell(None if value is None else value * scale, form)
        rows.append([c.name, of("list", 1, "{:.2f}"),
                     cell(ratio(samples, c.name, c.baseline, "list", True), "{:.1f}"),
                     of("ready", 1000, "{:.1f}"), of("anew", 1000, "{:.1f}"),
                     of("again", 1000, "{:.1f}"), of("index", 100, "{:.2f}"), of("memory", 2**-20, "{:.1f}"),
                     of("mapped", 2**-20, "{:.1f}"), of("idle", 100, "{:.2f}")])
    print_table("listing with stat, time to ready, memory after two epochs, idle CPU", header,
                rows)


def readers(prefix, threads, suffix=""):
    return [(str(n), f"{prefix}/{n}{suffix}") for n in threads]


def others_share(samples):
    """What others on the machine used during the figures: median and worst, in CPUs."""
    shares = [v for figures in samples.values() for name, values in figures.items()
              if name.endswith(" others") for v in values]
    return (median(shares), max(shares)) if shares else (0, 0)


def print_set(title, samples, contenders, threads, rows):
    print(f"\n== {title}")
    print("   'peer' is squashfuse_ll on the same kind of image, or what an archive of that form "
          "is\n   compared with (contenders.py); ratios are of medians")
    names = {"first": "first epoch", "listed": "first epoch after a listing with stat",
             "second": "second epoch"}
    for row, text in names.items():
        if row in rows:
            rate_table(f"{text}: files/s with N readers", samples, contenders,
                       readers(row, threads), True)
            cost_table(f"{text}: CPU seconds per 1,000 files, readers and daemon", samples,
                       contenders, readers(row, threads, " cpu"))
    if "python" in rows:
        for how, text in PYTHON.items():
            figures = [(part, f"python {how} {part}") for part in ("first", "listed", "second")]
            rate_table(f"4 Python processes, {text}: files/s", samples, contenders, figures,
                       False)
            cost_table(f"4 Python processes, {text}: CPU seconds per 1,000 files", samples,
                       contenders, [(part, f"{figure} cpu") for part, figure in figures])
    if "unlisted" in rows:
        rate_table("first epoch of N Python processes, the builtin open(), nothing listed: files/s", samples,
                   contenders, readers("unlisted", threads), True)
    if "busy" in rows:
        for row, text in BUSY.items():
            text = f"{text}, while two processes spin"
            rate_table(f"{text}: files/s with N readers", samples, contenders,
                       readers(row, threads), True)
            cost_table(f"{text}: CPU seconds per 1,000 files", samples, contenders,
                       readers(row, threads, " cpu"))
    if rows & {"list", "ready", "anew", "idle", "first", "listed"}:
        mount_table(samples, contenders)
    middle, worst = others_share(samples)
    print(f"\n  others on this machine used {middle:.2f} CPUs during the figures (median), "
          f"{worst:.2f} at worst")

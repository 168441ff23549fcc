"""Figures from a machine that others use, too: wait for quiet, and notice when it did not last.

On a machine where a wake-up of an idle CPU is dear (most virtual ones), a neighbour's load
does not just slow everything down: it makes some contenders faster. So a disturbed figure is
not a smaller figure but a wrong one, and is taken again.
"""

import os
import time

QUIET_CPUS = 0.1       # that others may use while we wait
DISTURBED_CPUS = 0.25  # that others may use during a figure
ATTEMPTS = 4


def machine_seconds():
    """CPU time of everybody since boot, without idle and iowait."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        began, used = time.monotonic(), machine_seconds()
        time.sleep(0.3)
        if (machine_seconds() - used) / (time.monotonic() - began) < QUIET_CPUS:
            return


def others(figures):
    """The most that others used during one of these figures, in CPUs."""
    return max((value for name, value in figures.items() if name.endswith(" others")), default=0)


def calmly(take, seconds, own_workers):
    """Takes figures when the machine is quiet, again if it did not stay so; of several
    attempts the least disturbed counts. Kernel threads that serve a contender (own_workers)
    are indistinguishable from others' work, so its figures are not judged."""
    best = None
    for _ in range(ATTEMPTS):
        wait_for_quiet(seconds)
        figures = take()
        if best is None or others(figures) < others(best):
            best = figures
        if seconds == 0 or own_workers or others(best) < DISTURBED_CPUS:
            break
    return best

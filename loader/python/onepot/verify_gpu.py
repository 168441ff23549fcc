"""python -m onepot.verify_gpu [--seconds N]: does onepot work on this machine's GPU?

Prints one verdict per line (ok, FAILED, left out). The ten checks that decide come first, the others follow
while time is left. Needs the driver and this package; torch, cupy, jax and numba take part if they are
installed. Each check is a process with a time limit, so that one that crashes or hangs ends only itself.

Exit status: 0 if nothing failed, 1 if something did, 77 without a driver or a GPU, 130 if interrupted.
"""
import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

# Name and seconds at most of each check (onepot._gpu_checks): first the ten that decide.
DECIDE = (("device", 30), ("bytes", 40), ("order", 40), ("notices", 40), ("gone", 40), ("kept", 40),
          ("release", 20), ("gathered", 40), ("images", 40), ("exit", 30))
REST = (("torch_order", 60), ("cupy_order", 60), ("jax_order", 60), ("numba_bytes", 60), ("captures", 40),
        ("captures_lent", 40), ("torch_graph", 60), ("jax_graphs", 60), ("torch_unnamed", 60),
        ("torch_hidden", 60), ("cupy_gone", 60), ("cupy_default", 60), ("jax_exit", 60), ("torch_dlpack", 60),
        ("rates", 90), ("gather_rates", 90), ("memory_full", 60), ("reopen", 40), ("fork", 40),
        ("torch_workers", 60), ("several", 40), ("dirty", 60), ("locking", 60), ("torch_overlap", 60),
        ("torch_compile", 90))
NAMES = [name for name, _ in DECIDE + REST]
LEAST_SECONDS = 3  # a check that has less is not begun
KEPT_CHARS = 20000  # of the output of a check that failed
SKIPPED = 77


def end_group(child):
    """End a check and its children. SIGABRT comes first: Python then prints where it is. A process that
    hangs in the driver can't be killed, and is not waited for."""
    for number, seconds in ((signal.SIGABRT, 3), (signal.SIGKILL, 5)):
        try:
            os.killpg(child.pid, number)
            child.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run_alone(command, seconds):
    """(exit status, output); the status is None if the time was over."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, env=dict(os.environ, PYTHONFAULTHANDLER="1"), stdin=subprocess.DEVNULL,
                                 stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = child.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_group(child)
        out.seek(0)
        return status, out.read().decode(errors="replace").strip()


def judge(status, said, seconds):
    """(verdict, text) of a check that ended so."""
    lines = said.splitlines() or ["no output"]
    if status == 0:
        return "ok", lines[-1]
    if status == SKIPPED:
        return "left out", lines[-1]
    if status is None:
        return "FAILED", "not done in %d s" % seconds
    ended = "killed by " + signal.Signals(-status).name if status < 0 else "exit status %d" % status
    return "FAILED", "%s: %s" % (ended, " / ".join(lines[-3:]))


class Run:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.end = time.monotonic() + options.seconds
        self.verdicts = []

    def child(self, name):
        return [sys.executable, "-m", "onepot._gpu_checks", name, self.folder, self.options.device]

    def note(self, name, verdict, text, **more):
        self.verdicts.append(dict(name=name, verdict=verdict, said=text, **more))
        if self.options.json:
            with open(self.options.json + ".new", "w") as f:
                json.dump({"verdicts": self.verdicts, "failed": self.failed()}, f, indent=1)
            os.replace(self.options.json + ".new", self.options.json)
        print("%-9s %-14s %s" % (verdict, name, text[:300]), flush=True)

    def failed(self):
        return [v["name"] for v in self.verdicts if v["verdict"] == "FAILED"]

    def check(self, name, limit):
        seconds = min(limit, self.end - time.monotonic())
        if seconds < LEAST_SECONDS:
            return self.note(name, "left out", "the time is over")
        start = time.monotonic()
        status, said = run_alone(self.child(name), seconds)
        verdict, text = judge(status, said, seconds)
        more = {"output": said[-KEPT_CHARS:]} if verdict == "FAILED" else {}
        return self.note(name, verdict, text, seconds=round(time.monotonic() - start, 2), **more)

    def run(self):
        """A process holds the GPU's context meanwhile. Otherwise a driver without persistence starts the GPU
        anew for each check."""
        holder = subprocess.Popen(self.child("hold"), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            for name, limit in DECIDE + REST:
                if not self.options.only or name in self.options.only:
                    self.check(name, limit)
        except KeyboardInterrupt:
            print("interrupted")
            return 130
        finally:
            holder.stdin.close()
            try:
                holder.wait(10)
            except subprocess.TimeoutExpired:
                end_group(holder)
        print("%d of %d checks failed" % (len(self.failed()), len(self.verdicts)))
        return 1 if self.failed() else 0


def names_in(given):
    names = given.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError("no check is called %r; there are %s" % (name, ", ".join(NAMES)))
    return names


def options_of(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m onepot.verify_gpu", formatter_class=argparse.RawDescriptionHelpFormatter,
        description=__doc__.partition("\n\n")[2], allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=560, help="of all checks together (default: 560)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", type=names_in, metavar="NAME,...", help=", ".join(NAMES))
    parser.add_argument("--json", metavar="FILE", help="the verdicts, and the output of checks that failed")
    return parser.parse_args(arguments)


def interrupt(unused_number, unused_frame):
    raise KeyboardInterrupt


def main(arguments=None):
    options = options_of(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="onepot-verify.") as folder:
        run = Run(options, folder)
        status, said = run_alone(run.child("begin"), min(60, options.seconds))
        if status == SKIPPED:
            print("nothing to verify: " + said.splitlines()[-1])
            return SKIPPED
        if status != 0:
            print("it can't begin: " + judge(status, said, 60)[1])
            return 1
        return run.run()


if __name__ == "__main__":
    sys.exit(main())

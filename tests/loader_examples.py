#!/usr/bin/env python3
"""examples/loader.c and examples/resume.py do what they say.

Environment: ONEPOT, EXAMPLE_LOADER (the program), EXAMPLES (the folder), and MODULE, where the
Python module is, or nothing.
"""
import os
import re
import subprocess
import sys
import tempfile


def run(*command, **environment):
    """What a command prints, by lines."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE,
                          env={**os.environ, **environment})
    return done.stdout.decode().splitlines()


def sums(line):
    samples, a, b = re.match(r"epoch \d+: (\d+) samples, sums (\w+) (\w+)$", line).groups()
    return int(samples), int(a, 16), int(b, 16)


def main():
    loader, examples = os.environ["EXAMPLE_LOADER"], os.environ["EXAMPLES"]
    with tempfile.TemporaryDirectory(prefix="onepot-examples.") as work:
        tree, tar = os.path.join(work, "tree"), os.path.join(work, "a.tar")
        for i in range(400):
            folder = os.path.join(tree, "c%d" % (i % 3))
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, str(i)), "w") as f:
                f.write("sample %d" % i * (i % 7))
        run(os.environ["ONEPOT"], "pack", "-o", tar, tree)

        alone = dict(RANK="0", WORLD_SIZE="1")
        state = os.path.join(work, "state")
        first = run(loader, tar, "1", state, **alone)
        rest = run(loader, tar, "3", state, **alone)  # goes on behind the first epoch
        assert [line.split(":")[0] for line in first + rest if ":" in line] == \
            ["epoch 0", "epoch 1", "epoch 2"], (first, rest)
        whole = sums(first[0])
        assert whole[0] == 400 and sums(rest[0]) == sums(rest[1]) == whole, (first, rest)

        ranks = [sums(run(loader, tar, "1", state + str(rank), RANK=str(rank),
                          WORLD_SIZE="3")[0]) for rank in range(3)]
        added = tuple(sum(column) % 2**64 for column in zip(*ranks))
        assert added == whole, (ranks, whole)

        if not os.environ.get("MODULE"):
            print("resume.py left out: there is no Python module in this build")
            return
        command = [sys.executable, os.path.join(examples, "resume.py"), tar]
        alone["PYTHONPATH"] = os.environ["MODULE"]
        first = run(*command, "1", state + ".json", **alone)
        rest = run(*command, "2", state + ".json", **alone)
        assert [line.split()[:2] for line in first + rest] == [["epoch", "0"], ["epoch", "1"]]
        for line in first + rest:
            had, whole = re.search(r"had (\d+) samples of (\d+)$", line).groups()
            assert had == whole, line


if __name__ == "__main__":
    main()

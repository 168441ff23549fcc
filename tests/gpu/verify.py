#!/usr/bin/env python3
"""onepot.verify_gpu says what works, what fails and what is missing. The GPU is played (played.h)."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from onepot import verify_gpu

SLOW = {"gather_rates", "locking"}
CHECKS = [name for name in verify_gpu.NAMES if name not in SLOW]
DECIDE = [name for name, _ in verify_gpu.DECIDE]


def setUpModule():
    global WORK, ABSENT
    WORK = tempfile.mkdtemp(prefix="onepot-verify.", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
    # They can do nothing with a GPU that is played, and take seconds to say so.
    ABSENT = tempfile.mkdtemp(prefix="onepot-verify.", dir=os.environ.get("ONEPOT_TESTS_MEMORY"))
    for name in "torch", "cupy", "jax", "numba":
        with open(os.path.join(ABSENT, name + ".py"), "w") as f:
            f.write("raise ModuleNotFoundError(name=%r)\n" % name)
    os.environ["PYTHONPATH"] = ABSENT + os.pathsep + os.environ["PYTHONPATH"]


def tearDownModule():
    shutil.rmtree(WORK)
    shutil.rmtree(ABSENT)


class Verify(unittest.TestCase):
    def command(self, *arguments):
        return [sys.executable, "-m", "onepot.verify_gpu", *arguments]

    def verify(self, *arguments, **more):
        done = subprocess.run(self.command(*arguments), env=dict(os.environ, TMPDIR=WORK, **more), timeout=500,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(os.listdir(WORK), [])
        return done.returncode, done.stdout

    def verdicts(self, said):
        """Of each check, in their order; the last line counts."""
        lines = said.splitlines()
        self.assertRegex(lines[-1], r"^\d+ of %d checks failed$" % (len(lines) - 1))
        return {name: verdict for verdict, name in (
            line.replace("left out", "left-out").split()[:2] for line in lines[:-1])}

    def test_nothing_fails_on_a_gpu_that_works(self):
        status, said = self.verify("--only", ",".join(CHECKS))
        self.assertEqual(status, 0, said)
        verdicts = self.verdicts(said)
        self.assertEqual(list(verdicts), CHECKS)
        self.assertEqual([verdicts[name] for name in DECIDE], ["ok"] * 10, said)
        for name in "captures", "rates", "memory_full", "fork", "several", "reopen":
            self.assertEqual(verdicts[name], "ok", said)

    def test_order_fails_on_a_gpu_whose_streams_do_not_wait(self):
        status, said = self.verify("--only", "order,kept", PLAYED_FAULT="follows nothing")
        self.assertEqual((status, self.verdicts(said)), (1, {"order": "FAILED", "kept": "ok"}), said)
        self.assertRegex(said, "order .*batches .* are wrong")

    def test_bytes_fails_on_a_gpu_that_copies_too_little(self):
        path = os.path.join(WORK, "json")
        done = subprocess.run(self.command("--only", "bytes,gathered", "--json", path), stdout=subprocess.PIPE,
                              env=dict(os.environ, PLAYED_FAULT="copies too little"), text=True, timeout=200)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.verdicts(done.stdout)["bytes"], "FAILED", done.stdout)
        with open(path) as f:
            found = json.load(f)
        os.unlink(path)
        self.assertEqual(found["failed"], [v["name"] for v in found["verdicts"] if v["verdict"] == "FAILED"])
        self.assertIn("Traceback", found["verdicts"][0]["output"])

    def test_there_is_nothing_to_verify_without_a_driver_or_a_gpu(self):
        with tempfile.TemporaryDirectory() as empty:
            open(os.path.join(empty, "libcuda.so.1"), "w").close()
            for more in {"LD_LIBRARY_PATH": empty}, {"PLAYED_DEVICES": "-1"}:
                status, said = self.verify(**more)
                self.assertEqual(status, 77, said)
                self.assertRegex(said, r"^nothing to verify: no GPU: .*\n$")

    def test_a_part_that_is_missing_fails(self):
        status, said = self.verify("--only", "device", ONEPOT_CUDA=os.path.join(WORK, "nowhere.so"))
        self.assertEqual((status, self.verdicts(said)), (1, {"device": "FAILED"}), said)

    def test_a_gpu_or_a_check_that_is_not_there_is_named(self):
        status, said = self.verify("--device", "cuda:7")
        self.assertEqual(status, 1)
        self.assertRegex(said, "^it can't begin: .*cuDeviceGet: ")
        status, said = self.verify("--only", "order,nothing")
        self.assertEqual(status, 2)
        self.assertIn("no check is called 'nothing'; there are device, bytes,", said)

    def test_no_check_begins_when_the_time_is_over(self):
        options = verify_gpu.options_of(["--seconds", "0"])
        run = verify_gpu.Run(options, WORK)
        run.check("bytes", 40)
        self.assertEqual([(v["verdict"], v["said"]) for v in run.verdicts], [("left out", "the time is over")])

    def test_a_check_that_hangs_ends_with_its_children(self):
        status, said = verify_gpu.run_alone(["sh", "-c", "sleep 1000 & echo $!; exec sleep 1000"], 1)
        self.assertEqual(verify_gpu.judge(status, said, 1), ("FAILED", "not done in 1 s"))
        while os.path.exists("/proc/%s/exe" % int(said)):  # it was killed, and dies
            time.sleep(0.01)

    def test_what_an_interrupted_run_found_is_told(self):
        path = os.path.join(WORK, "json")
        run = subprocess.Popen(self.command("--json", path), env=dict(os.environ, TMPDIR=WORK),
                               stdout=subprocess.PIPE, text=True)
        first = run.stdout.readline()
        run.send_signal(signal.SIGTERM)
        rest = run.stdout.read()
        self.assertEqual(run.wait(60), 130)
        run.stdout.close()
        self.assertRegex(first, "^ok +device ")
        self.assertTrue(rest.endswith("interrupted\n"), rest)
        with open(path) as f:
            self.assertEqual(json.load(f)["verdicts"][0]["name"], "device")
        os.unlink(path)
        self.assertEqual(os.listdir(WORK), [])


if __name__ == "__main__":
    unittest.main()

"""slowfs for one figure: mounted anew, so that the kernel knows nothing of its files."""

import json
import os
import subprocess
import time

from commands import Unavailable

END_SECONDS = 30


class Slow:
    """A context: the tree lies below .at, .pid serves it, .counts() says what was asked."""

    def __init__(self, program, folder, *arguments):
        self.program, self.arguments = program, arguments
        self.at = os.path.join(folder, "slow")
        self.log = os.path.join(folder, "slowfs.stats")
        self.server = None

    def __enter__(self):
        if not self.program:
            raise Unavailable("slowfs was not built (--build, --slowfs)")
        os.makedirs(self.at, exist_ok=True)
        self.server = subprocess.Popen(
            [self.program, "--foreground", f"--stats={self.log}", *map(str, self.arguments),
             self.at], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)
        while not os.path.ismount(self.at):
            if self.server.poll() is not None:
                words = self.server.stderr.read().decode(errors="replace").strip()
                raise Unavailable(f"slowfs ended: {words[-300:]}")
            time.sleep(0.005)
        return self

    def __exit__(self, *_):
        self.server.terminate()
        try:
            self.server.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        if self.server.returncode != 0:  # killed, here or by the figure itself
            subprocess.run(["umount", "-l", self.at], check=False)
        self.server.stderr.close()

    @property
    def pid(self):
        return self.server.pid

    def counts(self):
        return json.loads(os.getxattr(self.at, "user.slowfs.stats"))

"""Nodes of a job, played on one machine: each has its memory, state and cache in a folder. Root
gives each its name, mounts and network, too, where the kernel allows it.

A node is a process that holds what belongs to it, and another one that owns its copies.
"""

import glob
import os
import shutil
import socket
import subprocess
import threading
import time
from ctypes import CDLL, get_errno

NAMESPACES = ("--mount", "--uts", "--net", "--propagation", "slave")
SETUP = ('set -e; mount -t tmpfs -o size="$2",mode=700 node "$1"; hostname "$3"; ip link set lo up; '
         "echo ready; exec sleep infinity")
CLONE_NEWNET = 0x40000000
END_SECONDS = 10


def can_separate():
    """Namespaces, and links between them?"""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("nsenter") and shutil.which("ip")):
        return False
    probe = "mount -t tmpfs none /mnt && ip link add veth0 type veth peer name veth1 && ip link add bridge0 type bridge"
    return subprocess.run(["unshare", *NAMESPACES, "sh", "-c", probe], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _run(*argv):
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _hold(*argv):
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if process.stdout.readline() != "ready\n":
        raise RuntimeError("a node could not be set up")
    return process


def wait_until(good, seconds):
    """Is it so within that time?"""
    end = time.monotonic() + seconds
    while not good():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


class Node:
    """place: its folder. address: of its network. command(...): how something is run there."""

    def __init__(self, rank, place, separate, memory_bytes):
        self.rank, self.place, self.separate = rank, place, separate
        self.address = f"10.99.0.{rank + 1}" if separate else "127.0.0.1"
        os.mkdir(place, 0o700)
        self.owner = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        if separate:
            self.holder = _hold("unshare", *NAMESPACES, "sh", "-c", SETUP, "node", place, str(memory_bytes),
                                f"node{rank}")
        else:
            self.holder = _hold("sh", "-c", "echo ready; exec sleep infinity")

    @property
    def pid(self):
        return self.holder.pid

    def command(self, *argv, net=True):
        if not self.separate:
            return list(argv)
        return ["nsenter", f"--target={self.pid}", "--mount", "--uts", *["--net"] * net, *argv]

    def path(self, *names):
        """The node's file, as this process sees it."""
        base = f"/proc/{self.pid}/root{self.place}" if self.separate else self.place
        return os.path.join(base, *names)

    def environment(self):
        return {"ONEPOT_RUNTIME_DIR": self.place, "ONEPOT_ASSUME_REMOTE": "1", "JOB_NODE": str(self.rank),
                "JOB_OWNER": str(self.owner.pid)}

    def listen(self):
        """A socket that listens in the node's network."""
        made = []

        def listen():
            if self.separate:
                with open(f"/proc/{self.pid}/ns/net", "rb") as name:
                    if CDLL(None, use_errno=True).setns(name.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(get_errno(), "setns")
            made.append(socket.create_server((self.address, 0)))
        thread = threading.Thread(target=listen)  # a network namespace is a thread's
        thread.start()
        thread.join()
        return made[0]

    def release(self):
        """End the owner of its copies."""
        self.owner.kill()
        self.owner.wait(END_SECONDS)

    def left(self):
        """Files of copies."""
        return [path for path in glob.glob(self.path("onepot-*", "*")) if os.path.basename(path) != "lock"]

    def copies(self):
        return glob.glob(self.path("onepot-stage-*", "*.copy"))

    def end(self):
        self.release()
        self.holder.kill()
        self.holder.wait(END_SECONDS)
        self.holder.stdout.close()


class Nodes(list):
    """A context: so many nodes below a folder, which are connected."""

    def __init__(self, count, folder, separate, memory_bytes):
        super().__init__()
        self.count, self.folder, self.separate, self.memory_bytes = count, folder, separate, memory_bytes
        self.switch = None

    def __enter__(self):
        try:
            for rank in range(self.count):
                self.append(Node(rank, os.path.join(self.folder, f"node{rank}"), self.separate, self.memory_bytes))
            if self.separate:
                self.connect()
        except BaseException:
            self.__exit__()
            raise
        return self

    def connect(self):
        """A bridge with a link to each node."""
        self.switch = _hold("unshare", "--net", "sh", "-c",
                            "set -e; ip link add bridge type bridge; ip link set bridge up; echo ready; "
                            "exec sleep infinity")
        inside = ("nsenter", f"--target={self.switch.pid}", "--net", "ip", "link")
        for node in self:
            port = f"port{node.rank}"
            _run(*inside, "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(node.pid))
            _run(*inside, "set", port, "master", "bridge", "up")
            enter = ("nsenter", f"--target={node.pid}", "--net", "ip")
            _run(*enter, "address", "add", f"{node.address}/24", "dev", "eth0")
            _run(*enter, "link", "set", "eth0", "up")

    def __exit__(self, *_):
        for node in self:
            node.release()
        for node in self:
            wait_until(lambda node=node: not node.left(), END_SECONDS)
            node.end()
        if self.switch:
            self.switch.kill()
            self.switch.wait(END_SECONDS)
            self.switch.stdout.close()
        for node in self:
            shutil.rmtree(node.place, ignore_errors=True)

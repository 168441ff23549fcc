"""What one node of a job does for a figure, or for a fault. Usage: node.py SPEC, a JSON file of all nodes.

JOB_NODE in the environment says which one this is. It leaves begunRANK.json as it begins, and
its figures in RANK.json.
"""

import glob
import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
import warnings
import zlib

import onepot
from notes import note, read_note
from ring import Ring

MIB = 1 << 20
LEAVE_S = 90
SLEEP_S = 0.00005, 0.002  # between looks at whether a message came: the first, and the longest


def cpu_seconds():
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Sleepy:
    """A communicator of mpi4py, asked now and then: MPI itself waits by spinning."""

    def __init__(self, comm):
        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    @staticmethod
    def _wait(request):
        pause, longest = SLEEP_S
        while not request.Test():
            time.sleep(pause)
            pause = min(pause * 1.5, longest)

    def allgather_into(self, mine, blocks):
        self._wait(self.comm.Iallgather(mine, blocks))

    def broadcast(self, block, root):
        self._wait(self.comm.Ibcast(block, root))


def engine_of(spec, rank):
    """(what onepot.stage() gets, what the bare exchange uses); None: a program has its own."""
    if spec["engine"] == "onepot-mpi":
        return None, None
    if spec["engine"] == "mpi4py":
        from mpi4py import MPI

        class Nodes(MPI.Intracomm):
            """Its processes are on one machine, and nodes."""
            def Split_type(self, *_kind):
                return MPI.COMM_SELF
        return Nodes(MPI.COMM_WORLD), Sleepy(MPI.COMM_WORLD)
    if spec["engine"] == "torch":
        import torch.distributed as dist
        onepot._stage._node = lambda: (rank, "")
        host, port = spec["addresses"][0]
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if host.startswith("127.") else "eth0"
        dist.init_process_group("gloo", init_method=f"tcp://{host}:{port}", rank=rank, world_size=spec["size"])
        return dist, None
    ring = Ring(rank, spec["size"], socket.socket(fileno=spec["listeners"][rank]),
                tuple(spec["addresses"][(rank + 1) % spec["size"]]))
    return ring, ring


def meet(spec, rank, engine):
    """All nodes have come here."""
    if engine:
        for _ in range(2):
            engine.allgather_into(bytearray(8), bytearray(8 * engine.size))
        return
    note(os.path.join(spec["out"], f"ready{rank}.json"), True)
    while not all(read_note(os.path.join(spec["out"], f"ready{other}.json")) for other in range(spec["size"])):
        time.sleep(0.005)


class Flips:
    """An engine whose groups have a wrong bit now and then on their way."""

    def __init__(self, engine, chance, rng):
        self.engine, self.rank, self.size, self.chance, self.rng = engine, engine.rank, engine.size, chance, rng

    def _flip(self, block):
        if len(block) >= MIB and self.rng.random() < self.chance:
            block[self.rng.randrange(len(block))] ^= 1 << self.rng.randrange(8)

    def allgather_into(self, mine, blocks):
        self.engine.allgather_into(mine, blocks)
        self._flip(blocks)

    def broadcast(self, block, root):
        self.engine.broadcast(block, root)
        self._flip(block)


# ---- what is timed ----

def stage_job(spec, group):
    if spec["memory"]:
        onepot._stage._MEMORY_BYTES = spec["memory"]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        onepot.stage(spec["archive"], None if spec["engine"] == "torch" else group, ["--owner", os.environ["JOB_OWNER"]], plain=spec["what"] == "folder")
    return [str(line.message) for line in said]


def stage_mpi(spec, _group):
    """As a rank: it has what mpirun gave this process."""
    plain = ["--plain"] if spec["what"] == "folder" else []
    done = subprocess.run([spec["onepot-mpi"], "stage", "--quiet", "--owner", os.environ["JOB_OWNER"], *plain,
                           spec["archive"]], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          close_fds=False, check=False)
    if done.returncode < 0:
        os.kill(os.getpid(), -done.returncode)  # mpirun knows this process
    if done.returncode:
        raise OSError(done.stderr)
    return done.stderr.splitlines()


def stage_alone(spec, _group):
    subprocess.run([spec["onepot"], "stage", "--quiet", "--owner", os.environ["JOB_OWNER"], spec["archive"]],
                   check=True, stdin=subprocess.DEVNULL)
    return []


def bare(spec, engine):
    """The same bytes handed round and written to memory, by groups as large as a stage's."""
    run = min(16, 32 // (engine.size + 1)) * MIB
    mine, blocks, left = bytearray(os.urandom(MIB)) * (run // MIB), bytearray(run * engine.size), spec["bytes"]
    with open(os.path.join(os.environ["ONEPOT_RUNTIME_DIR"], "bare"), "wb", buffering=0) as out:
        while left > 0:
            engine.allgather_into(mine, blocks)
            left -= out.write(memoryview(blocks)[:min(left, len(blocks))])
    return []


def timed(spec, group, engine):
    together = stage_job if group else stage_mpi
    act = {"stage": together, "folder": together, "alone": stage_alone, "bare": bare}[spec["what"]]
    begun, cpu = time.monotonic(), cpu_seconds()
    said = act(spec, engine if spec["what"] == "bare" else group)
    return {"begun": begun, "ended": time.monotonic(), "cpu": cpu_seconds() - cpu, "said": said}


# ---- what is checked ----

def crc_of(path):
    crc = 0
    with open(path, "rb", buffering=0) as f:
        while part := f.read(MIB):
            crc = zlib.crc32(part, crc)
    return crc


def is_right(spec):
    if spec["what"] == "bare":
        return True
    copies = glob.glob(os.path.join(os.environ["ONEPOT_RUNTIME_DIR"], "onepot-stage-*", "*.copy"))
    return len(copies) == 1 and crc_of(copies[0]) == spec["crc"]


def start_reader(spec, rank):
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reader.py")
    reader = subprocess.Popen([sys.executable, beside, spec["archive"], spec["store"], str(spec["paces"][rank]),
                               os.path.join(spec["out"], f"reader{rank}.json")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    reader.stdout.read(1)  # it has loaded its modules
    return reader


def leave_together(spec):
    """Without MPI_Finalize, which may wait for the dead, and for mpirun, which ends all with the first."""
    end = time.monotonic() + LEAVE_S
    while time.monotonic() < end and not all(read_note(os.path.join(spec["out"], f"{rank}.json"))
                                             for rank in range(spec["size"])):
        time.sleep(0.05)
    os._exit(0)


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        spec = json.load(f)
    rank = int(os.environ["JOB_NODE"])
    spec["archive"] = spec["archives"][rank]
    # Readers are started before MPI, which dislikes forks.
    reader = start_reader(spec, rank) if spec["paces"][rank] else None
    group, engine = engine_of(spec, rank)
    meet(spec, rank, engine)
    if reader:
        reader.stdin.write(b"g")
        reader.stdin.flush()
    if spec["flips"] and engine:
        group = Flips(engine, spec["flips"], random.Random(rank))
    note(os.path.join(spec["out"], f"begun{rank}.json"), os.getpid())
    try:
        figures = timed(spec, group, engine)
    except OSError as error:
        if not spec["faulty"]:
            raise
        figures = {"error": str(error)}
    if reader:
        reader.communicate(b"s")
    figures["right"] = "error" not in figures and is_right(spec)
    note(os.path.join(spec["out"], f"{rank}.json"), figures)
    if spec["faulty"] and spec["engine"] == "torch":
        os._exit(0)  # without the broken group's end
    if spec["faulty"] and spec["engine"] != "ring":
        leave_together(spec)


if __name__ == "__main__":
    main()

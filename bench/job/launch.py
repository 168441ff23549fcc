"""Starts a job: its archive behind slowfs, and the processes of its nodes by one of the engines."""

import json
import os
import random
import shutil
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

from slow import Slow

STORAGE = ("--read=2ms", "--bandwidth=100M", "--limit=32", "--pages=none")
SAMPLE_BYTES = 128 << 10
WITHOUT_MPI = ("ring", "torch")  # engines whose ranks are started one by one
NODE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "node.py")


def make_store(onepot, folder, size_bytes, seed=1):
    """An archive of samples and one of a single sample, and beside them the samples."""
    store, archives = folder / "train", folder / "archives"
    rng = random.Random(seed)
    for name, count in ((store, max(1, size_bytes // SAMPLE_BYTES)), (folder / "small", 1), (archives, 0)):
        name.mkdir()
        for i in range(count):
            (name / f"{i:06}").write_bytes(rng.randbytes(SAMPLE_BYTES))
    for name in ("train", "small"):
        subprocess.run([onepot, "pack", "--quiet", "--no-sync", "-o", archives / f"{name}.tar", folder / name],
                       check=True)
    return store, archives / "train.tar"


def crc_of(path):
    with open(path, "rb") as f:
        return zlib.crc32(f.read())


def engines(build):
    """What can hand blocks round here: name -> why it is absent, or None."""
    own = program(build)
    return {"ring": None, "torch": None if find_spec("torch") else "no torch in this Python",
            "mpi4py": None if find_spec("mpi4py") and mpirun(None) else "no mpi4py in this Python, or no mpirun",
            "onepot-mpi": None if own and mpirun(own) else "it was not built, or there is no mpirun of its MPI"}


def is_open_mpi(mpi_program):
    """Is this program, or without one mpi4py's module, linked to it?"""
    command = ["ldd", mpi_program] if mpi_program else [
        sys.executable, "-c", "import mpi4py, sys; mpi4py.rc.initialize = False; from mpi4py import MPI; "
        "print('libmpi.so.40' if MPI.get_vendor()[0] == 'Open MPI' else '')"]
    libraries = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return "libmpi.so.40" in libraries


def mpirun(mpi_program):
    """The one of this program's MPI, or of mpi4py's. Beside a system's Python is whichever is the default."""
    beside = os.path.join(os.path.dirname(mpi_program or sys.executable), "mpirun")
    name = "mpirun.openmpi" if is_open_mpi(mpi_program) else "mpirun.mpich"
    if os.access(beside, os.X_OK) and os.path.dirname(beside) not in ("/usr/bin", "/bin"):
        return beside
    return next(filter(None, map(shutil.which, (name, "mpirun"))), None)


def program(build):
    """onepot-mpi of this build."""
    return next((str(path) for path in Path(build).rglob("onepot-mpi") if os.access(path, os.X_OK)
                 and path.is_file()), None)


def environment(build, folder):
    paths = [os.path.join(build, "loader", "python"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1",
            "JOB_FOLDER": str(folder), "ONEPOT_STAGE": "job",
            "PATH": os.path.join(build, "fs") + os.pathsep + os.environ["PATH"],
            # Processes of MPI on one machine that are nodes of their own: no shared memory between them.
            "MPIR_CVAR_NOLOCAL": "1", "ONEPOT_MPI_RANKS_ARE_NODES": "1", "OMPI_MCA_btl": "tcp,self", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def by_mpi(nodes, mpi_program, command):
    """One command of mpirun: `command` on each of them. Ranks of Open MPI have to reach their launcher."""
    argv, open_mpi = [mpirun(mpi_program)], is_open_mpi(mpi_program)
    if open_mpi:
        argv += ["--oversubscribe", "--bind-to", "none"]
    for node in nodes:
        settings = [f"{name}={value}" for name, value in node.environment().items()]
        argv += [":"] * (node.rank > 0) + ["-n", "1"] + node.command("env", *settings, *command, net=not open_mpi)
    return argv


def start(build, nodes, spec, folder):
    """The processes of a job: one for each node, or mpirun's. SPEC is completed."""
    spec = {"size": len(nodes), "out": str(folder), "paces": [0] * len(nodes), "flips": 0, "faulty": False,
            "memory": None, "onepot-mpi": program(build) if spec["engine"] == "onepot-mpi" else None, **spec}
    path, env = os.path.join(folder, "spec"), environment(build, folder)
    log = open(os.path.join(folder, "log"), "ab")
    by_itself = spec["engine"] in WITHOUT_MPI
    listeners = [node.listen() for node in nodes] if by_itself else []
    spec["listeners"] = [end.fileno() for end in listeners]
    spec["addresses"] = [end.getsockname() for end in listeners]
    with open(path, "w", encoding="utf-8") as out:
        json.dump(spec, out)
    if spec["engine"] == "torch":  # rank 0 listens there, and nobody before
        listeners[0].close()

    command = [sys.executable, NODE, path]
    keep = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
    try:
        if not by_itself:
            return [subprocess.Popen(by_mpi(nodes, spec["onepot-mpi"], command), env=env, **keep)]
        return [subprocess.Popen(node.command(*command), env={**env, **node.environment()},
                                 pass_fds=[listeners[node.rank].fileno()] * (spec["engine"] == "ring"), **keep)
                for node in nodes]
    finally:
        log.close()
        for end in listeners:
            end.close()


def log_of(folder):
    with open(os.path.join(folder, "log"), encoding="utf-8", errors="replace") as f:
        return f.read().strip()


def storage(slowfs, folder, source, *more):
    """slowfs over the archives, as all nodes see it."""
    return Slow(slowfs, folder, *STORAGE, *more, source)

"""stage(): the nodes of a job copy an archive together, by what the job has: torch.distributed or MPI.

The program `onepot stage --job` reads this node's part from storage and keeps what the others read.
Here its blocks are handed round (cache/stage/stage_serve.c says what passes the pipes).
"""
import os
import socket
import struct
import subprocess
import sys
import threading

from onepot._mount import _program, _run

_MEMORY_BYTES = 64 << 20
_HELLO = struct.Struct("<QQQ")  # does this node take part, the bytes of a block, how many groups


class _Torch:
    """One process a node of a process group of torch.distributed."""

    def __init__(self, group):
        dist = sys.modules["torch.distributed"]
        self.torch, self.dist = sys.modules["torch"], dist
        names = [None] * dist.get_world_size(group)
        dist.all_gather_object(names, (socket.gethostname(), dist.get_rank()), group=group)
        first = {}
        for host, rank in names:
            first.setdefault(host, rank)
        self.ranks = sorted(first.values())
        takes_part = dist.get_rank() in self.ranks
        # All processes make a group together, unless some don't belong to the one that is given.
        alone = {} if group is None else {"use_local_synchronization": True}
        if takes_part or not alone:
            self.group = dist.new_group(self.ranks, backend="gloo", **alone)
        self.rank = self.ranks.index(dist.get_rank()) if takes_part else None
        self.size = len(self.ranks)

    def _tensor(self, memory):
        return self.torch.frombuffer(memory, dtype=self.torch.uint8)

    def allgather_into(self, mine, blocks):
        into = list(self._tensor(blocks).view(self.size, len(mine)))
        self.dist.all_gather(into, self._tensor(mine), group=self.group)

    def broadcast(self, block, root):
        self.dist.broadcast(self._tensor(block), src=self.ranks[root], group=self.group)


class _MPI:
    """One process a node of a communicator of mpi4py."""

    def __init__(self, comm):
        mpi = sys.modules["mpi4py.MPI"]
        local = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.comm = comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
        takes_part = self.comm != mpi.COMM_NULL
        self.rank = self.comm.rank if takes_part else None
        self.size = self.comm.size if takes_part else 0

    def allgather_into(self, mine, blocks):
        self.comm.Allgather(mine, blocks)

    def broadcast(self, block, root):
        self.comm.Bcast(block, root)


class _Alone:
    """No group: a job of one process."""
    rank, size = 0, 1

    def allgather_into(self, mine, blocks):
        blocks[:] = mine

    def broadcast(self, block, root):
        pass


def _engine(group):
    """What hands blocks round: an object with rank (None: takes no part), size, allgather_into and broadcast."""
    if hasattr(group, "allgather_into"):
        return group
    if group is not None and hasattr(group, "Split_type"):
        return _MPI(group)
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _Torch(group)
    if group is not None:
        raise TypeError("group is neither a process group of torch.distributed nor a communicator of mpi4py: %r"
                        % (group,))
    return _Alone()


def _read(pipe, memory):
    """Fill the memory. False: the pipe has ended."""
    view = memoryview(memory)
    while view:
        count = pipe.readinto(view)
        if not count:
            return False
        view = view[count:]
    return True


def _write(pipe, memory):
    """Write it all. A program that has ended needs none, and is missed at the next read."""
    view = memoryview(memory)
    try:
        while view:
            view = view[pipe.write(view):]
    except BrokenPipeError:
        pass


def _agree(engine, block_bytes, groups):
    """Do all nodes have a program that works, and groups of the same shape?"""
    mine, all_ = bytearray(_HELLO.pack(block_bytes != 0, block_bytes, groups)), bytearray(_HELLO.size * engine.size)
    engine.allgather_into(mine, all_)
    return block_bytes != 0 and all(hello == tuple(_HELLO.unpack(mine)) for hello in _HELLO.iter_unpack(all_))


def _exchange(engine, to, mine, blocks):
    """Hand the blocks of one group round, and to the program."""
    if blocks is not None:
        engine.allgather_into(mine, blocks)
        _write(to, blocks)
        return
    block = bytearray(len(mine))
    for root in range(engine.size):
        one = mine if root == engine.rank else block
        engine.broadcast(one, root)
        _write(to, one)


def _hand_round(engine, child):
    """All groups. A node whose program is gone sends zeros once, from which the others know."""
    words = child.stdout.readline(96).split()
    said = words[:2] == [b"onepot-job", b"1"] and len(words) == 4
    block_bytes, groups = (int(words[2]), int(words[3])) if said else (0, 0)
    if not _agree(engine, block_bytes, groups):
        return
    mine = bytearray(block_bytes)
    gathers = 2 * (engine.size + 1) * block_bytes <= _MEMORY_BYTES
    blocks = bytearray(block_bytes * engine.size) if gathers else None
    for _ in range(groups):
        more = child.stdout.read(1)
        if more == b"\0":
            return
        goes_on = more == b"\1" and _read(child.stdout, mine)
        if not goes_on:
            mine[:] = bytes(block_bytes)
        _exchange(engine, child.stdin, mine, blocks)
        if not goes_on:
            return


def _serve(engine, child, failures):
    """The thread of the engine. Whatever it meets, the program goes on with storage when its pipes end."""
    try:
        _hand_round(engine, child)
    except Exception as error:  # of the group's making: any
        failures.append(error)
    finally:
        for pipe in (child.stdin, child.stdout):
            try:
                pipe.close()
            except OSError:
                pass


def _listen(pipe, said):
    with pipe:
        said.append(pipe.read())


class _Staged:
    """A staged archive: see stage().

    path: the archive. takes_part: did this process copy for its node?"""

    def __init__(self, path, program, takes_part):
        self.path, self.takes_part = path, takes_part
        self._program = program

    def close(self):
        """close(): remove the copy, as soon as nobody uses it, in the process that made it."""
        if self._program:
            program, self._program = self._program, None
            if self.takes_part:
                _run(program, "unstage", self.path)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __repr__(self):
        return "<onepot.stage of %r>" % (self.path,)


def stage(archive, group=None, options=()):
    """stage(archive, group=None, options=())

    Copy an archive to every node of a job, reading it from storage once. All processes of the group
    call it; it returns when the copy of this node is complete, and in processes that take no part
    (all but the first of each node) at once:

        torch.distributed.init_process_group()
        onepot.stage("train.tar")
        archive = onepot.Archive("train.tar", stage="")

    Readers need not wait for it: what is not there yet, they fetch. The copy stays until the job
    step ends, or until close(), or the end of a block:

        with onepot.stage("train.tar", MPI.COMM_WORLD):
            ...

    group: a process group of torch.distributed, or a communicator of mpi4py. None: torch's default
    group if there is one, else this process alone. Any other object will do that has rank, size,
    allgather_into(mine, blocks), which fills a buffer with the `mine` of all ranks, and
    broadcast(block, root); one process a node has it.

    options: for `onepot stage`, such as ["--dir", "/scratch"]. OSError, with the program's message:
    the archive can't be staged, or another node has another archive by that name. If a node fails
    meanwhile, the others go on with storage, and warn.
    """
    path, program = os.fspath(archive), _program()
    engine = _engine(group)
    if engine.rank is None:
        return _Staged(path, program, False)
    child = subprocess.Popen([program, "stage", "--quiet", "--job", "%d/%d" % (engine.rank, engine.size), *options,
                              path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                             bufsize=0)
    failures, said = [], []
    threads = [threading.Thread(target=_serve, args=(engine, child, failures), daemon=True),
               threading.Thread(target=_listen, args=(child.stderr, said), daemon=True)]
    for thread in threads:
        thread.start()
    try:
        status = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    return _finish(_Staged(path, program, True), status, threads, said, failures)


def _finish(staged, status, threads, said, failures):
    """Raise or warn of what was said. An engine that hangs is left behind, as its group is."""
    threads[0].join(timeout=5)
    threads[1].join(timeout=5)
    text = os.fsdecode(said[0] if said else b"").strip()
    if status:
        raise OSError(text or "onepot stage failed")
    lines = [text] if text else []
    lines += ["onepot.stage: the group failed (%s): the rest was read from storage" % error for error in failures]
    if lines:
        import warnings
        warnings.warn("\n".join(lines), RuntimeWarning, stacklevel=3)
    return staged

"""stage(): the nodes of a job copy an archive together, by what the job has: torch.distributed or MPI.

The program `onepot stage --node` reads this node's part from storage and keeps what the others read.
Here its blocks are handed round (cache/stage/stage_serve.c says what passes the pipes): one thread takes
this node's block and exchanges it, while another gives the program what came before.
"""
import atexit
import datetime
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings

from onepot._mount import _program, _run
from onepot._progress import Line, _is_first, of_argument

_MEMORY_BYTES = 64 << 20
_PATIENCE_S = 60  # of the group for a node that is silent; the program's ends before that
_HELLO = struct.Struct("<QQQ")  # does this node take part, the bytes of a block, how many groups


def _node():
    """What processes of one node have in common. Nodes may all be called localhost."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return socket.gethostname(), f.read()
    except OSError:
        return socket.gethostname(), ""


class _Torch:
    """One process a node of a process group of torch.distributed, in a gloo group that nobody else uses."""

    def __init__(self, group):
        dist = sys.modules["torch.distributed"]
        self.torch, self.dist, self.everybody = sys.modules["torch"], dist, group
        first = {}
        for node, rank in self._gather((_node(), dist.get_rank())):
            first.setdefault(node, rank)
        self.ranks, self.size = sorted(first.values()), len(first)
        takes_part = dist.get_rank() in self.ranks
        self.rank = self.ranks.index(dist.get_rank()) if takes_part else None
        # All processes make a group together, unless some don't belong to the one that is given.
        alone = {} if group is None else {"use_local_synchronization": True}
        if self.size > 1 and (takes_part or not alone):
            self.group = dist.new_group(self.ranks, backend="gloo",
                                        timeout=datetime.timedelta(seconds=_PATIENCE_S), **alone)

    def _gather(self, mine):
        all_ = [None] * self.dist.get_world_size(self.everybody)
        self.dist.all_gather_object(all_, mine, group=self.everybody)
        return all_

    def _tensor(self, memory):
        return self.torch.frombuffer(memory, dtype=self.torch.uint8)

    def meet(self):
        self._gather(None)

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
        self.everybody, self.comm = comm, comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
        takes_part = self.comm != mpi.COMM_NULL
        self.size = comm.allreduce(local.rank == 0)
        self.rank = self.comm.rank if takes_part else None

    @staticmethod
    def _wait(request):
        """MPI's wait takes a whole CPU."""
        pause_s = 20e-6
        while not request.Test():
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 2e-3)

    def meet(self):
        self._wait(self.everybody.Ibarrier())

    def allgather_into(self, mine, blocks):
        self._wait(self.comm.Iallgather(mine, blocks))

    def broadcast(self, block, root):
        self._wait(self.comm.Ibcast(block, root))


def _torch_group():
    """Is this process in a job of torch.distributed?"""
    dist = sys.modules.get("torch.distributed")
    return dist is not None and dist.is_available() and dist.is_initialized()


def _engine(group):
    """What hands blocks round: an object with rank (None: takes no part), size, allgather_into and
    broadcast; all its processes meet() when their nodes' copies have begun. None: there is no group."""
    if hasattr(group, "allgather_into"):
        return group
    if group is not None and hasattr(group, "Split_type"):
        return _MPI(group)
    if _torch_group():
        return _Torch(group)
    if group is not None:
        raise TypeError("group is neither a process group of torch.distributed nor a communicator of mpi4py: %r"
                        % (group,))
    return None


def _read(pipe, memory):
    """Fill the memory. False: the pipe has ended."""
    view = memoryview(memory)
    while view:
        count = pipe.readinto(view)
        if not count:
            return False
        view = view[count:]
    return True


def _write_all(pipe, full, free):
    """The thread that gives the program what came. One that has ended is missed at the next read."""
    with pipe:
        for memory in iter(full.get, None):
            view = memoryview(memory)
            try:
                while view:
                    view = view[pipe.write(view):]
            except OSError:
                pass
            free.put(memory)


class _Copy:
    """The copy of this node, while the program makes it, with other nodes if there is an engine."""

    def __init__(self, path, engine, options):
        self.path, self.engine, self.error = path, engine, None
        self.failures, self.said, self.shape, self.done_bytes = [], "", (0, 0), 0
        node = ["--node", "%d/%d" % (engine.rank, engine.size)] if engine else []
        end = subprocess.PIPE if engine else subprocess.DEVNULL
        self.child, self.threads = None, []
        try:
            self.child = subprocess.Popen([_program(), "stage", "--quiet", *node, *options, path], stdin=end,
                                          stdout=end, stderr=subprocess.PIPE, bufsize=0)
        except OSError as error:
            self.error = error
        if self.child:
            self._start(self._listen)
        if self.child and engine:
            words = self.child.stdout.readline(96).split()
            if words[:2] == [b"onepot-job", b"1"] and len(words) == 4:
                self.shape = int(words[2]), int(words[3])

    def _start(self, function, *arguments):
        self.threads.append(threading.Thread(target=function, args=arguments, daemon=True))
        self.threads[-1].start()

    def _listen(self):
        with self.child.stderr as pipe:
            self.said = os.fsdecode(pipe.read()).strip()

    def exchange(self):
        """Start the threads of the engine."""
        full, free = queue.SimpleQueue(), queue.SimpleQueue()
        if self.child:
            self._start(_write_all, self.child.stdin, full, free)
        self._start(self._serve, full, free)

    def _serve(self, full, free):
        """Whatever it meets, the program goes on with storage when its pipes end."""
        try:
            self._hand_round(full, free)
        except Exception as error:  # of the group's making: any
            self.failures.append("onepot.stage: the group failed (%s): the rest was read from storage" % error)
        finally:
            full.put(None)
            if self.child:
                self.child.stdout.close()

    def _agrees(self):
        """Do all nodes have a program that works, and groups of the same shape?"""
        engine, mine = self.engine, _HELLO.pack(self.shape[0] != 0, *self.shape)
        all_ = bytearray(_HELLO.size * engine.size)
        engine.allgather_into(bytearray(mine), all_)
        return self.shape[0] != 0 and all_ == mine * engine.size

    def _hand_round(self, full, free):
        """All groups. A node whose program is gone sends zeros twice, from which the others know."""
        if not self._agrees():
            return
        engine, (block_bytes, groups) = self.engine, self.shape
        mine = bytearray(block_bytes)
        gathers = 2 * (engine.size + 1) * block_bytes <= _MEMORY_BYTES
        for _ in range(2):
            free.put(bytearray(block_bytes * (engine.size if gathers else 1)))
        left = 0
        for _ in range(groups):
            more = b"\2" if left else self.child.stdout.read(1)
            if more == b"\0":
                return
            goes_on = more == b"\1" and _read(self.child.stdout, mine)
            if not goes_on:
                mine[:] = bytes(block_bytes)
            for root in [None] if gathers else range(engine.size):
                self._exchange(mine, free.get(), root, full)
            left += not goes_on
            if left == 2:
                return
            self.done_bytes += engine.size * (block_bytes >> 20 << 20)  # without its heads

    def _exchange(self, mine, memory, root, full):
        """The blocks of all nodes, or one's."""
        if root is None:
            self.engine.allgather_into(mine, memory)
        else:
            if root == self.engine.rank:
                memory[:] = mine
            self.engine.broadcast(memory, root)
        full.put(memory)

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait()

    def finish(self, progress=None):
        """Wait for the program, and raise or warn of what went wrong. A group that hangs is left behind."""
        total = os.stat(self.path).st_size if progress else 0
        while self.child and self.child.poll() is None:
            if progress:
                progress(self.path, "staging", min(self.done_bytes, total), total)
            try:
                self.child.wait(timeout=0.2 if progress else None)
            except subprocess.TimeoutExpired:
                pass
        for thread in self.threads:
            thread.join(timeout=5)
        if self.error or self.child.returncode:
            raise self.error or OSError(self.said or "onepot stage failed")
        if progress:
            progress(self.path, "staging", total, total)
        said = self.said.splitlines()
        if self.failures:  # the program knows nothing of why its pipes have ended
            said = [line for line in said if "(the engine has ended)" not in line]
        self.failures[:0] = said


def _warn(failures, stacklevel):
    if failures:
        warnings.warn("\n".join(failures), RuntimeWarning, stacklevel=stacklevel)


def _join(group):
    """The engine, or None, and why there is none."""
    try:
        return _engine(group), []
    except RuntimeError as error:
        return None, ["onepot.stage: there is no group (%s): each node reads from storage" % error]


def _start(path, engine, options):
    """The copy of this node, which all nodes have begun then. None: another process of the node makes it."""
    copy = _Copy(path, engine, options) if engine.rank is not None else None
    if hasattr(engine, "meet"):
        try:
            engine.meet()
        except RuntimeError:  # the exchange will fail as well, and say so
            pass
    if copy:
        copy.exchange()
    return copy


def _finish_behind(copy):
    """The thread that waits for a copy while it is read. Without one, reads go to storage."""
    try:
        copy.finish()
    except OSError as error:
        copy.failures.append("onepot.stage: %s" % error)
    _warn(copy.failures, 2)


def _stop_at_exit(copy, pid):
    if os.getpid() == pid:
        copy.stop()


def start_in_job(path):
    """For Archive(stage="job"): all processes of torch's group begin the copies that stage="" finds.
    Does nothing without a group, or in a group of one node."""
    if not _torch_group():
        return
    engine, failures = _join(None)
    _warn(failures, 4)
    copy = _start(path, engine, ["--owner", str(os.getpid())]) if engine and engine.size > 1 else None
    if copy:
        atexit.register(_stop_at_exit, copy, os.getpid())
        threading.Thread(target=_finish_behind, args=(copy,), name="onepot.stage", daemon=True).start()


class _Staged:
    """A staged archive: see stage().

    path: the archive. takes_part: did this process copy for its node?"""

    def __init__(self, path, takes_part):
        self.path, self.takes_part = path, takes_part
        self._is_open = takes_part

    def close(self):
        """close(): remove the copy, as soon as nobody uses it, in the process that made it."""
        if self._is_open:
            self._is_open = False
            _run(_program(), "unstage", self.path)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def __repr__(self):
        return "<onepot.stage of %r>" % (self.path,)


def stage(archive, group=None, options=(), *, progress=None):
    """stage(archive, group=None, options=(), *, progress=None)

    Copy an archive to every node of a job, reading it from storage once. All processes of the group
    call it. One process a node takes part, and the others wait: it returns when the copy of this
    node is complete.

        torch.distributed.init_process_group()
        onepot.stage("train.tar")
        archive = onepot.Archive("train.tar", stage="")

    To read while the copy is made, use Archive("train.tar", stage="job") instead. The copy stays
    until the job step ends, or until close(), or the end of a block:

        with onepot.stage("train.tar", MPI.COMM_WORLD):
            ...

    archive: the path of one. group: a process group of torch.distributed, or a communicator of
    mpi4py. None: torch's default group if there is one, else this process alone. A group of nccl
    exchanges names on torch's current device (as all_gather_object does), and the archive by a gloo
    group beside it. Any other object will do that has rank, size, allgather_into(mine, blocks),
    which fills a buffer with the `mine` of all ranks, and broadcast(block, root); one process a node
    has it.

    options: for `onepot stage`, such as ["--dir", "/scratch"]. progress: see Archive. OSError, with
    the program's message: the archive can't be staged, or another node has another archive by that
    name. If a node or the group fails meanwhile, the others go on with storage, and warn.
    """
    path, report = os.fspath(archive), of_argument(progress)
    engine, failures = _join(group)
    takes_part = engine.rank is not None if engine else not failures or _is_first()
    copy = _start(path, engine, options) if engine and engine.size > 1 else None
    copy = copy or _Copy(path, None, options)
    try:
        copy.finish(report)
    except BaseException:
        copy.stop()
        raise
    finally:
        if isinstance(report, Line):
            report.end()
    _warn(failures + copy.failures, 3)
    return _Staged(path, takes_part)

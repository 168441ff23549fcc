"""stage(): the nodes of a job copy an archive together, by what the job has: torch.distributed or MPI.

The program `onepot stage --node` reads this node's part from storage and keeps what the others read.
Here its blocks are handed round, from a memory that both share (cache/stage/stage_job.c says how).

A group that loses a node is at an end, for torch as for MPI. The nodes that are left make another one, where the
engine can: regroup(). Each then starts a second program, which joins the first one's copy, and they begin with
the first blocks that one of them lacks. So nothing that a node has is read again, but for groups on their way.
"""
import array
import atexit
import collections
import copy as copies
import ctypes
import datetime
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings

from onepot._mount import _program, _run
from onepot._progress import Line, _is_first, of_argument

_MEMORY_BYTES = 64 << 20
_PATIENCE_S = 60  # of the group for a node that is silent; the program's ends before that
_OWN_PATIENCE_S = 15  # for this node's program
_SILENT_S = 18  # of the group, once its first blocks have come; programs wait for 20
_REGROUP_S = 5  # for all nodes that are left to say so
_REGROUPS = 3
_LOOK_S = 1  # between looks at whether others have given the group up
_LEAVE_S = 1  # at the end of a process, for its last blocks
_BROADCASTS = 16  # blocks on their way, if there are too many nodes to gather all
_WORD, _OWN, _HOLD = struct.Struct("=Q"), 1 << 63, (1 << 64) - 2  # what the engine writes (cache/stage/stage_job.c)
_HELLO = struct.Struct("<QQQ")  # does this node take part, the bytes of a block, how many groups


def _node():
    """What processes of one node have in common. Nodes may all be called localhost."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
            return socket.gethostname(), f.read()
    except OSError:
        return socket.gethostname(), ""


def _bytes(path):
    """Of a file, or of the files of a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)


def _poll(is_complete):
    """MPI's wait takes a whole CPU."""
    pause_s = 20e-6
    while not is_complete():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 2e-3)


class _Torch:
    """One process a node of a process group of torch.distributed, in a gloo group that nobody else uses."""

    def __init__(self, group):
        dist = sys.modules["torch.distributed"]
        self.torch, self.dist, self.everybody = sys.modules["torch"], dist, group
        self.is_left, self.kept = False, collections.deque(maxlen=4)  # see leave()
        self.rounds, self.store, self.next_look = 0, None, 0
        first, all_ = {}, self._gather((_node(), dist.get_rank(), os.urandom(8).hex()))
        self.names = ["onepot/%s/%d" % (all_[0][2], i) for i in range(_REGROUPS)]  # in the store, of groups to come
        for node, rank, _ in all_:
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

    def leave(self):
        """For the end of the process. A thread in C++ that wants the interpreter afterwards takes the process down:
        ours, if torch waited in it; torch's, if it has the last reference to a tensor. And a group waits for what is
        on its way before it goes. So nothing waits there, and nothing of it goes."""
        self.is_left = True
        self._stay()

    def _stay(self):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _wait(self, work, *tensors):
        """Nodes that start late are waited for."""
        self.kept.append((work, tensors))
        now = time.monotonic()
        self.next_look = now + _LOOK_S
        patience_s = _PATIENCE_S if self.rounds <= 2 else _SILENT_S

        def is_over():
            if not self.is_left and not work.is_completed():
                self.look()
                if time.monotonic() - now > patience_s:
                    raise RuntimeError("a node was silent for %d s" % patience_s)
            return self.is_left or work.is_completed()
        try:
            _poll(is_over)
        except Exception:
            self._stay()  # with the memory of what is on its way
            raise
        if self.is_left:
            raise RuntimeError("this process ends")
        work.wait()  # what it may raise

    def allgather_into(self, mine, blocks):
        into, own = list(self._tensor(blocks).view(self.size, len(mine))), self._tensor(mine)
        self.rounds += 1
        self._wait(self.group.allgather([into], [own]), into, own)

    def broadcast(self, block, root):
        tensor = self._tensor(block)
        self.rounds += 1 / self.size
        self._wait(self.group.broadcast(tensor, root), tensor)

    def _open_store(self):
        """The job's, for the next group, by a connection of its own: the job may wait in the other one."""
        store = self.dist.distributed_c10d._get_default_store()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if isinstance(store, self.dist.TCPStore):
            store = self.dist.TCPStore(store.host, store.port, is_master=False, wait_for_workers=False,
                                       timeout=datetime.timedelta(seconds=_REGROUP_S))
        return self.dist.PrefixStore(self.names[0], store)

    def look(self):
        """Raise if another node has given the group up: gloo tells only neighbours of the node that it lost."""
        if time.monotonic() < self.next_look or not self.names:
            return
        try:
            self.store = self.store or self._open_store()
            is_given_up = self.store.add("came", 0) > 0
        except Exception:  # nothing can be made of a failure, either
            self.names, is_given_up = [], False
        self.next_look = time.monotonic() + _LOOK_S
        if is_given_up:
            raise RuntimeError("other nodes have lost one")

    def _await(self, is_so, limit_s):
        """Is it so within that time?"""
        until = time.monotonic() + limit_s
        while not is_so():
            if self.is_left:
                raise RuntimeError("this process ends")
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_S / 5)
        return True

    def regroup(self, chunk):
        """(The engine of the nodes that are left, and the first chunk that one of them lacks.) Each node that has a
        program (else chunk is None) comes to the store. The first one waits for the others, and then says who came."""
        if chunk is None or not self.names:
            raise RuntimeError("onepot has ended" if self.names else "no further group is made")

        def get(key):
            store.wait([key], datetime.timedelta(seconds=_REGROUP_S))
            return store.get(key)
        store = self.store or self._open_store()
        place = store.add("came", 1)
        store.set("node%d" % place, "%d %d" % (self.rank, chunk))
        if place == 1:
            self._await(lambda: store.add("came", 0) == self.size, _REGROUP_S)
            came = [get("node%d" % i) for i in range(1, store.add("came", 0) + 1)]
            store.set("nodes", b",".join(came))
            store.add("is said", 1)
        if not self._await(lambda: store.add("is said", 0), 2 * _REGROUP_S):
            raise RuntimeError("the node that was to say who is left is gone")
        nodes = dict(map(int, node.split()) for node in get("nodes").split(b","))
        if self.rank not in nodes or len(nodes) < 2:
            is_alone = nodes == {self.rank: chunk}
            raise RuntimeError("no other node is left" if is_alone else "the others go on without it")
        return self._of(sorted(nodes), store), min(nodes.values())

    def _of(self, ranks, store):
        """The engine of these ranks of this one."""
        engine = copies.copy(self)
        engine.is_left, engine.kept = False, collections.deque(maxlen=4)
        engine.rounds, engine.store, engine.names = 3, None, self.names[1:]
        engine.rank, engine.size = ranks.index(self.rank), len(ranks)
        engine.group = self.dist.ProcessGroupGloo(self.dist.PrefixStore("group", store), engine.rank, engine.size,
                                                  datetime.timedelta(seconds=_SILENT_S))
        engine._stay()  # as leave() says
        return engine


class _MPI:
    """One process a node of a communicator of mpi4py."""

    def __init__(self, comm):
        self.mpi = mpi = sys.modules["mpi4py.MPI"]
        local = comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.everybody, self.comm = comm, comm.Split(0 if local.rank == 0 else mpi.UNDEFINED, comm.rank)
        takes_part = self.comm != mpi.COMM_NULL
        self.size = comm.allreduce(local.rank == 0)
        self.rank = self.comm.rank if takes_part else None
        self.has_agreed = False

    def meet(self):
        _poll(self.everybody.Ibarrier().Test)

    def allgather_into(self, mine, blocks):
        _poll(self.comm.Iallgather(mine, blocks).Test)

    def broadcast(self, block, root):
        _poll(self.comm.Ibcast(block, root).Test)

    def agree(self, is_well=True):
        """Once for a group, on all nodes. Raises if one was lost: also on nodes that have all blocks, as others may
        need theirs."""
        if self.has_agreed or not hasattr(self.comm, "Iagree"):
            return
        self.has_agreed, flag = True, array.array("i", [is_well])
        try:
            request = self.comm.Iagree(flag)
        except (NotImplementedError, self.mpi.Exception):  # this MPI loses no node
            return
        _poll(request.Test)
        if not flag[0]:
            raise RuntimeError("other nodes have lost one")

    def regroup(self, chunk):
        """As that of _Torch, where MPI goes on without a process (ULFM: Open MPI 5 with --with-ft ulfm, mpi4py 4)."""
        if not (self.comm.Is_revoked() or self.comm.Get_failed().size):
            raise RuntimeError("MPI reports no lost node")
        self.comm.Revoke()
        try:
            self.agree(False)
        except (RuntimeError, self.mpi.Exception):
            pass
        left, engine = self.comm.Shrink(), copies.copy(self)
        engine.comm, engine.has_agreed = left.Split(self.mpi.UNDEFINED if chunk is None else 0, left.rank), False
        if chunk is None:
            raise RuntimeError("onepot has ended")
        engine.rank, engine.size = engine.comm.rank, engine.comm.size
        return engine, engine.comm.allreduce(chunk, self.mpi.MIN)


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


def _shared_memory():
    """A file in memory, to be shared with the program."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("onepot-ring")
    with tempfile.TemporaryFile(dir="/dev/shm") as f:
        return os.dup(f.fileno())


class _Ring:
    """The blocks that the program makes and takes: two of its own, in turn, and others."""

    def __init__(self, child, fd, block_bytes, others, look):
        self.child, self.block_bytes, self.look = child, block_bytes, look
        os.posix_fallocate(fd, 0, (2 + others) * block_bytes)
        self.memory = memoryview(mmap.mmap(fd, (2 + others) * block_bytes))
        self.made = self.taken = 0
        self.is_over = self.has_left = self.was_silent = False

    def blocks(self, place, count=1):
        return self.memory[place * self.block_bytes:(place + count) * self.block_bytes]

    def _write(self, *words):
        """A program that has ended is missed at the next answer."""
        if self.has_left:
            return
        try:
            self.child.stdin.write(b"".join(map(_WORD.pack, words)))
        except OSError:
            pass

    def tell(self, *places):
        """Where the next blocks lie."""
        self._write(*(place * self.block_bytes for place in places))

    def ask(self, group):
        """For the own block of a group. The one before was made."""
        self._write(_OWN | group % 2 * self.block_bytes)

    def hold(self):
        """Let the program wait for what comes in the group's place."""
        self._write(_HOLD)

    def _is_silent(self):
        """The others go on without a program that is. One day it may go on with the blocks that it knows of, so later
        ones are elsewhere. The first block is waited for."""
        answers, begun = select.poll(), time.monotonic()
        answers.register(self.child.stdout, select.POLLIN)
        while not self.was_silent and not answers.poll(_LOOK_S * 1000):
            self.look()
            self.was_silent = self.made > 0 and time.monotonic() - begun > _OWN_PATIENCE_S
        if self.was_silent:
            self.child.stdin.close()
            self.memory = memoryview(mmap.mmap(-1, len(self.memory)))
        return self.was_silent

    def goes_on(self, made, taken):
        """Wait until so many own blocks were made, and all nodes' blocks taken. False: that will not be."""
        while not (self.is_over or self.has_left) and (self.made < made or self.taken < taken):
            answer = b"" if self._is_silent() else self.child.stdout.read(1)
            self.made += answer == b"\1"
            self.taken += answer == b"\3"
            self.is_over = answer == b"\0"
            self.has_left = answer in (b"\2", b"")
        return not (self.is_over or self.has_left)


class _Copy:
    """The copy of this node, while the program makes it, with other nodes if there is an engine: from a chunk on
    (of 1 MiB), if others have made what lies before it."""

    def __init__(self, path, engine, options, chunk=0):
        self.path, self.engine, self.options, self.error = path, engine, options, None
        self.failures, self.said, self.shape = [], "", (0, 0)
        self.chunk, self.done_bytes = chunk, chunk << 20
        self.is_stopped = False  # by this process
        self.gathers = True
        self.ring = self.next = None  # next: what goes on when the engine has failed
        self.ring_fd = _shared_memory() if engine else -1
        node = ["--node=%d/%d/%d" % (engine.rank, engine.size, chunk), "--ring=%d" % self.ring_fd] if engine else []
        end = subprocess.PIPE if engine else subprocess.DEVNULL
        self.child, self.threads = None, []
        try:
            self.child = subprocess.Popen([_program(), "stage", "--quiet", *node, *options, path], stdin=end,
                                          stdout=end, stderr=subprocess.PIPE, bufsize=0,
                                          pass_fds=[self.ring_fd] if engine else [])
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
        """Start the thread of the engine."""
        self._start(self._serve)

    def _serve(self):
        """Whatever it meets, the program goes on with storage when its pipes end."""
        try:
            self._hand_round()
            if isinstance(self.engine, _MPI):
                self.engine.agree()
        except Exception as error:  # of the group's making: any
            self.failures.append("onepot.stage: the group failed (%s): %s" % (error, self._regroup()))
        finally:
            os.close(self.ring_fd)
            if self.child:
                self.child.stdin.close()
                self.child.stdout.close()
        if self.next:
            self.next._serve()

    def _goes_on(self):
        """Is there a program that can join those of other nodes?"""
        return self.ring and not self.ring.has_left and not self.is_stopped and self.child.poll() is None

    def _regroup(self):
        """Begin the next copy, if nodes are left; how it goes on. Meanwhile the program holds the copy."""
        run, size = self.shape[0] >> 20, self.engine.size
        chunk = None
        if self._goes_on():
            self.ring.hold()
            chunk = self.chunk + self.ring.taken // size * size * run
        try:
            engine, chunk = self.engine.regroup(chunk)
            if engine.size < 2 or not self._goes_on():
                raise RuntimeError("no other node is left" if engine.size < 2 else "onepot has ended")
            copy = _Copy(self.path, engine, self.options, chunk)
            if copy.error:
                raise copy.error
        except Exception as error:  # as above
            is_able = hasattr(self.engine, "regroup")
            return "the rest was read from storage" + is_able * " (%s)" % error
        self.next = copy
        if self.is_stopped:
            copy.stop()
        return "%d of its %d nodes went on together" % (engine.size, size)

    def _agrees(self):
        """Do all nodes have a program that works, and groups of the same shape?"""
        engine, mine = self.engine, _HELLO.pack(self.shape[0] != 0, *self.shape)
        all_ = bytearray(_HELLO.size * engine.size)
        engine.allgather_into(bytearray(mine), all_)
        return self.shape[0] != 0 and all_ == mine * engine.size

    def _make_ring(self):
        """It gathers the blocks of all nodes if the memory is enough, which is so on all or on none."""
        self.gathers = 2 * (self.engine.size + 1) * self.shape[0] <= _MEMORY_BYTES
        others = self.engine.size if self.gathers else _BROADCASTS
        try:
            look = getattr(self.engine, "look", lambda: None)
            return _Ring(self.child, self.ring_fd, self.shape[0], others, look)
        except (OSError, ValueError):  # no memory; no program, and so no blocks
            self.shape = 0, 0
            return None

    def _hand_round(self):
        """All groups. A node whose program is gone sends its name and zeros from then on; the others go on."""
        ring = self.ring = self._make_ring()
        if not self._agrees():
            return
        engine, (block_bytes, groups) = self.engine, self.shape
        ring.ask(0)
        for group in range(groups):
            if ring.goes_on(group + 1, group * engine.size) and group + 1 < groups:
                ring.ask(group + 1)
            if ring.is_over:
                return
            if ring.has_left:
                ring.blocks(group % 2)[:] = os.fsencode(socket.gethostname())[:63].ljust(block_bytes, b"\0")
            if self.gathers:
                engine.allgather_into(ring.blocks(group % 2), ring.blocks(2, engine.size))
                ring.tell(*range(2, 2 + engine.size))
            else:
                self._broadcast(ring, group)
            self.done_bytes += engine.size * (block_bytes >> 20 << 20)  # without its heads
        ring.goes_on(groups, groups * engine.size)
        if ring.was_silent:
            self.failures.append("onepot.stage: onepot was silent for %d s: the other nodes went on without it"
                                 % _OWN_PATIENCE_S)

    def _broadcast(self, ring, group):
        engine = self.engine
        for root in range(engine.size):
            ring.goes_on(0, group * engine.size + root + 1 - _BROADCASTS)  # its place was taken
            place = group % 2 if root == engine.rank else 2 + root % _BROADCASTS
            engine.broadcast(ring.blocks(place), root)
            ring.tell(place)

    def stop(self):
        self.is_stopped = True
        if self.child:
            self.child.terminate()
            self.child.wait()
        if self.next:
            self.next.stop()

    def leave(self):
        self.engine.leave()
        if self.next:
            self.next.leave()

    def join(self, timeout_s):
        for thread in self.threads:
            thread.join(timeout_s)

    def finish(self, progress=None):
        """Wait for the program, and raise or warn of what went wrong. A group that hangs is left behind."""
        total = _bytes(self.path) if progress else 0
        while self.child and self.child.poll() is None:
            if progress:
                progress(self.path, "staging", min(self._done_bytes(), total), total)
            try:
                self.child.wait(timeout=0.2 if progress else None)
            except subprocess.TimeoutExpired:
                pass
        self.join(5)
        if self.next:
            try:
                self.next.finish()
            except OSError as error:  # this one's program has made the copy without it
                self.next.failures.append("onepot.stage: %s" % error)
            self.join(5)
        if self.error or self.child.returncode:
            raise self.error or OSError(self.said or "onepot stage failed")
        if progress:
            progress(self.path, "staging", total, total)
        said = self.said.splitlines()
        if self.failures:  # the program knows nothing of why its pipes have ended, nor of the next one
            untrue = "the other nodes are gone" if self.next else "(the engine has ended)"
            said = [line for line in said if untrue not in line]
        self.failures[:] = said + self.failures + (self.next.failures if self.next else [])

    def _done_bytes(self):
        return self.next._done_bytes() if self.next else self.done_bytes


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
    if not copy.is_stopped:
        _warn(copy.failures, 2)


def _stop_at_exit(copy, pid):
    """The other nodes hear of it, as of any program that ends, but are not waited for long."""
    if os.getpid() == pid:
        copy.stop()
        copy.join(_LEAVE_S)
        copy.leave()
        copy.join(_LEAVE_S)


def start_in_job(path, plain):
    """For Archive(stage="job"): all processes of torch's group begin the copies that stage="" finds.
    Does nothing without a group, or in a group of one node."""
    if not _torch_group():
        return
    engine, failures = _join(None)
    _warn(failures, 4)
    options = ["--owner", str(os.getpid())] + plain * ["--plain"]
    copy = _start(path, engine, options) if engine and engine.size > 1 else None
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


def stage(archive, group=None, options=(), *, progress=None, plain=False):
    """stage(archive, group=None, options=(), *, progress=None, plain=False)

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

    options: for `onepot stage`, such as ["--dir", "/scratch"]. progress, plain: see Archive. OSError, with
    the program's message: the archive can't be staged, or another node has another archive by that
    name. If a node fails meanwhile, the others go on together where the group lets them, else with storage, and warn.
    """
    path, report = os.fspath(archive), of_argument(progress)
    options = [*options, *plain * ["--plain"]]
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

"""torch's DistributedSampler, with its order made in C."""
import warnings
from operator import index

from onepot import _core
from onepot._torch import TorchAware


def _count(dataset):
    return dataset if isinstance(dataset, int) else len(dataset)


def rank_of(rank, world_size, what, level):
    """Rank and world size, as given, or the launcher's if both are None. Warns if these may
    surprise, about a caller so many levels up. `what` is the world size's name in messages."""
    if (rank is None) != (world_size is None):
        raise ValueError("rank and %s are given both or none" % what)
    if rank is None:
        rank, world_size, note = _core.launcher_rank()
        if note is not None:
            warnings.warn(note, RuntimeWarning, stacklevel=level + 1)
    elif index(world_size) == 0:
        raise ValueError("%s is 0" % what)
    return rank, world_size


class Order:
    """The elements of one rank: a sampler of the library, whose handle lies in a capsule. Its names
    are private (__), as subclasses have attributes of their users' choice."""

    __slots__ = ("__handle", "__skip")  # __skip: where the next iterator begins

    def __init__(self, samples, rank, world_size, options):
        rank, world_size = rank_of(rank, world_size, "num_replicas", 3)
        handle = _core.sampler_open(samples, dict(options, rank=rank, world_size=world_size))
        if hasattr(self, "_Order__handle"):
            raise ValueError("the sampler was initialised already")
        self.__handle, self.__skip = handle, 0

    def __opened(self):
        """The handle. A subclass may call a method before our __init__."""
        try:
            return self.__handle
        except AttributeError:
            raise ValueError("the sampler was not initialised") from None

    def __len__(self):
        return _core.sampler_numbers(self.__opened())[0]

    @property
    def rank(self):
        """The number of this rank, below num_replicas."""
        return _core.sampler_numbers(self.__opened())[1]

    @property
    def num_replicas(self):
        """The number of ranks."""
        return _core.sampler_numbers(self.__opened())[2]

    @property
    def epoch(self):
        """The epoch that set_epoch() chose."""
        return _core.sampler_numbers(self.__opened())[3]

    def __iter__(self):
        handle = self.__opened()
        get = _core.sampler_getter(handle)
        first, self.__skip = self.__skip, 0
        # Not len(self): a subclass may count something else, as batches, or what is left.
        return map(get, range(first, _core.sampler_numbers(handle)[0]))

    def set_epoch(self, epoch):
        """Shuffle for another epoch."""
        _core.sampler_set_epoch(self.__opened(), epoch)

    def state_dict(self):
        """The epoch and the position in it, as a dict."""
        return {"epoch": self.epoch, "yielded": self.__skip}

    def load_state_dict(self, state):
        """Go to the position of a state: 'epoch', and 'yielded', the elements to pass over."""
        yielded = index(state["yielded"])
        if not 0 <= yielded < 1 << 64:
            raise OverflowError("%r is not between 0 and %d" % (yielded, (1 << 64) - 1))
        Order.set_epoch(self, state["epoch"])
        self.__skip = yielded


class DistributedSampler(TorchAware, Order):
    """DistributedSampler(dataset, num_replicas=None, rank=None, shuffle=True, seed=0,
                       drop_last=False, *, block=0, window=0, worker=0, workers=0)

    The order of torch.utils.data.DistributedSampler, bit for bit, in a fraction of the memory.
    If torch is loaded, this is a subclass of torch's class.

    >>> sampler = onepot.DistributedSampler(10, num_replicas=2, rank=0, shuffle=False)
    >>> list(sampler), len(sampler)
    ([0, 2, 4, 6, 8], 5)

    dataset          anything with a length, or a number of samples
    num_replicas, rank
                     None: from the launcher's environment (torchrun, MPI, Slurm...)
    block, window    shuffle blocks of `block` samples, then the samples within each `window`
                     blocks: not torch's order, but faster on slow storage
    worker, workers  only every workers-th element of the rank's order, from number `worker` on

    Attributes: the arguments dataset, num_replicas, rank, shuffle, seed and drop_last; epoch; and

    num_samples      elements of this rank (of this worker)
    total_size       elements of all ranks, padding included

    ValueError: rank is not below num_replicas, or worker not below workers. Any number of threads
    may use a sampler; an iterator belongs to one. Running iterators follow set_epoch().
    """

    _torch_name = "DistributedSampler"

    def __init__(self, dataset, num_replicas=None, rank=None, shuffle=True, seed=0,
                 drop_last=False, *, block=0, window=0, worker=0, workers=0):
        more = {"block": block, "window": window, "worker": worker, "workers": workers}
        super().__init__(_count(dataset), rank, num_replicas,
                         dict(more, shuffle=shuffle, seed=seed, drop_last=drop_last))
        self.__more = more
        self.dataset, self.shuffle, self.seed, self.drop_last = dataset, shuffle, seed, drop_last

    @property
    def num_samples(self):
        return len(self)

    @property
    def total_size(self):
        count = _count(self.dataset)
        more = 0 if self.drop_last else self.num_replicas - 1
        return (count + more) // self.num_replicas * self.num_replicas

    def __repr__(self):
        return "<onepot.DistributedSampler: %d elements of rank %d of %d, epoch %d>" % (
            len(self), self.rank, self.num_replicas, self.epoch)

    def __reduce__(self):
        cls, state = super().__reduce__()[1]
        return _rebuild, (cls, state, self.num_replicas, self.rank, self.__more, self.state_dict())


def _rebuild(cls, fields, num_replicas, rank, more, state):
    sampler = cls.__new__(cls)
    DistributedSampler.__init__(sampler, fields["dataset"], num_replicas, rank, fields["shuffle"],
                                fields["seed"], fields["drop_last"], **more)
    sampler.__dict__.update(fields)
    sampler.load_state_dict(state)
    return sampler

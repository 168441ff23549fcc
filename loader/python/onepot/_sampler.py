"""torch's DistributedSampler, with its order made in C."""
from onepot import _core
from onepot._torch import TorchAware


def _count(dataset):
    return dataset if isinstance(dataset, int) else len(dataset)


class DistributedSampler(TorchAware, _core.Sampler):
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
        self._more = more
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
        return _rebuild, (cls, state, self.num_replicas, self.rank, self.state_dict())


def _rebuild(cls, fields, num_replicas, rank, state):
    sampler = cls.__new__(cls)
    DistributedSampler.__init__(sampler, fields["dataset"], num_replicas, rank, fields["shuffle"],
                                fields["seed"], fields["drop_last"], **fields["_more"])
    sampler.__dict__.update(fields)
    sampler.load_state_dict(state)
    return sampler

# Types of the package onepot. Fields and functions here have their shapes, units and errors
# beside them; the docstrings explain them.
#
# Errors, everywhere: OSError for an archive or a member that can't be read (a subclass by errno;
# the text names both), ValueError for arguments that make no sense, IndexError for a sample that
# does not exist. Threads: any number may use an Archive, Sample, Loader, Batch or Dataset; one
# at a time may use a sampler, writer or iterator.
from os import PathLike
from types import TracebackType
from typing import (
    Any,
    BinaryIO,
    Callable,
    Dict,
    Iterable,
    Iterator,
    Literal,
    Mapping,
    Optional,
    Sequence,
    Sized,
    Type,
    Union,
    final,
    overload,
)

import torch
from torch.utils.data import Dataset as _TorchDataset  # where there is none: Any
from torch.utils.data import IterableDataset as _TorchIterableDataset

__version__: str

Path = Union[str, bytes, "PathLike[str]"]

IMG_EXTENSIONS: "tuple[str, ...]"

@final
class Buffer:
    """Memory of a batch or a sample, kept alive by all that show it. The field that returns it
    tells its shape and type."""

    @property
    def shape(self) -> "tuple[int, ...]": ...
    @property
    def dtype(self) -> str: ...  # numpy's name: "uint8", or "bfloat16"
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...  # an element, or of more dimensions a Buffer
    def __iter__(self) -> Iterator[Any]: ...
    def tolist(self) -> "list[Any]": ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def copy_into(self, to: Any, stream: Any = None) -> None: ...  # and zeros behind it
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: "Optional[tuple[int, int]]" = None,
        dl_device: "Optional[tuple[int, int]]" = None,
        copy: Optional[bool] = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> "tuple[int, int]": ...
    @property
    def __array_interface__(self) -> "dict[str, Any]": ...  # AttributeError: on a GPU
    @property
    def __cuda_array_interface__(self) -> "dict[str, Any]": ...  # AttributeError: on the host

@final
class Sample:
    @property
    def name(self) -> str: ...
    @property
    def label(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def archive(self) -> "Archive": ...
    @property
    def size(self) -> int: ...
    @property
    def data(self) -> Buffer: ...  # uint8 [size], read-only; OSError
    def read(self, offset: int = 0, size: int = ...) -> Buffer: ...  # a copy, writable; OSError
    @property
    def parts(self) -> "dict[str, Buffer]": ...
    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...

class Names(Sequence[str]):  # looked up one by one
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "list[str]": ...

class Archive:
    def __init__(
        self,
        paths: Union[Path, Sequence[Path]],
        *,
        filter: Union[None, str, Sequence[str]] = None,
        extensions: Union[None, str, Sequence[str]] = None,
        root: Optional[str] = None,
        group: Optional[str] = None,
        cache: int = 0,  # bytes, for blocks and samples of slow storage; 0: the job's part
        # a directory of this node; "": the first place with room; "job": with torch's group
        stage: str | None = None,
        retries: Optional[int] = None,  # of a failed read; None: 4; 0: none
        hole_bytes: int = 0,  # most holes in a sample that is nearly all holes; 0: 64 MiB
        include: Union[None, str, Sequence[str]] = None,
        exclude: Union[None, str, Sequence[str]] = None,
        files_from: Union[None, Path, Iterable[Path]] = None,  # a file of names, or names
        map: Union[None, Path, "Mapping[Path, Union[Path, Sequence[Path]]]"] = None,
        nested: Union[None, bool, str] = None,  # archives in archives: all, or a glob
        ignore_zeros: bool = False,  # of joined tars, all
        labels: Optional[str] = None,  # the part of a sample that has its label
        # called with path, what is done, bytes, and bytes of all or 0; None: a line on a terminal
        progress: "Union[None, Literal[False], Callable[[str, str, int, int], object]]" = None,
        allow_empty: bool = False,  # no samples are no error
        parts: Optional[Mapping[str, str]] = None,  # from the name of a part to its folder
        plain: bool = False,  # paths are folders of few large files, which are the samples
    ) -> None: ...
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: Union[int, Path]) -> Sample: ...  # KeyError: no such name
    @overload
    def __getitem__(self, index: slice) -> "Archive": ...  # as subset
    def __iter__(self) -> Iterator[Sample]: ...
    def split(self, low: float, high: float, seed: int = 0) -> "Archive": ...
    def fold(
        self,
        folds: int,
        fold: int,
        held_out: bool = False,
        seed: int = 0,
        *,
        stratify: bool = False,  # equally many samples of each label
    ) -> "Archive": ...
    def subset(self, indices: Iterable[int]) -> "Archive": ...
    def save_list(self, path: Path) -> None: ...  # names, for files_from; ValueError for groups
    def __contains__(self, name: object) -> bool: ...
    def find(self, name: Path) -> int: ...  # KeyError
    def batch_for(self, bytes: int) -> "tuple[int, int]": ...  # samples: on average, at worst
    @property
    def names(self) -> Names: ...
    @property
    def common_size(self) -> int: ...  # bytes; 0: sizes differ
    @property
    def left_out(self) -> int: ...  # members that can't be shown; onepot verify lists them
    @property
    def passed_over(self) -> int: ...  # symbolic links that lead nowhere; a UserWarning tells
    @property
    def unpaired(self) -> int: ...  # files below the folders of parts; a UserWarning tells
    @property
    def classes(self) -> "list[str]": ...
    @property
    def class_to_idx(self) -> "dict[str, int]": ...
    @property
    def labels(self) -> Buffer: ...  # int64 [samples], -1: no class
    @property
    def sizes(self) -> Buffer: ...  # int64 [samples], bytes
    @property
    def digest(self) -> str: ...  # of the data, as of 'onepot info --digest'; the first use may read all files
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> "Archive": ...
    def __exit__(self, *unused: object) -> None: ...

class DistributedSampler:
    def __init__(
        self,
        dataset: Union[int, Sized],
        num_replicas: Optional[int] = None,
        rank: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        block: int = 0,
        window: int = 0,
        worker: int = 0,
        workers: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> "dict[str, int]": ...
    def load_state_dict(self, state: Mapping[str, int]) -> None: ...
    dataset: Union[int, Sized]
    shuffle: bool
    seed: int
    drop_last: bool
    @property
    def epoch(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def num_replicas(self) -> int: ...
    @property
    def num_samples(self) -> int: ...  # of this rank (of this worker)
    @property
    def total_size(self) -> int: ...  # of all ranks, padding included

Sampler = DistributedSampler

class Batch:
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Buffer: ...
    # list[Buffer]; of images a tensor, or a Buffer without torch; of several parts a dict of these
    def tensors(self) -> Any: ...
    def record_stream(self, stream: Any) -> None: ...  # int, __cuda_stream__, torch's, cupy's
    def wait(self) -> None: ...  # on the host
    def copy_into(self, to: Any, stream: Any = None) -> None: ...  # images, else data
    def to(self, *args: Any, **keywords: Any) -> "TensorBatch": ...  # RuntimeError without torch
    @property
    def names(self) -> "list[str]": ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: "Optional[tuple[int, int]]" = None,
        dl_device: "Optional[tuple[int, int]]" = None,
        copy: Optional[bool] = None,
    ) -> Any: ...  # images, else data
    def __dlpack_device__(self) -> "tuple[int, int]": ...
    @property
    def device(self) -> str: ...  # "cuda:1", "host:0", "cpu"
    # None; a Buffer [samples, 3, height, width] (NHWC: channels last); of parts a dict of these
    @property
    def images(self) -> Any: ...
    @property
    def data(self) -> Buffer: ...  # uint8 [bytes], [samples, bytes of one], or [samples, *shape]
    @property
    def offsets(self) -> Buffer: ...  # int64 [samples], bytes from the start of data
    @property
    def sizes(self) -> Buffer: ...  # int64 [samples], bytes
    @property
    def labels(self) -> Buffer: ...  # int64 [samples], -1: no class
    @property
    def indices(self) -> Buffer: ...  # int64 [samples], in the archive
    @property
    def valid(self) -> Buffer: ...  # bool [samples], False: padding, or skipped
    @property
    def epoch(self) -> int: ...
    @property
    def first(self) -> int: ...

class Images:
    dtype: str
    layout: str
    height: int
    width: int
    crop: Optional[str]
    def __init__(
        self,
        size: "Union[int, tuple[int, int]]" = 224,  # height, width
        crop: Optional[str] = "random",  # or "centre"
        scale: "tuple[float, float]" = ...,  # of the area: 0.08, 1
        ratio: "tuple[float, float]" = ...,  # width / height: 3/4, 4/3
        flip: bool = True,
        resize: Optional[int] = None,
        mean: Union[None, float, Sequence[float]] = None,  # of 0 to 1
        std: Union[None, float, Sequence[float]] = None,
        dtype: str = "uint8",  # or "float16", "float32", "bfloat16"
        layout: str = "NCHW",  # or "NHWC"
        interpolation: str = "bilinear",  # or "bicubic"; "nearest": for masks
        *,
        exact: bool = False,
        on_error: str = "raise",  # or "skip", "grey"
        raw: "Optional[tuple[int, int, int]]" = None,  # height, width, channels
    ) -> None: ...
    @property
    def shape(self) -> "tuple[int, int, int]": ...

class Loader:
    def __init__(
        self,
        archive: Union[Archive, Path, Sequence[Path]],
        batch_size: int,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        threads: Optional[int] = None,
        prefetch: Optional[int] = None,  # batches
        decode: Any = None,  # "npy", or a capsule "onepot.decode" of an onepot_decode function
        *,
        epoch: int = 0,
        memory: int = 0,  # bytes
        align: int = 0,  # bytes
        skip_errors: bool = False,
        verify: bool = False,
        npy: bool = False,
        block: int = 0,
        window: int = 0,
        decoded_bytes: int = 0,
        # "cuda:0" or 0; "cuda": by the local rank; "host"; "cpu": no device
        device: "Union[None, str, int, torch.device]" = None,
        # of parts by their names, or height, width, channels
        images: "Union[None, Images, Mapping[str, Images], tuple[int, int, int]]" = None,
        # of images as a tuple: None, which is "float32", "float16" or "bfloat16"
        dtype: Optional[str] = None,
        mean: Union[None, float, Sequence[float]] = None,  # of bytes; None: 0
        scale: Union[None, float, Sequence[float]] = None,  # None: 1
        gather: str = "auto",  # or "host", "device"
        io_timeout: Optional[float] = None,  # seconds for a read; None: 60; 0: no limit
        # of one kind, in place of device: each batch to one of them in turn
        devices: "Optional[Sequence[Union[str, int, torch.device]]]" = None,
        stage: Optional[str] = None,  # as Archive's
        # sample numbers of all ranks, gone through once an epoch, or a function of the epoch
        sampler: "Union[None, Iterable[int], Callable[[int], Iterable[int]]]" = None,
        expect: Optional[str] = None,  # ValueError unless Archive.digest begins so
    ) -> None: ...
    def __len__(self) -> int: ...
    # Begins the next epoch, unless this one has not begun. Ends if the loader goes to another.
    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...  # BufferError: kept batches have all memory
    def set_epoch(self, epoch: int) -> None: ...
    def state_dict(self) -> "dict[str, Any]": ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...
    @property
    def epoch(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def sampler(self) -> "Loader": ...
    @property
    def stats(self) -> "dict[str, Any]": ...
    @property
    def delivered(self) -> "tuple[int, int, int]": ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> "Loader": ...
    def __exit__(self, *unused: object) -> None: ...
    def transfer(self, previous: bool = False) -> "dict[str, Any]": ...  # of an epoch

class TensorBatch:
    """A batch in one piece of memory: tensors if torch is loaded, else memoryviews."""

    slab: Any  # uint8 [bytes of all]
    def __len__(self) -> int: ...
    def __getitem__(self, i: int) -> Any: ...  # uint8 [size]
    def tensors(self) -> Any: ...  # list; of images [samples, *shape]
    @property
    def images(self) -> Any: ...  # [samples, *shape], of parts a dict of these, or None
    def pin_memory(self, device: Any = None) -> "TensorBatch": ...
    def to(self, *args: Any, **keywords: Any) -> "TensorBatch": ...
    @property
    def data(self) -> Any: ...  # uint8 [bytes], or [samples, bytes of one]
    @property
    def offsets(self) -> Any: ...  # int64 [samples], bytes
    @property
    def sizes(self) -> Any: ...  # int64 [samples], bytes
    @property
    def labels(self) -> Any: ...  # int64 [samples]
    @property
    def indices(self) -> Any: ...  # int64 [samples]
    @property
    def valid(self) -> Any: ...  # bool [samples]

class SampleList(Sequence["tuple[Any, Any]"]):
    batch: TensorBatch
    def __len__(self) -> int: ...
    def __getitem__(self, i: Any) -> Any: ...

def collate(samples: Any) -> Any: ...

class Dataset(_TorchDataset[Any]):
    archive: Archive
    images: Union[None, Images, Mapping[str, Images]]
    seed: int
    transform: Optional[Callable[[Any], Any]]
    target_transform: Optional[Callable[[int], Any]]
    def __init__(
        self,
        archive: Union[None, Archive, Path, Sequence[Path]] = None,
        transform: Optional[Callable[[Any], Any]] = None,
        target_transform: Optional[Callable[[int], Any]] = None,
        *,
        root: Union[None, Archive, Path, Sequence[Path]] = None,  # as archive
        images: Union[None, Images, Mapping[str, Images]] = None,  # of parts by their names
        seed: int = 0,  # of random crops
        stage: Optional[str] = None,  # as Archive's
    ) -> None: ...
    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...  # (uint8 [bytes], label), or a TensorBatch
    def __getitems__(self, indices: Sequence[int]) -> Any: ...

class IterableDataset(_TorchIterableDataset[Any]):
    batch_size: Optional[int]
    drop_last: bool
    rank: int
    world_size: int
    def __init__(
        self,
        archive: Union[Archive, Path, Sequence[Path]],
        batch_size: Optional[int] = None,
        *,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        transform: Optional[Callable[[Any], Any]] = None,
        target_transform: Optional[Callable[[int], Any]] = None,
        block: int = 0,
        window: int = 0,
        stage: Optional[str] = None,  # as Archive's
    ) -> None: ...
    @property
    def archive(self) -> Archive: ...
    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...

class ImageFolder(Dataset):
    classes: "list[str]"
    class_to_idx: "dict[str, int]"
    loader: Callable[[BinaryIO], Any]
    root: Any  # as it was given
    extensions: "Optional[tuple[str, ...]]"
    transforms: Optional[Callable[[Any, int], "tuple[Any, Any]"]]
    samples: "list[tuple[str, int]]"  # made at first use; from then on dataset[i] follows it
    imgs: "list[tuple[str, int]]"  # the same list
    targets: "list[int]"
    def __init__(
        self,
        root: Union[Archive, Path, Sequence[Path]],
        transform: Optional[Callable[[Any], Any]] = None,
        target_transform: Optional[Callable[[int], Any]] = None,
        loader: Callable[[BinaryIO], Any] = ...,
        is_valid_file: Optional[Callable[[str], bool]] = None,
        allow_empty: bool = False,
        *,
        extensions: Optional[Sequence[str]] = None,
        folder: str = "",  # directory in the archive whose children are the classes
        fast: Union[bool, Images] = False,
        seed: int = 0,
    ) -> None: ...  # FileNotFoundError: no class, or one without a file
    def find_classes(self, directory: Any) -> "tuple[list[str], dict[str, int]]": ...

class Writer:
    def __init__(
        self,
        path: Path,
        *,
        zstd: int = 0,  # level, 1 to 22
        block: int = 0,  # bytes
        align: int = 0,  # bytes
        threads: int = 0,
        overwrite: bool = False,
        sync: bool = True,
    ) -> None: ...  # FileExistsError
    def add(self, name: Path, data: Any, *, mode: int = 0o644, mtime: float = 0) -> None: ...
    def close(self) -> None: ...
    def discard(self) -> None: ...
    def __enter__(self) -> "Writer": ...
    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None: ...

class MountPath(str):
    environment: Dict[str, str]  # for child processes: LD_PRELOAD, or nothing
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...  # OSError: it is in use
    def __fspath__(self) -> str: ...
    def __enter__(self) -> "MountPath": ...
    def __exit__(self, *unused: object) -> None: ...

def mount(
    archive: Union[Path, Sequence[Path]],
    at: Optional[Path] = None,
    options: Sequence[str] = (),
    *,
    nested: Union[None, bool, str] = None,
) -> MountPath: ...

class _Staged:
    path: str
    takes_part: bool  # this process copied for its node
    def close(self) -> None: ...  # removes the copy once nobody uses it
    def __enter__(self) -> "_Staged": ...
    def __exit__(self, *unused: object) -> None: ...

def stage(
    archive: Path,
    group: Any = None,  # of torch.distributed, or a communicator of mpi4py
    options: Sequence[str] = (),
    *,
    # called with path, "staging", bytes, and bytes of all; None: a line on a terminal
    progress: "Union[None, Literal[False], Callable[[str, str, int, int], object]]" = None,
    plain: bool = False,  # it is a folder of few large files
) -> _Staged: ...

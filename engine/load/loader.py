"""Load a checkpoint's weights: mapped files on the CPU, streamed to a GPU."""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.linear.factory import TorchWeights, WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.assemble import NamedSlices, assemble
from swiftchat.engine.load.canonicalize import canonicalize
from swiftchat.engine.load.quantized import dequantize, load_experts, load_matrix
from swiftchat.engine.load.streaming import (
    STAGING_BYTES,
    Copy,
    default_readers,
    run_ahead,
    stream_in,
)
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.parallel.division import Span, TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

# Receives (bytes done, total bytes), counted in the files.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FilePart:
    """The part of a tensor in a file that this rank has."""

    info: TensorInfo
    part: TensorSlice

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.shape(self.info.shape)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * _DTYPES[self.info.dtype].itemsize

    def byte_range(self, rows: Span) -> tuple[int, int]:
        """Return the first byte in the file and the end of these rows."""
        row_bytes = self.info.nbytes // max(1, self.info.shape[0])
        return (self.info.offset + rows[0] * row_bytes, self.info.offset + rows[1] * row_bytes)


def load_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress,
    shard: Shard | None = None,
    factory: WeightFactory | None = None,
) -> DecoderWeights:
    """Load the decoder's weights from a checked checkpoint; with `shard`, those of one rank.

    `factory` makes the weights; by default those for torch's operators on this device.

    In main memory (on the CPU, or by `WeightFactory.of`) tensors of the requested dtype are views
    of the mapped files, so the checkpoint must stay open. Only column parts, and merged matrices
    (q k v, gate up) that are not adjacent in the file, are copied. On a GPU the files are read once
    instead of mapped, except for quantized matrices. Matrices stay quantized if `factory` supports
    their scheme; all others are dequantized. `on_progress` receives (bytes done, total bytes),
    counted in the files.

    Raises `BadModelFile` for a truncated file on its way to a GPU and for quantized values that
    are not finite numbers.
    """
    shard = shard or Shard(config)
    factory = factory or TorchWeights()
    if device.type != "cpu":
        return stream_weights(
            config, checkpoint, dtype, device, on_progress, shard, factory=factory
        )
    progress = _FileProgress(on_progress, _wanted_bytes(shard, checkpoint))
    placement = _MappedPlacement(checkpoint, dtype, progress, factory)
    return canonicalize(shard.local_config, assemble(shard, placement, dtype))


class _FileProgress:
    """Counts the bytes of the files that are loaded."""

    def __init__(self, on_progress: Progress, total_bytes: int) -> None:
        self.done_bytes = 0
        self._on_progress, self._total_bytes = on_progress, total_bytes

    def add(self, nbytes: int) -> None:
        self.done_bytes += nbytes
        self._on_progress(self.done_bytes, self._total_bytes)


class _MappedPlacement:
    """Weights on the CPU: views of mapped files, or what `factory` makes of quantized matrices."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        progress: _FileProgress,
        factory: WeightFactory,
    ) -> None:
        self.factory = factory
        self._checkpoint, self._dtype, self._progress = checkpoint, dtype, progress
        self._device = torch.device("cpu")

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        if _has_quantized(self._checkpoint, slices):
            self._progress.add(sum(self._checkpoint.nbytes(name) for name, _ in slices))
            tensor = dequantize(self._checkpoint, slices, self._dtype, self._device)
            self._checkpoint.release_pages()
            return tensor
        parts = _file_parts(self._checkpoint, slices)
        self._progress.add(sum(part.nbytes for part in parts))
        return _join(self._checkpoint, parts).to(dtype or self._dtype)

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        factory = self.factory.of(slices[0][0])
        if not _has_quantized(self._checkpoint, slices):
            return factory.plain(self.tensor(slices))
        self._progress.add(sum(self._checkpoint.nbytes(name) for name, _ in slices))
        weight = load_matrix(
            self._checkpoint, slices, factory, self._dtype, self._device, is_table=is_table
        )
        self._checkpoint.release_pages()
        return weight

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        factory = self.factory.of(slices[0][0])
        if not _has_quantized(self._checkpoint, slices):
            return [factory.plain(each) for each in self.tensor(slices)]
        self._progress.add(sum(self._checkpoint.nbytes(name) for name, _ in slices))
        weights = load_experts(self._checkpoint, slices, factory, self._dtype, self._device)
        self._checkpoint.release_pages()
        return weights


def stream_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Progress,
    shard: Shard | None = None,
    factory: WeightFactory | None = None,
    *,
    num_readers: int | None = None,
    staging_bytes: int = STAGING_BYTES,
) -> DecoderWeights:
    """`load_weights` for a GPU: allocate all tensors, then let `stream_in` fill them.

    Quantized tensors are uploaded before that, by several threads: one unpacks 0.2 to 2 GB/s.
    """
    shard = shard or Shard(config)
    factory = factory or TorchWeights()
    loads = _quantized_loads(checkpoint, shard, dtype, device, factory)
    for file in {info.file for info in checkpoint.tensors.values()} if loads else ():
        checkpoint.map(file)  # once, by one thread
    with contextlib.closing(run_ahead(loads, num_readers or default_readers(), device)) as loaded:
        progress = _FileProgress(on_progress, _wanted_bytes(shard, checkpoint))
        streamed = _StreamedPlacement(checkpoint, dtype, device, progress, factory, loaded)
        mapped = _MappedPlacement(checkpoint, dtype, progress, factory)
        weights = assemble(shard, _DividedPlacement(streamed, mapped), dtype)
    before_bytes = progress.done_bytes
    stream_in(
        streamed.copies,
        device,
        lambda done_bytes: progress.add(before_bytes + done_bytes - progress.done_bytes),
        num_readers,
        staging_bytes,
    )
    return canonicalize(shard.local_config, weights)


class _StreamedPlacement:
    """Weights on a GPU: quantized ones out of `loaded`, memory for the others, to fill later."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        progress: _FileProgress,
        factory: WeightFactory,
        loaded: Iterator[Any],
    ) -> None:
        self.factory = factory
        self.copies: list[Copy] = []
        self._checkpoint, self._dtype, self._device = checkpoint, dtype, device
        self._loaded = loaded  # Tensor or LinearWeight, in the order of the calls
        self._progress = progress

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        if _has_quantized(self._checkpoint, slices):
            tensor: Tensor = self._next_loaded(slices)
            return tensor
        parts = _file_parts(self._checkpoint, slices)
        return _allocate(parts, dtype or self._dtype, self._device, self.copies)

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        if not _has_quantized(self._checkpoint, slices):
            return self.factory.plain(self.tensor(slices))
        weight: LinearWeight = self._next_loaded(slices)
        return weight

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        if not _has_quantized(self._checkpoint, slices):
            return [self.factory.plain(each) for each in self.tensor(slices)]
        weights: Sequence[LinearWeight] = self._next_loaded(slices)
        return weights

    def _next_loaded(self, slices: NamedSlices) -> Any:
        loaded = next(self._loaded)
        self._checkpoint.release_pages()
        self._progress.add(sum(self._checkpoint.nbytes(name) for name, _ in slices))
        return loaded


class _DividedPlacement:
    """Weights on a GPU, but those with another factory in main memory."""

    def __init__(self, streamed: _StreamedPlacement, mapped: _MappedPlacement) -> None:
        self.factory = streamed.factory
        self._streamed, self._mapped = streamed, mapped

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        return self._of(slices).tensor(slices, dtype=dtype)

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        return self._of(slices).weight(slices, is_table=is_table)

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        return self._of(slices).experts(slices)

    def _of(self, slices: NamedSlices) -> _StreamedPlacement | _MappedPlacement:
        return self._mapped if _is_mapped(slices, self.factory) else self._streamed


def _quantized_loads(
    checkpoint: Checkpoint,
    shard: Shard,
    dtype: torch.dtype,
    device: torch.device,
    factory: WeightFactory,
) -> list[Callable[[], Any]]:
    """Functions that load the quantized tensors that `assemble` requests, in its order."""
    requests = _RequestList(shard, factory)
    assemble(shard, requests, dtype)
    loads: list[Callable[[], Any]] = []
    for slices, kind in requests.found:
        if not _has_quantized(checkpoint, slices) or _is_mapped(slices, factory):
            continue
        if kind == "tensor":
            loads.append(partial(dequantize, checkpoint, slices, dtype, device))
            continue
        if kind == "experts":
            loads.append(partial(load_experts, checkpoint, slices, factory, dtype, device))
            continue
        is_table = kind == "table"
        loads.append(
            partial(load_matrix, checkpoint, slices, factory, dtype, device, is_table=is_table)
        )
    return loads


class _RequestList:
    """A placement that loads nothing and lists the requests of `assemble`."""

    def __init__(self, shard: Shard, factory: WeightFactory) -> None:
        self.factory = factory
        self.found: list[tuple[NamedSlices, str]] = []
        self._shapes = shard.shapes()

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        self.found.append((slices, "tensor"))
        return torch.empty(self._shapes[slices[0][0]], device="meta")

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        self.found.append((slices, "table" if is_table else "weight"))
        return self.factory.plain(torch.empty(self._shapes[slices[0][0]], device="meta"))

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        self.found.append((slices, "experts"))
        whole = torch.empty(self._shapes[slices[0][0]], device="meta")
        return [self.factory.plain(each) for each in whole]


def _is_mapped(slices: NamedSlices, factory: WeightFactory) -> bool:
    """Return whether the weight of these tensors is in main memory, for a factory of a GPU."""
    return factory.of(slices[0][0]) is not factory


def _has_quantized(checkpoint: Checkpoint, slices: NamedSlices) -> bool:
    return any(name in checkpoint.quantized for name, _ in slices)


def _wanted_bytes(shard: Shard, checkpoint: Checkpoint) -> int:
    """Bytes of the files that loading a shard reads."""
    if checkpoint.quantized:
        return sum(
            checkpoint.nbytes(name)
            if name in checkpoint.quantized
            else math.prod(shape) * _DTYPES[checkpoint.tensors[name].dtype].itemsize
            for name, shape in shard.shapes().items()
        )
    nbytes = {name: info.nbytes for name, info in checkpoint.tensors.items()}
    if checkpoint.shard:
        return sum(nbytes[name] for name in shard.shapes())
    return shard.weights_bytes(nbytes)


def _file_parts(checkpoint: Checkpoint, slices: NamedSlices) -> list[FilePart]:
    """Return the parts in the files; files that were cut by rank store each as a whole tensor."""
    infos = [checkpoint.tensors[name] for name, _ in slices]
    if checkpoint.shard:
        return [FilePart(info, TensorSlice(0, ((0, info.shape[0]),))) for info in infos]
    return [FilePart(info, part) for info, (_, part) in zip(infos, slices, strict=True)]


def _join(checkpoint: Checkpoint, parts: Sequence[FilePart]) -> Tensor:
    """Return the parts as one tensor; a view of the file if they are adjacent there."""
    first = parts[0]
    if first.part.axis == 0 and _are_adjacent(parts):
        rows = sum(part.shape[0] for part in parts)
        start, _ = first.byte_range(first.part.spans[0])
        return _view(checkpoint, first.info, start, (rows, *first.shape[1:]))
    pieces = []
    for each in parts:
        axis, info = each.part.axis, each.info
        whole = _view(checkpoint, info, info.offset, info.shape)
        pieces += [whole.narrow(axis, start, end - start) for start, end in each.part.spans]
    return torch.cat(pieces, first.part.axis)


def _are_adjacent(parts: Sequence[FilePart]) -> bool:
    """Return whether all rows are one contiguous range of one file, in one dtype."""
    if len({(part.info.file, part.info.dtype) for part in parts}) > 1:
        return False
    ranges = [part.byte_range(span) for part in parts for span in part.part.spans]
    return all(before[1] == after[0] for before, after in itertools.pairwise(ranges))


def _view(checkpoint: Checkpoint, info: TensorInfo, offset: int, shape: tuple[int, ...]) -> Tensor:
    """View the mapped file of `info` from byte `offset` on as a tensor of its dtype."""
    dtype = _DTYPES[info.dtype]
    flat = torch.frombuffer(
        checkpoint.map(info.file),
        dtype=torch.uint8,
        offset=offset,
        count=torch.Size(shape).numel() * dtype.itemsize,
    )
    if flat.data_ptr() % dtype.itemsize:  # some files have a header of odd length
        flat = flat.clone()
    return flat.view(dtype).view(shape)


def _allocate(
    parts: Sequence[FilePart], dtype: torch.dtype, device: torch.device, copies: list[Copy]
) -> Tensor:
    """Allocate memory for the joined parts; append the copies that fill it to `copies`."""
    axis = parts[0].part.axis
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    joined = torch.empty(shape, dtype=dtype, device=device)
    at = 0
    for part in parts:
        info, stored = part.info, _DTYPES[part.info.dtype]
        for span in part.part.spans:
            target = joined.narrow(axis, at, span[1] - span[0])
            at += span[1] - span[0]
            if axis == 0:
                start, end = part.byte_range(span)
                copies.append(Copy(info.file, start, end - start, stored, target.view(-1)))
            else:
                # As a matrix: the axes before the cut are its rows, the others its columns.
                inner = math.prod(info.shape[axis + 1 :])
                columns = (span[0] * inner, span[1] * inner)
                rows = target.view(math.prod(info.shape[:axis]), -1)
                copies.append(Copy(info.file, info.offset, info.nbytes, stored, rows, columns))
    return joined

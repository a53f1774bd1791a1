"""Tensors stored in several shards, read in chunks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.formats.arrays import Array, Floats
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.rounding import WIRE_NAMES
from swiftchat.weights.quantization.stored_tensor import as_float32
from swiftchat.weights.sources.plan import Plan

_CHUNK_ELEMENTS = 1 << 20


def _flat_floats(array: Array) -> Floats:
    """Convert to float32, flat; uint16 means bfloat16."""
    return as_float32(array.reshape(-1), "BF16" if array.dtype == np.uint16 else "F32")


def chunks_of_rows(shards: Sequence[Array]) -> Iterator[Floats]:
    """Yield the elements of shards stacked by rows, flat, about 2^20 at a time."""
    for shard in shards:
        step = max(1, _CHUNK_ELEMENTS * len(shard) // max(1, shard.size))
        for start in range(0, len(shard), step):
            yield _flat_floats(shard[start : start + step])


def _chunks_of_columns(shards: Sequence[Array]) -> Iterator[Floats]:
    """Yield the elements of shards joined by columns, flat, about 2^20 at a time."""
    width = sum(shard.size // len(shard) for shard in shards)
    step = max(1, _CHUNK_ELEMENTS // width)
    for start in range(0, len(shards[0]), step):
        rows = [shard[start : start + step] for shard in shards]
        wide = [_flat_floats(part).reshape(len(part), -1) for part in rows]
        yield np.concatenate(wide, axis=1).reshape(-1)


def rotary_halves(rows: Array, num_heads: int) -> Array:
    """Return a view [heads, 2, half, …] of `rows` with interleaved rotary pairs as two halves.

    Meta rotates the elements 2j and 2j + 1 of a head together, Hugging Face j and j + half: row
    2j + h of a head becomes row h·half + j. (Su et al., RoFormer, with both orders.)
    """
    half = len(rows) // num_heads // 2
    return rows.reshape(num_heads, half, 2, *rows.shape[1:]).swapaxes(1, 2)


@dataclass(frozen=True)
class ShardedTensor:
    """A tensor in shards that are stacked by rows or, with `by_columns`, joined by columns.

    Shards may be views with more axes than the tensor: the last axis is the columns, or with
    `by_columns` the first axis the rows.
    """

    shards: Sequence[Array]
    by_columns: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole tensor: (rows, columns), or (elements,) of a vector."""
        first = self.shards[0]
        if self.by_columns:
            if first.ndim == 1:
                return first.shape
            return (len(first), sum(shard.size // len(shard) for shard in self.shards))
        size = sum(shard.size for shard in self.shards)
        return (size,) if first.ndim == 1 else (size // first.shape[-1], first.shape[-1])

    def chunks(self) -> Iterator[Floats]:
        """Yield the elements, flat, about 2^20 at a time."""
        return _chunks_of_columns(self.shards) if self.by_columns else chunks_of_rows(self.shards)


def read_shard(checkpoint: Checkpoint, name: str) -> Array:
    """Return the tensor `name` of one file (bfloat16 as uint16).

    Raises `BadModelFile` with file and tensor if it is missing or no float vector or matrix.
    """
    info = checkpoint.tensors.get(name)
    if info is None:
        raise BadModelFile(f"{checkpoint.path}: no tensor {name}")
    if info.dtype not in WIRE_NAMES.values():
        raise BadModelFile(
            f"{checkpoint.path}: tensor {name}: expected one of {', '.join(WIRE_NAMES.values())}, "
            f"found {info.dtype}"
        )
    if len(info.shape) not in (1, 2) or not info.nbytes:
        raise BadModelFile(
            f"{checkpoint.path}: tensor {name}: expected a vector or matrix, "
            f"found {list(info.shape)}"
        )
    return checkpoint.read(name)


def sharded_plan(
    config: ModelConfig,
    files: Mapping[str, bytes],
    dtype: str,
    checkpoints: Sequence[Checkpoint],
    tensor: Callable[[str, int | None], ShardedTensor],
) -> Plan:
    """Return the plan of a model whose shards are in `checkpoints`.

    `tensor(canonical name, layer)` returns a tensor. Raises `BadModelFile` for one whose shape
    does not match `config`.
    """
    shapes = expected_tensors(config)
    tensors = {}
    for canonical, layer, _ in canonical_tensors(config):
        name = tensor_name(config, canonical, layer)
        found = tensor(canonical, layer)
        if found.shape != shapes[name]:
            raise BadModelFile(
                f"{checkpoints[0].path.parent}: {name} from {len(found.shards)} shards: "
                f"expected {list(shapes[name])}, found {list(found.shape)}",
                "a file may be missing or belong to another model",
            )
        tensors[name] = found

    def release_pages() -> None:
        for checkpoint in checkpoints:
            checkpoint.release_pages()

    return Plan(
        files,
        shapes,
        dtype,
        lambda name: tensors[name].chunks(),
        [checkpoint.path for checkpoint in checkpoints],
        release_pages,
    )

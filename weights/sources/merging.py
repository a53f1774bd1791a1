"""The parts of a tensor that several files hold, put together a run at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_tensors, expected_tensors, tensor_name
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.sources.plan import WIRE_NAMES, Floats, Plan

__all__ = ["Merged", "by_rows", "halves_apart", "merged_plan", "part_of"]

_CHUNK_ELEMENTS = 1 << 20

Array = npt.NDArray[Any]


def _floats(array: Array) -> Floats:
    """The numbers in float32, flat; uint16 stands for bfloat16."""
    if array.dtype == np.uint16:
        return (array.reshape(-1).astype(np.uint32) << 16).view(np.float32)
    return array.reshape(-1).astype(np.float32)


def by_rows(parts: Sequence[Array]) -> Iterator[Floats]:
    """The numbers of the parts one after the other, flat, about 2^20 at a time."""
    for part in parts:
        step = max(1, _CHUNK_ELEMENTS * len(part) // max(1, part.size))
        for start in range(0, len(part), step):
            yield _floats(part[start : start + step])


def _by_columns(parts: Sequence[Array]) -> Iterator[Floats]:
    """The numbers of the matrix that has the parts side by side, flat, about 2^20 at a time."""
    width = sum(part.size // len(part) for part in parts)
    step = max(1, _CHUNK_ELEMENTS // width)
    for start in range(0, len(parts[0]), step):
        rows = [part[start : start + step] for part in parts]
        wide = [_floats(part).reshape(len(part), -1) for part in rows]
        yield np.concatenate(wide, axis=1).reshape(-1)


def halves_apart(rows: Array, heads: int) -> Array:
    """A view [heads, 2, half, …] of `rows`: interleaved rotary pairs put into two halves.

    Meta's rotation takes elements 2j and 2j + 1 of a head together, Hugging Face's j and
    j + half; so row 2j + h there is row h·half + j here. (Su et al., RoFormer, with both orders.)
    """
    return rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:]).swapaxes(1, 2)


@dataclass(frozen=True)
class Merged:
    """A tensor out of its parts, which lie under each other or, with `columns`, side by side.

    Parts may be views with more dimensions than the tensor has: their last are the columns, or
    with `columns` their first the rows.
    """

    parts: Sequence[Array]
    columns: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole: (rows, columns), or (elements,) of a vector."""
        first = self.parts[0]
        if self.columns:
            if first.ndim == 1:
                return first.shape
            return (len(first), sum(part.size // len(part) for part in self.parts))
        size = sum(part.size for part in self.parts)
        return (size,) if self._is_vector else (size // first.shape[-1], first.shape[-1])

    @property
    def _is_vector(self) -> bool:
        return self.parts[0].ndim == 1

    def values(self) -> Iterator[Floats]:
        """The numbers, flat, about 2^20 at a time."""
        return _by_columns(self.parts) if self.columns else by_rows(self.parts)


def part_of(checkpoint: Checkpoint, name: str) -> Array:
    """The tensor `name` of one file (bfloat16 as uint16).

    Raises `BadModelFile` naming file and tensor when it is not there or not of a float dtype.
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


def merged_plan(
    config: ModelConfig,
    files: Mapping[str, bytes],
    dtype: str,
    parts: Sequence[Checkpoint],
    merge: Callable[[str, int | None], Merged],
) -> Plan:
    """The plan of a model whose tensors are merged from `parts`.

    `merge(canonical name, layer)` gives a tensor. `BadModelFile` names the first whose shape is
    not that of `config`, with expected and found.
    """
    shapes = expected_tensors(config)
    merged = {}
    for canonical, layer, _ in canonical_tensors(config):
        name = tensor_name(config, canonical, layer)
        shape = shapes[name]
        tensor = merge(canonical, layer)
        if tensor.shape != shape:
            raise BadModelFile(
                f"{parts[0].path.parent}: {name} out of {len(tensor.parts)} parts: "
                f"expected {list(shape)}, found {list(tensor.shape)}",
                "a part may be missing, or of another model",
            )
        merged[name] = tensor

    def release_pages() -> None:
        for checkpoint in parts:
            checkpoint.release_pages()

    return Plan(
        files,
        shapes,
        dtype,
        lambda name: merged[name].values(),
        [checkpoint.path for checkpoint in parts],
        release_pages,
    )

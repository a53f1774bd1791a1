"""The tensors of a GGUF file as those of Hugging Face: found, checked, and put in their order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import canonical_shapes, canonical_tensors, tensor_name
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES, dequantize
from swiftchat.weights.formats.gguf import GgufFile, GgufTensor
from swiftchat.weights.gguf.architectures import GgufArchitecture
from swiftchat.weights.gguf.rope import ROPE_TENSORS

__all__ = ["Bytes", "Source", "blocks", "tensor_sources", "values"]

_CHUNK_ELEMENTS = 1 << 20

Bytes = npt.NDArray[np.uint8]
Rows = range | npt.NDArray[np.intp]


@dataclass(frozen=True)
class Source:
    """Where the numbers of a tensor are: which rows of `tensor`, in which order.

    Rows of a vector are its elements; those of a tensor with three dimensions are counted
    through. `added` is what its numbers have too much; `transposed`: its columns are wanted.
    """

    tensor: GgufTensor
    rows: Rows
    added: float = 0.0
    transposed: bool = False


@dataclass(frozen=True)
class _Place:
    """A GGUF tensor that may have what is sought: from its row `first` on."""

    name: str
    shape: tuple[int, ...]
    first: int = 0


def tensor_sources(
    file: GgufFile, arch: GgufArchitecture, config: ModelConfig
) -> dict[str, Source]:
    """For every expected Hugging Face name, where its numbers are.

    Raises `BadModelFile` for a missing or misshapen tensor, naming expected and found, and for
    one that no model of this kind has: what it would change is not computed.
    """
    sources: dict[str, Source] = {}
    shapes = _shapes(arch, config)
    for canonical, layer, expert in canonical_tensors(config):
        places = _places(arch, config, shapes, canonical, expert or 0)
        found = [place for place in places if place.name.format(i=layer) in file.tensors]
        place = (found or places)[0]
        tensor = _checked(file, place.name.format(i=layer), place.shape)
        rows = _order(arch, config, canonical, shapes[canonical][0])
        sources[tensor_name(config, canonical, layer, expert)] = Source(
            tensor,
            _moved(rows, place.first),
            added=1.0 if config.norm_unit_offset and canonical.endswith("_norm") else 0.0,
            transposed=canonical in arch.family.transposed,
        )
    _refuse_others(file, sources)
    return sources


def values(file: GgufFile, source: Source) -> Iterator[npt.NDArray[np.float32]]:
    """The numbers in Hugging Face's order, a run of about 2^20 at a time, flat."""
    tensor, rows = source.tensor, file.rows(source.tensor)
    if len(tensor.shape) == 1:
        vector = dequantize(rows, tensor.type_name).reshape(-1)
        yield vector[_index(source.rows)] - np.float32(source.added)
    elif source.transposed:
        yield from _columns(rows, tensor.type_name)
    else:
        step = max(1, _CHUNK_ELEMENTS // tensor.shape[-1])
        for start in range(0, len(source.rows), step):
            part = rows[_index(source.rows[start : start + step])]
            yield dequantize(part, tensor.type_name).reshape(-1)


def blocks(file: GgufFile, source: Source) -> Bytes:
    """The matrix as [rows, bytes of a row] in Hugging Face's order, not decoded."""
    # Blocks never cross rows, so the rows can change places as they are.
    return file.rows(source.tensor)[_index(source.rows)]


def _columns(rows: npt.NDArray[np.uint8], type_name: str) -> Iterator[npt.NDArray[np.float32]]:
    """The columns one after the other, whole blocks of them at a time."""
    kind = BLOCK_TYPES[type_name]
    blocks = max(1, _CHUNK_ELEMENTS // len(rows) // kind.block_elements)
    step = blocks * kind.block_bytes
    for start in range(0, rows.shape[1], step):
        part = np.ascontiguousarray(rows[:, start : start + step])
        yield dequantize(part, type_name).T.reshape(-1)


def _index(rows: Rows) -> slice | npt.NDArray[np.intp]:
    # A slice of a mapped file is not copied.
    return slice(rows.start, rows.stop) if isinstance(rows, range) else rows


def _moved(rows: Rows, first: int) -> Rows:
    if isinstance(rows, range):
        return range(rows.start + first, rows.stop + first)
    return rows + first


def _checked(file: GgufFile, name: str, shape: tuple[int, ...]) -> GgufTensor:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != shape:
        found = "nothing" if tensor is None else str(list(tensor.shape))
        raise BadModelFile(f"{file.path}: tensor {name}: expected {list(shape)}, found {found}")
    return tensor


def _refuse_others(file: GgufFile, sources: dict[str, Source]) -> None:
    known = ROPE_TENSORS.union(source.tensor.name for source in sources.values())
    for name in file.tensors:
        if name not in known:
            raise BadModelFile(
                f"{file.path}: tensor {name}: expected none of this name in a model of this kind",
                "the model computes something that this program does not",
            )


def _shapes(arch: GgufArchitecture, config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """As canonical tensors have them in GGUF: matrices are [out, in]."""
    shapes = canonical_shapes(config)
    return shapes | {name: shapes[name][::-1] for name in arch.family.transposed}


def _places(
    arch: GgufArchitecture,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    canonical: str,
    expert: int,
) -> Sequence[_Place]:
    """Where a tensor may be, the usual place first."""

    def place(name: str, shape: tuple[int, ...], first: int = 0) -> _Place:
        return _Place(arch.tensor_name(config, name), shape, first)

    shape = shapes[canonical]
    usual = place(canonical, shape)
    if canonical in ("expert_gate", "expert_up", "expert_down"):
        stacked = place(canonical, (config.num_experts, *shape), expert * shape[0])
        # As files from before experts were stacked have it.
        single = _Place(usual.name.replace("_exps", f".{expert}"), shape)
        if canonical == "expert_down":
            return [stacked, single]
        # The gate comes before what it opens.
        both = (config.num_experts, 2 * shape[0], shape[1])
        first = (2 * expert + (canonical == "expert_up")) * shape[0]
        return [stacked, single, place("expert_gate_up", both, first)]
    kind, *bias = canonical.split("_")
    if kind in ("q", "k", "v") and bias in ([], ["bias"]):
        q, kv = shapes["q"][0], shapes["k"][0]
        fused = "_".join(["qkv", *bias])
        return [usual, place(fused, shapes[fused], {"q": 0, "k": q, "v": q + kv}[kind])]
    return [usual]


def _order(arch: GgufArchitecture, config: ModelConfig, canonical: str, count: int) -> Rows:
    if canonical in arch.permuted:
        heads = config.num_heads if canonical.startswith("q") else config.num_kv_heads
        # GGUF's row 2j + h of a head is row h·(head_dim / 2) + j here.
        return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    if arch.family.qkv_in_groups and canonical in ("qkv", "qkv_bias"):
        groups, kv_rows = config.num_kv_heads, config.num_kv_heads * config.head_dim
        ends = np.array([count - 2 * kv_rows, count - kv_rows])
        parts = [part.reshape(groups, -1) for part in np.split(np.arange(count), ends)]
        return np.concatenate(parts, axis=1).reshape(-1)
    return range(count)

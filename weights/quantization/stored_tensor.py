"""Tensors of a quantized checkpoint, dequantized a range of rows at a time."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.arrays import Floats, Words
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.quantization.scheme import (
    ActivationQuantization,
    GgufBlocks,
    PackedSource,
)

Read = Callable[[str], npt.NDArray[Any]]
Shape = tuple[int, ...]

FLOATS = ("F16", "BF16", "F32")
_ANY_FLOAT = (*FLOATS, "F64", "F8_E8M0")
_CHUNK_ELEMENTS = 1 << 21
# Chunks start at multiples of this: AWQ packs eight rows per word, 4-bit blocks have 64 rows.
_CHUNK_ROWS = 64


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the unquantized model, as the file stores it.

    `format` names the storage format ("plain": not quantized) and `parts` the file's tensors by
    role. `dequantize(start, stop)` returns that range of the first axis as float32, the whole
    tensor where `shape` is (); `start` must be a multiple of 64 unless the tensor has more than
    two axes. `packed` is set if the engine can compute with the quantized values unchanged, and
    `read_blocks` if they are ggml blocks, of type `format`. Both read a matrix [outputs, inputs];
    of a tensor of experts [experts, inputs, outputs] it is [experts · outputs, inputs].
    `activations` is the quantization of the matrix's inputs; None: they are not quantized.
    """

    format: str
    shape: Shape
    parts: Mapping[str, str]
    dequantize: Callable[[int, int], Floats]
    packed: PackedSource | None = None
    activations: ActivationQuantization | None = None
    read_blocks: Callable[[], GgufBlocks] | None = None

    def to_float32(self) -> Floats:
        """Return the whole tensor as float32 of `shape`; only float64 is rounded."""
        return self.dequantize(0, self.shape[0] if self.shape else 1).reshape(self.shape)

    def chunks(self) -> Iterator[Floats]:
        """Yield the same elements flat, in chunks of about eight megabytes."""
        count = self.shape[0] if self.shape else 1
        step = max(1, _CHUNK_ELEMENTS // max(1, math.prod(self.shape[1:])))
        if len(self.shape) == 2:
            step = max(_CHUNK_ROWS, step // _CHUNK_ROWS * _CHUNK_ROWS)
        for start in range(0, count, step):
            yield self.dequantize(start, min(count, start + step)).reshape(-1)


class CheckedTensors:
    """A file's tensors by name; each access checks dtype and shape.

    `read(name)` returns an array in the file's own dtype; bfloat16 and the 8-bit floats are
    returned as the unsigned integers of their bits. Failed checks raise `BadModelFile`.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], read: Read) -> None:
        self.tensors = tensors
        self.read = read

    def stems(self, suffix: str) -> list[str]:
        """Return the names that end in `suffix`, without it, in the file's order."""
        return [name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix)]

    def shape(self, name: str, dtypes: tuple[str, ...], dimensions: int) -> Shape:
        """Return the shape of `name`; it must have that many axes, none of them empty."""
        info = self._info(name, dtypes)
        if len(info.shape) != dimensions or not all(info.shape):
            found = f"the shape {list(info.shape)}"
            raise self.error(name, f"{dimensions} axes, none empty", found)
        return info.shape

    def require(self, name: str, dtypes: tuple[str, ...], shape: Shape) -> str:
        """Check that `name` exists in one of `dtypes` and in `shape`; returns the name."""
        info = self._info(name, dtypes)
        if info.shape != shape:
            raise self.error(name, f"the shape {list(shape)}", str(list(info.shape)))
        return name

    def read_floats(self, name: str) -> Floats:
        """Return a float tensor (F16, BF16, F32, F64, F8_E8M0) as float32; only F64 is rounded."""
        return as_float32(self.read(name), self._info(name, _ANY_FLOAT).dtype)

    def read_scales(self, name: str) -> Floats:
        """Return a float tensor as float32, all of whose elements must be finite."""
        found = self.read_floats(name)
        if not np.isfinite(found).all():
            raise self.error(name, "finite scales", "NaN or infinity")
        return found

    def read_group_index(self, name: str, groups: int) -> npt.NDArray[np.int64]:
        """Return an integer tensor that assigns each column to one of `groups` groups."""
        index = self.read(name).astype(np.int64)
        if index.min() < 0 or index.max() >= groups:
            raise self.error(name, f"groups from 0 to {groups - 1}", "other numbers")
        return index

    def read_words(self, name: str) -> Words:
        """Return an I32 tensor as the unsigned integers of its bits."""
        return self.read(name).view("<u4")

    def plain(self, name: str) -> StoredTensor:
        """Return the unquantized tensor `name`; dequantizing another dtype than floats fails."""

        def dequantize(start: int, stop: int) -> Floats:
            info = self._info(name, _ANY_FLOAT)
            return as_float32(self.read(name).reshape(info.shape or 1)[start:stop], info.dtype)

        return StoredTensor("plain", self.tensors[name].shape, {"plain": name}, dequantize)

    def error(self, name: str, expected: str, found: str) -> BadModelFile:
        """Return the error for the tensor `name`."""
        info = self.tensors.get(name)
        file = f"{info.file}: " if info else ""
        return BadModelFile(f"{file}tensor {name}: expected {expected}, found {found}")

    def _info(self, name: str, dtypes: tuple[str, ...]) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise BadModelFile(f"no tensor {name}: expected one of {', '.join(dtypes)}")
        if info.dtype not in dtypes:
            raise self.error(name, f"one of {', '.join(dtypes)}", info.dtype)
        return info


def as_float32(array: npt.NDArray[Any], dtype: str) -> Floats:
    """Convert an array read from a file (BF16, F8_E8M0 as their bits) to float32."""
    if dtype == "F8_E8M0":  # 2^(byte − 127); the last is NaN
        powers = np.ldexp(np.float32(1), array.astype(np.int32) - 127)
        return np.where(array == 255, np.float32(np.nan), powers)
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def unpack_bits(words: Words, bits: int) -> npt.NDArray[np.uint8]:
    """Unpack the unsigned integers of `bits` bits along the last axis, low bits first.

    [..., n] words become [..., n·32 // bits] integers. Integers may straddle two words; n must
    then be a multiple of `bits`.
    """
    words = np.ascontiguousarray(words)
    if 8 % bits == 0:
        # Words are little-endian in memory, so bytes can be unpacked one by one.
        packed = words.view(np.uint8)[..., None]
        unpacked = (packed >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
        return unpacked.reshape(*words.shape[:-1], -1)
    mask = np.uint32((1 << bits) - 1)
    groups = words.reshape(*words.shape[:-1], -1, bits)
    found = np.empty((*groups.shape[:-1], 32), np.uint8)
    for i in range(32):
        word, offset = divmod(i * bits, 32)
        value = groups[..., word] >> np.uint32(offset)
        if offset + bits > 32:
            value = value | (groups[..., word + 1] << np.uint32(32 - offset))
        found[..., i] = value & mask
    return found.reshape(*words.shape[:-1], -1)


def pack_nibbles(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Pack 4-bit values [rows, columns] to [rows, columns/2], the lower column in the low half."""
    return values[:, 0::2] | values[:, 1::2] << np.uint8(4)


def expand_groups(table: Floats, group_size: int, columns: int) -> Floats:
    """Repeat one element per group, [rows, groups], for each column: [rows, columns].

    The last group may be shorter. A table of one group is returned unchanged for broadcasting.
    """
    return table if table.shape[1] == 1 else np.repeat(table, group_size, axis=1)[:, :columns]

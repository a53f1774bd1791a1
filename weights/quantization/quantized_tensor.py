"""Tensors of a plain model as a quantized checkpoint keeps them, decoded some rows at a time."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.safetensors import TensorInfo
from swiftchat.weights.quantization.scheme import PackedSource, Rounding

__all__ = ["FLOATS", "PackedTensor", "Source", "as_float32", "spread", "unpack"]

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]
Read = Callable[[str], npt.NDArray[Any]]
Shape = tuple[int, ...]

FLOATS = ("F16", "BF16", "F32")
_ANY_FLOAT = (*FLOATS, "F64")
_PIECE_ELEMENTS = 1 << 21
# Pieces begin at multiples of this: AWQ packs eight rows into a word, 4-bit blocks have 64.
_PIECE_ROWS = 64


@dataclass(frozen=True)
class PackedTensor:
    """One tensor of the plain model; `form` tells how the file keeps it ("plain": as it is).

    `parts` names the file's tensors by the part they play, for those who want the packed form.
    `rows(start, stop)` decodes that range of the first axis to float32, whole where `shape` is
    (); `start` must be a multiple of 64 unless the tensor has more than two axes. `kept` tells
    how the engine computes with it packed, where there is such a form without loss. `inputs` says
    how what it is multiplied with was meant to be rounded; None: not at all.
    """

    form: str
    shape: Shape
    parts: Mapping[str, str]
    rows: Callable[[int, int], Floats]
    kept: PackedSource | None = None
    inputs: Rounding | None = None

    def values(self) -> Floats:
        """The whole tensor as float32 of `shape`; never rounded but where float32 itself is."""
        return self.rows(0, self.shape[0] if self.shape else 1).reshape(self.shape)

    def pieces(self) -> Iterator[Floats]:
        """The same numbers flat, in pieces of some eight megabytes, one after the other."""
        count = self.shape[0] if self.shape else 1
        step = max(1, _PIECE_ELEMENTS // max(1, math.prod(self.shape[1:])))
        if len(self.shape) == 2:
            step = max(_PIECE_ROWS, step // _PIECE_ROWS * _PIECE_ROWS)
        for start in range(0, count, step):
            yield self.rows(start, min(count, start + step)).reshape(-1)


class Source:
    """The tensors of a file by name, each asked for with the dtype and shape it must have.

    `read(name)` returns an array of the file's own numbers; bfloat16 and the 8-bit floats come
    as the unsigned integers of their bits.
    """

    def __init__(self, tensors: Mapping[str, TensorInfo], read: Read) -> None:
        self.tensors = tensors
        self.read = read

    def ending(self, suffix: str) -> list[str]:
        """Names that end in `suffix`, without it, in the file's order."""
        return [name.removesuffix(suffix) for name in self.tensors if name.endswith(suffix)]

    def shape(self, name: str, dtypes: tuple[str, ...], dimensions: int) -> Shape:
        """The shape of `name`, which must be here with that many axes, none of them empty."""
        info = self._info(name, dtypes)
        if len(info.shape) != dimensions or not all(info.shape):
            raise self.bad(name, f"{dimensions} axes, none empty", f"the shape {list(info.shape)}")
        return info.shape

    def require(self, name: str, dtypes: tuple[str, ...], shape: Shape) -> str:
        """Check that `name` is here in one of `dtypes` and in `shape`; returns the name."""
        info = self._info(name, dtypes)
        if info.shape != shape:
            raise self.bad(name, f"the shape {list(shape)}", str(list(info.shape)))
        return name

    def floats(self, name: str) -> Floats:
        """A float tensor (F16, BF16, F32, F64) as float32; only F64 is rounded."""
        return as_float32(self.read(name), self._info(name, _ANY_FLOAT).dtype)

    def factors(self, name: str) -> Floats:
        """A float tensor as float32; `BadModelFile` when a number of it is not finite."""
        found = self.floats(name)
        if not np.isfinite(found).all():
            raise self.bad(name, "finite factors", "others")
        return found

    def index(self, name: str, groups: int) -> npt.NDArray[np.int64]:
        """An integer tensor that says for each column which of `groups` groups it is in."""
        index = self.read(name).astype(np.int64)
        if index.min() < 0 or index.max() >= groups:
            raise self.bad(name, f"groups from 0 to {groups - 1}", "others")
        return index

    def words(self, name: str) -> Words:
        """An I32 tensor as the unsigned integers of its bits."""
        return self.read(name).view("<u4")

    def plain(self, name: str) -> PackedTensor:
        """The tensor `name` as it is; decoding refuses what is not a float."""

        def rows(start: int, stop: int) -> Floats:
            info = self._info(name, _ANY_FLOAT)
            return as_float32(self.read(name).reshape(info.shape or 1)[start:stop], info.dtype)

        return PackedTensor("plain", self.tensors[name].shape, {"plain": name}, rows)

    def bad(self, name: str, wanted: str, found: str) -> BadModelFile:
        """The error for the tensor `name`."""
        info = self.tensors.get(name)
        file = f"{info.file}: " if info else ""
        return BadModelFile(f"{file}tensor {name}: expected {wanted}, found {found}")

    def _info(self, name: str, dtypes: tuple[str, ...]) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise BadModelFile(f"no tensor {name}: expected one of {', '.join(dtypes)}")
        if info.dtype not in dtypes:
            raise self.bad(name, f"one of {', '.join(dtypes)}", info.dtype)
        return info


def as_float32(array: npt.NDArray[Any], dtype: str) -> Floats:
    """An array as files have it (BF16 as the integers of its bits) as float32."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def unpack(words: Words, bits: int) -> npt.NDArray[np.uint8]:
    """The numbers of `bits` bits each that the last axis holds, one after the other, low first.

    [..., n] words become [..., n·32 // bits] numbers; numbers may lie across two words, and n
    must then be a multiple of `bits`.
    """
    words = np.ascontiguousarray(words)
    if 8 % bits == 0:
        # Low bytes come first in memory too, so that words need not be put together.
        packed = words.view(np.uint8)[..., None]
        numbers = (packed >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
        return numbers.reshape(*words.shape[:-1], -1)
    mask = np.uint32((1 << bits) - 1)
    groups = words.reshape(*words.shape[:-1], -1, bits)
    found = np.empty((*groups.shape[:-1], 32), np.uint8)
    for at in range(32):
        word, offset = divmod(at * bits, 32)
        number = groups[..., word] >> np.uint32(offset)
        if offset + bits > 32:
            number = number | (groups[..., word + 1] << np.uint32(32 - offset))
        found[..., at] = number & mask
    return found.reshape(*words.shape[:-1], -1)


def spread(table: Floats, size: int, columns: int) -> Floats:
    """One number for each `size` columns, [rows, groups], as [rows, columns].

    The last group may be cut short; one that is as wide as the matrix is left to broadcasting.
    """
    return table if table.shape[1] == 1 else np.repeat(table, size, axis=1)[:, :columns]

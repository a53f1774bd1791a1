"""The place of a tensor in a file."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from swiftchat.errors import BadModelFile

# The dtypes of the safetensors format that this program reads, with the size of an element.
ITEM_BYTES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file: `offset` from the start of `file` and `nbytes` are in bytes.

    `dtype` is one of `ITEM_BYTES`, or another one, which nothing reads; `shape` is row-major.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class _Stored(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


def reject_overlaps(path: Path, tensors: Iterable[_Stored], *, allow_same: bool = False) -> None:
    """Raise `BadModelFile` if two tensors of the file `path` share bytes.

    With `allow_same`, two names for exactly the same bytes are accepted (tied embeddings).
    """
    stored = sorted((t for t in tensors if t.nbytes), key=lambda t: (t.offset, t.nbytes))
    for before, after in itertools.pairwise(stored):
        same = (before.offset, before.nbytes) == (after.offset, after.nbytes)
        if before.offset + before.nbytes > after.offset and not (allow_same and same):
            raise BadModelFile(f"{path}: tensors {before.name} and {after.name} overlap")

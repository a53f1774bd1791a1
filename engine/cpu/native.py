"""The enumerations, structures and constants that the native kernels share with Python.

They are those of the headers in `kernels/`, by the same names: `LinearOp`, `Activation.SILU` for
`ACT_SILU`, `TILE_ROWS`. Pointers are addresses: who fills a structure keeps the memory alive.
"""

from collections.abc import Mapping, Sequence
from ctypes import Structure
from functools import cache
from types import MappingProxyType
from typing import Any

from swiftchat.engine.cpu.c_header import declarations
from swiftchat.engine.cpu.compile_kernels import INTERFACE, KERNELS

_DECLARED = declarations((KERNELS / name).read_text(encoding="utf-8") for name in INTERFACE)


def __getattr__(name: str) -> Any:
    try:
        return _DECLARED[name]
    except KeyError:
        raise AttributeError(f"the headers of the native kernels have no {name}") from None


# Each operation is a field of the union `Op`, which has the name of its kind.
_FIELDS: Mapping[str, str] = MappingProxyType(
    {kind: field for field, kind in _DECLARED["Op"].c_types.items()}
)


def op_union(op: Structure) -> Any:
    """Return a copy of an operation as the union `Op`, with the kind in its header."""
    field = _FIELDS[type(op).__name__]
    union = _DECLARED["Op"](**{field: op})
    union.header.kind = _DECLARED["OpKind"][field.upper()]
    return union


@cache
def source_fields(kind: Any) -> Sequence[str]:
    """Return the fields of a kind of operation with the buffers that it reads."""
    return [name for name, c_type in kind.c_types.items() if c_type == "Source"]


@cache
def target_field(kind: Any) -> str:
    """Return the field of a kind of operation with the buffer that it writes."""
    (field,) = (name for name, c_type in kind.c_types.items() if c_type == "Target")
    return str(field)

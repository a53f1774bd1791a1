"""The operations of a decoder's forward pass, as the native kernels execute them."""

from ctypes import Structure
from dataclasses import dataclass, field
from typing import Any

from swiftchat.engine.cpu.low_rank import NativeDeltas
from swiftchat.engine.cpu.native import RowSet
from swiftchat.engine.linear.adapted import Site


@dataclass
class Recording:
    """The operations of a forward pass, in order.

    `buffers` are the row set and the width of each; every operation that does not work in place
    writes a buffer of its own. `output` is the buffer with the result. `references` own the memory
    that the operations point to. `deltas` are the changes of adapters, to be filled later.
    `hidden` are the buffers of hidden states by layer (`HiddenStates`), which no operation reads.
    """

    ops: list[Structure]
    buffers: list[tuple[RowSet, int]]
    output: int
    references: list[Any]
    deltas: dict[Site, NativeDeltas] = field(default_factory=dict)
    hidden: dict[int, int] = field(default_factory=dict)

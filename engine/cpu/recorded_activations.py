"""What a recorded operation writes, and why a model cannot be recorded."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from swiftchat.engine.cpu.native import RowSet


class CannotRecordError(Exception):
    """The native kernels cannot compute a whole model; the message says why."""


class Activations(Tensor):
    """What a recorded operation will write: the rows of a buffer, without values.

    With `first`, `width` columns of the buffer from that one on.
    Every operation of torch on it raises `CannotRecordError`.
    """

    buffer: int
    row_set: RowSet
    width: int
    first: int

    @classmethod
    def of(cls, buffer: int, row_set: RowSet, width: int, first: int = 0) -> "Activations":
        made = Tensor._make_subclass(cls, torch.empty(0, device="meta"))
        made.buffer, made.row_set, made.width, made.first = buffer, row_set, width, first
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        raise CannotRecordError(f"no kernel computes torch's {getattr(func, '__name__', func)}")

"""Pending norms and the stream: what one kernel computes with a matmul or the stream's change."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.layers.embedding import embed
from swiftchat.cuda.ops.layers.norm import add_norm
from swiftchat.cuda.ops.linear.linear import Norm
from swiftchat.cuda.packed_matrix import Matrix
from swiftchat.engine.gpu.fused.pending import Pending, Reading, add, adds, readings


class Scratch:
    """fp32 tensors [max_rows, hidden_size] for the outputs of branches before their norms.

    They are zero while no step uses them: `add_norm` clears what it has read.
    """

    def __init__(self, gpu: Gpu, max_rows: int, hidden_size: int) -> None:
        # A branch, and the sum of two normed ones.
        sums = torch.zeros(2, max_rows, hidden_size, device=gpu.device)
        self._free: list[Tensor] = list(sums.unbind())
        self._taken: list[Tensor] = []

    def take(self) -> Tensor:
        total = self._free.pop()
        self._taken.append(total)
        return total

    def give_back(self, total: Tensor) -> None:
        self._taken = [other for other in self._taken if other is not total]
        self._free.append(total)

    def reset(self) -> None:
        """Clear what a failed step has taken."""
        for total in self._taken:
            total.zero_()
        self._free += self._taken
        self._taken = []


class Normed(Reading):
    """The RMSNorm of the stream, or of a branch's output, `source` [n, hidden_size]."""

    def __init__(
        self,
        gpu: Gpu,
        source: Tensor,
        norm: Norm,
        scratch: Scratch,
        compute: Callable[[Tensor], Tensor],
    ) -> None:
        self._computed, self.source, self.rms = None, source, norm
        self._gpu, self._scratch, self._compute = gpu, scratch, compute

    def compute(self) -> Tensor:
        return self._compute(self.rows)

    @property
    def adds(self) -> bool:
        return self.is_pending and adds(self.source)

    @property
    def readings(self) -> Sequence[Reading]:
        return readings(self.source)

    def add_to(self, total: Tensor) -> None:
        ending = self.sum_source(len(total))
        ending.launch(total)

    def sum_source(self, n: int) -> "AddNorm":
        """Add the source, n rows, to zeros; return what adds the norm of that to a tensor."""
        total = self._scratch.take()
        add(self.source, total[:n])
        return AddNorm(self._gpu, total, self.rms, self._scratch)


class Ending(Protocol):
    """The last kernel that writes the stream; it can also multiply it."""

    def takes_scale(self, scale: float | Tensor) -> bool:
        """Multiply the stream afterwards, if the kernel does so; return whether it does."""

    def launch(self, rows: Tensor) -> None: ...


class AddNorm:
    """Adds the norm of the first rows of `total` to the stream and sets them to zero."""

    def __init__(self, gpu: Gpu, total: Tensor, norm: Norm, scratch: Scratch) -> None:
        self._gpu, self._total, self._norm, self._scratch = gpu, total, norm, scratch
        self._scale: Tensor | None = None
        self.copy: Tensor | None = None

    def takes_scale(self, scale: float | Tensor) -> bool:
        weight = self._norm.weight
        if self._scale is not None or not isinstance(scale, Tensor):
            return False
        if scale.shape != (1,) or scale.dtype != weight.dtype:
            return False
        self._scale = scale
        return True

    def launch(self, rows: Tensor) -> None:
        norm, delta = self._norm, self._total[: len(rows)]
        add_norm(
            self._gpu,
            rows,
            delta,
            norm.weight,
            norm.eps,
            weight_offset=norm.weight_offset,
            zero_delta=True,
            scale=self._scale,
            copy=self.copy,
        )
        self._scratch.give_back(self._total)


class Embedding:
    """Writes the embeddings of `ids` int32 [n] to the stream."""

    def __init__(self, gpu: Gpu, ids: Tensor, table: Matrix, first_id: int) -> None:
        self._gpu, self._ids, self._table, self._first_id = gpu, ids, table, first_id
        self._scale = 1.0
        self._sum: Callable[[Tensor, Tensor], None] | None = None

    def sum_over_ranks(self, add_parts: Callable[[Tensor, Tensor], None]) -> None:
        """Let `add_parts` write the sum of all ranks' embeddings, its second argument."""
        self._sum = add_parts

    def takes_scale(self, scale: float | Tensor) -> bool:
        if isinstance(scale, Tensor):
            return False
        self._scale *= scale
        return True

    def launch(self, rows: Tensor) -> None:
        part = rows if self._sum is None else torch.empty_like(rows)
        embed(self._gpu, self._ids, self._table, part, scale=self._scale, first_id=self._first_id)
        if self._sum is not None:
            self._sum(rows, part)


class Stream(Pending):
    """The residual stream fp32 [n, hidden_size], whose last change may be pending: `ending`."""

    def __init__(self, rows: Tensor, ending: Ending | None = None) -> None:
        self._computed, self._rows, self.ending = None, rows, ending

    @property
    def value(self) -> Tensor:
        ending, self.ending = self.ending, None
        if ending is not None:
            ending.launch(self._rows)
        return self._rows

    def compute(self) -> Tensor:
        return self.value

    def scale_(self, scale: float | Tensor) -> bool:
        """Let the pending change multiply the stream, too; return whether it does."""
        return self.ending is not None and self.ending.takes_scale(scale)

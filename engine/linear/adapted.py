"""Matrices with low-rank changes that depend on the row: LoRA (Hu et al., 2021, arXiv:2106.09685).

Each sequence of a batch has a set of adapters, or none. Adapters that a sequence combines are one
set: their parts are in one `Delta`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight, WrappedWeight

Site = tuple[str, int | None]
"""A matrix of the decoder: the field of `LayerWeights` or `DecoderWeights`, and the layer."""


@dataclass(frozen=True)
class LowRankPart:
    """Adds B · (A · x) to the results from number `first` on; without A it adds B · x.

    `a` [rank, columns], `b` [rows, rank] or [rows, columns].
    """

    first: int
    a: Tensor | None
    b: Tensor


@dataclass(frozen=True)
class Delta:
    """What a set of adapters changes in a matmul's results y, without the bias.

    y · gain + offset plus the parts; `gain` and `offset` fp32 [rows].
    """

    parts: Sequence[LowRankPart] = ()
    gain: Tensor | None = None
    offset: Tensor | None = None

    @property
    def rank(self) -> int:
        """The sum of the ranks."""
        return sum(len(part.a) for part in self.parts if part.a is not None)

    @property
    def tensors(self) -> list[Tensor]:
        found = [part.b for part in self.parts]
        found += [part.a for part in self.parts if part.a is not None]
        return found + [each for each in (self.gain, self.offset) if each is not None]

    def apply_(self, x: Tensor, y: Tensor) -> None:
        """Change y [n, rows], the results for x [n, columns], in place."""
        if self.gain is not None:
            y *= self.gain
        if self.offset is not None:
            y += self.offset
        for part in self.parts:
            narrow = x.to(part.b.dtype)
            if part.a is not None:
                narrow = narrow @ part.a.t()
            y[:, part.first : part.first + len(part.b)] += narrow @ part.b.t()


@dataclass(frozen=True)
class TableDelta:
    """What a set of adapters changes in rows of the table of embeddings.

    row · gain plus, for each part (table [vocab_size, rank], B [columns, rank] or None),
    B · table[id].
    """

    parts: Sequence[tuple[Tensor, Tensor | None]] = ()
    gain: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        found = [tensor for part in self.parts for tensor in part if tensor is not None]
        return found if self.gain is None else [*found, self.gain]

    def apply_(self, rows: Tensor, ids: Tensor, *, adds: bool = True) -> None:
        """Change the fp32 rows of the ids in place; without `adds` only multiply."""
        if self.gain is not None:
            rows *= self.gain
        for table, b in self.parts if adds else ():
            narrow = table[ids]
            rows += narrow if b is None else narrow @ b.t()


@dataclass(frozen=True)
class AdapterSet:
    """The changes of a set of adapters by matrix, and those of the embeddings."""

    deltas: Mapping[Site, Delta]
    embed: TableDelta | None = None

    @property
    def nbytes(self) -> int:
        tensors = [tensor for delta in self.deltas.values() for tensor in delta.tensors]
        tensors += [] if self.embed is None else self.embed.tensors
        return sum(tensor.nbytes for tensor in tensors)


@dataclass
class Selection:
    """The adapters of the current batch: `sets` by number, and which rows use which.

    `tokens` and `logits` are (set number, rows) for the rows of a batch and for those whose logits
    are computed; rows without adapters are in none.
    """

    sets: list[AdapterSet | None]
    tokens: list[tuple[int, slice]] = field(default_factory=list)
    logits: list[tuple[int, slice]] = field(default_factory=list)

    def rows(self, site: Site) -> list[tuple[int, slice]]:
        return self.logits if site[0] in ("project_out", "lm_head") else self.tokens


@dataclass(frozen=True)
class AdaptedWeight(WrappedWeight):
    """A weight of any kind, and the changes of the adapters of the current batch."""

    site: Site
    selection: Selection

    @property
    def description(self) -> str:
        return f"{self.weight.description}, with adapters"

    def matmul(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        out = self._adapted(x, self.weight.matmul(x))
        return out if bias is None else out + bias

    def matmul_fp32(self, x: Tensor) -> Tensor:
        return self._adapted(x, self.weight.matmul_fp32(x))

    def rows(self, ids: Tensor) -> Tensor:
        return self.weight.rows(ids)

    def reordered(self, order: Tensor) -> LinearWeight:
        raise TypeError("adapters belong to the decoder's order of rows")

    def _adapted(self, x: Tensor, out: Tensor) -> Tensor:
        for number, rows in self.selection.rows(self.site):
            adapters = self.selection.sets[number]
            delta = None if adapters is None else adapters.deltas.get(self.site)
            if delta is not None:
                delta.apply_(x[rows], out[rows])
        return out


def segments(numbers: Sequence[int]) -> list[tuple[int, slice]]:
    """Return (number, rows) for each run of equal numbers from 0 on."""
    found: list[tuple[int, slice]] = []
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != numbers[start]:
            if numbers[start] >= 0:
                found.append((numbers[start], slice(start, end)))
            start = end
    return found

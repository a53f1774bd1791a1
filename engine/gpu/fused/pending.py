"""Values of operations that a later operation may compute with its own kernel."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor


class Pending(Tensor):
    """What an operation returns before it is computed; `value` computes it.

    An operation of `FusedOps` that knows the kind of a pending value absorbs it: one kernel
    computes both. To everything else it is an ordinary tensor, because each operator of torch
    computes it first.
    """

    _computed: Tensor | None

    def __new__(cls, *_: Any, **__: Any) -> Self:
        return Tensor._make_subclass(cls, torch.empty(0, device="meta"))

    @property
    def is_pending(self) -> bool:
        return self._computed is None

    @property
    def value(self) -> Tensor:
        if self._computed is None:
            self._computed = self.compute()
        return self._computed

    @abstractmethod
    def compute(self) -> Tensor: ...

    @property
    def adds(self) -> bool:
        """Whether kernels can add it to an fp32 tensor without computing it first."""
        return False

    def add_to(self, total: Tensor) -> None:
        """Add it to fp32 [n, hidden_size] in place, by kernels if it `adds`."""
        total += self.value

    @property
    def readings(self) -> "Sequence[Reading]":
        """What `add_to` reads of the tensor that it is added to, and then may not be read again."""
        return ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*_values(args), **{name: _values(x) for name, x in (kwargs or {}).items()})


class Reading(Pending):
    """A pending value that reads the stream `source`, and so must precede its next change."""

    source: Tensor
    is_current = True  # False: the stream has changed

    @property
    def rows(self) -> Tensor:
        """What it reads."""
        assert self.is_current
        return computed(self.source)


class Cast(Reading):
    """A tensor in another dtype."""

    def __init__(self, source: Tensor, dtype: torch.dtype) -> None:
        self._computed, self.source, self._dtype = None, source, dtype

    def compute(self) -> Tensor:
        return self.rows.to(self._dtype)

    @property
    def adds(self) -> bool:
        return self.is_pending and self._dtype == torch.float32 and adds(self.source)

    @property
    def readings(self) -> Sequence[Reading]:
        return readings(self.source)

    def add_to(self, total: Tensor) -> None:
        add(self.source, total)


class Sum(Pending):
    """The sum of branch outputs, of which kernels can add one at least."""

    def __init__(self, terms: Sequence[Tensor]) -> None:
        self._computed, self._terms = None, terms

    def compute(self) -> Tensor:
        first, *others = (computed(term) for term in self._terms)
        return sum(others, start=first)

    @property
    def adds(self) -> bool:
        return self.is_pending

    def add_to(self, total: Tensor) -> None:
        # What reads the stream comes first: the others may be added to it.
        first, *others = sorted(self._terms, key=lambda term: not readings(term))
        for term in others:
            if readings(term):
                computed(term)
        for term in (first, *others):
            add(term, total)

    @property
    def readings(self) -> Sequence[Reading]:
        return [own for term in self._terms for own in readings(term)]


class Gated(Pending):
    """Queries, keys and values of `heads` [n, …], where `width` gates follow the queries."""

    def __init__(self, heads: Tensor, width: int) -> None:
        self._computed, self.heads, self._width = None, heads, width

    @property
    def gates(self) -> Tensor:
        return self.heads[:, self._width : 2 * self._width]

    def compute(self) -> Tensor:
        queries, rest = self.heads[:, : self._width], self.heads[:, 2 * self._width :]
        return torch.cat([queries, rest], 1)


def computed(x: Tensor) -> Tensor:
    """Return a tensor that kernels can read."""
    return x.value if isinstance(x, Pending) else x


def adds(x: Tensor) -> bool:
    """Return whether kernels can add x to a tensor without computing it first."""
    return isinstance(x, Pending) and x.adds


def add(x: Tensor, total: Tensor) -> None:
    """Add x to `total`, fp32 [n, hidden_size], in place."""
    if isinstance(x, Pending) and x.adds:
        x.add_to(total)
    else:
        total += computed(x)


def readings(x: Tensor) -> Sequence[Reading]:
    return x.readings if isinstance(x, Pending) and x.adds else ()


def _values(args: Any) -> Any:
    """Return arguments of an operator of torch with the values of pending ones."""
    if isinstance(args, Pending):
        return args.value
    return type(args)(map(_values, args)) if isinstance(args, list | tuple) else args

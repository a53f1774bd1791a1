"""Proposes a chain of tokens with a layer that reads the hidden states of all tokens.

EAGLE-3 heads and layers for multi-token prediction (MTP) are such layers.
"""

from collections import deque
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from swiftchat.engine.schedule.scheduler import Sequence
from swiftchat.engine.speculation.proposer import ObservedRow, Stopwatch

# Observed tokens wait until so many can be computed together, or until tokens are to be proposed.
_MAX_PENDING = 256
_CHUNK_TOKENS = 256
_MAX_ENDED = 4  # conversations that are kept for the next turn


class ChainCache(Protocol):
    """The keys and values of the tokens of one sequence.

    `positions` ascend, but some may be missing: tokens whose hidden states were not observed.
    """

    positions: list[int]

    def truncate(self, position: int) -> None:
        """Drop the tokens from a position on."""

    def before(self, position: int) -> Self:
        """Return a copy of the tokens before a position."""


class ChainLayer(Protocol):
    """A layer that continues hidden states, with caches of its own kind. All states are fp32."""

    @property
    def name(self) -> str: ...
    @property
    def hidden_layers(self) -> Collection[int]: ...
    def new_cache(self) -> ChainCache: ...
    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Return what is kept of observed hidden states, [n, …]."""

    def features(self, joined: Tensor) -> Tensor:
        """Return what the layer reads of them, [n, hidden_size]."""

    def forward(self, x: Tensor, ids: Tensor, positions: range, cache: Any) -> Tensor:
        """Return the hidden states after the tokens `ids` int64 [n], [n, hidden_size].

        Token i follows the one with the hidden state x[i] at `positions[i]`; the cache gets both.
        """

    def token(self, x: Tensor) -> Tensor:
        """Return the most probable id after a hidden state [1, hidden_size], int64 [1]."""


@dataclass
class _Followed:
    """What is known of a sequence.

    `cache` has the keys and values of tokens, each computed from its hidden states and the token
    after it. `pending` are joined hidden states [n, width] of tokens that are not in the cache, by
    the position of the first. `last` is the layer's output [1, width] for the newest token of the
    cache.
    """

    tokens: list[int]  # those of the sequence, the same list
    num_slides: int
    cache: ChainCache
    pending: list[tuple[int, Tensor]] = field(default_factory=list)
    last: Tensor | None = None

    def truncate(self, position: int) -> None:
        """Drop what is known of the tokens from a position on."""
        self.cache.truncate(position)
        self.pending = [
            (start, states[: position - start])
            for start, states in self.pending
            if start < position
        ]


class ChainHead:
    """Proposes tokens by feeding the layer its own hidden states and tokens.

    The prefix cache of the model has no hidden states. So the caches of the last conversations are
    kept, and a sequence begins with the one of the longest common beginning.
    """

    def __init__(self, layer: ChainLayer, step_s: float | None = None) -> None:
        """Use `step_s` as the duration of proposing a token in seconds, or measure it."""
        self._layer, self._stopwatch = layer, Stopwatch(step_s)
        self._followed: dict[int, _Followed] = {}
        self._ended: deque[_Followed] = deque(maxlen=_MAX_ENDED)

    @property
    def name(self) -> str:
        return self._layer.name

    @property
    def step_s(self) -> float | None:
        return self._stopwatch.step_s

    @property
    def hidden_layers(self) -> Collection[int]:
        return self._layer.hidden_layers

    def observe(self, row: ObservedRow) -> None:
        followed = self._follow(row)
        followed.truncate(row.position)
        followed.pending.append((row.position, self._layer.join(row.hidden)))
        if sum(len(states) for _, states in followed.pending) > _MAX_PENDING:
            self._compute(followed)

    @torch.inference_mode()
    def propose(self, sequence: Sequence, num_tokens: int) -> list[int]:
        followed = self._followed.get(sequence.id)
        if followed is None or followed.num_slides != sequence.num_slides or num_tokens < 1:
            return []
        with self._stopwatch.measured(num_tokens):
            self._compute(followed)
            # The rest are hidden states of rejected tokens; the newest one is computed next.
            followed.pending.clear()
            newest, cache = len(sequence.tokens) - 2, followed.cache
            if not cache.positions or cache.positions[-1] != newest or followed.last is None:
                return []
            # The ids stay on the device, so that the host need not wait for each of them.
            hidden, proposed = followed.last, [self._layer.token(followed.last)]
            for position in range(newest + 1, newest + num_tokens):
                positions = range(position, position + 1)
                hidden = self._layer.forward(hidden, proposed[-1], positions, cache)
                proposed.append(self._layer.token(hidden))
            cache.truncate(newest + 1)
            return torch.cat(proposed).tolist()

    def forget(self, sequence: Sequence) -> None:
        followed = self._followed.pop(sequence.id, None)
        if followed is not None and followed.cache.positions:
            followed.pending.clear()
            self._ended.append(followed)

    def _follow(self, row: ObservedRow) -> _Followed:
        sequence = row.sequence
        followed = self._followed.get(sequence.id)
        if followed is None or followed.num_slides != sequence.num_slides:
            cache = self._known(sequence.tokens, row.position)
            followed = _Followed(sequence.tokens, sequence.num_slides, cache)
            self._followed[sequence.id] = followed
        return followed

    def _known(self, tokens: list[int], end: int) -> ChainCache:
        """Return a cache of the tokens before position `end`, as far as another sequence has it."""
        num_common, best = 0, None
        for other in (*self._followed.values(), *self._ended) if end else ():
            pairs = enumerate(zip(tokens, other.tokens, strict=False))
            length = next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(other.tokens)))
            if length > num_common:
                num_common, best = length, other
        if best is None:
            return self._layer.new_cache()
        # A token's keys and values depend on the token after it.
        return best.cache.before(min(end, num_common - 1))

    def _compute(self, followed: _Followed) -> None:
        """Move the pending tokens to the cache whose next token is known."""
        tokens, runs = followed.tokens, _runs(followed.pending)
        followed.pending = []
        for start, states in runs:
            end = min(start + len(states), len(tokens) - 1)
            for first in range(start, end, _CHUNK_TOKENS):
                last = min(first + _CHUNK_TOKENS, end)
                x = self._layer.features(states[first - start : last - start])
                ids = torch.tensor(tokens[first + 1 : last + 1], device=x.device)
                out = self._layer.forward(x, ids, range(first, last), followed.cache)
                followed.last = out[-1:]
            if end < start + len(states):
                rest = max(0, end - start)
                followed.pending.append((start + rest, states[rest:]))


def _runs(pending: Seq[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Join the states of adjacent tokens, so that they are computed together."""
    runs: list[tuple[int, list[Tensor]]] = []
    end = -1
    for start, states in pending:
        if start != end:
            runs.append((start, []))
        runs[-1][1].append(states)
        end = start + len(states)
    return [(start, torch.cat(parts)) for start, parts in runs]

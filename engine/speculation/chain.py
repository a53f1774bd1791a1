"""Proposes a chain of tokens with a layer that reads the hidden states of all tokens.

EAGLE-3 heads and layers for multi-token prediction (MTP) are such layers.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.proposer import ObservedRow, Stopwatch

# Observed tokens wait until so many can be computed together, or until tokens are to be proposed.
_MAX_PENDING = 256
CHUNK_TOKENS = 256
_MAX_ENDED = 4  # conversations that are kept for the next turn
KNOWN_ROWS = 9  # that a chain of steps begins with: as many as a verification step has
MAX_CHAIN_TOKENS = 16  # that a cache has room for beyond the known ones


class ChainCache(Protocol):
    """The keys and values of the tokens of one sequence.

    `positions` ascend, but some may be missing: tokens whose hidden states were not observed.
    """

    positions: list[int]

    def reserve(self, num_tokens: int) -> bool:
        """Make room for more tokens; return whether there is enough memory."""

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
    @property
    def chain_rows(self) -> int:
        """The most known tokens that `chain` takes."""

    def new_cache(self) -> ChainCache: ...
    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        """Return what is kept of observed hidden states, [n, …]."""

    def compute(self, joined: Tensor, ids: Sequence[int], position: int, cache: Any) -> None:
        """Add known tokens to the cache: `joined` from `position` on, `ids` after each."""

    def chain(
        self, joined: Tensor, ids: Sequence[int], position: int, cache: Any, num_tokens: int
    ) -> list[int]:
        """Return the most probable tokens after known ones, each computed from the one before.

        `joined` are the hidden states from `position` on, `ids` the tokens after each. The cache
        gets these, and none of the returned tokens.
        """


class SteppedLayer(ABC):
    """A `ChainLayer` that is called for each token of a chain."""

    chain_rows = KNOWN_ROWS

    @abstractmethod
    def features(self, joined: Tensor) -> Tensor:
        """Return what the layer reads of joined hidden states, [n, hidden_size]."""

    @abstractmethod
    def forward(self, x: Tensor, ids: Tensor, positions: range, cache: Any) -> Tensor:
        """Return the hidden states after the tokens `ids` int64 [n], [n, hidden_size].

        Token i follows the one with the hidden state x[i] at `positions[i]`; the cache gets both.
        """

    @abstractmethod
    def token(self, x: Tensor) -> Tensor:
        """Return the most probable id after a hidden state [1, hidden_size], int64 [1]."""

    def compute(self, joined: Tensor, ids: Sequence[int], position: int, cache: Any) -> None:
        self._computed(joined, ids, position, cache)

    def chain(
        self, joined: Tensor, ids: Sequence[int], position: int, cache: Any, num_tokens: int
    ) -> list[int]:
        x = self._computed(joined, ids, position, cache)[-1:]
        # The ids stay on the device, so that the host need not wait for each of them.
        proposed, end = [self.token(x)], position + len(ids)
        for after in range(end, end + num_tokens - 1):
            x = self.forward(x, proposed[-1], range(after, after + 1), cache)
            proposed.append(self.token(x))
        cache.truncate(end)
        return torch.cat(proposed).tolist()

    def _computed(self, joined: Tensor, ids: Sequence[int], position: int, cache: Any) -> Tensor:
        known = torch.tensor(ids, device=joined.device)
        positions = range(position, position + len(ids))
        return self.forward(self.features(joined), known, positions, cache)


@dataclass
class _Followed:
    """What is known of a sequence.

    `cache` has the keys and values of tokens, each computed from its hidden states and the token
    after it. `pending` are joined hidden states [n, width] of tokens that are not in the cache, by
    the position of the first.
    """

    tokens: list[int]  # those of the sequence, the same list
    num_slides: int
    cache: ChainCache
    pending: list[tuple[int, Tensor]] = field(default_factory=list)

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
    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        followed = self._followed.get(sequence.id)
        if followed is None or followed.num_slides != sequence.num_slides or num_tokens < 1:
            return []
        position, joined = self._take_newest(followed)
        if not len(joined):
            return []
        ids, cache = sequence.tokens[position + 1 :], followed.cache
        with self._stopwatch.measured(num_tokens):
            return self._layer.chain(joined, ids, position, cache, num_tokens)

    def forget(self, sequence: TokenSequence) -> None:
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

    def _take_newest(self, followed: _Followed) -> tuple[int, Tensor]:
        """Take the newest pending tokens, up to `chain_rows`; compute those before them.

        Returns the position of the first and their states, of no token if that after the newest
        one is not known, or if there is no room.
        """
        end, runs = len(followed.tokens) - 1, _runs(followed.pending)
        # The rest are hidden states of rejected tokens; the newest one is computed next.
        before = [(start, states[: max(0, end - start)]) for start, states in runs]
        followed.pending = [run for run in before if len(run[1])]
        if not followed.pending:
            return 0, torch.empty(0)
        start, states = followed.pending.pop()
        is_newest = start + len(states) == end
        num_before = max(0, len(states) - self._layer.chain_rows) if is_newest else len(states)
        followed.pending.append((start, states[:num_before]))
        self._compute(followed)
        if not self._has_room(followed, len(states) + MAX_CHAIN_TOKENS):
            return 0, torch.empty(0)
        return start + num_before, states[num_before:]

    def _compute(self, followed: _Followed) -> None:
        """Move the pending tokens to the cache whose next token is known."""
        tokens, runs = followed.tokens, _runs(followed.pending)
        followed.pending = []
        if not self._has_room(followed, sum(len(states) for _, states in runs)):
            return
        for start, states in runs:
            end = min(start + len(states), len(tokens) - 1)
            for first in range(start, end, CHUNK_TOKENS):
                last = min(first + CHUNK_TOKENS, end)
                ids = tokens[first + 1 : last + 1]
                part = states[first - start : last - start]
                self._layer.compute(part, ids, first, followed.cache)
            if end < start + len(states):
                rest = max(0, end - start)
                followed.pending.append((start + rest, states[rest:]))

    def _has_room(self, followed: _Followed, num_tokens: int) -> bool:
        """Return whether the cache takes more tokens; forgets ended conversations for that."""
        while not followed.cache.reserve(num_tokens):
            if not self._ended:
                return False
            self._ended.popleft()
        return True


def _runs(pending: Sequence[tuple[int, Tensor]]) -> list[tuple[int, Tensor]]:
    """Join the states of adjacent tokens, so that they are computed together."""
    runs: list[tuple[int, list[Tensor]]] = []
    end = -1
    for start, states in pending:
        if start != end:
            runs.append((start, []))
        runs[-1][1].append(states)
        end = start + len(states)
    return [(start, parts[0] if len(parts) == 1 else torch.cat(parts)) for start, parts in runs]

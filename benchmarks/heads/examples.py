"""Conversations that a model writes itself, with the hidden states that heads learn from."""

import argparse
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.hidden_states import LAST_NORM
from swiftchat.engine.schedule.scheduler import Sequence as TokenSequence
from swiftchat.engine.speculation.proposer import ObservedRow
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.tokenizer import Tokenizer

_REQUESTS = (
    "Explain {} to a child.",
    "What are the most important facts about {}?",
    "Write a short story about {}.",
    "Give me five tips about {}.",
    "Write an email to a friend about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a Python function that has to do with {}, and explain it.",
    "Summarize the history of {}.",
    "Write a poem about {}.",
    "Make a table of three examples of {}.",
)
_TOPICS = (
    *("rivers", "bread", "chess", "volcanoes", "the moon", "gardens", "trains", "money", "sleep"),
    *("music", "bees", "maps", "winter", "friendship", "football", "prime numbers", "coffee"),
    *("the sea", "photography", "dinosaurs", "bridges", "languages", "exercise", "computers"),
    *("elections", "painting", "cats", "electricity", "the weather", "markets", "tea", "novels"),
)


@dataclass
class Recorded:
    """An answered prompt: the joined hidden states of its tokens.

    `normed` are those that the LM head read, of the tokens from `answer` on.
    """

    tokens: list[int]
    answer: int = 0
    joined: "Rows" = field(default_factory=lambda: Rows())
    normed: "Rows" = field(default_factory=lambda: Rows())


class Rows:
    """Rows in fp16 in one large tensor: many small ones would fragment the memory."""

    def __init__(self) -> None:
        self._memory, self._num_rows = torch.empty(0, 0), 0

    def __len__(self) -> int:
        return self._num_rows

    @property
    def values(self) -> Tensor:
        return self._memory[: self._num_rows]

    def append(self, rows: Tensor) -> None:
        end = self._num_rows + len(rows)
        if end > len(self._memory):
            grown = torch.empty(max(256, 2 * end), rows.shape[1], dtype=torch.float16)
            if self._num_rows:
                grown[: self._num_rows] = self.values
            self._memory = grown
        self._memory[self._num_rows : end] = rows
        self._num_rows = end


class Recorder:
    """A proposer that proposes nothing and keeps what it observes."""

    name = "recorder"
    step_s = 1.0

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers, self.hidden_layers = layers, (*dict.fromkeys(layers), LAST_NORM)
        self.recorded: dict[int, Recorded] = {}

    def observe(self, row: ObservedRow) -> None:
        found = self.recorded.get(row.sequence.id)
        if found is None:
            found = self._begun(row.sequence.tokens, row.position)
            self.recorded[row.sequence.id] = found
        # A preempted answer would be computed again; the cache has room for all of them.
        assert row.position == len(found.joined)
        found.joined.append(torch.cat([row.hidden[layer] for layer in self._layers], 1))
        if len(row.hidden[LAST_NORM]):
            found.answer = found.answer or row.last_position
            found.normed.append(row.hidden[LAST_NORM])

    def _begun(self, tokens: list[int], num_cached: int) -> Recorded:
        """Return a new answer, with the hidden states of its tokens from the prefix cache."""
        new = Recorded(tokens)
        if num_cached:
            start = tokens[:num_cached]
            others = self.recorded.values()
            known = (one for one in others if len(one.joined) >= num_cached)
            same = next(one for one in known if one.tokens[:num_cached] == start)
            new.joined.append(same.joined.values[:num_cached])
        return new

    def propose(self, sequence: TokenSequence, num_tokens: int) -> list[int]:
        return []

    def forget(self, sequence: TokenSequence) -> None:
        """Do nothing: the hidden states are kept for the training."""


def generate(
    engine: Engine, tokenizer: Tokenizer, layers: Sequence[int], args: argparse.Namespace
) -> list[Recorded]:
    """Let the model answer prompts until it has written `args.tokens` tokens."""
    recorder = Recorder(layers)
    engine.speculation = Speculation(
        StepCosts(0.2), 1024, engine.ctx_size_tokens, measures=False, draft=recorder
    )
    texts = [request.format(topic) for request, topic in itertools.product(_REQUESTS, _TOPICS)]
    random.Random(args.seed).shuffle(texts)
    params = SamplingParams(
        temperature=args.temperature,
        top_p=0.95,
        max_tokens=args.max_tokens,
        stop_ids=tuple(tokenizer.eos_ids),
        speculate="draft",
    )
    waiting = list(enumerate(itertools.islice(itertools.cycle(texts), 100_000)))[::-1]
    started = time.monotonic()
    while True:
        num_tokens = sum(len(one.normed) for one in recorder.recorded.values())
        while num_tokens < args.tokens and len(engine.scheduler.running) < args.rows:
            key, text = waiting.pop()
            engine.add(key, list(tokenizer.prompt([{"role": "user", "content": text}]).ids), params)
            engine.step()
        if not engine.has_work:
            break
        engine.step()
    seconds = time.monotonic() - started
    print(
        f"generated {num_tokens} tokens in {seconds:.0f} s ({num_tokens / seconds:.0f}/s)",
        flush=True,
    )
    return list(recorder.recorded.values())


@dataclass(frozen=True)
class Examples:
    """Conversations of one training step, padded to n tokens.

    Token i has the joined hidden states `joined[:, i]` and the next id `following[:, i]`; its
    position is i. `labels[:, i]` are the model's hidden states from which that id was sampled,
    where `is_answer`.
    """

    joined: Tensor
    following: Tensor
    labels: Tensor
    is_answer: Tensor

    @classmethod
    def of(cls, some: Sequence[Recorded]) -> "Examples":
        length = max(len(one.tokens) for one in some) - 1
        widths = some[0].joined.values.shape[1], some[0].normed.values.shape[1]
        joined, labels = (torch.zeros(len(some), length, width) for width in widths)
        following = torch.zeros(len(some), length, dtype=torch.int64)
        is_answer = torch.zeros(len(some), length, dtype=torch.bool)
        for row, one in enumerate(some):
            ends = slice(None), slice(one.answer, None)
            states, normed = one.joined.values, one.normed.values
            following[row, : len(one.tokens) - 1] = torch.tensor(one.tokens[1:])
            for into, values, end in ((joined, states, ends[0]), (labels, normed, ends[1])):
                room = into[row, end]
                room[: len(values)] = values[: len(room)]
            is_answer[row, one.answer : one.answer + len(normed)] = True
        return cls(joined, following, labels, is_answer)

    def to(self, device: str) -> "Examples":
        tensors = (self.joined, self.following, self.labels, self.is_answer)
        return Examples(*(tensor.to(device) for tensor in tensors))

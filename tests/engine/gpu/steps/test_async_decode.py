"""The decode batch and async decode, with graphs simulated in Python."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.gpu.steps.async_decode import AsyncDecode
from swiftchat.engine.gpu.steps.decode_graphs import Part
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Step, TokenSequence
from swiftchat.engine.steps.runner import StepInputs

BLOCK_SIZE, VOCAB_SIZE, CTX_SIZE = 4, 97, 60


def next_token(token: int) -> int:
    return (token * 31 + 7) % VOCAB_SIZE


class Thirds:
    """A grammar: an id, divided by 3, leaves the remainder that the number of tokens leaves.

    Every fourth to sixth id is forced.
    """

    def __init__(self) -> None:
        self.num_tokens = 0
        self._update()

    def accept(self, token: int) -> None:
        assert self.allowed[token]
        self.num_tokens += 1
        self._update()

    def _update(self) -> None:
        self.allowed = torch.arange(128) % 3 == self.num_tokens % 3
        if self.num_tokens % 6 > 2:
            self.allowed &= torch.arange(128) // 3 == self.num_tokens % 32
        bits = self.allowed.view(-1, 32).long() << torch.arange(32)
        self.mask = bits.sum(1).int()


def choose(token: int, mask: torch.Tensor | None) -> int:
    """Return the id after a token: the next one that the mask allows."""
    chosen = next_token(token)
    while mask is not None and not int(mask[chosen // 32]) >> chosen % 32 & 1:
        chosen = (chosen + 1) % VOCAB_SIZE
    return chosen


class FakeGraphs:
    """Updates the decode batch as the kernels of a step do, and checks slots and positions."""

    def __init__(self) -> None:
        gpu = SimpleNamespace(device=torch.device("cpu"))
        blocks = -(-CTX_SIZE // BLOCK_SIZE)
        self.batch = DecodeBatch(gpu, 8, blocks, BLOCK_SIZE, VOCAB_SIZE)  # type: ignore[arg-type]
        self.num_replays = 0
        self.has_logits = False  # of a step that is not sampled yet

    def graph(self, num_rows: int, part: Part, *, adapted: bool) -> None:
        assert num_rows <= self.batch.max_rows and not adapted

    def replay(self, num_rows: int, part: Part, *, adapted: bool) -> None:
        batch = self.batch
        assert part != "sampling" or self.has_logits
        if part == "forward":
            self.has_logits = True
            return
        self.has_logits = False
        ring = batch.ring[batch.num_steps % len(batch.ring)]
        for row in range(num_rows):
            position, slot = int(batch.positions[row]), int(batch.slot_mapping[row])
            assert batch.context_lens[row] == position + 1
            block = int(batch.block_tables[row, position // BLOCK_SIZE])
            assert slot == block * BLOCK_SIZE + position % BLOCK_SIZE
            mask = batch.masks[row] if batch.has_mask[row] else None
            token = choose(int(batch.ids[row]), mask)
            ring[row] = token
            batch.ids[row], batch.positions[row] = token, position + 1
            batch.context_lens[row] = position + 2
            block = int(batch.block_tables[row, (position + 1) // BLOCK_SIZE])
            batch.slot_mapping[row] = block * BLOCK_SIZE + (position + 1) % BLOCK_SIZE
        batch.num_steps += 1
        self.num_replays += 1


@pytest.fixture(autouse=True, scope="module")
def no_cuda():
    patch = pytest.MonkeyPatch()
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    patch.setattr(torch.cuda, "Event", lambda: event)
    patch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    yield
    patch.undo()


class Loop:
    """The engine's loop around AsyncDecode, without a model."""

    def __init__(self, num_blocks: int = 64, fast_forwards: bool = False) -> None:
        self.fast_forwards = fast_forwards
        self.scheduler = Scheduler(BlockAllocator(num_blocks, BLOCK_SIZE), 512, 8)
        self.graphs = FakeGraphs()
        self.decode = AsyncDecode(
            self.graphs,  # type: ignore[arg-type]
            self.scheduler,
            CTX_SIZE,
            has_logits=False,
        )

    def run_once(self) -> None:
        if self.decode.is_in_flight:
            self._append(self.decode.collect())
            return
        step: Step = self.scheduler.schedule()
        sampled = self.decode.compute(StepInputs(step, [1] * len(step.rows), BLOCK_SIZE))
        if sampled is not None:
            self._append(sampled)
            return
        for row in step.rows:
            reaches_end = row.reaches_end
            self.scheduler.advance(row)
            if reaches_end:
                constraint = row.sequence.constraint
                mask = constraint.mask if constraint else None
                self._append_token(row.sequence, choose(row.sequence.tokens[-1], mask))

    def _append(self, step: Any) -> None:
        for row, (token,) in zip(step.rows, step.tokens, strict=True):
            self.scheduler.advance(row)
            self._append_token(row.sequence, token)

    def _append_token(self, sequence: TokenSequence, token: int) -> None:
        if token in sequence.params.stop_ids:
            self.scheduler.remove(sequence)
            return
        sequence.tokens.append(token)
        if sequence.constraint is not None:
            sequence.constraint.accept(token)
            self._fast_forward(sequence, sequence.constraint)
        full = len(sequence.tokens) >= CTX_SIZE
        if full or sequence.num_generated == sequence.params.max_tokens:
            self.scheduler.remove(sequence)

    def _fast_forward(self, sequence: TokenSequence, grammar: Any) -> None:
        limit = sequence.params.max_tokens
        while self.fast_forwards and grammar.allowed.sum() == 1:
            token = int(grammar.allowed.nonzero())
            is_last = len(sequence.tokens) >= CTX_SIZE or sequence.num_generated == limit
            if is_last or token in sequence.params.stop_ids:
                return
            sequence.tokens.append(token)
            grammar.accept(token)


def expected(sequence: TokenSequence, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    grammar = Thirds() if sequence.constraint else None
    while len(tokens) < CTX_SIZE and len(tokens) - len(prompt) != sequence.params.max_tokens:
        token = choose(tokens[-1], grammar.mask if grammar else None)
        if token in sequence.params.stop_ids:
            break
        if grammar:
            grammar.accept(token)
        tokens.append(token)
    return tokens


def test_a_token_limit_causes_no_extra_launch() -> None:
    loop = Loop()
    sequence = TokenSequence(1, [3, 4, 5], SamplingParams(max_tokens=20))
    loop.scheduler.add(sequence)
    while loop.scheduler.has_work:
        loop.run_once()
    assert sequence.tokens == expected(sequence, [3, 4, 5])
    # Prefill samples the first token; the limit is known in advance, so no step is discarded.
    assert loop.graphs.num_replays == 19


def test_rows_with_logprobs_are_not_replayed() -> None:
    loop = Loop()
    plain = TokenSequence(1, [3, 4, 5], SamplingParams(max_tokens=30))
    with_logprobs = TokenSequence(2, [6, 7], SamplingParams(max_tokens=10, logprobs=0))
    loop.scheduler.add(plain)
    for _ in range(5):
        loop.run_once()
    before = loop.graphs.num_replays
    loop.scheduler.add(with_logprobs)
    while with_logprobs in (*loop.scheduler.running, *loop.scheduler.waiting):
        loop.run_once()
        assert not loop.decode.is_in_flight or with_logprobs not in loop.scheduler.running
    assert before <= loop.graphs.num_replays <= before + 1
    while loop.scheduler.has_work:
        loop.run_once()
    assert loop.graphs.num_replays > before + 1
    assert plain.tokens == expected(plain, [3, 4, 5])
    assert with_logprobs.tokens == expected(with_logprobs, [6, 7])


def test_the_mask_of_a_step_is_loaded_while_its_forward_pass_runs() -> None:
    loop = Loop()
    loop.scheduler.add(
        TokenSequence(1, [3, 4, 5], SamplingParams(max_tokens=20), constraint=Thirds())
    )  # type: ignore[arg-type]
    loop.run_once()
    for _ in range(18):
        loop.run_once()
        assert loop.graphs.has_logits  # of the next step
    assert loop.graphs.num_replays == 18
    loop.run_once()
    assert loop.graphs.num_replays == 19 and not loop.graphs.has_logits
    assert not loop.scheduler.has_work


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_mixture_of_starts_ends_and_cancels(data: st.DataObject) -> None:
    loop = Loop(data.draw(st.integers(16, 60)), fast_forwards=data.draw(st.booleans()))
    alive: list[tuple[TokenSequence, list[int]]] = []
    finished: list[tuple[TokenSequence, list[int]]] = []
    for i in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            prompt = data.draw(st.lists(st.integers(0, 96), min_size=1, max_size=20))
            stop = tuple(data.draw(st.lists(st.integers(0, 96), max_size=2)))
            limit = data.draw(st.one_of(st.none(), st.integers(1, 30)))
            params = SamplingParams(max_tokens=limit, stop_ids=stop)
            sequence = TokenSequence(i, list(prompt), params)
            if data.draw(st.booleans()):
                sequence.constraint = Thirds()  # type: ignore[assignment]
            loop.scheduler.add(sequence)
            alive.append((sequence, prompt))
        for _ in range(data.draw(st.integers(0, 12))):
            if loop.scheduler.has_work:
                loop.run_once()
            loop.scheduler.check_integrity()
        waiting = [*loop.scheduler.running, *loop.scheduler.waiting]
        for entry in [e for e in alive if e[0] not in waiting]:
            alive.remove(entry)
            finished.append(entry)
        if alive and data.draw(st.booleans()):
            sequence, prompt = alive.pop(data.draw(st.integers(0, len(alive) - 1)))
            loop.scheduler.remove(sequence)
            assert sequence.tokens == expected(sequence, prompt)[: len(sequence.tokens)]
    while loop.scheduler.has_work:
        loop.run_once()
        loop.scheduler.check_integrity()
    for sequence, prompt in [*finished, *alive]:
        assert sequence.tokens == expected(sequence, prompt)
    assert loop.scheduler.allocator.num_used == 0

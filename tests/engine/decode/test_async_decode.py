"""The decode batch and decoding one step ahead, on a device that is played in Python."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.decode.async_decode import AsyncDecode
from swiftchat.engine.decode.decode_batch import DecodeBatch
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Row, Scheduler, Sequence, Step

BLOCK_SIZE, VOCAB_SIZE, CTX_SIZE = 4, 97, 60


def follower(token: int) -> int:
    return (token * 31 + 7) % VOCAB_SIZE


class PlayedStep:
    """Does what the kernels of a step do, and watches whose slots are written."""

    def __init__(self, scheduler: Scheduler) -> None:
        gpu = SimpleNamespace(device=torch.device("cpu"))
        blocks = -(-CTX_SIZE // BLOCK_SIZE)
        self.lanes = DecodeBatch(gpu, 8, blocks, BLOCK_SIZE, VOCAB_SIZE)  # type: ignore[arg-type]
        self.scheduler = scheduler
        self.num_launches = 0

    def prepare(self, num_lanes: int) -> None:
        assert num_lanes <= self.lanes.max_lanes

    def launch(self, num_lanes: int) -> None:
        lanes = self.lanes
        row = lanes.num_steps % len(lanes.ring)
        for lane in range(num_lanes):
            position, slot = int(lanes.positions[lane]), int(lanes.slots[lane])
            assert lanes.context_lens[lane] == position + 1
            block = int(lanes.block_tables[lane, position // BLOCK_SIZE])
            assert slot == block * BLOCK_SIZE + position % BLOCK_SIZE
            token = follower(int(lanes.tokens[lane]))
            lanes.ring[row, lane] = token
            lanes.tokens[lane], lanes.positions[lane] = token, position + 1
            lanes.context_lens[lane] = position + 2
            block = int(lanes.block_tables[lane, (position + 1) // BLOCK_SIZE])
            lanes.slots[lane] = block * BLOCK_SIZE + (position + 1) % BLOCK_SIZE
        lanes.num_steps += 1
        self.num_launches += 1


@pytest.fixture(autouse=True, scope="module")
def no_cuda():
    patch = pytest.MonkeyPatch()
    event = SimpleNamespace(record=lambda: None, synchronize=lambda: None)
    patch.setattr(torch.cuda, "Event", lambda: event)
    patch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())
    yield
    patch.undo()


class Loop:
    """The engine's loop around AsyncDecode, with prompts computed by nobody."""

    def __init__(self, num_blocks: int = 64) -> None:
        self.scheduler = Scheduler(BlockAllocator(num_blocks, BLOCK_SIZE), 512, 8)
        self.step = PlayedStep(self.scheduler)
        self.ahead = AsyncDecode(self.step, self.scheduler, CTX_SIZE)  # type: ignore[arg-type]

    def run_once(self) -> None:
        if self.ahead.is_in_flight:
            self._land()
            return
        step: Step = self.scheduler.schedule()
        if self.ahead.launch(step, [1] * len(step.rows)):
            self._land()
            return
        for row in step.rows:
            reaches_end = row.reaches_end
            self.scheduler.advance(row)
            if reaches_end:
                self._extend(row.sequence, follower(row.sequence.tokens[-1]))

    def _land(self) -> None:
        for sequence, token in self.ahead.collect():
            self.scheduler.advance(Row(sequence, 1))
            self._extend(sequence, token)

    def _extend(self, sequence: Sequence, token: int) -> None:
        if token in sequence.params.stop_ids:
            self.scheduler.remove(sequence)
            return
        sequence.tokens.append(token)
        full = len(sequence.tokens) >= CTX_SIZE
        if full or sequence.num_generated == sequence.params.max_tokens:
            self.scheduler.remove(sequence)


def expected(sequence: Sequence, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < CTX_SIZE and len(tokens) - len(prompt) != sequence.params.max_tokens:
        token = follower(tokens[-1])
        if token in sequence.params.stop_ids:
            break
        tokens.append(token)
    return tokens


def test_one_launch_a_token_and_one_more() -> None:
    loop = Loop()
    sequence = Sequence(1, [3, 4, 5], SamplingParams(max_tokens=20))
    loop.scheduler.add(sequence)
    while loop.scheduler.has_work:
        loop.run_once()
    assert sequence.tokens == expected(sequence, [3, 4, 5])
    # The first token is the prompt's; a limit is known beforehand, so nothing is thrown away.
    assert loop.step.num_launches == 19


def test_a_sequence_that_needs_likelihoods_goes_the_plain_way() -> None:
    loop = Loop()
    plain = Sequence(1, [3, 4, 5], SamplingParams(max_tokens=30))
    asking = Sequence(2, [6, 7], SamplingParams(max_tokens=10, logprobs=0))
    loop.scheduler.add(plain)
    for _ in range(5):
        loop.run_once()
    launches = loop.step.num_launches
    loop.scheduler.add(asking)
    while asking in (*loop.scheduler.running, *loop.scheduler.waiting):
        loop.run_once()
        assert not loop.ahead.is_in_flight or asking not in loop.scheduler.running
    assert launches <= loop.step.num_launches <= launches + 1
    while loop.scheduler.has_work:
        loop.run_once()
    assert loop.step.num_launches > launches + 1
    assert plain.tokens == expected(plain, [3, 4, 5])
    assert asking.tokens == expected(asking, [6, 7])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_mixture_of_starts_ends_and_cancels(data: st.DataObject) -> None:
    loop = Loop(num_blocks=data.draw(st.integers(16, 60)))
    alive: list[tuple[Sequence, list[int]]] = []
    finished: list[tuple[Sequence, list[int]]] = []
    for i in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            prompt = data.draw(st.lists(st.integers(0, 96), min_size=1, max_size=20))
            stop = tuple(data.draw(st.lists(st.integers(0, 96), max_size=2)))
            limit = data.draw(st.one_of(st.none(), st.integers(1, 30)))
            params = SamplingParams(max_tokens=limit, stop_ids=stop)
            sequence = Sequence(i, list(prompt), params)
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

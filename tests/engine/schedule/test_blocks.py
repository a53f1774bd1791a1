"""The block allocator and the scheduler: no block leaks or is shared by mistake."""

import itertools
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.blocks import BlockAllocator, NoFreeBlock
from swiftchat.engine.schedule.content import ROOT
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.schedule.states import StateSlots
from swiftchat.engine.schedule.tuning import SequenceTuning, VirtualTokens
from swiftchat.engine.schedule.twins import find_twins, fork


def test_a_released_prefix_is_found_again() -> None:
    allocator = BlockAllocator(8, 4)
    blocks = [allocator.allocate(), allocator.allocate()]
    parent = allocator.publish(blocks[0], ROOT, [1, 2, 3, 4])
    allocator.publish(blocks[1], parent, [5, 6])
    allocator.release(blocks)
    prefix = allocator.find_prefix([1, 2, 3, 4, 5, 9, 9])
    assert (prefix.blocks, prefix.tail, prefix.tail_tokens) == ([blocks[0]], blocks[1], 1)
    assert allocator.find_prefix([2, 2, 3, 4]).blocks == []
    assert allocator.find_prefix([2]).tail is None


def test_eviction_starts_at_the_end_of_a_sequence() -> None:
    allocator = BlockAllocator(2, 2)
    blocks = [allocator.allocate(), allocator.allocate()]
    parent = allocator.publish(blocks[0], ROOT, [1, 2])
    allocator.publish(blocks[1], parent, [3, 4])
    allocator.release(blocks)
    assert allocator.allocate() == blocks[1]
    assert allocator.find_prefix([1, 2, 3, 4]).blocks == [blocks[0]]


def test_a_block_is_found_only_behind_its_predecessor() -> None:
    allocator = BlockAllocator(3, 1)
    a, b = allocator.allocate(), allocator.allocate()
    parent = allocator.publish(a, ROOT, [1])
    allocator.publish(b, parent, [2])
    allocator.release([b])
    allocator.release([a])
    allocator.acquire([b])  # keeps the child while the parent is evicted
    c, d = allocator.allocate(), allocator.allocate()
    assert {c, d} == {0, 1, 2} - {b}
    assert allocator.find_prefix([1, 2]).blocks == []
    allocator.publish(c, ROOT, [3])
    assert allocator.find_prefix([3, 2]).blocks == [c]
    allocator.publish(d, ROOT, [1])  # the predecessor is computed again
    assert allocator.find_prefix([1, 2]).blocks == [d, b]


def test_the_identity_of_a_block_includes_all_tokens_before_it() -> None:
    """Not only those of the block before it, which may follow different beginnings."""
    allocator = BlockAllocator(8, 1)

    def publish(tokens: list[int]) -> None:
        parent = ROOT
        for token in tokens:
            parent = allocator.publish(allocator.allocate(), parent, [token])

    publish([1, 5, 6])
    publish([2, 5])
    assert len(allocator.find_prefix([1, 5, 6]).blocks) == 3
    assert len(allocator.find_prefix([2, 5, 6]).blocks) == 2


def test_blocks_of_a_sequence_are_contiguous() -> None:
    allocator = BlockAllocator(16, 4)
    table = [allocator.allocate()]
    other = allocator.allocate(after=table[-1])
    for _ in range(5):
        table.append(allocator.allocate(after=table[-1]))
    assert other == 1 and table == [0, 2, 3, 4, 5, 6]


def test_allocate_raises_if_all_blocks_are_referenced() -> None:
    allocator = BlockAllocator(1, 4)
    allocator.allocate()
    with pytest.raises(NoFreeBlock):
        allocator.allocate()


def prefix_tuning(name: bytes, num_virtual: int = 3) -> SequenceTuning:
    """Virtual tokens whose keys and values are given."""
    return SequenceTuning(name, virtual=VirtualTokens(num_virtual, kv=torch.empty(0)))


TUNINGS = (None, None, prefix_tuning(b"a"), prefix_tuning(b"b"))


def contents(sequence: TokenSequence) -> list[tuple[bytes, int]]:
    """What stands for the keys and values of each token: none are those of another tuning."""
    return [(sequence.root, token) for token in sequence.tokens]


class FakeCache:
    """Stores tokens in place of keys and values, so that every read can be checked."""

    def __init__(self, num_blocks: int, block_size: int, num_states: int = 0) -> None:
        self.slots = [[None] * block_size for _ in range(num_blocks)]
        self.states: list[list[int]] = [[] for _ in range(num_states)]
        self.size = block_size

    def run(self, step: Step) -> None:
        first = 0
        for stored in step.stored:
            self.copy(step.copies[first : stored.num_copies])
            self.write(stored.sequence, range(stored.sequence.num_virtual))
            first = stored.num_copies
        self.copy(step.copies[first:])
        for source, destination in step.state_copies:
            self.states[destination] = self.states[source]
        for row in step.rows if self.states else ():
            self.run_state(row)
        for row in step.rows:
            start = row.sequence.num_computed
            self.write(row.sequence, range(start, start + row.num_tokens), row.proposed)
        for row in step.rows:  # every row reads its whole context after all rows have written
            sequence = row.sequence
            end = sequence.num_computed + row.num_tokens
            seen = [
                self.slots[sequence.block_table[p // self.size]][p % self.size] for p in range(end)
            ]
            assert seen == contents(sequence)[:end]

    def copy(self, copies: list[tuple[int, int]]) -> None:
        for source, destination in copies:
            self.slots[destination] = list(self.slots[source])

    def write(
        self, sequence: TokenSequence, positions: range, proposed: tuple[int, ...] = ()
    ) -> None:
        found = contents(sequence)[: positions.stop]
        found += [(sequence.root, token) for token in proposed]
        for position in range(positions.start, positions.stop + len(proposed)):
            block = sequence.block_table[position // self.size]
            self.slots[block][position % self.size] = found[position]

    def run_state(self, row: Row) -> None:
        sequence = row.sequence
        end = sequence.num_computed + row.num_tokens
        if sequence.num_computed:  # else the state is zero, whatever the slot holds
            assert self.states[sequence.state_slot] == sequence.tokens[: sequence.num_computed]
        if row.proposed:
            tokens = [*sequence.tokens[:end], *row.proposed]
            if sequence.spare_slot >= 0:  # kernels read the state before while they write
                assert sequence.state_slot not in sequence.verified_slots
            for i, slot in enumerate(sequence.verified_slots):
                self.states[slot] = tokens[: end + i]
            return
        is_step = row.num_tokens == 1 and sequence.spare_slot >= 0
        self.states[sequence.spare_slot if is_step else sequence.state_slot] = sequence.tokens[:end]

    def run_ahead(self, sequence: TokenSequence) -> None:
        """Compute a next token of a sequence, which is then discarded."""
        if sequence.spare_slot >= 0:
            self.states[sequence.spare_slot] = [-1]


class SchedulerMachine(RuleBasedStateMachine):
    """Random adds, steps, ends and cancels in a small cache with few distinct tokens."""

    @initialize(
        num_blocks=st.integers(6, 12),
        size=st.integers(1, 4),
        chunk=st.integers(1, 9),
        max_seqs=st.integers(1, 4),
        num_states=st.sampled_from([0, 3, 4, 5, 8, 13]),
        has_spares=st.booleans(),
        num_verified=st.sampled_from([0, 1, 2]),
    )
    def begin(
        self,
        num_blocks: int,
        size: int,
        chunk: int,
        max_seqs: int,
        num_states: int,
        has_spares: bool,
        num_verified: int,
    ) -> None:
        self.allocator = BlockAllocator(num_blocks, size)
        self.scheduler = Scheduler(self.allocator, chunk, max_seqs)
        if num_states:
            num_verified = min(num_verified, num_states - 2 - has_spares)
            self.scheduler.use_states(
                StateSlots(num_states, size, has_spares=has_spares, num_verified=num_verified)
            )
        self.cache = FakeCache(num_blocks, size, num_states)
        self.capacity = num_blocks * size
        self.next_id = 0

    @rule(
        tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20),
        tuning=st.sampled_from(TUNINGS),
    )
    def add(self, tokens: list[int], tuning: SequenceTuning | None) -> None:
        self.next_id += 1
        if self.cache.states or self.capacity < 6:
            tuning = None
        placeholders = [] if tuning is None else tuning.placeholders(tokens)
        tokens = [*placeholders, *tokens][: self.capacity - 1]
        self.scheduler.add(TokenSequence(self.next_id, tokens, SamplingParams(), tuning=tuning))

    @precondition(lambda self: self.scheduler.has_work)
    @rule(token=st.integers(0, 1), proposed=st.lists(st.integers(0, 1), max_size=3))
    def step(self, token: int, proposed: Sequence[int] = ()) -> None:
        for sequence in self.scheduler.running:
            room = self.capacity - len(sequence.tokens) - 1
            sequence.proposed = tuple(proposed[:room]) if sequence.is_decoding else ()
        step = self.scheduler.schedule()
        assert step.rows, "has_work, but no row was scheduled"
        assert sum(row.num_tokens for row in step.rows) <= self.scheduler.chunk_tokens
        self.cache.run(step)
        for row in step.rows:
            ends = row.reaches_end
            self.scheduler.advance(row)
            if ends:
                self.cache.run_ahead(row.sequence)
                self.twins(row)
                for accepted in itertools.takewhile(lambda each: each == token, row.proposed):
                    row.sequence.tokens.append(accepted)
                    self.scheduler.advance(Row(row.sequence, 1))
                row.sequence.tokens.append(token)
                if len(row.sequence.tokens) >= self.capacity:
                    self.scheduler.remove(row.sequence)

    def twins(self, row: Row) -> None:
        for _, twin in find_twins([row], self.scheduler):
            self.cache.copy(fork(row.sequence, twin, self.scheduler))
            twin.tokens.append(1)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequences = [*self.scheduler.running, *self.scheduler.waiting]
        self.scheduler.remove(data.draw(st.sampled_from(sequences)))

    @invariant()
    def blocks_and_tables_agree(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_integrity()

    def teardown(self) -> None:
        if hasattr(self, "scheduler"):
            for _ in range(10_000):
                if not self.scheduler.has_work:
                    break
                self.step(0)
            assert not self.scheduler.has_work, "sequences starve"
            assert self.allocator.num_used == 0


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.lists(st.integers(0, 2), max_size=30),
    st.integers(1, 5),
)
@settings(deadline=None)
def test_find_prefix_finds_the_longest(first: list[int], second: list[int], size: int) -> None:
    allocator = BlockAllocator(40, size)
    parent, blocks = ROOT, []
    for start in range(0, len(first), size):
        blocks.append(allocator.allocate())
        parent = allocator.publish(blocks[-1], parent, first[start : start + size])
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    prefix = allocator.find_prefix(second)
    assert len(prefix.blocks) * size + prefix.tail_tokens == common


def test_a_block_is_copied_before_it_is_evicted_for_virtual_tokens() -> None:
    """All in one step: the copy's source is the last block that is available."""
    cache = FakeCache(4, 2)
    scheduler = Scheduler(BlockAllocator(4, 2), chunk_tokens=32, max_num_seqs=4)
    first = TokenSequence(1, [5, 6, 7], SamplingParams())
    scheduler.add(first)
    step = scheduler.schedule()
    cache.run(step)
    scheduler.advance(step.rows[0])
    scheduler.remove(first)
    tuned = TUNINGS[2]
    assert tuned is not None
    scheduler.add(TokenSequence(2, [5, 6, 7, 8], SamplingParams()))
    scheduler.add(TokenSequence(3, [*tuned.placeholders([9]), 9], SamplingParams(), tuning=tuned))
    step = scheduler.schedule()
    (source, _), (stored,) = *step.copies, step.stored
    assert source in stored.sequence.block_table
    cache.run(step)


@pytest.mark.parametrize("prompt", [[5, 6, 7, 8, 9, 4], [5, 6, 7, 1, 2]])
@pytest.mark.parametrize("tuning", [None, prefix_tuning(b"whole block", 4)])
def test_a_failed_step_leaves_nothing_unwritten_in_the_prefix_cache(
    prompt: list[int], tuning: SequenceTuning | None
) -> None:
    """Its copies and the given values of its virtual tokens were not made."""
    cache = FakeCache(16, 4)
    scheduler = Scheduler(BlockAllocator(16, 4), chunk_tokens=32, max_num_seqs=4)

    def sequences() -> list[TokenSequence]:
        tokens = [*(() if tuning is None else tuning.placeholders(prompt)), *prompt]
        own = TokenSequence(1, tokens, SamplingParams(), tuning=tuning)
        return [own, TokenSequence(2, [5, 6, 7, 3], SamplingParams())]

    def step() -> Step:
        step = scheduler.schedule()
        for row in step.rows:
            assert row.reaches_end
        return step

    def remove(sequences: list[TokenSequence]) -> None:
        for sequence in sequences:
            scheduler.remove(sequence)
        scheduler.check_integrity()

    before = TokenSequence(0, [5, 6, 7, 1], SamplingParams())
    scheduler.add(before)
    cache.run(first := step())
    scheduler.advance(first.rows[0])
    remove([before])
    failed, again = sequences(), sequences()
    for sequence in failed:
        scheduler.add(sequence)
    assert (failed_step := step()).copies or failed_step.stored
    scheduler.step_failed()
    remove(failed)
    # The source of the copies is evicted, or else it would be found instead.
    allocator = scheduler.allocator
    allocator.release([allocator.allocate() for _ in range(allocator.num_free + 1)])
    for sequence in again:
        scheduler.add(sequence)
    cache.run(repeated := step())  # it reads what it should
    for row in repeated.rows:
        scheduler.advance(row)
    remove(again)


def test_decode_rows_continue_during_prefill_of_a_long_prompt() -> None:
    scheduler = Scheduler(BlockAllocator(100, 4), chunk_tokens=8, max_num_seqs=4)
    short = TokenSequence(1, [1], SamplingParams())
    scheduler.add(short)
    for row in scheduler.schedule().rows:
        scheduler.advance(row)
    short.tokens.append(2)
    scheduler.add(TokenSequence(2, random.Random(0).choices(range(9), k=100), SamplingParams()))
    for _ in range(5):
        rows = scheduler.schedule().rows
        assert rows[0].sequence is short and rows[0].num_tokens == 1 and len(rows) == 2
        for row in rows:
            scheduler.advance(row)
        short.tokens.append(2)

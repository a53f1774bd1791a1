"""Snapshots of states at the last block boundary of a prompt."""

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.states import StateSlots

BLOCK_TOKENS = 4


def computed_to_its_boundary(slots: StateSlots, first_token: int) -> TokenSequence:
    """Return a running prompt of ten tokens, of which two blocks have been computed."""
    tokens = list(range(first_token, first_token + 10))
    sequence = TokenSequence(0, tokens, SamplingParams())
    slots.admit(sequence, None)
    sequence.num_computed = 2 * BLOCK_TOKENS
    slots.computed(sequence, sequence.num_computed)
    return sequence


def test_a_snapshot_takes_a_free_slot_or_that_of_the_least_recently_used_one() -> None:
    slots = StateSlots(2, BLOCK_TOKENS)
    first = computed_to_its_boundary(slots, 100)
    kept = slots.longest(first.tokens, first.root)
    assert kept is not None and kept.tokens == tuple(first.tokens[: 2 * BLOCK_TOKENS])
    assert slots.take_copies() == [(first.state_slot, kept.slot)]
    slots.release(first)
    second = computed_to_its_boundary(slots, 200)
    replaced = slots.longest(second.tokens, second.root)
    assert replaced is not None and replaced.slot == kept.slot
    assert slots.longest(first.tokens, first.root) is None
    slots.check_integrity([second])


def test_there_is_no_snapshot_without_a_slot_for_it() -> None:
    slots = StateSlots(1, BLOCK_TOKENS)
    sequence = computed_to_its_boundary(slots, 100)
    assert slots.longest(sequence.tokens, sequence.root) is None
    assert slots.take_copies() == []

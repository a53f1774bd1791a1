"""Slots for the states of sequences, and snapshots of states at positions that later turns reuse.

A state cannot be cut like a list of KV blocks: a prompt continues a cached prefix only from a
position whose state was kept. Snapshots are kept where answers end, where sequences are preempted,
and at the last block boundary of a prompt, from which regeneration and edited turns continue.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from swiftchat.engine.schedule.content import Digest
from swiftchat.engine.schedule.sequence import TokenSequence

# The most proposed tokens of a step for which there are states.
MAX_VERIFIED = 8


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state after `tokens`, which follow `root` (`content.root_of`)."""

    slot: int
    root: Digest
    tokens: tuple[int, ...]


class StateSlots:
    """Allocates the `num_slots` slots of a `StateCache`; 0 for a model without states.

    Every running sequence has a slot; the others hold snapshots or are free. The least recently
    used snapshot is dropped for another one or for a running sequence, so there must be more slots
    than running sequences. States are copied between two forward passes: `take_copies` returns the
    copies (source, destination) to make before the next one, in their order.

    With `has_spares` every running sequence has a second slot. A forward pass over one token reads
    the state of one and writes that of the other; `computed` then exchanges them. So a step that is
    computed ahead, and then discarded, leaves the state as it was.

    `num_verified` of the slots are for steps that verify proposed tokens. Such a step writes the
    state after its first token where any step does, to the spare slot if there is one, and the
    states after proposed tokens to others; the slot of the last accepted token then becomes that of
    the sequence.
    """

    def __init__(
        self, num_slots: int, block_size: int, *, has_spares: bool = False, num_verified: int = 0
    ) -> None:
        self.num_slots, self._block_size = num_slots, block_size
        self._has_spares, self.num_verified = has_spares, num_verified
        self._free = list(range(num_slots - num_verified))
        self._verified = list(range(num_slots - num_verified, num_slots))
        self._snapshots: list[Snapshot] = []  # least recently used first
        self._copies: list[tuple[int, int]] = []

    @property
    def max_num_seqs(self) -> int:
        """The most sequences that can run, with a slot left for a snapshot."""
        return (self.num_slots - self.num_verified - 1) // (2 if self._has_spares else 1)

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the copies that have not been returned before."""
        copies, self._copies = self._copies, []
        return copies

    def longest(self, tokens: Sequence[int], root: Digest) -> Snapshot | None:
        """Return the snapshot of the longest prefix of the tokens, or None."""
        found = [each for each in self._snapshots if _matches(each, tokens, root)]
        return max(found, key=lambda each: len(each.tokens), default=None)

    def admit(self, sequence: TokenSequence, snapshot: Snapshot | None) -> None:
        """Give a sequence a slot; its tokens begin with those of the snapshot."""
        if not self.num_slots:
            return
        if snapshot is not None:
            self._use(snapshot)
        self._allocate_for(sequence)
        if snapshot is not None:
            self._copies.append((snapshot.slot, sequence.state_slot))

    def fork(self, source: TokenSequence, twin: TokenSequence) -> None:
        """Give a sequence a slot with the state of another one, which is running."""
        if self.num_slots:
            self._allocate_for(twin)
            self._copies.append((source.state_slot, twin.state_slot))

    def verify(self, sequence: TokenSequence, num_proposed: int) -> int:
        """Assign slots for the next token and the proposed ones; return how many have some."""
        count = min(num_proposed, len(self._verified))
        if count:
            taken, self._verified = self._verified[:count], self._verified[count:]
            sequence.verified_slots = [sequence.next_state_slot, *taken]
        return count

    def end_verification(self, sequences: Iterable[TokenSequence]) -> None:
        """Take back the slots of the tokens that were not accepted in the last step."""
        for sequence in sequences:
            self._verified += _beyond_own(sequence)
            sequence.verified_slots = []

    @contextmanager
    def drafting(self, sequence: TokenSequence) -> Iterator[bool]:
        """Let further tokens of a sequence be computed one by one, and then be forgotten.

        The first of them writes a slot for verified states. Without spare slots all do; else they
        write this one and the spare slot in turn, so that none writes the slot that it reads.
        Yields whether there is a slot for their states. Call `drafted` after each of them.
        """
        if not self.num_slots or not self._verified:
            yield not self.num_slots
            return
        known, spare, scratch = sequence.state_slot, sequence.spare_slot, self._verified.pop()
        sequence.verified_slots = [scratch]
        try:
            yield True
        finally:
            sequence.state_slot, sequence.spare_slot = known, spare
            sequence.verified_slots = []
            self._verified.append(scratch)

    def drafted(self, sequence: TokenSequence) -> None:
        """Continue the sequence from the state after the token that was computed last."""
        if sequence.verified_slots:
            sequence.state_slot = sequence.verified_slots[0]
            if sequence.spare_slot >= 0:
                sequence.verified_slots = [sequence.spare_slot]
                sequence.spare_slot = sequence.state_slot

    def row_end(self, sequence: TokenSequence, start: int, end: int) -> int:
        """Return where a row of the tokens from `start` to `end` must end for a snapshot."""
        boundary = self._boundary(sequence)
        return boundary if start < boundary < end else end

    def computed(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Receive that a running sequence has been computed `num_tokens` further.

        Keep a snapshot if that is the place for one. Of a step with proposed tokens these are the
        next token, and then each accepted one.
        """
        if sequence.verified_slots:
            before, sequence.state_slot = sequence.state_slot, sequence.verified_slots.pop(0)
            if sequence.state_slot == sequence.spare_slot:
                sequence.spare_slot = before
            elif before != sequence.state_slot:
                self._verified.append(before)
            return
        if num_tokens == 1 and sequence.spare_slot >= 0:
            slots = sequence.spare_slot, sequence.state_slot
            sequence.state_slot, sequence.spare_slot = slots
        if not sequence.num_computed or sequence.num_computed != self._boundary(sequence):
            return
        if self._known(sequence) is None and (self._free or self._snapshots):
            slot = self._allocate()
            self._copies.append((sequence.state_slot, slot))
            self._keep(sequence, slot)

    def release(self, sequence: TokenSequence) -> None:
        """Take the slot of a sequence that stops running; its state becomes a snapshot."""
        if not self.num_slots:
            return
        self.end_verification([sequence])
        slot, sequence.state_slot = sequence.state_slot, -1
        if sequence.spare_slot >= 0:
            self._free.append(sequence.spare_slot)
            sequence.spare_slot = -1
        is_kept = sequence.num_computed > 0 and sequence.params.pooling is None
        if is_kept and self._known(sequence) is None:
            self._keep(sequence, slot)
        else:
            self._free.append(slot)

    def clear(self) -> None:
        """Drop all snapshots: their states may not be what they should."""
        self._free += [each.slot for each in self._snapshots]
        self._snapshots, self._copies = [], []

    def check_integrity(self, running: Iterable[TokenSequence]) -> None:
        """Raise `AssertionError` unless each slot has one use."""
        if self.num_slots:
            used = [sequence.state_slot for sequence in running]
            used += [sequence.spare_slot for sequence in running if self._has_spares]
            kept = [each.slot for each in self._snapshots]
            verified = [*self._verified]
            for sequence in running:
                verified += _beyond_own(sequence)
            assert len(verified) == self.num_verified
            assert sorted([*used, *kept, *self._free, *verified]) == list(range(self.num_slots))

    def _boundary(self, sequence: TokenSequence) -> int:
        """Return the last block boundary of a prompt before its last token; 0 for none."""
        if not self.num_slots or sequence.params.pooling is not None:
            return 0
        return (sequence.num_prompt - 1) // self._block_size * self._block_size

    def _known(self, sequence: TokenSequence) -> Snapshot | None:
        """Return the snapshot of a sequence's present state, as the one used last."""
        tokens = sequence.tokens[: sequence.num_computed]
        found = self.longest(tokens, sequence.root)
        if found is None or len(found.tokens) < len(tokens):
            return None
        self._use(found)
        return found

    def _keep(self, sequence: TokenSequence, slot: int) -> None:
        tokens = tuple(sequence.tokens[: sequence.num_computed])
        self._snapshots.append(Snapshot(slot, sequence.root, tokens))

    def _use(self, snapshot: Snapshot) -> None:
        self._snapshots.remove(snapshot)
        self._snapshots.append(snapshot)

    def _allocate_for(self, sequence: TokenSequence) -> None:
        sequence.state_slot = self._allocate()
        if self._has_spares:
            sequence.spare_slot = self._allocate()

    def _allocate(self) -> int:
        if not self._free:
            self._free.append(self._snapshots.pop(0).slot)
        return self._free.pop()


def _beyond_own(sequence: TokenSequence) -> list[int]:
    """Return the slots of a sequence for states after proposed tokens."""
    own = sequence.state_slot, sequence.spare_slot
    return [slot for slot in sequence.verified_slots if slot not in own]


def _matches(snapshot: Snapshot, tokens: Sequence[int], root: Digest) -> bool:
    count = len(snapshot.tokens)
    if count > len(tokens) or snapshot.root != root or snapshot.tokens[-1] != tokens[count - 1]:
        return False
    return snapshot.tokens == tuple(tokens[:count])

"""The first tokens of a waiting sequence that need not be computed for it."""

from collections.abc import Collection
from dataclasses import replace

from swiftchat.engine.schedule.blocks import BlockAllocator, Prefix
from swiftchat.engine.schedule.content import common_length, content_digest
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.states import StateSlots


def find_prefix(
    sequence: TokenSequence,
    running: Collection[TokenSequence],
    allocator: BlockAllocator,
    states: StateSlots,
) -> Prefix:
    """Find the longest prefix that is cached, or in the blocks of running sequences.

    For a model with states it ends where there is a snapshot.
    """
    tokens, size = sequence.tokens[: sequence.num_reusable], allocator.block_size
    prefix = allocator.find_prefix(tokens, sequence.root)
    start = len(prefix.blocks) * size
    for other in running:
        # The block that `other` is filling is not published yet.
        if other.parent == prefix.parent and other.num_published == len(prefix.blocks):
            filled = other.tokens[start : other.num_computed]
            length = common_length(filled, tokens[start : start + size])
            if length > prefix.tail_tokens:
                block = other.block_table[other.num_published]
                prefix = replace(prefix, tail=block, tail_tokens=length)
    return _up_to_snapshot(sequence, prefix, size, states) if states.num_slots else prefix


def _up_to_snapshot(
    sequence: TokenSequence, prefix: Prefix, size: int, states: StateSlots
) -> Prefix:
    """Cut a prefix to the longest one whose state is known."""
    tokens = sequence.tokens[: len(prefix.blocks) * size + prefix.tail_tokens]
    snapshot = states.longest(tokens, sequence.root)
    if snapshot is None:
        return Prefix([], sequence.root, None, 0)
    num_full, rest = divmod(len(snapshot.tokens), size)
    parent = sequence.root
    for start in range(0, num_full * size, size):
        parent = content_digest(parent, tokens[start : start + size])
    blocks = [*prefix.blocks, *([] if prefix.tail is None else [prefix.tail])]
    return Prefix(blocks[:num_full], parent, blocks[num_full] if rest else None, rest, snapshot)


def will_be_computed(
    sequence: TokenSequence,
    prefix: Prefix,
    running: Collection[TokenSequence],
    block_size: int,
    states: StateSlots,
) -> bool:
    """Return whether a running sequence is about to compute at least a block beyond `prefix`.

    The same for a sequence with the same prompt. If the waiting sequence waits for it, a prompt is
    computed once for all of its answers. With states only for the same prompt: another one cannot
    continue at any block.
    """
    tokens = sequence.tokens[: sequence.num_reusable]
    end = (len(prefix.blocks) + 1) * block_size + prefix.tail_tokens
    is_long = len(tokens) >= end and not states.num_slots
    return any(
        other.root == sequence.root
        and not (other.is_decoding and other.num_generated)
        and ((is_long and other.tokens[:end] == tokens[:end]) or other.tokens == sequence.tokens)
        for other in running
    )

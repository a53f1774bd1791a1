"""Waiting sequences whose prompt a running one has just computed: they are forked from it."""

from collections.abc import Sequence

from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Row, TokenSequence


def find_twins(rows: Sequence[Row], scheduler: Scheduler) -> list[tuple[Row, TokenSequence]]:
    """Return the waiting sequences with the prompt of a sampled row, as far as there is room.

    Their next token is sampled from the same logits, so that an answer is the one that the sequence
    would get alone. Greedy sequences are left out: the ranks exchange no logits for them.
    """
    allocator, found = scheduler.allocator, list[tuple[Row, TokenSequence]]()
    room = min(
        scheduler.max_num_seqs - len(scheduler.running),
        allocator.num_free + allocator.num_cached,
    )
    for row in rows:
        if row.sequence.num_generated or row.sequence.params.temperature == 0:
            continue
        for other in scheduler.waiting:
            if len(found) < room and _is_twin(other, row.sequence):
                found.append((row, other))
    return found


def fork(source: TokenSequence, twin: TokenSequence, scheduler: Scheduler) -> list[tuple[int, int]]:
    """Run a waiting sequence with the blocks of its twin, whose prompt is computed.

    Full blocks are shared. Returns the copy (from, to) of the block that is not full, if there is
    one, which must be made before the next step.
    """
    scheduler.waiting.remove(twin)
    scheduler.running[twin] = None
    twin.parent, twin.num_published = source.parent, source.num_published
    twin.num_computed = twin.num_cached = source.num_computed
    twin.block_table = source.block_table[: source.num_published]
    scheduler.allocator.acquire(twin.block_table)
    scheduler.states.fork(source, twin)
    if twin.num_computed == twin.num_published * scheduler.allocator.block_size:
        return []
    scheduler.reserve(twin, twin.num_computed)
    return [(source.block_table[source.num_published], twin.block_table[-1])]


def _is_twin(waiting: TokenSequence, source: TokenSequence) -> bool:
    params = waiting.params
    return (
        waiting.tokens == source.tokens
        and not waiting.num_generated
        and params.temperature > 0
        and params.max_tokens != 0
        and params.pooling is None
        and params.prompt_logprobs is None
        and waiting.root == source.root
        and waiting.num_virtual == source.num_virtual
    )

"""Sample the next token of each row, with the same result on every rank."""

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from swiftchat.engine.api.protocol import Logprob
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.sampling.logprobs import pack_logprobs, unpack_logprobs
from swiftchat.engine.sampling.sampler import NOT_FINITE, sample
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.scheduler import Row, Sequence


class DistributedSampler:
    """Samples from logits with columns distributed over the ranks of the last stage.

    All ranks of all stages call the same methods in the same order.
    """

    def __init__(self, vocab_size: int, ranks: Communicator, stages: Pipeline) -> None:
        self._vocab_size, self._ranks, self._stages = vocab_size, ranks, stages

    def sample_batch(
        self, batch: Batch, seeds: Seq[int], local_logits: Tensor | None
    ) -> tuple[list[int], Tensor | None]:
        """Return the next token of each sampled row, and all logits if they were gathered.

        Negative tokens are for `sampling_error`. `local_logits` fp32 [len(batch.logits_indices),
        columns of this rank] is None except on the last stage. Greedy rows exchange only each
        rank's maximum.
        """
        rows = batch.sampled_rows
        if not batch.logits_indices:
            return [], None
        tokens, logits = [NOT_FINITE] * len(rows), None
        is_greedy = all(is_plain_greedy(row.sequence) for row in rows) and not batch.scored
        if local_logits is not None and self._ranks.size > 1 and is_greedy:
            tokens = distributed_argmax(local_logits, self._vocab_size, self._ranks)
        elif local_logits is not None:
            logits = self._ranks.all_gather(local_logits, self._vocab_size)
            sampled = [logits[index] for index in batch.sampled_logits]
            tokens = list(map(self._sample_row, rows, seeds, sampled))
        if not tokens:
            return [], logits
        agreed: list[int] = self._stages.broadcast_from_last(torch.tensor(tokens)).tolist()
        return agreed, logits

    def logprobs(self, logits: Tensor | None, tokens: list[int], num_top: int) -> list[Logprob]:
        """Return the logprobs of tokens from their logits, which only the last stage has.

        `logits` is fp32 [len(tokens), vocab_size].
        """
        if logits is None:
            num_top = min(num_top, self._vocab_size)
            packed = torch.empty(len(tokens), 1 + 2 * num_top, dtype=torch.float64)
        else:
            packed = pack_logprobs(logits, tokens, num_top)
        return unpack_logprobs(self._stages.broadcast_from_last(packed))

    def _sample_row(self, row: Row, seed: int, logits: Tensor) -> int:
        sequence = row.sequence
        allowed = None if sequence.constraint is None else sequence.constraint.allowed
        token = sample(logits, sequence.tokens, sequence.num_prompt, sequence.params, seed, allowed)
        if token == NOT_FINITE:
            return token
        # Rank 0's token counts: some torch operators differ in the last bits between GPUs.
        return self._ranks.broadcast_from_first(token)


def is_plain_greedy(sequence: Sequence) -> bool:
    """Return whether the token is the argmax of unmodified logits, without logprobs."""
    params = sequence.params
    changes_logits = params.changes_logits or sequence.constraint is not None
    return params.temperature == 0 and not changes_logits and params.logprobs is None


def distributed_argmax(local_logits: Tensor, vocab_size: int, ranks: Communicator) -> list[int]:
    """Return each row's argmax over all ranks' columns; -1 for a row with a non-finite logit.

    `local_logits` is fp32 [n, columns of this rank], in the layout of `Communicator.all_gather`.
    The lowest id wins ties, as in `sample`. Ranks all-gather only each maximum and its id, which
    fp64 holds exactly.
    """
    first_id = ranks.rank * -(-vocab_size // ranks.size)
    values, columns = local_logits.max(1)  # the first of equal ones
    values = values.masked_fill(~torch.isfinite(local_logits).all(1), torch.nan)
    local_maxima = torch.stack((values.double(), (first_id + columns).double()), 1)
    pairs = ranks.all_gather(local_maxima, 2 * ranks.size).cpu()
    maxima, ids = pairs[:, 0::2], pairs[:, 1::2].long()
    winners = ids.gather(1, maxima.argmax(1, keepdim=True)).squeeze(1)
    tokens: list[int] = winners.masked_fill(maxima.isnan().any(1), -1).tolist()
    return tokens

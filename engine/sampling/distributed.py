"""Sample the next token of each row, with the same result on every rank."""

from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.protocol import Logprob, PromptLogprobs
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.sampling.batch_sampler import Draw, sample_rows
from swiftchat.engine.sampling.logprobs import pack_logprobs, unpack_logprobs
from swiftchat.engine.sampling.sampler import NOT_FINITE, sample
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence

_NO_TOKEN = -3  # where a row has fewer tokens than others; beside those of `sampler`


class DistributedSampler:
    """Samples from logits with columns distributed over the ranks of the last stage.

    All ranks of all stages call the same methods in the same order.
    """

    def __init__(
        self, vocab_size: int, ranks: Communicator, stages: Pipeline, gpu: Gpu | None = None
    ) -> None:
        self._vocab_size, self._ranks, self._stages = vocab_size, ranks, stages
        self._gpu = gpu

    def sample_batch(
        self, batch: Batch, seeds: Sequence[int], local_logits: Tensor | None
    ) -> tuple[list[list[int]], Tensor | None]:
        """Return the next tokens of each sampled row, and all logits if they were gathered.

        They are the proposed tokens that are also the sampled ones, and the first sampled token
        after these. Negative tokens are for `sampling_error`. `local_logits` fp32
        [len(batch.logits_indices), columns of this rank] is None except on the last stage. Greedy
        rows exchange only each rank's maximum.
        """
        rows = batch.sampled_rows
        if not batch.logits_indices:
            return [], None
        tokens, logits = [[NOT_FINITE] for _ in rows], None
        is_greedy = all(is_plain_greedy(row.sequence) for row in rows) and not batch.scored
        if local_logits is not None and self._ranks.size > 1 and is_greedy:
            maxima = iter(distributed_argmax(local_logits, self._vocab_size, self._ranks))
            tokens = [
                verified(list(islice(maxima, 1 + len(row.proposed))), row.proposed) for row in rows
            ]
        elif local_logits is not None:
            logits = self._ranks.all_gather(local_logits, self._vocab_size)
            tokens = self._sample(rows, batch.sampled_logits, seeds, logits)
        if not tokens:
            return [], logits
        return self._agree(tokens, 1 + max(len(row.proposed) for row in rows)), logits

    def logprobs(self, logits: Tensor | None, tokens: list[int], num_top: int) -> list[Logprob]:
        """Return the logprobs of tokens from their logits, which only the last stage has.

        `logits` is fp32 [len(tokens), vocab_size].
        """
        if logits is None:
            num_top = min(num_top, self._vocab_size)
            packed = torch.empty(len(tokens), 1 + 2 * num_top, dtype=torch.float64)
        else:
            packed = pack_logprobs(logits, tokens, num_top, self._gpu)
        return unpack_logprobs(self._stages.broadcast_from_last(packed))

    def prompt_logprobs(
        self, batch: Batch, logits: Tensor | None
    ) -> Iterator[tuple[int, PromptLogprobs]]:
        """Yield the requested logprobs of prompt tokens that the batch computed, by sequence."""
        for scored in batch.scored:
            num_top = scored.row.sequence.params.prompt_logprobs
            assert num_top is not None
            end = scored.start + len(scored.targets)
            rows = None if logits is None else logits[scored.start : end]
            found = self.logprobs(rows, scored.targets, num_top)
            yield scored.row.sequence.id, PromptLogprobs(found)

    def _agree(self, tokens: list[list[int]], width: int) -> list[list[int]]:
        """Return the tokens of the last stage; `width` is the most that a row can have."""
        padded = torch.tensor([row + [_NO_TOKEN] * (width - len(row)) for row in tokens])
        agreed: list[list[int]] = self._stages.broadcast_from_last(padded).tolist()
        return [[token for token in row if token != _NO_TOKEN] for row in agreed]

    def _sample(
        self, rows: Sequence[Row], indices: Sequence[int], seeds: Sequence[int], logits: Tensor
    ) -> list[list[int]]:
        """Return the next tokens of each row, whose logits begin at its index."""
        draws: list[Draw] = []
        drawn: list[int] = []  # the index of the logits of each draw
        for row, index, seed in zip(rows, indices, seeds, strict=True):
            if not _is_sequential(row):
                draws += _draws(row, seed)
                drawn += range(index, index + 1 + len(row.proposed))
        found: list[int] = []
        if draws:
            is_all = drawn == list(range(len(logits)))
            found = sample_rows(logits if is_all else logits[drawn], draws)
            # Rank 0's tokens count: some torch operators differ in the last bits between GPUs.
            found = self._ranks.broadcast_from_first(found)
        sampled = iter(found)
        return [
            self._sample_row(row, seed, logits[index:])
            if _is_sequential(row)
            else verified(list(islice(sampled, 1 + len(row.proposed))), row.proposed)
            for row, index, seed in zip(rows, indices, seeds, strict=True)
        ]

    def _sample_row(self, row: Row, seed: int, logits: Tensor) -> list[int]:
        """Sample the row's next token and, as long as they are the proposed ones, further tokens.

        `logits` [>= 1 + len(row.proposed), vocab_size] begin with those of the next token.
        """
        sequence = row.sequence
        tokens = list(sequence.tokens) if row.proposed else sequence.tokens
        sampled: list[int] = []
        allowed = None if sequence.constraint is None else sequence.constraint.allowed
        for proposed, token_logits in zip((*row.proposed, None), logits, strict=False):
            token = sample(
                token_logits, tokens, sequence.num_prompt, sequence.params, seed, allowed
            )
            if token != NOT_FINITE:
                (token,) = self._ranks.broadcast_from_first([token])
            sampled.append(token)
            if token != proposed:
                break
            tokens.append(token)
        return sampled


def _is_sequential(row: Row) -> bool:
    """Whether the proposed tokens of a row change what the tokens after them are sampled with."""
    sequence = row.sequence
    depends = sequence.params.depends_on_tokens or sequence.constraint is not None
    return bool(row.proposed) and depends


def _draws(row: Row, seed: int) -> list[Draw]:
    """Return the draws of the row's next token and of those after its proposed tokens."""
    sequence = row.sequence
    allowed = None if sequence.constraint is None else sequence.constraint.allowed
    end = len(sequence.tokens)
    return [
        Draw(sequence.tokens, sequence.num_prompt, sequence.params, seed, position, allowed)
        for position in range(end, end + 1 + len(row.proposed))
    ]


def verified(sampled: list[int], proposed: Sequence[int]) -> list[int]:
    """Return the sampled tokens up to the first one that differs from the proposed one."""
    n = next((i for i, token in enumerate(proposed) if sampled[i] != token), len(proposed))
    return sampled[: n + 1]


def is_plain_greedy(sequence: TokenSequence) -> bool:
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

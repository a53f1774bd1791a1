"""The generations that are not over: their sequences get tokens until they end."""

import math
import secrets
import time
from collections.abc import Sequence

from torch import Tensor

from swiftchat.engine.api.protocol import Dropped, Embedding, Event, Finished, Logprob, Tokens
from swiftchat.engine.generation.beams import Beams, BeamStep
from swiftchat.engine.generation.generation import Generation
from swiftchat.engine.generation.parts import EngineParts
from swiftchat.engine.sampling.distributed import DistributedSampler
from swiftchat.engine.sampling.sampler import NOT_FINITE, sampling_error
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.engine.schedule.sliding import drop_middle
from swiftchat.errors import SwiftchatError, UsageError

Outcome = tuple[int, Event | SwiftchatError]


class Generations:
    """Appends the tokens of steps, and ends generations at a stop id, a limit or an error.

    Its methods return events in order, each with its generation's id.
    """

    def __init__(self, parts: EngineParts, beams: Beams, sampler: DistributedSampler) -> None:
        self.by_id: dict[int, Generation] = {}
        self.store = parts.store
        self.num_reused = 0  # tokens of prompts since loading
        self._scheduler, self._speculation = parts.scheduler, parts.speculation
        self._decoder, self._cache = parts.decoder, parts.cache
        self._ctx_size_tokens = parts.info.ctx_size_tokens
        self._beams, self._sampler = beams, sampler
        self.forced = parts.forced

    def add(self, sequence: TokenSequence) -> Generation:
        """Begin a generation; without a seed of its own it gets a random one."""
        seed = sequence.params.seed
        seed = secrets.randbits(32) if seed is None else seed
        generation = Generation(sequence, seed, time.perf_counter())
        self.by_id[sequence.id] = generation
        return generation

    def seeds(self, rows: Sequence[Row]) -> list[int]:
        """Return the seed of each row; a context that slid has used positions before."""
        sequences = [row.sequence for row in rows]
        return [(self.by_id[s.id].seed + s.num_slides) % 2**64 for s in sequences]

    def advance_beams(self, step: BeamStep) -> list[Outcome]:
        """Copy the blocks of forked beams; report the best beams when their search is over."""
        self._decoder.ops.copy_blocks(self._cache, step.copies)
        generation, sequence = self.by_id[step.id], step.sequence
        generation.sequence = sequence
        if generation.first_token is None:
            generation.first_token = time.perf_counter()
            self.store.prefill_ended(sequence)
        if step.error is not None:
            return [self.fail(generation, step.error)]
        if not step.answers:
            return [] if step.report is None else [(step.id, step.report)]
        self._scheduler.remove(sequence)
        sequence.tokens[sequence.num_prompt :] = step.answers[0].ids
        finished = self.finish(generation, step.answers[0].reason)
        return [*((step.id, beam) for beam in step.answers), (step.id, finished)]

    def append_row(
        self, row: Row, tokens: list[int], logits: Tensor | None = None, index: int = 0
    ) -> list[Outcome]:
        """Append the tokens of a sampled row: accepted ones, and the one after them.

        Their `logits` fp32 [n, vocab_size] are those from the index on.
        """
        generation, outcomes = self.by_id[row.sequence.id], list[Outcome]()
        self._speculation.sampled(row, len(tokens))
        for i, token in enumerate(tokens):
            if i > 0:  # the step has computed the accepted token before
                self._scheduler.advance(Row(row.sequence, 1))
            outcomes += self._append_sample(generation, token, logits, index + i)
            if row.sequence.id not in self.by_id:
                break
        return outcomes

    def finish_embedding(self, sequence: TokenSequence, values: list[float]) -> list[Outcome]:
        """Report the embedding of a text, and end its generation."""
        generation = self.by_id[sequence.id]
        if not all(map(math.isfinite, values)):
            return [self.fail(generation, sampling_error(NOT_FINITE))]
        self._scheduler.remove(sequence)
        ended = sequence.id, self.finish(generation, "length")
        return [(sequence.id, Embedding(values)), ended]

    def _append_sample(
        self, generation: Generation, token: int, logits: Tensor | None, index: int
    ) -> list[Outcome]:
        """Append a sampled token, with its logprob if requested.

        End the generation with an error if the token is negative, and without the token if none
        was requested. Its logits are those at the index.
        """
        if token < 0:
            return [self.fail(generation, self._sampling_error(generation.sequence, token))]
        if generation.sequence.params.max_tokens == 0:  # only the prompt's logprobs were requested
            self._scheduler.remove(generation.sequence)
            return [(generation.sequence.id, self.finish(generation, "length"))]
        if generation.sequence.forced:
            token = generation.sequence.forced.pop(0)
        num_top = generation.sequence.params.logprobs
        if num_top is None:
            return self._append_token(generation, token, [])
        rows = None if logits is None else logits[index : index + 1]
        return self._append_token(generation, token, self._sampler.logprobs(rows, [token], num_top))

    def _sampling_error(self, sequence: TokenSequence, token: int) -> SwiftchatError:
        layer = None
        if token == NOT_FINITE and self._decoder.stages.size == 1:
            layer = self._cache.first_not_finite(sequence.block_table, sequence.num_computed)
        return sampling_error(token, layer)

    def _append_token(
        self, generation: Generation, token: int, logprobs: list[Logprob]
    ) -> list[Outcome]:
        """Append a token to its sequence, and those that must follow it.

        End the generation at a stop id or a limit.
        """
        sequence, params = generation.sequence, generation.sequence.params
        if generation.first_token is None:
            generation.first_token = time.perf_counter()
            self.store.prefill_ended(sequence)
        if token in params.stop_ids:
            self._scheduler.remove(sequence)
            return [(sequence.id, self.finish(generation, "stop"))]
        sequence.tokens.append(token)
        try:
            tokens = [token, *self.forced.append(sequence, token)]
        except UsageError as error:
            return [self.fail(generation, error)]
        outcomes: list[Outcome] = [(sequence.id, Tokens(tokens, logprobs))]
        is_full, num_kept = len(sequence.tokens) >= self._ctx_size_tokens, params.sliding_keep
        if sequence.num_left == 0 or (is_full and num_kept is None):
            self._scheduler.remove(sequence)
            outcomes.append((sequence.id, self.finish(generation, "length")))
        elif is_full and num_kept is not None:
            self._scheduler.restart(sequence)
            outcomes.append((sequence.id, Dropped(drop_middle(sequence, num_kept))))
        return outcomes

    def fail(self, generation: Generation, error: SwiftchatError) -> Outcome:
        """End a generation with an error."""
        self._scheduler.remove(generation.sequence)
        self._beams.ended(generation.sequence)
        self._speculation.ended(generation.sequence)
        del self.by_id[generation.sequence.id]
        return generation.sequence.id, error

    def finish(self, generation: Generation, reason: str) -> Finished:
        """End a generation that the scheduler does not have, or no more; return its report."""
        sequence = generation.sequence
        self._beams.ended(sequence)
        speculated = self._speculation.ended(sequence)
        del self.by_id[sequence.id]
        self.num_reused += sequence.num_cached
        return generation.finished(reason, speculated, self.store.finish(sequence))

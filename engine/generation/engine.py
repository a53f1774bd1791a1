"""The generation loop: computes the queued prompts batch by batch and returns their tokens."""

import secrets
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import (
    EngineInfo,
    Event,
    Finished,
    Logprob,
    Prefill,
    PromptLogprobs,
    Tokens,
)
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.engine.decode.async_decode import AsyncDecode
from swiftchat.engine.device.bandwidth import bandwidth_ceiling_bytes_per_s
from swiftchat.engine.generation.graphs import GraphDecode
from swiftchat.engine.generation.prefill_graphs import PrefillGraphs
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.sampling.distributed import DistributedSampler
from swiftchat.engine.sampling.sampler import sampling_error
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.constraint import Constraint
from swiftchat.engine.schedule.scheduler import Row, Scheduler, Sequence, Step
from swiftchat.errors import ContextOverflow, SwiftchatError, UsageError
from swiftchat.weights.architectures.prefix_lm import CAUSAL
from swiftchat.weights.model.checkpoint import Checkpoint

Outcome = tuple[int, Event | SwiftchatError]


@dataclass(frozen=True)
class EngineParts:
    """The parts that `build_engine` makes an engine of.

    `gpu` is None if torch's operators compute, `graph_decode` if no decode step is captured, and
    `prefill_graphs` if no prefill chunk is.
    The checkpoint is held because weights may be views of its mapped files.
    """

    config: EngineConfig
    info: EngineInfo
    device: torch.device
    gpu: Gpu | None
    decoder: Decoder
    cache: KVCache
    scheduler: Scheduler
    graph_decode: GraphDecode | None
    prefill_graphs: PrefillGraphs | None
    checkpoint: Checkpoint | None


@dataclass
class _Generation:
    """A sequence with its seed and the times of its events, in `perf_counter` seconds."""

    sequence: Sequence
    seed: int
    started: float
    first_token: float | None = None


class Engine:
    """Generates token ids from token ids with one model on one device.

    `add` queues a prompt, each `step` computes one batch and returns its events, `cancel` ends a
    generation between two steps. Not thread-safe. Made by `build_engine`.
    """

    def __init__(self, parts: EngineParts) -> None:
        self.config = parts.config
        self.info = parts.info
        self.device = parts.device
        self.gpu = parts.gpu
        self.decoder = parts.decoder
        self.cache = parts.cache
        self.scheduler = parts.scheduler
        self.allocator = parts.scheduler.allocator
        self.graph_decode = parts.graph_decode
        self.prefill_graphs = parts.prefill_graphs
        self.ctx_size_tokens = parts.info.ctx_size_tokens
        self.vocab_size = parts.decoder.config.vocab_size
        self.checkpoint = parts.checkpoint
        ranks, stages = parts.decoder.ranks, parts.decoder.stages
        self._sampler = DistributedSampler(self.vocab_size, ranks, stages)
        self._generations: dict[int, _Generation] = {}
        self._vocabulary: Vocabulary | None = None  # of the last constrained answer
        self._pending: list[Outcome] = []  # reported by the next step
        self._num_computed = self._num_reused = self._num_replayed = 0
        self._bandwidth_ceiling: float | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self.scheduler.has_work

    def add(
        self,
        generation_id: int,
        prompt: list[int],
        params: SamplingParams,
        spec: ConstraintSpec | None = None,
    ) -> None:
        """Queue a prompt whose answer matches `spec`; raise as `check` does, without queuing it."""
        constraint = self.check(prompt, params, spec)
        seed = secrets.randbits(32) if params.seed is None else params.seed
        prefix_lm = self.decoder.config.prefix_lm
        bidirectional_prefix = CAUSAL if prefix_lm is None else prefix_lm.prefix_of(prompt)
        sequence = Sequence(generation_id, list(prompt), params, bidirectional_prefix, constraint)
        generation = _Generation(sequence, seed, time.perf_counter())
        self._generations[generation_id] = generation
        if params.max_tokens == 0 and not sequence.num_to_score:
            self._pending.append((generation_id, self._finish(generation, "length")))
        else:
            self.scheduler.add(sequence)

    def check(
        self, prompt: list[int], params: SamplingParams, spec: ConstraintSpec | None = None
    ) -> Constraint | None:
        """Raise `UsageError` or `ContextOverflow` for a prompt that cannot be answered.

        Returns the constraint of the answer. Also raises `UsageError` for an invalid grammar.
        """
        if not prompt:
            raise UsageError("the prompt is empty")
        words = chain.from_iterable(params.bad_words)
        ids = chain(prompt, (token for token, _ in params.logit_bias), words)
        bad = next((i for i in ids if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise UsageError(f"token id {bad} is outside the vocabulary of {self.vocab_size}")
        if len(prompt) >= self.ctx_size_tokens:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context {self.ctx_size_tokens}, "
                "and an answer needs at least one",
                "shorten it, or choose a larger --ctx-size if the model has one",
            )
        if spec is None:
            return None
        # llguidance's tables for a vocabulary take some tenths of a second: keep the last ones.
        if spec.vocabulary != self._vocabulary:
            self._vocabulary = spec.vocabulary
        return Constraint(self._vocabulary, spec.grammar, self.vocab_size)

    def cancel(self, generation_id: int) -> None:
        """End a generation; the next step reports it. Do nothing if it has already ended."""
        generation = self._generations.get(generation_id)
        if generation is not None:
            self.scheduler.remove(generation.sequence)
            self._pending.append((generation_id, self._finish(generation, "interrupt")))

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """End every generation with an error; the engine stays usable."""
        if self.graph_decode is not None:
            self.graph_decode.drop()
        return [self._fail(generation, error) for generation in list(self._generations.values())]

    def step(self) -> list[Outcome]:
        """Compute one batch; return its events in order, each with its generation's id."""
        # Compute first: if that raises, the next step still reports the pending outcomes.
        computed = self._compute() if self.scheduler.has_work else []
        pending, self._pending = self._pending, []
        return pending + computed

    @property
    def can_prepare(self) -> bool:
        """Whether `prepare` would make later prompts faster."""
        return self.prefill_graphs is not None and self.prefill_graphs.can_capture

    @torch.inference_mode()
    def prepare(self) -> None:
        """Capture one more graph for prompts; only while the engine has no work.

        It takes some tenths of a second.
        """
        if self.prefill_graphs is not None:
            self.prefill_graphs.capture_next()

    def stats(self, measure: bool = False) -> dict[str, Any]:
        """Return counters: blocks by state, tokens computed and reused since loading.

        With kernels, add their compile time in seconds and the number of replayed decode steps,
        and with `measure` the GPU's bandwidth ceiling.
        """
        gpu_stats: dict[str, Any] = {}
        if self.gpu is not None:
            gpu_stats.update(compile_s=self.gpu.compile_s, graph_steps=self._num_replayed)
        if self.gpu is not None and measure:
            if not self._bandwidth_ceiling:
                self._bandwidth_ceiling = bandwidth_ceiling_bytes_per_s(self.device)
            if self._bandwidth_ceiling is not None:
                gpu_stats["bandwidth_ceiling_bytes_per_s"] = self._bandwidth_ceiling
        return {
            "num_blocks": self.allocator.num_blocks,
            "block_size": self.allocator.block_size,
            "free_blocks": self.allocator.num_free,
            "used_blocks": self.allocator.num_used,
            "cached_blocks": self.allocator.num_cached,
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "computed_tokens": self._num_computed,
            "reused_tokens": self._num_reused,
            **gpu_stats,
        }

    @torch.inference_mode()
    def _compute(self) -> list[Outcome]:
        if self.graph_decode is not None and self.graph_decode.is_in_flight:
            return self._collect(self.graph_decode)
        step = self.scheduler.schedule()
        if self.graph_decode is not None and self.graph_decode.launch(step, self._seeds(step.rows)):
            return self._collect(self.graph_decode)
        return self._forward(step)

    def _forward(self, step: Step) -> list[Outcome]:
        """Compute a step with the decoder's operations and sample the next tokens."""
        outcomes: list[Outcome] = []
        self.decoder.ops.copy_blocks(self.cache, step.copies)
        batch, started = Batch.pack(step.rows, self.config.block_size), time.perf_counter()
        local_logits = self._local_logits(step, batch)
        self.scheduler.measured(len(batch.ids), time.perf_counter() - started)
        self._num_computed += len(batch.ids)
        for row in step.rows:
            sequence, reaches_end = row.sequence, row.reaches_end  # before `advance` changes it
            self.scheduler.advance(row)
            if not reaches_end:
                progress = Prefill(sequence.num_computed, len(sequence.tokens))
                outcomes.append((sequence.id, progress))
        seeds = self._seeds(batch.sampled_rows)
        tokens, logits = self._sampler.sample_batch(batch, seeds, local_logits)
        outcomes += self._prompt_logprobs(batch, logits)
        for i, row, token in zip(batch.sampled_logits, batch.sampled_rows, tokens, strict=True):
            row_logits = None if logits is None else logits[i : i + 1]
            outcomes += self._process_sample(self._generations[row.sequence.id], token, row_logits)
        return outcomes

    def _local_logits(self, step: Step, batch: Batch) -> Tensor | None:
        """Return `Decoder.forward`, from a captured graph if there is one for such a step."""
        # With several ranks, the graph's logits are those of all ranks, which the sampler gathers.
        if isinstance(self.graph_decode, AsyncDecode) and self.decoder.ranks.size == 1:
            logits = self.graph_decode.forward(step)
            if logits is not None:
                return logits
        if self.prefill_graphs is not None:
            return self.prefill_graphs.forward(batch)
        return self.decoder.forward(batch, self.cache)

    def _prompt_logprobs(self, batch: Batch, logits: Tensor | None) -> list[Outcome]:
        """Return the requested logprobs of prompt tokens that the batch computed."""
        outcomes: list[Outcome] = []
        for scored in batch.scored:
            sequence, end = scored.row.sequence, scored.start + len(scored.targets)
            num_top = sequence.params.prompt_logprobs
            assert num_top is not None
            rows = None if logits is None else logits[scored.start : end]
            logprobs = self._sampler.logprobs(rows, scored.targets, num_top)
            outcomes.append((sequence.id, PromptLogprobs(logprobs)))
        return outcomes

    def _seeds(self, rows: list[Row]) -> list[int]:
        return [self._generations[row.sequence.id].seed for row in rows]

    def _collect(self, graph_decode: GraphDecode) -> list[Outcome]:
        """Add the tokens of the step in flight to their sequences."""
        outcomes: list[Outcome] = []
        collected = graph_decode.collect()
        self._num_computed += len(collected)
        self._num_replayed += 1
        # All rows advance before any token is added, as in `_forward`: another stage may compute
        # this step there, and the schedulers of all stages must change in the same order.
        for sequence, _ in collected:
            self.scheduler.advance(Row(sequence, 1))
        for sequence, token in collected:
            outcomes += self._process_sample(self._generations[sequence.id], token)
        return outcomes

    def _process_sample(
        self, generation: _Generation, token: int, logits: Tensor | None = None
    ) -> list[Outcome]:
        """Append a sampled token, with its logprob if requested.

        End the generation with an error if the token is negative, and without the token if none
        was requested. `logits` is fp32 [1, vocab_size].
        """
        if token < 0:
            return [self._fail(generation, sampling_error(token))]
        if generation.sequence.params.max_tokens == 0:  # only the prompt's logprobs were requested
            self.scheduler.remove(generation.sequence)
            return [(generation.sequence.id, self._finish(generation, "length"))]
        num_top = generation.sequence.params.logprobs
        if num_top is None:
            return self._append_token(generation, token, [])
        return self._append_token(
            generation, token, self._sampler.logprobs(logits, [token], num_top)
        )

    def _append_token(
        self, generation: _Generation, token: int, logprobs: list[Logprob]
    ) -> list[Outcome]:
        """Append a token to its sequence; end the generation at a stop id or a limit."""
        sequence, params = generation.sequence, generation.sequence.params
        if generation.first_token is None:
            generation.first_token = time.perf_counter()
        if token in params.stop_ids:
            self.scheduler.remove(sequence)
            return [(sequence.id, self._finish(generation, "stop"))]
        if sequence.constraint is not None:
            try:
                sequence.constraint.accept(token)
            except UsageError as error:
                return [self._fail(generation, error)]
        sequence.tokens.append(token)
        outcomes: list[Outcome] = [(sequence.id, Tokens([token], logprobs))]
        is_full = len(sequence.tokens) >= self.ctx_size_tokens
        if is_full or sequence.num_generated == params.max_tokens:
            self.scheduler.remove(sequence)
            outcomes.append((sequence.id, self._finish(generation, "length")))
        return outcomes

    def _fail(self, generation: _Generation, error: SwiftchatError) -> Outcome:
        self.scheduler.remove(generation.sequence)
        del self._generations[generation.sequence.id]
        return generation.sequence.id, error

    def _finish(self, generation: _Generation, reason: str) -> Finished:
        sequence, now = generation.sequence, time.perf_counter()
        del self._generations[sequence.id]
        self._num_reused += sequence.num_cached
        first_token = generation.first_token or now
        return Finished(
            reason=reason,
            prompt_tokens=sequence.num_prompt,
            cached_tokens=sequence.num_cached,
            completion_tokens=sequence.num_generated,
            prefill_s=first_token - generation.started,
            decode_s=now - first_token,
            seed=generation.seed,
        )

"""The generation loop: computes the queued prompts batch by batch and returns their tokens."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Prefill
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.generation.admission import Admission
from swiftchat.engine.generation.beams import Beams
from swiftchat.engine.generation.generations import Generations, Outcome
from swiftchat.engine.generation.parts import EngineParts
from swiftchat.engine.generation.pooling import Pooler
from swiftchat.engine.gpu.counters import GpuCounters
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.kv_store.block_store import BlockStore
from swiftchat.engine.sampling.distributed import DistributedSampler
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Step, TokenSequence
from swiftchat.engine.schedule.tuning import SequenceTuning
from swiftchat.engine.schedule.twins import find_twins, fork
from swiftchat.engine.steps.plain import PlainRunner
from swiftchat.engine.steps.runner import SampledStep, StepInputs, StepLogits, first_result
from swiftchat.errors import SwiftchatError


class Engine:
    """Generates token ids from token ids with one model on one device.

    `add` queues a prompt, each `step` computes one batch and returns its events, `cancel` ends a
    generation between two steps. Not thread-safe. Made by `build_engine`.
    """

    def __init__(self, parts: EngineParts) -> None:
        self.config = parts.config
        self.info = parts.info
        self.device = parts.device
        self.back_end, self.gpu = parts.back_end, parts.back_end.gpu
        self.decoder = parts.decoder
        self.cache = parts.cache
        self.scheduler = parts.scheduler
        self.allocator = parts.scheduler.allocator
        self.speculation = parts.speculation
        self.ctx_size_tokens = parts.info.ctx_size_tokens
        self.vocab_size = parts.decoder.config.vocab_size
        self.checkpoint = parts.checkpoint
        self.tunings = parts.tunings
        ranks, stages = parts.decoder.ranks, parts.decoder.stages
        self._sampler = DistributedSampler(self.vocab_size, ranks, stages, self.gpu)
        self._pooler = Pooler(parts.decoder, parts.cache)
        self.use_graphs(parts.graphs)
        self._beams = Beams(parts)
        self.generations = Generations(parts, self._beams, self._sampler)
        self._admission = Admission(parts, self._beams, self.generations.by_id)
        self.use_store(parts.store)
        self._pending: list[Outcome] = []  # reported by the next step
        self._num_computed = 0
        self._gpu_counters = GpuCounters(self.gpu, parts.device)

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self.scheduler.has_work

    def use_store(self, store: BlockStore) -> None:
        """Use these tiers below the device; before any prompt is added."""
        self.store = self.generations.store = store
        self.scheduler.restorer = store if store.has_tiers else None

    def use_graphs(self, graphs: Graphs) -> None:
        """Replay these captured steps, and compute others one kernel after the other."""
        self.graphs = graphs
        self._runners = graphs.runners(self.tunings, PlainRunner(self.decoder, self.cache))

    def add(
        self,
        generation_id: int,
        prompt: list[int],
        params: SamplingParams,
        spec: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Queue a prompt whose answer matches `spec`, with its tuning loaded.

        Raises as `check` and `Tunings.load_opened` do, on all ranks if on one.
        """
        self.speculation.check(params)
        sequence = self._admission.sequence(generation_id, prompt, params, spec, tuning)
        params, generation = sequence.params, self.generations.add(sequence)
        if params.max_tokens == 0 and not sequence.num_to_score and params.pooling is None:
            self._pending.append((generation_id, self.generations.finish(generation, "length")))
        else:
            self.scheduler.add(sequence)
            self._beams.add(sequence)

    def check(
        self,
        prompt: list[int],
        params: SamplingParams,
        spec: ConstraintSpec | None = None,
        tuning: Tuning | None = None,
    ) -> None:
        """Raise `UsageError` or `ContextOverflow` for a prompt that cannot be answered.

        Also raises `UsageError` for an invalid grammar, and as `Tunings.open` does. Loads nothing.
        """
        self.speculation.check(params)
        self._admission.check(prompt, params, spec, tuning)

    def tune(self, tuning: Tuning | None) -> SequenceTuning | None:
        """Load adapters and a soft prompt; raises as `Tunings.load` does."""
        return self._admission.tune(tuning)

    def cancel(self, generation_id: int) -> None:
        """End a generation; the next step reports it. Do nothing if it has already ended."""
        generation = self.generations.by_id.get(generation_id)
        if generation is not None:
            self.scheduler.remove(generation.sequence)
            self._pending.append((generation_id, self.generations.finish(generation, "interrupt")))

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """End every generation with an error; the engine stays usable."""
        if self.graphs.decode is not None:
            self.graphs.decode.drop()
        self.scheduler.step_failed()
        running = list(self.generations.by_id.values())
        return [self.generations.fail(generation, error) for generation in running]

    def step(self) -> list[Outcome]:
        """Compute one batch; return its events in order, each with its generation's id."""
        # Compute first: if that raises, the next step still reports the pending outcomes.
        computed = self._compute() if self.scheduler.has_work else []
        pending, self._pending = self._pending, []
        return pending + computed

    @property
    def has_unsaved(self) -> bool:
        """Whether KV blocks are to be written to the disk."""
        return self.store.has_unsaved

    @property
    def can_prepare(self) -> bool:
        """Whether `prepare` would make later prompts faster."""
        prefill = self.graphs.prefill
        return self.has_unsaved or (prefill is not None and prefill.can_capture)

    @torch.inference_mode()
    def prepare(self) -> None:
        """Save a KV block or capture a graph, in some tenths of a second; only without work."""
        if self.store.has_unsaved:
            self.store.save()
        elif self.graphs.prefill is not None:
            self.graphs.prefill.capture_next()

    def stats(self, measure: bool = False) -> dict[str, Any]:
        """Return counters: blocks by state and tier, tokens computed and reused since loading.

        With kernels, add their compile time in seconds and the number of replayed decode steps,
        and with `measure` the GPU's bandwidth ceiling.
        """
        return {
            **self.scheduler.stats(),
            "computed_tokens": self._num_computed,
            "reused_tokens": self.generations.num_reused,
            **self.store.stats(),
            **self._gpu_counters.stats(measure),
        }

    @torch.inference_mode()
    def _compute(self) -> list[Outcome]:
        decode = self.graphs.decode
        if decode is not None and decode.is_in_flight:
            return self._append_rows(decode.collect(continues=not self._proposes_next()))
        if failed := self._beams.reserve():
            return [
                self.generations.fail(self.generations.by_id[id_], error) for id_, error in failed
            ]
        self.speculation.propose(self.scheduler.running)
        step = self.scheduler.schedule()
        if not step.rows:
            assert step.restoring is not None
            return [(step.restoring.id, self.store.progress(step.restoring))]
        self.cache.states.copy(step.state_copies)
        self.tunings.prepare_blocks(step)
        self.store.prefill_started([row.sequence for row in step.rows])
        pooled = [row for row in step.rows if row.sequence.params.pooling is not None]
        generating = replace(step, rows=[row for row in step.rows if row not in pooled])
        inputs = self._inputs(generating, needs_logits=bool(pooled))
        started, logits = time.perf_counter(), None
        if generating.rows:
            result = first_result(self._runners, inputs)
            if isinstance(result, SampledStep):
                return self._append_rows(result)
            logits = result.logits
        embeddings = self._pooler.compute(pooled)
        return self._sample(step, inputs.batch, logits, embeddings, started)

    def _inputs(self, step: Step, *, needs_logits: bool) -> StepInputs:
        return StepInputs(
            step,
            self.generations.seeds(step.rows),
            self.config.block_size,
            needs_logits,
            self._proposes_next,
        )

    def _proposes_next(self) -> bool:
        return self.speculation.would_propose(self.scheduler.running)

    def logits(self, step: Step) -> Tensor | None:
        """Return the logits of a step's rows, for a draft model; its blocks must be ready."""
        inputs = StepInputs(step, [0] * len(step.rows), self.config.block_size, needs_logits=True)
        result = first_result(self._runners, inputs)
        assert isinstance(result, StepLogits)
        return result.logits

    def _sample(
        self,
        step: Step,
        batch: Batch,
        local_logits: Tensor | None,
        embeddings: dict[TokenSequence, list[float]],
        started: float,
    ) -> list[Outcome]:
        """Sample the next tokens of a step, which this process began to compute at `started`.

        `batch` are its generating rows with their logits; `embeddings` are those of the other rows.
        """
        outcomes, duration_s = list[Outcome](), time.perf_counter() - started
        batch, beams = self._beams.split(batch)
        twins = find_twins(batch.sampled_rows, self.scheduler)
        batch = batch.also_sampled(twins)
        seeds = self.generations.seeds(batch.sampled_rows)
        tokens, logits = self._sampler.sample_batch(batch, seeds, local_logits)
        self.scheduler.measured(step, time.perf_counter() - started)
        self.speculation.computed(step.rows, duration_s)
        self._num_computed += sum(row.num_tokens + len(row.proposed) for row in step.rows)
        for row in step.rows:
            sequence, reaches_end = row.sequence, row.reaches_end  # before `advance` changes it
            self.scheduler.advance(row)
            if not reaches_end:
                progress = Prefill(sequence.num_computed, len(sequence.tokens))
                outcomes.append((sequence.id, progress))
        copies = [pair for row, twin in twins for pair in fork(row.sequence, twin, self.scheduler)]
        self.decoder.ops.copy_blocks(self.cache, copies)
        for sequence, values in embeddings.items():
            outcomes += self.generations.finish_embedding(sequence, values)
        outcomes += self._sampler.prompt_logprobs(batch, logits)
        for i, row, sampled in zip(batch.sampled_logits, batch.sampled_rows, tokens, strict=True):
            outcomes += self.generations.append_row(row, sampled, logits, i)
        for beam_step in self._beams.advance(beams, logits):
            outcomes += self.generations.advance_beams(beam_step)
        return outcomes

    def _append_rows(self, step: SampledStep) -> list[Outcome]:
        """Add the tokens of a step that the device sampled to their sequences."""
        rows, outcomes = step.rows, list[Outcome]()
        self._num_computed += sum(1 + len(row.proposed) for row in rows)
        self._gpu_counters.num_replayed += 1
        self.speculation.computed(rows)
        # All rows advance before any token is added, as in `_sample`: another stage may compute
        # this step there, and the schedulers of all stages must change in the same order.
        for row in rows:
            self.scheduler.advance(row)
        for row, sampled in zip(rows, step.tokens, strict=True):
            outcomes += self.generations.append_row(row, sampled)
        return outcomes

"""The generation loop: loads a model, takes prompts, and computes them step by step."""

import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Event, Finished, Logprob, Prefill, Tokens
from swiftchat.engine.comm.communicator import Communicator, SingleRank
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator
from swiftchat.engine.comm.pipeline import Pipeline, SingleStage
from swiftchat.engine.decode.async_decode import AsyncDecode
from swiftchat.engine.decode.decode_batch import DecodeBatch
from swiftchat.engine.decode.graph_runner import SIZES, GraphRunner
from swiftchat.engine.decode.pipeline_decode import PipelineDecode
from swiftchat.engine.device.bandwidth import bandwidth_ceiling_bytes_per_s
from swiftchat.engine.device.device import available_bytes, described, find_device, find_kernels
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.load.packing import packing, resident_estimate
from swiftchat.engine.model.cuda_ops import CudaOps
from swiftchat.engine.model.decoder import Decoder, has_packed, resident_bytes, table_bytes
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import CachePlan, plan_share
from swiftchat.engine.model.torch_ops import TorchOps
from swiftchat.engine.model.traced_layers import TracedLayers
from swiftchat.engine.sampling.distributed_argmax import is_plain_greedy, likeliest
from swiftchat.engine.sampling.sampler import likelihood, not_finite, sample
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Row, Scheduler, Sequence
from swiftchat.errors import BadModelFile, ContextOverflow, SwiftchatError, UsageError
from swiftchat.weights.architectures.prefix_lm import BACKWARDS_ONLY
from swiftchat.weights.architectures.registry import expected_tensors
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config, form_asked
from swiftchat.weights.parallel.tensor_parallel import shard_of

Outcome = tuple[int, Event | SwiftchatError]
Progress = Callable[[str, int, int], None]


@dataclass
class _Generation:
    """What the engine keeps of a sequence beside its tokens; times are `perf_counter` seconds."""

    sequence: Sequence
    seed: int
    started: float
    first_token: float | None = None


class Engine:
    """One model on one device: token ids in, token ids out.

    `add` queues a prompt, each `step` computes one batch and returns what came of it, `cancel`
    ends a generation between steps. Not thread-safe: one loop owns it. Compiled kernels are kept
    in the folder `cubins`, if one is given. One of several `ranks`, or of several `stages`, has a
    share of the model and makes the same calls as the others (`engine.ranks.spmd`).
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        on_progress: Progress = lambda *_: None,
        cubins: Path | None = None,
        ranks: Communicator | None = None,
        stages: Pipeline | None = None,
    ) -> None:
        started = time.perf_counter()
        self._ranks = ranks = ranks or SingleRank()
        self._stages = stages = stages or SingleStage()
        device = find_device(config.device, ranks.placement.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for streams, events and pinned memory
        if config.num_threads is not None or ranks.placement.num_local_ranks > 1:
            torch.set_num_threads(
                config.num_threads
                or max(1, torch.get_num_threads() // ranks.placement.num_local_ranks)
            )
        model = None if config.dummy else Model.open(path)
        whole = model.config if model else dummy_config(config.dummy or "")
        share = shard_of(whole, ranks.size, ranks.rank, stages.stage, stages.size)
        shape = share.local
        checkpoint = model.checkpoint(share) if model else None
        dtype: torch.dtype = getattr(torch, config.dtype or shape.dtype)
        gpu = find_kernels(device, config, shape, dtype, cubins)
        chunk_tokens = config.chunk_tokens or (512 if gpu is None else 4096)
        form = None if model else form_asked(config.dummy or "")[1]
        is_packed = bool(checkpoint.packed) if checkpoint else form is not None
        pack = packing(device, gpu is not None) if is_packed else None
        planned = partial(
            plan_share,
            config,
            share,
            dtype,
            chunk_tokens if gpu else None,
            available_bytes(device, ranks.placement.num_local_ranks),
        )
        estimate = resident_estimate(share, checkpoint, dtype, device) if checkpoint and pack else 0
        plan = self._agreed(planned(estimate if pack else None))
        if checkpoint:
            weights = load_weights(
                whole,
                checkpoint,
                dtype,
                device,
                lambda done, total: on_progress("loading weights", done, total),
                share,
                gpu is not None,
            )
        else:
            weights = dummy_weights(whole, dtype, device, share=share, form=form, pack=pack)
        if is_packed:  # some may have been decoded nevertheless
            plan = self._agreed(planned(resident_bytes(weights)))
        self.config = config
        self.device = device
        self.ctx_size_tokens = plan.ctx_size_tokens
        self.vocab_size = shape.vocab_size
        self.allocator = BlockAllocator(plan.num_blocks, config.block_size)
        self.scheduler = Scheduler(self.allocator, chunk_tokens, config.max_num_seqs)
        self.gpu = gpu
        ops: CudaOps | TorchOps
        if gpu is None:
            ops = TorchOps(shape, plan.ctx_size_tokens, device, share)
        else:
            ops = CudaOps(gpu, share, plan.ctx_size_tokens, config.max_num_seqs)
            if isinstance(ranks, GpuCommunicator):
                ranks.allocate_peer_buffers(gpu, whole)
        self.decoder = Decoder(shape, weights, ops, ranks, stages)
        self.cache = KVCache(
            shape,
            plan.num_blocks,
            config.block_size,
            dtype,
            device,
            heads_first=ops.heads_first,
            kv_dtype=config.kv_dtype,
        )
        if TracedLayers.suit(self.decoder, device):
            self.decoder.layers = TracedLayers(self.decoder)
        self._ahead: AsyncDecode | PipelineDecode | None = None
        if isinstance(ops, CudaOps):
            self._ahead = self._prepare(ops, on_progress)
        self._checkpoint = checkpoint  # keeps the files mapped
        self._generations: dict[int, _Generation] = {}
        self._ready: list[Outcome] = []
        self._num_computed = self._num_reused = self._num_replayed = 0
        self._read_ceiling: float | None = None
        computed_in = str(dtype).removeprefix("torch.")
        self.info = EngineInfo(
            device=described(device, gpu is not None, is_packed and not has_packed(weights)),
            dtype=computed_in,
            num_parameters=sum(math.prod(s) for s in expected_tensors(whole).values()),
            weights_bytes=sum(stages.gather_from_stages(resident_bytes(weights))),
            table_bytes=sum(stages.gather_from_stages(table_bytes(weights, stages.is_last))),
            cache_tokens=plan.num_blocks * config.block_size,
            kv_dtype=computed_in if config.kv_dtype == "auto" else config.kv_dtype,
            cache_bytes=sum(stages.gather_from_stages(self.cache.num_bytes)),
            ctx_size_tokens=plan.ctx_size_tokens,
            num_threads=torch.get_num_threads(),
            load_s=time.perf_counter() - started,
            tp=ranks.size,
            pp=stages.size,
        )

    def _agreed(self, plan: CachePlan) -> CachePlan:
        """What fits on every rank."""
        return CachePlan(self._least(plan.num_blocks), self._least(plan.ctx_size_tokens))

    def _least(self, number: int) -> int:
        """The least of all ranks' numbers."""
        return min(self._stages.gather_from_stages(self._ranks.min_across_ranks(number)))

    @torch.inference_mode()
    def _prepare(self, ops: CudaOps, on_progress: Progress) -> AsyncDecode | PipelineDecode | None:
        """Compile what a single conversation needs, on all cores, and capture its decode step.

        None where there are experts that only the host can find: such a model decodes as it reads
        prompts.
        """
        config = self.config
        max_blocks = -(-self.ctx_size_tokens // config.block_size)
        step: GraphRunner | None = None
        most = ops.max_graph_rows(self.decoder.weights.layers)
        most = self._least(min(config.max_num_seqs, SIZES[-1] if most is None else most))
        if most:
            lanes = DecodeBatch(ops.gpu, most, max_blocks, config.block_size, self.vocab_size)
            step = GraphRunner(self.decoder, ops, self.cache, lanes)
        with ops.gpu.collecting() as specs:
            if step is None:
                self.decoder.forward(self._rehearsal(1), self.cache)
            else:
                step.run(1)
            self.decoder.forward(self._rehearsal(32), self.cache)
        ops.gpu.compile(specs, lambda done, total: on_progress("compiling kernels", done, total))
        if step is None:
            return None
        step.prepare(1)
        if self._stages.size > 1:
            return PipelineDecode(step, self._stages)
        return AsyncDecode(step, self.scheduler, self.ctx_size_tokens)

    def _rehearsal(self, num_tokens: int) -> Batch:
        """A prompt in the first blocks, which nobody has yet."""
        prompt = Sequence(0, [0] * num_tokens, SamplingParams())
        prompt.block_table = [0] * -(-num_tokens // self.config.block_size)
        return Batch.pack([Row(prompt, num_tokens)], self.config.block_size)

    @property
    def has_work(self) -> bool:
        return bool(self._ready) or self.scheduler.has_work

    def add(self, generation_id: int, prompt: list[int], params: SamplingParams) -> None:
        """Queue a prompt; raises what `check` does and then queues nothing."""
        self.check(prompt)
        seed = secrets.randbits(32) if params.seed is None else params.seed
        prefix_lm = self.decoder.config.prefix_lm
        both_ways = BACKWARDS_ONLY if prefix_lm is None else prefix_lm.both_ways(prompt)
        sequence = Sequence(generation_id, list(prompt), params, both_ways)
        generation = _Generation(sequence, seed, time.perf_counter())
        self._generations[generation_id] = generation
        if params.max_tokens == 0:
            self._ready.append((generation_id, self._finish(generation, "length")))
        else:
            self.scheduler.add(sequence)

    def check(self, prompt: list[int]) -> None:
        """Raise `UsageError` or `ContextOverflow` for a prompt that cannot be answered."""
        if not prompt:
            raise UsageError("the prompt is empty")
        bad = next((i for i in prompt if not 0 <= i < self.vocab_size), None)
        if bad is not None:
            raise UsageError(f"token id {bad} is outside the vocabulary of {self.vocab_size}")
        if len(prompt) >= self.ctx_size_tokens:
            raise ContextOverflow(
                f"the prompt has {len(prompt)} tokens, the context {self.ctx_size_tokens}, "
                "and an answer needs at least one",
                "shorten it, or choose a larger --ctx-size if the model has one",
            )

    def cancel(self, generation_id: int) -> None:
        """End a generation; the next step reports it. One that already ended is left alone."""
        generation = self._generations.get(generation_id)
        if generation is not None:
            self.scheduler.remove(generation.sequence)
            self._ready.append((generation_id, self._finish(generation, "interrupt")))

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """End every generation with an error, keeping the engine usable."""
        outcomes: list[Outcome] = []
        if self._ahead is not None:
            self._ahead.drop()
        for generation_id, generation in list(self._generations.items()):
            self.scheduler.remove(generation.sequence)
            del self._generations[generation_id]
            outcomes.append((generation_id, error))
        return outcomes

    def step(self) -> list[Outcome]:
        """Compute one batch; return its events in order, each with its generation's id."""
        # Computed first: if that raises, what is ready is reported by the next step.
        computed = self._compute() if self.scheduler.has_work else []
        ready, self._ready = self._ready, []
        return ready + computed

    @torch.inference_mode()
    def _compute(self) -> list[Outcome]:
        if self._ahead is not None and self._ahead.is_flying:
            return self._land(self._ahead)
        outcomes: list[Outcome] = []
        step = self.scheduler.schedule()
        if self._ahead is not None:
            seeds = [self._generations[row.sequence.id].seed for row in step.rows]
            if self._ahead.take(step, seeds):
                return self._land(self._ahead)
        self.decoder.ops.copy_blocks(self.cache, step.copies)
        batch = Batch.pack(step.rows, self.config.block_size)
        own = self.decoder.forward(batch, self.cache)
        self._num_computed += len(batch.ids)
        for row in step.rows:
            reaches_end = row.reaches_end  # before `advance` moves the row's beginning
            self.scheduler.advance(row)
            if not reaches_end:
                outcomes.append(self._prefill_progress(row))
        tokens, logits = self._draw(batch.wanted, own)
        for i, (row, token) in enumerate(zip(batch.wanted, tokens, strict=True)):
            row_logits = None if logits is None else logits[i]
            outcomes += self._take(self._generations[row.sequence.id], token, row_logits)
        return outcomes

    def _land(self, ahead: AsyncDecode | PipelineDecode) -> list[Outcome]:
        """Take in the tokens of a step that the GPU decoded by itself."""
        outcomes: list[Outcome] = []
        landed = ahead.land()
        self._num_computed += len(landed)
        self._num_replayed += 1
        for sequence, _ in landed:  # all of them first: another stage may have done it without
            self.scheduler.advance(Row(sequence, 1))
        for sequence, token in landed:
            outcomes += self._take(self._generations[sequence.id], token)
        return outcomes

    def stats(self, measure: bool = False) -> dict[str, Any]:
        """Counters: blocks by state, tokens computed and reused since loading.

        With kernels, the seconds of compiling them and the decode steps that were a graph's, and
        with `measure` the GPU's read ceiling.
        """
        of_gpu: dict[str, Any] = {}
        if self.gpu is not None:
            of_gpu.update(compile_s=self.gpu.compile_s, graph_steps=self._num_replayed)
        if self.gpu is not None and measure:
            self._read_ceiling = self._read_ceiling or bandwidth_ceiling_bytes_per_s(self.device)
            if self._read_ceiling is not None:
                of_gpu["bandwidth_ceiling_bytes_per_s"] = self._read_ceiling
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
            **of_gpu,
        }

    def _prefill_progress(self, row: Row) -> Outcome:
        sequence = row.sequence
        return sequence.id, Prefill(sequence.num_computed, len(sequence.tokens))

    def _draw(
        self, rows: list[Row], own: torch.Tensor | None
    ) -> tuple[list[int], torch.Tensor | None]:
        """The next token of every row, the same on all ranks; -1: its logits are not finite.

        `own` are this rank's columns of the logits, in the last stage; returned are all columns, if
        they were needed. Where no row wants a token, nobody waits for it.
        """
        if not rows:
            return [], None
        tokens, logits = [-1] * len(rows), None
        few = self._ranks.size > 1 and all(is_plain_greedy(row.sequence.params) for row in rows)
        if own is not None and few:
            tokens = likeliest(own, self.vocab_size, self._ranks)
        elif own is not None:
            logits = self._ranks.all_gather(own, self.vocab_size)
            tokens = list(map(self._draw_one, rows, logits))
        agreed: list[int] = self._stages.broadcast_from_last(torch.tensor(tokens)).tolist()
        return agreed, logits

    def _draw_one(self, row: Row, logits: torch.Tensor) -> int:
        sequence, seed = row.sequence, self._generations[row.sequence.id].seed
        try:
            token = sample(logits, sequence.tokens, sequence.num_prompt, sequence.params, seed)
        except BadModelFile:
            return -1
        # Among ranks the first's: not every operator of torch gives the same bits on every GPU.
        return self._ranks.broadcast_from_first(token)

    def _take(
        self, generation: _Generation, token: int, logits: torch.Tensor | None = None
    ) -> list[Outcome]:
        """What comes of a token that was drawn, from these logits if this stage has them."""
        if token < 0:
            return [self._fail(generation, not_finite())]
        asked = generation.sequence.params.logprobs
        if asked is None:
            return self._extend(generation, token)
        row = self._stages.broadcast_from_last(
            torch.empty(self.vocab_size) if logits is None else logits
        )
        return self._extend(generation, token, [likelihood(row, token, asked)])

    def _fail(self, generation: _Generation, error: SwiftchatError) -> Outcome:
        self.scheduler.remove(generation.sequence)
        del self._generations[generation.sequence.id]
        return generation.sequence.id, error

    def _extend(
        self, generation: _Generation, token: int, likelihoods: Iterable[Logprob] = ()
    ) -> list[Outcome]:
        """Append the next token and say so; a token or limit that ends the answer ends it."""
        sequence, params = generation.sequence, generation.sequence.params
        if generation.first_token is None:
            generation.first_token = time.perf_counter()
        if token in params.stop_ids:
            self.scheduler.remove(sequence)
            return [(sequence.id, self._finish(generation, "stop"))]
        sequence.tokens.append(token)
        outcomes: list[Outcome] = [(sequence.id, Tokens([token], list(likelihoods)))]
        full = len(sequence.tokens) >= self.ctx_size_tokens
        if full or sequence.num_generated == params.max_tokens:
            self.scheduler.remove(sequence)
            outcomes.append((sequence.id, self._finish(generation, "length")))
        return outcomes

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

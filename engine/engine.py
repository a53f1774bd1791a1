"""The generation loop: loads a model, takes prompts, and computes them step by step."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from swiftchat.engine.batch import Batch
from swiftchat.engine.blocks import BlockAllocator
from swiftchat.engine.decoder import Decoder, resident_bytes
from swiftchat.engine.kv_cache import KVCache
from swiftchat.engine.loader import load_weights
from swiftchat.engine.memory import plan_cache
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.engine.protocol import EngineInfo, Event, Finished, Prefill, Tokens
from swiftchat.engine.sampler import sample
from swiftchat.engine.scheduler import Row, Scheduler, Sequence
from swiftchat.errors import ContextOverflow, DeviceError, SwiftchatError, UsageError
from swiftchat.weights.model import Model

Outcome = tuple[int, Event | SwiftchatError]


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
    ends a generation between steps. Not thread-safe: one loop owns it.
    """

    def __init__(
        self,
        path: Path,
        config: EngineConfig,
        on_progress: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        started = time.perf_counter()
        device = find_device(config.device)
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        model = Model.open(path)
        checkpoint = model.checkpoint()
        dtype: torch.dtype = getattr(torch, config.dtype or model.config.dtype)
        plan = plan_cache(
            config,
            max_context_tokens=model.config.max_context_tokens,
            bytes_per_token=model.kv_bytes_per_token(dtype.itemsize),
            weights_bytes=model.num_parameters * dtype.itemsize,
            available_bytes=available_bytes(device),
        )
        weights = load_weights(
            model.config, checkpoint, dtype, device,
            lambda done, total: on_progress("loading layers", done, total),
        )  # fmt: skip
        self.config = config
        self.device = device
        self.ctx_size_tokens = plan.ctx_size_tokens
        self.vocab_size = model.config.vocab_size
        self.decoder = Decoder(model.config, weights, plan.ctx_size_tokens)
        self.cache = KVCache(model.config, plan.num_blocks, config.block_size, dtype, device)
        self.allocator = BlockAllocator(plan.num_blocks, config.block_size)
        self.scheduler = Scheduler(self.allocator, config.chunk_tokens, config.max_num_seqs)
        self._checkpoint = checkpoint  # keeps the files mapped
        self._generations: dict[int, _Generation] = {}
        self._ready: list[Outcome] = []
        self._num_computed = self._num_reused = 0
        self.info = EngineInfo(
            device=device_name(device),
            dtype=str(dtype).removeprefix("torch."),
            num_parameters=model.num_parameters,
            weights_bytes=resident_bytes(weights),
            cache_tokens=plan.num_blocks * config.block_size,
            cache_bytes=self.cache.num_bytes,
            ctx_size_tokens=plan.ctx_size_tokens,
            num_threads=torch.get_num_threads(),
            load_s=time.perf_counter() - started,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._ready) or self.scheduler.has_work

    def add(self, generation_id: int, prompt: list[int], params: SamplingParams) -> None:
        """Queue a prompt; raises `UsageError` or `ContextOverflow` and then queues nothing."""
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
        seed = secrets.randbits(32) if params.seed is None else params.seed
        sequence = Sequence(generation_id, list(prompt), params)
        generation = _Generation(sequence, seed, time.perf_counter())
        self._generations[generation_id] = generation
        if params.max_tokens == 0:
            self._ready.append((generation_id, self._finish(generation, "length")))
        else:
            self.scheduler.add(sequence)

    def cancel(self, generation_id: int) -> None:
        """End a generation; the next step reports it. One that already ended is left alone."""
        generation = self._generations.get(generation_id)
        if generation is not None:
            self.scheduler.remove(generation.sequence)
            self._ready.append((generation_id, self._finish(generation, "interrupt")))

    def abort_all(self, error: SwiftchatError) -> list[Outcome]:
        """End every generation with an error, keeping the engine usable."""
        outcomes: list[Outcome] = []
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
        outcomes: list[Outcome] = []
        step = self.scheduler.schedule()
        self.cache.copy_blocks(step.copies)
        batch = Batch.pack(step.rows, self.config.block_size, self.device)
        logits = self.decoder.forward(batch, self.cache)
        self._num_computed += len(batch.ids)
        for row in step.rows:
            reaches_end = row.reaches_end  # before `advance` moves the row's beginning
            self.scheduler.advance(row)
            if not reaches_end:
                outcomes.append(self._prefill_progress(row))
        for row, row_logits in zip(batch.wanted, logits, strict=True):
            outcomes += self._extend(self._generations[row.sequence.id], row_logits)
        return outcomes

    def stats(self) -> dict[str, Any]:
        """Counters: blocks by state, tokens computed and reused since loading."""
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
        }

    def _prefill_progress(self, row: Row) -> Outcome:
        sequence = row.sequence
        return sequence.id, Prefill(sequence.num_computed, len(sequence.tokens))

    def _extend(self, generation: _Generation, logits: torch.Tensor) -> list[Outcome]:
        """Append the next token and say so; a token or limit that ends the answer ends it."""
        sequence, params = generation.sequence, generation.sequence.params
        try:
            token = sample(
                logits, sequence.tokens, sequence.num_prompt, params, generation.seed
            )  # fmt: skip
        except SwiftchatError as error:
            self.scheduler.remove(sequence)
            del self._generations[sequence.id]
            return [(sequence.id, error)]
        if generation.first_token is None:
            generation.first_token = time.perf_counter()
        if token in params.stop_ids:
            self.scheduler.remove(sequence)
            return [(sequence.id, self._finish(generation, "stop"))]
        sequence.tokens.append(token)
        outcomes: list[Outcome] = [(sequence.id, Tokens([token]))]
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


def find_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu`, `cuda` or `cuda:i`; a missing one is a `DeviceError`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", "one of auto, cpu, cuda, cuda:0 …") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        found = torch.cuda.device_count()
        raise DeviceError(
            f"no GPU {name}: {found} found by torch {torch.__version__}",
            "use --device cpu, or install the driver and torch's CUDA build",
        )
    return device


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def available_bytes(device: torch.device) -> int:
    """Memory that can be taken now without swapping."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)

"""Runs of the engine on tiny random models, which `tiny_models` makes."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Logprob, Tokens
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.cpu.back_end import NativeBackEnd
from swiftchat.engine.cpu.native_decoder import NativeDecoder
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.schedule.states import MAX_VERIFIED, StateSlots
from swiftchat.errors import SwiftchatError
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard
from tests.support.tiny_models import (
    FAMILIES,
    MECHANISMS,
    NOT_ON_KERNELS,
    REPACKED,
    VARIANTS,
    VOCAB_SIZE,
    make,
    make_with_reference,
)

__all__ = [
    "BLOCK_SIZE",
    "FAMILIES",
    "MECHANISMS",
    "NOT_ON_KERNELS",
    "REPACKED",
    "VARIANTS",
    "VOCAB_SIZE",
    "Bench",
    "SamplingParams",
    "each_backend",
    "engine",
    "logprobs",
    "make",
    "make_with_reference",
    "native_kernels",
    "plain_tensor",
    "random_ids",
    "run",
]

BLOCK_SIZE = 4
# A test with the argument `native` runs with torch's operators and with the native kernels.
each_backend = pytest.mark.parametrize("native", [False, True], ids=["torch", "native"])


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def plain_tensor(weight: LinearWeight) -> torch.Tensor:
    """The tensor of a weight that must be plain."""
    assert not weight.is_quantized
    (tensor,) = weight.tensors
    return tensor


@cache
def native_kernels() -> NativeBackEnd:
    """The native kernels of this machine, shared by tests; skip the test if there are none."""
    return open_kernels(torch.get_num_threads())


def open_kernels(num_threads: int) -> NativeBackEnd:
    kernels = NativeBackEnd.open(os.environ, num_threads)
    if isinstance(kernels, str):
        pytest.skip(kernels)
    return kernels


class Bench:
    """A decoder with a cache and a scheduler, without the generation loop on top.

    Computed by torch's operators, or if `native` by the native kernels, with `ranks` only the
    matmuls; then the test is skipped if there are none.
    """

    def __init__(
        self,
        folder: Path,
        num_blocks: int = 64,
        block_size: int = BLOCK_SIZE,
        chunk_tokens: int = 512,
        shard: Shard | None = None,
        ranks: Communicator | None = None,
        dtype: torch.dtype = torch.float32,
        kv_dtype: str = "auto",
        native: bool = False,
        num_states: int = 24,
    ) -> None:
        model = Model.open(folder)
        config = model.config if shard is None else shard.local_config
        self.checkpoint = model.checkpoint(shard)
        cpu = torch.device("cpu")
        kernels = None
        if native:  # ranks are threads, which cannot share a pool
            kernels = native_kernels() if ranks is None else open_kernels(1)
        is_recorded = native and ranks is None
        weights = load_weights(
            *(model.config, self.checkpoint, dtype, cpu, lambda done, total: None, shard),
            None if kernels is None else kernels.factory,
        )
        self.cache = KVCache(
            *(config, num_blocks, block_size, dtype, cpu),
            heads_first=is_recorded,
            kv_dtype=kv_dtype,
            num_states=num_states if config.mixer is not None else 0,
        )
        ctx_size_tokens = config.max_context_tokens
        self.decoder: Decoder
        if kernels is not None and is_recorded:
            self.decoder = NativeDecoder(config, weights, self.cache, ctx_size_tokens, kernels.pool)
        else:
            ops = TorchOps(config, ctx_size_tokens, cpu, shard)
            self.decoder = Decoder(config, weights, ops, ranks)
        # Unwritten slots must never be read.
        for tensor in (*self.cache.tensors, *self.cache.states.tensors):
            tensor.fill_(float("nan") if tensor.is_floating_point() else -1)
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.scheduler = Scheduler(self.allocator, chunk_tokens, 16)
        if config.mixer is not None:
            verified = min(MAX_VERIFIED, num_states // 3)
            states = StateSlots(num_states, block_size, num_verified=verified)
            self.scheduler.use_states(states)
        self.held: list[list[int]] = []  # blocks that a test holds

    @torch.inference_mode()
    def step(self) -> dict[int, torch.Tensor]:
        """Compute one step; return logits by id for the sequences whose last token was computed."""
        step = self.scheduler.schedule()
        self.decoder.ops.copy_blocks(self.cache, step.copies)
        self.cache.states.copy(step.state_copies)
        batch = Batch.pack(step.rows, self.allocator.block_size)
        own = self.decoder.forward(batch, self.cache)
        assert own is not None
        logits = self.decoder.ranks.all_gather(own, self.decoder.config.vocab_size)
        for row in step.rows:
            self.scheduler.advance(row)
        tables = [sequence.block_table for sequence in self.scheduler.running]
        self.allocator.check_integrity([*tables, *self.held])
        return {row.sequence.id: out for row, out in zip(batch.sampled_rows, logits, strict=True)}

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Compute the logits after each of the ids, token by token: [len(ids), vocab_size]."""
        sequence = TokenSequence(0, [ids[0]], SamplingParams())
        self.scheduler.add(sequence)
        rows = [self.step()[0]]
        for token in ids[1:]:
            sequence.tokens.append(token)
            rows.append(self.step()[0])
        self.scheduler.remove(sequence)
        return torch.stack(rows)

    def last_logits(self, ids: Sequence[int], sequence_id: int = 0) -> torch.Tensor:
        """Compute the logits after the last id by chunked prefill; the prefix stays cached."""
        sequence = TokenSequence(sequence_id, list(ids), SamplingParams())
        self.scheduler.add(sequence)
        result: dict[int, torch.Tensor] = {}
        while sequence_id not in result:
            result = self.step()
        self.scheduler.remove(sequence)
        return result[sequence_id]


def engine(folder: Path, **config: Any) -> Engine:
    settings = {"device": "cpu", "dtype": "float32", "block_size": BLOCK_SIZE, **config}
    return build_engine(folder, EngineConfig(**settings))


def run(
    engine: Engine, prompts: dict[int, Sequence[int]], params: SamplingParams
) -> tuple[dict[int, list[int]], dict[int, Finished | SwiftchatError]]:
    """Generate for all prompts together; return ids and final events by generation id."""
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    ends: dict[int, Finished | SwiftchatError] = {}
    for key, prompt in prompts.items():
        engine.add(key, list(prompt), params)
    while engine.has_work:
        events = engine.step()
        engine.scheduler.check_integrity()
        for key, event in events:
            if key not in prompts:
                continue
            if isinstance(event, Tokens):
                ids[key] += event.ids
            elif isinstance(event, Finished | SwiftchatError):
                ends[key] = event
    return ids, ends


def logprobs(
    engine: Engine, prompt: Sequence[int], params: SamplingParams
) -> tuple[list[int], list[Logprob]]:
    """Generate together with the engine's other generations; return ids and their logprobs."""
    engine.add(1, list(prompt), params)
    ids: list[int] = []
    found: list[Logprob] = []
    while engine.has_work:
        for key, event in engine.step():
            if key == 1 and isinstance(event, Tokens):
                ids += event.ids
                found += event.logprobs
    return ids, found

"""The speculation of an engine: the costs of its steps, and its proposer."""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.weights import expert_bytes, has_quantized, resident_bytes
from swiftchat.engine.schedule.sequence import Step
from swiftchat.engine.speculation.draft import DraftModel
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.engine.speculation.speculation import MAX_VERIFIED_ROWS, Speculation
from swiftchat.engine.speculation.step_costs import StepCosts, gpu_step_s
from swiftchat.weights.model.directory import Model

# The cost of each further row of a decode step on the CPU, before it is measured.
_ROW_COST = 0.2
_DRAFT_CTX_TOKENS = 8192  # a longer context has no proposals of the draft model
_DRAFT_LAUNCH_S = 0.3e-3  # the host's part of a draft step on a GPU


def speculation_of(
    decoder: Decoder,
    graphs: Graphs,
    ctx_size_tokens: int,
    draft: Proposer | None,
    num_verified_states: int = 0,
    host_layers: Collection[int] = (),
    *,
    is_on_gpu: bool,
) -> Speculation:
    """Return the speculation of an engine with this decoder, and a draft model or heads.

    A model with states has `num_verified_states` for proposed tokens. `is_on_gpu`: the kernels of
    a GPU compute, but for the experts of `host_layers`.
    """
    weights = decoder.weights
    costs, max_rows, step_s = StepCosts(_ROW_COST), MAX_VERIFIED_ROWS, None
    if is_on_gpu:
        # All ranks must propose the same tokens. Look-up depends on nothing but ids and costs.
        host_bytes, moe = expert_bytes(weights, host_layers), decoder.config.moe
        num_bytes = decoder.ranks.min_across_ranks(resident_bytes(weights) - host_bytes)
        chosen = 0.0 if moe is None else moe.experts_per_token / moe.num_experts
        host_row_bytes = int(host_bytes * chosen)
        is_quantized = bool(decoder.ranks.min_across_ranks(int(has_quantized(weights))))
        num_layers = len(weights.layers)
        has_states = decoder.config.mixer is not None
        costs = StepCosts.on_gpu(
            num_bytes,
            num_layers,
            is_quantized=is_quantized,
            has_states=has_states,
            host_row_bytes=host_row_bytes,
        )
        max_rows = 1 if graphs.verification is None else graphs.verification.max_rows
        step_s = gpu_step_s(num_bytes, num_layers, host_row_bytes)
    if decoder.config.mixer is not None:
        max_rows = min(max_rows, 1 + num_verified_states)
    # On a GPU a step of several rows differs from one of one row in the last bits of the logits. If
    # its clock decided which step computes a token, one seed might give two texts.
    measures = not is_on_gpu and decoder.ranks.size * decoder.stages.size == 1
    return Speculation(
        costs,
        max_rows,
        ctx_size_tokens,
        measures=measures,
        on_device=is_on_gpu,
        draft=draft,
        step_s=step_s,
    )


def draft_model(config: EngineConfig) -> tuple[Path, EngineConfig]:
    """Return the directory of the draft model and the config of its engine, which only proposes.

    Raises as `Model.open` does.
    """
    assert config.draft is not None
    path = Path(config.draft)
    longest = Model.open(path).config.max_context_tokens
    ctx_size_tokens = min(config.ctx_size_tokens or _DRAFT_CTX_TOKENS, longest)
    return path, replace(
        config,
        draft=None,
        cpu_experts="auto",
        dummy=None,
        ctx_size_tokens=ctx_size_tokens,
        cache_tokens=None,
        cache_max_bytes=0,
        swap_bytes=0,
    )


def draft_proposer(engine: Engine, vocab_size: int) -> DraftModel:
    """Return the proposer with the engine of a draft model, for a target of `vocab_size` ids."""
    weights = engine.decoder.weights
    step_s = None
    if engine.gpu is not None:
        step_s = gpu_step_s(resident_bytes(weights), len(weights.layers)) + _DRAFT_LAUNCH_S
    return DraftModel(
        _compute(engine),
        engine.allocator,
        engine.scheduler.states,
        chunk_tokens=engine.scheduler.chunk_tokens,
        ctx_size_tokens=engine.ctx_size_tokens,
        vocab_size=min(vocab_size, engine.vocab_size),
        step_s=step_s,
    )


def _compute(engine: Engine) -> Callable[[Step], Tensor | None]:
    @torch.inference_mode()
    def compute(step: Step) -> Tensor | None:
        engine.decoder.ops.copy_blocks(engine.cache, step.copies)
        engine.cache.states.copy(step.state_copies)
        if not step.rows:
            return None
        return engine.logits(step)

    return compute

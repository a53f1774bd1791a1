"""Build an engine: memory plan, weights, operations, KV cache and graphs."""

import math
import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from swiftchat.engine.adapters.tunings import Tunings
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import EngineInfo, OnProgress
from swiftchat.engine.comm.communicator import Communicator, SingleRank
from swiftchat.engine.comm.pipeline import Pipeline, SingleStage
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.device.device import cpu_note, describe_device
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.generation.forced_tokens import ForcedTokens
from swiftchat.engine.generation.grammars import Grammars
from swiftchat.engine.generation.heads import Heads
from swiftchat.engine.generation.parts import EngineParts
from swiftchat.engine.generation.setup import (
    EngineSetup,
    set_up,
    with_large_chunks,
    with_placed_experts,
)
from swiftchat.engine.generation.speculation import draft_model, draft_proposer, speculation_of
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.kv_store.block_store import BlockStore
from swiftchat.engine.kv_store.identity import ModelFiles
from swiftchat.engine.kv_store.open_store import DeviceCache, open_store
from swiftchat.engine.linear.weight import dtype_name
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.load.quantized import resident_estimate
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import CachePlan
from swiftchat.engine.model.weights import (
    DecoderWeights,
    expert_bytes,
    has_quantized,
    resident_bytes,
    table_bytes,
)
from swiftchat.engine.reference.back_end import TorchBackEnd
from swiftchat.engine.schedule.blocks import BlockAllocator
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.states import MAX_VERIFIED, StateSlots
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.heads.open import are_heads
from swiftchat.weights.model.unread import unread_note


def build_engine(
    path: Path,
    config: EngineConfig,
    on_progress: OnProgress = lambda *_: None,
    cubins: Path | None = None,
    ranks: Communicator | None = None,
    stages: Pipeline | None = None,
    kv_folder: Path | None = None,
) -> Engine:
    """Load the model at `path` and return an engine that is ready to generate.

    Compiled kernels are cached in the folder `cubins`, KV blocks in `kv_folder`, if given; the
    latter only by an engine of one rank. With several tensor-parallel
    `ranks` or pipeline `stages`, the engine holds this rank's shard of the model, and all ranks
    call this function and then the engine's methods in the same order (`engine.ranks.spmd`).
    """
    started = time.perf_counter()
    ranks, stages = ranks or SingleRank(), stages or SingleStage()
    draft: Engine | None = None  # before the target, whose KV cache takes the memory that is left
    has_heads = config.draft is not None and are_heads(config.draft)
    if config.draft is not None and not has_heads:
        draft = build_engine(*draft_model(config), on_progress, cubins)
    setup = set_up(path, config, cubins, ranks, stages)
    heads, head_bytes = Heads.open(setup) if has_heads else None, 0
    if heads is not None:
        setup = replace(setup, available_bytes=setup.available_bytes - heads.num_bytes)
        head_bytes = heads.bytes_per_token
    setup = with_placed_experts(setup, head_bytes)
    model = ModelFiles.of(path, config, setup.device.type)
    weights_bytes = _estimated_bytes(setup)
    setup = with_large_chunks(setup, weights_bytes, ranks)
    plan = _plan_cache(setup, weights_bytes, ranks, stages, head_bytes)
    weights = _load_weights(setup, on_progress)
    if setup.is_quantized:  # the loader may have dequantized some matrices
        plan = _plan_cache(setup, _device_bytes(setup, weights), ranks, stages, head_bytes)
    read_layers = () if heads is None else heads.hidden_layers
    setup, decoder, cache = _build_decoder(setup, weights, plan, ranks, stages, read_layers)
    allocator = BlockAllocator(plan.num_blocks, config.block_size)
    scheduler = Scheduler(allocator, setup.chunk_tokens, config.max_num_seqs)
    if plan.num_states:
        scheduler.use_states(_state_slots(plan.num_states, setup, ranks))
    if config.chunk_tokens is None:
        scheduler.limit = setup.back_end.chunk_limit(setup.chunk_tokens)
    proposer: Proposer | None = None
    if heads is not None:
        proposer = heads.load(decoder, cache, scheduler, plan.ctx_size_tokens)
    elif draft is not None:
        proposer = draft_proposer(draft, decoder.config.vocab_size)
    graphs = setup.back_end.graphs(decoder, cache, scheduler, plan.ctx_size_tokens, on_progress)
    graphs = graphs or Graphs()
    store = BlockStore(allocator)
    if ranks.size * stages.size == 1 and not plan.num_states:
        device = DeviceCache(cache, allocator, setup.back_end.gpu)
        sizes = setup.shard.config, plan.ctx_size_tokens
        store = open_store(model, config, *sizes, device, kv_folder)
    info = _engine_info(setup, decoder, cache, plan, started)
    return Engine(
        EngineParts(
            config=config,
            info=replace(info, replays_steps=graphs.replays_steps),
            device=setup.device,
            back_end=setup.back_end,
            decoder=decoder,
            cache=cache,
            scheduler=scheduler,
            speculation=speculation_of(
                decoder,
                graphs,
                plan.ctx_size_tokens,
                proposer,
                scheduler.states.num_verified,
                setup.host_layers,
                is_on_gpu=setup.back_end.gpu is not None,
            ),
            graphs=graphs,
            checkpoint=setup.checkpoint,
            store=store,
            tunings=_tunings(setup, decoder, cache, graphs),
            grammars=Grammars(
                None if setup.checkpoint is None else path, decoder.config.vocab_size
            ),
            forced=ForcedTokens(scheduler, plan.ctx_size_tokens, graphs),
        )
    )


def _state_slots(num_slots: int, setup: EngineSetup, ranks: Communicator) -> StateSlots:
    """Return the slots of states; some are for proposed tokens, if steps can verify them."""
    has_spares = setup.back_end.has_spare_states
    num_verified = min(MAX_VERIFIED, (num_slots - 1) // 3)  # the others keep more turns
    if has_spares and ranks.size > 1:  # see `build_graphs`
        num_verified = 0
    return StateSlots(
        num_slots, setup.config.block_size, has_spares=has_spares, num_verified=num_verified
    )


def _estimated_bytes(setup: EngineSetup) -> int | None:
    """Estimate `weights_bytes` of `_plan_cache` before loading; 0 for quantized dummy weights."""
    if setup.placement is not None:
        return setup.placement.gpu_bytes
    if not (setup.is_quantized and setup.factory.keeps_quantized):
        return None
    if setup.checkpoint is None:
        return 0
    return resident_estimate(setup.shard, setup.checkpoint, setup.dtype, setup.device)


def _device_bytes(setup: EngineSetup, weights: DecoderWeights) -> int:
    """Return the bytes of the weights without the experts in main memory."""
    return resident_bytes(weights) - expert_bytes(weights, setup.host_layers)


def _plan_cache(
    setup: EngineSetup,
    weights_bytes: int | None,
    ranks: Communicator,
    stages: Pipeline,
    head_bytes_per_token: int,
) -> CachePlan:
    """Plan the KV cache: the largest that fits on every rank.

    `weights_bytes` is the size of quantized weights; None for weights that all have `setup.dtype`.
    """
    plan = setup.plan_cache(weights_bytes, setup.available_bytes, head_bytes_per_token)
    return CachePlan(
        _min_across_ranks(plan.num_blocks, ranks, stages),
        _min_across_ranks(plan.ctx_size_tokens, ranks, stages),
        _min_across_ranks(plan.num_states, ranks, stages),
    )


def _min_across_ranks(number: int, ranks: Communicator, stages: Pipeline) -> int:
    return min(stages.gather_from_stages(ranks.min_across_ranks(number)))


def _load_weights(setup: EngineSetup, on_progress: OnProgress) -> DecoderWeights:
    shard = setup.shard
    if setup.checkpoint is None:
        return dummy_weights(
            shard.config,
            setup.dtype,
            setup.device,
            shard=shard,
            scheme=setup.dummy_scheme,
            factory=setup.factory,
        )
    return load_weights(
        shard.config,
        setup.checkpoint,
        setup.dtype,
        setup.device,
        lambda done, total: on_progress("loading weights", done, total),
        shard,
        setup.factory,
    )


def _build_decoder(
    setup: EngineSetup,
    weights: DecoderWeights,
    plan: CachePlan,
    ranks: Communicator,
    stages: Pipeline,
    hidden_layers: Collection[int],
) -> tuple[EngineSetup, Decoder, KVCache]:
    """Build the decoder of the back end, and its cache; heads read hidden states of some layers.

    Torch's operators compute a model that the native kernels cannot record; the setup that is
    returned says so.
    """
    parts = DecoderParts(
        setup.shard,
        weights,
        ranks,
        stages,
        lambda heads_first: setup.new_cache(plan, heads_first=heads_first),
        plan.ctx_size_tokens,
        max_tokens=setup.chunk_tokens + setup.config.max_num_seqs,
        max_num_seqs=setup.config.max_num_seqs,
        hidden_layers=hidden_layers,
    )
    try:
        return setup, *setup.back_end.decoder(parts)
    except CannotRecordError as error:
        description = f"{setup.back_end.description} for matmuls, torch for the rest: {error}"
        by_torch = TorchBackEnd(setup.device, description, setup.factory)
        return replace(setup, back_end=by_torch), *by_torch.decoder(parts)


def _tunings(setup: EngineSetup, decoder: Decoder, cache: KVCache, graphs: Graphs) -> Tunings:
    has_graphs = graphs.decode is not None and decoder.config.mixer is None
    captured = graphs.decode.graphs if graphs.decode is not None and has_graphs else None
    return Tunings(decoder, cache, setup.shard, setup.checkpoint, setup.device, captured)


def _engine_info(
    setup: EngineSetup,
    decoder: Decoder,
    cache: KVCache,
    plan: CachePlan,
    started: float,
) -> EngineInfo:
    """Describe the loaded model and its memory, summed over all stages."""
    config, weights, stages = setup.config, decoder.weights, decoder.stages
    dtype = dtype_name(setup.dtype)
    is_dequantized = setup.is_quantized and not has_quantized(weights)
    checkpoint = setup.checkpoint
    unread = [] if checkpoint is None else checkpoint.unread
    placed = "" if setup.placement is None else setup.placement.description
    notes = cpu_note(config.device, setup.device), placed, unread_note(unread)
    return EngineInfo(
        device=describe_device(setup.device, setup.back_end.description, is_dequantized),
        dtype=dtype,
        num_parameters=sum(math.prod(s) for s in expected_tensors(setup.shard.config).values()),
        weights_bytes=sum(stages.gather_from_stages(resident_bytes(weights))),
        table_bytes=sum(stages.gather_from_stages(table_bytes(weights, stages.is_last))),
        expert_bytes=sum(stages.gather_from_stages(expert_bytes(weights))),
        host_bytes=resident_bytes(weights) - _device_bytes(setup, weights),
        cache_tokens=plan.num_blocks * config.block_size,
        kv_dtype=dtype if config.kv_dtype == "auto" else config.kv_dtype,
        cache_bytes=sum(stages.gather_from_stages(cache.num_bytes)),
        workspace_bytes=decoder.workspace_bytes,
        ctx_size_tokens=plan.ctx_size_tokens,
        num_threads=setup.num_threads,
        load_s=time.perf_counter() - started,
        tp=decoder.ranks.size,
        pp=stages.size,
        unread_input_scales=0 if checkpoint is None else checkpoint.unread_input_scales,
        note="; ".join(filter(None, notes)),
    )

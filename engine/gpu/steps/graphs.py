"""The CUDA graphs of an engine: compile its kernels and capture its decode step."""

from dataclasses import dataclass

import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.gpu.capture import compile_kernels
from swiftchat.engine.gpu.graph_sizes import DECODE_ROWS
from swiftchat.engine.gpu.inputs.decode_batch import DecodeBatch
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.gpu.steps.async_decode import AsyncDecode
from swiftchat.engine.gpu.steps.decode_graphs import DecodeGraphs
from swiftchat.engine.gpu.steps.pipeline_decode import PipelineDecode
from swiftchat.engine.gpu.steps.prefill_graphs import PrefillGraphs
from swiftchat.engine.gpu.steps.verification import VERIFIED_ROWS, Verification
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.schedule.sequence import Row, Step, TokenSequence
from swiftchat.engine.steps.runner import StepInputs, StepRunner


@dataclass(frozen=True)
class Graphs:
    """What replays captured steps; None: these steps are never captured.

    With several pipeline stages `pipeline` takes the place of `decode`. A MoE model whose experts
    the kernels cannot select has none: the host must route each step.
    """

    decode: AsyncDecode | None = None
    pipeline: PipelineDecode | None = None
    prefill: PrefillGraphs | None = None
    verification: Verification | None = None

    @property
    def replays_steps(self) -> bool:
        """Whether decode steps are captured."""
        return self.decode is not None or self.pipeline is not None

    def runners(self, tunings: StepRunner, plain: StepRunner) -> list[StepRunner]:
        """Return the step runners of an engine, in the order in which they are asked.

        `tunings` computes steps with adapters and soft prompts, `plain` all that are left.
        """
        runners = self.verification, self.decode, self.pipeline, tunings, self.prefill, plain
        return [runner for runner in runners if runner is not None]


@torch.inference_mode()
def build_graphs(
    decoder: Decoder,
    ops: CudaOps,
    cache: KVCache,
    scheduler: Scheduler,
    ctx_size_tokens: int,
    on_progress: OnProgress,
) -> Graphs:
    """Compile the kernels of a single conversation on all cores and capture its decode step.

    The cache must not be in use yet.
    """
    max_blocks = -(-ctx_size_tokens // cache.block_size)
    sizes = max_blocks, cache.block_size, decoder.config.vocab_size
    decode_steps: DecodeGraphs | None = None
    verified_steps: DecodeGraphs | None = None
    prefill: PrefillGraphs | None = None
    if _computes_experts(decoder, ops):
        max_rows = min(scheduler.max_num_seqs, DECODE_ROWS[-1])
        batch = DecodeBatch(ops.gpu, max_rows, *sizes, cache.states.layers)
        decode_steps = DecodeGraphs(decoder, ops, cache, batch)
        if _can_verify(decoder):
            batch = DecodeBatch(ops.gpu, VERIFIED_ROWS[-1], *sizes, cache.states.layers)
            verified_steps = DecodeGraphs(
                decoder, ops, cache, batch, VERIFIED_ROWS, shares_blocks=True
            )
            if not verified_steps.exchanges_directly:
                verified_steps = None
        if decoder.config.mixer is None or ops.mixers.scans:
            prefill = PrefillGraphs(decoder, ops, cache, scheduler.chunk_tokens, max_blocks)

    def launch() -> None:
        if decode_steps is None:
            decoder.forward(_prompt(1, cache.block_size).batch, cache)
        else:
            decode_steps.launch_kernels(1)
        if verified_steps is not None:
            for num_rows in VERIFIED_ROWS:
                verified_steps.launch_kernels(num_rows)
        decoder.forward(_prompt(32, cache.block_size).batch, cache)
        if prefill is not None:
            prefill.compute(_prompt(32, cache.block_size))

    compile_kernels(
        ops.gpu, launch, lambda done, total: on_progress("compiling kernels", done, total)
    )
    if decode_steps is None:
        return Graphs()
    decode_steps.graph(1)
    if verified_steps is not None and decoder.ranks.size > 1:
        # Later, one rank alone might have no memory for them, and compute another step.
        for num_rows in VERIFIED_ROWS:
            verified_steps.graph(num_rows)
    if decoder.stages.size > 1:
        return Graphs(pipeline=PipelineDecode(decode_steps, decoder.stages), prefill=prefill)
    # With several ranks, the graph's logits are those of all ranks, which the sampler gathers.
    has_logits = decoder.ranks.size == 1
    decode = AsyncDecode(decode_steps, scheduler, ctx_size_tokens, has_logits=has_logits)
    verification = None if verified_steps is None else Verification(verified_steps)
    return Graphs(decode=decode, prefill=prefill, verification=verification)


def _computes_experts(decoder: Decoder, ops: CudaOps) -> bool:
    """Return whether all ranks and stages compute the experts of their layers in kernels."""
    own = ops.computes_experts(decoder.weights.layers)
    everywhere = decoder.ranks.min_across_ranks(int(own))
    return min(decoder.stages.gather_from_stages(everywhere)) > 0


def _can_verify(decoder: Decoder) -> bool:
    """Return whether captured steps can verify proposed tokens: not those of several stages.

    Several ranks can if all of them use their peer buffers alone, which mixers with a state do not.
    """
    has_states = decoder.config.mixer is not None
    return decoder.stages.size == 1 and not (decoder.ranks.size > 1 and has_states)


def _prompt(num_tokens: int, block_size: int) -> StepInputs:
    """Return the step of a prompt in the first blocks and slots of states, not used yet."""
    prompt = TokenSequence(0, [0] * num_tokens, SamplingParams())
    prompt.state_slot, prompt.spare_slot = 0, 1
    prompt.block_table = [0] * -(-num_tokens // block_size)
    return StepInputs(Step([Row(prompt, num_tokens)], []), [0], block_size)

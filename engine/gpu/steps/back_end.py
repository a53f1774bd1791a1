"""The back end of the project's kernels on a GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch

from swiftchat.cuda.cubin_cache import CubinCache
from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.nvrtc import OLDEST_CAPABILITY, has_bindings
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.gpu.graph_sizes import DECODE_ROWS, prefill_sizes
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.moe import ExpertKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.gpu.steps.graphs import Graphs, build_graphs
from swiftchat.engine.gpu.steps.head_chain import HeadChain
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import dtype_name
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import workspace_bytes
from swiftchat.engine.model.prediction_head import Chain, PredictionHead
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.chunk import ChunkLimit, gpu_chunk_limit
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class GpuBackEnd:
    """Computes with our kernels and cuBLAS."""

    kernels: LinearKernels

    # Every step dequantizes packed weights, so large ones take less time.
    default_chunk_tokens: ClassVar[int] = 4096
    is_reference: ClassVar[bool] = False
    has_spare_states: ClassVar[bool] = True

    @classmethod
    def open(
        cls,
        device: torch.device,
        config: EngineConfig,
        shape: ModelConfig,
        dtype: torch.dtype,
        cubins: Path | None,
    ) -> Self | str:
        """Return the back end of a GPU for a model, or why torch's operators compute it there.

        Compiled kernels are cached in the folder `cubins`, if given.
        """
        if not config.kernels:
            return "switched off"
        if not has_bindings():
            return "cuda-python is missing"
        if torch.cuda.get_device_capability(device) < OLDEST_CAPABILITY:
            return "the kernels need compute capability {}.{}".format(*OLDEST_CAPABILITY)
        if not kernels_cover(shape, dtype, config.kv_dtype):
            return f"the kernels do not compute {shape.architecture} in {dtype_name(dtype)}"
        if config.block_size < 4 or config.block_size & (config.block_size - 1):
            return "the kernels need a block size that is a power of 2 and at least 4"
        return cls(LinearKernels(Gpu(device, CubinCache(cubins)), shape.hidden_size))

    @property
    def description(self) -> str:
        return ""

    @property
    def factory(self) -> WeightFactory:
        return KernelWeights(self.kernels)

    @property
    def gpu(self) -> Gpu:
        return self.kernels.gpu

    def workspace_bytes(
        self, config: ModelConfig, dtype: torch.dtype, chunk_tokens: int, max_num_seqs: int
    ) -> int:
        # Captured chunks have activations of their own.
        num_tokens = chunk_tokens + prefill_sizes(config)[-1]
        return workspace_bytes(config, num_tokens, dtype, min(max_num_seqs, DECODE_ROWS[-1]))

    def chunk_limit(self, max_tokens: int) -> ChunkLimit:
        return gpu_chunk_limit(max_tokens)

    def decoder(self, parts: DecoderParts) -> tuple[Decoder, KVCache]:
        """As `BackEnd.decoder`; allocates the peer buffers of the ranks."""
        shard, ranks = parts.shard, parts.ranks
        sizes = parts.ctx_size_tokens, parts.max_num_seqs
        ops = CudaOps(self.kernels, shard, *sizes, self.experts(parts))
        if isinstance(ranks, GpuCommunicator):
            ranks.allocate_peer_buffers(self.gpu, shard.config)
        decoder = Decoder(shard.local_config, parts.weights, ops, ranks, parts.stages)
        return decoder, parts.new_cache(ops.heads_first)

    def experts(self, parts: DecoderParts) -> ExpertKernels:
        """Return what computes the experts of a rank's layers."""
        return ExpertKernels(self.kernels, parts.shard.local_config)

    def graphs(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        ctx_size_tokens: int,
        on_progress: OnProgress,
    ) -> Graphs:
        return build_graphs(decoder, _ops(decoder), cache, scheduler, ctx_size_tokens, on_progress)

    def head_ops(
        self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int
    ) -> CudaOps | None:
        if not kernels_cover(config, weights.dtype) or len(weights.embed.kernel_matrices) != 1:
            return None
        kernels = LinearKernels(self.gpu, config.hidden_size)
        return CudaOps(kernels, Shard(config), ctx_size_tokens, max_num_seqs=1)

    def head_chain(self, head: PredictionHead, ctx_size_tokens: int) -> Chain | None:
        ops = _ops(head.decoder)
        if not ops.heads_first or not ops.computes_experts(head.decoder.weights.layers):
            return None
        return HeadChain(head, ops, ctx_size_tokens).chain


def _ops(decoder: Decoder) -> CudaOps:
    """Return the operations of a decoder of this back end."""
    assert isinstance(decoder.ops, CudaOps)
    return decoder.ops

"""The back end of the project's kernels on a GPU."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.comm.gpu_communicator import GpuCommunicator
from swiftchat.engine.gpu.graph_sizes import DECODE_ROWS, prefill_sizes
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.back_end import DecoderParts
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import workspace_bytes
from swiftchat.engine.schedule.chunk import ChunkLimit, gpu_chunk_limit
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class GpuBackEnd:
    """Computes with our kernels and cuBLAS."""

    kernels: LinearKernels

    # Every step dequantizes packed weights, so large ones take less time.
    default_chunk_tokens: ClassVar[int] = 4096
    is_reference: ClassVar[bool] = False
    has_spare_states: ClassVar[bool] = True
    description: ClassVar[str] = ""

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
        ops = CudaOps(self.kernels, shard, parts.ctx_size_tokens, parts.max_num_seqs)
        if isinstance(ranks, GpuCommunicator):
            ranks.allocate_peer_buffers(self.gpu, shard.config)
        decoder = Decoder(shard.local_config, parts.weights, ops, ranks, parts.stages)
        return decoder, parts.new_cache(ops.heads_first)

"""The back end of torch's operators."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.back_end import DecoderParts
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.schedule.chunk import ChunkLimit, gpu_chunk_limit
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class TorchBackEnd:
    """Computes every model on every device; `description` says why no kernels do."""

    device: torch.device
    description: str
    factory: WeightFactory

    is_reference: ClassVar[bool] = True
    has_spare_states: ClassVar[bool] = False
    default_chunk_tokens: ClassVar[int] = 512
    gpu: ClassVar[None] = None

    def workspace_bytes(
        self, config: ModelConfig, dtype: torch.dtype, chunk_tokens: int, max_num_seqs: int
    ) -> int:
        return 0

    def chunk_limit(self, max_tokens: int) -> ChunkLimit | None:
        return gpu_chunk_limit(max_tokens) if self.device.type == "cuda" else None

    def decoder(self, parts: DecoderParts) -> tuple[Decoder, KVCache]:
        shard = parts.shard
        ops = TorchOps(shard.local_config, parts.ctx_size_tokens, self.device, shard)
        decoder = Decoder(shard.local_config, parts.weights, ops, parts.ranks, parts.stages)
        return decoder, parts.new_cache(ops.heads_first)

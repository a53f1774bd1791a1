"""The back end of torch's operators."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.prediction_head import PredictionHead
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.schedule.chunk import ChunkLimit, gpu_chunk_limit
from swiftchat.engine.schedule.scheduler import Scheduler
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

    def graphs(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        ctx_size_tokens: int,
        on_progress: OnProgress,
    ) -> None:
        return

    def head_ops(
        self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int
    ) -> TorchOps:
        return TorchOps(config, ctx_size_tokens, self.device)

    def head_chain(self, head: PredictionHead, ctx_size_tokens: int) -> None:
        return

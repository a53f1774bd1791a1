"""The back end of the native kernels: the threads of one engine, its weights, its decoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.cpu.library import choose_kernels
from swiftchat.engine.cpu.native_decoder import NativeDecoder
from swiftchat.engine.cpu.native_weights import NativeWeights
from swiftchat.engine.cpu.program import Pool
from swiftchat.engine.cpu.recorded_activations import CannotRecordError
from swiftchat.engine.cpu.self_test import self_test
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.memory import native_workspace_bytes
from swiftchat.engine.model.prediction_head import PredictionHead
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.schedule.chunk import ChunkLimit, cpu_chunk_limit
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.weights.architectures.parts.model import ModelConfig


@dataclass(frozen=True)
class NativeBackEnd:
    """Computes with a variant of the native kernels; `factory` makes its weights."""

    variant: str
    pool: Pool
    factory: NativeWeights

    is_reference: ClassVar[bool] = False
    has_spare_states: ClassVar[bool] = False
    default_chunk_tokens: ClassVar[int] = 512
    gpu: ClassVar[None] = None

    @classmethod
    def open(cls, environ: Mapping[str, str], num_threads: int) -> "NativeBackEnd | str":
        """Choose the variant, start its threads and test it; return the reason without kernels.

        Raises as `choose_kernels` does, and `MemoryError`.
        """
        choice = choose_kernels(environ)
        if choice.library is None or choice.variant is None:
            return choice.reason
        pool = Pool(choice.library, num_threads)
        if fault := self_test(pool):
            pool.close()
            return f"the {choice.variant} kernels failed their test: {fault}"
        return cls(choice.variant, pool, NativeWeights(pool))

    @property
    def description(self) -> str:
        return f"{self.variant} kernels"

    def workspace_bytes(
        self, config: ModelConfig, dtype: torch.dtype, chunk_tokens: int, max_num_seqs: int
    ) -> int:
        return native_workspace_bytes(config, chunk_tokens + max_num_seqs, max_num_seqs)

    def chunk_limit(self, max_tokens: int) -> ChunkLimit:
        return cpu_chunk_limit(max_tokens)

    def decoder(self, parts: DecoderParts) -> tuple[Decoder, KVCache]:
        """As `BackEnd.decoder`; torch's operators have one thread from then on.

        Raises `CannotRecordError` for several ranks, and as `NativeDecoder` does.
        """
        if parts.ranks.size * parts.stages.size > 1:
            raise CannotRecordError("there are several ranks")
        cache, config = parts.new_cache(True), parts.shard.local_config
        decoder = NativeDecoder(
            config,
            parts.weights,
            cache,
            parts.ctx_size_tokens,
            self.pool,
            parts.hidden_layers,
        )
        decoder.reserve(parts.max_tokens, parts.max_num_seqs)
        # The kernels' threads compute everything but sampling; torch's would take their cores.
        torch.set_num_threads(1)
        return decoder, cache

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
        return TorchOps(config, ctx_size_tokens, torch.device("cpu"))

    def head_chain(self, head: PredictionHead, ctx_size_tokens: int) -> None:
        return

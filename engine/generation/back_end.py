"""The interface of a back end: how a device computes a model."""

from typing import Protocol

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.api.protocol import OnProgress
from swiftchat.engine.gpu.steps.graphs import Graphs
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.decoder_parts import DecoderParts
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.prediction_head import Chain, PredictionHead
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.chunk import ChunkLimit
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.weights.architectures.parts.model import ModelConfig


class BackEnd(Protocol):
    """How a device computes a model: which weights it multiplies with, and by which operations."""

    @property
    def is_reference(self) -> bool:
        """Whether torch's operators compute, which take several times as long as kernels."""

    @property
    def has_spare_states(self) -> bool:
        """Whether a step may write the states of sequences to other slots than it reads."""

    @property
    def default_chunk_tokens(self) -> int:
        """The default number of tokens of a prefill step."""

    @property
    def factory(self) -> WeightFactory:
        """What makes its weights."""

    @property
    def description(self) -> str:
        """What computes besides the device, for `describe_device`."""

    @property
    def gpu(self) -> Gpu | None:
        """The GPU on which our kernels compute, if they do."""

    def workspace_bytes(
        self, config: ModelConfig, dtype: torch.dtype, chunk_tokens: int, max_num_seqs: int
    ) -> int:
        """Return an upper estimate of the activations of a forward pass; 0 for torch's."""

    def chunk_limit(self, max_tokens: int) -> ChunkLimit | None:
        """Return what adapts the size of prefill steps, if anything does."""

    def decoder(self, parts: DecoderParts) -> tuple[Decoder, KVCache]:
        """Return the decoder of a rank, and its cache."""

    def graphs(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        ctx_size_tokens: int,
        on_progress: OnProgress,
    ) -> Graphs | None:
        """Capture the steps of its decoder, whose cache is not used yet; None: it captures none."""

    def head_ops(
        self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int
    ) -> Ops | None:
        """Return what computes the layer of a prediction head; None: nothing here does."""

    def head_chain(self, head: PredictionHead, ctx_size_tokens: int) -> Chain | None:
        """Return what computes a head's chain without the host, whose layer `head_ops` computes."""

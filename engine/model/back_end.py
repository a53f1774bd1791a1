"""The interface of a back end: how a device computes a model."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.comm.pipeline import Pipeline
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.schedule.chunk import ChunkLimit
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class DecoderParts:
    """What a back end makes the decoder of one rank of.

    `new_cache` allocates the KV cache in a layout, `heads_first` or not. Batches have at most
    `max_tokens` tokens and `max_num_seqs` sequences. Hidden states of `hidden_layers` are read.
    """

    shard: Shard
    weights: DecoderWeights
    ranks: Communicator
    stages: Pipeline
    new_cache: Callable[[bool], KVCache]
    ctx_size_tokens: int
    max_tokens: int
    max_num_seqs: int
    hidden_layers: Collection[int] = ()


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

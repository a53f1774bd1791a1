"""The layer for multi-token prediction that ships with a model, and its KV cache."""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.engine.speculation.chain import SteppedLayer
from swiftchat.weights.architectures.parts.model import ModelConfig

_BLOCK_TOKENS = 64
_FIRST_BLOCKS = 4


class MtpCache:
    """A `ChainCache` whose blocks belong to one sequence."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.positions: list[int] = []
        self._config, self._dtype, self._device = config, dtype, device
        self.blocks = self._allocated(_FIRST_BLOCKS)

    def append(self, ids: Sequence[int], positions: Sequence[int]) -> Batch:
        """Make room for tokens; return the batch that computes them after those in the cache."""
        start, end = len(self.positions), len(self.positions) + len(ids)
        if end > self._num_blocks * _BLOCK_TOKENS:
            grown = self._allocated(max(2 * self._num_blocks, -(-end // _BLOCK_TOKENS)))
            grown.tensors[0][:, : self._num_blocks] = self.blocks.tensors[0]
            self.blocks = grown
        self.positions += positions
        table = list(range(self._num_blocks))
        span = Span(0, len(ids), end, table)
        slots = list(range(start, end))
        return Batch(list(ids), list(positions), slots, list(range(len(ids))), [span], [])

    def reserve(self, num_tokens: int) -> bool:
        return True  # `append` allocates

    def truncate(self, position: int) -> None:
        del self.positions[bisect_left(self.positions, position) :]

    def before(self, position: int) -> Self:
        copy = type(self)(self._config, self._dtype, self._device)
        copy.positions = self.positions[: bisect_left(self.positions, position)]
        copy.blocks = copy._allocated(self._num_blocks)
        copy.blocks.tensors[0].copy_(self.blocks.tensors[0])
        return copy

    @property
    def _num_blocks(self) -> int:
        return self.blocks.tensors[0].shape[1]

    def _allocated(self, num_blocks: int) -> KVCache:
        return KVCache(self._config, num_blocks, _BLOCK_TOKENS, self._dtype, self._device)


class MtpLayer(SteppedLayer):
    """A `ChainLayer`: a decoder of one layer, behind a projection of embeddings and hidden states.

    It reads what the model's last norm makes of the last layer's output; `model_norm` are the
    weights of that norm. With `chains_normed` it reads its own output after its last norm, too.
    """

    name = "mtp"

    def __init__(
        self,
        decoder: Decoder,
        num_layers: int,
        model_norm: Tensor,
        embedding_norm: Tensor,
        hidden_norm: Tensor,
        projection: LinearWeight,
        *,
        chains_normed: bool = False,
    ) -> None:
        self._chains_normed = chains_normed
        self._decoder, self._num_layers, self._model_norm = decoder, num_layers, model_norm.float()
        self._embedding_norm, self._hidden_norm = embedding_norm.float(), hidden_norm.float()
        self._projection = projection

    @property
    def hidden_layers(self) -> Collection[int]:
        return (self._num_layers,)

    def new_cache(self) -> MtpCache:
        device = self._model_norm.device
        return MtpCache(self._decoder.config, self._decoder.weights.dtype, device)

    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return hidden[self._num_layers]

    def features(self, joined: Tensor) -> Tensor:
        return self._norm(joined, self._model_norm)

    @property
    def hidden_size(self) -> int:
        return self._decoder.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self._decoder.weights.lm_head.shape[0]

    def forward(self, x: Tensor, ids: Tensor, positions: range, cache: Any) -> Tensor:
        batch = cache.append(ids.tolist(), positions)
        return self.after(self._decoder.ops.plan(batch, cache.blocks), x, cache.blocks)

    def after(self, plan: Any, x: Tensor, blocks: KVCache) -> Tensor:
        """Return the hidden states after the tokens of a plan of the decoder's operations."""
        decoder = self._decoder
        embeddings = self._norm(decoder.embed(plan), self._embedding_norm)
        both = torch.cat([embeddings, self._norm(x, self._hidden_norm)], 1)
        out = self._projection.matmul_fp32(both.to(self._projection.dtype))
        decoder.forward_layers(plan, out, blocks)  # in place
        return self._last_norm(out) if self._chains_normed else out

    def token(self, x: Tensor) -> Tensor:
        return self.logits(x).argmax(1)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits after hidden states [n, hidden_size], fp32 [n, vocab_size]."""
        lm_head = self._decoder.weights.lm_head
        normed = x if self._chains_normed else self._last_norm(x)
        return lm_head.matmul_fp32(normed.to(lm_head.dtype))

    def _last_norm(self, x: Tensor) -> Tensor:
        weight = self._decoder.weights.final_norm
        assert weight is not None
        return self._norm(x, weight.float())

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        config = self._decoder.config
        return F.rms_norm(x, weight.shape, weight + float(config.norm.unit_offset), config.norm.eps)

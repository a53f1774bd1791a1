"""The layer of an EAGLE-3 head, and its KV cache."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.speculation.chain import SteppedLayer
from swiftchat.weights.heads.eagle3 import Eagle3Config

_FIRST_CAPACITY = 256


class HeadCache:
    """A `ChainCache`, fp32 [2, tokens, num_kv_heads, head_dim]."""

    def __init__(self, num_kv_heads: int, head_dim: int, device: torch.device) -> None:
        self.positions: list[int] = []
        self._memory = torch.empty(2, 0, num_kv_heads, head_dim, device=device)

    def append(self, positions: Sequence[int], keys_values: Tensor) -> Tensor:
        """Add those of new tokens, [2, n, …]; return all of them."""
        start, end = len(self.positions), len(self.positions) + len(positions)
        if end > self._memory.shape[1]:
            grown = self._memory.new_empty(
                2, max(_FIRST_CAPACITY, 2 * end), *self._memory.shape[2:]
            )
            grown[:, :start] = self._memory[:, :start]
            self._memory = grown
        self._memory[:, start:end] = keys_values
        self.positions += positions
        return self._memory[:, :end]

    def reserve(self, num_tokens: int) -> bool:
        return True  # `append` allocates

    def truncate(self, position: int) -> None:
        del self.positions[bisect_left(self.positions, position) :]

    def before(self, position: int) -> Self:
        num_kv_heads, head_dim = self._memory.shape[2:]
        copy = type(self)(num_kv_heads, head_dim, self._memory.device)
        end = bisect_left(self.positions, position)
        copy.append(self.positions[:end], self._memory[:, :end])
        return copy


@dataclass(frozen=True)
class Eagle3Layer(SteppedLayer):
    """A `ChainLayer`: the weights of a head, matrices [out, in], and what it computes with them.

    All tensors are on one device. `cos_sin` are the angles of all positions as `cos_sin_table`
    returns them; `embed` returns the embeddings of ids, fp32 [n, hidden_size].
    """

    config: Eagle3Config
    token_ids: Tensor
    cos_sin: Tensor
    embed: Callable[[Tensor], Tensor]
    fc: LinearWeight
    input_norm: Tensor
    hidden_norm: Tensor
    qkv: LinearWeight
    o: LinearWeight
    mlp_norm: Tensor
    gate_up: LinearWeight
    down: LinearWeight
    norm: Tensor
    lm_head: LinearWeight

    @property
    def name(self) -> str:
        return "eagle3"

    @property
    def hidden_layers(self) -> Collection[int]:
        return self.config.hidden_layers

    def new_cache(self) -> HeadCache:
        return HeadCache(self.config.num_kv_heads, self.config.head_dim, self._device)

    @property
    def _device(self) -> torch.device:
        return self.cos_sin.device

    def join(self, hidden: Mapping[int, Tensor]) -> Tensor:
        return torch.cat([hidden[layer] for layer in self.config.hidden_layers], 1)

    def features(self, joined: Tensor) -> Tensor:
        return _linear(self.fc, joined)

    def forward(self, x: Tensor, ids: Tensor, positions: range, cache: HeadCache) -> Tensor:
        normed = self._norm(x, self.hidden_norm)
        residual = normed if self.config.norm_before_residual else x
        embeddings = self._norm(self.embed(ids), self.input_norm)
        x = residual + self._attention(torch.cat([embeddings, normed], 1), positions, cache)
        gate, up = _linear(self.gate_up, self._norm(x, self.mlp_norm)).chunk(2, 1)
        return x + _linear(self.down, F.silu(gate) * up)

    def token(self, x: Tensor) -> Tensor:
        logits = _linear(self.lm_head, self._norm(x, self.norm))
        return self.token_ids[logits.argmax(1)]

    def _attention(self, x: Tensor, positions: range, cache: HeadCache) -> Tensor:
        config, n = self.config, len(positions)
        heads = _linear(self.qkv, x).view(n, -1, config.head_dim)
        end = config.num_heads + config.num_kv_heads
        rotated = self._rotate(heads[:, :end], positions)
        queries, keys = rotated.tensor_split((config.num_heads,), 1)
        num_known = len(cache.positions)
        keys, values = cache.append(positions, torch.stack([keys, heads[:, end:]]))
        # Query i sees the tokens that were known before, and the new ones up to its own.
        mask: Tensor | None = None
        if n > 1:
            mask = torch.ones(n, len(keys), dtype=torch.bool, device=self._device).tril_(num_known)
        out = F.scaled_dot_product_attention(
            queries.transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            attn_mask=mask,
            enable_gqa=True,
        )
        return _linear(self.o, out.transpose(0, 1).reshape(n, -1))

    def _rotate(self, x: Tensor, positions: range) -> Tensor:
        """Rotate the pairs of elements j and j + head_dim / 2 of x [n, heads, head_dim]."""
        rows = self.cos_sin[positions.start : positions.stop]
        cos, sin = rows.unsqueeze(1).chunk(2, -1)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)


def _linear(weight: LinearWeight, x: Tensor) -> Tensor:
    return weight.matmul_fp32(x.to(weight.dtype))

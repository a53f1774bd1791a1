"""The decoder's operations as torch calls: for the CPU, and for GPUs our kernels do not cover.

They are also the reference for the kernels. Activations are packed: one row a token. Products
accumulate in fp32 whatever the dtype.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.attention import AttentionPlan, alibi_slopes, attention, plan_attention
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.moe import Experts, mixture
from swiftchat.engine.model.norms import RmsNorms, layer_norm, norm_heads_
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.config import ModelConfig, RopeConfig
from swiftchat.weights.parallel.tensor_parallel import Shard

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": F.silu,
        "relu": F.relu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        # An approximation of GELU too (Hendrycks and Gimpel, 2016, arXiv:1606.08415).
        "gelu_sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
    }
)


class TorchOps:
    """The operations of one model on one device, as `decoder.Ops` describes them.

    With `share` those of one rank, and `config` is `share.local_config`.
    """

    heads_first = False

    def __init__(
        self,
        config: ModelConfig,
        ctx_size_tokens: int,
        device: torch.device,
        share: Shard | None = None,
    ) -> None:
        share = share or Shard(config)
        self._config = config
        self._device = device
        self._rms_norms = RmsNorms(config, device)
        self._activation = ACTIVATIONS[config.activation]
        self._angles = [
            _signed_angles(rope, config.head_dim, ctx_size_tokens, device)
            for rope in (config.rope, config.local_rope)
            if rope is not None
        ]
        self._slopes: Tensor | None = None
        if config.alibi:
            self._slopes = alibi_slopes(share.config)[slice(*share.heads)].to(device)
        self._first_id = share.vocab[0]

    def plan(self, batch: Batch, cache: KVCache) -> "TorchPlan":
        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        def reading(window: int | None) -> list[AttentionPlan]:
            return plan_attention(batch.spans, cache, window, self._device, self._slopes)

        config, positions = self._config, tensor(batch.positions)
        attention = reading(config.sliding_window)
        if config.rope is not None and config.rope.two_dimensional:
            first, second = zip(*batch.position_pairs(), strict=True)
            angles = [_halves(t[tensor(first)], t[tensor(second)]) for t in self._angles]
        else:
            angles = [table[positions] for table in self._angles]
        return TorchPlan(
            ids=tensor(batch.ids),
            slots=tensor(batch.slot_mapping),
            places=places(cache, batch.slot_mapping),
            positions=positions,
            angles=[t.unsqueeze(2).unbind(1) for t in angles],
            logits_indices=tensor(batch.logits_indices),
            attention=attention,
            full_attention=reading(None) if config.full_layers else attention,
        )

    def embed(self, plan: "TorchPlan", table: LinearWeight) -> Tensor:
        if table.shape[0] == self._config.vocab_size:
            return table.rows(plan.ids).float()
        # Of the other ranks' ids this one has nothing to add to the sum.
        own = plan.ids - self._first_id
        others = (own < 0) | (own >= table.shape[0])
        rows = table.rows(own.masked_fill_(others, 0)).float()
        return rows.masked_fill_(others.unsqueeze(1), 0.0)

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None:
            x += delta
        if self._config.norm == "layer":
            return layer_norm(x, weight, bias, self._config.norm_eps).to(weight.dtype)
        return self._rms_norms.normed(x, weight).to(weight.dtype)

    def add_normed_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        x += self._rms_norms.normed(delta.float(), weight)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return weight.matmul(x, bias)

    def attend(
        self,
        plan: "TorchPlan",
        layer: int,
        qkv: Tensor,
        kv: LayerKV,
        norms: tuple[Tensor, Tensor] | None,
        sinks: Tensor | None,
    ) -> Tensor:
        config = self._config
        if norms is not None:
            norm_heads_(qkv, *norms, config)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        queries, new = heads.tensor_split((config.num_heads,), 1)
        if plan.angles and layer not in config.unrotated_layers:
            # Of two tables, the second is for the layers that have a window.
            cos, sin = plan.angles[0 if config.window(layer) is None else -1]
            rotate_(heads.narrow(1, 0, config.num_heads + config.num_kv_heads), cos, sin)
        store(plan, layer, kv, new)
        full = layer in config.full_layers
        return attention(
            queries,
            layer,
            kv,
            plan.full_attention if full else plan.attention,
            config.attention_scale,
            config.num_heads != config.num_kv_heads,
            config.attention_softcap,
            sinks,
        )

    def gate(self, gate_up: Tensor) -> Tensor:
        config = self._config
        if not config.gated:
            return self._activation(gate_up)
        if config.interleaved_gate:
            gate, up = gate_up[:, 0::2], gate_up[:, 1::2]
        else:
            gate, up = gate_up.chunk(2, dim=-1)
        if config.gate_limit is not None:
            gate, up = clamped(gate, up, config.gate_limit)
        return self._activation(gate).mul_(up)

    def mixture(self, layer: int, x: Tensor, experts: Experts) -> Tensor:
        return mixture(x, experts, self._config, self)

    def last_rows(self, plan: "TorchPlan", x: Tensor) -> Tensor:
        return x if len(plan.logits_indices) == len(x) else x[plan.logits_indices]

    def logits(self, x: Tensor, lm_head: LinearWeight) -> Tensor:
        return lm_head.matmul_fp32(x)

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        for source, destination in copies:
            if source != destination:
                for tensor in cache.tensors:
                    tensor[:, destination] = tensor[:, source]


def clamped(gate: Tensor, up: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """The gate at most `limit`; up within it on both sides, and one more.

    As the SwiGLU of OpenAI's gpt-oss reference code has it.
    """
    return gate.clamp(max=limit), up.clamp(-limit, limit).add_(1)


def _signed_angles(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """[positions, 2, head_dim], cosines and sines as `rotate_` wants them."""
    cos, sin = cos_sin_table(rope, head_dim, num_positions, device).chunk(2, dim=1)
    return torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1)


def _halves(first: Tensor, second: Tensor) -> Tensor:
    """Of two [n, 2, head_dim] of angles, each for its half of the pairs."""
    ours, theirs = (angles.view(len(angles), 2, 2, 2, -1) for angles in (first, second))
    return torch.cat([ours[..., :1, :], theirs[..., 1:, :]], -2).view(first.shape)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding, half-split layout, of x [n, heads, head_dim], in place, in fp32.

    `cos` and `sin` [n, 1, head_dim] are for both halves of a head, the sines of the first negated.
    """
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, -1)
    x.copy_(wide.mul_(cos).addcmul_(swapped, sin))


def places(cache: KVCache, slots: Sequence[int]) -> Sequence[Tensor] | None:
    """Each layer's slots as one view [n, 2 * kv_heads, head_dim], where they follow each other.

    None where they do not, or what is written into them is not what they hold.
    """
    first = slots[0]
    if cache.is_quantized or slots != list(range(first, first + len(slots))):
        return None
    return cache.stretch(first, len(slots)).unbind()


def store(plan: "TorchPlan", layer: int, cache: LayerKV, new: Tensor) -> None:
    """Write the plan's new [n, 2 * kv_heads, head_dim] into a layer's cache, in place."""
    if plan.places is not None:
        plan.places[layer].copy_(new)
    elif isinstance(cache, Tensor):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, plan.slots, new)
    else:
        cache.store(plan.slots, new)


@dataclass(frozen=True)
class TorchPlan:
    """A batch on the device: int64 `ids`, `positions` and `slots` [n], and `logits_indices`.

    `places` are as `places` makes them. `angles` [n, 1, d], cosines and sines, for each table there
    is; `full_attention` is for the layers without a window.
    """

    ids: Tensor
    positions: Tensor
    slots: Tensor
    places: Sequence[Tensor] | None
    angles: Sequence[Sequence[Tensor]]
    logits_indices: Tensor
    attention: list[AttentionPlan]
    full_attention: list[AttentionPlan]

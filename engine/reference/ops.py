"""The decoder's operations as torch calls: for the CPU, and for GPUs without our kernels.

They are also the reference for the kernels. Activations are packed, one row per token. Matmuls
accumulate in fp32 for every dtype.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.comm.communicator import Communicator
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.kv_cache import KVCache, LayerKV
from swiftchat.engine.model.mixer_weights import MixerInputs, MixerWeights
from swiftchat.engine.model.moe import Experts
from swiftchat.engine.model.norms import RmsNorms, layer_norm, norm_heads_, norm_values_
from swiftchat.engine.model.ops import AttentionInputs
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.model.rope import cos_sin_table, query_factors
from swiftchat.engine.model.state_cache import LayerStates, StateRows, plan_states
from swiftchat.engine.reference.activations import ACTIVATIONS, act_and_mul
from swiftchat.engine.reference.attention import (
    AttentionPlan,
    Visible,
    alibi_slopes,
    attention,
    plan_attention,
)
from swiftchat.engine.reference.elementwise import Elementwise
from swiftchat.engine.reference.latent_attention import LatentInputs, latent_attention, project
from swiftchat.engine.reference.mixers.mix import mix
from swiftchat.engine.reference.moe import moe
from swiftchat.engine.reference.per_layer import per_layer_embeddings
from swiftchat.engine.schedule.batch import Batch
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.parallel.tensor_parallel import Shard


@dataclass(frozen=True)
class TorchPlan:
    """A batch on the device: int64 `ids`, `positions`, `slot_mapping` [n], and `logits_indices`.

    `slot_views` are those of `slot_views()`. `cos_sin` has cosines and sines [n, 1, head_dim] for
    each table of angles; `attention` is planned for all that is `Scores.visible` in
    layers. `state_rows` are for the layers with a mixer, whose states are `states`; `kv_numbers`
    are the others' places in the cache.
    """

    ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    slot_views: Sequence[Tensor] | None
    cos_sin: Sequence[Sequence[Tensor]]
    logits_indices: Tensor
    attention: Mapping[Visible, list[AttentionPlan]]
    state_rows: list[StateRows]
    states: Mapping[int, LayerStates]
    kv_numbers: Mapping[int, int]


class TorchOps(Elementwise):
    """The operations of one model on one device, see `Ops`.

    With `shard` those of one rank; `config` is then `shard.local_config`.
    """

    heads_first = False

    def __init__(
        self,
        config: ModelConfig,
        ctx_size_tokens: int,
        device: torch.device,
        shard: Shard | None = None,
    ) -> None:
        shard = shard or Shard(config)
        self._config = config
        self._device = device
        self._rms_norms = RmsNorms(config, device)
        self._ropes = config.ropes
        self._cos_sin_tables = [
            _signed_cos_sin(rope, width, ctx_size_tokens, device) for rope, width in self._ropes
        ]
        slopes = alibi_slopes(shard.config)
        self._slopes = None if slopes is None else slopes[slice(*shard.heads)].to(device)
        self._first_id = shard.vocab[0]

    def plan(self, batch: Batch, cache: KVCache) -> TorchPlan:
        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=self._device)

        def attention_plans(visible: Visible) -> list[AttentionPlan]:
            return plan_attention(batch.spans, cache, visible, self._device, self._slopes)

        config, positions = self._config, tensor(batch.positions)
        visible = {each.scores.visible for each in config.attentions}
        if config.rope is not None and config.rope.two_dimensional:
            first, second = zip(*batch.position_pairs(), strict=True)
            rows = [_halves(t[tensor(first)], t[tensor(second)]) for t in self._cos_sin_tables]
        else:
            rows = [table[positions] for table in self._cos_sin_tables]
        return TorchPlan(
            ids=tensor(batch.ids),
            slot_mapping=tensor(batch.slot_mapping),
            slot_views=slot_views(cache, batch.slot_mapping),
            positions=positions,
            cos_sin=[t.unsqueeze(2).unbind(1) for t in rows],
            logits_indices=tensor(batch.logits_indices),
            attention={keys: attention_plans(keys) for keys in visible},
            state_rows=plan_states(batch.spans, self._device) if config.mixer is not None else [],
            states=cache.states.layers,
            kv_numbers=cache.numbers,
        )

    def embed(self, plan: TorchPlan, table: LinearWeight) -> Tensor:
        if table.shape[0] == self._config.vocab_size:
            return table.rows(plan.ids).float()
        # The other ranks look up the other ids; the all-reduce adds zeros for them.
        local_ids = plan.ids - self._first_id
        is_remote = (local_ids < 0) | (local_ids >= table.shape[0])
        rows = table.rows(local_ids.masked_fill_(is_remote, 0)).float()
        return rows.masked_fill_(is_remote.unsqueeze(1), 0.0)

    def norm_(self, x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None) -> Tensor:
        if delta is not None:
            x += delta
        if self._config.norm.kind == "layer":
            return layer_norm(x, weight, bias, self._config.norm.eps).to(weight.dtype)
        return self._rms_norms(x, weight).to(weight.dtype)

    def add_norm_(self, x: Tensor, delta: Tensor, weight: Tensor) -> None:
        x += self._rms_norms(delta.float(), weight)

    def linear(self, x: Tensor, weight: LinearWeight, bias: Tensor | None) -> Tensor:
        return weight.matmul(x, bias)

    def attend(self, plan: TorchPlan, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        config, kv, scores = self._attention(inputs), inputs.kv, self._attention(inputs).scores
        number, visible = plan.kv_numbers[inputs.layer], plan.attention[scores.visible]
        if inputs.latent is not None and config.latent is not None:
            latents, kv_b = self._latent_inputs(plan, qkv, inputs), inputs.latent.kv_b
            return latent_attention(latents, number, kv, visible, scores.scale, config.latent, kv_b)
        queries = self._rotated(plan, qkv, inputs)
        is_grouped = config.num_heads != config.num_kv_heads
        out = attention(
            queries, number, kv, visible, scores.scale, is_grouped, scores.softcap, inputs.sinks
        )
        if config.values.dim == queries.shape[2]:
            return out
        return out.view(queries.shape)[..., : config.values.dim].reshape(len(out), -1)

    def store(self, plan: TorchPlan, qkv: Tensor, inputs: AttentionInputs) -> None:
        if inputs.latent is not None:
            self._latent_inputs(plan, qkv, inputs)
        else:
            self._rotated(plan, qkv, inputs)

    def _attention(self, inputs: AttentionInputs) -> Attention:
        config = self._config.layers[inputs.layer].attention
        assert config is not None
        return config

    def _rotated(self, plan: TorchPlan, qkv: Tensor, inputs: AttentionInputs) -> Tensor:
        """Return the queries [n, num_heads, head_dim], with norms and rotated; store keys, values.

        Overwrites `qkv`.
        """
        config, norm, norms = self._attention(inputs), self._config.norm, inputs.norms
        if config.values.are_keys:
            qkv = torch.cat([qkv, qkv[:, config.num_heads * config.head_dim :]], 1)
        if config.values.dim != config.head_dim:
            qkv = pad_values(qkv, config)
        if config.values.normalized:
            norm_values_(qkv, config, norm.eps)
        after_rope = config.head_norms is not None and config.head_norms.after_rope
        if norms is not None and not after_rope:
            norm_heads_(qkv, *norms, config, norm)
        heads = qkv.view(len(qkv), -1, config.head_dim)
        queries, new_kv = heads.tensor_split((config.num_heads,), 1)
        if config.rope is not None:
            cos, sin = plan.cos_sin[self._ropes.index((config.rope, config.rope_width))]
            rotated = min(config.num_heads + config.num_kv_heads, heads.shape[1])
            rotate_(heads.narrow(1, 0, rotated), cos, sin)
        if norms is not None and after_rope:
            norm_heads_(qkv, *norms, config, norm)
        if growth := config.scores.growth:
            queries *= query_factors(growth, plan.positions).view(-1, 1, 1)
        if new_kv.shape[1]:
            store(plan, plan.kv_numbers[inputs.layer], inputs.kv, new_kv)
        return queries

    def mix(
        self, plan: TorchPlan, layer: int, x: Tensor, mixer: MixerWeights, ranks: Communicator
    ) -> Tensor:
        config = self._config.layers[layer]
        assert config.mixer is not None
        activate = ACTIVATIONS[config.mixer_activation]
        inputs = MixerInputs(mixer, plan.states[layer], activate, ranks)
        return mix(x, config.mixer, plan.state_rows, inputs)

    def _latent_inputs(
        self, plan: TorchPlan, projected: Tensor, inputs: AttentionInputs
    ) -> LatentInputs:
        """Return the rotated inputs of latent attention; store the latents and keys."""
        config, weights = self._attention(inputs), inputs.latent
        assert config.latent is not None and weights is not None
        latents = project(projected, config.latent, weights)
        if config.rope is not None:
            table = plan.cos_sin[self._ropes.index((config.rope, config.rope_width))]
            for part in latents.rotated:
                rotate_(part, *table)
        if growth := config.scores.growth:
            latents.queries.mul_(query_factors(growth, plan.positions).view(-1, 1, 1))
        store(plan, plan.kv_numbers[inputs.layer], inputs.kv, latents.rows)
        return latents

    def act_and_mul(self, gate_up: Tensor) -> Tensor:
        return act_and_mul(gate_up, self._config.activation)

    def moe(
        self, layer: int, x: Tensor, experts: Experts, router_input: Tensor | None = None
    ) -> Tensor:
        config = self._config.layers[layer].moe
        assert config is not None
        return moe(x, experts, config, self, router_input)

    def per_layer_embeddings(
        self, plan: TorchPlan, x: Tensor, table: PerLayerTable
    ) -> Sequence[Tensor]:
        return per_layer_embeddings(plan.ids, x, table, self._config.norm.eps)

    def per_layer_branch(self, x: Tensor, own: Tensor, branch: PerLayerBranch) -> Tensor:
        gate = self.linear(x.to(own.dtype), branch.gate, None)
        activated = ACTIVATIONS[self._config.activation.kind](gate)
        out = self.linear(activated * own, branch.out, None)
        return self._rms_norms(out.float(), branch.out_norm)

    def logits_rows(self, plan: TorchPlan, x: Tensor) -> Tensor:
        return x if len(plan.logits_indices) == len(x) else x[plan.logits_indices]

    def copy_blocks(self, cache: KVCache, copies: Sequence[tuple[int, int]]) -> None:
        cache.copy_blocks(copies)


def _signed_cos_sin(
    rope: RopeConfig, head_dim: int, num_positions: int, device: torch.device
) -> Tensor:
    """Cosines and sines as `rotate_` takes them: [num_positions, 2, head_dim]."""
    cos, sin = cos_sin_table(rope, head_dim, num_positions, device).chunk(2, dim=1)
    return torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1)


def pad_values(qkv: Tensor, config: Attention) -> Tensor:
    """Return q k v with zeros behind each value, as many as make it as wide as a key."""
    start = (config.num_heads + config.num_kv_heads) * config.head_dim
    values = qkv[:, start:].view(len(qkv), -1, config.values.dim)
    padded = F.pad(values, (0, config.head_dim - config.values.dim))
    return torch.cat([qkv[:, :start], padded.view(len(qkv), -1)], 1)


def _halves(first: Tensor, second: Tensor) -> Tensor:
    """Combine two [n, 2, head_dim] of cosines and sines, each for its half of the pairs."""
    one, two = (cos_sin.view(len(cos_sin), 2, 2, 2, -1) for cos_sin in (first, second))
    return torch.cat([one[..., :1, :], two[..., 1:, :]], -2).view(first.shape)


def rotate_(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding, half-split layout, of x [n, num_heads, head_dim], in place, in fp32.

    `cos` and `sin` [n, 1, head_dim] are for both halves of a head, with negated sines in the first.
    """
    wide = x.float()
    swapped = wide.roll(x.shape[-1] // 2, -1)
    x.copy_(wide.mul_(cos).addcmul_(swapped, sin))


def slot_views(cache: KVCache, slots: Sequence[int]) -> Sequence[Tensor] | None:
    """View each layer's slots [n, 2 * num_kv_heads, head_dim], if they are adjacent.

    None if they are not, or if the cache is quantized.
    """
    first = slots[0]
    if cache.is_quantized or slots != list(range(first, first + len(slots))):
        return None
    return cache.by_number([each.unbind() for each in cache.slot_ranges(first, len(slots))])


def store(plan: TorchPlan, layer: int, cache: LayerKV, new_kv: Tensor) -> None:
    """Write the plan's new keys and values [n, 2 * num_kv_heads, head_dim] to a layer's cache."""
    if plan.slot_views is not None:
        plan.slot_views[layer].copy_(new_kv)
    elif isinstance(cache, Tensor):
        cache.view(-1, *cache.shape[2:]).index_copy_(0, plan.slot_mapping, new_kv)
    else:
        cache.store(plan.slot_mapping, new_kv)

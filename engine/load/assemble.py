"""The decoder's weights, assembled from the tensors of a checkpoint."""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.model.altup import LowRankResidual, StreamMixing, StreamProjections
from swiftchat.engine.model.latent_attention import LatentWeights
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.moe import Expert, ExpertNorms, Experts
from swiftchat.engine.model.per_layer import PerLayerBranch, PerLayerTable
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights
from swiftchat.weights.architectures.parts.lightning import Lightning
from swiftchat.weights.architectures.tensors import (
    layer_tensors,
    tensor_name,
    tensors_after_layers,
    tensors_before_layers,
)
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard

# What a mixer's projection of its input consists of, from the first row to the last.
MIXER_INPUTS = (
    *("mixer_in", "mixer_qkvz", "mixer_ba"),
    *("mixer_qkv", "mixer_q", "mixer_k", "mixer_v", "mixer_z", "mixer_b", "mixer_a"),
    *("mixer_step_in", "mixer_gate_in"),
)
_QKV_BIASES = ("qkv_bias", "q_bias", "k_bias", "v_bias", "q_a_bias", "kv_a_bias")

# Names of a checkpoint's tensors, each with the part of it that this rank has.
NamedSlices = Sequence[tuple[str, TensorSlice]]


class Placement(Protocol):
    """Loads parts of tensors to the device and joins them.

    Row parts come one below the other, column parts side by side. `assemble` calls it in the same
    order for every model of one configuration.
    """

    factory: WeightFactory

    def tensor(self, slices: NamedSlices, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return the parts as a float tensor, by default of the activations' dtype."""

    def weight(self, slices: NamedSlices, *, is_table: bool = False) -> LinearWeight:
        """Return the parts as a matrix, quantized if the device computes with its scheme.

        A table of embeddings must support `rows`.
        """

    def experts(self, slices: NamedSlices) -> Sequence[LinearWeight]:
        """Return the matrices of a tensor [experts, rows, columns], packed if the device can.

        They are as in the file, which may have them transposed; packed ones are [outputs, inputs].
        """


def assemble(shard: Shard, placement: Placement, dtype: torch.dtype) -> DecoderWeights:
    """Return the weights of a shard for activations of `dtype`, in the layout of the checkpoint.

    `canonicalize` brings them into the decoder's layout.
    """
    return _Assembler(shard, placement, dtype).decoder_weights()


class _Assembler:
    def __init__(self, shard: Shard, placement: Placement, dtype: torch.dtype) -> None:
        self._shard = shard
        self._config = shard.config
        self._placement = placement
        self._dtype = dtype
        self._outside = [*tensors_before_layers(shard.config), *tensors_after_layers(shard.config)]

    def decoder_weights(self) -> DecoderWeights:
        layers = [self._layer(i) for i in range(*self._shard.layers)]
        embed = self._matrix("embed", is_table=True)
        return DecoderWeights(
            embed=embed,
            positions=self._optional("positions"),
            project_in=self._projection("project_in"),
            embed_norm=self._optional("embed_norm"),
            embed_norm_bias=self._optional("embed_norm_bias"),
            layers=layers,
            final_norm=self._optional("final_norm"),
            final_norm_bias=self._optional("final_norm_bias"),
            project_out=self._projection("project_out"),
            lm_head=embed if self._config.head.tied else self._matrix("lm_head"),
            lm_head_bias=self._optional("lm_head_bias"),
            per_layer=self._per_layer_table(),
            streams=self._stream_projections(),
        )

    def _layer(self, i: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=self._optional("attn_norm", layer=i),
            attn_norm_bias=self._optional("attn_norm_bias", layer=i),
            qkv=self._matrix(
                "qkv", "q", "k", "v", "q_a", "kv_a", "index_k", "index_weights", layer=i
            ),
            qkv_bias=self._optional(*_QKV_BIASES, layer=i),
            latent=self._latent(i) if "kv_a_norm" in layer_tensors(self._config, i) else None,
            q_norm=self._optional("q_norm", layer=i),
            k_norm=self._optional("k_norm", layer=i),
            attn_gate=self._gate(i),
            o=self._matrix("o", layer=i),
            o_bias=self._optional("o_bias", layer=i),
            attn_out_norm=self._optional("attn_out_norm", layer=i),
            mlp_norm=self._optional("mlp_norm", layer=i),
            mlp_norm_bias=self._optional("mlp_norm_bias", layer=i),
            gate_up=self._matrix("gate_up", "gate", "up", layer=i),
            gate_up_bias=self._optional("gate_up_bias", "gate_bias", "up_bias", layer=i),
            down=self._matrix("down", layer=i),
            down_bias=self._optional("down_bias", layer=i),
            mlp_out_norm=self._optional("mlp_out_norm", layer=i),
            sinks=self._exact("sinks", layer=i),
            attn_inner_norm=self._optional("attn_inner_norm", layer=i),
            mlp_inner_norm=self._optional("mlp_inner_norm", layer=i),
            xielu=self._exact("xielu_positive", "xielu_negative", layer=i),
            experts=self._experts(i) if "router" in layer_tensors(self._config, i) else None,
            mixer=None if self._config.layers[i].mixer is None else self._mixer(i),
            per_layer=self._per_layer_branch(i),
            scale=self._optional("layer_scale", layer=i),
            expert_norms=self._expert_norms(i),
            streams=self._stream_mixing(i) if self._config.streams is not None else None,
            residual=self._low_rank_residual(i) if self._config.streams is not None else None,
        )

    def _per_layer_table(self) -> PerLayerTable | None:
        project, norm = self._optional("ple_project"), self._optional("ple_project_norm")
        if project is None or norm is None:
            return None
        return PerLayerTable(self._matrix("ple_embed", is_table=True), project, norm)

    def _stream_projections(self) -> StreamProjections | None:
        into, out = self._optional("stream_in"), self._optional("stream_out")
        if into is None or out is None:
            return None
        hidden = self._config.hidden_size
        return StreamProjections(into.view(-1, hidden, hidden), out.view(-1, hidden, hidden))

    def _stream_mixing(self, i: int) -> StreamMixing:
        return StreamMixing(
            router=self._required("stream_router", layer=i),
            router_norm=self._required("stream_router_norm", layer=i),
            predict=self._required("stream_predict", layer=i),
            correct=self._required("stream_correct", layer=i),
            scale=self._optional("stream_scale", layer=i),
        )

    def _low_rank_residual(self, i: int) -> LowRankResidual:
        left, right = (self._matrix(f"residual_{side}", layer=i) for side in ("left", "right"))
        return LowRankResidual(left, right, self._required("residual_norm", layer=i))

    def _per_layer_branch(self, i: int) -> PerLayerBranch | None:
        norm = self._optional("ple_out_norm", layer=i)
        if norm is None:
            return None
        gate, out = self._matrix("ple_gate", layer=i), self._matrix("ple_out", layer=i)
        return PerLayerBranch(gate, out, norm)

    def _expert_norms(self, i: int) -> ExpertNorms | None:
        if "experts_norm" not in layer_tensors(self._config, i):
            return None
        return ExpertNorms(
            dense_out=self._required("dense_out_norm", layer=i),
            experts=self._required("experts_norm", layer=i),
            experts_out=self._required("experts_out_norm", layer=i),
            router=self._required("router_scale", layer=i),
        )

    def _mixer(self, i: int) -> MixerWeights:
        return MixerWeights(
            project_in=self._matrix(*MIXER_INPUTS, layer=i),
            project_in_bias=self._optional("mixer_in_bias", layer=i),
            conv=self._conv(i),
            conv_bias=self._optional("mixer_conv_bias", layer=i),
            project_out=self._matrix("mixer_out", layer=i),
            project_out_bias=self._optional("mixer_out_bias", layer=i),
            decay=self._decay(i),
            step_bias=self._exact("mixer_step_bias", layer=i),
            skip=self._exact("mixer_skip", layer=i),
            norm=self._exact("mixer_norm", layer=i),
            project_x=self._exact("mixer_x", layer=i),
            project_step=self._exact("mixer_step", layer=i),
            step_norm=self._exact("mixer_step_norm", layer=i),
            b_norm=self._exact("mixer_b_norm", layer=i),
            c_norm=self._exact("mixer_c_norm", layer=i),
            project_gate=self._exact("mixer_gate", layer=i),
        )

    def _conv(self, i: int) -> Tensor:
        names = ("mixer_conv", "mixer_conv_q", "mixer_conv_k", "mixer_conv_v")
        conv = self._required(*names, layer=i)
        return conv.squeeze(1) if conv.numel() else conv

    def _decay(self, i: int) -> Tensor | None:
        mixer = self._config.layers[i].mixer
        if not isinstance(mixer, Lightning):
            return self._exact("mixer_decay", layer=i)
        device = self._required("mixer_norm", layer=i).device
        return torch.tensor(mixer.slopes(i), dtype=torch.float32, device=device)

    def _experts(self, i: int) -> Experts:
        fused = "experts_gate_up" in layer_tensors(self._config, i)
        each = self._fused_experts(i) if fused else self._separate_experts(i)
        if "experts_gate" in layer_tensors(self._config, i):
            each = self._flat_experts(i)
        shared = None
        if "shared_down" in layer_tensors(self._config, i):
            gate_up = self._matrix("shared_gate_up", "shared_gate", "shared_up", layer=i)
            shared = Expert(gate_up, self._matrix("shared_down", layer=i))
        return Experts(
            router=self._required("router", layer=i),
            router_bias=self._optional("router_bias", layer=i),
            # Differences between biases of 16 bits would be lost.
            correction=self._exact("router_correction", layer=i),
            each=list(each),
            shared=shared,
            shared_router=self._optional("shared_router", layer=i),
            project_in=self._projection("expert_in", i),
            project_out=self._projection("expert_out", i),
            scales=self._optional("expert_scales", layer=i),
        )

    def _latent(self, i: int) -> LatentWeights:
        q_norm, has_index = self._optional("q_a_norm", layer=i), "index_q" in self._shard.slices(i)
        return LatentWeights(
            kv_norm=self._required("kv_a_norm", layer=i),
            kv_b=self._required("kv_b", layer=i),
            q_norm=q_norm,
            q_b=None if q_norm is None else self._matrix("q_b", layer=i),
            index_q=self._matrix("index_q", layer=i) if has_index else None,
            index_norm=self._optional("index_norm", layer=i),
            index_norm_bias=self._optional("index_norm_bias", layer=i),
        )

    def _gate(self, i: int) -> LinearWeight | None:
        has_gate = "attn_gate" in layer_tensors(self._config, i)
        attention = self._config.layers[i].attention
        if has_gate and attention and attention.gate and attention.gate.by_head:
            return self._placement.factory.plain(self._required("attn_gate", layer=i))
        return self._matrix("attn_gate", layer=i) if has_gate else None

    def _exact(self, *canonical: str, layer: int) -> Tensor | None:
        """Return tensors of a layer joined, in fp32."""
        slices = self._slices(canonical, layer)
        return self._placement.tensor(slices, dtype=torch.float32) if slices else None

    def _separate_experts(self, i: int) -> Iterator[Expert]:
        """The experts of a checkpoint that has tensors for each of them."""
        parts, moe = self._shard.slices(i), self._config.layers[i].moe
        assert moe is not None
        inputs = ("expert_gate", "expert_up") if moe.activation.gated else ("expert_up",)

        def weight(expert: int, *canonical: str) -> LinearWeight:
            pairs = [
                (tensor_name(self._config, name, i, expert), parts[name]) for name in canonical
            ]
            return self._placement.weight(
                [(name, part) for name, part in pairs if part is not None]
            )

        for expert in range(moe.num_experts):
            gate_up = weight(expert, *inputs)
            yield Expert(gate_up, weight(expert, "expert_down"))

    def _flat_experts(self, i: int) -> Iterator[Expert]:
        """The experts of a checkpoint that has them one below the other, all matrices alike."""
        names = ("experts_gate", "experts_up", "experts_down")
        gate, up, down = (self._required(name, layer=i) for name in names)
        factory = self._placement.factory.of(self._slices(names, i)[0][0])
        moe = self._config.layers[i].moe
        assert moe is not None
        size = moe.expert_size
        # On a GPU the tensors have no values yet: `canonicalize` joins and transposes them.
        for start in range(0, len(gate), size):
            rows = slice(start, start + size)
            both = factory.merged([factory.plain(gate[rows]), factory.plain(up[rows])])
            yield Expert(both, factory.plain(down[rows].t()))

    def _fused_experts(self, i: int) -> Iterator[Expert]:
        """The experts of a checkpoint that has one tensor for all of them."""
        names = ("experts_gate_up", "experts_down")
        inputs, outputs = (self._placement.experts(self._slices((n,), i)) for n in names)
        biases = [self._optional(f"experts_{name}_bias", layer=i) for name in ("gate_up", "down")]
        for e, (gate_up, down) in enumerate(zip(inputs, outputs, strict=True)):
            own_biases = (None if bias is None else bias[e] for bias in biases)
            yield Expert(gate_up, down, *own_biases)

    def _matrix(
        self, *canonical: str, layer: int | None = None, is_table: bool = False
    ) -> LinearWeight:
        """Return the named matrices as one weight; an empty one if this rank has none of them."""
        slices = self._slices(canonical, layer)
        if not slices:
            return self._placement.factory.plain(torch.empty(0, 0, dtype=self._dtype))
        return self._placement.weight(slices, is_table=is_table)

    def _projection(self, canonical: str, layer: int | None = None) -> LinearWeight | None:
        tensor = self._optional(canonical, layer=layer)
        return None if tensor is None else self._placement.factory.plain(tensor)

    def _required(self, *canonical: str, layer: int) -> Tensor:
        tensor = self._optional(*canonical, layer=layer)
        return torch.empty(0) if tensor is None else tensor

    def _optional(self, *canonical: str, layer: int | None = None) -> Tensor | None:
        """Return the named tensors joined; None if this rank has none of them."""
        slices = self._slices(canonical, layer)
        return self._placement.tensor(slices) if slices else None

    def _slices(self, canonical: Sequence[str], layer: int | None) -> NamedSlices:
        known = self._outside if layer is None else layer_tensors(self._config, layer)
        return [
            (tensor_name(self._config, name, layer, number), part)
            for name in canonical
            if name in known and (part := self._shard.slice_of(name, layer)) is not None
            for number in self._shard.indices(name)
        ]

"""NVIDIA: Nemotron."""

from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.expert_readers import sigmoid_router
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layer_readers import UNGATED
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.mixer_readers import MAX_KERNEL
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig


def _nemotron(keys: Keys) -> ModelConfig:
    layers = keys.layers(mlp=keys.mlp(activation=keys.activation(gated=False)))
    return keys.model(layers, norm=keys.norm("layer", has_bias=True, unit_offset=True))


def _kinds(keys: Keys) -> list[str]:
    """Return the kind of each layer: mamba, attention, mlp or moe."""
    name, known = "layers_block_type", _KINDS
    if keys.get(name) is None and keys.get("hybrid_override_pattern") is not None:
        name, known = "hybrid_override_pattern", _LETTERS
    listed = keys.get(name, ["mamba", "moe", "attention", "mlp"])
    found = list(listed) if isinstance(listed, list | str) else []
    if not 1 <= len(found) <= MAX_LAYERS or any(str(each) not in known for each in found):
        raise invalid(name, f"layers of the kinds {', '.join(known)}", listed)
    return [known[str(each)] for each in found]


def _mixer(keys: Keys) -> Mamba2:
    heads = integer(keys, "mamba_num_heads", 1, MAX_HEADS)
    groups = integer(keys, "n_groups", 1, heads)
    if heads % groups:
        raise invalid("n_groups", f"a divisor of {heads} heads", groups)
    if keys.get("mamba_hidden_act") != "silu":
        raise invalid("mamba_hidden_act", "silu", keys.get("mamba_hidden_act"))
    return Mamba2(
        num_heads=heads,
        head_dim=integer(keys, "mamba_head_dim", 1, MAX_WIDTH),
        num_groups=groups,
        state_size=integer(keys, "ssm_state_size", 1, MAX_HEAD_DIM),
        kernel=integer(keys, "conv_kernel", 2, MAX_KERNEL),
        norm_eps=number(keys, "layer_norm_epsilon", above=0.0, below=1.0),
        in_bias=flag(keys, "use_bias"),
        out_bias=flag(keys, "use_bias"),
        conv_bias=flag(keys, "use_conv_bias"),
        min_step=number(keys, "time_step_min", above=-1.0, below=1e6),
    )


def _experts(keys: Keys) -> Moe:
    if flag(keys, "mlp_bias"):
        raise invalid("mlp_bias", "false with experts", True)
    return keys.moe(
        sigmoid_router(keys),
        activation=keys.activation(gated=False),
        shared_size=integer(keys, "moe_shared_expert_intermediate_size", 1, MAX_WIDTH),
        latent_size=optional_integer(keys, "moe_latent_size", 1, MAX_WIDTH),
    )


def _nemotron_h(keys: Keys) -> ModelConfig:
    def layer(kind: str) -> LayerConfig:
        match kind:
            case "mamba":
                return LayerConfig(mixer=_mixer(keys))
            case "attention":
                return LayerConfig(keys.attention(rope=None))
            case "mlp":
                return LayerConfig(mlp=keys.mlp(activation=keys.activation(gated=False)))
        return LayerConfig(moe=_experts(keys))

    kinds = _kinds(keys)
    by_kind = {kind: layer(kind) for kind in dict.fromkeys(kinds)}
    return keys.model(tuple(by_kind[kind] for kind in kinds))


# The kinds of layers in `layers_block_type`, also of older files, and in `hybrid_override_pattern`.
_KINDS = frozen(
    linear_attention="mamba",
    mamba="mamba",
    full_attention="attention",
    attention="attention",
    mlp="mlp",
    moe="moe",
)

_LETTERS: Mapping[str, str] = MappingProxyType(
    {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
)


ARCHITECTURES: Architectures = {
    "NemotronForCausalLM": Architecture(
        model_type="nemotron",
        build=_nemotron,
        tensors=UNGATED,
        renamed=frozen(rms_norm_eps="norm_eps"),
        supported_keys=frozenset({"partial_rotary_factor"}),
        defaults=frozen(
            max_position_embeddings=4096,
            norm_eps=1e-5,
            hidden_act="relu2",
            partial_rotary_factor=0.5,
            bos_token_id=2,
            eos_token_id=3,
        ),
    ),
    "NemotronHForCausalLM": Architecture(
        model_type="nemotron_h",
        build=_nemotron_h,
        supported_keys=frozenset(
            {"n_routed_experts", "num_local_experts", "moe_intermediate_size"}
        ),
        renamed=frozen(
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="mlp_hidden_act",
            num_local_experts="n_routed_experts",
        ),
        prefix="backbone.",
        tensors=tensor_names(
            {
                "attn_norm": "norm.weight",
                "mlp_norm": "norm.weight",
                "q": "mixer.q_proj.weight",
                "k": "mixer.k_proj.weight",
                "v": "mixer.v_proj.weight",
                "o": "mixer.o_proj.weight",
                "q_bias": "mixer.q_proj.bias",
                "k_bias": "mixer.k_proj.bias",
                "v_bias": "mixer.v_proj.bias",
                "o_bias": "mixer.o_proj.bias",
                "up": "mixer.up_proj.weight",
                "down": "mixer.down_proj.weight",
                "up_bias": "mixer.up_proj.bias",
                "down_bias": "mixer.down_proj.bias",
                "router": "mixer.gate.weight",
                "router_correction": "mixer.gate.e_score_correction_bias",
                "expert_up": "mixer.experts.{e}.up_proj.weight",
                "expert_down": "mixer.experts.{e}.down_proj.weight",
                "expert_in": "mixer.fc1_latent_proj.weight",
                "expert_out": "mixer.fc2_latent_proj.weight",
                "shared_up": "mixer.shared_experts.up_proj.weight",
                "shared_down": "mixer.shared_experts.down_proj.weight",
                "mixer_in": "mixer.in_proj.weight",
                "mixer_in_bias": "mixer.in_proj.bias",
                "mixer_conv": "mixer.conv1d.weight",
                "mixer_conv_bias": "mixer.conv1d.bias",
                "mixer_decay": "mixer.A_log",
                "mixer_step_bias": "mixer.dt_bias",
                "mixer_skip": "mixer.D",
                "mixer_norm": "mixer.norm.weight",
                "mixer_out": "mixer.out_proj.weight",
                "mixer_out_bias": "mixer.out_proj.bias",
            },
            embed="backbone.embeddings.weight",
            final_norm="backbone.norm_f.weight",
            lm_head="lm_head.weight",
            layer="backbone.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            layer_norm_epsilon=1e-5,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            intermediate_size=21_504,
            mlp_hidden_act="relu2",
            ssm_state_size=128,
            mamba_num_heads=128,
            mamba_head_dim=64,
            mamba_hidden_act="silu",
            n_groups=8,
            conv_kernel=4,
            use_conv_bias=True,
            time_step_min=0.001,
            n_routed_experts=8,
            moe_intermediate_size=7688,
            moe_shared_expert_intermediate_size=7688,
            num_experts_per_tok=2,
            routed_scaling_factor=1.0,
            n_group=1,
            topk_group=1,
            norm_topk_prob=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}

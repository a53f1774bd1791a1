"""IBM: Granite and Bamba.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    SEPARATE_GATE_UP,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.expert_readers import moe_overrides
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    layer_types,
    mapping,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.mixer_readers import (
    DEFAULTS,
    FEED_FORWARD,
    MIXER,
    mamba2,
    mixer_layers,
)
from swiftchat.weights.architectures.parts.rope import RopeConfig


def multiplier(config: Fields, name: str) -> float:
    return number(config, name, above=0.0, below=1e6, default=1.0)


def granite(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of the multipliers."""
    residual = multiplier(config, "residual_multiplier")
    return {
        "query_scalar": multiplier(config, "attention_multiplier") ** -2,
        "embedding_scale": multiplier(config, "embedding_multiplier"),
        "residual_scale": residual,
        "norm_eps": number(config, "rms_norm_eps", above=0.0, below=1.0) / residual**2,
        "logit_scale": 1 / multiplier(config, "logits_scaling"),
    }


def _granite_moe(config: Fields) -> Mapping[str, Any]:
    return {
        **granite(config),
        **moe_overrides(config),
        "attention_bias": flag(config, "attention_bias"),
    }


def granite_moe_shared(config: Fields) -> Mapping[str, Any]:
    """Return the overrides of multipliers and experts, with a shared one."""
    shared = integer(config, "shared_intermediate_size", 0, MAX_WIDTH)
    return {**_granite_moe(config), "shared_expert_size": shared}


def _granite_hybrid(config: Fields) -> Mapping[str, Any]:
    kinds = layer_types(config)
    if kinds is None:
        kinds = layer_types({**config, "layer_types": config.get("layers_block_type")})
    if kinds is not None:
        kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    shared = integer(config, "shared_intermediate_size", 1, MAX_WIDTH)
    experts: Mapping[str, Any] = {"intermediate_size": shared}
    if config.get("num_local_experts") not in (0, None):
        experts = {**moe_overrides(config), "shared_expert_size": shared}
    return {
        "mlp_bias": False,
        **experts,
        **granite(config),
        "attention_bias": flag(config, "attention_bias"),
        **({} if config.get("position_embedding_type") == "rope" else {"rope": None}),
        "mixer": mamba2(config),
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
    }


def _bamba(config: Fields) -> Mapping[str, Any]:
    count, listed = num_layers(config), config.get("attn_layer_indices")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise invalid("attn_layer_indices", "a list of layers", listed)
    kinds = ["full_attention" if i in listed else "linear_attention" for i in range(count)]
    # The reference ignores another fraction unless it is among the parameters of the rotation.
    config = {**config, "partial_rotary_factor": 0.5}
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    return {
        "mixer": mamba2(config),
        "mixer_layers": mixer_layers(config, kinds, "linear_attention"),
        "rope": RopeConfig.from_hf(config, head_dim),
    }


def _layer_ropes(config: Fields) -> Mapping[str, Any]:
    """Return the fields of sinks, windows and the base of the rotation of each layer."""
    count, kinds = num_layers(config), layer_types(config)
    if kinds is None:
        kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(count)]
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    fields = {"attention_sinks": True, "layer_types": kinds}
    bases = config.get("layer_rope_theta")
    if bases is None:
        return {**fields, "rope": RopeConfig.from_hf(config, head_dim)}
    if not isinstance(bases, list) or len(bases) != count or len(kinds) != count:
        raise invalid("layer_rope_theta", f"a list of {count} numbers", bases)
    name = "layer_rope_theta"
    bases = [number({name: base}, name, above=-1.0, below=1e12) for base in bases]
    ropes: dict[str, RopeConfig] = {}
    for kind, base in zip(kinds, bases, strict=True):
        if not base:
            continue
        source = "rope_scaling" if mapping(config, "rope_scaling") else "rope_parameters"
        parameters = {**(mapping(config, source) or {}), "rope_theta": base}
        rope = RopeConfig.from_hf({**config, source: parameters}, head_dim)
        if ropes.setdefault(kind, rope) != rope:
            raise invalid(name, "one number for each kind of layer, or 0", base)
    full, local = ropes.get("full_attention"), ropes.get("sliding_attention")
    return {
        **fields,
        "rope": full or local,
        "local_rope": local if full and local else None,
        "unrotated_layers": frozenset(i for i, base in enumerate(bases) if not base),
    }


def _granite_swa(config: Fields) -> Mapping[str, Any]:
    return {**granite(config), **_layer_ropes(config)}


def _granite_moe_swa(config: Fields) -> Mapping[str, Any]:
    return {**granite_moe_shared(config), **_layer_ropes(config)}


MULTIPLIERS = frozenset(
    {"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}
)

GRANITE_DEFAULTS = frozen(
    max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
)

GRANITE_EXPERTS = frozen(
    router="block_sparse_moe.router.layer.weight",
    experts_gate_up="block_sparse_moe.input_linear.weight",
    experts_down="block_sparse_moe.output_linear.weight",
)

SHARED_MLP = frozen(
    shared_gate_up="shared_mlp.input_linear.weight",
    shared_down="shared_mlp.output_linear.weight",
)

WITHOUT_MLP = (*SEPARATE_GATE_UP, "down", "down_bias")

_OLD_KINDS = frozen(mamba="linear_attention", attention="full_attention")

_SINKS = frozen(sinks="self_attn.sinks")


IBM: Mapping[str, Architecture] = {
    "GraniteForCausalLM": Architecture(
        name="granite",
        model_type="granite",
        overrides=granite,
        supported_keys=MULTIPLIERS,
        tensors=LLAMA_TENSORS,
        defaults=GRANITE_DEFAULTS,
    ),
    "GraniteMoeForCausalLM": Architecture(
        name="granitemoe",
        model_type="granitemoe",
        overrides=_granite_moe,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(GRANITE_EXPERTS, without=WITHOUT_MLP),
        defaults=frozen(**GRANITE_DEFAULTS, num_local_experts=8, num_experts_per_tok=2),
    ),
    "GraniteMoeSharedForCausalLM": Architecture(
        name="granitemoeshared",
        model_type="granitemoeshared",
        overrides=granite_moe_shared,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **GRANITE_EXPERTS,
                **SHARED_MLP,
            },
            without=WITHOUT_MLP,
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
    ),
    "GraniteMoeHybridForCausalLM": Architecture(
        name="granitemoehybrid",
        model_type="granitemoehybrid",
        overrides=_granite_hybrid,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **MIXER,
                **GRANITE_EXPERTS,
                **SHARED_MLP,
                "gate_up": SHARED_MLP["shared_gate_up"],
                "down": SHARED_MLP["shared_down"],
            },
            without=("gate", "up"),
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            **DEFAULTS,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=1024,
        ),
    ),
    "BambaForCausalLM": Architecture(
        name="bamba",
        model_type="bamba",
        overrides=_bamba,
        supported_keys=frozenset({"partial_rotary_factor"}),
        tensors=llama_tensors(
            {
                **MIXER,
                **FEED_FORWARD,
            }
        ),
        defaults=frozen(
            **DEFAULTS,
            max_position_embeddings=262_144,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            partial_rotary_factor=0.5,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "GraniteSWAForCausalLM": Architecture(
        name="granite_swa",
        model_type="granite_swa",
        overrides=_granite_swa,
        windowed=True,
        supported_keys=MULTIPLIERS,
        tensors=llama_tensors(_SINKS),
        defaults=frozen(
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            num_key_value_heads=4,
            sliding_window=128,
            tie_word_embeddings=True,
            bos_token_id=100_257,
            eos_token_id=100_257,
        ),
    ),
    "GraniteMoeSWAForCausalLM": Architecture(
        name="granitemoe_swa",
        model_type="granitemoe_swa",
        overrides=_granite_moe_swa,
        windowed=True,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(
            {
                **_SINKS,
                **SHARED_MLP,
                "router": "block_sparse_moe.router.weight",
                "experts_gate_up": "block_sparse_moe.experts.gate_up_proj",
                "experts_down": "block_sparse_moe.experts.down_proj",
            },
            without=WITHOUT_MLP,
        ),
        defaults=frozen(
            **GRANITE_DEFAULTS,
            sliding_window=128,
            num_local_experts=8,
            num_experts_per_tok=2,
            shared_intermediate_size=0,
        ),
    ),
}

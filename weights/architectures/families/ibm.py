"""IBM: Granite and Bamba."""

from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    SEPARATE_GATE_UP,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.attention import Scores
from swiftchat.weights.architectures.parts.fields import (
    MAX_WIDTH,
    integer,
    invalid,
    mapping,
    number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import Layers, mixing, windowed
from swiftchat.weights.architectures.parts.mixer_readers import (
    DEFAULTS,
    FEED_FORWARD,
    MIXER,
    mamba2,
    mixer_layers,
)
from swiftchat.weights.architectures.parts.mlp import Moe
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.architectures.parts.router import RouterConfig


def multiplier(keys: Keys, name: str) -> float:
    return number(keys, name, above=0.0, below=1e6, default=1.0)


def granite_scores(keys: Keys, **fields: Any) -> Scores:
    return keys.scores(scale=multiplier(keys, "attention_multiplier"), **fields)


def granite_model(keys: Keys, layers: Layers) -> ModelConfig:
    """Return the model of these layers with Granite's multipliers."""
    residual = multiplier(keys, "residual_multiplier")
    return keys.model(
        layers,
        norm=keys.norm(eps=keys.eps / residual**2),
        embeddings=keys.embeddings(scale=multiplier(keys, "embedding_multiplier")),
        head=keys.head(scale=1 / multiplier(keys, "logits_scaling")),
        residual_scale=residual,
    )


def _granite(keys: Keys) -> ModelConfig:
    attention = keys.attention(scores=granite_scores(keys))
    return granite_model(keys, keys.layers(attention=attention))


def _experts(keys: Keys, shared_size: int) -> Moe:
    router = RouterConfig(normalized=True)
    return keys.moe(router, expert_size=keys.intermediate_size, shared_size=shared_size)


def _moe_layers(keys: Keys, *, shared: bool) -> Layers:
    size = integer(keys, "shared_intermediate_size", 0, MAX_WIDTH) if shared else 0
    attention = keys.attention(scores=granite_scores(keys))
    return keys.layers(attention=attention, mlp=None, moe=_experts(keys, size))


def _granite_moe(keys: Keys) -> ModelConfig:
    return granite_model(keys, _moe_layers(keys, shared=False))


def _granite_moe_shared(keys: Keys) -> ModelConfig:
    return granite_model(keys, _moe_layers(keys, shared=True))


def _granite_hybrid(keys: Keys) -> ModelConfig:
    kinds = keys.layer_types
    if kinds is None:
        kinds = keys.changed(layer_types=keys.get("layers_block_type")).layer_types
    if kinds is not None:
        kinds = [_OLD_KINDS.get(kind, kind) for kind in kinds]
    has_rope = keys.get("position_embedding_type") == "rope"
    shared = integer(keys, "shared_intermediate_size", 1, MAX_WIDTH)
    has_experts = keys.get("num_local_experts") not in (0, None)
    layers = keys.layers(
        attention=keys.attention(
            scores=granite_scores(keys), rope=keys.rope() if has_rope else None
        ),
        mlp=None if has_experts else keys.mlp(intermediate_size=shared, bias=False),
        moe=_experts(keys, shared) if has_experts else None,
    )
    where = mixer_layers(keys, kinds, "linear_attention")
    return granite_model(keys, mixing(layers, mamba2(keys), where, keys.activation_kind))


def _bamba(keys: Keys) -> ModelConfig:
    count, listed = keys.num_layers, keys.get("attn_layer_indices")
    listed = [] if listed is None else listed
    if not isinstance(listed, list):
        raise invalid("attn_layer_indices", "a list of layers", listed)
    kinds = ["full_attention" if i in listed else "linear_attention" for i in range(count)]
    # The reference ignores another fraction unless it is among the parameters of the rotation.
    rope = keys.changed(partial_rotary_factor=0.5).rope()
    layers = keys.layers(attention=keys.attention(rope=rope))
    where = mixer_layers(keys, kinds, "linear_attention")
    return keys.model(mixing(layers, mamba2(keys), where, keys.activation_kind))


def _ropes(keys: Keys, kinds: list[str]) -> list[RopeConfig | None]:
    """Return the rotation of each layer: `layer_rope_theta` lists their bases, 0 for none."""
    count, name = len(kinds), "layer_rope_theta"
    bases = keys.get(name)
    if bases is None:
        return [keys.rope()] * count
    if not isinstance(bases, list) or len(bases) != count:
        raise invalid(name, f"a list of {count} numbers", bases)
    bases = [number({name: base}, name, above=-1.0, below=1e12) for base in bases]
    source = "rope_scaling" if mapping(keys, "rope_scaling") else "rope_parameters"
    scaling, of_kind = mapping(keys, source) or {}, dict[str, float]()
    for kind, base in zip(kinds, bases, strict=True):
        if base and of_kind.setdefault(kind, base) != base:
            raise invalid(name, "one number for each kind of layer, or 0", base)
    ropes = {
        base: keys.changed(**{source: {**scaling, "rope_theta": base}}).rope()
        for base in of_kind.values()
    }
    return [ropes[base] if base else None for base in bases]


def _with_windows(keys: Keys, layers: Layers) -> Layers:
    """Return the layers with sinks, windows and the rotation of each."""
    kinds = keys.layer_types
    if kinds is None:
        kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(len(layers))]
    ropes = _ropes(keys, kinds)
    layers = windowed(layers, keys.windows(kinds))
    return tuple(
        layer.with_attention(rope=rope).with_scores(sinks=True)
        for layer, rope in zip(layers, ropes, strict=True)
    )


def _granite_swa(keys: Keys) -> ModelConfig:
    attention = keys.attention(scores=granite_scores(keys), rope=None)
    return granite_model(keys, _with_windows(keys, keys.layers(attention=attention)))


def _granite_moe_swa(keys: Keys) -> ModelConfig:
    return granite_model(keys, _with_windows(keys, _moe_layers(keys, shared=True)))


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


ARCHITECTURES: Architectures = {
    "GraniteForCausalLM": Architecture(
        model_type="granite",
        build=_granite,
        supported_keys=MULTIPLIERS,
        tensors=LLAMA_TENSORS,
        defaults=GRANITE_DEFAULTS,
    ),
    "GraniteMoeForCausalLM": Architecture(
        model_type="granitemoe",
        build=_granite_moe,
        supported_keys=MULTIPLIERS | {"num_local_experts"},
        tensors=llama_tensors(GRANITE_EXPERTS, without=WITHOUT_MLP),
        defaults=frozen(**GRANITE_DEFAULTS, num_local_experts=8, num_experts_per_tok=2),
    ),
    "GraniteMoeSharedForCausalLM": Architecture(
        model_type="granitemoeshared",
        build=_granite_moe_shared,
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
        model_type="granitemoehybrid",
        build=_granite_hybrid,
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
        model_type="bamba",
        build=_bamba,
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
        model_type="granite_swa",
        build=_granite_swa,
        supported_keys=MULTIPLIERS | WINDOW_KEYS,
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
        model_type="granitemoe_swa",
        build=_granite_moe_swa,
        supported_keys=MULTIPLIERS | {"num_local_experts"} | WINDOW_KEYS,
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

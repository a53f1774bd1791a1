"""Meta: Llama, OPT, CWM."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    WINDOW_KEYS,
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import HeadNorms
from swiftchat.weights.architectures.parts.embeddings import Positions
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.layers import LayerConfig, sparse, windowed
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.parts.rope import QueryGrowth
from swiftchat.weights.architectures.parts.router import RouterConfig


def _opt(keys: Keys) -> ModelConfig:
    if not flag(keys, "layer_norm_elementwise_affine"):
        raise invalid("layer_norm_elementwise_affine", "true", False)
    width = integer(keys, "word_embed_proj_dim", 1, MAX_WIDTH)
    before, bias = flag(keys, "do_layer_norm_before"), flag(keys, "enable_bias")
    positions = integer(keys, "max_position_embeddings", 1, MAX_CONTEXT)
    layers = keys.layers(
        attention=keys.attention(num_kv_heads=keys.num_heads, bias=bias, rope=None),
        mlp=keys.mlp(activation=keys.activation(gated=False), bias=bias),
        norm_order="pre" if before else "post",
    )
    return keys.model(
        layers,
        norm=keys.norm("layer", eps=1e-5, has_bias=True),
        embeddings=keys.embeddings(
            width=None if width == keys.hidden_size else width,
            positions=Positions(positions + _OPT_POSITION_OFFSET, _OPT_POSITION_OFFSET),
        ),
        head=keys.head(has_norm=before and not flag(keys, "_remove_final_layer_norm")),
    )


def llama(keys: Keys) -> ModelConfig:
    return keys.model(keys.layers())


def _mllama(keys: Keys) -> ModelConfig:
    """Return Llama 3.2 Vision, whose layers for images do nothing without one."""
    count, listed = keys.num_layers, keys.get("cross_attention_layers")
    of_images = listed if isinstance(listed, list) and len(listed) <= count else []
    text = tuple(i for i in range(count) if i not in of_images)
    if of_images != listed or not text:
        raise invalid("cross_attention_layers", f"a list of some of {count} layers", str(listed))
    if flag(keys, "tie_word_embeddings"):
        raise invalid("tie_word_embeddings", "false", True)
    layers = keys.layers(attention=keys.attention(bias=False), mlp=keys.mlp(bias=False))
    model = keys.model(layers[: len(text)], embeddings=keys.embeddings(extra_rows=8))
    numbered = zip(model.layers, text, strict=True)
    return replace(model, layers=tuple(replace(layer, file_layer=i) for layer, i in numbered))


def _llama4_chunks(keys: Keys, unrotated: frozenset[int]) -> list[int | None]:
    """Return the size of the chunks of each layer; None: it attends to all tokens."""
    count, kinds = keys.num_layers, keys.layer_types
    if kinds is None:
        kinds = ["full_attention" if i in unrotated else "chunked_attention" for i in range(count)]
    if len(kinds) != count or {*kinds} - {"full_attention", "chunked_attention"}:
        raise invalid("layer_types", f"{count} times full_attention or chunked_attention", kinds)
    if "chunked_attention" not in kinds:
        return [None] * count
    size = integer(keys, "attention_chunk_size", 1, MAX_CONTEXT)
    return [size if kind == "chunked_attention" else None for kind in kinds]


def _llama4(keys: Keys) -> ModelConfig:
    width, unrotated = keys.intermediate_size, _unrotated_layers(keys)
    router = RouterConfig(scores="sigmoid", by_logits=True, on_input=True)
    norms = None
    if flag(keys, "use_qk_norm"):
        norms = HeadNorms("head", after_rope=True, has_weights=False)
    growth = None
    if flag(keys, "attn_temperature_tuning"):
        growth = QueryGrowth(
            number(keys, "attn_scale", above=-1e3, below=1e3),
            number(keys, "floor_scale", above=0.0, below=1e9),
            shift=1,
        )
    rotated = keys.attention(rope=keys.rope(interleaved=True), head_norms=norms)
    plain = replace(rotated, rope=None, head_norms=None).with_scores(growth=growth)
    size = integer(keys, "intermediate_size_mlp", 1, MAX_WIDTH)
    mlp = keys.mlp(intermediate_size=size, bias=False)
    layers = tuple(
        LayerConfig((plain if i in unrotated else rotated).with_scores(chunk=chunk), mlp=mlp)
        for i, chunk in enumerate(_llama4_chunks(keys, unrotated))
    )
    moe = keys.moe(router, expert_size=width, shared_size=width)
    return keys.model(sparse(layers, moe, _dense_layers(keys)))


def _unrotated_layers(keys: Keys) -> frozenset[int]:
    """Return the layers with a 0 in `no_rope_layers`, by default every fourth."""
    count, found = keys.num_layers, keys.get("no_rope_layers")
    if not found:
        interval = integer(keys, "no_rope_layer_interval", 1, MAX_LAYERS)
        found = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(found, list) or len(found) < count or any(n not in (0, 1) for n in found):
        raise invalid("no_rope_layers", f"a list of {count} numbers 0 or 1", found)
    return frozenset(i for i in range(count) if not found[i])


def _dense_layers(keys: Keys) -> frozenset[int]:
    """Return the layers that are not in `moe_layers`, by default every nth is."""
    count, found = keys.num_layers, keys.get("moe_layers")
    if found is None:
        step = integer(keys, "interleave_moe_layer_step", 1, MAX_LAYERS)
        found = list(range(step - 1, count, step))
    if not isinstance(found, list) or not all(isinstance(layer, int) for layer in found):
        raise invalid("moe_layers", "a list of layers", found)
    return frozenset(range(count)) - frozenset(found)


def _cwm(keys: Keys) -> ModelConfig:
    if keys.get("rope_parameters") is None:
        keys = keys.changed(rope_parameters=_CWM_ROPE)
    kinds = ["sliding_attention" if i % 4 else "full_attention" for i in range(keys.num_layers)]
    layers = keys.layers(attention=keys.attention(bias=False))
    return keys.model(windowed(layers, keys.windows(kinds)))


# The norm before an MLP is named "final".
_OPT_LAYER = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o": "self_attn.out_proj.weight",
    "o_bias": "self_attn.out_proj.bias",
    "up": "fc1.weight",
    "up_bias": "fc1.bias",
    "down": "fc2.weight",
    "down_bias": "fc2.bias",
    "attn_norm": "self_attn_layer_norm.weight",
    "attn_norm_bias": "self_attn_layer_norm.bias",
    "mlp_norm": "final_layer_norm.weight",
    "mlp_norm_bias": "final_layer_norm.bias",
}

_OPT_POSITION_OFFSET = 2

_CWM_ROPE = frozen(
    rope_type="llama3",
    rope_theta=1e6,
    factor=16.0,
    high_freq_factor=4.0,
    low_freq_factor=1.0,
    original_max_position_embeddings=8192,
)


ARCHITECTURES: Architectures = {
    "OPTForCausalLM": Architecture(
        model_type="opt",
        build=_opt,
        prefix="model.",
        renamed=frozen(intermediate_size="ffn_dim", hidden_act="activation_function"),
        tensors=tensor_names(
            _OPT_LAYER,
            embed="model.decoder.embed_tokens.weight",
            positions="model.decoder.embed_positions.weight",
            project_in="model.decoder.project_in.weight",
            project_out="model.decoder.project_out.weight",
            final_norm="model.decoder.final_layer_norm.weight",
            final_norm_bias="model.decoder.final_layer_norm.bias",
            lm_head="lm_head.weight",
            layer="model.decoder.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            ffn_dim=3072,
            activation_function="relu",
            do_layer_norm_before=True,
            enable_bias=True,
            layer_norm_elementwise_affine=True,
            word_embed_proj_dim=768,
            tie_word_embeddings=True,
            bos_token_id=2,
            eos_token_id=2,
        ),
    ),
    "LlamaForCausalLM": Architecture(
        model_type="llama",
        build=llama,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
        ),
    ),
    "MllamaForCausalLM": Architecture(
        model_type="mllama_text_model",
        short_name="mllama",
        build=_mllama,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            rope_theta=5e5,
            cross_attention_layers=[3, 8, 13, 18, 23, 28, 33, 38],
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "Llama4ForCausalLM": Architecture(
        model_type="llama4_text",
        short_name="llama4",
        build=_llama4,
        tensors=llama_tensors(
            {
                "gate": "feed_forward.gate_proj.weight",
                "up": "feed_forward.up_proj.weight",
                "down": "feed_forward.down_proj.weight",
                "router": "feed_forward.router.weight",
                "experts_gate_up": "feed_forward.experts.gate_up_proj",
                "experts_down": "feed_forward.experts.down_proj",
                "shared_gate": "feed_forward.shared_expert.gate_proj.weight",
                "shared_up": "feed_forward.shared_expert.up_proj.weight",
                "shared_down": "feed_forward.shared_expert.down_proj.weight",
            }
        ),
        transposed=frozenset({"experts_gate_up", "experts_down"}),
        supported_keys=frozenset({"num_local_experts", "no_rope_layers", "use_qk_norm"}),
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            rope_theta=5e5,
            intermediate_size_mlp=16_384,
            num_local_experts=16,
            num_experts_per_tok=1,
            interleave_moe_layer_step=1,
            no_rope_layer_interval=4,
            attention_chunk_size=8192,
            attn_temperature_tuning=True,
            floor_scale=8192,
            attn_scale=0.1,
            use_qk_norm=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "CwmForCausalLM": Architecture(
        model_type="cwm",
        build=_cwm,
        supported_keys=WINDOW_KEYS,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=131_072,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            head_dim=128,
            sliding_window=8192,
            rope_theta=1e6,
            bos_token_id=128_000,
            eos_token_id=[128_001, 128_008, 128_009],
        ),
    ),
}

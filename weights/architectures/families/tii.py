"""TII: Falcon, Falcon-H1 and Falcon-Mamba."""

from dataclasses import replace

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    Architectures,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.fields import flag, integer, invalid, number, number_list
from swiftchat.weights.architectures.parts.gpt_readers import BLOOM_LAYER, mlp_width
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.mixer_readers import (
    DEFAULTS,
    FEED_FORWARD,
    MAMBA_DEFAULTS,
    MAMBA_TENSORS,
    MIXER,
    mamba,
    mamba2,
    only_tensors,
)
from swiftchat.weights.architectures.parts.model import ModelConfig


def _falcon_kv_heads(keys: Keys, *, grouped: bool) -> int:
    heads = keys.num_heads
    if not grouped:
        return 1 if flag(keys, "multi_query") else heads
    kv_heads = integer({"num_kv_heads": heads, **keys}, "num_kv_heads", 1, heads)
    if heads % kv_heads:
        raise invalid("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    return kv_heads


def _falcon(keys: Keys) -> ModelConfig:
    bias, grouped = flag(keys, "bias"), flag(keys, "new_decoder_architecture")
    norms = keys.get("num_ln_in_parallel_attn")
    norms = (2 if grouped else 1) if norms is None else norms
    if norms not in (1, 2):
        raise invalid("num_ln_in_parallel_attn", "1 or 2", norms)
    is_parallel = grouped or flag(keys, "parallel_attn")
    if grouped and not flag(keys, "parallel_attn"):
        raise invalid("parallel_attn", "true with new_decoder_architecture", False)
    has_alibi = flag(keys, "alibi")
    # Falcon adds the bias before it scales the scores.
    alibi_scale = (keys.hidden_size / keys.num_heads) ** -0.5 if has_alibi else None
    attention = keys.attention(
        num_kv_heads=_falcon_kv_heads(keys, grouped=grouped),
        bias=bias,
        rope=None if has_alibi else keys.rope(),
        scores=keys.scores(alibi_scale=alibi_scale),
    )
    mlp = keys.mlp(
        intermediate_size=mlp_width(keys, "ffn_hidden_size"),
        activation=keys.activation(gated=False),
        bias=bias,
    )
    layers = keys.layers(
        attention=attention,
        mlp=mlp,
        is_parallel=is_parallel,
        shared_norm=is_parallel and not (grouped and norms == 2),
    )
    return keys.model(layers, norm=keys.norm("layer", has_bias=True))


def _scale(keys: Keys, name: str) -> float:
    return number(keys, name, above=-1e6, below=1e6, default=1.0)


def _scales(keys: Keys, name: str, count: int) -> tuple[float, ...]:
    return (1.0,) * count if keys.get(name) is None else number_list(keys, name, count)


def _falcon_h1_attention(keys: Keys) -> Attention:
    inputs = _scale(keys, "attention_in_multiplier")
    if inputs != 1.0 and flag(keys, "attention_bias"):
        raise invalid("attention_in_multiplier", "1 with attention_bias", inputs)
    # Queries and keys both have the scale of the input.
    scores = inputs * inputs * _scale(keys, "key_multiplier")
    if not 1e-6 < scores < 1e6:
        raise invalid("key_multiplier", "a factor of scores between 1e-6 and 1e6", scores)
    return keys.attention(
        scores=keys.scores(scale=scores * keys.head_dim**-0.5),
        in_scale=inputs,
        out_scale=inputs * _scale(keys, "attention_out_multiplier"),
    )


def _falcon_h1(keys: Keys) -> ModelConfig:
    mixer = mamba2(keys)
    mixer = replace(
        mixer,
        norm_eps=mixer.norm_eps if flag(keys, "mamba_rms_norm") else None,
        out_bias=flag(keys, "projectors_bias"),
        gate_last=flag(keys, "mamba_norm_before_gate"),
        scales=(_scale(keys, "ssm_in_multiplier"), *_scales(keys, "ssm_multipliers", 5)),
    )
    gate, down = _scales(keys, "mlp_multipliers", 2)
    layers = keys.layers(
        attention=_falcon_h1_attention(keys),
        mixer=mixer,
        mlp=keys.mlp(activation=keys.activation(scale=gate), out_scale=down),
        mixer_activation=keys.activation_kind,
        mixer_out_scale=_scale(keys, "ssm_out_multiplier"),
    )
    return keys.model(
        layers,
        embeddings=keys.embeddings(scale=_scale(keys, "embedding_multiplier")),
        head=keys.head(scale=_scale(keys, "lm_head_multiplier")),
    )


ARCHITECTURES: Architectures = {
    "FalconForCausalLM": Architecture(
        model_type="falcon",
        build=_falcon,
        prefix="transformer.",
        qkv_in_groups=True,
        supported_keys=frozenset({"parallel_attn", "alibi"}),
        renamed=frozen(
            hidden_size="n_embed",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            num_kv_heads="n_head_kv",
            rms_norm_eps="layer_norm_epsilon",
            hidden_act="activation",
        ),
        tensors=tensor_names(
            BLOOM_LAYER,
            embed="transformer.word_embeddings.weight",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        separate_norm_tensors=tensor_names(
            {
                "attn_norm": "ln_attn.weight",
                "attn_norm_bias": "ln_attn.bias",
                "mlp_norm": "ln_mlp.weight",
                "mlp_norm_bias": "ln_mlp.bias",
            },
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            activation="gelu",
            multi_query=True,
            parallel_attn=True,
            tie_word_embeddings=True,
            bos_token_id=11,
            eos_token_id=11,
        ),
    ),
    "FalconH1ForCausalLM": Architecture(
        model_type="falcon_h1",
        build=_falcon_h1,
        supported_keys=frozenset({"embedding_multiplier"}),
        tensors=llama_tensors({**MIXER, **FEED_FORWARD}),
        defaults=frozen(
            **DEFAULTS,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            num_key_value_heads=8,
            mamba_d_ssm=1024,
            mamba_norm_before_gate=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "FalconMambaForCausalLM": Architecture(
        model_type="falcon_mamba",
        build=mamba,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=only_tensors(MAMBA_TENSORS),
        defaults=frozen(**MAMBA_DEFAULTS, mixer_rms_eps=1e-6),
    ),
}

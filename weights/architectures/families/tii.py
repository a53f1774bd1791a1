"""TII: Falcon, Falcon-H1 and Falcon-Mamba.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
    number_list,
    optional_integer,
)
from swiftchat.weights.architectures.parts.gpt_readers import BLOOM_LAYER, mlp_width
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


def _falcon(config: Fields) -> Mapping[str, Any]:
    heads, bias = num_heads(config), flag(config, "bias")
    grouped = flag(config, "new_decoder_architecture")
    if grouped:
        kv_heads = integer({"num_kv_heads": heads, **config}, "num_kv_heads", 1, heads)
        if heads % kv_heads:
            raise invalid("num_kv_heads", f"a divisor of {heads} heads", kv_heads)
    else:
        kv_heads = 1 if flag(config, "multi_query") else heads
    norms = config.get("num_ln_in_parallel_attn")
    norms = (2 if grouped else 1) if norms is None else norms
    if norms not in (1, 2):
        raise invalid("num_ln_in_parallel_attn", "1 or 2", norms)
    parallel = grouped or flag(config, "parallel_attn")
    if grouped and not flag(config, "parallel_attn"):
        raise invalid("parallel_attn", "true with new_decoder_architecture", False)
    hidden, alibi = hidden_size(config), flag(config, "alibi")
    return {
        **LAYER_NORM_UNGATED,
        **({"rope": None} if alibi else {}),
        "alibi": alibi,
        # Falcon adds the bias before it scales the scores.
        "alibi_scale": (hidden / heads) ** -0.5 if alibi else 1.0,
        "attention_bias": bias,
        "output_bias": bias,
        "mlp_bias": bias,
        "num_kv_heads": kv_heads,
        "intermediate_size": mlp_width(config, "ffn_hidden_size"),
        "parallel_residual": parallel,
        "shared_norm": parallel and not (grouped and norms == 2),
    }


def _falcon_h1(config: Fields) -> Mapping[str, Any]:
    def scale(name: str) -> float:
        return number(config, name, above=-1e6, below=1e6, default=1.0)

    def scales(name: str, count: int) -> tuple[float, ...]:
        return (1.0,) * count if config.get(name) is None else number_list(config, name, count)

    inputs, keys = scale("attention_in_multiplier"), scale("key_multiplier")
    if inputs != 1.0 and flag(config, "attention_bias"):
        raise invalid("attention_in_multiplier", "1 with attention_bias", inputs)
    # Queries and keys both have the scale of the input.
    scores = inputs * inputs * keys
    if not 1e-6 < scores < 1e6:
        raise invalid("key_multiplier", "a factor of scores between 1e-6 and 1e6", scores)
    head_dim = optional_integer(config, "head_dim", 2, MAX_HEAD_DIM)
    head_dim = hidden_size(config) // num_heads(config) if head_dim is None else head_dim
    gate, down = scales("mlp_multipliers", 2)
    mixer = mamba2(config)
    return {
        "query_scalar": head_dim / scores**2,
        "attention_in_scale": inputs,
        "attention_out_scale": inputs * scale("attention_out_multiplier"),
        "mixer_out_scale": scale("ssm_out_multiplier"),
        "gate_scale": gate,
        "mlp_out_scale": down,
        "embedding_scale": scale("embedding_multiplier"),
        "logit_scale": scale("lm_head_multiplier"),
        "mixer_with_attention": True,
        "mixer_layers": frozenset(range(num_layers(config))),
        "mixer": replace(
            mixer,
            norm_eps=mixer.norm_eps if flag(config, "mamba_rms_norm") else None,
            out_bias=flag(config, "projectors_bias"),
            gate_last=flag(config, "mamba_norm_before_gate"),
            scales=(scale("ssm_in_multiplier"), *scales("ssm_multipliers", 5)),
        ),
    }


TII: Mapping[str, Architecture] = {
    "FalconForCausalLM": Architecture(
        name="falcon",
        model_type="falcon",
        overrides=_falcon,
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
        name="falcon_h1",
        model_type="falcon_h1",
        overrides=_falcon_h1,
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
        name="falcon_mamba",
        model_type="falcon_mamba",
        overrides=mamba,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=only_tensors(MAMBA_TENSORS),
        defaults=frozen(**MAMBA_DEFAULTS, mixer_rms_eps=1e-6),
    ),
}

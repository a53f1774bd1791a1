"""Google: Gemma 1 to 3.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_LAYERS,
    Fields,
    hidden_size,
    integer,
    number,
)
from swiftchat.weights.architectures.parts.layer_readers import every_nth_full
from swiftchat.weights.architectures.parts.rope import layer_ropes


def _gemma(config: Fields) -> Mapping[str, Any]:
    return {
        "mlp_bias": False,
        "norm_unit_offset": True,
        "embedding_scale": hidden_size(config) ** 0.5,
    }


def _gemma1(config: Fields) -> Mapping[str, Any]:
    # The first published files say "gelu" but were trained with the approximation.
    legacy = config.get("hidden_act") == "gelu"
    return {**_gemma(config), **({"activation": "gelu_tanh"} if legacy else {})}


def _gemma2(config: Fields) -> Mapping[str, Any]:
    overrides = {**_gemma(config), "norm_order": "sandwich"}
    return overrides | {"layer_types": every_nth_full(config, 2)}


def _vaultgemma(config: Fields) -> Mapping[str, Any]:
    return {**_gemma(config), "layer_types": every_nth_full(config, 2)}


def _gemma3(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    local_theta = number(config, "rope_local_base_freq", above=0.0, below=1e12, default=1e4)
    pattern = integer(config, "sliding_window_pattern", 1, MAX_LAYERS)
    return {
        **_gemma2(config),
        "qk_norm": "head",
        **layer_ropes(config, head_dim, local_theta),
        "layer_types": every_nth_full(config, pattern),
    }


_DEFAULTS = frozen(
    max_position_embeddings=8192,
    rms_norm_eps=1e-6,
    head_dim=256,
    bos_token_id=2,
    eos_token_id=1,
    tie_word_embeddings=True,
    hidden_act="gelu_pytorch_tanh",
)

_DEFAULTS_2 = frozen(
    **_DEFAULTS, num_key_value_heads=4, sliding_window=4096, query_pre_attn_scalar=256
)

_KEYS_2 = frozenset({"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})

_TENSORS_2 = llama_tensors(
    {
        "attn_out_norm": "post_attention_layernorm.weight",
        "mlp_norm": "pre_feedforward_layernorm.weight",
        "mlp_out_norm": "post_feedforward_layernorm.weight",
    }
)


GEMMA: Mapping[str, Architecture] = {
    "GemmaForCausalLM": Architecture(
        name="gemma",
        model_type="gemma",
        overrides=_gemma1,
        tensors=LLAMA_TENSORS,
        defaults=frozen(**_DEFAULTS, num_key_value_heads=16),
    ),
    "Gemma2ForCausalLM": Architecture(
        name="gemma2",
        model_type="gemma2",
        windowed=True,
        overrides=_gemma2,
        tensors=_TENSORS_2,
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=_KEYS_2,
        defaults=frozen(**_DEFAULTS_2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    ),
    "VaultGemmaForCausalLM": Architecture(
        name="vaultgemma",
        model_type="vaultgemma",
        overrides=_vaultgemma,
        windowed=True,
        tensors=llama_tensors({"mlp_norm": "pre_feedforward_layernorm.weight"}),
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=_KEYS_2,
        defaults=frozen(**_DEFAULTS_2, attn_logit_softcapping=50.0, final_logit_softcapping=30.0),
    ),
    "Gemma3ForCausalLM": Architecture(
        name="gemma3",
        model_type="gemma3_text",
        windowed=True,
        overrides=_gemma3,
        tensors=_TENSORS_2,
        renamed=frozen(
            hidden_act="hidden_activation", sliding_window_pattern="_sliding_window_pattern"
        ),
        supported_keys=_KEYS_2 - {"attn_logit_softcapping"},
        rejected_keys=frozenset({"use_bidirectional_attention"}),
        defaults=frozen(
            **{**_DEFAULTS_2, "max_position_embeddings": 131_072},
            rope_theta=1e6,
            sliding_window_pattern=6,
        ),
    ),
}

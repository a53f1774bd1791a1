"""Variants of a `config.json`: keys that change the computation of some architecture."""

from collections.abc import Iterator, Mapping
from typing import Any

Edit = dict[str, Any]

_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 8,
    "rope_theta": 10_000.0,
}
_LLAMA3 = {
    **_YARN,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
_LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
_ROPES: list[Any] = [
    _YARN,
    {**_YARN, "beta_fast": None, "beta_slow": None},
    {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    {**_YARN, "attention_factor": 1.3},
    {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**_YARN, "truncate": False},
    _LLAMA3,
    _LINEAR,
    _DYNAMIC,
    {"type": "linear", "factor": 2.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 500.0},
    {"type": "mrope", "mrope_section": [1, 1, 2]},
    {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.5] * 4, "long_factor": [2.0] * 4},
    {"rope_theta": 700.0},
    {},
    None,
]
# Values of keys for every architecture, whether it reads them or not.
_VALUES: dict[str, list[Any]] = {
    "rope_scaling": _ROPES,
    "rope_parameters": _ROPES,
    "rope_theta": [500.0],
    "partial_rotary_factor": [0.5, 1.0],
    "original_max_position_embeddings": [8, 512],
    "sliding_window": [5, 0, None],
    "use_sliding_window": [True, False],
    "tie_word_embeddings": [True, False],
    "attn_logit_softcapping": [5.0, None],
    "final_logit_softcapping": [5.0, None],
    "query_pre_attn_scalar": [3.0],
    "attention_bias": [True],
    "attention_multiplier": [0.3],
    "embedding_multiplier": [3.0],
    "residual_multiplier": [0.5],
    "logits_scaling": [2.0],
    "logit_scale": [0.5],
    "clip_qkv": [0.5],
    "qk_layernorm": [True],
    "use_qk_norm": [True],
    "mlp_bias": [True],
    "scale_attn_by_inverse_layer_idx": [True],
    "scale_embedding": [True],
    "apply_residual_connection_post_layernorm": [True],
    "layer_types": [None],
    "no_rope_layers": [[1, 0, 1, 0], []],
    "norm_topk_prob": [True, False],
    "alibi": [True],
    "head_dim": [8],
}
_ACTIVATIONS = ["gelu", "relu", "relu2", "quick_gelu", "gelu_new", "silu", "tanh", "sigmoid"]
_ACTIVATION_KEYS = ("hidden_act", "hidden_activation", "activation_function", "activation")
# Mamba models of transformers replace weights that they have loaded by random ones with this key.
_RANDOM = ("rescale_prenorm_residual",)
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def variants(config: Mapping[str, Any]) -> Iterator[Edit]:
    """Yield edits of a configuration as transformers saves it."""
    for key, values in _VALUES.items():
        yield from ({key: value} for value in values)
    for key in ("hidden_act", *(key for key in _ACTIVATION_KEYS[1:] if key in config)):
        yield from ({key: value} for value in _ACTIVATIONS)
    for key, value in config.items():
        if key in _IDS or key in _VALUES or key in _RANDOM:
            continue
        if isinstance(value, bool):
            yield {key: not value}
        elif isinstance(value, float):
            yield from ({key: value * times} for times in (0.5, 3.0))
        elif value is None:
            yield {key: True}
            yield {key: 2}

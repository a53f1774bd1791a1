"""Google: Gemma 3n.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gemma4 import (
    PER_LAYER_BRANCH,
    PER_LAYER_TENSORS,
    kv_sources,
    layer_kinds,
    per_layer_embeddings,
)
from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
    llama_tensors,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
)
from swiftchat.weights.architectures.parts.layers import LayerSizes, Streams
from swiftchat.weights.architectures.parts.rope import layer_ropes


def _gemma3n(config: Fields) -> Mapping[str, Any]:
    head_dim = integer(config, "head_dim", 2, MAX_HEAD_DIM)
    local_theta = number(config, "rope_local_base_freq", above=0.0, below=1e12, default=1e4)
    kinds, widths = layer_kinds(config, 5), _widths(config)
    kv_heads = integer(config, "num_key_value_heads", 1, MAX_WIDTH)
    sizes = tuple(LayerSizes(head_dim, kv_heads, width, num_heads(config)) for width in widths)
    integer(config, "hidden_size_per_layer_input", 1, MAX_WIDTH)
    count = integer(config, "altup_num_inputs", 2, _MAX_STREAMS)
    return {
        "mlp_bias": False,
        "embedding_scale": hidden_size(config) ** 0.5,
        "norm_order": "sandwich",
        "qk_norm": "head",
        "query_scalar": 1.0,
        "value_norm": True,
        "intermediate_size": widths[0],
        "layer_sizes": sizes if len({*widths}) > 1 else (),
        "layer_types": kinds,
        "kv_sources": kv_sources(config, kinds),
        "gate_sparsity": _sparsity(config),
        "streams": Streams(
            count=count,
            active=integer(config, "altup_active_idx", 0, count - 1),
            scaled=flag(config, "altup_correct_scale"),
            residual_rank=integer(config, "laurel_rank", 1, MAX_WIDTH),
        ),
        **layer_ropes(config, head_dim, local_theta),
        **per_layer_embeddings(config),
    }


def _widths(config: Fields) -> list[int]:
    """Return the MLP width of each layer, from a list or one number."""
    name, count = "intermediate_size", num_layers(config)
    found = config.get(name)
    if not isinstance(found, list):
        return [integer(config, name, 1, MAX_WIDTH)] * count
    if len(found) != count:
        raise invalid(name, f"a number or a list of {count} numbers", found)
    return [integer({name: width}, name, 1, MAX_WIDTH) for width in found]


def _sparsity(config: Fields) -> tuple[float, ...]:
    """Return the share of gates of each layer that become 0."""
    name, count = "activation_sparsity_pattern", num_layers(config)
    found = config.get(name)
    if found is None:
        first = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        found = [_SPARSITY] * first + [0.0] * (count - first)
    if not isinstance(found, list) or len(found) != count:
        raise invalid(name, f"a list of {count} numbers", found)
    return tuple(number({name: share}, name, above=-1e-9, below=1.0) for share in found)


_MAX_STREAMS = 64

_SPARSE_LAYERS, _SPARSITY = 10, 0.95


GEMMA3N: Mapping[str, Architecture] = {
    "Gemma3nForCausalLM": Architecture(
        name="gemma3n",
        model_type="gemma3n_text",
        windowed=True,
        overrides=_gemma3n,
        tensors={
            **PER_LAYER_TENSORS,
            "stream_in": "model.altup_projections.{s}.weight",
            "stream_out": "model.altup_unembed_projections.{s}.weight",
            **llama_tensors(
                {
                    "attn_out_norm": "post_attention_layernorm.weight",
                    "mlp_norm": "pre_feedforward_layernorm.weight",
                    "mlp_out_norm": "post_feedforward_layernorm.weight",
                    "stream_scale": "altup.correct_output_scale",
                    "stream_router": "altup.modality_router.weight",
                    "stream_router_norm": "altup.router_norm.weight",
                    "stream_predict": "altup.prediction_coefs.weight",
                    "stream_correct": "altup.correction_coefs.weight",
                    "residual_left": "laurel.linear_left.weight",
                    "residual_right": "laurel.linear_right.weight",
                    "residual_norm": "laurel.post_laurel_norm.weight",
                    **PER_LAYER_BRANCH,
                }
            ),
        },
        renamed=frozen(hidden_act="hidden_activation"),
        supported_keys=frozenset({"final_logit_softcapping"}),
        defaults=frozen(
            max_position_embeddings=32_768,
            rms_norm_eps=1e-6,
            hidden_activation="gelu_pytorch_tanh",
            head_dim=256,
            num_key_value_heads=2,
            num_kv_shared_layers=15,
            sliding_window=512,
            rope_theta=1e6,
            final_logit_softcapping=30.0,
            hidden_size_per_layer_input=256,
            vocab_size_per_layer_input=262_144,
            altup_num_inputs=4,
            altup_active_idx=0,
            altup_correct_scale=True,
            laurel_rank=64,
            bos_token_id=2,
            eos_token_id=1,
            tie_word_embeddings=True,
        ),
    ),
}

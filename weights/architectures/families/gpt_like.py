"""MPT: LayerNorm without biases, ALiBi.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.gpt import mlp_width
from swiftchat.weights.architectures.parts.architecture import (
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    Fields,
    mapping,
    num_heads,
    optional_number,
)


def _mpt(config: Fields) -> Mapping[str, Any]:
    attention = mapping(config, "attn_config") or {}
    scale = optional_number(attention, "softmax_scale", above=0.0, below=1e6)
    return {
        **LAYER_NORM_UNGATED,
        "norm_bias": False,
        "attention_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "activation": "gelu",
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, None),
        "rope": None,
        "alibi": True,
        "query_scalar": None if scale is None else scale**-2,
        "clip_qkv": optional_number(attention, "clip_qkv", above=0.0, below=1e6),
    }


GPT_LIKE: Mapping[str, Architecture] = {
    "MptForCausalLM": Architecture(
        name="mpt",
        model_type="mpt",
        overrides=_mpt,
        renamed=frozen(
            hidden_size="d_model",
            num_hidden_layers="n_layers",
            num_attention_heads="n_heads",
            max_position_embeddings="max_seq_len",
            rms_norm_eps="layer_norm_epsilon",
        ),
        prefix="transformer.",
        tensors=tensor_names(
            {
                "qkv": "attn.Wqkv.weight",
                "o": "attn.out_proj.weight",
                "up": "ffn.up_proj.weight",
                "down": "ffn.down_proj.weight",
                "attn_norm": "norm_1.weight",
                "mlp_norm": "norm_2.weight",
            },
            embed="transformer.wte.weight",
            final_norm="transformer.norm_f.weight",
            lm_head="lm_head.weight",
            layer="transformer.blocks.{i}.",
        ),
        defaults=frozen(max_seq_len=2048, layer_norm_epsilon=1e-5, tie_word_embeddings=True),
    ),
}

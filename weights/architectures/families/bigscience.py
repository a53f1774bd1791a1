"""BigScience and BigCode: BLOOM and StarCoder 2.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    ALL_BIASES,
    LAYER_NORM_UNGATED,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import (
    Fields,
    flag,
    num_heads,
)
from swiftchat.weights.architectures.parts.gpt_readers import BLOOM_LAYER, mlp_width


def _bloom(config: Fields) -> Mapping[str, Any]:
    return {
        **LAYER_NORM_UNGATED,
        **ALL_BIASES,
        "activation": "gelu_tanh",
        "num_kv_heads": num_heads(config),
        "intermediate_size": mlp_width(config, None),
        "embedding_norm": True,
        "rope": None,
        "alibi": True,
    }


def _starcoder2(config: Fields) -> Mapping[str, Any]:
    bias = flag(config, "use_bias")
    return {**LAYER_NORM_UNGATED, "attention_bias": bias, "output_bias": bias, "mlp_bias": bias}


BIGSCIENCE: Mapping[str, Architecture] = {
    "BloomForCausalLM": Architecture(
        name="bloom",
        model_type="bloom",
        overrides=_bloom,
        rejected_keys=frozenset({"apply_residual_connection_post_layernorm"}),
        prefix="transformer.",
        qkv_in_groups=True,
        renamed=frozen(
            hidden_size="n_embed",
            num_hidden_layers="n_layer",
            num_attention_heads="n_head",
            max_position_embeddings="seq_length",
            rms_norm_eps="layer_norm_epsilon",
        ),
        tensors=tensor_names(
            BLOOM_LAYER,
            embed="transformer.word_embeddings.weight",
            embed_norm="transformer.word_embeddings_layernorm.weight",
            embed_norm_bias="transformer.word_embeddings_layernorm.bias",
            final_norm="transformer.ln_f.weight",
            final_norm_bias="transformer.ln_f.bias",
            lm_head="lm_head.weight",
            layer="transformer.h.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Starcoder2ForCausalLM": Architecture(
        name="starcoder2",
        model_type="starcoder2",
        windowed=True,
        same_windows=True,
        overrides=_starcoder2,
        renamed=frozen(rms_norm_eps="norm_epsilon"),
        tensors=llama_tensors(
            {
                "up": "mlp.c_fc.weight",
                "up_bias": "mlp.c_fc.bias",
                "down": "mlp.c_proj.weight",
                "down_bias": "mlp.c_proj.bias",
            },
            without=("gate", "gate_bias", "q_norm", "k_norm"),
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            norm_epsilon=1e-5,
            num_key_value_heads=2,
            hidden_act="gelu_pytorch_tanh",
            use_bias=True,
            tie_word_embeddings=True,
            bos_token_id=50_256,
            eos_token_id=50_256,
        ),
    ),
}

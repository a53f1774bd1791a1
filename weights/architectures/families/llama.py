"""Llama, the text of Llama 3.2 Vision, Mistral, SmolLM3, OLMo 2, InternLM2 and StableLM.

Defaults and overrides are those of the model classes in transformers; InternLM2's are those of
the code published with its weights.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    LLAMA_TENSORS,
    Architecture,
    frozen,
    llama_tensors,
    tensor_names,
)
from swiftchat.weights.architectures.parts.fields import Fields, flag, integer, invalid, num_layers


def _smollm3(config: Fields) -> Mapping[str, Any]:
    count = num_layers(config)
    rotated = config.get("no_rope_layers")
    if rotated is None:
        interval = integer(config, "no_rope_layer_interval", 1, 2**30)
        rotated = [int((i + 1) % interval != 0) for i in range(count)]
    if not isinstance(rotated, list) or len(rotated) != count:
        raise invalid("no_rope_layers", f"a list of {count} numbers", rotated)
    # Despite its name, the list has 1 for layers with rotary embeddings.
    rotated = [integer({"no_rope_layers": each}, "no_rope_layers", 0, 1) for each in rotated]
    windowed = flag(config, "use_sliding_window") and config.get("sliding_window") is not None
    kinds = ["full_attention" if each else "sliding_attention" for each in rotated]
    return {
        "unrotated_layers": frozenset(i for i, each in enumerate(rotated) if not each),
        "layer_types": kinds if windowed else None,
    }


def _olmo2(config: Fields) -> Mapping[str, Any]:
    return {"mlp_bias": False, "norm_order": "output", "qk_norm": "width"}


def _internlm2(config: Fields) -> Mapping[str, Any]:
    return {"attention_bias": flag(config, "bias"), "mlp_bias": False}


def _stablelm(config: Fields) -> Mapping[str, Any]:
    parallel = flag(config, "use_parallel_residual")
    return {
        "norm": "layer",
        "norm_bias": True,
        "parallel_residual": parallel,
        "shared_norm": parallel,
        "qk_norm": "heads" if flag(config, "qk_layernorm") else None,
        "attention_bias": flag(config, "use_qkv_bias"),
        "output_bias": False,
        "mlp_bias": False,
    }


def _mllama(config: Fields) -> Mapping[str, Any]:
    """Return the fields of Llama 3.2 Vision, whose layers for images do nothing without one."""
    count, listed = num_layers(config), config.get("cross_attention_layers")
    of_images = listed if isinstance(listed, list) and len(listed) <= count else []
    text = tuple(i for i in range(count) if i not in of_images)
    if of_images != listed or not text:
        raise invalid("cross_attention_layers", f"a list of some of {count} layers", str(listed))
    if flag(config, "tie_word_embeddings"):
        raise invalid("tie_word_embeddings", "false", True)
    return {
        "num_layers": len(text),
        "file_layers": text,
        "extra_embeddings": 8,
        "attention_bias": False,
        "mlp_bias": False,
    }


LLAMA: Mapping[str, Architecture] = {
    "LlamaForCausalLM": Architecture(
        name="llama",
        model_type="llama",
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=2048, rms_norm_eps=1e-6, bos_token_id=1, eos_token_id=2
        ),
    ),
    "MistralForCausalLM": Architecture(
        name="mistral",
        model_type="mistral",
        windowed=True,
        same_windows=True,
        tensors=LLAMA_TENSORS,
        defaults=frozen(
            max_position_embeddings=4096 * 32,
            rms_norm_eps=1e-6,
            num_key_value_heads=8,
            sliding_window=4096,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "SmolLM3ForCausalLM": Architecture(
        name="smollm3",
        model_type="smollm3",
        windowed=True,
        tensors=LLAMA_TENSORS,
        overrides=_smollm3,
        supported_keys=frozenset({"no_rope_layers"}),
        defaults=frozen(
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
            num_key_value_heads=4,
            rope_theta=2e6,
            use_sliding_window=False,
            no_rope_layer_interval=4,
            tie_word_embeddings=True,
            bos_token_id=128_000,
            eos_token_id=128_001,
        ),
    ),
    "Olmo2ForCausalLM": Architecture(
        name="olmo2",
        model_type="olmo2",
        overrides=_olmo2,
        tensors=llama_tensors(
            {
                "attn_out_norm": "post_attention_layernorm.weight",
                "mlp_out_norm": "post_feedforward_layernorm.weight",
            }
        ),
        defaults=frozen(max_position_embeddings=2048, rms_norm_eps=1e-5, eos_token_id=50_279),
    ),
    "InternLM2ForCausalLM": Architecture(
        name="internlm2",
        model_type="internlm2",
        overrides=_internlm2,
        qkv_in_groups=True,
        tensors=tensor_names(
            {
                "qkv": "attention.wqkv.weight",
                "qkv_bias": "attention.wqkv.bias",
                "o": "attention.wo.weight",
                "o_bias": "attention.wo.bias",
                "gate": "feed_forward.w1.weight",
                "up": "feed_forward.w3.weight",
                "down": "feed_forward.w2.weight",
                "attn_norm": "attention_norm.weight",
                "mlp_norm": "ffn_norm.weight",
            },
            embed="model.tok_embeddings.weight",
            final_norm="model.norm.weight",
            lm_head="output.weight",
            layer="model.layers.{i}.",
        ),
        defaults=frozen(
            max_position_embeddings=2048,
            rms_norm_eps=1e-6,
            bias=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "StableLmForCausalLM": Architecture(
        name="stablelm",
        model_type="stablelm",
        overrides=_stablelm,
        tensors=llama_tensors(
            {
                "q_norm": "self_attn.q_layernorm.norms.{h}.weight",
                "k_norm": "self_attn.k_layernorm.norms.{h}.weight",
            }
        ),
        renamed=frozen(rms_norm_eps="layer_norm_eps"),
        supported_keys=frozenset(
            {"partial_rotary_factor", "use_parallel_residual", "qk_layernorm"}
        ),
        defaults=frozen(
            max_position_embeddings=4096,
            layer_norm_eps=1e-5,
            num_key_value_heads=32,
            partial_rotary_factor=0.25,
            bos_token_id=0,
            eos_token_id=0,
        ),
    ),
    "MllamaForCausalLM": Architecture(
        name="mllama",
        model_type="mllama_text_model",
        overrides=_mllama,
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
}

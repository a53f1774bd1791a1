"""The language models inside multimodal models; vision and audio are not supported.

The classes are those of transformers, and so are the sizes that their configurations leave out.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.parts.architecture import frozen
from swiftchat.weights.architectures.parts.fields import Fields, invalid, mapping
from swiftchat.weights.architectures.registry import ARCHITECTURES, unknown_name

# Whether embeddings are tied if `config.json` does not say it, by class name.
MULTIMODAL: Mapping[str, bool] = MappingProxyType(
    {
        "Gemma3ForConditionalGeneration": True,
        "Gemma3nForConditionalGeneration": True,
        "Gemma4ForConditionalGeneration": True,
        "Gemma4UnifiedForConditionalGeneration": True,
        "Llama4ForConditionalGeneration": False,
        "MllamaForConditionalGeneration": False,
        "Apertus1p5ForConditionalGeneration": False,
        "AriaForConditionalGeneration": False,
        "Qwen2VLForConditionalGeneration": False,
        "Qwen2_5_VLForConditionalGeneration": False,
        "Qwen3VLForConditionalGeneration": False,
        "Qwen3_5ForConditionalGeneration": False,
        "Qwen3_5MoeForConditionalGeneration": False,
        "Mistral3ForConditionalGeneration": True,
        "LlavaForConditionalGeneration": False,
        "LlavaNextForConditionalGeneration": False,
        "InternVLForConditionalGeneration": True,
        "Idefics3ForConditionalGeneration": False,
        "SmolVLMForConditionalGeneration": False,
        "Glm4vForConditionalGeneration": False,
        "Glm46VForConditionalGeneration": False,
        "Glm4vMoeForConditionalGeneration": False,
        "Qwen3VLMoeForConditionalGeneration": False,
        "Qwen2_5OmniThinkerForConditionalGeneration": False,
        "Qwen2_5OmniForConditionalGeneration": False,
        "Qwen2_5OmniModel": False,
        "Qwen3OmniMoeThinkerForConditionalGeneration": False,
        "Qwen3OmniMoeForConditionalGeneration": False,
        "Qwen2AudioForConditionalGeneration": False,
        "Lfm2VlForConditionalGeneration": True,
        "Lfm3VlForConditionalGeneration": True,
        "Kimi_K25ForConditionalGeneration": True,
        "KimiK25ForConditionalGeneration": False,
        "KimiVLForConditionalGeneration": False,
        "AyaVisionForConditionalGeneration": True,
        "Cohere2VisionForConditionalGeneration": True,
        "LlavaOnevisionForConditionalGeneration": False,
        "LlavaNextVideoForConditionalGeneration": False,
        "Idefics2ForConditionalGeneration": False,
        "Ovis2ForConditionalGeneration": True,
        "DeepseekVLForConditionalGeneration": True,
        "Exaone4_5_ForConditionalGeneration": False,
        "HyperCLOVAXVisionV2ForConditionalGeneration": True,
        "MiniCPMV4_6ForConditionalGeneration": False,
        "VoxtralForConditionalGeneration": False,
        "GraniteSpeechForConditionalGeneration": True,
        "Phi4MultimodalForCausalLM": False,
        "Phi4MMForCausalLM": False,
    }
)
# The `model_type` of language models with a configuration class of their own.
_TEXT_TYPES = frozen(
    qwen2_vl_text="qwen2",
    qwen2_5_vl_text="qwen2",
    qwen3_vl_text="qwen3",
    glm4v_text="glm4",
    glm4v_moe_text="glm4_moe",
    qwen2_5_omni_text="qwen2",
    qwen3_omni_moe_text="qwen3_moe",
    kimi_k2="deepseek_v3",
)
# Files without `text_config`.
_FLAT_TYPES = frozen(qwen2_vl="qwen2", qwen2_5_vl="qwen2", phi4_multimodal="phi3", phi4mm="phi3")
_LLAMA_SIZES = frozen(
    vocab_size=32_000,
    hidden_size=4096,
    intermediate_size=11_008,
    num_hidden_layers=32,
    num_attention_heads=32,
)
_MLLAMA_SIZES = frozen(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=40,
    num_attention_heads=32,
)
_GEMMA_SIZES = frozen(hidden_size=2304, intermediate_size=9216, num_attention_heads=8)
_GEMMA3N_SIZES = frozen(
    vocab_size=262_400,
    hidden_size=2048,
    intermediate_size=16_384,
    num_hidden_layers=35,
    num_attention_heads=8,
)
_LLAMA4_SIZES = frozen(
    vocab_size=202_048,
    hidden_size=5120,
    intermediate_size=8192,
    num_hidden_layers=48,
    num_attention_heads=40,
)
_SIZES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": _LLAMA_SIZES,
        "mistral": frozen(**{**_LLAMA_SIZES, "intermediate_size": 14_336}),
        "mllama_text_model": _MLLAMA_SIZES,
        "aria_text": frozen(**{**_LLAMA_SIZES, "intermediate_size": 4096}),
        "gemma3_text": frozen(**_GEMMA_SIZES, vocab_size=262_208, num_hidden_layers=26),
        "llama4_text": _LLAMA4_SIZES,
        "gemma3n_text": _GEMMA3N_SIZES,
        "gemma4_text": frozen(**_GEMMA_SIZES, vocab_size=262_144, num_hidden_layers=30),
        "gemma4_unified_text": frozen(**_GEMMA_SIZES, vocab_size=262_144, num_hidden_layers=30),
    }
)
_OUTER_KEYS = ("bos_token_id", "eos_token_id", "dtype", "torch_dtype")


def multimodal_class(config: Fields) -> str | None:
    """Return the class of a multimodal model in `architectures`; None: it is not one."""
    names = config.get("architectures")
    listed = names if isinstance(names, list) else []
    return next((name for name in listed if isinstance(name, str) and name in MULTIMODAL), None)


def language_model(config: Fields) -> Fields:
    """Return the `config.json` of the language model in a multimodal one; others unchanged.

    Raises `BadModelFile` for a language model that is not supported.
    """
    outer = multimodal_class(config)
    if outer is None:
        return config
    config = mapping(config, "thinker_config") or config
    text = mapping(config, "text_config")
    if text is None:
        kind = _FLAT_TYPES.get(str(config.get("model_type")))
        if kind is None:
            raise invalid("text_config", "an object", None)
        text = {k: v for k, v in config.items() if k not in ("vision_config", "audio_config")}
    else:
        kind = str(text.get("model_type"))
        kind = _TEXT_TYPES.get(kind, kind)
    classes = {each.model_type: name for name, each in ARCHITECTURES.items()}
    if kind not in classes:
        raise unknown_name(f"language model in {outer}", kind, sorted(classes))
    tied = config.get("tie_word_embeddings")
    return {
        **_SIZES.get(kind, {}),
        **{k: config[k] for k in _OUTER_KEYS if config.get(k) is not None},
        **{k: v for k, v in text.items() if v is not None},
        "architectures": [classes[kind]],
        "model_type": kind,
        "tie_word_embeddings": MULTIMODAL[outer] if tied is None else tied,
    }

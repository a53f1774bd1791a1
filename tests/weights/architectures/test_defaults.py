"""What a config.json leaves out has the value that transformers gives it."""

from typing import Any

import pytest
import transformers

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.families.own_code import OWN_CODE
from swiftchat.weights.architectures.registry import ARCHITECTURES

OWN_CONFIGS = {
    "Gemma3ForCausalLM": "Gemma3TextConfig",
    "Gemma3nForCausalLM": "Gemma3nTextConfig",
    "Llama4ForCausalLM": "Llama4TextConfig",
    "Gemma4ForCausalLM": "Gemma4TextConfig",
    "Gemma4UnifiedForCausalLM": "Gemma4UnifiedTextConfig",
    "GPT2LMHeadModel": "GPT2Config",
    "Qwen3_5ForCausalLM": "Qwen3_5TextConfig",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextConfig",
    "MllamaForCausalLM": "MllamaTextConfig",
    "Qwen3VLMoeTextForCausalLM": "Qwen3VLMoeTextConfig",
}
# Sizes that have no defaults, or defaults that contradict the others.
WITHOUT_DEFAULTS: dict[str, dict[str, Any]] = {
    "Gemma3nForCausalLM": {"num_kv_shared_layers": 2},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "num_experts_per_tok": 2},
    "BambaForCausalLM": {"attn_layer_indices": [3, 9]},
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 2},
    "GraniteMoeHybridForCausalLM": {
        "layer_types": ["linear_attention", "full_attention"] * 6,
    },
    "LongcatFlashForCausalLM": {"num_hidden_layers": 56},
    "BitNetForCausalLM": {"num_attention_heads": 20, "hidden_size": 1280},
    "HeliumForCausalLM": {"num_attention_heads": 20, "hidden_size": 1280},
}
# Their other defaults contradict the sizes of `defaults_of`.
CONTRADICTED = {
    *("Gemma4ForCausalLM", "Gemma4UnifiedForCausalLM", "Lfm2MoeForCausalLM", "OPTForCausalLM"),
    *("KimiLinearForCausalLM", "BailingHybridForCausalLM", "DeepseekV3ForCausalLM"),
    *("Glm4MoeLiteForCausalLM", "Mistral4ForCausalLM", "YoutuForCausalLM", "MiniCPM3ForCausalLM"),
    *("DeepseekV32ForCausalLM", "LongcatFlashForCausalLM"),
}
# Ours differ from those of transformers.
OTHER_DEFAULTS = {
    *("Qwen3VLMoeTextForCausalLM", "HyperCLOVAXForCausalLM", "AfmoeForCausalLM"),
    *("Kolibri1ForCausalLM", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"),
}
_REPACKED = ("ChatGLM", "InternLM2")
THEIRS = [n for n in ARCHITECTURES if not n.startswith(_REPACKED) and n not in OWN_CODE]


def defaults_of(architecture: str) -> tuple[dict[str, Any], transformers.PreTrainedConfig]:
    """Return some sizes, and the configuration of transformers with its defaults for the rest."""
    name = OWN_CONFIGS.get(architecture, architecture.replace("ForCausalLM", "Config"))
    sizes = {
        "vocab_size": 300_000,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_attention_heads": 64,
        "intermediate_size": 128,
        **WITHOUT_DEFAULTS.get(architecture, {}),
    }
    theirs = getattr(transformers, name)(**sizes)
    return sizes, theirs


@pytest.mark.parametrize("architecture", THEIRS)
def test_defaults_equal_those_of_transformers(architecture: str) -> None:
    sizes, theirs = defaults_of(architecture)
    theirs.allow_global_per_layer_attribute_access = True  # else Gemma 4 raises an error
    ours = ModelConfig.from_hf({**sizes, "architectures": [architecture]})
    # The class of MiMo, not its configuration, has more of them in layers with a window.
    listed = () if architecture == "MiMoV2FlashForCausalLM" else ours.layer_sizes
    for i, size in enumerate(listed):
        layer = theirs.per_layer_config[i]
        assert (size.head_dim, size.num_kv_heads) == (layer.head_dim, layer.num_key_value_heads)
    rope = getattr(theirs, "rope_parameters", None) or {}
    nested = rope.get("full_attention", rope)
    assert ours.num_kv_heads == getattr(theirs, "num_key_value_heads", None) or ours.num_heads
    if ours.latent is None and ours.attention_layers:
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64)
    elif ours.latent is not None:
        parts = (ours.latent.nope_dim, ours.latent.rope_dim, ours.latent.value_dim)
        assert parts == (theirs.qk_nope_head_dim, theirs.qk_rope_head_dim, theirs.v_head_dim)
        assert ours.head_dim == parts[0] + parts[1]
    # These have no field of this name for the longest context, nor have models without attention.
    unnamed = ("BloomForCausalLM", "MptForCausalLM")
    named = architecture not in unnamed
    if named and ours.attention_layers:
        assert ours.max_context_tokens == theirs.max_position_embeddings
    eps = [
        value
        for key, value in vars(theirs).items()
        if key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
        and value is not None
    ]
    # It is that of a stream divided by the scale of the residual branches.
    assert [ours.norm_eps * ours.residual_scale**2] == pytest.approx(eps or [1e-5])
    if ours.rope is not None:
        assert ours.rope.theta == nested.get("rope_theta", 10_000.0)
        whole = ours.rope.rotary_dim or ours.head_dim
        if ours.rope.num_pairs is not None:
            widest = ours.layer_sizes[-1].head_dim if ours.layer_sizes else ours.head_dim
            whole = ours.rope.num_pairs * 2 * ours.head_dim // widest
        assert ours.latent is not None or whole == getattr(
            theirs, "rotary_dim", int(ours.head_dim * nested.get("partial_rotary_factor", 1.0))
        )
    if ours.local_rope is not None:
        assert ours.local_rope.theta == rope["sliding_attention"]["rope_theta"]
    kinds = getattr(theirs, "layer_types", None)
    windowed = bool(getattr(theirs, "sliding_window", None))
    if kinds and "sliding_attention" not in kinds:
        windowed = False
    if windowed and kinds:
        full = {i for i, kind in enumerate(kinds) if kind == "full_attention"}
        assert ours.full_layers == full
    # Qwen2-MoE in transformers has 0 for no window, with layer types all the same.
    if windowed or not kinds:
        window = getattr(theirs, "sliding_window", None) or getattr(theirs, "window_size", None)
        assert ours.sliding_window == (window or None)
    ends = theirs.eos_token_id
    assert (ours.bos_id, ours.eos_ids) == (
        theirs.bos_token_id,
        tuple(ends if isinstance(ends, list) else [ends] if ends is not None else []),
    )
    assert ours.tied_embeddings == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    "architecture", [n for n in THEIRS if n not in CONTRADICTED | OTHER_DEFAULTS]
)
def test_a_file_with_all_defaults_reads_as_one_without(architecture: str) -> None:
    sizes, theirs = defaults_of(architecture)
    named = {"architectures": [architecture]}
    assert ModelConfig.from_hf({**theirs.to_dict(), **named}) == ModelConfig.from_hf(sizes | named)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_full_attention_ends_each_group_of_layers(size: int) -> None:
    sizes = {"vocab_size": 300_000, "num_hidden_layers": 6, "layer_group_size": size}
    kinds = transformers.BailingHybridConfig(**sizes).layer_types
    ours = ModelConfig.from_hf({**sizes, "architectures": ["BailingHybridForCausalLM"]})
    assert ours.attention_layers == [i for i, k in enumerate(kinds) if k == "full_attention"]

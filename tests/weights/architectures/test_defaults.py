"""What a config.json leaves out has the value that transformers gives it."""

from typing import Any

import pytest
import transformers

from swiftchat.weights.architectures.config import read_model_config
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
OTHER_KV_HEADS = OTHER_DEFAULTS | {"FalconForCausalLM"}
_REPACKED = ("ChatGLM", "InternLM2")
# Transformers has no class for them.
_OWN_CODE = ("MiniCPMForCausalLM", "ExaoneForCausalLM", "BailingMoeV2ForCausalLM")
THEIRS = [n for n in ARCHITECTURES if not n.startswith(_REPACKED) and n not in _OWN_CODE]


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
    ours = read_model_config({**sizes, "architectures": [architecture]})
    # The class of MiMo, not its configuration, has more of them in layers with a window.
    sizes_differ = len({(each.head_dim, each.num_kv_heads) for each in ours.attentions}) > 1
    is_listed = sizes_differ and architecture != "MiMoV2FlashForCausalLM"
    for i, own in enumerate(ours.layers if is_listed else ()):
        layer = theirs.per_layer_config[i]
        assert own.attention is not None
        sizes = own.attention.head_dim, own.attention.num_kv_heads
        assert sizes == (layer.head_dim, layer.num_key_value_heads)
    rope = getattr(theirs, "rope_parameters", None) or {}
    nested = rope.get("full_attention", rope)
    attention = ours.attention
    kv_heads = getattr(theirs, "num_key_value_heads", None) or attention.num_heads
    # Falcon's are in another key; latent attention has as many as query heads.
    if attention.latent is None and ours.has_attention and architecture not in OTHER_KV_HEADS:
        assert attention.num_kv_heads == kv_heads
    if attention.latent is None and ours.attention_layers:
        assert attention.head_dim == (getattr(theirs, "head_dim", None) or 64)
    elif attention.latent is not None:
        parts = (
            attention.latent.nope_dim,
            attention.latent.rope_dim,
            attention.latent.value_dim,
        )
        assert parts == (theirs.qk_nope_head_dim, theirs.qk_rope_head_dim, theirs.v_head_dim)
        assert attention.head_dim == parts[0] + parts[1]
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
    assert [ours.norm.eps * ours.residual_scale**2] == pytest.approx(eps or [1e-5])
    rotated = [each for each in ours.attentions if each.rope is not None]
    full = [each for each in rotated if each.scores.window is None] or rotated
    if full and full[0].rope is not None:
        own_rope, head_dim = full[0].rope, attention.head_dim
        assert own_rope.theta == nested.get("rope_theta", 10_000.0)
        whole = own_rope.rotary_dim or head_dim
        if own_rope.num_pairs is not None:
            whole = own_rope.num_pairs * 2 * head_dim // full[0].head_dim
        assert attention.latent is not None or whole == getattr(
            theirs,
            "rotary_dim",
            int(attention.head_dim * nested.get("partial_rotary_factor", 1.0)),
        )
    if len(ours.ropes) > 1:
        local = next(each.rope for each in rotated if each.scores.window is not None)
        assert local is not None and local.theta == rope["sliding_attention"]["rope_theta"]
    kinds = getattr(theirs, "layer_types", None)
    windowed = bool(getattr(theirs, "sliding_window", None))
    if kinds and "sliding_attention" not in kinds:
        windowed = False
    if windowed and kinds:
        for layer, kind in zip(ours.layers, kinds, strict=True):
            if layer.attention is not None:
                assert (layer.attention.scores.window is None) == (kind == "full_attention")
    # Qwen2-MoE in transformers has 0 for no window, with layer types all the same.
    if windowed or not kinds:
        window = getattr(theirs, "sliding_window", None) or getattr(theirs, "window_size", None)
        own_windows = {each.scores.window for each in ours.attentions} - {None}
        assert own_windows == ({window} if window else set())
    ends = theirs.eos_token_id
    assert (ours.bos_id, ours.eos_ids) == (
        theirs.bos_token_id,
        tuple(ends if isinstance(ends, list) else [ends] if ends is not None else []),
    )
    assert ours.head.tied == theirs.tie_word_embeddings


@pytest.mark.parametrize(
    "architecture", [n for n in THEIRS if n not in CONTRADICTED | OTHER_DEFAULTS]
)
def test_a_file_with_all_defaults_reads_as_one_without(architecture: str) -> None:
    sizes, theirs = defaults_of(architecture)
    named = {"architectures": [architecture]}
    assert read_model_config({**theirs.to_dict(), **named}) == read_model_config(sizes | named)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_full_attention_ends_each_group_of_layers(size: int) -> None:
    sizes = {"vocab_size": 300_000, "num_hidden_layers": 6, "layer_group_size": size}
    kinds = transformers.BailingHybridConfig(**sizes).layer_types
    ours = read_model_config({**sizes, "architectures": ["BailingHybridForCausalLM"]})
    assert ours.attention_layers == [i for i, k in enumerate(kinds) if k == "full_attention"]

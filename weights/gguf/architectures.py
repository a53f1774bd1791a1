"""The architectures of GGUF files: which model each becomes, and the config fields it stores.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.architecture import frozen
from swiftchat.weights.architectures.parts.variants import Variants, chosen
from swiftchat.weights.architectures.registry import unknown_name
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf import (
    expert_fields,
    gemma_fields,
    latent_fields,
    mixer_fields,
    model_fields,
)
from swiftchat.weights.gguf.gguf_architecture import GgufArchitecture
from swiftchat.weights.gguf.metadata import Metadata

# The norm before the MLP has the name of one after the attention.
_POST_NORM = frozen(mlp_norm="blk.{i}.post_attention_norm.weight")
_SHORT_CONV = frozen(
    final_norm="token_embd_norm.weight",
    **{
        f"mixer_{name}{bias}": f"blk.{{i}}.shortconv.{own}.{bias[1:] or 'weight'}"
        for name, own in (("in", "in_proj"), ("conv", "conv"), ("out", "out_proj"))
        for bias in ("", "_bias")
    },
)
_KIMI_DELTA = frozen(
    mixer_step="blk.{i}.ssm_f_b.weight",
    mixer_out="blk.{i}.attn_output.weight",
)
# A layer has one norm.
_ONE_NORM = frozen(mlp_norm="blk.{i}.attn_norm.weight")
_PERMUTED = frozenset({"q", "k", "q_bias", "k_bias"})
_WITHOUT_ROPE = frozenset({"rope_theta", "partial_rotary_factor"})
_ONE_HEAD_SIZE = frozenset({"head_dim"})
_LATENT = frozenset({"head_dim", "num_key_value_heads", "partial_rotary_factor"})
_ONE_HEAD_COUNT = frozenset({"num_key_value_heads"})
_NO_HEADS = frozenset(
    {"head_dim", "num_attention_heads", "num_key_value_heads", "max_position_embeddings"}
    | {"intermediate_size"}
)


_NEMOTRON_H = GgufArchitecture(
    "NemotronHForCausalLM",
    mixer_fields.nemotron_h,
    absent_keys=_WITHOUT_ROPE | {"num_hidden_layers"},
    tensors=_ONE_NORM,
)

# Mistral models have the architecture llama.
GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        "llama": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "llama4": GgufArchitecture("Llama4ForCausalLM", expert_fields.llama4),
        "qwen2": GgufArchitecture("Qwen2ForCausalLM"),
        "qwen3": GgufArchitecture("Qwen3ForCausalLM"),
        "qwen3moe": GgufArchitecture("Qwen3MoeForCausalLM", expert_fields.qwen3moe),
        "smollm3": GgufArchitecture("SmolLM3ForCausalLM", permuted=_PERMUTED),
        "phi3": GgufArchitecture("Phi3ForCausalLM"),
        "olmo2": GgufArchitecture("Olmo2ForCausalLM"),
        "granite": GgufArchitecture("GraniteForCausalLM", model_fields.granite, permuted=_PERMUTED),
        # MiniCPM 1, 2 and 4 compute what Granite does.
        "minicpm": GgufArchitecture("GraniteForCausalLM", model_fields.minicpm, permuted=_PERMUTED),
        # EXAONE 3 is Llama with other names, in the order of Hugging Face.
        "exaone": GgufArchitecture("LlamaForCausalLM"),
        "apertus": GgufArchitecture("ApertusForCausalLM", model_fields.apertus),
        "granitemoe": GgufArchitecture(
            "GraniteMoeForCausalLM",
            expert_fields.granite_moe,
            permuted=_PERMUTED,
            absent_keys=_ONE_HEAD_SIZE,
        ),
        "phimoe": GgufArchitecture(
            "PhimoeForCausalLM", expert_fields.phimoe, absent_keys=_ONE_HEAD_SIZE
        ),
        "afmoe": GgufArchitecture("AfmoeForCausalLM", expert_fields.afmoe),
        "dbrx": GgufArchitecture(
            "DbrxForCausalLM",
            expert_fields.dbrx,
            absent_keys=_WITHOUT_ROPE
            | _ONE_HEAD_SIZE
            | _ONE_HEAD_COUNT
            | {"intermediate_size", "rms_norm_eps", "hidden_act"},
            tensors=frozen(mlp_norm="blk.{i}.attn_output_norm.weight"),
        ),
        # With experts it is another class, see `_VARIANTS`.
        "granite_swa": GgufArchitecture(
            "GraniteSWAForCausalLM", model_fields.granite_swa, permuted=_PERMUTED
        ),
        "bitnet": GgufArchitecture("BitNetForCausalLM", model_fields.bitnet),
        "arcee": GgufArchitecture("ArceeForCausalLM", permuted=_PERMUTED),
        "command-r": GgufArchitecture(
            "CohereForCausalLM", model_fields.command_r, absent_keys=_ONE_HEAD_SIZE
        ),
        "cohere2": GgufArchitecture(
            "Cohere2ForCausalLM", model_fields.cohere2, absent_keys=_ONE_HEAD_SIZE
        ),
        "cohere2moe": GgufArchitecture(
            "Cohere2MoeForCausalLM",
            expert_fields.cohere2_moe,
            absent_keys=frozenset({"intermediate_size", "rms_norm_eps"}),
        ),
        "exaone4": GgufArchitecture("Exaone4ForCausalLM", model_fields.windows),
        "olmo": GgufArchitecture("OlmoForCausalLM", model_fields.olmo, permuted=_PERMUTED),
        "olmoe": GgufArchitecture("OlmoeForCausalLM", expert_fields.olmoe),
        "nemotron": GgufArchitecture("NemotronForCausalLM"),
        "jais2": GgufArchitecture("Jais2ForCausalLM"),
        "mpt": GgufArchitecture(
            "MptForCausalLM",
            model_fields.mpt,
            absent_keys=_WITHOUT_ROPE
            | _ONE_HEAD_SIZE
            | _ONE_HEAD_COUNT
            | {"intermediate_size", "hidden_act"},
        ),
        "seed_oss": GgufArchitecture(
            "SeedOssForCausalLM", model_fields.seed_oss, tensors=_POST_NORM
        ),
        "ernie4_5": GgufArchitecture("Ernie4_5ForCausalLM", model_fields.starcoder2),
        "ernie4_5-moe": GgufArchitecture(
            "Ernie4_5_MoeForCausalLM", expert_fields.ernie_moe, absent_keys=_ONE_HEAD_SIZE
        ),
        "hunyuan-dense": GgufArchitecture("HunYuanDenseV1ForCausalLM", model_fields.glm),
        "qwen2moe": GgufArchitecture("Qwen2MoeForCausalLM", expert_fields.qwen2moe),
        "glm4moe": GgufArchitecture(
            "Glm4MoeForCausalLM", expert_fields.glm4moe, tensors=_POST_NORM
        ),
        # Ling 2.0 and Ring 2.0 compute what GLM-4.5 does.
        "bailingmoe2": GgufArchitecture("Glm4MoeForCausalLM", expert_fields.glm4moe),
        "hunyuan_vl": GgufArchitecture("HunYuanDenseV1ForCausalLM", model_fields.glm),
        "dots1": GgufArchitecture("Dots1ForCausalLM", expert_fields.dots1),
        "gpt-oss": GgufArchitecture("GptOssForCausalLM", expert_fields.mixtral, tensors=_POST_NORM),
        # With DeepSeek-V2's router; others see `_VARIANTS`.
        "deepseek2": GgufArchitecture(
            "DeepseekV2ForCausalLM", latent_fields.deepseek_v2, absent_keys=_LATENT
        ),
        # Its experts have gate and up in one tensor.
        "mistral4": GgufArchitecture(
            "Mistral4ForCausalLM", latent_fields.mistral4, absent_keys=_LATENT
        ),
        "deepseek32": GgufArchitecture(
            "DeepseekV32ForCausalLM", latent_fields.sparse_latent, absent_keys=_LATENT
        ),
        "glm-dsa": GgufArchitecture(
            "GlmMoeDsaForCausalLM", latent_fields.sparse_latent, absent_keys=_LATENT
        ),
        "bailingmoe3": GgufArchitecture(
            "BailingHybridForCausalLM",
            latent_fields.bailing_hybrid,
            absent_keys=_LATENT,
            tensors=frozen(mixer_out="blk.{i}.attn_output.weight"),
        ),
        "kimi-linear": GgufArchitecture(
            "KimiLinearForCausalLM",
            latent_fields.kimi_linear,
            absent_keys=_LATENT,
            tensors=_KIMI_DELTA,
        ),
        "minicpm3": GgufArchitecture(
            "MiniCPM3ForCausalLM", latent_fields.minicpm3, absent_keys=_LATENT
        ),
        "lfm2": GgufArchitecture("Lfm2ForCausalLM", mixer_fields.lfm2, tensors=_SHORT_CONV),
        "lfm2moe": GgufArchitecture(
            "Lfm2MoeForCausalLM", mixer_fields.lfm2_moe, tensors=_SHORT_CONV
        ),
        "granitehybrid": GgufArchitecture(
            "GraniteMoeHybridForCausalLM",
            mixer_fields.granite_hybrid,
            permuted=_PERMUTED,
            absent_keys=_ONE_HEAD_SIZE,
        ),
        "nemotron_h": _NEMOTRON_H,
        "nemotron_h_moe": _NEMOTRON_H,
        # Its norm before the MLP lacks the usual suffix.
        "falcon-h1": GgufArchitecture(
            "FalconH1ForCausalLM",
            mixer_fields.falcon_h1,
            tensors=frozen(mlp_norm="blk.{i}.ffn_norm"),
        ),
        # Falcon-Mamba too, see `_VARIANTS`.
        "mamba": GgufArchitecture(
            "MambaForCausalLM", mixer_fields.mamba, absent_keys=_NO_HEADS | _WITHOUT_ROPE
        ),
        "mamba2": GgufArchitecture(
            "Mamba2ForCausalLM", mixer_fields.mamba2, absent_keys=_NO_HEADS | _WITHOUT_ROPE
        ),
        "qwen3next": GgufArchitecture(
            "Qwen3NextForCausalLM", mixer_fields.qwen3_next, tensors=_POST_NORM
        ),
        "qwen35": GgufArchitecture(
            "Qwen3_5ForCausalLM",
            mixer_fields.gated_delta,
            tensors=_POST_NORM,
            value_heads_in_turns=True,
        ),
        "qwen35moe": GgufArchitecture(
            "Qwen3_5MoeForCausalLM",
            mixer_fields.qwen35_moe,
            absent_keys=frozenset({"intermediate_size"}),
            tensors=_POST_NORM,
            value_heads_in_turns=True,
        ),
        # Without images, Qwen-VL computes what its language model does.
        "qwen2vl": GgufArchitecture("Qwen2ForCausalLM"),
        "qwen3vl": GgufArchitecture("Qwen3ForCausalLM"),
        "qwen3vlmoe": GgufArchitecture("Qwen3MoeForCausalLM", expert_fields.qwen3moe),
        # With queries that grow; others see `_VARIANTS`.
        "mistral3": GgufArchitecture(
            "Ministral3ForCausalLM", model_fields.no_fields, permuted=_PERMUTED
        ),
        "hunyuan-moe": GgufArchitecture("HunYuanMoEV1ForCausalLM", expert_fields.hunyuan_moe),
        "hy_v3": GgufArchitecture("HYV3ForCausalLM", expert_fields.hy_v3),
        "mellum": GgufArchitecture(
            "MellumForCausalLM", expert_fields.mellum, absent_keys=_WITHOUT_ROPE
        ),
        "laguna": GgufArchitecture(
            "LagunaForCausalLM", expert_fields.laguna, absent_keys=_WITHOUT_ROPE
        ),
        "exaone-moe": GgufArchitecture("ExaoneMoeForCausalLM", expert_fields.exaone_moe),
        "jamba": GgufArchitecture(
            "JambaForCausalLM", mixer_fields.jamba, absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE
        ),
        "minimax-m2": GgufArchitecture("MiniMaxM2ForCausalLM", expert_fields.minimax_m2),
        "mimo2": GgufArchitecture(
            "MiMoV2FlashForCausalLM",
            expert_fields.mimo2,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_COUNT | {"sliding_window"},
        ),
        # With separate q, k and v it is a Llama, whose class is part of transformers.
        "internlm2": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "stablelm": GgufArchitecture(
            "StableLmForCausalLM", model_fields.stablelm, absent_keys=_ONE_HEAD_SIZE
        ),
        # ChatGLM2 and ChatGLM3 too: they are equivalent to transformers' GLM.
        "chatglm": GgufArchitecture("GlmForCausalLM", model_fields.glm),
        "glm4": GgufArchitecture("Glm4ForCausalLM", model_fields.glm),
        "gemma": GgufArchitecture("GemmaForCausalLM", model_fields.no_fields),
        "gemma2": GgufArchitecture("Gemma2ForCausalLM", gemma_fields.gemma2),
        "gemma3": GgufArchitecture("Gemma3ForCausalLM", gemma_fields.gemma3),
        "gemma3n": GgufArchitecture("Gemma3nForCausalLM", gemma_fields.gemma3n),
        "gemma4": GgufArchitecture(
            "Gemma4ForCausalLM",
            gemma_fields.gemma4,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "gpt2": GgufArchitecture(
            "GPT2LMHeadModel",
            model_fields.no_fields,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "gptneox": GgufArchitecture(
            "GPTNeoXForCausalLM",
            model_fields.gptneox,
            absent_keys=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "phi2": GgufArchitecture(
            "PhiForCausalLM", model_fields.no_fields, absent_keys=_ONE_HEAD_SIZE
        ),
        "starcoder2": GgufArchitecture(
            "Starcoder2ForCausalLM", model_fields.starcoder2, absent_keys=_ONE_HEAD_SIZE
        ),
        "bloom": GgufArchitecture(
            "BloomForCausalLM",
            model_fields.no_fields,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT | {"hidden_act"},
            renamed=MappingProxyType(
                {
                    "num_hidden_layers": "n_layer",
                    "num_attention_heads": "n_head",
                    "max_position_embeddings": "seq_length",
                    "rms_norm_eps": "layer_norm_epsilon",
                }
            ),
        ),
        "falcon": GgufArchitecture(
            "FalconForCausalLM",
            model_fields.falcon,
            absent_keys=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
            renamed=MappingProxyType(
                {
                    "intermediate_size": "ffn_hidden_size",
                    "rms_norm_eps": "layer_norm_epsilon",
                    "hidden_act": "activation",
                }
            ),
            separate_norm_tensors=MappingProxyType(
                {
                    "attn_norm": "blk.{i}.attn_norm_2.weight",
                    "attn_norm_bias": "blk.{i}.attn_norm_2.bias",
                    "mlp_norm": "blk.{i}.attn_norm.weight",
                    "mlp_norm_bias": "blk.{i}.attn_norm.bias",
                }
            ),
        ),
    }
)
# Architectures that several classes share: in which files one is not that of the table above.
_VARIANTS: Mapping[str, Variants[Metadata, GgufArchitecture]] = frozen(
    llama=(
        (
            lambda metadata: metadata.get("expert_count"),
            GgufArchitecture("MixtralForCausalLM", expert_fields.mixtral, permuted=_PERMUTED),
        ),
    ),
    mistral3=(
        (
            lambda metadata: not metadata.get("attention.temperature_scale"),
            GGUF_ARCHITECTURES["llama"],
        ),
    ),
    # OLMo 3 has windows.
    olmo2=(
        (
            lambda metadata: metadata.get("attention.sliding_window"),
            GgufArchitecture("Olmo3ForCausalLM", model_fields.windows),
        ),
    ),
    granite_swa=(
        (
            lambda metadata: metadata.get("expert_count"),
            GgufArchitecture(
                "GraniteMoeSWAForCausalLM",
                expert_fields.granite_moe_swa,
                permuted=_PERMUTED,
                absent_keys=_ONE_HEAD_SIZE,
            ),
        ),
    ),
    # Falcon-Mamba has norms of steps and of what writes and reads the state.
    mamba=(
        (
            lambda metadata: metadata.get("ssm.dt_b_c_rms"),
            GgufArchitecture(
                "FalconMambaForCausalLM",
                mixer_fields.mamba,
                absent_keys=_NO_HEADS | _WITHOUT_ROPE,
            ),
        ),
    ),
    # Youtu has no experts; DeepSeek V3, Kimi K2 and GLM-4.7-Flash have sigmoid routers.
    deepseek2=(
        (
            lambda metadata: not metadata.get("expert_count"),
            GgufArchitecture("YoutuForCausalLM", latent_fields.youtu, absent_keys=_LATENT),
        ),
        (
            latent_fields.has_sigmoid_router,
            GgufArchitecture(
                "DeepseekV3ForCausalLM", latent_fields.deepseek_v3, absent_keys=_LATENT
            ),
        ),
    ),
)


def _reject_other_kinds(file: GgufFile, architecture: str) -> None:
    """Raise `BadModelFile` for a file beside a model that is not one."""
    kind = file.metadata.get("general.type")
    if kind == "mmproj" or architecture in ("clip", "clip-vision"):
        what = "it holds the vision or audio part of a model"
    elif kind == "imatrix" or architecture == "imatrix":
        what = "it is an importance matrix, from which models are quantized"
    elif kind == "vocab" or not file.tensors:
        what = "it holds a vocabulary without weights"
    else:
        return
    raise BadModelFile(
        f"{file.path} is not a language model: {what}",
        "choose the other .gguf file of the same model, with a type such as Q4_K_M in its name",
    )


def gguf_architecture(file: GgufFile) -> tuple[GgufArchitecture, Metadata]:
    """Return the architecture of `file` and its metadata.

    Raises `BadModelFile` for an unknown architecture.
    """
    name = str(file.metadata.get("general.architecture"))
    _reject_other_kinds(file, name)
    if name not in GGUF_ARCHITECTURES:
        error = unknown_name("GGUF architecture", name, sorted(GGUF_ARCHITECTURES))
        raise BadModelFile(f"{file.path}: {error.message}", error.hint)
    metadata = Metadata(file, name)
    return chosen(GGUF_ARCHITECTURES[name], _VARIANTS.get(name, ()), metadata), metadata

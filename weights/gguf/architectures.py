"""The architectures of GGUF files: which model each becomes, and the config fields it stores.

Source: llama.cpp's converter and loader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen
from swiftchat.weights.architectures.registry import ARCHITECTURES, unknown_name
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf import (
    expert_fields,
    gemma_fields,
    latent_fields,
    mixer_fields,
    model_fields,
)
from swiftchat.weights.gguf.metadata import Metadata
from swiftchat.weights.gguf.tensor_names import TENSORS

__all__ = ["GGUF_ARCHITECTURES", "GgufArchitecture", "gguf_architecture"]

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


@dataclass(frozen=True)
class GgufArchitecture:
    """One `general.architecture` as data.

    `class_name` is the Hugging Face class that its models become. `config_fields` returns the
    fields of `config.json` beyond those of every model; None values are left out, so that the
    defaults of the class apply. `absent_keys` are standard fields that the class does not have;
    `renamed` replaces the class's own `Architecture.renamed`.

    `permuted` tensors store the rows of each head in the order for interleaved rotary
    embeddings. `separate_norm_tensors` are the names that differ where attention and MLP read
    the same residual stream through a norm each; `tensors` are other names that differ. With
    `value_heads_in_turns`, gated DeltaNet has the order of `value_heads.py`. In
    every GGUF file norms with a unit offset are stored with 1 added, matrices are [out, in],
    and merged q/k/v are stored as all queries, all keys, all values.
    """

    class_name: str
    config_fields: Callable[[Metadata], Mapping[str, Any]] = model_fields.llama
    permuted: frozenset[str] = frozenset()
    absent_keys: frozenset[str] = frozenset()
    renamed: Mapping[str, str] | None = None
    separate_norm_tensors: Mapping[str, str] = field(default_factory=frozen)
    tensors: Mapping[str, str] = field(default_factory=frozen)
    value_heads_in_turns: bool = False

    @property
    def target(self) -> Architecture:
        """The table entry of `class_name`."""
        return ARCHITECTURES[self.class_name]

    def tensor_name(self, config: ModelConfig, canonical: str) -> str:
        """Return the GGUF name of a canonical tensor, with `{i}` for the layer."""
        separate_norms = config.parallel_residual and not config.shared_norm
        names = self.separate_norm_tensors if separate_norms else self.tensors
        return names.get(canonical, TENSORS[canonical])

    def config_key(self, standard: str) -> str:
        """Return the key of a standard field in the model's `config.json`."""
        renamed = self.target.renamed if self.renamed is None else self.renamed
        return renamed.get(standard, standard)


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
        "arcee": GgufArchitecture("ArceeForCausalLM", permuted=_PERMUTED),
        "command-r": GgufArchitecture(
            "CohereForCausalLM", model_fields.command_r, absent_keys=_ONE_HEAD_SIZE
        ),
        "cohere2": GgufArchitecture(
            "Cohere2ForCausalLM", model_fields.cohere2, absent_keys=_ONE_HEAD_SIZE
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
        # With DeepSeek-V2's router; others see `gguf_architecture`.
        "deepseek2": GgufArchitecture(
            "DeepseekV2ForCausalLM", latent_fields.deepseek_v2, absent_keys=_LATENT
        ),
        # Its experts have gate and up in one tensor.
        "mistral4": GgufArchitecture(
            "Mistral4ForCausalLM", latent_fields.mistral4, absent_keys=_LATENT
        ),
        "glm-dsa": GgufArchitecture(
            "GlmMoeDsaForCausalLM", latent_fields.glm_dsa, absent_keys=_LATENT
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
        # Falcon-Mamba too, see `gguf_architecture`.
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
        # With queries that grow; others see `gguf_architecture`.
        "mistral3": GgufArchitecture(
            "Ministral3ForCausalLM", model_fields.no_fields, permuted=_PERMUTED
        ),
        "hunyuan-moe": GgufArchitecture("HunYuanMoEV1ForCausalLM", expert_fields.hunyuan_moe),
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
        "starcoder": GgufArchitecture(
            "GPTBigCodeForCausalLM",
            model_fields.starcoder,
            absent_keys=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
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
# Mixtral's files have the architecture llama and a number of experts.
_MIXTRAL = GgufArchitecture("MixtralForCausalLM", expert_fields.mixtral, permuted=_PERMUTED)


# DeepSeek V3, Kimi K2 and GLM-4.7-Flash have the architecture deepseek2 and sigmoid routers, Youtu
# has no experts.
_DEEPSEEK_V3 = GgufArchitecture(
    "DeepseekV3ForCausalLM", latent_fields.deepseek_v3, absent_keys=_LATENT
)
_YOUTU = GgufArchitecture("YoutuForCausalLM", latent_fields.youtu, absent_keys=_LATENT)

# Files of Falcon-Mamba have norms of steps and of what writes and reads the state.
_FALCON_MAMBA = GgufArchitecture(
    "FalconMambaForCausalLM", mixer_fields.mamba, absent_keys=_NO_HEADS | _WITHOUT_ROPE
)

# OLMo 3's have the architecture olmo2 and windows.
_OLMO3 = GgufArchitecture("Olmo3ForCausalLM", model_fields.windows)


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
    if name == "llama" and metadata.get("expert_count"):
        return _MIXTRAL, metadata
    if name == "mistral3" and not metadata.get("attention.temperature_scale"):
        return GGUF_ARCHITECTURES["llama"], metadata
    if name == "olmo2" and metadata.get("attention.sliding_window"):
        return _OLMO3, metadata
    if name == "mamba" and metadata.get("ssm.dt_b_c_rms"):
        return _FALCON_MAMBA, metadata
    if name == "deepseek2" and not metadata.get("expert_count"):
        return _YOUTU, metadata
    if name == "deepseek2" and latent_fields.has_sigmoid_router(metadata):
        return _DEEPSEEK_V3, metadata
    return GGUF_ARCHITECTURES[name], metadata

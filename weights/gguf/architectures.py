"""The architectures of GGUF files as data: what model each becomes, and what differs in it.

Facts are those of llama.cpp: its converter, its loader, and the names of its `gguf` package.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.architecture import Architecture
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES, unknown_name
from swiftchat.weights.architectures.tensor_names import table
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf import settings
from swiftchat.weights.gguf.settings import Said

__all__ = ["GGUF_ARCHITECTURES", "GgufArchitecture", "gguf_architecture"]

_TENSORS = table(
    {
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "qkv": "attn_qkv.weight",
        "o": "attn_output.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "gate_up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "router": "ffn_gate_inp.weight",
        "expert_gate": "ffn_gate_exps.weight",
        "expert_up": "ffn_up_exps.weight",
        "expert_down": "ffn_down_exps.weight",
        "expert_gate_up": "ffn_gate_up_exps.weight",
        "attn_norm": "attn_norm.weight",
        "mlp_norm": "ffn_norm.weight",
        "attn_norm_bias": "attn_norm.bias",
        "mlp_norm_bias": "ffn_norm.bias",
        "attn_out_norm": "post_attention_norm.weight",
        "mlp_out_norm": "post_ffw_norm.weight",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "qkv_bias": "attn_qkv.bias",
        "o_bias": "attn_output.bias",
        "gate_bias": "ffn_gate.bias",
        "up_bias": "ffn_up.bias",
        "down_bias": "ffn_down.bias",
    },
    embed="token_embd.weight",
    embed_norm="token_embd_norm.weight",
    embed_norm_bias="token_embd_norm.bias",
    positions="position_embd.weight",
    final_norm="output_norm.weight",
    final_norm_bias="output_norm.bias",
    lm_head="output.weight",
    lm_head_bias="output.bias",
    layer="blk.{i}.",
)
_PERMUTED = frozenset({"q", "k", "q_bias", "k_bias"})
_WITHOUT_ROPE = frozenset({"rope_theta", "partial_rotary_factor"})
_ONE_HEAD_SIZE = frozenset({"head_dim"})
_ONE_HEAD_COUNT = frozenset({"num_key_value_heads"})


@dataclass(frozen=True)
class GgufArchitecture:
    """One `general.architecture` as data.

    `architecture` is the Hugging Face class that its models become. `permuted` names what is
    stored with the rows of each head reordered for interleaved rotary embeddings;
    `two_norm_tensors` are the names that differ where attention and FFN have a norm each of the
    same stream. `settings` gives the fields of `config.json` that are not every model's,
    `without` the usual ones that its class does not have, `words` the class's spelling of the
    usual ones where that is not the family's. All else is the family's: norms that one is added
    to are stored with it added, matrices always as [out, in], and queries, keys and values
    always one kind after the other.
    """

    architecture: str
    settings: Callable[[Said], Mapping[str, Any]] = settings.like_llama
    permuted: frozenset[str] = frozenset()
    without: frozenset[str] = frozenset()
    words: Mapping[str, str] | None = None
    two_norm_tensors: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def family(self) -> Architecture:
        """What Hugging Face's side of it is."""
        return ARCHITECTURES[self.architecture]

    def tensor_name(self, config: ModelConfig, canonical: str) -> str:
        """The GGUF name of a canonical tensor; `{i}` stands for the layer."""
        two_norms = config.parallel_residual and not config.shared_norm
        names = self.two_norm_tensors if two_norms else {}
        return names.get(canonical, _TENSORS[canonical])

    def spelled(self, name: str) -> str:
        """The spelling of a usual field in the model's `config.json`."""
        words = self.family.fields if self.words is None else self.words
        return words.get(name, name)


# Mistral's models have no architecture of their own: their files say llama.
GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = MappingProxyType(
    {
        "llama": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "qwen2": GgufArchitecture("Qwen2ForCausalLM"),
        "qwen3": GgufArchitecture("Qwen3ForCausalLM"),
        "qwen3moe": GgufArchitecture("Qwen3MoeForCausalLM", settings.qwen3moe),
        "smollm3": GgufArchitecture("SmolLM3ForCausalLM", permuted=_PERMUTED),
        "phi3": GgufArchitecture("Phi3ForCausalLM"),
        "olmo2": GgufArchitecture("Olmo2ForCausalLM"),
        # With queries, keys and values apart it is a Llama, which needs no code of its makers.
        "internlm2": GgufArchitecture("LlamaForCausalLM", permuted=_PERMUTED),
        "stablelm": GgufArchitecture(
            "StableLmForCausalLM", settings.stablelm, without=_ONE_HEAD_SIZE
        ),
        # ChatGLM2 and 3 too: they compute what transformers' own Glm does.
        "chatglm": GgufArchitecture("GlmForCausalLM", settings.glm),
        "glm4": GgufArchitecture("Glm4ForCausalLM", settings.glm),
        "gemma": GgufArchitecture("GemmaForCausalLM", settings.nothing),
        "gemma2": GgufArchitecture("Gemma2ForCausalLM", settings.gemma2),
        "gemma3": GgufArchitecture("Gemma3ForCausalLM", settings.gemma3),
        "gpt2": GgufArchitecture(
            "GPT2LMHeadModel",
            settings.nothing,
            without=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "gptneox": GgufArchitecture(
            "GPTNeoXForCausalLM",
            settings.gptneox,
            without=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
        ),
        "phi2": GgufArchitecture("PhiForCausalLM", settings.nothing, without=_ONE_HEAD_SIZE),
        "starcoder2": GgufArchitecture(
            "Starcoder2ForCausalLM", settings.starcoder2, without=_ONE_HEAD_SIZE
        ),
        "bloom": GgufArchitecture(
            "BloomForCausalLM",
            settings.nothing,
            without=_WITHOUT_ROPE | _ONE_HEAD_SIZE | _ONE_HEAD_COUNT | {"hidden_act"},
            words=MappingProxyType(
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
            settings.falcon,
            without=_ONE_HEAD_SIZE | _ONE_HEAD_COUNT,
            words=MappingProxyType(
                {
                    "intermediate_size": "ffn_hidden_size",
                    "rms_norm_eps": "layer_norm_epsilon",
                    "hidden_act": "activation",
                }
            ),
            two_norm_tensors=MappingProxyType(
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
# Mixtral's files say llama and how many experts there are.
_LLAMA_OF_EXPERTS = GgufArchitecture("MixtralForCausalLM", settings.mixtral, permuted=_PERMUTED)


def gguf_architecture(file: GgufFile) -> tuple[GgufArchitecture, Said]:
    """The architecture of `file` and what it says; an unknown one raises `BadModelFile`."""
    name = str(file.metadata.get("general.architecture"))
    if name not in GGUF_ARCHITECTURES:
        error = unknown_name("GGUF architecture", name, sorted(GGUF_ARCHITECTURES))
        raise BadModelFile(f"{file.path}: {error.message}", error.hint)
    said = Said(file, name)
    if name == "llama" and said.get("expert_count"):
        return _LLAMA_OF_EXPERTS, said
    return GGUF_ARCHITECTURES[name], said

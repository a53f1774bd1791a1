"""A tiny GGUF file of a Llama of transformers, written with the reference package."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

import gguf
from tests.support.gguf.blocks import random_blocks

if TYPE_CHECKING:
    import transformers

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
# Characters that GPT-2's byte alphabet leaves unchanged, a few merges, and special tokens.
LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
MERGES = ["a b", "ab c", "Ġ a", "1 2"]
PIECES = [*LETTERS, "Ġ", *(merge.replace(" ", "") for merge in MERGES)]
TOKENS = [*PIECES, "<|begin|>", "<|end|>", "<user>", "[PAD102]"]
KINDS = [1] * len(PIECES) + [3, 3, 4, 5]


def rows_for_gguf(rows: np.ndarray, heads: int) -> np.ndarray:
    """Reorder rows for interleaved rotary embeddings: the two halves of each head alternate."""
    halves = np.split(rows.reshape(heads, -1, *rows.shape[1:]), 2, axis=1)
    return np.stack(halves, axis=2).reshape(rows.shape)


def gguf_name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    middle, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{NAMES.get(middle, middle)}.{kind}"


def write(
    path: Path,
    model: "transformers.PreTrainedModel",
    *,
    quantize: gguf.GGMLQuantizationType | None = None,
    mixed: Mapping[str, gguf.GGMLQuantizationType] = MappingProxyType({}),
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> None:
    """Write `model`; `metadata` replaces (None: removes) keys, `tensors` adds more tensors.

    Matrices get the type `quantize`, those whose GGUF name contains a key of `mixed` its value;
    they get random values in a type that the `gguf` package cannot make.
    """
    config = model.config
    changes = metadata or {}
    writer = gguf.GGUFWriter(path, changes.pop("general.architecture", "llama"))
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    pairs: dict[str, Any] = {
        "general.license": "apache-2.0",
        "llama.block_count": config.num_hidden_layers,
        "llama.context_length": config.max_position_embeddings,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "llama.rope.dimension_count": head_dim,
        "llama.attention.key_length": head_dim,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": TOKENS.index("<|begin|>"),
        "tokenizer.ggml.eos_token_id": TOKENS.index("<|end|>"),
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
        **changes,
    }
    for key, value in pairs.items():
        if value is not None:
            add(writer, key, value)
    for name, parameter in model.named_parameters():
        kind = next((k for part, k in mixed.items() if part in gguf_name(name)), quantize)
        _add_tensor(writer, name, parameter.detach().numpy(), config, kind)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    array: np.ndarray,
    config: "transformers.LlamaConfig",
    quantize: gguf.GGMLQuantizationType | None,
) -> None:
    if ".q_proj." in name:
        array = rows_for_gguf(array, config.num_attention_heads)
    if ".k_proj." in name:
        array = rows_for_gguf(array, config.num_key_value_heads)
    array = np.ascontiguousarray(array)
    if quantize is not None and array.ndim == 2:
        writer.add_tensor(gguf_name(name), _quantized(array, quantize), raw_dtype=quantize)
    else:
        writer.add_tensor(gguf_name(name), array)


def _quantized(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Return the blocks of a matrix; random ones of a type that the package cannot make."""
    try:
        return gguf.quantize(array, kind)
    except NotImplementedError:
        return random_blocks(kind.name, *array.shape, seed=len(array))

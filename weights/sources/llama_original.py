"""Meta's layout of Llama: `params.json` and `consolidated.*.pth`, one shard per GPU.

Tensors are sharded as by the parallel layers of Meta's reference implementation: by output
features (rows) for wq wk wv w1 w3 output, by input features (columns) for wo w2.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.files.reading import encode_json, read_json, read_side_file
from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.rounding import DTYPE_NAMES
from swiftchat.weights.sources.plan import GENERATION_CONFIG, Plan, parse_config
from swiftchat.weights.sources.sharded import (
    ShardedTensor,
    read_shard,
    rotary_halves,
    sharded_plan,
)

_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "embed": "tok_embeddings.weight",
        "final_norm": "norm.weight",
        "lm_head": "output.weight",
        "q": "layers.{i}.attention.wq.weight",
        "k": "layers.{i}.attention.wk.weight",
        "v": "layers.{i}.attention.wv.weight",
        "o": "layers.{i}.attention.wo.weight",
        "gate": "layers.{i}.feed_forward.w1.weight",
        "up": "layers.{i}.feed_forward.w3.weight",
        "down": "layers.{i}.feed_forward.w2.weight",
        "attn_norm": "layers.{i}.attention_norm.weight",
        "mlp_norm": "layers.{i}.ffn_norm.weight",
    }
)
_ROWS_COMPARED = 1024
_REPLICATED = ("attn_norm", "mlp_norm", "final_norm")
_BY_COLUMNS = ("o", "down")
_COPIED = ("tokenizer.model", "LICENSE", "LICENSE.txt", "README.md")
# The vocabulary size of Llama 3 identifies it.
_LLAMA3_VOCAB = 128_256


def is_meta(source: Path) -> bool:
    """Return whether the directory has the two kinds of files of this layout."""
    return (source / "params.json").is_file() and any(source.glob("consolidated.*.pth"))


def plan(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of the directory `source`; `dtype` None: its own.

    Raises `BadModelFile` for a missing shard, a tensor whose shape contradicts `params.json`, and
    a tensor that this layout does not have.
    """
    params = read_json(source / "params.json")
    shards = [Checkpoint(file, read_torch_checkpoint(file)) for file in _files(source)]
    read_shard(shards[0], _NAMES["embed"])
    dtype = dtype or DTYPE_NAMES[shards[0].tensors[_NAMES["embed"]].dtype]
    config_json = _config_json(source, params, shards, dtype)
    config = parse_config(config_json, str(source / "params.json"))
    _reject_unknown(shards, config)
    copied = [name for name in _COPIED if (source / name).is_file()]
    files = {name: read_side_file(source / name) for name in copied}
    files["config.json"] = encode_json(config_json)
    files[GENERATION_CONFIG] = encode_json(_generation_json(config))

    def tensor(canonical: str, layer: int | None) -> ShardedTensor:
        return _tensor(canonical, layer, config, shards)

    return sharded_plan(config, files, dtype, shards, tensor)


def _files(source: Path) -> list[Path]:
    files = sorted(source.glob("consolidated.*.pth"))
    for number, file in enumerate(files):
        if file.name != f"consolidated.{number:02}.pth":
            raise BadModelFile(
                f"{source}: expected consolidated.{number:02}.pth, found {file.name}"
            )
    return files


def _tensor(
    canonical: str, layer: int | None, config: ModelConfig, shards: Sequence[Checkpoint]
) -> ShardedTensor:
    if canonical not in _NAMES:
        raise BadModelFile(f"{shards[0].path}: Meta's layout has no {canonical}")
    name = _NAMES[canonical].format(i=layer)
    if canonical in _REPLICATED:
        return ShardedTensor([read_shard(shards[0], name)])
    arrays = [read_shard(shard, name) for shard in shards]
    for shard, array in zip(shards, arrays, strict=True):
        if array.ndim != 2 or array.shape != arrays[0].shape:
            raise BadModelFile(
                f"{shard.path}: tensor {name}: expected a matrix as in the first shard, "
                f"{list(arrays[0].shape)}, found {list(array.shape)}"
            )
    # Llama 3 shards the embeddings by rows, older versions by columns.
    embed_by_columns = canonical == "embed" and arrays[0].shape[1] != config.hidden_size
    if canonical in _BY_COLUMNS or embed_by_columns:
        return ShardedTensor(arrays, by_columns=True)
    if canonical in ("q", "k"):
        head_dim = config.attention.head_dim
        for array in arrays:
            if len(array) % head_dim:
                raise BadModelFile(
                    f"{shards[0].path}: tensor {name}: expected whole heads of {head_dim} "
                    f"rows, found {len(array)}"
                )
        arrays = [rotary_halves(array, len(array) // head_dim) for array in arrays]
    return ShardedTensor(arrays)


def _reject_unknown(shards: Sequence[Checkpoint], config: ModelConfig) -> None:
    """Raise for a tensor of another model; `rope.freqs` is computed instead."""
    patterns = "|".join(re.escape(n).replace(r"\{i\}", r"(\d+)") for n in _NAMES.values())
    for shard in shards:
        for name in shard.tensors:
            found = re.fullmatch(patterns, name)
            layer = next((group for group in found.groups() if group), "0") if found else "0"
            if name != "rope.freqs" and (found is None or int(layer[:9]) >= config.num_layers):
                raise BadModelFile(f"{shard.path}: tensor {name[:120]} does not belong to Llama")


def _config_json(
    source: Path, params: Mapping[str, Any], shards: Sequence[Checkpoint], dtype: str
) -> dict[str, Any]:
    if params.get("moe") is not None:
        raise BadModelFile(f"{source / 'params.json'}: MoE is not supported in this layout")
    embed = read_shard(shards[0], _NAMES["embed"])
    by_rows = embed.ndim == 2 and embed.shape[1] == params.get("dim")
    vocab_size = params.get("vocab_size", -1)
    if vocab_size == -1:
        vocab_size = len(embed) * (len(shards) if by_rows else 1)
    # Simpler than computing it from `multiple_of` and `ffn_dim_multiplier`.
    inner = len(read_shard(shards[0], _NAMES["gate"].format(i=0))) * len(shards)
    llama3 = vocab_size == _LLAMA3_VOCAB
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": params.get("dim"),
        "intermediate_size": inner,
        "num_hidden_layers": params.get("n_layers"),
        "num_attention_heads": params.get("n_heads"),
        "num_key_value_heads": params.get("n_kv_heads") or params.get("n_heads"),
        "max_position_embeddings": _context_tokens(params, llama3),
        "rms_norm_eps": params.get("norm_eps"),
        "hidden_act": "silu",
        "rope_theta": params.get("rope_theta", 10_000.0),
        "rope_scaling": _rope_scaling(params),
        "tie_word_embeddings": _are_tied(shards),
        "bos_token_id": 128_000 if llama3 else 1,
        "eos_token_id": 128_001 if llama3 else 2,
        "torch_dtype": dtype,
    }
    if "head_dim" in params:
        config["head_dim"] = params["head_dim"]
    if "sliding_window" in params:
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": params["sliding_window"],
        }
    return config


def _are_tied(shards: Sequence[Checkpoint]) -> bool:
    """Return whether `lm_head` is missing or equals the embeddings, as in Llama 3.2."""
    for shard in shards:
        if _NAMES["lm_head"] not in shard.tensors:
            return True
        embed, head = (read_shard(shard, _NAMES[name]) for name in ("embed", "lm_head"))
        # In blocks of rows: untied matrices differ in the first block.
        if embed.shape != head.shape or not all(
            np.array_equal(embed[at : at + _ROWS_COMPARED], head[at : at + _ROWS_COMPARED])
            for at in range(0, len(embed), _ROWS_COMPARED)
        ):
            return False
        shard.release_pages()
    return True


def _context_tokens(params: Mapping[str, Any], llama3: bool) -> int:
    """Return the published context length; `params.json` does not have it."""
    if params.get("use_scaled_rope"):
        return 131_072
    if llama3:
        return 8192
    # Only Code Llama has this base, only Llama 1 this epsilon.
    if params.get("rope_theta") == 1e6:
        return 16_384
    return 2048 if params.get("norm_eps") == 1e-6 else 4096


def _rope_scaling(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the constants of Meta's code; the factor 32 is that of the small models of 3.2."""
    if not params.get("use_scaled_rope"):
        return None
    small = isinstance(params.get("dim"), int) and params["dim"] < 4096
    return {
        "rope_type": "llama3",
        "factor": params.get("rope_scaling_factor", 32.0 if small else 8.0),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _generation_json(config: ModelConfig) -> dict[str, Any]:
    end_ids: int | list[int] = config.eos_ids[0]
    if config.vocab_size == _LLAMA3_VOCAB:
        # Instruction-tuned models also end with <|eom_id|> and <|eot_id|>; base models never do.
        end_ids = [128_001, 128_008, 128_009]
    return {"bos_token_id": config.bos_id, "eos_token_id": end_ids}

"""Meta's own layout of Llama: `params.json` and `consolidated.*.pth`, one file per GPU.

Which tensor is cut which way follows the parallel layers of Meta's reference implementation:
output features (rows) for wq wk wv w1 w3 output, input features (columns) for wo w2.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.sources.merging import Merged, halves_apart, merged_plan, part_of
from swiftchat.weights.sources.plan import GENERATION, WIRE_NAMES, Plan, json_bytes

__all__ = ["is_meta", "plan"]

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
_ROWS = 1024
_WHOLE = ("attn_norm", "mlp_norm", "final_norm")
_COLUMNS = ("o", "down")
_COPIED = ("tokenizer.model", "LICENSE", "LICENSE.txt", "README.md")
# The vocabulary tells Llama 3 (ranks of tiktoken, control tokens at its end) from its forerunners.
_LLAMA3_VOCAB = 128_256


def is_meta(source: Path) -> bool:
    """Whether the directory has the two kinds of files of this layout."""
    return (source / "params.json").is_file() and any(source.glob("consolidated.*.pth"))


def plan(source: Path, dtype: str | None) -> Plan:
    """What a conversion of the directory `source` would write; `dtype` None keeps its own.

    Raises `BadModelFile` for a missing part, a tensor of another shape than `params.json`
    leads to, and one this layout does not have.
    """
    params = read_json(source / "params.json")
    parts = [Checkpoint(file, read_torch_checkpoint(file)) for file in _files(source)]
    own = {wire: name for name, wire in WIRE_NAMES.items()}
    part_of(parts[0], _NAMES["embed"])
    dtype = dtype or own[parts[0].tensors[_NAMES["embed"]].dtype]
    config_json = _config_json(source, params, parts, dtype)
    try:
        config = ModelConfig.from_hf(config_json)
    except BadModelFile as error:
        raise BadModelFile(
            f"{source / 'params.json'} describes no model: {error.message}", error.hint
        ) from error
    _refuse_others(parts, config)
    files = {name: (source / name).read_bytes() for name in _COPIED if (source / name).is_file()}
    files["config.json"] = json_bytes(config_json)
    files[GENERATION] = json_bytes(_generation_json(config))

    def merge(canonical: str, layer: int | None) -> Merged:
        return _merged(canonical, layer, config, parts)

    return merged_plan(config, files, dtype, parts, merge)


def _files(source: Path) -> list[Path]:
    files = sorted(source.glob("consolidated.*.pth"))
    for number, file in enumerate(files):
        if file.name != f"consolidated.{number:02}.pth":
            raise BadModelFile(
                f"{source}: expected consolidated.{number:02}.pth, found {file.name}"
            )
    return files


def _merged(
    canonical: str, layer: int | None, config: ModelConfig, parts: Sequence[Checkpoint]
) -> Merged:
    if canonical not in _NAMES:
        raise BadModelFile(f"{parts[0].path}: Meta's layout has no {canonical}")
    name = _NAMES[canonical].format(i=layer)
    if canonical in _WHOLE:
        return Merged([part_of(parts[0], name)])
    arrays = [part_of(checkpoint, name) for checkpoint in parts]
    for checkpoint, array in zip(parts, arrays, strict=True):
        if array.ndim != 2 or array.shape != arrays[0].shape:
            raise BadModelFile(
                f"{checkpoint.path}: tensor {name}: expected a matrix like its other parts, "
                f"{list(arrays[0].shape)}, found {list(array.shape)}"
            )
    # Llama 3 cuts the embeddings by rows, its forerunners by columns.
    if canonical in _COLUMNS or (canonical == "embed" and arrays[0].shape[1] != config.hidden_size):
        return Merged(arrays, columns=True)
    if canonical in ("q", "k"):
        for array in arrays:
            if len(array) % config.head_dim:
                raise BadModelFile(
                    f"{parts[0].path}: tensor {name}: expected whole heads of {config.head_dim} "
                    f"rows, found {len(array)}"
                )
        arrays = [halves_apart(array, len(array) // config.head_dim) for array in arrays]
    return Merged(arrays)


def _refuse_others(parts: Sequence[Checkpoint], config: ModelConfig) -> None:
    """A tensor nobody asks for means another model than this one; `rope.freqs` is computed."""
    patterns = "|".join(re.escape(n).replace(r"\{i\}", r"(\d+)") for n in _NAMES.values())
    for checkpoint in parts:
        for name in checkpoint.tensors:
            found = re.fullmatch(patterns, name)
            layer = next((group for group in found.groups() if group), "0") if found else "0"
            if name != "rope.freqs" and (found is None or int(layer[:9]) >= config.num_layers):
                raise BadModelFile(f"{checkpoint.path}: tensor {name[:120]} is none of Llama's")


def _config_json(
    source: Path, params: Mapping[str, Any], parts: Sequence[Checkpoint], dtype: str
) -> dict[str, Any]:
    if params.get("moe") is not None:
        raise BadModelFile(f"{source / 'params.json'}: mixtures of experts are not supported here")
    embed = part_of(parts[0], _NAMES["embed"])
    by_rows = embed.ndim == 2 and embed.shape[1] == params.get("dim")
    vocab_size = params.get("vocab_size", -1)
    if vocab_size == -1:
        vocab_size = len(embed) * (len(parts) if by_rows else 1)
    # `multiple_of` and `ffn_dim_multiplier` only lead to this number, with an odd rounding.
    inner = len(part_of(parts[0], _NAMES["gate"].format(i=0))) * len(parts)
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
        "tie_word_embeddings": _are_tied(parts),
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


def _are_tied(parts: Sequence[Checkpoint]) -> bool:
    """Whether the output matrix is the embeddings again, as in Llama 3.2; it may be left out."""
    for checkpoint in parts:
        if _NAMES["lm_head"] not in checkpoint.tensors:
            return True
        embed, head = (part_of(checkpoint, _NAMES[name]) for name in ("embed", "lm_head"))
        # Rows at a time: where they are not tied the first ones differ.
        if embed.shape != head.shape or not all(
            np.array_equal(embed[at : at + _ROWS], head[at : at + _ROWS])
            for at in range(0, len(embed), _ROWS)
        ):
            return False
        checkpoint.release_pages()
    return True


def _context_tokens(params: Mapping[str, Any], llama3: bool) -> int:
    """`params.json` does not say it; these are the published lengths of each generation."""
    if params.get("use_scaled_rope"):
        return 131_072
    if llama3:
        return 8192
    # Code Llama alone has this base; Llama 1 alone this eps.
    if params.get("rope_theta") == 1e6:
        return 16_384
    return 2048 if params.get("norm_eps") == 1e-6 else 4096


def _rope_scaling(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """Meta's code has these numbers as constants; 3.2's small models alone have 32."""
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
    ends: int | list[int] = config.eos_ids[0]
    if config.vocab_size == _LLAMA3_VOCAB:
        # Instruction-tuned models end with <|eom_id|> and <|eot_id|>, which no base model writes.
        ends = [128_001, 128_008, 128_009]
    return {"bos_token_id": config.bos_id, "eos_token_id": ends}

"""Megatron-LM's checkpoints of models like Llama and like GPT-2, merged from their parts.

Layouts are those of Megatron-LM's own loaders. The rows of query-key-value are, in each part:
version 0 all queries, all keys, all values; version 1 for each head's element its query, key and
value; from 2 on for each group of heads its queries, a key, a value. The first FFN matrix of
each part has its gate, where there is one, over its up half.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.sources.megatron_args import config_json
from swiftchat.weights.sources.megatron_parts import Parts, is_megatron, open_parts
from swiftchat.weights.sources.merging import Merged, merged_plan
from swiftchat.weights.sources.plan import Plan, json_bytes

__all__ = ["is_megatron", "plan"]

_DTYPES = {"uint16": "bfloat16", "float16": "float16", "float32": "float32"}
# Of a group of heads: where queries, key and value are among its heads.
_QKV = {"q": slice(0, -2), "k": slice(-2, -1), "v": slice(-1, None)}
# Whole on every rank. The biases stand behind matrices cut by columns, and are added once.
_WHOLE = frozenset({"positions", "final_norm", "attn_norm", "mlp_norm", "o_bias", "down_bias"})

Array = npt.NDArray[Any]


def plan(source: Path, dtype: str | None) -> Plan:
    """What a conversion of `source` would write; `dtype` None keeps its own.

    Of several iterations the latest is taken. No tokenizer is in such a checkpoint, and none
    is written. Raises `BadModelFile` for a missing part, a tensor of another shape than `args`
    leads to, and for models that are neither like Llama nor like GPT-2.
    """
    args, version, parts = open_parts(source)
    embed = parts.everywhere("embed", None)
    dtype = dtype or _DTYPES[embed[0].dtype.name]
    said = config_json(source, args, sum(map(len, embed)), dtype)
    try:
        config = ModelConfig.from_hf(said)
    except BadModelFile as error:
        raise BadModelFile(
            f"{source}: args describe no model: {error.message}", error.hint
        ) from error
    if version < 2 and config.num_heads != config.num_kv_heads:
        raise BadModelFile(f"{source}: checkpoint_version {version:g} has no groups of heads")
    merge = _Merge(config, version, parts)
    return merged_plan(config, {"config.json": json_bytes(said)}, dtype, parts.files, merge.tensor)


class _Merge:
    """How the tensors of `config` come out of the parts."""

    def __init__(self, config: ModelConfig, version: float, parts: Parts) -> None:
        self._config = config
        self._version = version
        self._parts = parts
        self._transposed = ARCHITECTURES[config.architecture].transposed

    def tensor(self, canonical: str, layer: int | None) -> Merged:
        """The tensor of this canonical name, as the family's files have it."""
        name, kind = canonical.removesuffix("_bias"), "weight"
        if name != canonical:
            kind = "bias"
        if canonical in ("embed", "lm_head"):
            return Merged(_first_rows(self._parts.everywhere(name, layer), self._config.vocab_size))
        if canonical in _WHOLE or name in _WHOLE:
            return Merged(self._parts.everywhere(name, layer, kind)[:1])
        turned = canonical in self._transposed
        if name in ("o", "down"):
            arrays = self._parts.everywhere(name, layer, kind)
            return Merged([array.T for array in arrays]) if turned else Merged(arrays, columns=True)
        arrays = self._by_rows(name, layer, kind)
        if turned:
            return Merged([np.moveaxis(array, -1, 0) for array in arrays], columns=True)
        return Merged(arrays)

    def _by_rows(self, name: str, layer: int | None, kind: str) -> list[Array]:
        """What lies under each other in the whole: views, perhaps with their rows in groups."""
        if name == "qkv":
            return [part for one in "qkv" for part in self._by_rows(one, layer, kind)]
        if name in _QKV:
            arrays = self._parts.everywhere("qkv", layer, kind)
            return [self._heads(array, name, layer) for array in arrays]
        arrays = self._parts.everywhere("inner", layer, kind)
        if name not in ("gate", "up"):
            raise BadModelFile(f"Megatron-LM's layout has no {name}")
        if not self._config.gated:
            return arrays
        half = len(arrays[0]) // 2
        return [array[:half] if name == "gate" else array[half:] for array in arrays]

    def _heads(self, array: Array, name: str, layer: int | None) -> Array:
        """The queries, keys or values in one part of a query-key-value matrix or bias: a view."""
        config = self._config
        per_group = config.num_heads // config.num_kv_heads + 2
        groups, rest = divmod(len(array), per_group * config.head_dim)
        if rest:
            raise BadModelFile(
                f"{self._parts.where}: query_key_value of layer {layer}: expected whole groups of "
                f"{per_group * config.head_dim} rows in each part, found {len(array)}"
            )
        columns = array.shape[1:]
        found: Array
        if self._version == 0:
            found = array.reshape(3, groups, config.head_dim, *columns)["qkv".index(name)]
        elif self._version == 1:
            by_element = array.reshape(groups, config.head_dim, 3, *columns)
            found = by_element[:, :, "qkv".index(name)]
        else:
            by_group = array.reshape(groups, per_group, config.head_dim, *columns)
            found = by_group[:, _QKV[name]]
        return found.reshape(-1) if array.ndim == 1 else found


def _first_rows(arrays: list[Array], rows: int) -> list[Array]:
    """The parts without the rows that only fill up the vocabulary."""
    kept = []
    for array in arrays:
        kept.append(array[:rows])
        rows = max(0, rows - len(array))
    return [array for array in kept if len(array)] or kept[:1]

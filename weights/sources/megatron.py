"""Megatron-LM checkpoints of Llama-like and GPT-2-like models, merged from their shards.

Layouts are those of Megatron-LM's own loaders. The rows of query-key-value are, in each shard:
version 0 all queries, all keys, all values; version 1 for each element of a head its query, key
and value; from version 2 for each group of heads its queries, a key, a value. The first MLP
matrix of a gated model stacks gate and up in each shard.
"""

from pathlib import Path

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.files.reading import encode_json
from swiftchat.weights.formats.arrays import Array
from swiftchat.weights.sources.megatron_checkpoint import (
    MegatronCheckpoint,
    open_checkpoint,
)
from swiftchat.weights.sources.megatron_config import make_config_json
from swiftchat.weights.sources.plan import Plan, parse_config
from swiftchat.weights.sources.sharded import ShardedTensor, sharded_plan

_DTYPES = {"uint16": "bfloat16", "float16": "float16", "float32": "float32"}
# The heads of queries, key and value within a group of heads.
_QKV = {"q": slice(0, -2), "k": slice(-2, -1), "v": slice(-1, None)}
# Replicated on every rank. The biases follow row-parallel matrices and are added once.
_REPLICATED = frozenset({"positions", "final_norm", "attn_norm", "mlp_norm", "o_bias", "down_bias"})


def plan(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of `source`; `dtype` None: its own.

    Takes the latest of several iterations. Such a checkpoint has no tokenizer, so none is
    written. Raises `BadModelFile` for a missing shard, a tensor whose shape contradicts `args`,
    and a model that is neither like Llama nor like GPT-2.
    """
    args, version, checkpoint = open_checkpoint(source)
    embed = checkpoint.shards("embed", None)
    dtype = dtype or _DTYPES[embed[0].dtype.name]
    config_json = make_config_json(source, args, sum(map(len, embed)), dtype)
    config = parse_config(config_json, f"{source}: args")
    if version < 2 and config.attention.num_heads != config.attention.num_kv_heads:
        raise BadModelFile(f"{source}: checkpoint_version {version:g} has no groups of heads")
    merge = _Merge(config, version, checkpoint)
    files = {"config.json": encode_json(config_json)}
    return sharded_plan(config, files, dtype, checkpoint.files, merge.tensor)


class _Merge:
    """Makes the tensors of `config` from the shards."""

    def __init__(self, config: ModelConfig, version: float, checkpoint: MegatronCheckpoint) -> None:
        self._config = config
        self._version = version
        self._checkpoint = checkpoint
        self._transposed = ARCHITECTURES[config.architecture].transposed

    def tensor(self, canonical: str, layer: int | None) -> ShardedTensor:
        """Return the tensor of this canonical name in Hugging Face's layout."""
        name = canonical.removesuffix("_bias")
        kind = "weight" if name == canonical else "bias"
        if canonical in ("embed", "lm_head"):
            shards = self._checkpoint.shards(name, layer)
            return ShardedTensor(_first_rows(shards, self._config.vocab_size))
        if canonical in _REPLICATED or name in _REPLICATED:
            return ShardedTensor(self._checkpoint.shards(name, layer, kind)[:1])
        transposed = canonical in self._transposed
        if name in ("o", "down"):
            shards = self._checkpoint.shards(name, layer, kind)
            if transposed:
                return ShardedTensor([shard.T for shard in shards])
            return ShardedTensor(shards, by_columns=True)
        shards = self._row_shards(name, layer, kind)
        if transposed:
            return ShardedTensor([np.moveaxis(shard, -1, 0) for shard in shards], by_columns=True)
        return ShardedTensor(shards)

    def _row_shards(self, name: str, layer: int | None, kind: str) -> list[Array]:
        """Return the shards of a column-parallel matrix or bias, as views of its rows."""
        if name == "qkv":
            return [shard for one in "qkv" for shard in self._row_shards(one, layer, kind)]
        if name in _QKV:
            shards = self._checkpoint.shards("qkv", layer, kind)
            return [self._heads(shard, name, layer) for shard in shards]
        shards = self._checkpoint.shards("inner", layer, kind)
        if name not in ("gate", "up"):
            raise BadModelFile(f"Megatron-LM's layout has no {name}")
        if not self._config.activation.gated:
            return shards
        half = len(shards[0]) // 2
        return [shard[:half] if name == "gate" else shard[half:] for shard in shards]

    def _heads(self, shard: Array, name: str, layer: int | None) -> Array:
        """Return a view of the queries, keys or values in a query-key-value shard."""
        config = self._config
        heads_per_group = config.attention.num_heads // config.attention.num_kv_heads + 2
        groups, rest = divmod(len(shard), heads_per_group * config.attention.head_dim)
        if rest:
            raise BadModelFile(
                f"{self._checkpoint.directory}: query_key_value of layer {layer}: expected whole "
                f"groups of {heads_per_group * config.attention.head_dim} rows in each shard, "
                f"found {len(shard)}"
            )
        columns = shard.shape[1:]
        found: Array
        if self._version == 0:
            found = shard.reshape(3, groups, config.attention.head_dim, *columns)["qkv".index(name)]
        elif self._version == 1:
            by_element = shard.reshape(groups, config.attention.head_dim, 3, *columns)
            found = by_element[:, :, "qkv".index(name)]
        else:
            by_group = shard.reshape(groups, heads_per_group, config.attention.head_dim, *columns)
            found = by_group[:, _QKV[name]]
        return found.reshape(-1) if shard.ndim == 1 else found


def _first_rows(shards: list[Array], num_rows: int) -> list[Array]:
    """Drop the rows that pad the vocabulary."""
    kept = []
    for shard in shards:
        kept.append(shard[:num_rows])
        num_rows = max(0, num_rows - len(shard))
    return [shard for shard in kept if len(shard)] or kept[:1]

"""The files of a Megatron-LM checkpoint, and lookup of their tensors by canonical name.

`mp_rank_TT[_PPP]/model_optim_rng.pt` is the shard of tensor-parallel rank TT and pipeline stage
PPP. Tensors have the names of Megatron-Core or older ones; both are found.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import read_small_file
from swiftchat.weights.formats.arrays import Array
from swiftchat.weights.formats.safe_pickle import PickledObject
from swiftchat.weights.formats.torch_checkpoint import read_content, tensors_of
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.sources.sharded import read_shard

_LATEST = "latest_checkpointed_iteration.txt"
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_RANK = re.compile(r"mp_rank_(\d{2})(?:_(\d{3}))?")
_LAYER = re.compile(r"((?:language_model\.)?(?:decoder|encoder|transformer)\.layers\.)(\d{1,6})\.")

_MODEL_TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("embedding.word_embeddings",),
        "positions": ("embedding.position_embeddings",),
        "final_norm": (
            "decoder.final_layernorm",
            "encoder.final_norm",
            "encoder.final_layernorm",
            "transformer.final_layernorm",
        ),
        "lm_head": ("output_layer",),
    }
)
_LAYER_TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": (
            "self_attention.linear_qkv",
            "self_attention.query_key_value",
            "attention.query_key_value",
        ),
        "o": ("self_attention.linear_proj", "self_attention.dense", "attention.dense"),
        "inner": ("mlp.linear_fc1", "mlp.dense_h_to_4h"),
        "down": ("mlp.linear_fc2", "mlp.dense_4h_to_h"),
        "attn_norm": ("input_layernorm", "input_norm"),
        "mlp_norm": ("pre_mlp_layernorm", "post_attention_layernorm", "post_attention_norm"),
    }
)
# Names of a norm that is fused with the matrix that reads it.
_FUSED_NORMS = MappingProxyType(
    {
        "attn_norm": "self_attention.linear_qkv.layer_norm_",
        "mlp_norm": "mlp.linear_fc1.layer_norm_",
    }
)


def is_megatron(source: Path) -> bool:
    """Return whether the directory is such a checkpoint or contains iterations of one."""
    return (source / _LATEST).is_file() or any(map(_ranks, (source, *source.glob("iter_*"))))


def open_checkpoint(source: Path) -> tuple[Mapping[str, Any], float, "MegatronCheckpoint"]:
    """Return the arguments, the `checkpoint_version` and the shards of the latest iteration.

    Raises `BadModelFile` for a missing shard and for files that Megatron-LM does not save.
    """
    header, stages = None, []
    for files in _stages(_iteration(source)):
        row = []
        for file in files:
            content = read_content(file)
            own = _header(file, content)
            header = header or own
            row.append(Checkpoint(file, tensors_of(file, content["model"])))
        stages.append(row)
    if header is None:
        raise BadModelFile(f"{source}: no shards")
    return *header, MegatronCheckpoint(stages)


def _ranks(directory: Path) -> dict[tuple[int, int], Path]:
    """Return the folders of shards in `directory` by (pipeline stage, tensor-parallel rank)."""
    found = {}
    for folder in directory.glob("mp_rank_*"):
        match = _RANK.fullmatch(folder.name)
        if match is None:
            raise BadModelFile(f"{folder}: expert-parallel shards are not supported")
        found[int(match[2] or 0), int(match[1])] = folder
    return found


def _iteration(source: Path) -> Path:
    if _ranks(source):
        return source
    if (source / _LATEST).is_file():
        text = read_small_file(source / _LATEST)[:20].decode(errors="replace").strip()
        if text == "release":
            return source / "release"
        if not text.isdecimal():
            raise BadModelFile(f"{source / _LATEST}: {text!r} is not an iteration")
        return source / f"iter_{int(text):07}"
    return max(source.glob("iter_*"))


def _stages(directory: Path) -> list[list[Path]]:
    """Return the files of all tensor-parallel ranks, for each pipeline stage."""
    ranks = _ranks(directory)
    if not ranks:
        raise BadModelFile(
            f"{directory}: no mp_rank_* folders",
            "save it with --ckpt-format torch: distributed formats are not supported",
        )
    stages = []
    for stage in range(1 + max(stage for stage, _ in ranks)):
        row = []
        for rank in range(1 + max(rank for _, rank in ranks)):
            folder = ranks.get((stage, rank))
            if folder is None:
                raise BadModelFile(f"{directory}: rank {rank} of stage {stage} is missing")
            file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
            if file is None:
                raise BadModelFile(f"{folder}: {_FILES[0]} is missing")
            row.append(file)
        stages.append(row)
    return stages


def _header(file: Path, content: Any) -> tuple[Mapping[str, Any], float]:
    """Return arguments and version of one shard."""
    args = content.get("args") if isinstance(content, dict) else None
    args = args.state if isinstance(args, PickledObject) else args
    if not isinstance(args, dict) or not isinstance(content.get("model"), dict):
        raise BadModelFile(f"{file}: expected args and one model, as Megatron-LM saves them")
    # Megatron-LM itself reads a missing version as 0.
    version = content.get("checkpoint_version", 0)
    if not isinstance(version, int | float) or not (version in (0, 1) or 2 <= version < 4):
        raise BadModelFile(f"{file}: expected checkpoint_version 0, 1, 2 or 3")
    return args, float(version)


class MegatronCheckpoint:
    """The shards of all stages and ranks; finds tensors by canonical name and model layer."""

    def __init__(self, stages: Sequence[Sequence[Checkpoint]]) -> None:
        self._stages = stages
        self.directory = stages[0][0].path.parent.parent
        self._layers: list[tuple[Sequence[Checkpoint], str]] = []
        for row in stages:
            # Each stage numbers its layers from 0.
            found = {(int(m[2]), m[1]) for m in map(_LAYER.match, row[0].tensors) if m}
            self._layers += [(row, f"{prefix}{number}.") for number, prefix in sorted(found)]

    @property
    def files(self) -> list[Checkpoint]:
        """The file of every shard."""
        return [checkpoint for row in self._stages for checkpoint in row]

    def shards(self, canonical: str, layer: int | None, kind: str = "weight") -> list[Array]:
        """Return the shards of a weight or bias on all tensor-parallel ranks."""
        table = _MODEL_TENSORS if layer is None else _LAYER_TENSORS
        names = [f"{name}.{kind}" for name in table[canonical]]
        if canonical in _FUSED_NORMS:
            names.append(f"{_FUSED_NORMS[canonical]}{kind}")
        if layer is None:
            # The first and the last stage both store tied embeddings.
            places = [(row, prefix) for row in self._stages for prefix in ("", "language_model.")]
        else:
            places = self._layers[layer : layer + 1]
        for row, prefix in places:
            for name in names:
                if f"{prefix}{name}" in row[0].tensors:
                    return _read_shards(row, f"{prefix}{name}")
        shown = "" if layer is None else f" of layer {layer}"
        raise BadModelFile(f"{self.directory}: no tensor {names[0]}{shown} in any shard")


def _read_shards(row: Sequence[Checkpoint], name: str) -> list[Array]:
    """Return the tensor `name` of every file, all of which must have one shape."""
    arrays = [read_shard(checkpoint, name) for checkpoint in row]
    for checkpoint, array in zip(row, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise BadModelFile(
                f"{checkpoint.path}: tensor {name}: expected {list(arrays[0].shape)} as in the "
                f"first shard, found {list(array.shape)}"
            )
    return arrays

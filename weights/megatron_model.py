"""Megatron-LM's checkpoints of Llama-like models: `mp_rank_TT[_PPP]/model_optim_rng.pt`.

TT counts tensor-parallel and PPP pipeline-parallel parts. Both spellings of the tensors are
read, that of Megatron-Core and the older one. Layouts are those of Megatron-LM's own loaders:
query-key-value interleaves per group of heads (its queries, a key, a value); the first FFN
matrix of each part has its gate over its up half.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.checkpoint import Checkpoint
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.inert_pickle import Inert
from swiftchat.weights.merging import Merged, merged_plan, part_of
from swiftchat.weights.plan import Plan, json_bytes
from swiftchat.weights.torch_file import read_content, tensors_of

__all__ = ["is_megatron", "plan"]

_LATEST = "latest_checkpointed_iteration.txt"
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_RANK = re.compile(r"mp_rank_(\d{2})(?:_(\d{3}))?")
_LAYER = re.compile(r"((?:language_model\.)?(?:decoder|encoder|transformer)\.layers\.)(\d{1,6})\.")

_OUTSIDE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "embed": ("embedding.word_embeddings.weight",),
        "final_norm": (
            "decoder.final_layernorm.weight", "encoder.final_norm.weight",
            "encoder.final_layernorm.weight", "transformer.final_layernorm.weight",
        ),
        "lm_head": ("output_layer.weight",),
    }
)  # fmt: skip
_INSIDE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "qkv": ("self_attention.linear_qkv", "self_attention.query_key_value"),
        "o": ("self_attention.linear_proj", "self_attention.dense"),
        "gate_up": ("mlp.linear_fc1", "mlp.dense_h_to_4h"),
        "down": ("mlp.linear_fc2", "mlp.dense_4h_to_h"),
        "attn_norm": (
            "input_layernorm.weight", "self_attention.linear_qkv.layer_norm_weight",
            "input_norm.weight",
        ),
        "mlp_norm": (
            "pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight",
            "post_attention_layernorm.weight", "post_attention_norm.weight",
        ),
    }
)  # fmt: skip
# Of a group of heads: where queries, key and value are among its heads.
_QKV = {"q": slice(0, -2), "k": slice(-2, -1), "v": slice(-1, None)}

Array = npt.NDArray[Any]


def is_megatron(source: Path) -> bool:
    """Whether the directory is such a checkpoint, or has one of an iteration in it."""
    return (source / _LATEST).is_file() or any(map(_ranks, (source, *source.glob("iter_*"))))


def plan(source: Path, dtype: str | None) -> Plan:
    """What a conversion of `source` would write; `dtype` None keeps its own.

    Of several iterations the latest is taken. No tokenizer is in such a checkpoint, and none
    is written. Raises `BadModelFile` for a missing part, a tensor of another shape than `args`
    leads to, and for models that are not like Llama.
    """
    stages = _stages(_iteration(source))
    args, tables = None, []
    for files in stages:
        row = []
        for file in files:
            content = read_content(file)
            args = args or _args(file, content)
            row.append(Checkpoint(file, tensors_of(file, content.get("model"))))
        tables.append(row)
    if args is None:
        raise BadModelFile(f"{source}: no parts")
    model = _Parts(tables)
    embed = model.everywhere("embed", None)
    own = {"uint16": "bfloat16", "float16": "float16", "float32": "float32"}
    dtype = dtype or own[embed[0].dtype.name]
    config_json = _config_json(source, args, sum(map(len, embed)), dtype)
    try:
        config = ModelConfig.from_hf(config_json)
    except BadModelFile as error:
        raise BadModelFile(
            f"{source}: args describe no model: {error.message}", error.hint
        ) from error
    parts = [checkpoint for row in tables for checkpoint in row]
    files_json = {"config.json": json_bytes(config_json)}

    def merge(canonical: str, layer: int | None) -> Merged:
        return _merged(canonical, layer, config, model)

    return merged_plan(config, files_json, dtype, parts, merge)


def _ranks(directory: Path) -> dict[tuple[int, int], Path]:
    """(pipeline rank, tensor rank) of the parts that are folders of `directory`."""
    found = {}
    for folder in directory.glob("mp_rank_*"):
        match = _RANK.fullmatch(folder.name)
        if match is None:
            raise BadModelFile(f"{folder}: a part of experts, which are not supported here")
        found[int(match[2] or 0), int(match[1])] = folder
    return found


def _iteration(source: Path) -> Path:
    if _ranks(source):
        return source
    if (source / _LATEST).is_file():
        text = (source / _LATEST).read_bytes()[:20].decode(errors="replace").strip()
        if text == "release":
            return source / "release"
        if not text.isdecimal():
            raise BadModelFile(f"{source / _LATEST}: {text!r} is no iteration")
        return source / f"iter_{int(text):07}"
    return max(source.glob("iter_*"))


def _stages(directory: Path) -> list[list[Path]]:
    """The file of each tensor-parallel part, for each pipeline stage."""
    ranks = _ranks(directory)
    if not ranks:
        raise BadModelFile(
            f"{directory}: no mp_rank_* folders",
            "save it with --ckpt-format torch: distributed formats are not read",
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


def _args(file: Path, content: Any) -> Mapping[str, Any]:
    args = content.get("args") if isinstance(content, dict) else None
    args = args.state if isinstance(args, Inert) else args
    if not isinstance(args, dict) or not isinstance(content.get("model"), dict):
        raise BadModelFile(f"{file}: expected args and one model, as Megatron-LM saves them")
    version = content.get("checkpoint_version")
    if not isinstance(version, int | float) or not 2 <= version < 4:
        raise BadModelFile(f"{file}: expected checkpoint_version 2 or 3")
    return args


class _Parts:
    """The tables of all parts; finds a tensor by its canonical name and layer in the model."""

    def __init__(self, stages: Sequence[Sequence[Checkpoint]]) -> None:
        self._stages = stages
        self.where = stages[0][0].path.parent.parent
        self._layers: list[tuple[Sequence[Checkpoint], str]] = []
        for row in stages:
            # Each stage counts its layers from 0.
            found = {(int(m[2]), m[1]) for m in map(_LAYER.match, row[0].tensors) if m}
            self._layers += [(row, f"{prefix}{number}.") for number, prefix in sorted(found)]

    def everywhere(self, canonical: str, layer: int | None, ending: str = "") -> list[Array]:
        """The tensor's parts on all tensor-parallel ranks."""
        names = _OUTSIDE[canonical] if layer is None else _INSIDE[canonical]
        if layer is None:
            # Tied embeddings are in the first and in the last stage; the first is as good.
            places = [(row, prefix) for row in self._stages for prefix in ("", "language_model.")]
        else:
            places = self._layers[layer : layer + 1]
        for row, prefix in places:
            for name in names:
                full = f"{prefix}{name}{ending}"
                if full in row[0].tensors:
                    return _alike(row, full)
        shown = "" if layer is None else f" of layer {layer}"
        raise BadModelFile(f"{self.where}: no tensor {names[0]}{ending}{shown} in any part")


def _alike(row: Sequence[Checkpoint], name: str) -> list[Array]:
    arrays = [part_of(checkpoint, name) for checkpoint in row]
    for checkpoint, array in zip(row, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise BadModelFile(
                f"{checkpoint.path}: tensor {name}: expected {list(arrays[0].shape)} as in the "
                f"first part, found {list(array.shape)}"
            )
    return arrays


def _merged(canonical: str, layer: int | None, config: ModelConfig, model: _Parts) -> Merged:
    if canonical in ("embed", "lm_head"):
        return Merged(_first_rows(model.everywhere(canonical, layer), config.vocab_size))
    if canonical in ("final_norm", "attn_norm", "mlp_norm"):
        return Merged(model.everywhere(canonical, layer)[:1])
    name, _, bias = canonical.partition("_")
    ending = ".bias" if bias else ".weight"
    if name in _QKV:
        arrays = model.everywhere("qkv", layer, ending)
        group_rows = (config.num_heads // config.num_kv_heads + 2) * config.head_dim
        if len(arrays[0]) % group_rows:
            raise BadModelFile(
                f"{model.where}: query_key_value of layer {layer}: expected whole groups of "
                f"{group_rows} rows in each part, found {len(arrays[0])}"
            )
        return Merged([_heads(array, _QKV[name], config.head_dim, group_rows) for array in arrays])
    if name in ("gate", "up"):
        arrays = model.everywhere("gate_up", layer, ending)
        half = len(arrays[0]) // 2
        return Merged([array[:half] if name == "gate" else array[half:] for array in arrays])
    if name not in ("o", "down"):
        raise BadModelFile(f"Megatron-LM's layout of Llama has no {canonical}")
    arrays = model.everywhere(name, layer, ending)
    # The bias behind a matrix cut by columns is whole on every rank, and added once.
    return Merged(arrays[:1]) if bias else Merged(arrays, columns=True)


def _heads(array: Array, chosen: slice, head_dim: int, group_rows: int) -> Array:
    """The queries, keys or values in one part of a query-key-value matrix (a view) or bias."""
    groups = len(array) // group_rows
    found = array.reshape(groups, group_rows // head_dim, head_dim, *array.shape[1:])[:, chosen]
    return found.reshape(-1) if array.ndim == 1 else found


def _first_rows(arrays: Sequence[Array], rows: int) -> list[Array]:
    """The parts without the rows that only fill up the vocabulary."""
    kept = []
    for array in arrays:
        kept.append(array[:rows])
        rows = max(0, rows - len(array))
    return [array for array in kept if len(array)] or kept[:1]


def _config_json(
    source: Path, args: Mapping[str, Any], padded_vocab: int, dtype: str
) -> dict[str, Any]:
    _refuse_others(source, args)
    heads = args.get("num_attention_heads")
    grouped = args.get("group_query_attention")
    bias = bool(args.get("add_bias_linear", True))
    vocab_size = args.get("vocab_size")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": padded_vocab if vocab_size is None else vocab_size,
        "hidden_size": args.get("hidden_size"),
        "intermediate_size": args.get("ffn_hidden_size"),
        "num_hidden_layers": args.get("num_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": args.get("num_query_groups") if grouped else heads,
        "head_dim": args.get("kv_channels"),
        "max_position_embeddings": args.get("max_position_embeddings"),
        "rms_norm_eps": args.get("norm_epsilon", args.get("layernorm_epsilon")),
        "hidden_act": "silu",
        "rope_theta": args.get("rotary_base", 10_000),
        "attention_bias": bias,
        "mlp_bias": bias,
        "tie_word_embeddings": not args.get("untie_embeddings_and_output_weights"),
        "torch_dtype": dtype,
    }


def _refuse_others(source: Path, args: Mapping[str, Any]) -> None:
    """What would compute something else than Llama does."""
    rope = args.get("position_embedding_type") == "rope" or args.get(
        "use_rotary_position_embeddings"
    )
    share = args.get("rotary_percent", 1.0)
    wrong = {
        "swiglu": not args.get("swiglu"),
        "normalization": args.get("normalization") != "RMSNorm",
        "position_embedding_type": not rope,
        "rotary_percent": share != 1.0,
        "rotary_interleaved": bool(args.get("rotary_interleaved")),
        "use_rope_scaling": bool(args.get("use_rope_scaling")),
        "apply_layernorm_1p": bool(args.get("apply_layernorm_1p")),
        "add_qkv_bias": bool(args.get("add_qkv_bias")) and not args.get("add_bias_linear", True),
        "num_experts": args.get("num_experts") is not None,
        "multi_latent_attention": bool(args.get("multi_latent_attention")),
        "qk_layernorm": bool(args.get("qk_layernorm")),
        "virtual_pipeline_model_parallel_size":
            args.get("virtual_pipeline_model_parallel_size") is not None,
    }  # fmt: skip
    found = [name for name, refused in wrong.items() if refused]
    if found:
        raise BadModelFile(
            f"{source}: not like Llama, or saved in another order: args {', '.join(found)}",
            "convert it with Megatron-LM's own tools and then load the result",
        )

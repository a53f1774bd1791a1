"""The tensors of a GGUF file as the tensors of a Hugging Face model."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.architecture import frozen
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.mixers import GatedDelta
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    layer_shapes,
    tensor_name,
)
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.gguf.architectures import gguf_architecture
from swiftchat.weights.gguf.expert_sources import (
    checked_tensor,
    flat_experts,
    stacked_experts,
)
from swiftchat.weights.gguf.gguf_architecture import GgufArchitecture
from swiftchat.weights.gguf.rope import ROPE_TENSORS
from swiftchat.weights.gguf.tensor_source import (
    KeyValueMatrix,
    MergedRows,
    MetadataNumber,
    OrderedColumns,
    ReshapedTensor,
    Rows,
    TensorRows,
    TensorSource,
)
from swiftchat.weights.gguf.value_heads import grouped_rows, value_columns, value_rows
from swiftchat.weights.quantization.quantize import QUANTIZABLE

# How the names of tensors of the vision and audio parts begin.
_OTHER_PARTS = ("v.", "mm.", "a.")
_KEYS, _VALUES = "attn_k_b.weight", "attn_v_b.weight"
# Gates of files that have them apart from up, by the canonical name of the merged matrix.
_GATES = frozen(gate_up="ffn_gate.weight", shared_gate_up="ffn_gate_shexp.weight")
_DELTA_QUERIES, _DELTA_GATES = "attn_qkv.weight", "attn_gate.weight"
_IN_METADATA = frozen(xielu_positive="xielu.alpha_p", xielu_negative="xielu.alpha_n")
_RESHAPED = frozenset(
    {"mixer_conv", "mixer_conv_q", "mixer_conv_k", "mixer_conv_v"}
    | {"mixer_decay", "mixer_skip", "mixer_norm"}
)
_KEPT = QUANTIZABLE | {"embed", "lm_head", "experts_gate_up", "experts_down"}


@dataclass(frozen=True)
class _Candidate:
    """A GGUF tensor that may contain the sought tensor, from its row `first` on."""

    name: str
    shape: tuple[int, ...]
    first: int = 0


def tensor_sources(
    file: GgufFile, architecture: GgufArchitecture, config: ModelConfig
) -> dict[str, TensorSource]:
    """Return the source of every expected Hugging Face tensor by name.

    Raises `BadModelFile` for a missing tensor, one of another shape or of a type that is not
    supported, and one that the architecture does not have, because the model would compute
    something else.
    """
    unused = (*_OTHER_PARTS, *_unused_prefixes(file, config))
    _reject_foreign_types(file, unused)
    by_layer = {layer: _shapes(architecture, config, layer) for layer in (None, *config.layers)}
    in_layers = [by_layer[layer] for layer in config.layers]
    sources = dict[str, TensorSource]()
    for canonical, layer, expert in canonical_tensors(config):
        shapes = by_layer[None] if layer is None else in_layers[layer]
        name = tensor_name(config, canonical, layer, expert)
        sources[name] = _source(file, architecture, config, shapes, canonical, layer, expert or 0)
    _reject_unknown_tensors(file, sources, unused)
    return sources


def _source(
    file: GgufFile,
    architecture: GgufArchitecture,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    canonical: str,
    layer: int | None,
    expert: int,
) -> TensorSource:
    """Return the source of a canonical tensor; `shapes` are those of its layer."""
    shape = shapes[canonical]
    if canonical in ("experts_gate", "experts_up") or (
        canonical == "experts_down" and len(shape) == 2
    ):
        return flat_experts(file, architecture, config, canonical, layer)
    if canonical.removesuffix("_bias") in ("experts_gate_up", "experts_down"):
        return stacked_experts(file, architecture, config, shapes, canonical, layer)
    gate = f"blk.{layer}.{_GATES.get(canonical)}"
    if gate in file.tensors:
        num_rows, columns = shape
        pair = (gate, gate.replace("gate", "up"))
        halves = [checked_tensor(file, each, (num_rows // 2, columns)) for each in pair]
        return MergedRows((halves[0], halves[1]))
    if canonical in _IN_METADATA:
        return MetadataNumber(_number(file, _IN_METADATA[canonical], layer or 0))
    mixed = _mixer_source(file, architecture, config, canonical, layer)
    if mixed is not None:
        return mixed
    if canonical == "kv_b" and f"blk.{layer}.{_KEYS}" in file.tensors:
        return _keys_and_values(file, config, layer)
    candidates = _candidates(architecture, config, shapes, canonical, expert)
    present = [each for each in candidates if each.name.format(i=layer) in file.tensors]
    chosen = (present or candidates)[0]
    tensor = checked_tensor(file, chosen.name.format(i=layer), chosen.shape)
    return TensorRows(
        (tensor,),
        _shifted(row_order(architecture, config, canonical, shape[0]), chosen.first),
        offset=1.0 if config.norm.unit_offset and canonical.endswith("_norm") else 0.0,
        transposed=canonical in architecture.target.transposed,
    )


def _unused_prefixes(file: GgufFile, config: ModelConfig) -> tuple[str, ...]:
    """Return how the names of tensors begin that a file may have and the model does not use."""
    # The layers that predict further tokens come last.
    _, metadata = gguf_architecture(file)
    skipped = range(config.num_layers, config.num_layers + metadata.num_nextn_layers)
    later = [f"blk.{i}." for i in skipped]
    # Keys and values that a layer does not use, because it reads those of another one.
    later += [
        f"blk.{i}.attn_{kind}"
        for i in range(config.num_layers)
        for kind in ("k.", "v.", "k_norm.")
        if (own := config.layers[i].attention) is not None and own.kv_source is not None
    ]
    return tuple(later)


def has_other_parts(file: GgufFile) -> bool:
    """Return whether a file also has a vision or audio part, as Ollama's have."""
    return any(name.startswith(_OTHER_PARTS) for name in file.tensors)


def _reject_foreign_types(file: GgufFile, unused: tuple[str, ...]) -> None:
    for name, tensor in file.tensors.items():
        if tensor.type_name not in BLOCK_TYPES and not name.startswith(unused):
            raise BadModelFile(
                f"{file.path}: tensor {name} has the type {tensor.type_name}, which is not "
                "supported",
                "choose a file of the same model in another type, such as Q4_K_M or Q8_0; "
                f"supported: {', '.join(BLOCK_TYPES)}",
            )


def _number(file: GgufFile, key: str, layer: int) -> float:
    """Return a layer's number from a list of them."""
    _, metadata = gguf_architecture(file)
    found = metadata.get(key)
    if not isinstance(found, list) or layer >= len(found) or type(found[layer]) is not float:
        raise BadModelFile(
            f"{file.path}: {metadata.name}.{key} must be a list with a number for each layer"
        )
    return float(found[layer])


def _mixer_source(
    file: GgufFile,
    architecture: GgufArchitecture,
    config: ModelConfig,
    canonical: str,
    layer: int | None,
) -> TensorSource | None:
    """Return a tensor, usually of a mixer, that is stored in another form; None for any other."""
    if layer is None:
        return None
    in_turns, shapes = architecture.value_heads_in_turns, layer_shapes(config, config.layers[layer])
    name = architecture.tensor_name(config, canonical).format(i=layer)
    if canonical in _RESHAPED:
        shape = shapes[canonical]
        # Dimensions of size 1 and groups differ in the file.
        tensor = file.tensors.get(name)
        if tensor is None or math.prod(tensor.shape) != math.prod(shape):
            tensor = checked_tensor(file, name, shape)
        order = value_rows(_gated_delta(config), canonical) if in_turns else None
        return ReshapedTensor((tensor,), shape, canonical == "mixer_decay", order)
    if canonical == "shared_router" and name in file.tensors:
        shape = shapes[canonical]
        # llama.cpp's quantizing program leaves out a dimension of size 1.
        if file.tensors[name].shape == shape[1:]:
            return ReshapedTensor((file.tensors[name],), shape, is_decay=False)
    if canonical == "mixer_qkvz" and f"blk.{layer}.{_DELTA_GATES}" in file.tensors:
        return _queries_and_gates(file, config, layer)
    if canonical == "mixer_out" and in_turns:
        spans = value_columns(_gated_delta(config))
        if spans is not None:
            shape = shapes[canonical]
            return OrderedColumns((checked_tensor(file, name, shape),), spans)
    return None


def _gated_delta(config: ModelConfig) -> GatedDelta:
    assert isinstance(config.mixer, GatedDelta)
    return config.mixer


def _queries_and_gates(file: GgufFile, config: ModelConfig, layer: int | None) -> MergedRows:
    """Return the projections of gated DeltaNet, which newer files have apart and by kind."""
    mixer = _gated_delta(config)
    shapes = mixer.shapes(config.hidden_size)
    queries = checked_tensor(file, f"blk.{layer}.{_DELTA_QUERIES}", shapes["mixer_qkv"])
    gates = checked_tensor(file, f"blk.{layer}.{_DELTA_GATES}", shapes["mixer_z"])
    return MergedRows((queries, gates), grouped_rows(mixer))


def _keys_and_values(file: GgufFile, config: ModelConfig, layer: int | None) -> KeyValueMatrix:
    """Return the matrices of keys and values, which files since 2025 have apart."""
    heads, latent = config.attention.num_heads, config.attention.latent
    assert latent is not None
    keys = checked_tensor(file, f"blk.{layer}.{_KEYS}", (heads, latent.kv_rank, latent.nope_dim))
    values = checked_tensor(
        file, f"blk.{layer}.{_VALUES}", (heads, latent.value_dim, latent.kv_rank)
    )
    return KeyValueMatrix((keys, values))


def block_matrices(config: ModelConfig, sources: Mapping[str, TensorSource]) -> frozenset[str]:
    """Return the names of the matrices whose blocks the engine computes with as they are."""
    canonical = {tensor_name(config, *place): place[0] for place in canonical_tensors(config)}
    return frozenset(
        name
        for name, source in sources.items()
        if canonical[name] in _KEPT and source.has_whole_blocks()
    )


def _shifted(rows: Rows, first: int) -> Rows:
    if isinstance(rows, range):
        return range(rows.start + first, rows.stop + first)
    return rows + first


def _reject_unknown_tensors(
    file: GgufFile, sources: Mapping[str, TensorSource], skipped: tuple[str, ...]
) -> None:
    known = ROPE_TENSORS.union(
        tensor.name for source in sources.values() for tensor in source.tensors
    )
    for name in file.tensors:
        if name not in known and not name.startswith(skipped):
            raise BadModelFile(
                f"{file.path}: tensor {name}: not part of this architecture",
                "the model is not supported: it computes something that this program does not",
            )


def _shapes(
    architecture: GgufArchitecture, config: ModelConfig, layer: LayerConfig | None
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the canonical tensors in GGUF, where matrices are [out, in].

    Those of a layer, or outside the layers.
    """
    shapes = canonical_shapes(config) if layer is None else layer_shapes(config, layer)
    target = architecture.target
    changed = {
        name: (*shapes[name][:-2], shapes[name][-1], shapes[name][-2])
        for name in target.transposed
        if name in shapes
    }
    rows = {name: shapes[name][1:] for name in target.row_vectors if name in shapes}
    return shapes | changed | rows


def _candidates(
    architecture: GgufArchitecture,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    canonical: str,
    expert: int,
) -> Sequence[_Candidate]:
    """Return the GGUF tensors that may contain a tensor, the usual one first."""

    def candidate(name: str, shape: tuple[int, ...], first: int = 0) -> _Candidate:
        return _Candidate(architecture.tensor_name(config, name), shape, first)

    shape = shapes[canonical]
    usual = candidate(canonical, shape)
    if canonical in ("expert_gate", "expert_up", "expert_down"):
        assert config.moe is not None
        num_experts = config.moe.num_experts
        stacked = candidate(canonical, (num_experts, *shape), expert * shape[0])
        # Older files have a tensor for each expert.
        single = _Candidate(usual.name.replace("_exps", f".{expert}"), shape)
        if canonical == "expert_down":
            return [stacked, single]
        # In the merged tensor gate comes before up.
        both = (num_experts, 2 * shape[0], shape[1])
        first = (2 * expert + (canonical == "expert_up")) * shape[0]
        return [stacked, single, candidate("expert_gate_up", both, first)]
    if canonical in ("stream_in", "stream_out"):
        assert config.streams is not None
        all_streams = (config.streams.count - 1, *shape)
        return [candidate(canonical, all_streams, expert * shape[0])]
    if canonical == "router_correction":
        # llama.cpp's loaders differ in the suffix.
        bare = usual.name.removesuffix(".bias")
        return [usual, _Candidate(bare, shape), _Candidate(f"{bare}.weight", shape)]
    kind, *bias = canonical.split("_")
    if kind in ("q", "k", "v") and bias in ([], ["bias"]):
        q, kv = shapes["q"][0], shapes["k"][0]
        merged = "_".join(["qkv", *bias])
        return [usual, candidate(merged, shapes[merged], {"q": 0, "k": q, "v": q + kv}[kind])]
    return [usual]


def row_order(
    architecture: GgufArchitecture, config: ModelConfig, canonical: str, count: int
) -> Rows:
    """Return where a GGUF file has each of a tensor's `count` rows in Hugging Face's order."""
    if canonical in architecture.permuted:
        heads = (
            config.attention.num_heads
            if canonical.startswith("q")
            else config.attention.num_kv_heads
        )
        # Row 2j + h of a head in GGUF is row h·(head_dim / 2) + j in Hugging Face's order.
        return np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    if architecture.value_heads_in_turns and canonical.startswith("mixer_"):
        order = value_rows(_gated_delta(config), canonical)
        return range(count) if order is None else order
    if architecture.target.qkv_in_groups and canonical in ("qkv", "qkv_bias"):
        groups, kv_rows = (
            config.attention.num_kv_heads,
            config.attention.num_kv_heads * config.attention.head_dim,
        )
        ends = np.array([count - 2 * kv_rows, count - kv_rows])
        parts = [part.reshape(groups, -1) for part in np.split(np.arange(count), ends)]
        return np.concatenate(parts, axis=1).reshape(-1)
    return range(count)

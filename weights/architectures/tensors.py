"""The tensors of a model: canonical names, Hugging Face names, shapes and order in the file."""

from collections.abc import Callable, Iterator

from swiftchat.weights.architectures.part_shapes import (
    expert_shapes,
    latent_shapes,
    mlp_shapes,
    per_layer_shapes,
    stream_shapes,
)
from swiftchat.weights.architectures.parts.attention import Attention
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.parts.mlp import Activation
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES

# The norms with one element for each of `hidden_size`.
NORMS = ("embed_norm", "attn_norm", "mlp_norm", "attn_out_norm", "mlp_out_norm", "final_norm")
# Those of a layer with several residual streams.
STREAM_TENSORS = (
    *("stream_scale", "stream_router", "stream_router_norm", "stream_predict", "stream_correct"),
    *("residual_left", "residual_right", "residual_norm"),
)
# In a layer with an MLP and experts: the output of the first, input and output of the others.
EXPERT_NORMS = ("dense_out_norm", "experts_norm", "experts_out_norm")

# The matrices of the experts that a router chooses.
ROUTED_EXPERTS = (
    *("expert_gate", "expert_up", "expert_down"),  # one tensor for each expert
    *("experts_gate_up", "experts_gate", "experts_up", "experts_down"),
)


def is_of_routed_expert(canonical: str) -> bool:
    """Return whether a canonical tensor is a matrix or bias of the routed experts."""
    return canonical.removesuffix("_bias") in ROUTED_EXPERTS


def tensor_name(
    config: ModelConfig, canonical: str, layer: int | None = None, index: int | None = None
) -> str:
    """Return the Hugging Face name of a canonical tensor.

    `layer` is for tensors of a layer; `index` is the expert or head of a tensor that the file
    stores separately for each.
    """
    architecture = ARCHITECTURES[config.architecture]
    names, separate = architecture.tensors, architecture.separate_norm_tensors
    if canonical in separate and has_separate_norms(config):
        names = separate
    file_layer = 0 if layer is None else config.layers[layer].file_layer
    number, sublayer = divmod(file_layer, architecture.sublayers)
    return names[canonical].format(i=number, j=sublayer, e=index, h=index, s=index)


def has_separate_norms(config: ModelConfig) -> bool:
    """Whether attention and MLP read the same stream, each through a norm of its own."""
    return any(layer.is_parallel and not layer.shared_norm for layer in config.layers)


def gate_in_queries(config: ModelConfig) -> bool:
    """Whether the query matrix has the rows of each head's output gate after those of the head."""
    has_gate = config.attention.gate is not None
    return has_gate and "attn_gate" not in ARCHITECTURES[config.architecture].tensors


def index_count(config: ModelConfig, canonical: str) -> int | None:
    """Return the number of experts or heads with a tensor of their own; None: one tensor."""
    name = ARCHITECTURES[config.architecture].tensors[canonical]
    if "{e}" in name:
        return 0 if config.moe is None else config.moe.num_experts
    if "{s}" in name:
        return config.streams.count - 1 if config.streams is not None else 0
    attention = config.attention
    heads = attention.num_heads if canonical.startswith("q") else attention.num_kv_heads
    return heads if "{h}" in name else None


def layer_tensors(config: ModelConfig, number: int) -> list[str]:
    """Return the canonical names of a layer's tensors, in the order in which `convert` writes.

    Matrices that one GEMM reads together (q/k/v, gate/up) are neighbors in the file.
    """
    layer = config.layers[number]
    mlp, biased = _mlp_and_experts(config, layer)
    norms = _layer_norms(config, layer)
    biases = [f"{name}_bias" for name in norms] if config.norm.has_bias else []
    mixer = [] if layer.mixer is None else layer.mixer.tensors
    if layer.mlp is not None and layer.mlp.activation.kind == "xielu":
        biases += ["xielu_positive", "xielu_negative"]
    if layer.inner_norms:
        norms += ["attn_inner_norm", "mlp_inner_norm"]
    biased_mlp = [f"{name}_bias" for name in biased]
    attention = layer.attention
    if attention is None:
        return [*mixer, *mlp, *norms, *biases, *biased_mlp]
    qkv = _queries_keys_values(config, attention)
    has_gate = attention.gate is not None and not gate_in_queries(config)
    gate = ["attn_gate"] if has_gate else []
    matrices = [*mixer, *qkv, *_from_latents(attention), *gate, "o", *mlp]
    if config.embeddings.per_layer is not None:
        matrices += ["ple_gate", "ple_out"]
    norms += _attention_norms(attention)
    biases += [*_attention_biases(attention, qkv), *biased_mlp]
    return [*matrices, *norms, *biases, *_small_tensors(config, layer)]


def _mlp_and_experts(config: ModelConfig, layer: LayerConfig) -> tuple[list[str], list[str]]:
    """Return the names of the matrices of a layer's MLP and experts, and those with biases."""
    names = ARCHITECTURES[config.architecture].tensors
    matrices, biased = list[str](), list[str]()
    if layer.mlp is not None:
        gate_up = _gate_up(layer.mlp.activation)
        matrices = [*(["gate_up"] if "gate_up" in names else gate_up), "down"]
        biased = [*matrices] if layer.mlp.bias else []
    moe = layer.moe
    if moe is None:
        return matrices, biased
    gate_up = _gate_up(moe.activation)
    experts = [*(f"expert_{name}" for name in gate_up), "expert_down"]
    experts = ["experts_gate_up", "experts_down"] if "experts_gate_up" in names else experts
    if "experts_gate" in names:
        experts = ["experts_gate", "experts_up", "experts_down"]
    shared = [f"shared_{name}" for name in gate_up]
    shared = ["shared_gate_up"] if "shared_gate_up" in names else shared
    shared = [*(["shared_router"] if moe.shared_gate else []), *shared, "shared_down"]
    matrices += ["router", *experts, *(shared if moe.shared_size else [])]
    matrices += ["expert_in", "expert_out"] if moe.latent_size else []
    matrices += ["router_correction"] if moe.router.correction else []
    return matrices, ["router", *experts] if moe.bias else []


def _gate_up(activation: Activation) -> list[str]:
    return ["gate", "up"] if activation.gated else ["up"]


def _queries_keys_values(config: ModelConfig, attention: Attention) -> list[str]:
    """Return the names of the projections of the attention's input."""
    latent = attention.latent
    if latent is not None:
        index = [] if latent.index is None else ["index_k", "index_weights"]
        return ["q" if latent.q_rank is None else "q_a", "kv_a", *index]
    if "qkv" in ARCHITECTURES[config.architecture].tensors:
        return ["qkv"]
    if attention.kv_source is not None:
        return ["q"]
    return ["q", "k"] if attention.values.are_keys else ["q", "k", "v"]


def _from_latents(attention: Attention) -> list[str]:
    """Return the names of the matrices that make queries, keys and values of latents."""
    latent = attention.latent
    if latent is None:
        return []
    index = [] if latent.index is None else ["index_q"]
    return [*([] if latent.q_rank is None else ["q_b"]), "kv_b", *index]


def _attention_norms(attention: Attention) -> list[str]:
    norms, latent = list[str](), attention.latent
    if attention.head_norms is not None and attention.head_norms.has_weights:
        norms += ["q_norm", "k_norm"] if attention.kv_source is None else ["q_norm"]
    if latent is not None:
        norms += ["kv_a_norm"] if latent.q_rank is None else ["q_a_norm", "kv_a_norm"]
        norms += ["index_norm", "index_norm_bias"] if latent.index is not None else []
    return norms


def _attention_biases(attention: Attention, qkv: list[str]) -> list[str]:
    # Latent attention has biases only where it makes latents.
    biased = qkv if attention.latent is None else [name for name in qkv if name in ("q_a", "kv_a")]
    biases = [f"{name}_bias" for name in biased] if attention.bias else []
    return [*biases, "o_bias"] if attention.output_bias else biases


def _small_tensors(config: ModelConfig, layer: LayerConfig) -> list[str]:
    """Return the names of the vectors and small matrices of only some models."""
    names = list[str]()
    if layer.attention is not None and layer.attention.scores.sinks:
        names.append("sinks")
    if layer.has_scale:
        names.append("layer_scale")
    if config.streams is not None:
        names += STREAM_TENSORS if config.streams.scaled else STREAM_TENSORS[1:]
    return names


def _layer_norms(config: ModelConfig, layer: LayerConfig) -> list[str]:
    if not config.norm.has_weights:
        return []
    has_both = (layer.attention or layer.mixer) and (layer.mlp or layer.moe)
    if not has_both:
        return ["mlp_norm" if layer.mlp or layer.moe else "attn_norm"]
    before = ["attn_norm"] if layer.shared_norm else ["attn_norm", "mlp_norm"]
    after = ["attn_out_norm", "mlp_out_norm"]
    norms = {"output": after, "sandwich": before + after}.get(layer.norm_order, before)
    if layer.mlp is not None and layer.moe is not None and not layer.is_shortcut:
        norms = [*norms, *EXPERT_NORMS, "router_scale", "expert_scales"]
    return norms if config.embeddings.per_layer is None else [*norms, "ple_out_norm"]


def tensors_before_layers(config: ModelConfig) -> list[str]:
    """Return the canonical names of the tensors before the layers."""
    names = ["embed"]
    if config.embeddings.per_layer is not None:
        names += ["ple_embed", "ple_project", "ple_project_norm"]
    if config.streams is not None:
        names.append("stream_in")
    if config.embeddings.positions is not None:
        names.append("positions")
    if config.embeddings.width is not None:
        names.append("project_in")
    if config.embeddings.has_norm and config.norm.has_weights:
        names += ["embed_norm", "embed_norm_bias"]
    return names


def tensors_after_layers(config: ModelConfig) -> list[str]:
    """Return the canonical names of the tensors after the layers.

    With tied embeddings there is no `lm_head`.
    """
    has_norm = config.head.has_norm and config.norm.has_weights
    names = ["final_norm"] if has_norm else []
    if has_norm and config.norm.has_bias:
        names.append("final_norm_bias")
    if config.embeddings.width is not None:
        names.append("project_out")
    if config.streams is not None:
        names.append("stream_out")
    if not config.head.tied:
        names.append("lm_head")
    if config.head.bias:
        names.append("lm_head_bias")
    return names


def canonical_tensors(config: ModelConfig) -> Iterator[tuple[str, int | None, int | None]]:
    """Yield canonical name, layer and index of every tensor, in the order of `convert`."""
    for name in tensors_before_layers(config):
        yield from _outside_layers(config, name)
    for layer in range(config.num_layers):
        counts = {name: index_count(config, name) for name in layer_tensors(config, layer)}
        for name, count in counts.items():
            if count is None:
                yield name, layer, None
        for index in range(max((count or 0 for count in counts.values()), default=0)):
            for name, count in counts.items():
                if index < (count or 0):
                    yield name, layer, index
    for name in tensors_after_layers(config):
        yield from _outside_layers(config, name)


def _outside_layers(config: ModelConfig, name: str) -> Iterator[tuple[str, int | None, int | None]]:
    count = index_count(config, name)
    for index in [None] if count is None else range(count):
        yield name, None, index


def constant_tensors(config: ModelConfig) -> dict[str, float]:
    """Return the constants that transformers stores as tensors of no dimension, by name."""
    if config.activation.kind != "xielu":
        return {}
    return {
        name.format(i=layer): value
        for layer in range(config.num_layers)
        for name, value in ARCHITECTURES[config.architecture].constants.items()
    }


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor of a checkpoint, in the order of `convert`.

    Matrices are [rows, columns] as in the file. With tied embeddings there is no `lm_head`.
    """
    shape_of = shape_by_place(config)
    return {
        tensor_name(config, name, layer, index): shape_of(name, layer)
        for name, layer, index in canonical_tensors(config)
    }


def shape_by_place(config: ModelConfig) -> Callable[[str, int | None], tuple[int, ...]]:
    """Return a function of canonical name and layer that returns the shape in the file."""
    outside = canonical_shapes(config)
    by_layer = {layer: layer_shapes(config, layer) for layer in dict.fromkeys(config.layers)}
    in_layers = [by_layer[layer] for layer in config.layers]

    def shape_of(name: str, layer: int | None) -> tuple[int, ...]:
        return (outside if layer is None else in_layers[layer])[name]

    return shape_of


def canonical_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape in the file of every canonical tensor outside the layers."""
    hidden, embeddings = config.hidden_size, config.embeddings
    width, vocab_size = config.head_width, embeddings.vocab_size
    shapes = {
        "embed": (vocab_size + embeddings.extra_rows, width),
        "project_in": (hidden, width),
        "project_out": (width, hidden),
        "lm_head": (vocab_size, width),
        "lm_head_bias": (vocab_size,),
        **dict.fromkeys(("embed_norm", "embed_norm_bias"), (hidden,)),
        **dict.fromkeys(("final_norm", "final_norm_bias"), (hidden,)),
        **({} if config.streams is None else stream_shapes(config, config.streams)),
    }
    if embeddings.positions is not None:
        shapes["positions"] = (embeddings.positions.count, hidden)
    if embeddings.per_layer is not None:
        shapes |= per_layer_shapes(config, embeddings.per_layer)
    return _as_in_file(config, shapes)


def layer_shapes(config: ModelConfig, layer: LayerConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape in the file of every canonical tensor of a layer."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"layer_scale": (1,)}
    if layer.attention is not None:
        shapes |= _attention_shapes(config, layer.attention)
    if layer.mlp is not None:
        shapes |= mlp_shapes(layer.mlp, hidden)
    if layer.moe is not None:
        shapes |= expert_shapes(layer.moe, hidden)
        if "experts_gate" in ARCHITECTURES[config.architecture].tensors:
            shapes["experts_down"] = shapes["experts_up"]
    if layer.mixer is not None:
        shapes |= layer.mixer.shapes(hidden)
    if config.streams is not None:
        shapes |= stream_shapes(config, config.streams)
    if config.embeddings.per_layer is not None:
        shapes |= per_layer_shapes(config, config.embeddings.per_layer)
    biased = [name for name in _BIASED if name in shapes]
    shapes |= {f"{name}_bias": shapes[name][:-1] for name in biased}
    for norm in (*NORMS, *EXPERT_NORMS, "ple_out_norm"):
        shapes |= {norm: (hidden,), f"{norm}_bias": (hidden,)}
    return _as_in_file(config, shapes)


_BIASED = (
    *("q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "router"),
    *("experts_gate_up", "experts_down", "q_a", "kv_a"),
)


def _attention_shapes(config: ModelConfig, attention: Attention) -> dict[str, tuple[int, ...]]:
    hidden, heads, kv_heads = config.hidden_size, attention.num_heads, attention.num_kv_heads
    q_rows, kv_rows = heads * attention.head_dim, kv_heads * attention.head_dim
    value_dim, norms, gate = attention.values.dim, attention.head_norms, attention.gate
    by_width = norms is not None and norms.over == "width"
    shapes: dict[str, tuple[int, ...]] = {
        "q": (q_rows * (1 + gate_in_queries(config)), hidden),
        "k": (kv_rows, hidden),
        "v": (kv_heads * value_dim, hidden),
        "qkv": (q_rows + kv_rows + kv_heads * value_dim, hidden),
        "o": (hidden, heads * value_dim),
        "attn_gate": (heads if gate is not None and gate.by_head else q_rows, hidden),
        "sinks": (heads,),
        "attn_inner_norm": (heads * value_dim,),
        "q_norm": (q_rows if by_width else attention.head_dim,),
        "k_norm": (kv_rows if by_width else attention.head_dim,),
    }
    if norms is not None and norms.over == "heads" and index_count(config, "q_norm") is None:
        shapes["q_norm"] = (heads, attention.head_dim)
        shapes["k_norm"] = (kv_heads, attention.head_dim)
    if attention.latent is not None:
        shapes |= latent_shapes(attention.latent, heads, hidden)
    return shapes


def _as_in_file(
    config: ModelConfig, shapes: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes, of which some are transposed in the file or have one dimension more."""
    architecture = ARCHITECTURES[config.architecture]
    rows = [name for name in architecture.row_vectors if name in shapes]
    transposed = [name for name in architecture.transposed if name in shapes]
    return (
        shapes
        | {name: (1, *shapes[name]) for name in rows}
        | {name: (*shapes[name][:-2], shapes[name][-1], shapes[name][-2]) for name in transposed}
    )

"""The tensors of a model: canonical names, Hugging Face names, shapes and order in the file."""

from collections.abc import Callable, Iterator

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.part_shapes import (
    expert_shapes,
    latent_shapes,
    per_layer_shapes,
)
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


def tensor_name(
    config: ModelConfig, canonical: str, layer: int | None = None, index: int | None = None
) -> str:
    """Return the Hugging Face name of a canonical tensor.

    `layer` is for tensors of a layer; `index` is the expert or head of a tensor that the file
    stores separately for each.
    """
    architecture = ARCHITECTURES[config.architecture]
    names, separate = architecture.tensors, architecture.separate_norm_tensors
    if config.parallel_residual and not config.shared_norm and canonical in separate:
        names = separate
    if layer is not None and config.file_layers:
        layer = config.file_layers[layer]
    number, sublayer = divmod(layer or 0, architecture.sublayers)
    return names[canonical].format(i=number, j=sublayer, e=index, h=index, s=index)


def gate_in_queries(config: ModelConfig) -> bool:
    """Whether the query matrix has the rows of each head's output gate after those of the head."""
    return config.attention_gate and "attn_gate" not in ARCHITECTURES[config.architecture].tensors


def index_count(config: ModelConfig, canonical: str) -> int | None:
    """Return the number of experts or heads with a tensor of their own; None: one tensor."""
    name = ARCHITECTURES[config.architecture].tensors[canonical]
    if "{e}" in name:
        return config.num_experts
    if "{s}" in name:
        return config.streams.count - 1 if config.streams is not None else 0
    heads = config.num_heads if canonical.startswith("q") else config.num_kv_heads
    return heads if "{h}" in name else None


def layer_tensors(config: ModelConfig, layer: int) -> list[str]:
    """Return the canonical names of a layer's tensors, in the order in which `convert` writes.

    Matrices that one GEMM reads together (q/k/v, gate/up) are neighbors in the file.
    """
    mlp, biased = _mlp_and_experts(config, layer)
    norms = _layer_norms(config, layer)
    if config.single_branch:
        norms = ["mlp_norm" if config.has_mlp(layer) else "attn_norm"]
        mlp, biased = (mlp, biased) if config.has_mlp(layer) else ([], [])
    biases = [f"{name}_bias" for name in norms] if config.norm_bias else []
    mixer: list[str] = []
    if config.mixer is not None and layer in config.mixer_layers:
        mixer = config.mixer.tensors
    if config.activation == "xielu":
        biases += ["xielu_positive", "xielu_negative"]
    if config.inner_norms:
        norms += ["attn_inner_norm", "mlp_inner_norm"]
    biased_mlp = [f"{name}_bias" for name in biased]
    if not config.has_attention(layer):
        return [*mixer, *mlp, *norms, *biases, *biased_mlp]
    qkv = _queries_keys_values(config, layer)
    gate = ["attn_gate"] if config.attention_gate and not gate_in_queries(config) else []
    matrices = [*mixer, *qkv, *_from_latents(config), *gate, "o", *mlp]
    if config.per_layer_embeddings is not None:
        matrices += ["ple_gate", "ple_out"]
    norms += _attention_norms(config, layer)
    biases += [*_attention_biases(config, qkv), *biased_mlp]
    return [*matrices, *norms, *biases, *_small_tensors(config, layer)]


def _mlp_and_experts(config: ModelConfig, layer: int) -> tuple[list[str], list[str]]:
    """Return the names of the matrices of a layer's MLP or experts, and those with biases."""
    names = ARCHITECTURES[config.architecture].tensors
    gate_up = ["gate", "up"] if config.gated else ["up"]
    mlp = [*(["gate_up"] if "gate_up" in names else gate_up), "down"]
    biased = [*mlp] if config.mlp_bias else []
    if not config.num_experts or layer in config.dense_layers:
        return mlp, biased
    experts = [*(f"expert_{name}" for name in gate_up), "expert_down"]
    experts = ["experts_gate_up", "experts_down"] if "experts_gate_up" in names else experts
    if "experts_gate" in names:
        experts = ["experts_gate", "experts_up", "experts_down"]
    shared = [f"shared_{name}" for name in gate_up]
    shared = ["shared_gate_up"] if "shared_gate_up" in names else shared
    shared = [*(["shared_router"] if config.shared_expert_gate else []), *shared, "shared_down"]
    sparse = ["router", *experts, *(shared if config.shared_expert_size else [])]
    sparse += ["expert_in", "expert_out"] if config.expert_latent_size else []
    mlp = [*mlp, *sparse] if config.mlp_and_experts or config.shortcut_experts else sparse
    mlp += ["router_correction"] if config.router.correction else []
    return mlp, ["router", *experts] if config.expert_bias else []


def _queries_keys_values(config: ModelConfig, layer: int) -> list[str]:
    """Return the names of the projections of the attention's input."""
    latent = config.latent
    if latent is not None:
        index = [] if latent.index is None else ["index_k", "index_weights"]
        return ["q" if latent.q_rank is None else "q_a", "kv_a", *index]
    if "qkv" in ARCHITECTURES[config.architecture].tensors:
        return ["qkv"]
    if config.kv_source(layer) != layer:
        return ["q"]
    return ["q", "k"] if layer in config.keys_as_values else ["q", "k", "v"]


def _from_latents(config: ModelConfig) -> list[str]:
    """Return the names of the matrices that make queries, keys and values of latents."""
    latent = config.latent
    if latent is None:
        return []
    index = [] if latent.index is None else ["index_q"]
    return [*([] if latent.q_rank is None else ["q_b"]), "kv_b", *index]


def _attention_norms(config: ModelConfig, layer: int) -> list[str]:
    norms, latent = list[str](), config.latent
    if config.qk_norm and config.qk_norm_weights:
        norms += ["q_norm", "k_norm"] if config.kv_source(layer) == layer else ["q_norm"]
    if latent is not None:
        norms += ["kv_a_norm"] if latent.q_rank is None else ["q_a_norm", "kv_a_norm"]
        norms += ["index_norm", "index_norm_bias"] if latent.index is not None else []
    return norms


def _attention_biases(config: ModelConfig, qkv: list[str]) -> list[str]:
    # Latent attention has biases only where it makes latents.
    biased = qkv if config.latent is None else [name for name in qkv if name in ("q_a", "kv_a")]
    biases = [f"{name}_bias" for name in biased] if config.attention_bias else []
    return [*biases, "o_bias"] if config.output_bias else biases


def _small_tensors(config: ModelConfig, layer: int) -> list[str]:
    """Return the names of the vectors and small matrices of only some models."""
    names = list[str]()
    if config.attention_sinks and not (config.windowed_sinks and config.window(layer) is None):
        names.append("sinks")
    if config.layer_scales:
        names.append("layer_scale")
    if config.streams is not None:
        names += STREAM_TENSORS if config.streams.scaled else STREAM_TENSORS[1:]
    return names


def _layer_norms(config: ModelConfig, layer: int) -> list[str]:
    if not config.norm_weights:
        return []
    before = ["attn_norm"] if config.shared_norm else ["attn_norm", "mlp_norm"]
    after = ["attn_out_norm", "mlp_out_norm"]
    order = "output" if layer in config.output_norm_layers else config.norm_order
    norms = {"output": after, "sandwich": before + after}.get(order, before)
    if config.mlp_and_experts:
        norms = [*norms, *EXPERT_NORMS, "router_scale", "expert_scales"]
    return norms if config.per_layer_embeddings is None else [*norms, "ple_out_norm"]


def tensors_before_layers(config: ModelConfig) -> list[str]:
    """Return the canonical names of the tensors before the layers."""
    names = ["embed"]
    if config.per_layer_embeddings is not None:
        names += ["ple_embed", "ple_project", "ple_project_norm"]
    if config.streams is not None:
        names.append("stream_in")
    if config.learned_positions:
        names.append("positions")
    if config.embedding_size is not None:
        names.append("project_in")
    if config.embedding_norm and config.norm_weights:
        names += ["embed_norm", "embed_norm_bias"]
    return names


def tensors_after_layers(config: ModelConfig) -> list[str]:
    """Return the canonical names of the tensors after the layers.

    With tied embeddings there is no `lm_head`.
    """
    has_norm = config.final_norm and config.norm_weights
    names = ["final_norm"] if has_norm else []
    if has_norm and config.norm_bias:
        names.append("final_norm_bias")
    if config.embedding_size is not None:
        names.append("project_out")
    if config.streams is not None:
        names.append("stream_out")
    if not config.tied_embeddings:
        names.append("lm_head")
    if config.lm_head_bias:
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
    if config.activation != "xielu":
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
    sizes = config.layer_sizes
    by_size = {each: canonical_shapes(config.of_layer(i)) for i, each in enumerate(sizes)}

    def shape_of(name: str, layer: int | None) -> tuple[int, ...]:
        return (by_size[sizes[layer]] if sizes and layer is not None else outside)[name]

    return shape_of


def canonical_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape in the file of every canonical tensor, whether `config` has it or not.

    Where layers have different sizes, `config` is that of a layer.
    """
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.embedding_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    by_head = config.qk_norm != "width"
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size + config.extra_embeddings, width or hidden),
        "positions": (config.learned_positions, hidden),
        "project_in": (hidden, width or hidden),
        "project_out": (width or hidden, hidden),
        "lm_head": (config.vocab_size, width or hidden),
        "lm_head_bias": (config.vocab_size,),
        "q": (q_rows * (1 + gate_in_queries(config)), hidden),
        "k": (kv_rows, hidden),
        "v": (config.num_kv_heads * config.value_dim, hidden),
        "qkv": (q_rows + kv_rows + config.num_kv_heads * config.value_dim, hidden),
        "o": (hidden, config.num_heads * config.value_dim),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "attn_gate": (config.num_heads if config.gate_by_head else q_rows, hidden),
        "sinks": (config.num_heads,),
        "xielu_positive": (1,),
        "xielu_negative": (1,),
        "attn_inner_norm": (config.num_heads * config.value_dim,),
        "mlp_inner_norm": (inner,),
        "q_norm": (config.head_dim if by_head else q_rows,),
        "k_norm": (config.head_dim if by_head else kv_rows,),
    }
    shapes |= expert_shapes(config) | per_layer_shapes(config)
    if "experts_gate" in ARCHITECTURES[config.architecture].tensors:
        shapes["experts_down"] = shapes["experts_up"]
    if config.latent is not None:
        shapes |= latent_shapes(config, config.latent)
    if config.qk_norm == "heads" and index_count(config, "q_norm") is None:
        shapes["q_norm"] = (config.num_heads, config.head_dim)
        shapes["k_norm"] = (config.num_kv_heads, config.head_dim)
    shapes |= {} if config.mixer is None else config.mixer.shapes(hidden)
    biased = ["q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "router"]
    biased += ["experts_gate_up", "experts_down"]
    biased += [name for name in ("q_a", "kv_a") if name in shapes]
    shapes |= {f"{name}_bias": shapes[name][:-1] for name in biased}
    for norm in (*NORMS, *EXPERT_NORMS, "ple_out_norm"):
        shapes |= {norm: (hidden,), f"{norm}_bias": (hidden,)}
    transposed = ARCHITECTURES[config.architecture].transposed
    shapes |= {name: (1, *shapes[name]) for name in ARCHITECTURES[config.architecture].row_vectors}
    return shapes | {
        name: (*shapes[name][:-2], shapes[name][-1], shapes[name][-2]) for name in transposed
    }

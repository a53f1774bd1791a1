"""The tensors of a model: canonical names, Hugging Face names, shapes and order in the file."""

from collections.abc import Iterator

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES

__all__ = [
    "canonical_shapes",
    "canonical_tensors",
    "expected_tensors",
    "index_count",
    "layer_tensors",
    "tensor_name",
    "tensors_after_layers",
    "tensors_before_layers",
]


def tensor_name(
    config: ModelConfig, canonical: str, layer: int | None = None, part: int | None = None
) -> str:
    """The Hugging Face name of a canonical tensor; `layer` only for the tensors of a layer.

    `part` is the expert, or the head, of what the file keeps one by one.
    """
    family = ARCHITECTURES[config.architecture]
    names = family.tensors
    if config.parallel_residual and not config.shared_norm and canonical in family.two_norm_tensors:
        names = family.two_norm_tensors
    return names[canonical].format(i=layer, e=part, h=part)


def index_count(config: ModelConfig, canonical: str) -> int | None:
    """How many tensors of the file make up this one; None where it is a tensor itself."""
    name = ARCHITECTURES[config.architecture].tensors[canonical]
    if "{e}" in name:
        return config.num_experts
    heads = config.num_heads if canonical.startswith("q") else config.num_kv_heads
    return heads if "{h}" in name else None


def layer_tensors(config: ModelConfig, layer: int) -> list[str]:
    """Canonical names of what a layer of `config` has, in the order `convert` writes them.

    What one fused matrix product reads together (q k v, gate up) lies together in the file.
    """
    family = ARCHITECTURES[config.architecture].tensors
    qkv = ["qkv"] if "qkv" in family else ["q", "k", "v"]
    inner = ["gate", "up"] if config.gated else ["up"]
    ffn = [*(["gate_up"] if "gate_up" in family else inner), "down"]
    biased = [*ffn] if config.mlp_bias else []
    if config.num_experts and layer not in config.dense_layers:
        experts = ["expert_gate", "expert_up", "expert_down"]
        experts = ["experts_gate_up", "experts_down"] if "experts_gate_up" in family else experts
        shared = ["shared_router", "shared_gate", "shared_up", "shared_down"]
        ffn = ["router", *experts, *(shared if config.shared_expert_size else [])]
        biased = ["router", *experts] if config.expert_bias else []
    matrices = [*qkv, "o", *ffn]
    norms = _layer_norms(config)
    biases = [f"{name}_bias" for name in norms] if config.norm_bias else []
    if config.qk_norm:
        norms += ["q_norm", "k_norm"]
    if config.attention_bias:
        biases += [f"{name}_bias" for name in qkv]
    if config.output_bias:
        biases.append("o_bias")
    biases += [f"{name}_bias" for name in biased]
    if config.attention_sinks:
        biases.append("sinks")
    return [*matrices, *norms, *biases]


def _layer_norms(config: ModelConfig) -> list[str]:
    before = ["attn_norm"] if config.shared_norm else ["attn_norm", "mlp_norm"]
    after = ["attn_out_norm", "mlp_out_norm"]
    return {"output": after, "sandwich": before + after}.get(config.norm_order, before)


def tensors_before_layers(config: ModelConfig) -> list[str]:
    """Canonical names of what comes before the layers."""
    names = ["embed"]
    if config.learned_positions:
        names.append("positions")
    if config.embedding_size is not None:
        names.append("project_in")
    if config.embedding_norm:
        names += ["embed_norm", "embed_norm_bias"]
    return names


def tensors_after_layers(config: ModelConfig) -> list[str]:
    """Canonical names of what comes after the layers; no `lm_head` with tied embeddings."""
    names = ["final_norm"] if config.final_norm else []
    if config.final_norm and config.norm_bias:
        names.append("final_norm_bias")
    if config.embedding_size is not None:
        names.append("project_out")
    if not config.tied_embeddings:
        names.append("lm_head")
    if config.lm_head_bias:
        names.append("lm_head_bias")
    return names


def canonical_tensors(
    config: ModelConfig,
) -> Iterator[tuple[str, int | None, int | None]]:
    """Canonical name, layer and part of every tensor, in the order `convert` writes them."""
    for name in tensors_before_layers(config):
        yield name, None, None
    for layer in range(config.num_layers):
        counts = {name: index_count(config, name) for name in layer_tensors(config, layer)}
        for name, count in counts.items():
            if count is None:
                yield name, layer, None
        for part in range(max((count or 0 for count in counts.values()), default=0)):
            for name, count in counts.items():
                if part < (count or 0):
                    yield name, layer, part
    for name in tensors_after_layers(config):
        yield name, None, None


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape (rows, columns) of every tensor a checkpoint of `config` must hold.

    In the order `convert` writes them. With tied embeddings `lm_head` is not among them.
    """
    shapes = canonical_shapes(config)
    return {
        tensor_name(config, name, layer, part): shapes[name]
        for name, layer, part in canonical_tensors(config)
    }


def canonical_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every canonical tensor as it lies in the file, present in `config` or not."""
    hidden, inner, width = config.hidden_size, config.intermediate_size, config.embedding_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    by_head = config.qk_norm != "width"
    experts, narrow, shared = config.num_experts, config.expert_size, config.shared_expert_size
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size, width or hidden),
        "positions": (config.learned_positions, hidden),
        "project_in": (hidden, width or hidden),
        "project_out": (width or hidden, hidden),
        "lm_head": (config.vocab_size, width or hidden),
        "lm_head_bias": (config.vocab_size,),
        "q": (q_rows, hidden),
        "k": (kv_rows, hidden),
        "v": (kv_rows, hidden),
        "qkv": (q_rows + 2 * kv_rows, hidden),
        "o": (hidden, q_rows),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "router": (experts, hidden),
        "expert_gate": (narrow, hidden),
        "expert_up": (narrow, hidden),
        "expert_down": (hidden, narrow),
        "experts_gate_up": (experts, 2 * narrow, hidden),
        "experts_down": (experts, hidden, narrow),
        "shared_router": (1, hidden),
        "shared_gate": (shared, hidden),
        "shared_up": (shared, hidden),
        "shared_down": (hidden, shared),
        "sinks": (config.num_heads,),
        "q_norm": (config.head_dim if by_head else q_rows,),
        "k_norm": (config.head_dim if by_head else kv_rows,),
    }
    matrices = (
        "q",
        "k",
        "v",
        "qkv",
        "o",
        "gate",
        "up",
        "gate_up",
        "down",
        "router",
        "experts_gate_up",
        "experts_down",
    )
    shapes |= {f"{name}_bias": shapes[name][:-1] for name in matrices}
    for norm in (
        "embed_norm",
        "attn_norm",
        "mlp_norm",
        "attn_out_norm",
        "mlp_out_norm",
        "final_norm",
    ):
        shapes |= {norm: (hidden,), f"{norm}_bias": (hidden,)}
    transposed = ARCHITECTURES[config.architecture].transposed
    return shapes | {
        name: (*shapes[name][:-2], shapes[name][-1], shapes[name][-2]) for name in transposed
    }

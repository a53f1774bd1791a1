"""The shapes of the tensors of a model's parts, in their files."""

from swiftchat.weights.architectures.parts.embeddings import PerLayerEmbeddings
from swiftchat.weights.architectures.parts.latent import LatentAttention, SparseIndex
from swiftchat.weights.architectures.parts.layers import Streams
from swiftchat.weights.architectures.parts.mlp import Mlp, Moe
from swiftchat.weights.architectures.parts.model import ModelConfig


def mlp_shapes(mlp: Mlp, hidden: int) -> dict[str, tuple[int, ...]]:
    inner = mlp.intermediate_size
    return {
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
        "mlp_inner_norm": (inner,),
        "xielu_positive": (1,),
        "xielu_negative": (1,),
    }


def expert_shapes(moe: Moe, hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a router, of experts in one tensor or in several, and of shared ones."""
    experts, narrow = moe.num_experts, moe.expert_size
    inside, shared = moe.latent_size or hidden, moe.shared_size
    choices = experts + moe.identity_experts
    return {
        "router": (choices, hidden),
        "router_correction": (choices,),
        "router_scale": (hidden,),
        "expert_scales": (experts,),
        "experts_gate": (experts * narrow, hidden),
        "experts_up": (experts * narrow, hidden),
        "expert_in": (inside, hidden),
        "expert_out": (hidden, inside),
        "expert_gate": (narrow, inside),
        "expert_up": (narrow, inside),
        "expert_down": (inside, narrow),
        "experts_gate_up": (experts, 2 * narrow, hidden),
        "experts_down": (experts, hidden, narrow),
        "shared_router": (1, hidden),
        "shared_gate": (shared, hidden),
        "shared_up": (shared, hidden),
        "shared_gate_up": (2 * shared, hidden),
        "shared_down": (hidden, shared),
    }


def per_layer_shapes(config: ModelConfig, table: PerLayerEmbeddings) -> dict[str, tuple[int, ...]]:
    """Return the shapes of per-layer embeddings, and of what a layer does with its own."""
    width, hidden = table.width, config.hidden_size
    return {
        "ple_embed": (table.vocab_size, config.num_layers * width),
        "ple_project": (config.num_layers * width, hidden),
        "ple_project_norm": (width,),
        "ple_gate": (width, hidden),
        "ple_out": (hidden, width),
    }


def stream_shapes(config: ModelConfig, streams: Streams) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what updates several residual streams."""
    hidden = config.hidden_size
    return {
        "stream_in": (hidden, hidden),
        "stream_out": (hidden, hidden),
        "stream_scale": (hidden,),
        "stream_router": (streams.count, hidden),
        "stream_router_norm": (hidden,),
        "stream_predict": (streams.count**2, streams.count),
        "stream_correct": (streams.count, streams.count),
        "residual_left": (streams.residual_rank, hidden),
        "residual_right": (hidden, streams.residual_rank),
        "residual_norm": (hidden,),
    }


def latent_shapes(
    latent: LatentAttention, num_heads: int, hidden: int
) -> dict[str, tuple[int, ...]]:
    q_rank, kv_rank = latent.q_rank or 0, latent.kv_rank
    index = latent.index or SparseIndex(0, 0, 0)
    return {
        "index_q": (index.num_heads * index.dim, q_rank),
        "index_k": (index.dim, hidden),
        "index_weights": (index.num_heads, hidden),
        "index_norm": (index.dim,),
        "index_norm_bias": (index.dim,),
        "q_a": (q_rank, hidden),
        "q_a_norm": (q_rank,),
        "q_b": (num_heads * latent.head_dim, q_rank),
        "kv_a": (latent.key_dim, hidden),
        "kv_a_norm": (kv_rank,),
        "kv_b": (num_heads * (latent.nope_dim + latent.value_dim), kv_rank),
    }

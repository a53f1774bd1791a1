"""The shapes of tensors that only some models have, in their files."""

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.latent import LatentAttention, SparseIndex
from swiftchat.weights.architectures.parts.layers import (
    PerLayerEmbeddings,
    Streams,
)


def expert_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a router, of experts in one tensor or in several, and of shared ones."""
    hidden, experts, narrow = config.hidden_size, config.num_experts, config.expert_size
    inside, shared = config.expert_latent_size or hidden, config.shared_expert_size
    choices = experts + config.identity_experts
    return {
        "router": (choices, hidden),
        "router_correction": (choices,),
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


def per_layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of per-layer embeddings, of streams, and of numbers of a layer."""
    table = config.per_layer_embeddings or PerLayerEmbeddings(0, 0)
    width, hidden = table.width, config.hidden_size
    streams = config.streams or Streams(0, 0, False, 0)
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
        "layer_scale": (1,),
        "router_scale": (hidden,),
        "expert_scales": (config.num_experts,),
        "ple_embed": (table.vocab_size, config.num_layers * width),
        "ple_project": (config.num_layers * width, hidden),
        "ple_project_norm": (width,),
        "ple_gate": (width, hidden),
        "ple_out": (hidden, width),
    }


def latent_shapes(config: ModelConfig, latent: LatentAttention) -> dict[str, tuple[int, ...]]:
    q_rank, kv_rank, hidden = latent.q_rank or 0, latent.kv_rank, config.hidden_size
    index = latent.index or SparseIndex(0, 0, 0)
    return {
        "index_q": (index.num_heads * index.dim, q_rank),
        "index_k": (index.dim, hidden),
        "index_weights": (index.num_heads, hidden),
        "index_norm": (index.dim,),
        "index_norm_bias": (index.dim,),
        "q_a": (q_rank, hidden),
        "q_a_norm": (q_rank,),
        "q_b": (config.num_heads * latent.head_dim, q_rank),
        "kv_a": (latent.key_dim, hidden),
        "kv_a_norm": (kv_rank,),
        "kv_b": (config.num_heads * (latent.nope_dim + latent.value_dim), kv_rank),
    }

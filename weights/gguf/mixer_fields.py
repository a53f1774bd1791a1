"""Fields of config.json of models with token mixers, as `model_fields` for the others.

Source: llama.cpp's converter and loader. Which layer is of which kind follows from its tensors.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.gguf.expert_fields import experts
from swiftchat.weights.gguf.metadata import Metadata, is_size


def _head_dim(metadata: Metadata) -> int | None:
    width, heads = metadata.require("ssm.inner_size"), metadata.require("ssm.time_step_rank")
    return width // heads if is_size(width) and is_size(heads) else None


def lfm2(metadata: Metadata) -> Mapping[str, Any]:
    conv = metadata.layers_with("shortconv.conv.weight")
    return {
        "layer_types": ["conv" if each else "full_attention" for each in conv],
        "conv_L_cache": metadata.require("shortconv.l_cache"),
        "conv_bias": any(metadata.layers_with("shortconv.conv.bias")),
        "block_auto_adjust_ff_dim": False,
    }


def lfm2_moe(metadata: Metadata) -> Mapping[str, Any]:
    fields = dict(lfm2(metadata))
    del fields["block_auto_adjust_ff_dim"]
    return {
        **fields,
        **experts(metadata),
        "num_dense_layers": metadata.get("leading_dense_block_count", 0),
        "use_expert_bias": any(metadata.layers_with("exp_probs_b.bias", "exp_probs_b.weight")),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
    }


def nemotron_h(metadata: Metadata) -> Mapping[str, Any]:
    mixers = metadata.layers_with("ssm_in.weight")
    attention = metadata.layers_with("attn_q.weight")
    sparse = metadata.layers_with("ffn_gate_inp.weight")
    kinds = [
        "linear_attention" if mixer else "full_attention" if attends else "moe" if moe else "mlp"
        for mixer, attends, moe in zip(mixers, attention, sparse, strict=True)
    ]
    latent = f"blk.{kinds.index('moe')}.ffn_latent_down.weight" if "moe" in kinds else ""
    found = metadata.file.tensors.get(latent)
    return {
        "layers_block_type": kinds,
        "attention_bias": any(metadata.layers_with("attn_q.bias")),
        "mlp_bias": any(metadata.layers_with("ffn_up.bias")),
        "mamba_num_heads": metadata.require("ssm.time_step_rank"),
        "mamba_head_dim": _head_dim(metadata),
        "n_groups": metadata.require("ssm.group_count"),
        "ssm_state_size": metadata.require("ssm.state_size"),
        "conv_kernel": metadata.require("ssm.conv_kernel"),
        "use_bias": any(metadata.layers_with("ssm_in.bias")),
        "use_conv_bias": any(metadata.layers_with("ssm_conv1d.bias")),
        "n_routed_experts": metadata.get("expert_count"),
        "num_experts_per_tok": metadata.get("expert_used_count"),
        "moe_intermediate_size": metadata.get("expert_feed_forward_length"),
        "moe_shared_expert_intermediate_size": metadata.get("expert_shared_feed_forward_length"),
        "moe_latent_size": None if found is None else found.shape[0],
        "n_group": metadata.get("expert_group_count"),
        "topk_group": metadata.get("expert_group_used_count"),
        "norm_topk_prob": metadata.get("expert_weights_norm"),
        "routed_scaling_factor": metadata.get("expert_weights_scale"),
    }


def falcon_h1(metadata: Metadata) -> Mapping[str, Any]:
    """The converter multiplies the weights with the model's multipliers."""
    return {
        "attention_bias": metadata.has_tensor("attn_q.bias"),
        "mlp_bias": metadata.has_tensor("ffn_up.bias"),
        "mamba_d_ssm": metadata.require("ssm.inner_size"),
        "mamba_n_heads": metadata.require("ssm.time_step_rank"),
        "mamba_d_head": _head_dim(metadata),
        "mamba_n_groups": metadata.require("ssm.group_count"),
        "mamba_d_state": metadata.require("ssm.state_size"),
        "mamba_d_conv": metadata.require("ssm.conv_kernel"),
        "mamba_conv_bias": metadata.has_tensor("ssm_conv1d.bias"),
        "mamba_proj_bias": metadata.has_tensor("ssm_in.bias"),
        "projectors_bias": metadata.has_tensor("ssm_out.bias"),
        "mamba_rms_norm": metadata.has_tensor("ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def granite_hybrid(metadata: Metadata) -> Mapping[str, Any]:
    mixers, tensors = metadata.layers_with("ssm_in.weight"), metadata.file.tensors
    width, hidden = metadata.require("ssm.inner_size"), metadata.get("embedding_length")
    shared = tensors.get("blk.0.ffn_up_shexp.weight") or tensors.get("blk.0.ffn_up.weight")
    return {
        "attention_multiplier": metadata.get("attention.scale"),
        "embedding_multiplier": metadata.get("embedding_scale"),
        "residual_multiplier": metadata.get("residual_scale"),
        "logits_scaling": metadata.get("logit_scale"),
        "attention_bias": any(metadata.layers_with("attn_q.bias")),
        "layer_types": ["linear_attention" if each else "full_attention" for each in mixers],
        "position_embedding_type": "rope" if metadata.get("rope.scaling.finetuned") else "nope",
        "num_local_experts": metadata.get("expert_count", 0),
        "num_experts_per_tok": metadata.get("expert_used_count", 0),
        "shared_intermediate_size": 0 if shared is None else shared.shape[0],
        "mamba_n_heads": metadata.require("ssm.time_step_rank"),
        "mamba_d_head": _head_dim(metadata),
        "mamba_n_groups": metadata.require("ssm.group_count"),
        "mamba_d_state": metadata.require("ssm.state_size"),
        "mamba_d_conv": metadata.require("ssm.conv_kernel"),
        "mamba_expand": width // hidden if is_size(width) and is_size(hidden) else None,
        "mamba_conv_bias": any(metadata.layers_with("ssm_conv1d.bias")),
        "mamba_proj_bias": any(metadata.layers_with("ssm_in.bias")),
    }


def jamba(metadata: Metadata) -> Mapping[str, Any]:
    width, hidden = metadata.require("ssm.inner_size"), metadata.get("embedding_length")
    attention = metadata.layers_with("attn_q.weight")
    sparse = metadata.layers_with("ffn_gate_inp.weight")
    period, offset = _every(metadata, attention)
    expert_period, expert_offset = _every(metadata, sparse) if any(sparse) else (1, 0)
    return {
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        "expert_layer_period": expert_period,
        "expert_layer_offset": expert_offset,
        "num_experts": metadata.get("expert_count", 1) if any(sparse) else 1,
        "num_experts_per_tok": metadata.get("expert_used_count", 1),
        "mamba_expand": width // hidden if is_size(width) and is_size(hidden) else None,
        "mamba_d_state": metadata.require("ssm.state_size"),
        "mamba_d_conv": metadata.require("ssm.conv_kernel"),
        "mamba_dt_rank": metadata.require("ssm.time_step_rank"),
        "mamba_conv_bias": any(metadata.layers_with("ssm_conv1d.bias")),
        "mamba_proj_bias": any(metadata.layers_with("ssm_in.bias")),
    }


def _every(metadata: Metadata, layers: list[bool]) -> tuple[int, int]:
    """Return period and first of layers of one kind; raise if they are not evenly spaced."""
    found = [i for i, each in enumerate(layers) if each]
    offset = found[0] if found else 0
    period = found[1] - offset if len(found) > 1 else len(layers) - offset
    if not found or offset >= period or found != list(range(offset, len(layers), period)):
        raise BadModelFile(
            f"{metadata.file.path}: layers of one kind must be evenly spaced, found {found[:9]}"
        )
    return period, offset


def gated_delta(metadata: Metadata) -> dict[str, Any]:
    mixers = metadata.layers_with("ssm_conv1d.weight")
    return {
        "layer_types": ["linear_attention" if each else "full_attention" for each in mixers],
        "attention_bias": any(metadata.layers_with("attn_q.bias")),
        "linear_conv_kernel_dim": metadata.require("ssm.conv_kernel"),
        "linear_key_head_dim": metadata.require("ssm.state_size"),
        "linear_num_key_heads": metadata.require("ssm.group_count"),
        "linear_num_value_heads": metadata.require("ssm.time_step_rank"),
        "linear_value_head_dim": _head_dim(metadata),
    }


def qwen35_moe(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **gated_delta(metadata),
        **experts(metadata),
        "shared_expert_intermediate_size": metadata.require("expert_shared_feed_forward_length"),
    }


def qwen3_next(metadata: Metadata) -> Mapping[str, Any]:
    # llama.cpp always normalizes; there is no key.
    return {**qwen35_moe(metadata), "norm_topk_prob": True}


def _only(metadata: Metadata) -> dict[str, Any]:
    return {
        "state_size": metadata.require("ssm.state_size"),
        "conv_kernel": metadata.require("ssm.conv_kernel"),
        "use_bias": metadata.has_tensor("ssm_in.bias"),
        "use_conv_bias": metadata.has_tensor("ssm_conv1d.bias"),
    }


def mamba(metadata: Metadata) -> Mapping[str, Any]:
    return {
        **_only(metadata),
        "intermediate_size": metadata.require("ssm.inner_size"),
        "time_step_rank": metadata.require("ssm.time_step_rank"),
    }


def mamba2(metadata: Metadata) -> Mapping[str, Any]:
    width, hidden = metadata.require("ssm.inner_size"), metadata.get("embedding_length")
    return {
        **_only(metadata),
        "num_heads": metadata.require("ssm.time_step_rank"),
        "head_dim": _head_dim(metadata),
        "expand": width // hidden if is_size(width) and is_size(hidden) else None,
        "n_groups": metadata.require("ssm.group_count"),
    }

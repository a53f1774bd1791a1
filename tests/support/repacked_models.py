"""Models whose classes transformers lacks, made of others that compute the same."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

if TYPE_CHECKING:
    import transformers

Tensors = dict[str, torch.Tensor]
_EXAONE = {
    "model.layers.": "transformer.h.",
    "model.embed_tokens": "transformer.wte",
    "model.norm": "transformer.ln_f",
    "self_attn.o_proj": "attn.attention.out_proj",
    "self_attn.": "attn.attention.",
    "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1",
    "mlp.down_proj": "mlp.c_proj",
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
}
_BAILING = {
    "model.embed_tokens": "model.word_embeddings",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "self_attn.o_proj": "attention.dense",
    "mlp.gate.e_score_correction_bias": "mlp.gate.expert_bias",
}


def _save(
    model: "transformers.PreTrainedModel",
    folder: Path,
    class_name: str,
    model_type: str,
    names: Mapping[str, str],
    tensors: Tensors,
    config: Mapping[str, Any],
) -> "transformers.PreTrainedModel":
    """Save the tensors with parts of their names replaced, and `config` beside the usual keys."""
    pattern = re.compile("|".join(map(re.escape, names)) or "$^")
    renamed = {
        pattern.sub(lambda found: names[found[0]], name): tensor.clone()
        for name, tensor in tensors.items()
    }
    save_file(renamed, folder / "model.safetensors", {"format": "pt"})
    usual = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    usual += ("num_key_value_heads", "max_position_embeddings", "bos_token_id", "eos_token_id")
    saved = json.loads((folder / "config.json").read_text())
    kept = {key: saved[key] for key in usual}
    rope = saved["rope_parameters"]
    whole = {**kept, "rope_theta": rope["rope_theta"], "torch_dtype": "float32", **config}
    named = {"architectures": [class_name], "model_type": model_type}
    (folder / "config.json").write_text(json.dumps({**named, **whole}))
    return model


def exaone(model: "transformers.PreTrainedModel", folder: Path) -> "transformers.PreTrainedModel":
    """EXAONE 3 is Llama with other names."""
    config = {
        "num_layers": model.config.num_hidden_layers,
        "layer_norm_epsilon": model.config.rms_norm_eps,
        "tie_word_embeddings": False,
    }
    tensors = dict(model.state_dict())
    return _save(model, folder, "ExaoneForCausalLM", "exaone", _EXAONE, tensors, config)


def minicpm(folder: Path) -> "transformers.PreTrainedModel":
    """MiniCPM is Granite with multipliers of its own, and √head_dim."""
    from tests.support.reference import make_reference

    model = make_reference("granite", folder, num_hidden_layers=3, attention_multiplier=8**-0.5)
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    config = {
        "num_hidden_layers": layers,
        "rms_norm_eps": model.config.rms_norm_eps,
        "tie_word_embeddings": False,
        "scale_emb": model.config.embedding_multiplier,
        "scale_depth": model.config.residual_multiplier * layers**0.5,
        "dim_model_base": hidden / model.config.logits_scaling,
    }
    return _save(model, folder, "MiniCPMForCausalLM", "minicpm", {}, model.state_dict(), config)


def ling(folder: Path) -> "transformers.PreTrainedModel":
    """Ling 2.0 is GLM-4.5 with queries, keys and values in one tensor, and other names."""
    from tests.support.reference import make_reference

    model = make_reference("glm4_moe", folder, num_hidden_layers=3)
    theirs = model.config
    tensors = Tensors()
    for name, tensor in model.state_dict().items():
        place = name.removesuffix("self_attn.q_proj.weight")
        if place != name:
            parts = [model.state_dict()[f"{place}self_attn.{kind}_proj.weight"] for kind in "qkv"]
            tensors[f"{place}attention.query_key_value.weight"] = torch.cat(parts)
        elif name.endswith("experts.gate_up_proj"):
            place = name.removesuffix("gate_up_proj")
            for e, matrix in enumerate(tensor):
                gate, up = matrix.chunk(2)
                tensors[f"{place}{e}.gate_proj.weight"] = gate
                tensors[f"{place}{e}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):
            place = name.removesuffix("down_proj")
            tensors |= {f"{place}{e}.down_proj.weight": matrix for e, matrix in enumerate(tensor)}
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            tensors[name] = tensor
    config = {
        "num_hidden_layers": theirs.num_hidden_layers,
        "rms_norm_eps": theirs.rms_norm_eps,
        "head_dim": theirs.hidden_size // theirs.num_attention_heads,
        "partial_rotary_factor": theirs.rope_parameters["partial_rotary_factor"],
        "num_experts": theirs.n_routed_experts,
        "num_experts_per_tok": theirs.num_experts_per_tok,
        "num_shared_experts": theirs.n_shared_experts,
        "moe_intermediate_size": theirs.moe_intermediate_size,
        "n_group": theirs.n_group,
        "topk_group": theirs.topk_group,
        "routed_scaling_factor": theirs.routed_scaling_factor,
        "first_k_dense_replace": theirs.first_k_dense_replace,
        "use_qk_norm": theirs.use_qk_norm,
    }
    return _save(model, folder, "BailingMoeV2ForCausalLM", "bailing_moe", _BAILING, tensors, config)

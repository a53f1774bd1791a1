"""Zamba2: Mamba-2 layers, some behind a block of attention and MLP that several of them share.

Defaults and overrides are those of the model class in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL
from swiftchat.weights.architectures.families.mamba import MIXER
from swiftchat.weights.architectures.parts.architecture import Architecture, frozen, tensor_names
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    num_heads,
    num_layers,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.layers import SharedBlocks
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.parts.rope import RopeConfig

_LONG_CONTEXT = 16_384
_NORM_EPS = 1e-5  # of the mixers' norms
# The kinds of layers of the published models, but for their number.
_KINDS = (
    *("mamba", *(["mamba"] * 5 + ["hybrid"]) * 7, *["mamba"] * 4, "hybrid", *["mamba"] * 3),
    *("hybrid", "mamba", "mamba"),
)


def _block_layers(config: Fields) -> tuple[int, ...]:
    """Return the layers with a shared block."""
    kinds = config.get("layers_block_type")
    kinds = list(_KINDS) if kinds is None else kinds
    known = ("mamba", "linear_attention", "hybrid")
    count = num_layers(config)
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in known for k in kinds):
        raise invalid("layers_block_type", f"a list of {count} of {', '.join(known)}", str(kinds))
    found = tuple(i for i, kind in enumerate(kinds) if kind == "hybrid")
    if not found:
        raise invalid("layers_block_type", "a list with at least one hybrid layer", str(kinds))
    return found


def _derived(config: Fields, name: str, value: int) -> int:
    """Return `value`; raises `BadModelFile` if the key, which files also have, says otherwise."""
    if config.get(name) not in (None, value):
        raise invalid(name, str(value), config.get(name))
    return value


def _zamba2(config: Fields) -> Mapping[str, Any]:
    hidden, heads = hidden_size(config), num_heads(config)
    mamba_heads = integer(config, "n_mamba_heads", 1, MAX_HEADS)
    groups = integer(config, "mamba_ngroups", 1, mamba_heads)
    width = integer(config, "mamba_expand", 1, MAX_WIDTH) * hidden
    if width % mamba_heads:
        raise invalid("n_mamba_heads", f"a divisor of {width}", mamba_heads)
    if mamba_heads % groups:
        raise invalid("mamba_ngroups", f"a divisor of {mamba_heads} heads", groups)
    if 2 * hidden % heads:
        raise invalid("num_attention_heads", f"a divisor of {2 * hidden}", heads)
    head_dim = _derived(config, "attention_head_dim", 2 * hidden // heads)
    _derived(config, "attention_hidden_size", 2 * hidden)
    bias = flag(config, "add_bias_linear")
    rank = integer(config, "adapter_rank", 1, MAX_WIDTH)
    adapted = flag(config, "use_shared_attention_adapter")
    rope = RopeConfig.from_hf(config, head_dim) if flag(config, "use_mem_rope") else None
    layers = _block_layers(config)
    inner = optional_integer(config, "intermediate_size", 1, MAX_WIDTH) or 4 * hidden
    long_context = {"max_context_tokens": _LONG_CONTEXT}
    return {
        **(long_context if flag(config, "use_long_context") else {}),
        "intermediate_size": inner,
        "head_dim": head_dim,
        "attention_bias": False,
        "mlp_bias": bias,
        "query_scalar": head_dim / 2,
        "rope": rope,
        "single_branch": True,
        "shared_blocks": SharedBlocks(
            layers=layers,
            count=integer(config, "num_mem_blocks", 1, MAX_LAYERS),
            attention_rank=rank if adapted else 0,
            mlp_rank=rank,
        ),
        "mixer_layers": frozenset(range(num_layers(config))),
        "mixer_activation": "silu",
        "mixer": Mamba2(
            num_heads=mamba_heads,
            head_dim=_derived(config, "mamba_headdim", width // mamba_heads),
            num_groups=groups,
            state_size=integer(config, "mamba_d_state", 1, MAX_HEAD_DIM),
            kernel=integer(config, "mamba_d_conv", 2, MAX_KERNEL),
            norm_eps=_NORM_EPS,
            in_bias=bias,
            out_bias=bias,
            conv_bias=True,
            min_step=number(config, "time_step_min", above=-1.0, below=1e6),
        ),
    }


_BLOCK = "model.layers.{b}.shared_transformer."
_CHANGES = {
    f"{name}_change_{part}": f"{_BLOCK}{module}_adapter_list.{{p}}.{number}.weight"
    for name, module in {
        "q": "self_attn.linear_q",
        "k": "self_attn.linear_k",
        "v": "self_attn.linear_v",
        "gate_up": "feed_forward.gate_up_proj",
    }.items()
    for number, part in enumerate("ab")
}
_BLOCK_TENSORS = {
    "q": f"{_BLOCK}self_attn.q_proj.weight",
    "k": f"{_BLOCK}self_attn.k_proj.weight",
    "v": f"{_BLOCK}self_attn.v_proj.weight",
    "o": f"{_BLOCK}self_attn.o_proj.weight",
    "gate_up": f"{_BLOCK}feed_forward.gate_up_proj.weight",
    "gate_up_bias": f"{_BLOCK}feed_forward.gate_up_proj.bias",
    "down": f"{_BLOCK}feed_forward.down_proj.weight",
    "down_bias": f"{_BLOCK}feed_forward.down_proj.bias",
    "block_norm": f"{_BLOCK}input_layernorm.weight",
    "mlp_norm": f"{_BLOCK}pre_ff_layernorm.weight",
    "block_out": "model.layers.{i}.linear.weight",
    **_CHANGES,
}
_MIXER = {"attn_norm": "input_layernorm.weight", **MIXER}

ZAMBA: Mapping[str, Architecture] = {
    "Zamba2ForCausalLM": Architecture(
        name="zamba2",
        model_type="zamba2",
        overrides=_zamba2,
        rejected_keys=frozenset({"sliding_window"}),
        tensors={
            **_BLOCK_TENSORS,
            **tensor_names(
                _MIXER,
                embed="model.embed_tokens.weight",
                final_norm="model.final_layernorm.weight",
                lm_head="lm_head.weight",
                layer="model.layers.{i}.",
            ),
        },
        shared_block_tensors={
            name: f"model.layers.{{i}}.mamba_decoder.{rest}" for name, rest in _MIXER.items()
        },
        defaults=frozen(
            vocab_size=32_000,
            max_position_embeddings=4096,
            hidden_size=2560,
            num_hidden_layers=54,
            num_attention_heads=32,
            rms_norm_eps=1e-5,
            hidden_act="gelu",
            mamba_d_state=64,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_ngroups=1,
            n_mamba_heads=8,
            time_step_min=0.001,
            num_mem_blocks=1,
            adapter_rank=128,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
}

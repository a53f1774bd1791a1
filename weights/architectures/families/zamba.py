"""Zamba and Zamba2: Mamba layers, some behind a block of attention and MLP that they share.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from swiftchat.weights.architectures.families.lfm2 import MAX_KERNEL
from swiftchat.weights.architectures.families.mamba import MIXER
from swiftchat.weights.architectures.families.state_space import MAMBA_TENSORS, step_rank
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
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.parts.rope import RopeConfig

_LONG_CONTEXT = 16_384
_NORM_EPS = 1e-5  # of the mixers' norms
# The kinds of layers of the published models, but for their number.
_KINDS = (
    *("mamba", *(["mamba"] * 5 + ["hybrid"]) * 7, *["mamba"] * 4, "hybrid", *["mamba"] * 3),
    *("hybrid", "mamba", "mamba"),
)


def _block_layers(config: Fields, default: Sequence[str]) -> tuple[int, ...]:
    """Return the layers with a shared block."""
    kinds = config.get("layers_block_type")
    kinds = list(default) if kinds is None else kinds
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
    layers = _block_layers(config, _KINDS)
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


def _zamba(config: Fields) -> Mapping[str, Any]:
    hidden, heads, count = hidden_size(config), num_heads(config), num_layers(config)
    head_dim = optional_integer(config, "attention_head_dim", 2, MAX_HEAD_DIM)
    head_dim = 2 * hidden // heads if head_dim is None else head_dim
    _derived(config, "attention_hidden_size", 2 * hidden)
    mamba_heads = integer(config, "n_mamba_heads", 1, MAX_HEADS)
    width = integer(config, "mamba_expand", 1, MAX_WIDTH) * hidden
    if width % mamba_heads:
        raise invalid("n_mamba_heads", f"a divisor of {width}", mamba_heads)
    if config.get("hidden_mamba_act") != "silu":
        raise invalid("hidden_mamba_act", "silu", config.get("hidden_mamba_act"))
    period = integer(config, "attn_layer_period", 1, MAX_LAYERS)
    offset = integer(config, "attn_layer_offset", 0, MAX_LAYERS)
    kinds = ["hybrid" if i % period == offset else "mamba" for i in range(count - 3)]
    return {
        "head_dim": head_dim,
        "attention_bias": False,
        "mlp_bias": False,
        "query_scalar": head_dim / 2,
        "rope": None,
        "single_branch": True,
        "shared_blocks": SharedBlocks(
            layers=_block_layers(config, ["mamba", "mamba", "hybrid", *kinds]),
            count=1,
            attention_rank=0,
            mlp_rank=0,
        ),
        "mixer_layers": frozenset(range(count)),
        "mixer_activation": "silu",
        "mixer": Mamba(
            width=width,
            state_size=integer(config, "mamba_d_state", 1, MAX_HEAD_DIM),
            step_rank=step_rank(config, "mamba_dt_rank"),
            kernel=integer(config, "mamba_d_conv", 2, MAX_KERNEL),
            bias=flag(config, "mamba_proj_bias"),
            conv_bias=flag(config, "mamba_conv_bias"),
            num_heads=mamba_heads,
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
_ZAMBA_BLOCK = {
    name: rest.replace("shared_transformer", "shared_transf")
    for name, rest in {
        **{name: f"{_BLOCK}feed_forward.{name}_proj.weight" for name in ("gate", "up")},
        **{name: rest for name, rest in _BLOCK_TENSORS.items() if "gate_up" not in name},
    }.items()
}
_MIXER = {"attn_norm": "input_layernorm.weight", **MIXER}

_ZAMBA_MIXER = {
    **{name: f"mamba.{rest}" for name, rest in MAMBA_TENSORS.items()},
    "attn_norm": "input_layernorm.weight",
    "mixer_x": "mamba.x_proj_weight",
    "mixer_step": "mamba.dt_proj_weight",
    "mixer_step_bias": "mamba.dt_proj_bias",
}


def _tensors(block: Mapping[str, str], mixer: Mapping[str, str]) -> dict[str, Any]:
    """Return both tables of names of an architecture."""
    outside = tensor_names(
        mixer,
        embed="model.embed_tokens.weight",
        final_norm="model.final_layernorm.weight",
        lm_head="lm_head.weight",
        layer="model.layers.{i}.",
    )
    after_block = {name: f"model.layers.{{i}}.mamba_decoder.{rest}" for name, rest in mixer.items()}
    return {"tensors": {**block, **outside}, "shared_block_tensors": after_block}


ZAMBA: Mapping[str, Architecture] = {
    "ZambaForCausalLM": Architecture(
        name="zamba",
        model_type="zamba",
        overrides=_zamba,
        rejected_keys=frozenset({"sliding_window"}),
        **_tensors(_ZAMBA_BLOCK, _ZAMBA_MIXER),
        defaults=frozen(
            vocab_size=32_000,
            max_position_embeddings=4096,
            hidden_size=3712,
            intermediate_size=14_848,
            num_hidden_layers=76,
            num_attention_heads=16,
            num_key_value_heads=16,
            rms_norm_eps=1e-5,
            hidden_act="gelu",
            hidden_mamba_act="silu",
            n_mamba_heads=2,
            attn_layer_period=6,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_conv_bias=True,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "Zamba2ForCausalLM": Architecture(
        name="zamba2",
        model_type="zamba2",
        overrides=_zamba2,
        rejected_keys=frozenset({"sliding_window"}),
        **_tensors(_BLOCK_TENSORS, _MIXER),
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

"""Readers of the keys of mixers with states, and names of their tensors, of several vendors."""

from collections.abc import Mapping

from swiftchat.weights.architectures.parts.architecture import frozen, tensor_names
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import Mamba2, StateMixer
from swiftchat.weights.architectures.parts.model import ModelConfig


def mixer_layers(keys: Keys, kinds: list[str] | None, mixer: str) -> frozenset[int]:
    """Return the layers whose kind is `mixer`; all others must be attention."""
    count = keys.num_layers
    known = (mixer, "full_attention")
    if kinds is None or len(kinds) != count or {*kinds} - {*known}:
        raise invalid("layer_types", f"a list of {count} names: {' or '.join(known)}", kinds)
    found = frozenset(i for i, kind in enumerate(kinds) if kind == mixer)
    if len(found) == count:
        raise invalid("layer_types", "a list with full_attention", kinds)
    return found


def check_no_limits(keys: Keys) -> None:
    """Raise `BadModelFile` if the steps of a state space model have limits."""
    limits = keys.get("time_step_limit")
    if limits is not None and limits not in _NO_LIMITS:
        # Transformers applies other limits to prompts, but not to decode steps.
        raise invalid("time_step_limit", "[0, Infinity]", str(limits))


def mamba2(keys: Keys) -> Mamba2:
    """Read the keys of Granite 4, Bamba and Falcon-H1."""
    heads = integer(keys, "mamba_n_heads", 1, MAX_HEADS)
    groups = integer(keys, "mamba_n_groups", 1, heads)
    own_width = optional_integer(keys, "mamba_d_ssm", 1, MAX_WIDTH)
    width = own_width or integer(keys, "mamba_expand", 1, MAX_WIDTH) * keys.hidden_size
    head_dim = width // heads
    if keys.get("mamba_d_head") not in (None, "auto"):
        head_dim = integer(keys, "mamba_d_head", 1, MAX_WIDTH)
    if heads * head_dim != width:
        raise invalid("mamba_n_heads times mamba_d_head", str(width), heads * head_dim)
    if heads % groups:
        raise invalid("mamba_n_groups", f"a divisor of {heads} heads", groups)
    check_no_limits(keys)
    return Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_size=integer(keys, "mamba_d_state", 1, MAX_HEAD_DIM),
        kernel=integer(keys, "mamba_d_conv", 2, MAX_KERNEL),
        norm_eps=keys.eps,
        in_bias=flag(keys, "mamba_proj_bias"),
        out_bias=flag(keys, "mamba_proj_bias"),
        conv_bias=flag(keys, "mamba_conv_bias"),
    )


def only(keys: Keys, mixer: StateMixer) -> ModelConfig:
    """Return a model whose layers have the mixer and nothing else."""
    layers = keys.layers(
        attention=None, mlp=None, mixer=mixer, mixer_activation=keys.activation_kind
    )
    return keys.model(layers, max_context_tokens=MAX_STATE_CONTEXT)


def step_rank(keys: Keys, name: str) -> int:
    """Read the rank of the projections that make steps; by default a sixteenth of the width."""
    if keys.get(name) in (None, "auto"):
        return -(-keys.hidden_size // 16)
    return integer(keys, name, 1, MAX_WIDTH)


def mamba(keys: Keys) -> ModelConfig:
    """Return a model of Mamba layers."""
    width = optional_integer(keys, "intermediate_size", 1, MAX_WIDTH)
    width = width or integer(keys, "expand", 1, MAX_WIDTH) * keys.hidden_size
    eps = keys.get("mixer_rms_eps")
    mixer = Mamba(
        width=width,
        state_size=integer(keys, "state_size", 1, MAX_HEAD_DIM),
        step_rank=step_rank(keys, "time_step_rank"),
        kernel=integer(keys, "conv_kernel", 2, MAX_KERNEL),
        bias=flag(keys, "use_bias"),
        conv_bias=flag(keys, "use_conv_bias"),
        norm_eps=None if eps is None else number(keys, "mixer_rms_eps", above=0.0, below=1.0),
    )
    return only(keys, mixer)


def only_tensors(mixer: Mapping[str, str]) -> Mapping[str, str]:
    return tensor_names(
        {"attn_norm": "norm.weight", **{name: f"mixer.{rest}" for name, rest in mixer.items()}},
        embed="backbone.embeddings.weight",
        final_norm="backbone.norm_f.weight",
        lm_head="lm_head.weight",
        layer="backbone.layers.{i}.",
    )


MAX_KERNEL = 1024

# Infinity in JSON, as written by different versions of transformers.
_NO_LIMITS = [[0, last] for last in (float("inf"), "Infinity", {"__float__": "Infinity"})]

MIXER = {
    "mixer_in": "mamba.in_proj.weight",
    "mixer_in_bias": "mamba.in_proj.bias",
    "mixer_conv": "mamba.conv1d.weight",
    "mixer_conv_bias": "mamba.conv1d.bias",
    "mixer_decay": "mamba.A_log",
    "mixer_step_bias": "mamba.dt_bias",
    "mixer_skip": "mamba.D",
    "mixer_norm": "mamba.norm.weight",
    "mixer_out": "mamba.out_proj.weight",
    "mixer_out_bias": "mamba.out_proj.bias",
}

FEED_FORWARD = frozen(
    mlp_norm="pre_ff_layernorm.weight",
    gate="feed_forward.gate_proj.weight",
    up="feed_forward.up_proj.weight",
    down="feed_forward.down_proj.weight",
    gate_bias="feed_forward.gate_proj.bias",
    up_bias="feed_forward.up_proj.bias",
    down_bias="feed_forward.down_proj.bias",
    final_norm="model.final_layernorm.weight",
)

DEFAULTS = frozen(
    mamba_n_heads=128,
    mamba_n_groups=1,
    mamba_d_state=256,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_conv_bias=True,
)

# A state has no longest context, but the blocks of a sequence still count its tokens.
MAX_STATE_CONTEXT = 2**18

MAMBA_TENSORS = {
    **{name: rest.removeprefix("mamba.") for name, rest in MIXER.items()},
    "mixer_x": "x_proj.weight",
    "mixer_step": "dt_proj.weight",
    "mixer_step_bias": "dt_proj.bias",
}

ONLY_DEFAULTS = frozen(
    num_attention_heads=1,
    layer_norm_epsilon=1e-5,
    expand=2,
    conv_kernel=4,
    use_conv_bias=True,
    bos_token_id=0,
)

MAMBA_DEFAULTS = frozen(**ONLY_DEFAULTS, state_size=16, tie_word_embeddings=True, eos_token_id=0)

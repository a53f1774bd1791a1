"""Mamba and Mamba-2."""

from swiftchat.weights.architectures.parts.architecture import Architecture, Architectures, frozen
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    flag,
    integer,
    invalid,
    number,
)
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.mixer_readers import (
    MAMBA_DEFAULTS,
    MAMBA_TENSORS,
    MAX_KERNEL,
    MIXER,
    ONLY_DEFAULTS,
    check_no_limits,
    mamba,
    only,
    only_tensors,
)
from swiftchat.weights.architectures.parts.mixers import Mamba2
from swiftchat.weights.architectures.parts.model import ModelConfig


def _mamba2(keys: Keys) -> ModelConfig:
    heads = integer(keys, "num_heads", 1, MAX_HEADS)
    groups = integer(keys, "n_groups", 1, heads)
    head_dim = integer(keys, "head_dim", 1, MAX_WIDTH)
    width = integer(keys, "expand", 1, MAX_WIDTH) * keys.hidden_size
    if heads * head_dim != width:
        raise invalid("num_heads times head_dim", str(width), heads * head_dim)
    if heads % groups:
        raise invalid("n_groups", f"a divisor of {heads} heads", groups)
    check_no_limits(keys)
    mixer = Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_size=integer(keys, "state_size", 1, MAX_HEAD_DIM),
        kernel=integer(keys, "conv_kernel", 2, MAX_KERNEL),
        norm_eps=number(keys, "layer_norm_epsilon", above=0.0, below=1.0),
        in_bias=flag(keys, "use_bias"),
        out_bias=flag(keys, "use_bias"),
        conv_bias=flag(keys, "use_conv_bias"),
    )
    return only(keys, mixer)


def _mamba(keys: Keys) -> ModelConfig:
    return mamba(keys.changed(mixer_rms_eps=None))


ARCHITECTURES: Architectures = {
    "MambaForCausalLM": Architecture(
        model_type="mamba",
        build=_mamba,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=only_tensors(MAMBA_TENSORS),
        defaults=MAMBA_DEFAULTS,
    ),
    "Mamba2ForCausalLM": Architecture(
        model_type="mamba2",
        build=_mamba2,
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=only_tensors({name: rest.removeprefix("mamba.") for name, rest in MIXER.items()}),
        defaults=frozen(
            **ONLY_DEFAULTS,
            num_heads=128,
            head_dim=64,
            state_size=128,
            n_groups=8,
            eos_token_id=2,
        ),
    ),
}

"""Mamba and Mamba-2.

Defaults and overrides are those of the model classes in transformers.
"""

from collections.abc import Mapping
from typing import Any

from swiftchat.weights.architectures.parts.architecture import (
    Architecture,
    frozen,
)
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    number,
)
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


def _mamba2(config: Fields) -> Mapping[str, Any]:
    heads = integer(config, "num_heads", 1, MAX_HEADS)
    groups = integer(config, "n_groups", 1, heads)
    head_dim = integer(config, "head_dim", 1, MAX_WIDTH)
    width = integer(config, "expand", 1, MAX_WIDTH) * hidden_size(config)
    if heads * head_dim != width:
        raise invalid("num_heads times head_dim", str(width), heads * head_dim)
    if heads % groups:
        raise invalid("n_groups", f"a divisor of {heads} heads", groups)
    check_no_limits(config)
    mixer = Mamba2(
        num_heads=heads,
        head_dim=head_dim,
        num_groups=groups,
        state_size=integer(config, "state_size", 1, MAX_HEAD_DIM),
        kernel=integer(config, "conv_kernel", 2, MAX_KERNEL),
        norm_eps=number(config, "layer_norm_epsilon", above=0.0, below=1.0),
        in_bias=flag(config, "use_bias"),
        out_bias=flag(config, "use_bias"),
        conv_bias=flag(config, "use_conv_bias"),
    )
    return only(config, mixer, width)


STATE_SPACES: Mapping[str, Architecture] = {
    "MambaForCausalLM": Architecture(
        name="mamba",
        model_type="mamba",
        overrides=lambda config: mamba({**config, "mixer_rms_eps": None}),
        renamed=frozen(rms_norm_eps="layer_norm_epsilon"),
        prefix="backbone.",
        tensors=only_tensors(MAMBA_TENSORS),
        defaults=MAMBA_DEFAULTS,
    ),
    "Mamba2ForCausalLM": Architecture(
        name="mamba2",
        model_type="mamba2",
        overrides=_mamba2,
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

"""The sizes of Mamba."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftchat.weights.architectures.parts.mixers import Shape


@dataclass(frozen=True)
class Mamba:
    """Mamba (Jamba, Falcon-Mamba): a state space model with a decay for each element of its state.

    Its inputs x come from a causal depthwise convolution over `kernel` tokens. Steps, through a
    projection of `step_rank` elements, and what writes and reads the state, vectors of
    `state_size`, are projections of x; they are normalized with `norm_eps`, None: not normalized,
    with weights if `norm_weights`. The output is gated. With `bias` the projections of input and
    output have one, with `conv_bias` the convolution.
    """

    width: int
    state_size: int
    step_rank: int
    kernel: int
    bias: bool
    conv_bias: bool
    norm_eps: float | None = None
    norm_weights: bool = False

    @property
    def tensors(self) -> list[str]:
        biases = ["mixer_in_bias", "mixer_out_bias"] if self.bias else []
        biases += ["mixer_conv_bias"] if self.conv_bias else []
        norms = ["mixer_step_norm", "mixer_b_norm", "mixer_c_norm"] if self.norm_weights else []
        small = ["mixer_conv", "mixer_x", "mixer_step", "mixer_decay", "mixer_step_bias"]
        return ["mixer_in", "mixer_out", *small, "mixer_skip", *norms, *biases]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        return {
            "mixer_in": (2 * self.width, hidden_size),
            "mixer_in_bias": (2 * self.width,),
            "mixer_conv": (self.width, 1, self.kernel),
            "mixer_conv_bias": (self.width,),
            "mixer_x": (self.step_rank + 2 * self.state_size, self.width),
            "mixer_step": (self.width, self.step_rank),
            "mixer_step_bias": (self.width,),
            "mixer_step_norm": (self.step_rank,),
            "mixer_b_norm": (self.state_size,),
            "mixer_c_norm": (self.state_size,),
            "mixer_decay": (self.width, self.state_size),
            "mixer_skip": (self.width,),
            "mixer_out": (hidden_size, self.width),
            "mixer_out_bias": (hidden_size,),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        return ((self.width, self.kernel - 1), (self.width, self.state_size))

    @property
    def input_rows(self) -> list[int] | None:
        return None

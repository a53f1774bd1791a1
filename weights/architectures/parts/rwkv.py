"""The sizes of RWKV-4's time mixing and channel mixing."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftchat.weights.architectures.parts.mixers import Shape


@dataclass(frozen=True)
class Rwkv:
    """RWKV-4: a weighted mean of all values so far, and an MLP that sees the token before.

    Peng et al., 2023 (arXiv:2305.13048), sections 3.1 and 3.2. The inputs of all matrices are means
    of a token and the one before it. The states are the last input of the time mixing, three
    vectors of the mean, and the last input of the channel mixing, which replaces the MLP.
    """

    hidden_size: int
    width: int

    @property
    def tensors(self) -> list[str]:
        matrices = ["mixer_in", "mixer_key", "mixer_value", "mixer_out", "channel_gate"]
        means = ["mixer_mean_k", "mixer_mean_v", "mixer_mean_r", "channel_mean_k", "channel_mean_r"]
        return [*matrices, "mixer_decay", "mixer_skip", *means]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        means = ("mixer_mean_k", "mixer_mean_v", "mixer_mean_r", "channel_mean_k", "channel_mean_r")
        return {
            "mixer_in": (self.width, hidden_size),
            "mixer_key": (self.width, hidden_size),
            "mixer_value": (self.width, hidden_size),
            "mixer_out": (hidden_size, self.width),
            "channel_gate": (hidden_size, hidden_size),
            "mixer_decay": (self.width,),
            "mixer_skip": (self.width,),
            **dict.fromkeys(means, (1, 1, hidden_size)),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        return ((self.hidden_size,), *((self.width,),) * 3, (self.hidden_size,))

    @property
    def input_rows(self) -> list[int] | None:
        return None

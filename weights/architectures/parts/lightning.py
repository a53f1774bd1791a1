"""The sizes of lightning attention."""

from collections.abc import Mapping
from dataclasses import dataclass

from swiftchat.weights.architectures.parts.mixers import Shape, rows_by_kind


@dataclass(frozen=True)
class Lightning:
    """Lightning attention (MiniMax-Text-01): linear attention with a fixed decay for each head.

    Qin et al., 2024 (arXiv:2401.04658). Queries, keys and values go through the activation. The
    output is normalized over all heads with `norm_eps` and multiplied by the sigmoid of a gate. The
    state is a matrix for each head. Decays depend on the number of a layer among `num_layers`.
    """

    num_heads: int
    head_dim: int
    num_layers: int
    norm_eps: float

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    def slopes(self, layer: int) -> list[float]:
        """Return what the logarithm of each head's state decreases by with a token."""
        layer_scale = 1.0 - layer / (self.num_layers - 1 + 1e-5) + 1e-5
        return [
            2.0 ** (-8.0 * (i + 1) / self.num_heads) * layer_scale for i in range(self.num_heads)
        ]

    @property
    def tensors(self) -> list[str]:
        return ["mixer_qkv", "mixer_z", "mixer_out", "mixer_norm"]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        return {
            "mixer_qkv": (3 * self.width, hidden_size),
            "mixer_z": (self.width, hidden_size),
            "mixer_out": (hidden_size, self.width),
            "mixer_norm": (self.width,),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        return ((self.num_heads, self.head_dim, self.head_dim),)

    @property
    def input_rows(self) -> list[int] | None:
        """The rows of the file, which are ordered by head, in the order q, k, v, z."""
        rows = rows_by_kind(self.num_heads, (self.head_dim,) * 3)
        return [*rows, *range(len(rows), len(rows) + self.width)]

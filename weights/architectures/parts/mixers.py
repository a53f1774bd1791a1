"""Token mixers with a state of fixed size for each sequence, instead of keys and values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

_SPLIT_QKV = ["mixer_q", "mixer_k", "mixer_v"]
_SPLIT_CONV = ["mixer_conv_q", "mixer_conv_k", "mixer_conv_v"]

Shape = tuple[int, ...]


class StateMixer(Protocol):
    """The sizes of a token mixer, the same in all layers that have it."""

    @property
    def tensors(self) -> list[str]:
        """The canonical names of a layer's tensors, in the order in which `convert` writes."""

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        """Return the shape of each of the tensors in the file."""

    @property
    def states(self) -> tuple[Shape, ...]:
        """The shapes of the fp32 tensors of a sequence's state in one layer."""

    @property
    def input_rows(self) -> list[int] | None:
        """The file's row for each row of the projections of the input; None: the same order."""


@dataclass(frozen=True)
class ShortConv:
    """LFM2's gated short convolution: out(c · conv(b · x)), where b, c and x are projections.

    The convolution is causal and depthwise, over `kernel` tokens. The state are the last
    `kernel - 1` products b · x. With `bias` both projections and the convolution have one.
    """

    width: int
    kernel: int
    bias: bool

    @property
    def tensors(self) -> list[str]:
        names = ["mixer_in", "mixer_conv", "mixer_out"]
        return [*names, *(f"{name}_bias" for name in names if self.bias)]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        return {
            "mixer_in": (3 * self.width, hidden_size),
            "mixer_in_bias": (3 * self.width,),
            "mixer_conv": (self.width, 1, self.kernel),
            "mixer_conv_bias": (self.width,),
            "mixer_out": (hidden_size, self.width),
            "mixer_out_bias": (hidden_size,),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        return ((self.width, self.kernel - 1),)

    @property
    def input_rows(self) -> list[int] | None:
        return None


@dataclass(frozen=True)
class GatedDelta:
    """Gated DeltaNet (Qwen3-Next, OLMo Hybrid): linear attention with decay and correction.

    Queries, keys and values come from a causal depthwise convolution over `kernel` tokens; the
    output is normalized for each head with `norm_eps` and gated. The states are the inputs of the
    last tokens, and a matrix for each value head. The file has the projections of queries, keys,
    values and output gates in one tensor, and β and the steps in another; if `by_key_head`, their
    rows are ordered by key head. With `split` queries, keys and values have tensors of their own,
    and so have their convolutions. β is multiplied by `beta_scale`.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    norm_eps: float
    by_key_head: bool
    split: bool = False
    beta_scale: float = 1.0

    @property
    def value_width(self) -> int:
        return self.num_value_heads * self.value_dim

    @property
    def _conv_width(self) -> int:
        return 2 * self.num_key_heads * self.key_dim + self.value_width

    @property
    def tensors(self) -> list[str]:
        separate = ["mixer_qkv", "mixer_z", "mixer_b", "mixer_a"]
        separate = [*_SPLIT_QKV, *separate[1:]] if self.split else separate
        projections = ["mixer_qkvz", "mixer_ba"] if self.by_key_head else separate
        small = [*(_SPLIT_CONV if self.split else ["mixer_conv"])]
        small += ["mixer_decay", "mixer_step_bias", "mixer_norm"]
        return [*projections, "mixer_out", *small]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        heads, values = self.num_value_heads, self.value_width
        keys = self.num_key_heads * self.key_dim
        return {
            **_split_shapes(keys, values, self.kernel, hidden_size),
            "mixer_qkvz": (self._conv_width + values, hidden_size),
            "mixer_ba": (2 * heads, hidden_size),
            "mixer_qkv": (self._conv_width, hidden_size),
            "mixer_z": (values, hidden_size),
            "mixer_b": (heads, hidden_size),
            "mixer_a": (heads, hidden_size),
            "mixer_conv": (self._conv_width, 1, self.kernel),
            "mixer_decay": (heads,),
            "mixer_step_bias": (heads,),
            "mixer_norm": (self.value_dim,),
            "mixer_out": (hidden_size, values),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        matrices = (self.num_value_heads, self.key_dim, self.value_dim)
        return ((self._conv_width, self.kernel - 1), matrices)

    @property
    def input_rows(self) -> list[int] | None:
        """The rows of the file's projections in the order q, k, v, z, b, a; None: the same."""
        if not self.by_key_head:
            return None
        grouped = self.num_value_heads // self.num_key_heads
        sizes = (self.key_dim, self.key_dim, grouped * self.value_dim, grouped * self.value_dim)
        rows = rows_by_kind(self.num_key_heads, sizes)
        return [
            *rows,
            *(len(rows) + row for row in rows_by_kind(self.num_key_heads, (grouped,) * 2)),
        ]


def _split_shapes(keys: int, values: int, kernel: int, hidden_size: int) -> Mapping[str, Shape]:
    """Return the shapes of separate projections of queries, keys and values, with convolutions."""
    widths = dict(zip("qkv", (keys, keys, values), strict=True))
    return {
        **{f"mixer_{name}": (width, hidden_size) for name, width in widths.items()},
        **{f"mixer_conv_{name}": (width, 1, kernel) for name, width in widths.items()},
    }


def rows_by_kind(num_groups: int, sizes: tuple[int, ...]) -> list[int]:
    """Return the rows of all groups' first parts, then of their second parts, and so on."""
    rows: list[int] = []
    start = 0
    for size in sizes:
        for group in range(num_groups):
            first = group * sum(sizes) + start
            rows += range(first, first + size)
        start += size
    return rows


@dataclass(frozen=True)
class KimiDelta:
    """Kimi Delta Attention (Kimi Linear): gated DeltaNet with a decay for each element of a key.

    Queries, keys and values have heads of `head_dim` elements, and come from causal depthwise
    convolutions over `kernel` tokens. Decays and output gates are products of two matrices, of
    `head_dim` elements in between. The output is normalized for each head with `norm_eps` and
    multiplied by the sigmoid of its gate. The states are those of `GatedDelta`. `is_plain`: decays
    and gates have one matrix each. With `bound` logarithms of decays are between it and 0.
    """

    num_heads: int
    head_dim: int
    kernel: int
    norm_eps: float
    is_plain: bool = False
    bound: float | None = None

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def tensors(self) -> list[str]:
        projections = [*_SPLIT_QKV, "mixer_b", "mixer_step_in", "mixer_gate_in"]
        factors = [] if self.is_plain else ["mixer_step", "mixer_gate"]
        small = [*factors, "mixer_decay", "mixer_step_bias", "mixer_norm"]
        return [*projections, "mixer_out", *_SPLIT_CONV, *small]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        width, narrow = self.width, self.head_dim
        inner = width if self.is_plain else narrow
        return {
            **_split_shapes(width, width, self.kernel, hidden_size),
            "mixer_b": (self.num_heads, hidden_size),
            "mixer_step_in": (inner, hidden_size),
            "mixer_gate_in": (inner, hidden_size),
            "mixer_step": (width, narrow),
            "mixer_gate": (width, narrow),
            "mixer_decay": (self.num_heads,) if self.is_plain else (1, 1, self.num_heads, 1),
            "mixer_step_bias": (width,),
            "mixer_norm": (narrow,),
            "mixer_out": (hidden_size, width),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        return ((3 * self.width, self.kernel - 1), (self.num_heads, self.head_dim, self.head_dim))

    @property
    def input_rows(self) -> list[int] | None:
        return None


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (Granite 4, Nemotron-H): a state space model with one decay for each head.

    Its inputs come from a causal depthwise convolution over `kernel` tokens; the output is gated
    and normalized for each group with `norm_eps`, None: not normalized; with `gate_last` the norm
    comes first. The heads of a group share what writes and reads the state, vectors of
    `state_size`. Steps are at least `min_step`. With `in_bias` and `out_bias` the projections have
    a bias, with `conv_bias` the convolution. `scales` multiply the input, and the projected output
    gates, x, b, c and steps. If the heads of a group are divided among `ranks_per_group` ranks,
    these are the heads of one of them, and the norm is over the outputs of all of them.
    """

    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int
    kernel: int
    norm_eps: float | None
    in_bias: bool
    out_bias: bool
    conv_bias: bool
    min_step: float = 0.0
    gate_last: bool = False
    scales: tuple[float, ...] = (1.0,) * 6
    ranks_per_group: int = 1

    @property
    def width(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def _conv_width(self) -> int:
        return self.width + 2 * self.num_groups * self.state_size

    @property
    def tensors(self) -> list[str]:
        biases = ["mixer_in_bias"] if self.in_bias else []
        biases += ["mixer_out_bias"] if self.out_bias else []
        biases += ["mixer_conv_bias"] if self.conv_bias else []
        small = ["mixer_conv", "mixer_decay", "mixer_step_bias", "mixer_skip"]
        small += [] if self.norm_eps is None else ["mixer_norm"]
        return ["mixer_in", "mixer_out", *small, *biases]

    def shapes(self, hidden_size: int) -> Mapping[str, Shape]:
        rows = self.width + self._conv_width + self.num_heads
        return {
            "mixer_in": (rows, hidden_size),
            "mixer_in_bias": (rows,),
            "mixer_conv": (self._conv_width, 1, self.kernel),
            "mixer_conv_bias": (self._conv_width,),
            "mixer_decay": (self.num_heads,),
            "mixer_step_bias": (self.num_heads,),
            "mixer_skip": (self.num_heads,),
            "mixer_norm": (self.width,),
            "mixer_out": (hidden_size, self.width),
            "mixer_out_bias": (hidden_size,),
        }

    @property
    def states(self) -> tuple[Shape, ...]:
        matrices = (self.num_heads, self.head_dim, self.state_size)
        return ((self._conv_width, self.kernel - 1), matrices)

    @property
    def input_rows(self) -> list[int] | None:
        return None

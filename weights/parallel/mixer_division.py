"""How ranks divide the token mixers with a state: by heads, or by channels where they have none.

What reads the output of a rank's heads or channels is divided by columns. Key heads, and groups of
heads, are shared by several ranks if there are fewer of them than ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)

Span = tuple[int, int]
# Units of a part of a tensor that ranks divide, heads for example, and the elements of each.
Part = tuple[int, int]

_BY_COLUMNS = ("mixer_out", "mixer_x")


def divisible_units(mixer: StateMixer) -> Mapping[str, int]:
    """Return the numbers that every number of ranks must divide, by name."""
    match mixer:
        case GatedDelta():
            return {"num_value_heads": mixer.num_value_heads}
        case KimiDelta() | Mamba2():
            return {"num_heads": mixer.num_heads}
        case ShortConv() | Mamba():
            return {"width": mixer.width}
    return {}


def mixer_problem(mixer: StateMixer, size: int) -> str | None:
    """Return why a mixer cannot be divided into `size` ranks; None if it can."""
    units = divisible_units(mixer)
    if not units:
        return f"there is no rule to divide {type(mixer).__name__}"
    for name, count in units.items():
        if count % size:
            return f"{name} {count} of the mixer is not divisible by --tp {size}"
    shared: dict[str, int] = {}
    if isinstance(mixer, GatedDelta):
        shared["num_key_heads"] = mixer.num_key_heads
    elif isinstance(mixer, Mamba2):
        shared["num_groups"] = mixer.num_groups
    for name, count in shared.items():
        if count % size and size % count:
            return (
                f"{name} {count} of the mixer is not divisible by --tp {size}, "
                f"nor --tp {size} by {count}"
            )
    return None


def local_mixer(mixer: StateMixer, size: int) -> StateMixer:
    """Return the mixer with the sizes of one of `size` ranks; `mixer_problem` must be None."""
    match mixer:
        case ShortConv() | Mamba():
            return replace(mixer, width=mixer.width // size)
        case GatedDelta():
            return replace(
                mixer,
                num_key_heads=max(1, mixer.num_key_heads // size),
                num_value_heads=mixer.num_value_heads // size,
            )
        case KimiDelta():
            return replace(mixer, num_heads=mixer.num_heads // size)
        case Mamba2():
            return replace(
                mixer,
                num_heads=mixer.num_heads // size,
                num_groups=max(1, mixer.num_groups // size),
                ranks_per_group=max(1, size // mixer.num_groups),
            )
    raise AssertionError(type(mixer).__name__)  # see `mixer_problem`


def mixer_axis(canonical: str, num_axes: int) -> int:
    """Return the axis along which the ranks divide a tensor of a mixer."""
    if canonical in _BY_COLUMNS:
        return 1
    return 2 if num_axes == 4 else 0  # the decays of Kimi Delta Attention are [1, 1, heads, 1]


def mixer_spans(mixer: StateMixer, canonical: str, size: int, rank: int) -> tuple[Span, ...] | None:
    """Return the ascending ranges of a tensor that a rank has; None: every rank has all of it."""
    if isinstance(mixer, GatedDelta) and canonical in ("mixer_qkvz", "mixer_ba"):
        return _by_key_head(mixer, canonical, size, rank)
    parts = _parts(mixer).get(canonical)
    return None if parts is None else _spans(parts, size, rank)


def _parts(mixer: StateMixer) -> Mapping[str, Sequence[Part]]:
    """Return the parts, one behind the other, of each tensor that ranks divide."""
    match mixer:
        case ShortConv():
            width = (mixer.width, 1)
            return {
                **dict.fromkeys(("mixer_in", "mixer_in_bias"), (width,) * 3),
                **dict.fromkeys(("mixer_conv", "mixer_conv_bias", "mixer_out"), (width,)),
            }
        case GatedDelta():
            return _gated_delta(mixer)
        case KimiDelta():
            width, heads = (mixer.num_heads, mixer.head_dim), (mixer.num_heads, 1)
            wide = ["q", "k", "v", "conv_q", "conv_k", "conv_v", "step", "gate", "step_bias", "out"]
            wide += ["step_in", "gate_in"] if mixer.is_plain else []
            return {
                **{f"mixer_{name}": (width,) for name in wide},
                **dict.fromkeys(("mixer_b", "mixer_decay"), (heads,)),
            }
        case Mamba2():
            width, heads = (mixer.num_heads, mixer.head_dim), (mixer.num_heads, 1)
            groups = (mixer.num_groups, mixer.state_size)
            inputs = (width, width, groups, groups, heads)
            return {
                **dict.fromkeys(("mixer_in", "mixer_in_bias"), inputs),
                **dict.fromkeys(("mixer_conv", "mixer_conv_bias"), (width, groups, groups)),
                **dict.fromkeys(("mixer_decay", "mixer_step_bias", "mixer_skip"), (heads,)),
                **dict.fromkeys(("mixer_norm", "mixer_out"), (width,)),
            }
        case Mamba():
            width = (mixer.width, 1)
            wide = ["conv", "conv_bias", "x", "step", "step_bias", "decay", "skip", "out"]
            return {
                **dict.fromkeys(("mixer_in", "mixer_in_bias"), (width,) * 2),
                **{f"mixer_{name}": (width,) for name in wide},
            }
    return {}


def _gated_delta(mixer: GatedDelta) -> Mapping[str, Sequence[Part]]:
    keys = (mixer.num_key_heads, mixer.key_dim)
    values, heads = (mixer.num_value_heads, mixer.value_dim), (mixer.num_value_heads, 1)
    return {
        **dict.fromkeys(("mixer_qkv", "mixer_conv"), (keys, keys, values)),
        **dict.fromkeys(("mixer_q", "mixer_k", "mixer_conv_q", "mixer_conv_k"), (keys,)),
        **dict.fromkeys(("mixer_v", "mixer_conv_v", "mixer_z", "mixer_out"), (values,)),
        **dict.fromkeys(("mixer_b", "mixer_a", "mixer_decay", "mixer_step_bias"), (heads,)),
    }


def _by_key_head(mixer: GatedDelta, canonical: str, size: int, rank: int) -> tuple[Span, ...]:
    """Return the rows of a tensor that has those of each key head together."""
    grouped = mixer.num_value_heads // mixer.num_key_heads
    parts: list[Part] = [(grouped, 1)] * 2
    if canonical == "mixer_qkvz":
        parts = [(1, 2 * mixer.key_dim), *[(grouped, mixer.value_dim)] * 2]
    group = sum(count * each for count, each in parts)
    if mixer.num_key_heads >= size:
        return _spans([(mixer.num_key_heads, group)], size, rank)
    # Some value heads of one key head.
    ranks_per_head = size // mixer.num_key_heads
    head, inside = divmod(rank, ranks_per_head)
    spans = _spans(parts, ranks_per_head, inside)
    return tuple((head * group + first, head * group + end) for first, end in spans)


def _spans(parts: Sequence[Part], size: int, rank: int) -> tuple[Span, ...]:
    """Return a rank's ranges of parts that lie one behind the other; adjacent ones are joined.

    Of a part with fewer units than ranks it has one, which other ranks have too.
    """
    spans: list[Span] = []
    start = 0
    for count, each in parts:
        first = rank * count // size
        end = max((rank + 1) * count // size, first + 1)
        spans.append((start + first * each, start + end * each))
        start += count * each
    joined = spans[:1]
    for before, span in pairwise(spans):
        if before[1] == span[0]:
            joined[-1] = (joined[-1][0], span[1])
        else:
            joined.append(span)
    return tuple(joined)

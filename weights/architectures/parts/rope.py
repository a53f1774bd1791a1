"""The configuration of rotary position embeddings."""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.fields import (
    MAX_CONTEXT,
    Fields,
    flag,
    integer,
    invalid,
    mapping,
    number,
    number_list,
    optional_integer,
    optional_number,
)

_ORIGINAL = "original_max_position_embeddings"
_KNOWN = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True)
class QueryGrowth:
    """Queries at position p are multiplied by 1 + `beta`·ln(1 + ⌊(p + `shift`) / `tokens`⌋).

    So attention stays as sharp in long contexts (Llama 4).
    """

    beta: float
    tokens: float
    shift: int = 0


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of rotary embeddings are changed for longer contexts."""

    kind: str = "none"
    """One of
    - "none";
    - "linear": every frequency is divided by `factor`;
    - "llama3": low frequencies are divided by `factor`, high ones are kept, and those with wave
      lengths between `original_context_tokens / low_freq_factor` and `… / high_freq_factor` are
      interpolated;
    - "yarn": the same, interpolated between the dimension pairs that make `slow_turns` and
      `fast_turns` rotations within the original context;
    - "longrope": every frequency is divided by its own divisor."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context_tokens: int = 8192
    slow_turns: float = 1.0
    fast_turns: float = 32.0
    whole_pairs: bool = True
    """The bounds of "yarn" are rounded to whole pairs."""
    short_divisors: tuple[float, ...] = ()
    """Those of "longrope" up to the original context."""
    long_divisors: tuple[float, ...] = ()
    """Those of "longrope" for a longer context."""


@dataclass(frozen=True)
class RopeConfig:
    """How the angles of rotary position embeddings are computed."""

    theta: float = 10_000.0
    scaling: RopeScaling = RopeScaling()
    rotary_dim: int | None = None
    """The elements of a head that are rotated, the first ones; None: all."""
    num_pairs: int | None = None
    """Only the first pairs of these are rotated."""
    interleaved: bool = False
    """A pair are neighbors, otherwise elements j and j + `rotary_dim` / 2."""
    reversed: bool = False
    """They are rotated the other way."""
    two_dimensional: bool = False
    """`rotary_dim` is half of the head, and the other half is rotated by a second position."""
    magnitude: float = 1.0
    """The factor of cosines and sines."""

    @classmethod
    def from_hf(cls, config: Fields, head_dim: int, *, interleaved: bool = False) -> Self:
        """Read `rope_scaling`, or `rope_parameters` without it, and `rope_theta`.

        As in transformers, the older key `rope_scaling` takes precedence, unless it is empty; the
        keys inside take precedence over those outside. Raises `BadModelFile` for an unknown
        scaling or an invalid field.
        """
        named = mapping(config, "rope_scaling") or mapping(config, "rope_parameters")
        rope = dict(named or {})
        if rope.get("rope_theta") is None:
            rope["rope_theta"] = config.get("rope_theta", 10_000.0)
        base = cls(
            number(rope, "rope_theta", above=0.0, below=1e12, default=10_000.0),
            rotary_dim=_rotary_dim(config, rope, head_dim),
            interleaved=interleaved,
        )
        kind = rope.get("rope_type", rope.get("type", "default"))
        # The positions of text in all sections of multimodal embeddings are the same.
        if kind in ("default", "mrope", None) or (
            kind == "dynamic" and _checked_dynamic(config, rope)
        ):
            return base
        if kind == "linear":
            factor = number(rope, "factor", above=0.0, below=1e6)
            return replace(base, scaling=RopeScaling("linear", factor))
        if kind == "llama3":
            return replace(base, scaling=_llama3(config, rope))
        if kind == "yarn":
            return replace(base, **_yarn(config, rope))
        if kind in ("longrope", "su"):
            return replace(base, **_longrope(config, rope, base.rotary_dim or head_dim))
        raise BadModelFile(
            f"unknown rope scaling {str(kind)[:80]!r} in config.json", f"known: {', '.join(_KNOWN)}"
        )


def layer_ropes(config: Fields, head_dim: int, local_theta: float) -> tuple[RopeConfig, RopeConfig]:
    """Return the rotations of layers without and with a window.

    `rope_parameters` has an object for each; the older `rope_scaling` is for layers without a
    window only.
    """
    named = mapping(config, "rope_parameters") or {}
    full = {**(mapping(named, "full_attention") or {}), **(mapping(config, "rope_scaling") or {})}
    local = mapping(named, "sliding_attention") or {}
    context = {"max_position_embeddings": config.get("max_position_embeddings")}
    theta = config.get("rope_theta", 10_000.0)
    both = ((theta, full), (local_theta, local))
    rope, local_rope = (
        RopeConfig.from_hf({"rope_theta": base, **context, "rope_parameters": own}, head_dim)
        for base, own in both
    )
    return rope, local_rope


def rope_of_kind(config: Fields, default: Fields, kind: str, head_dim: int) -> RopeConfig:
    """Return the rotation of a kind of layers; `default` are the parameters of all kinds.

    "proportional": a part of the pairs is rotated, by the angles of the whole head.
    """
    named = mapping(config, "rope_parameters")
    rope = mapping(default if named is None else named, kind)
    if rope is None:
        raise invalid(f"rope_parameters.{kind}", "an object", None)
    theta = number(rope, "rope_theta", above=0.0, below=1e12, default=1e4)
    fraction = number(rope, "partial_rotary_factor", above=0.0, below=1.0 + 1e-9, default=1.0)
    match rope.get("rope_type"):
        case "default":
            return RopeConfig(theta)
        case "proportional":
            linear = {"rope_type": "linear", "rope_theta": theta, "factor": rope.get("factor", 1.0)}
            pairs = int(fraction * head_dim // 2)
            scaled = RopeConfig.from_hf({"rope_scaling": linear}, head_dim)
            return replace(scaled, num_pairs=pairs)
    if fraction != 1.0:
        raise invalid("partial_rotary_factor", "absent but for proportional rope", fraction)
    context = {"max_position_embeddings": config.get("max_position_embeddings")}
    return RopeConfig.from_hf({**context, "rope_parameters": rope}, head_dim)


def _llama3(config: Fields, rope: Fields) -> RopeScaling:
    low = number(rope, "low_freq_factor", above=0.0, below=1e6)
    high = number(rope, "high_freq_factor", above=0.0, below=1e6)
    if high < low:
        raise invalid("high_freq_factor", f"a number from low_freq_factor, {low:g}, on", high)
    factor = number(rope, "factor", above=0.0, below=1e6)
    return RopeScaling("llama3", factor, low, high, _original_context(config, rope))


def _yarn(config: Fields, rope: Fields) -> dict[str, Any]:
    """Peng et al., 2023 (arXiv:2309.00071)."""
    number(rope, "rope_theta", above=1.0, below=1e12)  # its logarithm is a divisor
    original, factor = _context_factor(config, rope)
    magnitude = optional_number(rope, "attention_factor", above=0.0, below=1e3)
    if magnitude is None:
        scale = optional_number(rope, "mscale", above=-1e-9, below=1e3)
        scale_all = optional_number(rope, "mscale_all_dim", above=-1e-9, below=1e3)
        over, under = (scale, scale_all) if scale and scale_all else (1.0, 0.0)
        magnitude = yarn_magnitude(factor, over) / yarn_magnitude(factor, under)
    slow = optional_number(rope, "beta_slow", above=-1e-9, below=1e6) or 1.0
    beta_fast = {"beta_fast": rope.get("beta_fast") or 32.0}
    fast = number(beta_fast, "beta_fast", above=slow, below=1e6)
    scaling = RopeScaling(
        "yarn",
        factor,
        original_context_tokens=original,
        slow_turns=slow,
        fast_turns=fast,
        whole_pairs=flag({"truncate": True, **rope}, "truncate"),
    )
    return {"scaling": scaling, "magnitude": magnitude}


def _longrope(config: Fields, rope: Fields, rotary_dim: int) -> dict[str, Any]:
    """Ding et al., 2024 (arXiv:2402.13753)."""
    original, factor = _context_factor(config, rope)
    magnitude = optional_number(rope, "attention_factor", above=0.0, below=1e3)
    if magnitude is None:
        longer = factor > 1.0 and original > 1
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if longer else 1.0
    scaling = RopeScaling(
        "longrope",
        factor,
        original_context_tokens=original,
        short_divisors=number_list(rope, "short_factor", rotary_dim // 2),
        long_divisors=number_list(rope, "long_factor", rotary_dim // 2),
    )
    return {"scaling": scaling, "magnitude": magnitude}


def _rotary_dim(config: Fields, rope: Fields, head_dim: int) -> int | None:
    """Return how many elements of a head are rotated; None: all."""
    dim = optional_integer(config, "rotary_dim", 2, head_dim)
    if dim is None:
        name = "partial_rotary_factor"
        fields = rope if rope.get(name) is not None else config
        fraction = number({name: fields.get(name, 1.0)}, name, above=0.0, below=1.0 + 1e-9)
        dim = int(head_dim * fraction)
    if dim % 2 or not dim:
        raise invalid(
            "partial_rotary_factor",
            f"a fraction that gives an even number of {head_dim} elements",
            dim,
        )
    return None if dim == head_dim else dim


def _checked_dynamic(config: Fields, rope: Fields) -> bool:
    """Check the fields of dynamic scaling, which has no effect up to `max_position_embeddings`.

    That is the longest context of such a model here; so the scaling is treated as none.
    """
    number(rope, "factor", above=0.0, below=1e6)
    original = optional_integer(rope, _ORIGINAL, 1, MAX_CONTEXT)
    longest = config.get("max_position_embeddings")
    if original is not None and isinstance(longest, int) and original < longest:
        raise invalid(_ORIGINAL, f"{longest} with dynamic scaling", original)
    return True


def _context_factor(config: Fields, rope: Fields) -> tuple[int, float]:
    """Return the original context and the factor by which the new one is longer."""
    original = _original_context(config, rope)
    factor = optional_number(rope, "factor", above=0.0, below=1e6)
    if factor is None:
        factor = integer(config, "max_position_embeddings", 1, MAX_CONTEXT) / original
    return original, factor


def _original_context(config: Fields, rope: Fields) -> int:
    """Return the context before scaling; a key outside of the rope's takes precedence."""
    fields = config if config.get(_ORIGINAL) is not None else rope
    return optional_integer(fields, _ORIGINAL, 1, MAX_CONTEXT) or integer(
        config, "max_position_embeddings", 1, MAX_CONTEXT
    )


def yarn_magnitude(factor: float, scale: float) -> float:
    """Return the factor of cosines and sines for a context that is `factor` times as long."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0

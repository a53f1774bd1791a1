"""Supported architectures by Hugging Face class name."""

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.architecture import Architecture
from swiftchat.weights.architectures.gpt_like import CLASSIC_FAMILIES
from swiftchat.weights.architectures.llama_like import GATED_FAMILIES
from swiftchat.weights.architectures.moe import MIXTURE_FAMILIES

__all__ = ["ARCHITECTURES", "architecture_of", "unknown_name"]

_SUFFIX = "ForCausalLM"

ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {**GATED_FAMILIES, **MIXTURE_FAMILIES, **CLASSIC_FAMILIES}
)


def unknown_name(kind: str, name: str, known: list[str]) -> BadModelFile:
    """Return the error for a `name` that is not in `known`; its hint gives the closest match."""
    # Nearly all names share the suffix, so it would dominate the similarity.
    short = {each.removesuffix(_SUFFIX).lower(): each for each in known}
    stem = name[:80].removesuffix(_SUFFIX).lower()
    nearest = difflib.get_close_matches(stem, short, n=1, cutoff=0.0)
    hint = f"nearest known: {short[nearest[0]]}; known: {', '.join(known)}" if nearest else ""
    return BadModelFile(f"unknown {kind} {name[:80]!r}", hint)


def architecture_of(class_name: str) -> Architecture:
    """Return the architecture of a Hugging Face class name.

    Raises `BadModelFile` for an unknown name.
    """
    if class_name not in ARCHITECTURES:
        raise unknown_name("architecture", class_name, sorted(ARCHITECTURES))
    return ARCHITECTURES[class_name]

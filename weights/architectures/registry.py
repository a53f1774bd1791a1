"""Supported architectures by Hugging Face class name: the tables of all files in `families/`."""

import difflib
import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures import families
from swiftchat.weights.architectures.parts.architecture import Architecture, Architectures
from swiftchat.weights.architectures.parts.fields import Fields
from swiftchat.weights.architectures.parts.variants import TypeVariant, chosen

_SUFFIXES = re.compile("(ForCausalLM|ForConditionalGeneration|Model|LMHeadModel)$")
_SIMILAR = 0.8

_VENDORS = [
    importlib.import_module(f"{families.__name__}.{file.name}")
    for file in pkgutil.iter_modules(families.__path__)
]
ARCHITECTURES: Architectures = MappingProxyType(
    {name: entry for vendor in _VENDORS for name, entry in vendor.ARCHITECTURES.items()}
)
# Model types that share a class with another.
VARIANTS: Sequence[TypeVariant] = [
    variant for vendor in _VENDORS for variant in getattr(vendor, "VARIANTS", ())
]
# The class by `model_type`, for files that name none or an unknown one.
CLASS_OF_TYPE: Mapping[str, str] = MappingProxyType(
    {variant.model_type: variant.class_name for variant in VARIANTS}
    | {architecture.model_type: name for name, architecture in ARCHITECTURES.items()}
)


def unknown_name(kind: str, name: str, known: list[str]) -> BadModelFile:
    """Return the error for a `name` that is not in `known`; its hint gives a very similar one."""
    # Nearly all names share a suffix, so it would dominate the similarity.
    short = {_SUFFIXES.sub("", each).lower(): each for each in known}
    stem = _SUFFIXES.sub("", name[:80]).lower()
    nearest = difflib.get_close_matches(stem, short, n=1, cutoff=_SIMILAR)
    similar = f"similar: {short[nearest[0]]}; " if nearest else ""
    return BadModelFile(
        f"unknown {kind} {name[:80]!r}: this version does not run it",
        f"{similar}swiftchat help models says what runs; a newer version may run this model",
    )


def architecture_of(class_name: str, config: Fields) -> Architecture:
    """Return the architecture of a Hugging Face class name in a file with this config.

    Raises `BadModelFile` for an unknown name.
    """
    if class_name not in ARCHITECTURES:
        raise unknown_name("architecture", class_name, sorted(ARCHITECTURES))
    base = ARCHITECTURES[class_name]
    same_class = [variant for variant in VARIANTS if variant.class_name == class_name]
    return chosen(base, [(each.applies, each.of(base)) for each in same_class], config)

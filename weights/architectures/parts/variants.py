"""Names that mean another model in some files: of classes of transformers, and of GGUF."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen
from swiftchat.weights.architectures.parts.fields import Fields

Found = TypeVar("Found")
Entry = TypeVar("Entry")

# In which files an entry is not that of the table, and what it is there.
Variants = Sequence[tuple[Callable[[Found], object], Entry]]


def chosen(entry: Entry, variants: Variants[Found, Entry], found: Found) -> Entry:
    """Return the first variant that applies to what was found in a file, or else `entry`."""
    return next((variant for applies, variant in variants if applies(found)), entry)


@dataclass(frozen=True)
class TypeVariant:
    """A `model_type` that shares a class with another, with defaults and keys of its own."""

    class_name: str
    model_type: str
    renamed: Mapping[str, str] = field(default_factory=frozen)
    defaults: Mapping[str, Any] = field(default_factory=frozen)

    def applies(self, config: Fields) -> bool:
        """Whether a config is of this type."""
        return config.get("model_type") == self.model_type

    def of(self, base: Architecture) -> Architecture:
        """Return the architecture of this type, given that of its class."""
        return replace(
            base,
            defaults=frozen(**{**base.defaults, **self.defaults}),
            renamed=frozen(**{**base.renamed, **self.renamed}),
        )

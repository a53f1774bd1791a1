"""What makes a model family, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.fields import Fields


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


def no_facts(config: Fields) -> Mapping[str, Any]:
    """For families whose `config.json` says everything in the usual words."""
    return _empty()


@dataclass(frozen=True)
class Architecture:
    """One architecture as data.

    `tensors` maps a canonical name to the Hugging Face name; `{i}` stands for the layer, `{e}`
    for the expert and `{h}` for the head. Where it has `qkv`, `gate_up` or `experts_…`, the file
    keeps those in one tensor. `prefix` is what the names begin with and some files leave out;
    `two_norm_tensors` are the names that differ where attention and FFN have a norm each of the
    same stream. `defaults` are the values transformers takes for absent keys of `config.json`,
    `fields` its spelling of the usual keys, `facts` gives the fields of `ModelConfig` that this
    family fixes or reads in its own way. `reads` are keys of `refusals.NEUTRAL` that it
    understands or, as transformers, has no use for.

    `qkv_in_groups`: the file's rows are, for each key head, its query heads, itself and its
    value head. `transposed` matrices are [in, out] in the file.
    """

    name: str
    model_type: str
    tensors: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=_empty)
    fields: Mapping[str, str] = field(default_factory=_empty)
    facts: Callable[[Fields], Mapping[str, Any]] = no_facts
    reads: frozenset[str] = frozenset()
    prefix: str = ""
    two_norm_tensors: Mapping[str, str] = field(default_factory=_empty)
    interleaved_rope: bool = False
    qkv_in_groups: bool = False
    transposed: frozenset[str] = frozenset()

    def in_usual_words(self, config: Fields) -> dict[str, Any]:
        """The parsed `config.json` with absent keys filled in and this family's spellings read."""
        complete = {**self.defaults, **config}
        for usual, spelled in self.fields.items():
            if complete.get(spelled) is not None:
                complete[usual] = complete[spelled]
        return complete

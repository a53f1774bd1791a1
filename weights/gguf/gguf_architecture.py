"""One architecture of GGUF files as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swiftchat.weights.architectures.parts.architecture import Architecture, frozen
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.architectures.tensors import has_separate_norms
from swiftchat.weights.gguf.metadata import Metadata
from swiftchat.weights.gguf.model_fields import llama
from swiftchat.weights.gguf.tensor_names import TENSORS


@dataclass(frozen=True)
class GgufArchitecture:
    """One `general.architecture` as data.

    `class_name` is the Hugging Face class that its models become. `config_fields` returns the
    fields of `config.json` beyond those of every model; None values are left out, so that the
    defaults of the class apply. `absent_keys` are standard fields that the class does not have;
    `renamed` replaces the class's own `Architecture.renamed`.

    `permuted` tensors store the rows of each head in the order for interleaved rotary
    embeddings. `separate_norm_tensors` are the names that differ where attention and MLP read
    the same residual stream through a norm each; `tensors` are other names that differ. With
    `value_heads_in_turns`, gated DeltaNet has the order of `value_heads.py`. In
    every GGUF file norms with a unit offset are stored with 1 added, matrices are [out, in],
    and merged q/k/v are stored as all queries, all keys, all values.
    """

    class_name: str
    config_fields: Callable[[Metadata], Mapping[str, Any]] = llama
    permuted: frozenset[str] = frozenset()
    absent_keys: frozenset[str] = frozenset()
    renamed: Mapping[str, str] | None = None
    separate_norm_tensors: Mapping[str, str] = field(default_factory=frozen)
    tensors: Mapping[str, str] = field(default_factory=frozen)
    value_heads_in_turns: bool = False

    @property
    def target(self) -> Architecture:
        """The table entry of `class_name`."""
        return ARCHITECTURES[self.class_name]

    def tensor_name(self, config: ModelConfig, canonical: str) -> str:
        """Return the GGUF name of a canonical tensor, with `{i}` for the layer."""
        names = self.separate_norm_tensors if has_separate_norms(config) else self.tensors
        return names.get(canonical, TENSORS[canonical])

    def config_key(self, standard: str) -> str:
        """Return the key of a standard field in the model's `config.json`."""
        renamed = self.target.renamed if self.renamed is None else self.renamed
        return renamed.get(standard, standard)

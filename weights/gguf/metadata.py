"""The metadata of a GGUF file that belongs to its architecture."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.fields import MAX_LAYERS
from swiftchat.weights.formats.gguf import GgufFile


@dataclass(frozen=True)
class Metadata:
    """The metadata of `file` with keys below the architecture's `name`."""

    file: GgufFile
    name: str

    def get(self, key: str, default: object = None) -> Any:
        """Return the value of `name.key`, numbers as `shortest_decimal` gives them."""
        return shortest_decimal(self.file.metadata.get(f"{self.name}.{key}", default))

    def require(self, key: str) -> Any:
        """Return the value of `name.key`; `BadModelFile` if it is missing."""
        value = self.get(key)
        if value is None:
            raise BadModelFile(f"{self.file.path}: {self.name}.{key} is missing")
        return value

    def has_tensor(self, *names: str) -> bool:
        """Return whether the first layer has one of these tensors."""
        return any(f"blk.0.{name}" in self.file.tensors for name in names)

    @property
    def num_nextn_layers(self) -> int:
        """The number of layers at the end that predict further tokens."""
        count = self.get("nextn_predict_layers")
        return count if is_size(count) else 0

    @property
    def num_layers(self) -> int:
        """The number of layers before those; 0 if the file has no valid number."""
        count = self.get("block_count")
        return min(count - self.num_nextn_layers, MAX_LAYERS) if is_size(count) else 0

    def layers_with(self, *names: str) -> list[bool]:
        """Return for each layer whether it has one of these tensors."""
        tensors = self.file.tensors
        return [any(f"blk.{i}.{name}" in tensors for name in names) for i in range(self.num_layers)]

    @property
    def head_dim(self) -> Any:
        """The size of a head: the file's value, or the hidden size divided by the heads."""
        hidden, heads = self.get("embedding_length"), self.get("attention.head_count")
        default = hidden // heads if is_size(hidden) and is_size(heads) else None
        return self.get("attention.key_length", default)

    def rotated_share(self, *keys: str) -> float | None:
        """Return the fraction of a head that is rotated; None if the file has no valid sizes.

        The first of `keys` in the file has the number of elements; without one, all rotate.
        """
        head_dim = self.head_dim
        sizes = map(self.get, (*keys, "rope.dimension_count"))
        rotated = next((size for size in sizes if size is not None), head_dim)
        if not isinstance(rotated, int) or not isinstance(head_dim, int) or head_dim < 1:
            return None
        share = rotated / head_dim
        # Readers compute int(share · head_dim), which must give `rotated` again.
        return share if int(share * head_dim) == rotated else math.nextafter(share, math.inf)


def shortest_decimal(value: Any) -> Any:
    """Return a float with the shortest decimal that rounds to the same float32.

    1e-05, not 9.999999747378752e-06. Other values are returned unchanged.
    """
    return float(str(np.float32(value))) if isinstance(value, float) else value


def is_size(value: object) -> bool:
    """Return whether `value` is a positive integer."""
    return type(value) is int and value > 0

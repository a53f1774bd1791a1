"""Embeddings of a token for each layer (Gemma 3n and Gemma 4)."""

from dataclasses import dataclass

from torch import Tensor

from swiftchat.engine.linear.weight import LinearWeight


@dataclass(frozen=True)
class PerLayerTable:
    """The weights before the layers.

    `embed` [vocab_size, num_layers * width] has the embeddings of all layers, `project`
    [num_layers * width, hidden_size] makes them of the model's embeddings, `norm` is [width].
    """

    embed: LinearWeight
    project: Tensor
    norm: Tensor


@dataclass(frozen=True)
class PerLayerBranch:
    """The weights in a layer: `gate` [width, hidden_size], `out` [hidden_size, width], its norm."""

    gate: LinearWeight
    out: LinearWeight
    out_norm: Tensor

    @property
    def matrices(self) -> list[LinearWeight]:
        return [self.gate, self.out]

"""Hidden states that a forward pass leaves for a prediction head."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from swiftchat.engine.schedule.batch import Batch

# Stands for what the LM head reads.
LAST_NORM = -1


@dataclass(frozen=True)
class HiddenStates:
    """Receives hidden states of a batch in `found`, fp32 [n, hidden_size], on one rank and stage.

    `layers`: i is the residual stream that layer i reads, the number of layers what the last one
    leaves, both of all tokens; `LAST_NORM` is what the LM head reads, of the tokens whose logits
    are computed. A decoder that gets no such object keeps nothing.
    """

    layers: Collection[int]
    found: dict[int, Tensor] = field(default_factory=dict)

    def copied(self, num_tokens: int, num_logits: int) -> "HiddenStates":
        """Return copies of the states of the first tokens, and of the first computed logits."""
        rows = {
            layer: states[: num_logits if layer == LAST_NORM else num_tokens].clone()
            for layer, states in self.found.items()
        }
        return HiddenStates(self.layers, rows)

    def selected(self, rows: Sequence[int]) -> "HiddenStates":
        """Return the states of some rows of a decode step."""
        found = {layer: states[list(rows)] for layer, states in self.found.items()}
        return HiddenStates(self.layers, found)


class HeadLayer(Protocol):
    """The layer of a prediction head, which a decoder computes behind its own."""

    @property
    def hidden_layers(self) -> Collection[int]:
        """The hidden states of the decoder that it reads, as in `HiddenStates`."""

    def store(self, batch: Batch | Any, hidden: HiddenStates) -> None:
        """Add the tokens of a computed batch to the cache of the layer.

        It is packed, or on the device already, as captured steps have it.
        """

"""Hidden states that a forward pass leaves for a prediction head."""

from collections.abc import Collection
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


class HeadLayer(Protocol):
    """What prediction heads compute behind a decoder's own layers, in each step."""

    @property
    def hidden_layers(self) -> Collection[int]:
        """The hidden states of the decoder that it reads, as in `HiddenStates`."""

    def store(self, batch: Batch | Any, hidden: HiddenStates) -> None:
        """Add the tokens of a computed batch to the part of the KV cache that the heads have.

        It is packed, or on the device already, as captured steps have it.
        """

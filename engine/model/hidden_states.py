"""Hidden states that a forward pass leaves for a proposer of tokens."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import Tensor

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

"""How the router of a mixture of experts chooses and weighs experts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RouterConfig:
    """The steps from a token's scores to the weights of its experts."""

    scores: str = "softmax"
    """"softmax" over all experts, "sigmoid" of each, or "sparsemixer", which chooses two experts,
    each by a softmax over the scores near the largest of those left."""
    correction: bool = False
    """A learned bias is added to the scores to choose the experts, but not to weigh them."""
    by_logits: bool = False
    """It is added to the scores before the sigmoid."""
    groups: int = 1
    """Groups of neighboring experts."""
    top_groups: int = 1
    """Only the experts of so many groups are candidates, of those with the largest sums."""
    best_of_group: int = 2
    """How many of a group's best scores are summed."""
    normalized: bool = False
    """The weights of the chosen are divided by their sum plus `eps`."""
    eps: float = 0.0
    scale: float = 1.0
    """The factor of the weights."""
    on_input: bool = False
    """The weight multiplies the input of an expert, not its output."""
    softcap: float = 0.0
    """Scores x become c·tanh(x/c) first; 0: they do not."""

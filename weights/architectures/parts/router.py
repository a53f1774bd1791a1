"""How the router of a mixture of experts chooses and weighs experts."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RouterConfig:
    """The steps from a token's scores to the weights of its experts.

    `scores`: "softmax" over all experts, "sigmoid" of each, or "sparsemixer", which chooses two
    experts, each by a softmax over the scores near the largest of those left. With `correction` a
    learned bias is added to the scores to choose the experts, but not to weigh them; `by_logits`:
    to the scores before the sigmoid. Of `groups` of neighboring experts only the `top_groups` with
    the largest sum of the `best_of_group` best scores are candidates. With `normalized` the weights
    of the chosen are divided by their sum plus `eps`; then they are multiplied by `scale`.
    `on_input`: the weight multiplies the input of an expert, not its output. With `softcap` c
    scores x become c·tanh(x/c) first.
    """

    scores: str = "softmax"
    correction: bool = False
    by_logits: bool = False
    groups: int = 1
    top_groups: int = 1
    best_of_group: int = 2
    normalized: bool = False
    eps: float = 0.0
    scale: float = 1.0
    on_input: bool = False
    softcap: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is a softmax, with normalization or without."""
        return self == RouterConfig(normalized=self.normalized)

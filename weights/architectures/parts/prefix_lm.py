"""Prompts with a bidirectional prefix, as in GLM (Du et al., 2021, arXiv:2103.10360)."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BidirectionalPrefix:
    """The first `length` tokens attend to each other in both directions, all others causally.

    The tokens after the prefix fill the mask token at index `mask_index`.
    """

    length: int = 0
    mask_index: int = 0

    def positions(self, index: int) -> tuple[int, int]:
        """Return the two-dimensional position of the token at `index`.

        In the prefix: (index, 0). After it: (`mask_index`, 1), (`mask_index`, 2), ….
        """
        if index < self.length:
            return index, 0
        return self.mask_index, index - self.length + 1


CAUSAL = BidirectionalPrefix()


@dataclass(frozen=True)
class PrefixLM:
    """The prefix of a prompt ends before its first `start_id`.

    The answer fills the first of `mask_ids` that occurs in the prefix.
    """

    start_id: int
    mask_ids: tuple[int, ...]

    def prefix_of(self, ids: Sequence[int]) -> BidirectionalPrefix:
        """Return the bidirectional prefix of the prompt `ids`; empty without a `start_id`."""
        length = list(ids).index(self.start_id) if self.start_id in ids else 0
        prefix = list(ids[:length])
        masks = [prefix.index(mask) for mask in self.mask_ids if mask in prefix]
        return BidirectionalPrefix(length, masks[0] if masks else max(length - 1, 0))

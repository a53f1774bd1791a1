"""Prompts that attend both ways, as GLM reads them (Du et al., 2021, arXiv:2103.10360)."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["CAUSAL", "BidirectionalPrefix", "PrefixLM"]


@dataclass(frozen=True)
class BidirectionalPrefix:
    """The first `length` tokens attend to each other in both directions, the others backwards.

    Those others stand for the token at `position`, a mask, and are counted from 1 on.
    """

    length: int = 0
    position: int = 0

    def positions(self, index: int) -> tuple[int, int]:
        """The two positions of the token with this index."""
        if index < self.length:
            return index, 0
        return self.position, index - self.length + 1


CAUSAL = BidirectionalPrefix()


@dataclass(frozen=True)
class PrefixLM:
    """What attends both ways ends before the first `start_id`.

    The answer stands for the first of `mask_ids` that occurs before it.
    """

    start_id: int
    mask_ids: tuple[int, ...]

    def prefix_of(self, ids: Sequence[int]) -> BidirectionalPrefix:
        """How the prompt `ids` is read; without a `start_id`, backwards only."""
        length = list(ids).index(self.start_id) if self.start_id in ids else 0
        prefix = list(ids[:length])
        masks = [prefix.index(mask) for mask in self.mask_ids if mask in prefix]
        return BidirectionalPrefix(length, masks[0] if masks else max(length - 1, 0))

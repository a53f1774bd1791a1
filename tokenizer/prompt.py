"""A prompt as ids, by stretches that can be compared with those of the turn before."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Prompt", "Stretch", "stretches_between"]

Cut = tuple[int | None, int, int]


@dataclass(frozen=True)
class Stretch:
    """A control token, or the text up to the next one, with its ids."""

    text: str
    ids: tuple[int, ...]
    is_control: bool


@dataclass(frozen=True)
class Prompt:
    """What a model is given; `ids` and their number."""

    stretches: tuple[Stretch, ...]

    @property
    def ids(self) -> list[int]:
        return [token_id for stretch in self.stretches for token_id in stretch.ids]

    def __len__(self) -> int:
        return sum(len(stretch.ids) for stretch in self.stretches)

    def extended(self, text: str, ids: Iterable[int]) -> "Prompt":
        """This prompt and what was written after it, which holds no control token."""
        *before, last = self.stretches or (Stretch("", (), True),)
        if last.is_control:
            before, last = list(self.stretches), Stretch("", (), False)
        written = Stretch(last.text + text, (*last.ids, *ids), False)
        return Prompt((*before, written))


def stretches_between(cuts: Iterable[Cut], control_ids: frozenset[int]) -> Iterator[list[Cut]]:
    """Join `(id or None, start, end)` that follow one another; control tokens stay alone."""
    together: list[Cut] = []
    for cut in cuts:
        if cut[0] not in control_ids:
            together.append(cut)
            continue
        if together:
            yield together
        yield [cut]
        together = []
    if together:
        yield together

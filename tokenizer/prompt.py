"""Prompts as spans between control tokens, so that turns can be compared span by span."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

Cut = tuple[int | None, int, int]


@dataclass(frozen=True)
class PromptSpan:
    """A control token, or the text up to the next one, with its ids."""

    text: str
    ids: tuple[int, ...]
    is_control: bool


@dataclass(frozen=True)
class Prompt:
    """The input of a generation; `len` is the number of its `ids`."""

    spans: tuple[PromptSpan, ...]

    @property
    def ids(self) -> list[int]:
        return [token_id for span in self.spans for token_id in span.ids]

    def __len__(self) -> int:
        return sum(len(span.ids) for span in self.spans)

    def extended(self, text: str, ids: Iterable[int]) -> "Prompt":
        """Return this prompt with `text` and its `ids` appended; they hold no control token."""
        *before, last = self.spans or (PromptSpan("", (), True),)
        if last.is_control:
            before, last = list(self.spans), PromptSpan("", (), False)
        span = PromptSpan(last.text + text, (*last.ids, *ids), False)
        return Prompt((*before, span))


def split_at_control_tokens(
    cuts: Iterable[Cut], control_ids: frozenset[int]
) -> Iterator[list[Cut]]:
    """Group consecutive cuts `(id or None, start, end)`; a control token is a group of its own."""
    group: list[Cut] = []
    for cut in cuts:
        if cut[0] not in control_ids:
            group.append(cut)
            continue
        if group:
            yield group
        yield [cut]
        group = []
    if group:
        yield group

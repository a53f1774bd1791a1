"""Soft wrapping of the input line between words."""

from bisect import bisect_right
from itertools import accumulate

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
from prompt_toolkit.layout.screen import Char
from prompt_toolkit.layout.utils import explode_text_fragments


class WordWrap(Processor):
    """Pads rows with blanks, so that prompt_toolkit, which wraps at the full width, keeps words.

    The first row of the text begins after the prompt, every other row after the continuation.
    """

    def __init__(self, prompt: str, continuation: str) -> None:
        self._prompt_columns, self._continuation_columns = len(prompt), len(continuation)

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        one = transformation_input
        fragments = explode_text_fragments(one.fragments)
        start = self._continuation_columns if one.lineno else self._prompt_columns
        text = "".join(text for _, text, *_ in fragments)
        pads = paddings(text, one.width, start, self._continuation_columns)
        if not pads:
            return Transformation(one.fragments)
        padded: StyleAndTextTuples = []
        for i, fragment in enumerate(fragments):
            if i in pads:
                padded.append(("", " " * pads[i]))
            padded.append(fragment)
        # Positions in the padded text of the characters that follow a padding.
        starts = list(pads)
        totals = list(accumulate(pads.values()))
        shifted = [begin + total for begin, total in zip(starts, totals, strict=True)]

        def to_display(position: int) -> int:
            number = bisect_right(starts, position)
            return position + (totals[number - 1] if number else 0)

        def to_source(position: int) -> int:
            number = bisect_right(shifted, position)
            source = position - (totals[number - 1] if number else 0)
            return min(source, starts[number]) if number < len(starts) else source

        return Transformation(padded, to_display, to_source)


def paddings(text: str, width: int, start: int, next_start: int) -> dict[int, int]:
    """Return the number of blanks to insert by the index of the word that follows them.

    The first row begins in column `start`, the others in `next_start`. A word that is longer than a
    row is not moved.
    """
    found: dict[int, int] = {}
    column, i = start, 0
    while i < len(text):
        end = i + 1
        if text[i] != " ":
            while end < len(text) and text[end] != " ":
                end += 1
        columns = [Char(char).width for char in text[i:end]]
        fits_no_more = column + sum(columns) > width >= next_start + sum(columns)
        if text[i] != " " and fits_no_more and column > next_start:
            found[i] = width - column
            column = next_start
        for char_columns in columns:
            if column + char_columns > width:
                column = next_start
            column += char_columns
        i = end
    return {index: num for index, num in found.items() if num}

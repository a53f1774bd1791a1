"""Long pasted texts, which stand in the input line as `[pasted 84 lines]` until they are sent."""

_MOST_LINES = 20


class Pastes:
    """What was pasted in this chat; marks that are deleted from the line are simply not sent."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by their marks

    def mark(self, text: str) -> str:
        """What stands in the line for a text: itself, or a mark if it is long."""
        num_lines = len(text.split("\n"))
        if num_lines <= _MOST_LINES:
            return text
        mark, number = f"[pasted {num_lines} lines]", 1
        while self._texts.get(mark, text) != text:
            number += 1
            mark = f"[pasted {num_lines} lines, {number}]"
        self._texts[mark] = text
        return mark

    def unfolded(self, line: str) -> str:
        """The line with the texts in place of their marks."""
        for mark, text in self._texts.items():
            line = line.replace(mark, text)
        return line

    def folded(self, text: str) -> str:
        """The text with marks where it was pasted, as it comes back to be typed again."""
        for mark, pasted in self._texts.items():
            text = text.replace(pasted, mark)
        return text

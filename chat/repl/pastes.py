"""Folding of long pasted texts to `[pasted 84 lines]` in the input line."""

_MAX_LINES = 20
_MAX_CHARS = 4000  # drawing a longer line at each key would be slow


class Pastes:
    """The pasted texts of a chat by their placeholders; a deleted placeholder sends nothing."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by placeholder

    def fold_paste(self, text: str) -> str:
        """Return a short text as is, and a placeholder for a long one."""
        num_lines = len(text.removesuffix("\n").split("\n"))
        if num_lines <= _MAX_LINES and len(text) <= _MAX_CHARS:
            return text
        size = f"{num_lines} lines" if num_lines > _MAX_LINES else f"{len(text)} characters"
        placeholder, number = f"[pasted {size}]", 1
        while self._texts.get(placeholder, text) != text:
            number += 1
            placeholder = f"[pasted {size}, {number}]"
        self._texts[placeholder] = text
        return placeholder

    def unfold(self, line: str) -> str:
        """Replace the placeholders by their texts."""
        for placeholder, text in self._texts.items():
            line = line.replace(placeholder, text)
        return line

    def fold(self, text: str) -> str:
        """Replace the pasted texts by their placeholders."""
        for placeholder, pasted in self._texts.items():
            text = text.replace(pasted, placeholder)
        return text

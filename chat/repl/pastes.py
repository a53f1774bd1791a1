"""Folding of long texts to `[pasted 84 lines]` in the input line.

In the line a folded text is one character that no terminal, file or editor can bring: a lone
surrogate, which UTF-8 does not have. So a label that the user types, or copies from the screen, is
text. The characters never leave the line: they are drawn as labels and sent as their texts.
"""

import re

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from swiftchat.chat.attachments.attachment import parts_of
from swiftchat.chat.terminal.sanitize import sanitize

_MAX_LINES = 20
_MAX_CHARS = 4000  # drawing a longer line at each key would be slow
_MAX_LINE_CHARS = 10_000  # of the whole line; more is not typed by hand
# High surrogates: Python decodes invalid bytes to low ones.
_FIRST, _LAST = 0xD800, 0xDBFF
_PLACEHOLDER = re.compile("[\ud800-\udbff]")


class Pastes:
    """The folded texts of a chat by their placeholders; a deleted placeholder sends nothing."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # by placeholder
        self._labels: dict[str, str] = {}  # by placeholder

    def fold_paste(self, text: str) -> str:
        """Return a short text as is, and a placeholder for a long one; lines end with \\n."""
        text = _PLACEHOLDER.sub("\ufffd", text).replace("\r\n", "\n").replace("\r", "\n")
        num_lines = len(text.removesuffix("\n").split("\n"))
        if num_lines > _MAX_LINES:
            return self._placeholder(text, f"pasted {num_lines} lines")
        if len(text) > _MAX_CHARS:
            return self._placeholder(text, f"pasted {len(text)} characters")
        return text

    def fold_long(self, line: str) -> str:
        """Return a placeholder for a whole line that is too long to be drawn at each key."""
        if len(line) <= _MAX_LINE_CHARS:
            return line
        text = self.unfold(line)
        return self._placeholder(text, f"{len(text)} characters")

    def _placeholder(self, text: str, size: str) -> str:
        known = next((key for key, other in self._texts.items() if other == text), None)
        if known is not None:
            return known
        placeholder = chr(_FIRST + len(self._texts))
        if ord(placeholder) > _LAST:
            return text
        label, number = f"[{size}]", 1
        while label in self._labels.values():
            number += 1
            label = f"[{size}, {number}]"
        self._texts[placeholder], self._labels[placeholder] = text, label
        return placeholder

    def unfold(self, line: str) -> str:
        """Replace the placeholders by their texts."""
        return _PLACEHOLDER.sub(lambda found: self._texts.get(found[0], ""), line)

    def fold(self, text: str) -> str:
        """Replace folded texts, attachments and a line that is still too long by placeholders."""
        text = _PLACEHOLDER.sub("\ufffd", text)
        for placeholder, folded in self._texts.items():
            text = text.replace(folded, placeholder)
        parts = parts_of(text)
        text = "".join(self._placeholder(part, label) if label else part for part, label in parts)
        return self.fold_long(text)

    def fold_entry(self, text: str) -> str:
        """Return an entry of the history: behind the first line of a long one a placeholder."""
        first, _, rest = self.fold(text).partition("\n")
        return f"{first}\n{self.fold_paste(self.unfold(rest))}" if rest else first

    def label(self, placeholder: str) -> str:
        """Return what the line shows for a placeholder."""
        return self._labels.get(placeholder, "\ufffd")

    def labeled(self, line: str) -> str:
        """Replace the placeholders by their labels."""
        return _PLACEHOLDER.sub(lambda found: self.label(found[0]), line)

    def keep_short(self, buffer: Buffer) -> None:
        """Fold a line that has become too long: by the history, an editor, or many pastes."""
        short = self.fold_long(buffer.text)
        if short != buffer.text:
            search = buffer.history_search_text  # Up goes on with the same search
            buffer.document = Document(short)
            buffer.history_search_text = search

    def edit(self, buffer: Buffer) -> None:
        """Open the whole text of a line in the editor."""
        folded = buffer.document
        buffer.on_text_changed -= self.keep_short
        buffer.document = Document(self.unfold(buffer.text))
        buffer.open_in_editor()  # has written its file, and returns to the line later
        buffer.document = folded
        buffer.on_text_changed += self.keep_short


def without_placeholders(text: str) -> str:
    """Return the part of a text behind its last placeholder."""
    return _PLACEHOLDER.split(text)[-1]


class ShownLine(Processor):
    """Shows labels for placeholders, and control characters, which a file may bring, as glyphs.

    Of a line that is too long, which a search of the history may meet, it shows the beginning.
    """

    def __init__(self, pastes: Pastes) -> None:
        self._pastes = pastes

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        shown: list[tuple[str, str]] = []
        added: list[tuple[int, int]] = []  # the position behind a placeholder, the columns it adds
        position = 0
        for style, text, *_ in transformation_input.fragments:
            for part in re.split("([\ud800-\udbff])", text[: _MAX_LINE_CHARS - position]):
                position += len(part)
                if _PLACEHOLDER.fullmatch(part):
                    label = self._pastes.label(part)
                    added.append((position, len(label) - 1))
                    shown.append((style, label))
                elif part:
                    shown.append((style, sanitize(part)))
        end = position

        def to_display(source: int) -> int:
            source = min(source, end)
            return source + sum(columns for behind, columns in added if behind <= source)

        def to_source(display: int) -> int:
            for behind, columns in added:
                if display < behind + columns:
                    return min(display, behind - 1)
                display -= columns
            return display

        return Transformation(list(shown), to_display, to_source)

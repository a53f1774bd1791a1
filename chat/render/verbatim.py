"""Text that is not Markdown, such as JSON: its lines are shown as they are."""

import json
from collections.abc import Iterator

from swiftchat.chat.render.blocks import Block

_MAX_LINE_CHARS = 4096  # a longer line is shown in parts


class VerbatimStream:
    """Accepts text in pieces of any size and yields its lines as `BlockStream` yields blocks."""

    def __init__(self) -> None:
        self._partial = ""  # the incomplete line, without the parts that were yielded
        self._is_overlong = False

    def push(self, text: str) -> Iterator[Block]:
        """Append text; yield the lines that are finished now."""
        *lines, rest = text.split("\n")
        for line in lines:
            self._partial += line
            yield self._emit(len(self._partial), ends=True)
        self._partial += rest
        while len(self._partial) > _MAX_LINE_CHARS:
            yield self._emit(_MAX_LINE_CHARS, ends=False)

    def finish(self) -> Iterator[Block]:
        """End the text; yield the last line, unless it is empty."""
        if self._partial or self._is_overlong:
            yield self._emit(len(self._partial), ends=True)

    def pending(self) -> list[Block]:
        """Return the incomplete line."""
        return [Block("plain", (), 0, self._partial, starts=not self._is_overlong)]

    def _emit(self, num_chars: int, *, ends: bool) -> Block:
        part, self._partial = self._partial[:num_chars], self._partial[num_chars:]
        starts, self._is_overlong = not self._is_overlong, not ends
        return Block("plain", (), 0, part, starts=starts, ends=ends)


def is_json(text: str) -> bool:
    """Return whether a text is a JSON object or array."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

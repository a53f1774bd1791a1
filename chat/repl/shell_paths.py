"""Path completion in a line of shell words: after `!` and commands."""

import re
from collections.abc import Iterable

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

# What has a meaning in a shell; also blanks, which end a word.
_SPECIAL = re.compile(r"""([\s"'\\$`&|;<>()*?\[\]{}!#~])""")


class ShellPathCompleter(Completer):
    """Completes the last word as a path and quotes what it adds; folders end in a slash."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        word, quote = last_word(document.text_before_cursor)
        for found in self._paths.get_completions(Document(word), complete_event):
            is_folder = found.display_text.endswith("/")
            added = _quoted(found.text, quote) + ("/" if is_folder else "")
            yield Completion(added, display=found.display)


def last_word(text: str) -> tuple[str, str]:
    """Return the last word of a shell line without its quotes, and the quote that is open.

    The word is "" after a blank, the quote "" if none is open.
    """
    word, quote, is_escaped = "", "", False
    for character in text:
        if is_escaped:
            word, is_escaped = word + character, False
        elif character == "\\" and quote != "'":
            is_escaped = True
        elif quote:
            quote, word = ("", word) if character == quote else (quote, word + character)
        elif character in "\"'":
            quote = character
        else:
            word = "" if character.isspace() else word + character
    return word, quote


def _quoted(text: str, quote: str) -> str:
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        return re.sub(r'(["\\$`])', r"\\\1", text)
    return _SPECIAL.sub(r"\\\1", text)

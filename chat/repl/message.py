"""Messages of several lines: blocks between triple quotes, trailing backslashes."""

_QUOTES = '"""'


def is_unfinished(text: str) -> bool:
    """Return whether Enter adds a line: after a trailing backslash and in an open block."""
    return text.endswith("\\") or (text.lstrip().startswith(_QUOTES) and _block(text) is None)


def message_of(text: str) -> str:
    """Return the message without the quotes of a block."""
    inside = _block(text)
    return text if inside is None else inside.strip("\n")


def _block(text: str) -> str | None:
    """Return the text between triple quotes, None unless the whole text is one block."""
    text = text.strip()
    is_block = len(text) >= 2 * len(_QUOTES) and text.startswith(_QUOTES) and text.endswith(_QUOTES)
    return text[len(_QUOTES) : -len(_QUOTES)] if is_block else None

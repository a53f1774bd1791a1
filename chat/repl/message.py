"""Messages of several lines: blocks between triple quotes, trailing backslashes."""

_QUOTES = '"""'


def continued(text: str, cursor: int) -> tuple[str, int] | None:
    """Return a text and its cursor after an Enter that adds a new line, None if Enter sends it.

    Enter adds one in an open block, and in place of a backslash at the end.
    """
    if text.endswith("\\"):
        return f"{text[:-1]}\n", len(text)
    if text.lstrip().startswith(_QUOTES) and _block(text) is None:
        return f"{text[:cursor]}\n{text[cursor:]}", cursor + 1
    return None


def message_of(text: str) -> str:
    """Return the message without the quotes of a block."""
    inside = _block(text)
    return text if inside is None else inside.strip("\n")


def _block(text: str) -> str | None:
    """Return the text between triple quotes, None unless the whole text is one block."""
    text = text.strip()
    is_block = len(text) >= 2 * len(_QUOTES) and text.startswith(_QUOTES) and text.endswith(_QUOTES)
    return text[len(_QUOTES) : -len(_QUOTES)] if is_block else None

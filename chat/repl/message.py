"""What was typed as a message: blocks between triple quotes, lines that go on."""

BLOCK = '"""'


def is_unfinished(text: str) -> bool:
    """Whether Enter should go on with the message: an open block or a trailing backslash."""
    return text.endswith("\\") or (text.lstrip().startswith(BLOCK) and _block(text) is None)


def message_of(text: str) -> str:
    """The message that was typed, the marks of a block taken off."""
    inside = _block(text)
    return text if inside is None else inside.strip("\n")


def _block(text: str) -> str | None:
    """What stands between the marks of a block, None if the text is not one whole block."""
    text = text.strip()
    whole = len(text) >= 2 * len(BLOCK) and text.startswith(BLOCK) and text.endswith(BLOCK)
    return text[len(BLOCK) : -len(BLOCK)] if whole else None

"""Sanitize untrusted text for the terminal.

Model output, file names, model names and error messages may contain escape sequences that move
the cursor, set the clipboard or hide text. Every such text goes through `sanitize` before it is
shown on a terminal. Output to a pipe or a file is not changed.
"""

# C0 controls and DEL have Unicode pictures; C1 and bidirectional controls have none and become
# U+FFFD.
_C0 = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_C1 = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_BIDI = dict.fromkeys(
    [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)
_LINES = dict.fromkeys([0x2028, 0x2029], 0xFFFD)
_TABLE = {**_C0, 0x7F: 0x2421, **_C1, **_BIDI, **_LINES}
# The marks and isolates of Hebrew and Arabic prose, whose effect ends with the line.
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x2066, 0x206A))
_PROSE_TABLE = {code: glyph for code, glyph in _TABLE.items() if code not in _DIRECTIONS}


def sanitize(text: str) -> str:
    """Replace control characters other than newline and tab by visible glyphs.

    Each character is replaced by exactly one, so a text may be sanitized in pieces.
    """
    return text.translate(_TABLE)


def sanitize_prose(text: str) -> str:
    """As `sanitize`, for the text of an answer: direction marks and isolates stay.

    Overrides and embeddings become visible, and in code, names and questions all of them do.
    """
    return text.translate(_PROSE_TABLE)

"""The one gate between foreign text and the terminal.

Model output, file and model names and error texts may hold escape sequences that move the
cursor, set the clipboard or hide text. Everything of foreign origin passes here before it is
shown on a terminal. Output to a pipe or file does not: there the bytes are the answer.
"""

# C0 and DEL have pictures of their own; C1 and the bidirectional controls get a question mark
# in a diamond, because no visible picture of them exists.
_C0 = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_C1 = dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
_BIDI = dict.fromkeys(
    [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD
)
_LINES = dict.fromkeys([0x2028, 0x2029], 0xFFFD)
_TABLE = {**_C0, 0x7F: 0x2421, **_C1, **_BIDI, **_LINES}


def sanitize(text: str) -> str:
    """Text with every control character but newline and tab replaced by a visible glyph.

    The length stays the same, so any split of a text gives the same result.
    """
    return text.translate(_TABLE)

"""Sanitize untrusted text for the terminal.

Model output, file names, model names and error messages may contain escape sequences that move
the cursor, set the clipboard or hide text. Every such text goes through `sanitize` before it is
shown on a terminal. Output to a pipe or a file is not changed. What a user approves goes through
`escape_invisible`: nothing in it may be invisible.
"""

import json

# C0 controls and DEL have Unicode pictures; what else is replaced has none and becomes U+FFFD.
_C0 = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_REPLACED = (
    range(0x80, 0xA0),  # C1 controls
    (0x61C, 0x200E, 0x200F),  # marks of the direction
    range(0x2028, 0x202F),  # line ends, and embeddings and overrides of the direction
    range(0x2061, 0x2065),  # invisible operators
    range(0x2066, 0x2070),  # isolates of the direction, deprecated controls
    (0xFEFF,),  # the byte order mark
    range(0xFFF9, 0xFFFC),  # annotations
    range(0x1D173, 0x1D17B),  # beams and slurs of music
    (0xE0001, *range(0xE0020, 0xE0080)),  # tags: a second, invisible ASCII
)
# Languages need the other characters of Unicode's class of format characters (Cf): joiners, places
# for line breaks, and signs that have glyphs.
_TABLE = {**_C0, 0x7F: 0x2421, **{code: 0xFFFD for codes in _REPLACED for code in codes}}

# Characters that look like nothing, although Python calls them printable.
_BLANK = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
    + "".join(map(chr, (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
)
# The marks and isolates of Hebrew and Arabic prose, whose effect ends with the line.
_DIRECTIONS = (0x61C, 0x200E, 0x200F, *range(0x2066, 0x206A))
_PROSE_TABLE = {code: glyph for code, glyph in _TABLE.items() if code not in _DIRECTIONS}


def sanitize(text: str) -> str:
    """Replace control characters other than newline and tab by visible glyphs.

    So are characters that reorder or hide text, but not those that languages need. Each character
    is replaced by exactly one, so a text may be sanitized in pieces.
    """
    return text.translate(_TABLE)


def escape_invisible(text: str) -> str:
    """Replace everything that has no glyph, but the space, by escapes as in JSON: `\\u200b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() and character not in _BLANK
        else json.dumps(character)[1:-1]
        for character in text
    )


def sanitize_prose(text: str) -> str:
    """As `sanitize`, for the text of an answer: direction marks and isolates stay.

    Overrides and embeddings become visible, and in code, names and questions all of them do.
    """
    return text.translate(_PROSE_TABLE)

"""Text in attachments that a user does not see, but a model reads."""

import re

_SHOWN_CHARACTERS = 60
_TAG = 0xE0000  # a tag character is this and the code of an ASCII character
# The flags of England, Scotland and Wales are spelled with tags.
_REGIONS = ("gbeng", "gbsct", "gbwls")
_FLAGS = re.compile(
    "|".join(f"\U0001f3f4{''.join(chr(_TAG + ord(c)) for c in r)}\U000e007f" for r in _REGIONS)
)
# One selector of a variant or a few joiners are usual; runs of them can spell a text.
_HIDDEN = re.compile(
    "[\U000e0000-\U000e007f]+"
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}"
    "|[\u200b-\u200f\u2060-\u2064\ufeff]{8,}"
)


def hidden_text_notes(name: str, text: str) -> list[str]:
    """Return a note if a text has invisible characters that can spell another text, else []."""
    if text.isascii():
        return []
    runs = _HIDDEN.findall(_FLAGS.sub("", text))
    if not runs:
        return []
    tags = "".join(chr(ord(c) - _TAG) for c in "".join(runs) if _TAG + 32 <= ord(c) < _TAG + 127)
    shown = tags[:_SHOWN_CHARACTERS] + ("…" if len(tags) > _SHOWN_CHARACTERS else "")
    spelled = f", which spell {shown!r}" if shown else ""
    count = sum(map(len, runs))
    return [f"{name} has hidden text: the model reads {count} invisible characters{spelled}"]

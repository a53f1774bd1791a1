"""The parts of a message in a file of another program: texts, transcripts, images, recordings."""

from collections import Counter
from typing import Any

_KINDS = ("image", "audio", "video", "file")


def text_of_parts(parts: list[Any], left_out: Counter[str]) -> str:
    """Return the texts of parts, between blank lines; count the others by their kind.

    A message without any text has the kinds of its parts in brackets, so that what follows it
    still has a question.
    """
    texts, others = [], []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        elif part is not None:
            others.append(_kind_of(part))
    left_out.update(others)
    return "\n\n".join(filter(str.strip, texts)) or " ".join(f"[{kind}]" for kind in others)


def _kind_of(part: object) -> str:
    names = [part.get("content_type"), part.get("type")] if isinstance(part, dict) else []
    return next((kind for kind in _KINDS for name in names if kind in str(name)[:80]), "part")

"""Full-text search in saved conversations."""

import bisect
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.fields import text_of, time_of

if TYPE_CHECKING:
    import sqlite3

# Messages that the index lacks: a user's message has no finish reason either.
UNFINISHED = "role IS 'assistant' AND finish_reason IS NULL"
_TRIGRAM = 3
_FOLDED = "coalesce(folded, lower(content))"
_CONTEXT = 40  # characters of an excerpt before and after the match


@dataclass(frozen=True)
class Found:
    """What contains the words; `excerpt` is one line around the first match.

    `role` is that of the message, or `name` or `title` of a conversation.

    The match is `excerpt[start:end]`.
    """

    session_id: str
    title: str
    role: str
    created: float
    excerpt: str
    start: int
    end: int


def fold(text: str) -> str:
    """Return a text without the differences of upper and lower case, in every script."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())


def folded_unless_ascii(text: str) -> str | None:
    """Return the folded text, None for an ASCII text, whose case SQLite can fold."""
    return None if text.isascii() else fold(text)


def add_functions(db: "sqlite3.Connection") -> None:
    """Add `folded_unless_ascii` to a connection."""

    def function(data: bytes | None) -> str | None:
        return folded_unless_ascii((data or b"").decode("utf-8", "replace"))

    db.create_function("folded_unless_ascii", 1, function, deterministic=True)


def find_names(db: "sqlite3.Connection", text: str, limit: int) -> list[Found]:
    """Return the conversations whose name or title contains every word of `text`, in any case.

    Those whose messages contain the words of the title are left out: they are found anyway.
    """
    words = fold(text).split()
    if not words:
        return []
    named, titled = (
        _contains(f"coalesce(folded_unless_ascii(CAST({column} AS BLOB)), lower({column}))", words)
        for column in ("name", "title")
    )
    said = _contains(_FOLDED, words)
    rows = db.execute(
        f"""SELECT name, title, CASE WHEN {named} THEN name ELSE title END AS content,
            CASE WHEN {named} THEN 'name' ELSE 'title' END AS role, updated AS created,
            id AS session_id FROM sessions WHERE {named} OR ({titled} AND NOT EXISTS (
                SELECT 1 FROM messages WHERE session = sessions.id AND {said}))
            ORDER BY used DESC LIMIT :limit""",
        {**_parameters(words), "limit": limit},
    ).fetchall()
    return [_found(row, words) for row in rows]


def find_messages(db: "sqlite3.Connection", text: str, limit: int) -> list[Found]:
    """Return the messages that contain every word of `text`, in any case, also inside of words.

    Words that are too short for the trigram index, and all words in messages that are not in it,
    are searched with `instr`.
    """
    words = fold(text).split()
    if not words:
        return []
    long = [word for word in words if len(word) >= _TRIGRAM]
    matches = ["number IN (SELECT rowid FROM search WHERE search MATCH :long)"] if long else []
    short = [i for i, word in enumerate(words) if len(word) < _TRIGRAM]
    indexed = " AND ".join([*matches, *(_contains_word(_FOLDED, i) for i in short)])
    unfinished = f"{UNFINISHED} AND {_contains(_FOLDED, words)}"
    quoted = " ".join('"' + word.replace('"', '""') + '"' for word in long)
    rows = db.execute(
        f"""SELECT m.content, m.role, m.created, s.id AS session_id, s.name, s.title
        FROM (SELECT * FROM messages WHERE {indexed}
            UNION SELECT * FROM messages WHERE {unfinished}) m
        JOIN sessions s ON s.id = m.session
        ORDER BY s.used DESC, m.number DESC LIMIT :limit""",
        {**_parameters(words), "long": quoted, "limit": limit},
    ).fetchall()
    return [_found(row, words) for row in rows]


def _contains(folded: str, words: Sequence[str]) -> str:
    """Return the SQL of whether a folded text contains all words, which are the `_parameters`."""
    return "(" + " AND ".join(_contains_word(folded, i) for i in range(len(words))) + ")"


def _contains_word(folded: str, number: int) -> str:
    return f"instr({folded}, :word{number})"


def _parameters(words: Sequence[str]) -> dict[str, str]:
    return {f"word{i}": word for i, word in enumerate(words)}


def _found(row: Any, words: list[str]) -> Found:
    return Found(
        text_of(row["session_id"]) or "",
        text_of(row["name"]) or text_of(row["title"]) or "",
        text_of(row["role"]) or "",
        time_of(row["created"]) or 0.0,
        *excerpt_of(text_of(row["content"]) or "", words),
    )


def excerpt_of(content: str, words: Sequence[str]) -> tuple[str, int, int]:
    """Return a line around the first match of folded words, and the place of the match in it."""
    content = unicodedata.normalize("NFC", content)
    start, end = _first_match(content, words)
    before = _one_line(
        ("…" if start > _CONTEXT else "") + content[max(0, start - _CONTEXT) : start]
    )
    word = _one_line(content[start:end])
    after = content[end : end + _CONTEXT] + ("…" if len(content) > end + _CONTEXT else "")
    return before + word + _one_line(after), len(before), len(before) + len(word)


def _first_match(content: str, words: Sequence[str]) -> tuple[int, int]:
    """Return the place of the first folded word in a text, (0, 0) if it cannot be told."""
    parts = [character.casefold() for character in content]
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    first = re.search(pattern, "".join(parts))
    if first is None:
        return 0, 0
    ends = list(itertools.accumulate(map(len, parts)))  # ß is two folded characters
    start, last = bisect.bisect(ends, first.start()), bisect.bisect(ends, first.end() - 1)
    return start, last + 1


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)

"""Full-text search in saved conversations."""

import re
import sqlite3
from dataclasses import dataclass
from typing import Any

from swiftchat.chat.history.fields import text_of, time_of

# Messages that the index lacks: a user's message has no finish reason either.
UNFINISHED = "role IS 'assistant' AND finish_reason IS NULL"
_TRIGRAM = 3
_CONTEXT = 40  # characters of an excerpt before and after the match


@dataclass(frozen=True)
class Found:
    """A message or a name that contains the words; `excerpt` is one line around the first match.

    `role` is that of the message, or `name`.

    The match is `excerpt[start:end]`.
    """

    session_id: str
    title: str
    role: str
    created: float
    excerpt: str
    start: int
    end: int


def find_names(db: sqlite3.Connection, text: str, limit: int) -> list[Found]:
    """Return the conversations whose name contains every word of `text`, in any case."""
    words = text.split()
    where = " AND ".join(["instr(lower(name), lower(?))"] * len(words))
    rows = db.execute(
        f"""SELECT name, title, name AS content, 'name' AS role, updated AS created,
            id AS session_id FROM sessions WHERE {where or "0"} ORDER BY updated DESC LIMIT ?""",
        [*words, limit],
    ).fetchall()
    return [_found(row, words) for row in rows]


def find_messages(db: sqlite3.Connection, text: str, limit: int) -> list[Found]:
    """Return the messages that contain every word of `text`, in any case, also inside of words.

    Words that are too short for the trigram index, and all words in messages that are not in it,
    are searched with `instr`.
    """
    words = text.split()
    long = [word for word in words if len(word) >= _TRIGRAM]
    short = [word for word in words if len(word) < _TRIGRAM]
    contains = "instr(lower(content), lower(?))"
    matches = ["number IN (SELECT rowid FROM search WHERE search MATCH ?)"] if long else []
    indexed = " AND ".join([*matches, *[contains] * len(short)]) or "0"
    unfinished = " AND ".join([UNFINISHED, *[contains] * len(words)]) if words else "0"
    quoted = " ".join('"' + word.replace('"', '""') + '"' for word in long)
    rows = db.execute(
        f"""SELECT m.content, m.role, m.created, s.id AS session_id, s.name, s.title
        FROM (SELECT * FROM messages WHERE {indexed}
            UNION SELECT * FROM messages WHERE {unfinished}) m
        JOIN sessions s ON s.id = m.session
        ORDER BY s.updated DESC, m.number DESC LIMIT ?""",
        [*([quoted] if long else []), *short, *words, limit],
    ).fetchall()
    return [_found(row, words) for row in rows]


def _found(row: Any, words: list[str]) -> Found:
    content = text_of(row["content"]) or ""
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    first = re.search(pattern, content, re.IGNORECASE)
    start, end = first.span() if first else (0, 0)
    before = _one_line(
        ("…" if start > _CONTEXT else "") + content[max(0, start - _CONTEXT) : start]
    )
    word = _one_line(content[start:end])
    after = content[end : end + _CONTEXT] + ("…" if len(content) > end + _CONTEXT else "")
    return Found(
        text_of(row["session_id"]) or "",
        text_of(row["name"]) or text_of(row["title"]) or "",
        text_of(row["role"]) or "",
        time_of(row["created"]) or 0.0,
        before + word + _one_line(after),
        len(before),
        len(before) + len(word),
    )


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)

"""A growing answer is indexed for search when it ends, and is found before."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from swiftchat.chat.history import database
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore


def indexed(path: Path) -> list[int]:
    """Return the numbers of the messages that the index has; it must match the messages."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO search (search) VALUES ('integrity-check')")
        return [row[0] for row in db.execute("SELECT id FROM search_docsize ORDER BY id")]


def found(store: SessionStore, text: str) -> list[str]:
    return [one.role for one in store.search(text)]


def test_an_answer_is_indexed_once_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    with SessionStore(path, pytest.fail) as store:
        conversation = Conversation()
        conversation.add("user", "a question")
        answer = conversation.add("assistant", "", None)
        for text in ("pen", "penguins", "penguins eat fish"):
            answer.content = text
            conversation.unsaved[answer] = None
            store.save(conversation)
            assert indexed(path) == [1]
        assert found(store, "penguins fish") == ["assistant"]  # also if the program is killed now
        assert found(store, "fi") == ["assistant"] and found(store, "seal") == []
        for reason in ("interrupt", "stop", None, "stop"):
            answer.finish_reason = reason
            conversation.unsaved[answer] = None
            store.save(conversation)
            assert indexed(path) == ([1, 2] if reason else [1])
            assert found(store, "penguins fish") == ["assistant"]
        answer.content = "seals"
        conversation.unsaved[answer] = None
        store.save(conversation)
        assert found(store, "penguins") == [] and found(store, "seals") == ["assistant"]
        store.remove(conversation.id)
        assert indexed(path) == []


def test_an_older_index_loses_unfinished_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sessions.db"
    with monkeypatch.context() as patch:
        patch.setattr(database, "_MIGRATIONS", database._MIGRATIONS[:2])
        SessionStore(path, pytest.fail).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO sessions VALUES ('s', NULL, 't', NULL, '{}', 'b', 0, 0)")
        for id_, parent, role, text in (
            ("a", None, "user", "a question"),
            ("b", "a", "assistant", "killed while it wrote"),
        ):
            db.execute(
                """INSERT INTO messages (id, session, parent, role, content, params, created)
                VALUES (?, 's', ?, ?, ?, '{}', 0)""",
                (id_, parent, role, text),
            )
    assert indexed(path) == [1, 2]
    with SessionStore(path, pytest.fail) as store:
        assert indexed(path) == [1] and found(store, "killed") == ["assistant"]
        loaded = store.load("s")
        assert loaded.tip is not None
        loaded.tip.finish_reason = "interrupt"
        loaded.unsaved[loaded.tip] = None
        store.save(loaded)
        assert indexed(path) == [1, 2] and found(store, "killed") == ["assistant"]

"""Rows of the store whose values are not what they should be: the rest of them can be used."""

import contextlib
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore, list_names
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.history.transcript import as_json
from swiftchat.errors import FileSystemError

JSON_TEXTS = st.sampled_from(
    ["{", "[]", "3", '{"a": NaN}', '{"model": 5}', "[" * 100_000, "9" * 5000, '{"t": Infinity}']
)
VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=8),
    st.text(max_size=8),
    JSON_TEXTS,
)
SESSION_COLUMNS = ["name", "title", "system", "settings", "tip", "created", "updated"]
MESSAGE_COLUMNS = [
    "parent",
    "role",
    "content",
    "reasoning",
    "model",
    "params",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "created",
    "seconds",
    "tool_calls",
    "id",
]
CHANGES = st.one_of(
    st.tuples(st.just("sessions"), st.sampled_from(SESSION_COLUMNS), st.just(0), VALUES),
    st.tuples(st.just("messages"), st.sampled_from(MESSAGE_COLUMNS), st.integers(0, 3), VALUES),
)


def filled(path: Path) -> Conversation:
    """Save a conversation with a call of a tool, and return it."""
    conversation, call = Conversation(), ToolCall("look", {"at": 1})
    conversation.add("user", "the question")
    conversation.add("assistant", "", "stop").tool_calls = [call]
    conversation.add_tool_result(call, "the result")
    conversation.add("assistant", "the answer", "stop")
    with SessionStore(path, print) as store:
        store.save(conversation)
    return conversation


def change(path: Path, table: str, column: str, number: int, value: object) -> None:
    """Set a value of the row `number`, also one that is not allowed there."""
    # Bytes become texts, which may not be UTF-8.
    cast = "CAST(? AS TEXT)" if isinstance(value, bytes) and len(value) % 2 else "?"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        row = f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET {number})"
        with contextlib.suppress(sqlite3.IntegrityError):  # a missing or second value
            db.execute(f"UPDATE {table} SET {column} = {cast} WHERE rowid = {row}", (value,))


@pytest.mark.fault(45)
@settings(max_examples=60, deadline=None)
@given(changes=st.lists(CHANGES, min_size=1, max_size=4))
def test_any_values_can_be_read(changes: list[tuple[str, str, int, object]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "data", "store.db")
        conversation = filled(path)
        for one in changes:
            change(path, *one)
        warnings: list[str] = []
        with SessionStore(path, warnings.append) as store:
            loaded = store.load(conversation.id)
            assert all(m.parent is None or m.parent in loaded.tree for m in loaded.tree)
            assert len(loaded.tree) == 4 or "left out" in warnings[0]
            as_json(loaded)
            store.recent()
            store.search("the")
            store.search("answer e")
            loaded.add("user", "more")
            store.save(loaded)
            assert store.load(conversation.id).messages[-1].content == "more"
        list_names(path)


@pytest.mark.fault(45)
def test_children_of_a_damaged_message_follow_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "data" / "store.db"
    conversation = filled(path)
    change(path, "messages", "role", 1, "unknown")
    warnings: list[str] = []
    with SessionStore(path, warnings.append) as store:
        loaded = store.load(conversation.id)
    assert [one.content for one in loaded.messages] == [
        "the question",
        "the result",
        "the answer",
    ]
    assert warnings == ["damaged messages of this conversation were left out: 1"]


@pytest.mark.fault(2)
def test_a_save_is_complete_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / "store.db"
    conversation = filled(path)
    with contextlib.closing(sqlite3.connect(path)) as db:
        # FAIL keeps what the transaction has written so far.
        db.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN new.content = 'refused'"
            " BEGIN SELECT RAISE(FAIL, 'refused'); END"
        )
    conversation.system = "changed"
    conversation.add("user", "first")
    conversation.add("assistant", "refused", "stop")
    with SessionStore(path, print) as store:
        with pytest.raises(FileSystemError, match="refused"):
            store.save(conversation)
        found = store.load(conversation.id)
    assert found.system is None and [one.content for one in found.messages][-1] == "the answer"

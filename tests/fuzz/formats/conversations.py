"""Conversations: the database of the saved ones, and files to import."""

import contextlib
import json
import random
import sqlite3
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.importer import import_conversations
from swiftchat.chat.history.store import SessionStore, list_names
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.history.transcript import as_json, as_markdown, as_object
from tests.fuzz.formats import program
from tests.fuzz.mutations import HUGE, mutate_json, odd_value
from tests.fuzz.target import Difference, Target

_TIME = 1_700_000_000.0
_SETTINGS: dict[str, Any] = {
    "model": "someone/tiny",
    "template": "chatml",
    "temperature": 0.5,
    "top_k": 40,
    "seed": 7,
    "stop": ["</end>"],
    "logit_bias": ["x=1"],
    "overflow": "sliding",
}


@cache
def _conversation() -> Conversation:
    """Return a tree with a branch, reasoning, a call of a tool and its result."""
    call = ToolCall("look", {"at": 1, "deep": {"a": [1, None]}}, "callcall1")
    first = Message("user", "the question", None, "a1", _TIME)
    answer = Message(
        "assistant", "", first, "a2", _TIME, "hm", "someone/tiny", {"top_k": 3}, "stop"
    )
    answer.tool_calls = [call]
    result = Message("tool", "the result", answer, "a3", _TIME, tool_calls=[call])
    last = Message("assistant", "the answer", result, "a4", _TIME, finish_reason="stop")
    last.prompt_tokens, last.completion_tokens, last.seconds = 10, 3, 0.5
    other = Message("user", "another question", None, "a5", _TIME)
    tree = [first, answer, result, last, other]
    begin = Conversation("be brief", "c1", "name", "a title", _TIME, dict(_SETTINGS))
    return replace(begin, tree=tree, tip=last)


@cache
def _database() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data", "sessions.db")
        with SessionStore(path, print) as store:
            store.save(_conversation())
            second = Conversation("", "d2", None, "second", _TIME)
            second.tip = second.insert(Message("user", "hello there", None, "b1", _TIME))
            store.save(second)
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA journal_mode = DELETE")
            db.execute("UPDATE sessions SET updated = created")
            db.commit()
            return db.serialize()


def _mutate_database(chance: random.Random, data: bytes) -> bytes:
    """Set values of rows, also of kinds that their columns do not have."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.deserialize(data)
        db.execute("PRAGMA foreign_keys = OFF")
        for _ in range(chance.choice((1, 1, 2, 4))):
            _change_row(chance, db)
        return db.serialize()


def _change_row(chance: random.Random, db: sqlite3.Connection) -> None:
    table = chance.choice(("sessions", "messages", "messages"))
    columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
    column = chance.choice(columns)
    value = odd_value(chance)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        value = float(value)
    if isinstance(value, list | dict):
        value = json.dumps(value)
    if isinstance(value, str):
        value = value.replace(HUGE, "9" * 5000).encode("utf-8", "surrogatepass")
    cast = "?"
    if isinstance(value, bytes):
        # Bytes as a text may not be UTF-8.
        cast = chance.choice(("?", "CAST(? AS TEXT)", "CAST(? AS TEXT)"))
    if chance.random() < 0.1:
        schema = chance.choice(("DROP TABLE search", "DROP TRIGGER messages_insert"))
        statement: tuple[str, tuple[Any, ...]] = (schema, ())
    elif chance.random() < 0.1:
        statement = (f"PRAGMA user_version = {chance.choice((0, 1, 2, 3, 99))}", ())
    else:
        row = f"(SELECT rowid FROM {table} LIMIT 1 OFFSET {chance.randrange(5)})"
        statement = (f"UPDATE {table} SET {column} = {cast} WHERE rowid = {row}", (value,))
    with contextlib.suppress(sqlite3.Error):  # a missing or a second value
        db.execute(*statement)


def _load_database(data: bytes, folder: Path) -> Any:
    path = program.data_folder(folder) / "sessions.db"
    path.write_bytes(data)
    program.use_folder(folder)
    list_names(path)
    with SessionStore(path, lambda text: None) as store:
        found = [store.load(row["id"]) for row in store.recent()]
        store.search("question the")
        store.search("a")
        for conversation in found:
            _use(conversation)
            conversation.add("user", "one more")
            store.save(conversation)
    with contextlib.suppress(*program.REFUSALS):
        program.run("sessions", "list")
    program.ask("-c")


def _use(conversation: Conversation) -> None:
    """Do what commands do with a conversation."""
    conversation.template_messages()
    list(conversation.versions())
    as_markdown(conversation)
    as_json(conversation)
    conversation.branches()


def _exports() -> list[bytes]:
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    parts = [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}]
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    request = {
        "model": "x",
        "messages": [
            *plain,
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c", "content": "done"},
            {"role": "user", "content": parts},
        ],
    }
    nodes = {
        "r": {"id": "r", "message": None, "parent": None, "children": ["u"]},
        "u": {"id": "u", "parent": "r", "children": [], "message": _chatgpt("user", "hello")},
        "v": {"id": "v", "parent": "u", "children": [], "message": _chatgpt("assistant", "hi")},
    }
    chatgpt = {"title": "t", "create_time": _TIME, "mapping": nodes, "current_node": "v"}
    everything = (as_object(_conversation()), plain, request, [chatgpt])
    return [json.dumps(one).encode() for one in everything]


def _chatgpt(role: str, text: str) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [text]}
    return {"author": {"role": role}, "content": content, "create_time": _TIME, "metadata": {}}


def _load_export(data: bytes, folder: Path) -> Any:
    """Import a file; saved, loaded and exported, the conversations are the same."""
    program.use_folder(folder)
    found = import_conversations(data, "file")
    path = program.data_folder(folder) / "sessions.db"
    again = []
    with SessionStore(path, lambda text: None) as store:
        for conversation in found:
            _use(conversation)
            store.save(conversation)
            again.append(store.load(conversation.id))
    with contextlib.suppress(*program.REFUSALS):
        program.ask("-c")
    return found, again


def _compare_export(data: bytes, folder: Path, loaded: Any) -> None:
    for before, after in zip(*loaded, strict=True):
        # SQLite stores no lone surrogates; they become question marks.
        texts = {as_json(one).encode("utf-8", "replace") for one in (before, after)}
        if len(texts) > 1:
            raise Difference("the saved conversation is another one")
        again = import_conversations(texts.pop(), "file")[0]
        if len(again.tree) != len(after.tree) or again.system != after.system:
            raise Difference("the exported conversation is another one")


SESSIONS = Target("sessions", lambda: [_database()], _mutate_database, _load_database, 100)
EXPORTS = Target("exports", _exports, mutate_json, _load_export, 350, _compare_export)

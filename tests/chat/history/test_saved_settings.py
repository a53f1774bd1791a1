"""Settings of conversations that another person may have written are checked in one way."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import open_store, sessions_path
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat, chat
from tests.support import fake_engine
from tests.support.in_process import Program

__all__ = ["chat"]

WRONG: list[dict[str, Any]] = [
    {"stop": 5},
    {"stop": [1, 2]},
    {"ban": True},
    {"temperature": "hot"},
    {"temperature": [1]},
    {"num_predict": 0},
    {"overflow": "drop"},
    {"model": 5},
    {"template": ["chatml"]},
]


def stored(settings: dict[str, Any]) -> Conversation:
    """Store a conversation with these settings, as an import of an older version did."""
    conversation = Conversation()
    conversation.add("user", "q")
    conversation.add("assistant", "a")
    with open_store() as store:
        store.save(conversation)
    with sqlite3.connect(sessions_path()) as db:
        db.execute("UPDATE sessions SET settings = ?", [json.dumps(settings)])
    db.close()
    return conversation


@pytest.mark.parametrize("settings", WRONG, ids=json.dumps)
def test_they_are_not_imported(settings: dict[str, Any], tmp_path: Path) -> None:
    value = {"swiftchat": 1, "settings": settings, "messages": [{"role": "user", "content": "q"}]}
    (tmp_path / "x.json").write_text(json.dumps([value]))
    command = ["sessions", "import", str(tmp_path / "x.json")]
    done = CliRunner().invoke(cli.swiftchat, command, standalone_mode=False)
    assert done.exit_code == 0 and len(done.stdout.splitlines()) == 1
    warning = f"warning: left out: {tmp_path}/x.json: a setting of 'q': "
    assert done.stderr.startswith(warning) and done.stderr.count("\n") == 1
    with open_store() as store:
        assert store.load(store.recent(1)[0]["id"]).settings == {}


@pytest.mark.parametrize("settings", WRONG, ids=json.dumps)
def test_resume_leaves_them_out(chat: Chat, settings: dict[str, Any]) -> None:
    conversation = stored({**settings, "seed": 5, "dry_breaker": ["x"]})
    shown = chat.send(f"/resume {conversation.id}")
    assert "warning: a setting of this conversation is left out: " in shown
    assert chat.path() == ["q", "a"]
    assert chat.state.chat_model.changes == {"seed": 5, "dry_breaker": ("x",)}
    chat.send("next", "b")
    assert chat.path() == ["q", "a", "next", "b"]


@pytest.mark.parametrize(
    ("option", "settings"),
    [("-c", settings) for settings in WRONG] + [("--session", WRONG[0])],
    ids=json.dumps,
)
def test_options_leave_them_out(
    option: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)
    program.engine.answers = [{"text": "b"}]
    conversation = stored({**settings, "seed": 5})
    words = (option, conversation.id) if option == "--session" else (option,)
    done = program.run(*words, "-p", "next")
    assert done.exit_code == 0 and "is left out: " in " ".join(done.stderr.split())
    assert program.engine.params[0].seed == 5


def test_a_contradiction_leaves_the_chat_where_it_is(chat: Chat) -> None:
    chat.send("first", "A")
    conversation = stored({"seed": 5, "min_tokens": 9, "max_tokens": 3})
    with pytest.raises(UsageError, match="min_tokens"):
        chat.send(f"/resume {conversation.id}")
    assert chat.path() == ["first", "A"] and chat.state.chat_model.changes == {}

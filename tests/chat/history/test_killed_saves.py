"""Saves of processes that are killed, and of two processes at once, are whole at every moment."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.store import SessionStore, sessions_path

# Each kill is in a fork of one process, so that it does not import the program anew.
_EVERY_STATEMENT = """
import os, signal, sys
from pathlib import Path
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore

folder = Path(sys.argv[1])
NAMES = ["one", "two", "three"]

def add_turns(conversation, *texts):
    for text in texts:
        conversation.add("user", text)
        conversation.add("assistant", f"answer to {text}")

def save_and_die(path, id_, point):
    "Add three turns to a saved conversation, die before the statement POINT; exit with 0 if saved."
    store = SessionStore(path, print)
    conversation = store.load(id_)
    calls = iter(range(1000))
    def count(statement):
        if next(calls) == point:
            os.kill(os.getpid(), signal.SIGKILL)
    store._db.set_trace_callback(count)
    add_turns(conversation, *NAMES[1:])
    conversation.name = "new"
    store.save(conversation)
    os._exit(0)

killed = 0
for point in range(1000):
    path = folder / str(point) / "sessions.db"
    old = Conversation()
    old.name = "old"
    add_turns(old, NAMES[0])
    with SessionStore(path, print) as store:
        store.save(old)
    child = os.fork()
    if not child:
        save_and_die(path, old.id, point)
    _, status = os.waitpid(child, 0)
    with SessionStore(path, print) as store:
        (row,) = store.recent()
        found = store.load(row["id"])
        assert store._db.execute("PRAGMA integrity_check").fetchall()[0][0] == "ok"
        store._db.execute("INSERT INTO search (search, rank) VALUES ('integrity-check', 1)")
    texts = [message.content for message in found.messages if message.role == "user"]
    assert (found.name, texts) in (("old", NAMES[:1]), ("new", NAMES)), (point, found.name, texts)
    assert len(found.messages) == 2 * len(texts)
    if status == 0:
        assert found.name == "new"
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    killed += 1
    was_old = found.name == "old"
print(killed)
"""


@pytest.mark.fault(2)
def test_a_kill_before_any_statement_keeps_the_old_or_the_new(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_STATEMENT, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    # BEGIN, SELECT, the conversation, four messages with their index, COMMIT.
    assert int(done.stdout) >= 8


# Saves turns of a conversation, each with its question and its answer in one save.
WRITER = """
import sys
from pathlib import Path
from swiftchat.chat.history.store import SessionStore
path, session, name, count = sys.argv[1:]
with SessionStore(Path(path), print) as store:
    conversation = store.load(session)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(count)):
        conversation.add("user", f"{name} asks {number}")
        conversation.add("assistant", f"{name} is told {number}", "stop")
        store.save(conversation)
"""
# Conversations whose last message is not there: the sign of half a save.
HALF_SAVED = "SELECT count(*) FROM sessions WHERE tip NOT IN (SELECT id FROM messages)"
NUM_SAVES = 60


def path_of(message: Message | None) -> list[str]:
    texts = []
    while message is not None:
        texts.append(message.content)
        message = message.parent
    return texts[::-1]


def stored_branches() -> list[list[str]]:
    """Return the messages of each branch of the only conversation."""
    with SessionStore(sessions_path(), print) as store:
        (row,) = store.recent()
        return sorted(map(path_of, store.load(row["id"]).branches()))


@pytest.mark.fault(26)
def test_saves_of_two_processes_are_whole_at_every_moment() -> None:
    begun = Conversation()
    begun.add("user", "begin")
    begun.add("assistant", "Begun.")
    with SessionStore(sessions_path(), print) as store:
        store.save(begun)
    names = ("one", "two")
    command = [sys.executable, "-c", WRITER, str(sessions_path()), begun.id]
    pipe = subprocess.PIPE
    writers = [
        subprocess.Popen([*command, name, str(NUM_SAVES)], stdin=pipe, stdout=pipe, text=True)
        for name in names
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.close()
    with contextlib.closing(sqlite3.connect(sessions_path(), timeout=60)) as db:
        while any(writer.poll() is None for writer in writers):
            assert db.execute(HALF_SAVED).fetchone() == (0,)
    assert [writer.wait() for writer in writers] == [0, 0]
    turns = {
        name: [
            text
            for number in range(NUM_SAVES)
            for text in (f"{name} asks {number}", f"{name} is told {number}")
        ]
        for name in names
    }
    assert stored_branches() == [["begin", "Begun.", *turns[name]] for name in names]

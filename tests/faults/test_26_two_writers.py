"""Fault 26: two processes write one conversation.

Required: no message of either process is lost, each process has a branch of its own, and a reader
never sees half of a save.

Provoked by: two chats in terminals that continue the same conversation in turns, and two processes
that save into one conversation as fast as they can while a third connection reads.
"""

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable

from swiftchat.chat.history.conversation import Message
from swiftchat.chat.history.store import SessionStore, sessions_path
from tests.support.program import Program
from tests.support.terminal import Terminal

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
NUM_SAVES = 150


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


def test_two_chats_in_one_conversation_lose_no_message(
    program: Program, chat: Callable[..., Terminal]
) -> None:
    assert program.run("-p", "begin", answers=("Begun.",)).returncode == 0
    answers = [f"Answer {number}." for number in range(3)]
    terminals = {name: chat(*answers, options=("-c",)) for name in ("here", "there")}
    for number, answer in enumerate(answers):
        for name, terminal in terminals.items():
            terminal.type(f"{name} {number}\r")
            terminal.wait_for(answer, 60)
    for terminal in terminals.values():
        terminal.type("\x04")
        assert terminal.wait_end() == 0
    turns = {
        name: [text for i in range(3) for text in (f"{name} {i}", f"Answer {i}.")]
        for name in terminals
    }
    assert stored_branches() == [["begin", "Begun.", *turns[name]] for name in ("here", "there")]


def test_saves_of_two_processes_are_whole_at_every_moment(program: Program) -> None:
    assert program.run("-p", "begin", answers=("Begun.",)).returncode == 0
    with SessionStore(sessions_path(), print) as store:
        session = store.recent()[0]["id"]
    names = ("one", "two")
    command = [sys.executable, "-c", WRITER, str(sessions_path()), session]
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

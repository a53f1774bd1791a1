"""The commands that go from one conversation to another: /sessions /resume /save /export /fork."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import SHORT_ID, Conversation
from swiftchat.chat.history.listing import print_found, print_table, when
from swiftchat.chat.options.config import sampling_changes
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

_LISTED = 20
_OFFERED = 200
_LINES_OF_END = 12


def list_sessions(repl: "Repl", argument: str) -> None:
    store = repl.autosave.store
    if argument:
        for found in store.search(argument, _LISTED):
            print_found(found)
        return
    print_table(
        ("ID", "USED", "MESSAGES", "TITLE"),
        (
            (
                ("*" if row["id"] == repl.conversation.id else "") + row["id"][:SHORT_ID],
                when(row["updated"]),
                str(row["num_messages"]),
                row["name"] or row["title"],
            )
            for row in store.recent(_LISTED)
        ),
    )


def known_sessions(repl: "Repl") -> dict[str, str]:
    """The titles of the other conversations by name or id, the last used first."""
    rows = repl.autosave.store.recent(_OFFERED)
    others = [row for row in rows if row["id"] != repl.conversation.id]
    return {row["name"] or row["id"][:SHORT_ID]: row["title"] for row in others}


def resume(repl: "Repl", argument: str) -> None:
    store = repl.autosave.store
    if argument:
        session_id = store.find(argument)
    else:
        others = (row["id"] for row in store.recent(2) if row["id"] != repl.conversation.id)
        session_id = next(others, "")
        if not session_id:
            raise UsageError("there is no other conversation", "/sessions lists them")
    conversation = store.load(session_id)
    change_to(repl, conversation)
    for name, value in sampling_changes(conversation.settings).items():
        repl.speaker.set(name, value)
    model, here = conversation.settings.get("model"), repl.speaker.settings["model"]
    if model not in (None, here):
        print(sanitize(f"it was with {model}; /model {model} goes on with that"))
    show_end(repl)


def save(repl: "Repl", argument: str) -> None:
    conversation = repl.conversation
    if not conversation.tree:
        raise UsageError("there is nothing to save yet", "send a message first")
    before, conversation.name = conversation.name, argument or conversation.name
    try:
        repl.autosave.store.save(conversation)
    except SwiftchatError:
        conversation.name = before
        raise
    known = conversation.name or conversation.id[:SHORT_ID]
    print(sanitize(f"saved; swiftchat --session {known} goes on with it"))


def export(repl: "Repl", argument: str) -> None:
    from swiftchat.chat.history.transcript import as_json, as_markdown, write_new

    forms = {".md": as_markdown, ".json": as_json}
    form = next((forms[ending] for ending in forms if argument.endswith(ending)), None)
    if form is None:
        raise UsageError("/export needs a file that ends in .md or .json", "/export talk.md")
    write_new(argument, form(repl.conversation))
    print(sanitize(f"written to {argument}"))


def fork(repl: "Repl", argument: str) -> None:
    if repl.conversation.tip is None:
        raise UsageError("there is nothing to copy yet", "send a message first")
    old = repl.conversation
    copied = old.copy()
    change_to(repl, copied)
    repl.autosave.save(copied)
    print(f"this goes on in a copy, {copied.id[:SHORT_ID]}; /resume {old.id[:SHORT_ID]} goes back")


def change_to(repl: "Repl", conversation: Conversation) -> None:
    """Talk in another conversation; the one before is saved."""
    if repl.conversation.unsaved:
        repl.autosave.save(repl.conversation)
    repl.conversation = conversation
    repl.last_answer = None


def show_end(repl: "Repl") -> None:
    """Say which conversation it is, and show how far it has come.

    A question that was never answered comes back into the input line.
    """
    conversation = repl.conversation
    if conversation.tip and conversation.tip.role == "user":
        repl.draft = conversation.tip.content
        conversation.tip = conversation.tip.parent
    path = conversation.messages
    named = conversation.name or conversation.title
    print(sanitize(f"going on with: {named} ({len(path)} messages)"))
    for message in path[-2:]:
        lines = message.content.strip().splitlines()
        shown = ["…", *lines[-_LINES_OF_END:]] if len(lines) > _LINES_OF_END else lines
        text = "\n".join(shown)
        print(sanitize(f">>> {text}" if message.role == "user" else f"{text}\n"))
    if path and path[-1].interrupted:
        print("the answer was cut here; /continue goes on with it")


SESSION_COMMANDS: dict[str, tuple[str, str, Callable[["Repl", str], None]]] = {
    "/sessions": ("[WORDS]", "list the saved conversations, or search them", list_sessions),
    "/resume": ("[ID]", "go on with another conversation (no ID: the last)", resume),
    "/save": ("[NAME]", "name this conversation (all are saved as they go)", save),
    "/fork": ("", "go on in a copy of this conversation", fork),
    "/export": ("FILE", "write this conversation to FILE.md or FILE.json", export),
}

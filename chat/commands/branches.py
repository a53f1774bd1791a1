"""The commands that move in the tree of a conversation: /undo /edit /regen /branches /switch …

None of them loses anything: what is left behind stays in a branch of its own.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

_PREVIEW = 36


def undo(repl: "Repl", argument: str) -> None:
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise UsageError(f"/undo needs a number of turns, not {argument!r}")
    done = repl.conversation.undo(int(argument or 1))
    repl.autosave.save(repl.conversation)
    turns = len([m for m in repl.conversation.messages if m.role == "user"])
    print(f"took back {done} turn{'' if done == 1 else 's'}; {turns} left")


def regen(repl: "Repl", argument: str) -> None:
    if not repl.conversation.messages:
        raise UsageError("there is nothing to answer again", "send a message first")
    repl.answer_again()


def go_on(repl: "Repl", argument: str) -> None:
    tip = repl.conversation.tip
    if tip is None or tip.role != "assistant":
        raise UsageError("there is no answer to go on with", "send a message first")
    repl.go_on()


def edit(repl: "Repl", argument: str) -> None:
    """Message N of the path, from 1; without a number the last question."""
    path = repl.conversation.messages
    message = _chosen(path, argument)
    if message.role == "user":
        repl.conversation.tip = message.parent
        repl.draft = message.content
        print(_left(repl.conversation, path[-1]))
        return
    import click

    text = click.edit(message.content, extension=".md")
    if text is None or text.strip() == message.content.strip():
        print("nothing is changed")
        return
    repl.conversation.tip = message.parent
    repl.conversation.add("assistant", text.rstrip("\n"), "edit")
    repl.autosave.save(repl.conversation)
    print(_left(repl.conversation, path[-1]))


def _chosen(path: list[Message], argument: str) -> Message:
    if not path:
        raise UsageError("there is nothing to edit", "send a message first")
    if not argument:
        return next((m for m in reversed(path) if m.role == "user"), path[-1])
    number = int(argument) if argument.removeprefix("-").isdecimal() else 0
    if not number or abs(number) > len(path):
        raise UsageError(
            f"/edit needs a message from 1 to {len(path)}, not {argument!r}",
            "odd ones are usually yours; -1 is the last one",
        )
    return path[number - 1 if number > 0 else number]


def _left(conversation: Conversation, before: Message) -> str:
    leaves = conversation.branches()
    number = leaves.index(before) + 1 if before in leaves else 0
    return f"what was there stays: /switch {number} goes back" if number else "what was there stays"


def branches(repl: "Repl", argument: str) -> None:
    found = repl.conversation.branches()
    if not found:
        print("nothing has been said yet")
    path = repl.conversation.messages
    for number, leaf in enumerate(found, 1):
        theirs = _path(leaf)
        is_current = leaf is repl.conversation.tip
        shown = leaf if is_current else theirs[min(_common(path, theirs), len(theirs) - 1)]
        preview = _short(shown.content, _PREVIEW)
        if shown is not leaf:  # several branches may differ from the path in the same message
            preview += f" … {_short(leaf.content, _PREVIEW)}"
        mark = "*" if is_current else " "
        print(sanitize(f"{mark}{number:3}  {len(theirs):3} messages  {shown.role}: {preview}"))


def _short(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _path(leaf: Message) -> list[Message]:
    return Conversation(tip=leaf).messages


def _common(one: Iterable[Message], other: Iterable[Message]) -> int:
    return sum(1 for a, b in zip(one, other, strict=False) if a is b)


def switch(repl: "Repl", argument: str) -> None:
    found = repl.conversation.branches()
    number = int(argument) if argument.isdecimal() else 0
    if not 1 <= number <= len(found):
        raise UsageError(f"/switch needs a branch from 1 to {len(found)}", "/branches lists them")
    repl.conversation.tip = found[number - 1]
    repl.autosave.save(repl.conversation)
    from swiftchat.chat.commands.sessions import show_end

    show_end(repl)


BRANCH_COMMANDS: dict[str, tuple[str, str, Callable[["Repl", str], None]]] = {
    "/regen": ("", "answer the last message again (also /retry)", regen),
    "/retry": ("", "", regen),
    "/continue": ("", "go on with an answer that was cut", go_on),
    "/undo": ("[N]", "take back the last N turns", undo),
    "/edit": ("[N]", "change message N, yours or the answer; default: your last", edit),
    "/branches": ("", "list the branches of this conversation", branches),
    "/switch": ("N", "go on in branch N", switch),
}

"""Commands on the tree of messages: `/regen`, `/continue`, `/undo`, `/edit`, `/branches`, …

No message is ever lost: the path that a command leaves stays as a branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from swiftchat.chat.attachments.attachment import folded
from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.slash.command import Command, Next, always, count_of
from swiftchat.chat.slash.sessions import show_end
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.editor import edit_text
from swiftchat.chat.terminal.output import print_line, print_notice
from swiftchat.errors import UsageError

_PREVIEW = 36  # characters
_NUM_SAME = 12  # characters before the difference of two previews
_MAX_INDENTED = 8  # levels of the tree


def undo(state: ChatState, argument: str) -> Next | None:
    num_turns = count_of(argument or "1")
    if not num_turns:
        raise UsageError(f"/undo needs a number of turns, not {shown(argument)}")
    num_undone = state.conversation.undo(num_turns)
    state.save()
    num_left = len([m for m in state.conversation.messages if m.role == "user"])
    print_line(f"took back {num_undone} turn{'' if num_undone == 1 else 's'}; {num_left} left")
    return Next.HINT_UNDONE if num_undone else None


def regenerate(state: ChatState, argument: str) -> Next:
    if not state.conversation.messages:
        raise UsageError("there is no message to answer again", "send a message first")
    params = state.chat_model.params
    if params.temperature == 0 and params.beams is None:
        print_notice(
            "temperature is 0: with the same settings the answer cannot differ; "
            "/set temperature 0.7 changes that"
        )
    return Next.REGENERATE


def continue_answer(state: ChatState, argument: str) -> Next:
    tip = state.conversation.tip
    if tip is None or tip.role != "assistant":
        raise UsageError("there is no answer to continue", "send a message first")
    return Next.CONTINUE


def edit(state: ChatState, argument: str) -> None:
    """Edit message N of the path, counted from 1; by default the last user message."""
    path = state.conversation.messages
    message = _chosen_message(path, argument)
    if message.role == "tool":
        raise UsageError("the result of a tool cannot be edited", "edit your message, or an answer")
    if message.role == "user":
        state.edited, state.draft = message, message.content
        print_line(_branch_notice(state.conversation, path[-1]))
        return
    with state.keyboard.lent():
        text = edit_text(message.content)
    if text is None or text.strip() == message.content.strip():
        print_line("nothing is changed")
        return
    state.conversation.tip = message.parent
    state.conversation.add("assistant", text.rstrip("\n"), "edit")
    state.count_context()
    state.save()
    print_line(_branch_notice(state.conversation, path[-1]))


def _chosen_message(path: list[Message], argument: str) -> Message:
    if not path:
        raise UsageError("there is no message to edit", "send a message first")
    if not argument:
        return next((m for m in reversed(path) if m.role == "user"), path[-1])
    number = count_of(argument.removeprefix("-"))
    if not number or number > len(path):
        raise UsageError(
            f"/edit needs a message from 1 to {len(path)}, not {shown(argument)}",
            "odd numbers are usually your messages; -1 is the last message",
        )
    return path[-number if argument.startswith("-") else number - 1]


def _branch_notice(conversation: Conversation, old_tip: Message) -> str:
    leaves = conversation.branches()
    if old_tip not in leaves:
        return "the old messages are still saved"
    return f"the old messages are still saved; /switch {leaves.index(old_tip) + 1} goes back"


def list_branches(state: ChatState, argument: str) -> None:
    """Print the tree: a row for each way that messages go on, indented below the one it left."""
    conversation = state.conversation
    children, leaves = conversation.children(), conversation.branches()
    if not leaves:
        print_line("there are no messages yet")
    path = set(conversation.messages)
    stack = _ways(children[None], 0)
    while stack:
        way = stack.pop()
        last, num_messages = way.first, 1
        while len(children[last]) == 1:
            (last,) = children[last]
            num_messages += 1
        # A branch that ends in the middle of a way has no number of its own.
        mark = "*" if way.first in path else " "
        number = "" if children[last] else str(leaves.index(last) + 1)
        head = f"{mark}{number:>3}  {'  ' * min(way.depth, _MAX_INDENTED)}{way.place}"
        size = f"  ({num_messages} messages)" if num_messages > 1 else ""
        print_line(f"{head}{way.first.role}: {way.preview}{size}", indent=len(head))
        stack += _ways(children[last], way.depth + 1)


@dataclass(frozen=True)
class _Way:
    """A way that messages go on: its first message, after `depth` others; `place` is `2 of 3`."""

    first: Message
    depth: int
    place: str
    preview: str


def _ways(messages: Sequence[Message], depth: int) -> list[_Way]:
    """Return the ways that begin with these siblings, the last one first."""
    previews = _distinct_previews([_line_of(message) for message in messages])
    count = len(messages)
    ways = [
        _Way(message, depth, f"{number} of {count}  " if count > 1 else "", preview)
        for number, (message, preview) in enumerate(zip(messages, previews, strict=True), 1)
    ]
    return ways[::-1]


def _line_of(message: Message) -> str:
    calls = ", ".join(call.text for call in message.tool_calls if message.role == "assistant")
    return " ".join((folded(message.content) or calls).split())


def _preview(line: str) -> str:
    return line if len(line) <= _PREVIEW else f"{line[:_PREVIEW]}…"


def _distinct_previews(lines: Sequence[str]) -> list[str]:
    """Return a preview of each line; lines that begin alike are shown from where they differ."""
    alike: dict[str, set[str]] = {}
    for line in lines:
        alike.setdefault(_preview(line), set()).add(line)
    previews = []
    for line in lines:
        others = alike[_preview(line)]
        num_same = _num_common(*others) if len(others) > 1 else 0
        start = max(0, num_same - _NUM_SAME)
        previews.append(f"…{_preview(line[start:])}" if start else _preview(line))
    return previews


def _num_common(*sequences: Sequence[object]) -> int:
    """Return the number of items with which all sequences begin."""
    columns = enumerate(zip(*sequences, strict=False))
    differing = (number for number, column in columns if len(set(column)) > 1)
    return next(differing, min(map(len, sequences)))


def switch(state: ChatState, argument: str) -> None:
    leaves = state.conversation.branches()
    number = count_of(argument)
    if not number or number > len(leaves):
        raise UsageError(f"/switch needs a branch from 1 to {len(leaves)}", "/branches lists them")
    state.conversation.tip = leaves[number - 1]
    state.save()
    show_end(state)


BRANCH_COMMANDS = (
    Command("/regen", "", "answer the last message again", regenerate, aliases=("/retry",)),
    Command("/continue", "", "continue an answer that was cut off", continue_answer),
    Command("/undo", "[N]", "take back the last N turns", undo),
    Command(
        "/edit",
        "[N]",
        "change message N; default: your last one",
        edit,
        details="Your own message returns to the input line; an answer opens in $EDITOR.\n"
        "-1 is the last message. The old messages stay in a branch.",
    ),
    Command(
        "/branches",
        "",
        "show the branches of this conversation as a tree",
        list_branches,
        is_aside=always,
    ),
    Command("/switch", "N", "switch to branch N", switch),
)

"""A conversation: a tree of messages, the current path, and the part of it that fits the context.

Each turn renders the whole path again. The ids of the previous turn are reused as far as its text
is repeated, because encoding the text again could give other ids; the engine's prefix cache
recognizes blocks by their ids.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from swiftchat.chat.history.tool_call import ToolCall

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt

Role = Literal["user", "assistant", "tool"]

SHORT_ID = 8  # characters of an id in lists
# The fields of a message that are stored and exported, besides its id and its parent.
MESSAGE_FIELDS = (
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
)
_TITLE_CHARACTERS = 50
_NO_RESULT = "(the call was not made)"
_COMPLETE = ("stop", "length", "edit")  # finish reasons of answers that were not interrupted


def new_id() -> str:
    """Return a random id of sixteen hexadecimal digits."""
    return os.urandom(8).hex()


@dataclass(eq=False)
class Message:
    """A message and its predecessor; `parent` None starts a conversation.

    `model` to `seconds` are set for answers. `params` are the sampling parameters;
    `finish_reason` is `stop`, `length`, `loop` (it repeated itself), `interrupt`, `error` or `edit`
    (written by the user), and None while the answer is generated (and afterwards if the program was
    killed). `tool_calls` are the calls at the end of an answer; a message of the role `tool` has
    the result of its only call.
    """

    role: Role
    content: str
    parent: "Message | None" = None
    id: str = field(default_factory=new_id)
    created: float = field(default_factory=time.time)
    reasoning: str | None = None
    model: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    seconds: float | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)

    @property
    def is_tool_round(self) -> bool:
        """Whether this is a part of a turn before its last answer: calls of tools, or a result."""
        return self.role == "tool" or bool(self.tool_calls)

    @property
    def interrupted(self) -> bool:
        """Whether this is an incomplete answer."""
        return self.role == "assistant" and self.finish_reason not in _COMPLETE


@dataclass(frozen=True)
class EncodedTurn:
    """The prompt of a turn and the ids of its answer, which grow while it is generated."""

    prompt: "Prompt"
    answer_ids: list[int]


@dataclass(eq=False)
class Conversation:
    """A system prompt and a tree of messages; `tip` is the end of the current path.

    Moving the tip never changes the tree, so no message is lost. `tree` lists parents before their
    children. `settings` are options, named as in the configuration file. `is_one_shot` says
    that all its questions came with -p or from a pipe. `unsaved` is an ordered set of the messages
    that the store lacks or has in an older version. `last_turn` has the ids that the next prompt
    reuses.
    """

    system: str | None = None
    id: str = field(default_factory=new_id)
    name: str | None = None
    title: str = ""
    created: float = field(default_factory=time.time)
    settings: dict[str, Any] = field(default_factory=dict)
    is_one_shot: bool = False
    tree: list[Message] = field(default_factory=list)
    tip: Message | None = None
    unsaved: dict[Message, None] = field(default_factory=dict)
    last_turn: EncodedTurn | None = None

    @property
    def messages(self) -> list[Message]:
        """The messages from the first to the tip."""
        return self.path_to(self.tip)

    @staticmethod
    def path_to(message: Message | None) -> list[Message]:
        """Return the messages from the first to this one."""
        path: list[Message] = []
        while message is not None:
            path.append(message)
            message = message.parent
        return path[::-1]

    @property
    def is_taken_back(self) -> bool:
        """Whether there are messages, but none on the current path."""
        return self.tip is None and bool(self.tree)

    @property
    def context_used(self) -> int | None:
        """The tokens of the last turn's prompt and answer; None if they were not counted."""
        path = self.messages
        for message in reversed(path):
            if message.prompt_tokens is not None:
                return message.prompt_tokens + (message.completion_tokens or 0)
        return None if path else 0

    def add(
        self,
        role: Role,
        content: str,
        finish_reason: str | None = "stop",
        reasoning: str | None = None,
    ) -> Message:
        """Append a message to the tip and make it the tip.

        An unanswered user message with the same text is reused.
        """
        if role == "user" and (unanswered := self._unanswered(content)):
            self.tip = unanswered
            return unanswered
        reason = finish_reason if role == "assistant" else None
        message = self.insert(Message(role, content, self.tip, finish_reason=reason))
        message.reasoning, self.tip = reasoning, message
        self.title = self.title or (title_of(content) if role == "user" else "")
        return message

    def add_tool_result(self, call: ToolCall, text: str) -> Message:
        """Append the result of a call to the tip and make it the tip."""
        self.tip = self.insert(Message("tool", text, self.tip, tool_calls=[call]))
        return self.tip

    def forget_unanswered(self) -> None:
        """Do not save a new question at the tip: its answer failed before the first text."""
        if self.tip is not None and self.tip.role == "user":
            self.unsaved.pop(self.tip, None)

    def insert(self, message: Message) -> Message:
        """Insert a message into the tree without moving the tip."""
        self.tree.append(message)
        self.unsaved[message] = None
        return message

    def undo(self, num_turns: int = 1) -> int:
        """Move the tip before the last turns (question and answer); return their number."""
        path = self.messages
        starts = [i for i, message in enumerate(path) if message.role == "user"]
        if path and not starts:
            self.tip = None
        if starts:
            self.tip = path[starts[-min(num_turns, len(starts))]].parent
        return min(num_turns, len(starts))

    def pop_answer(self) -> bool:
        """Move the tip before the last answer and the calls of tools that led to it.

        Return False if the tip is not an answer.
        """
        if self.tip is None or self.tip.role == "user":
            return False
        self.tip = self.tip.parent
        while self.tip is not None and self.tip.is_tool_round:
            self.tip = self.tip.parent
        return True

    def children(self) -> defaultdict[Message | None, list[Message]]:
        """Return the messages that follow each message, and None: the first ones."""
        children: defaultdict[Message | None, list[Message]] = defaultdict(list)
        for message in self.tree:
            children[message.parent].append(message)
        return children

    def branches(self) -> list[Message]:
        """Return the last messages of all paths, depth first: siblings are adjacent."""
        children = self.children()
        leaves: list[Message] = []
        stack = children[None][::-1]
        while stack:
            message = stack.pop()
            if message in children:
                stack += children[message][::-1]
            else:
                leaves.append(message)
        return leaves

    def copy(self) -> "Conversation":
        """Return a new conversation with copies of the messages of the current path."""
        copied = Conversation(self.system, title=self.title, settings=dict(self.settings))
        for message in self.messages:
            copied.tip = copied.insert(replace(message, parent=copied.tip, id=new_id()))
        copied.last_turn = self.last_turn
        return copied

    def _unanswered(self, content: str) -> Message | None:
        """Return the child of the tip that is this user message without an answer."""
        parents = {message.parent for message in self.tree}
        for message in self.tree:
            is_child = message.parent is self.tip and message.role == "user"
            if is_child and message.content == content and message not in parents:
                return message
        return None

    def template_messages(self, messages: Sequence[Message] | None = None) -> list[dict[str, Any]]:
        """Return the messages as input of a chat template, the system prompt first.

        Consecutive messages of one role (from imported conversations) are joined, because many
        templates reject them. Reasoning is included; the template decides on its use. Every call of
        a tool is followed by a result, because templates expect that.
        """
        found: list[dict[str, Any]] = []
        if self.system:
            found.append({"role": "system", "content": self.system})
        unanswered: dict[str, ToolCall] = {}
        for message in self.messages if messages is None else messages:
            if message.role == "tool":
                found += (_tool_result(call, message.content) for call in message.tool_calls)
                for call in message.tool_calls:
                    unanswered.pop(call.id, None)
                continue
            found += (_tool_result(call, _NO_RESULT) for call in unanswered.values())
            unanswered = {call.id: call for call in message.tool_calls}
            last = found[-1] if found else {}
            if last.get("role") == "tool" and message.role == "user":  # the program was killed
                found.append({"role": "assistant", "content": ""})
            if last.get("role") == message.role and "tool_calls" not in last:
                last["content"] += f"\n\n{message.content}"
            else:
                found.append({"role": message.role, "content": message.content})
            if message.reasoning is not None:
                # The tokenizer adds the other names that templates read.
                found[-1]["reasoning"] = message.reasoning
            if message.tool_calls:
                found[-1]["tool_calls"] = [_function_call(call) for call in message.tool_calls]
        found += (_tool_result(call, _NO_RESULT) for call in unanswered.values())
        return found

    def versions(self) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield `template_messages` of all messages, then without the oldest turns.

        Each is preceded by the number of messages that it leaves out. The system prompt and the
        last turn always stay.
        """
        messages = self.messages
        yield 0, self.template_messages(messages)
        for later in later_turns([message.role for message in messages]):
            yield later, self.template_messages(messages[later:])


def later_turns(roles: Sequence[str]) -> Iterator[int]:
    """Yield the indices of the user messages that begin a turn, but the first message."""
    return (i for i, role in enumerate(roles) if i and role == "user")


def _function_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool_result(call: ToolCall, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}


def title_of(text: str) -> str:
    """Return a title for a conversation: the first line with a word, shortened.

    A line of quotes or of other signs only is a title if there is no better one.
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    line = next((line for line in lines if any(map(str.isalnum, line))), "".join(lines[:1]))
    if len(line) <= _TITLE_CHARACTERS:
        return line
    whole_words = line[: _TITLE_CHARACTERS + 1].rpartition(" ")[0]
    return (whole_words or line[:_TITLE_CHARACTERS]) + "…"

"""A conversation: a tree of messages, the current path, and the part of it that fits the context.

Each turn renders the whole path again. The ids of the previous turn are reused as far as its text
is repeated, because encoding the text again could give other ids; the engine's prefix cache
recognizes blocks by their ids.
"""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from swiftchat.errors import ContextOverflow

if TYPE_CHECKING:
    from swiftchat.tokenizer import Prompt

Ids = TypeVar("Ids", bound=Sized)
Role = Literal["user", "assistant"]

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
)
_TITLE_CHARACTERS = 50
_COMPLETE = ("stop", "length", "edit")  # finish reasons of answers that were not interrupted


def new_id() -> str:
    """Return a random id of sixteen hexadecimal digits."""
    return os.urandom(8).hex()


@dataclass(eq=False)
class Message:
    """A message and its predecessor; `parent` None starts a conversation.

    `model` to `seconds` are set for answers. `params` are the sampling parameters;
    `finish_reason` is `stop`, `length`, `interrupt`, `error` or `edit` (written by the user), and
    None while the answer is generated (and afterwards if the program was killed).
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
    children. `settings` are options, named as in the configuration file. `unsaved` is an ordered
    set of the messages that the store lacks or has in an older version. `last_turn` has the ids
    that the next prompt reuses.
    """

    system: str | None = None
    id: str = field(default_factory=new_id)
    name: str | None = None
    title: str = ""
    created: float = field(default_factory=time.time)
    settings: dict[str, Any] = field(default_factory=dict)
    tree: list[Message] = field(default_factory=list)
    tip: Message | None = None
    unsaved: dict[Message, None] = field(default_factory=dict)
    last_turn: EncodedTurn | None = None

    @property
    def messages(self) -> list[Message]:
        """The messages from the first to the tip."""
        path: list[Message] = []
        message = self.tip
        while message is not None:
            path.append(message)
            message = message.parent
        return path[::-1]

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
        """Move the tip before the last answer; return False if the tip is not an answer."""
        if self.tip is None or self.tip.role != "assistant":
            return False
        self.tip = self.tip.parent
        return True

    def branches(self) -> list[Message]:
        """Return the last messages of all paths, depth first: siblings are adjacent."""
        children: dict[Message | None, list[Message]] = defaultdict(list)
        for message in self.tree:
            children[message.parent].append(message)
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

    def template_messages(self, messages: Sequence[Message] | None = None) -> list[dict[str, str]]:
        """Return the messages as input of a chat template, the system prompt first.

        Consecutive messages of one role (from imported conversations) are joined, because many
        templates reject them. Reasoning is included; the template decides on its use.
        """
        found = [] if not self.system else [{"role": "system", "content": self.system}]
        for message in self.messages if messages is None else messages:
            if found and found[-1]["role"] == message.role:
                found[-1]["content"] += f"\n\n{message.content}"
            else:
                found.append({"role": message.role, "content": message.content})
            if message.reasoning is not None:
                found[-1]["reasoning_content"] = message.reasoning
        return found

    def fit_context(
        self,
        encode: Callable[[list[dict[str, str]]], Ids],
        ctx_size_tokens: int,
        overflow: str,
        room_tokens: int = 1,
    ) -> tuple[Ids, int]:
        """Return the prompt, and the number of the oldest messages that were left out of it.

        With overflow "error" no message is left out. With "drop-oldest" whole turns are left out
        until `room_tokens` are free for the answer, but never the system prompt and the last
        message. Raises `ContextOverflow` if the prompt does not fit with one token of an answer.
        """
        messages = self.messages
        ids, start = encode(self.template_messages(messages)), 0
        if overflow == "drop-oldest":
            shorter = ids
            for later in _later_turns(messages):
                if len(shorter) + room_tokens <= ctx_size_tokens:
                    break
                shorter, start = encode(self.template_messages(messages[later:])), later
            ids = shorter if len(shorter) < ctx_size_tokens else ids
        if len(ids) < ctx_size_tokens:
            return ids, start
        raise ContextOverflow(
            f"the conversation has {len(ids)} tokens, the context {ctx_size_tokens}, "
            "and an answer needs at least one",
            "shorten it, start a new one, use a larger --ctx-size, or --overflow drop-oldest",
        )


def _later_turns(messages: Sequence[Message]) -> Iterator[int]:
    return (i for i, message in enumerate(messages) if i and message.role == "user")


def title_of(text: str) -> str:
    """Return a title for a conversation: the first line that is not blank, shortened."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= _TITLE_CHARACTERS:
        return line
    whole_words = line[: _TITLE_CHARACTERS + 1].rpartition(" ")[0]
    return (whole_words or line[:_TITLE_CHARACTERS]) + "…"

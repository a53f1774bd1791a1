"""A conversation: its messages as a tree, and what of the chosen path fits the context.

Each turn is rendered anew. As far as that gives the text of the last turn and its answer, it has
their ids, which need not be those that encoding would choose; the engine recognizes by content
how far it has them already.
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
_TITLE_CHARACTERS = 50
_WHOLE = ("stop", "length", "edit")


def new_id() -> str:
    """Sixteen hexadecimal digits that nobody else has."""
    return os.urandom(8).hex()


@dataclass(eq=False)
class Message:
    """What was said, and after which message; `parent` None begins a conversation.

    The rest is known of answers: the model, the sampling parameters, and the `finish_reason`:
    `stop`, `length`, `interrupt`, `error` or `edit` (written by the user). That is None while the
    answer goes on, and stays so if the program is killed meanwhile.
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
        """Whether this is an answer that did not come to its end."""
        return self.role == "assistant" and self.finish_reason not in _WHOLE


@dataclass(frozen=True)
class EncodedTurn:
    """The prompt of a turn and the ids of its answer, which grow while it is generated."""

    prompt: "Prompt"
    answer_ids: list[int]


@dataclass(eq=False)
class Conversation:
    """An optional system prompt and a tree of messages, of which `tip` ends the path in use.

    Whatever moves the tip leaves the tree as it is: nothing that was said is lost. `tree` has
    parents before what follows them. `settings` are options by their names in the configuration
    file. `unsaved` holds, in order, the messages that the store does not have as they are.
    `last_turn` has the ids that the next prompt reuses.
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
    last_turn: "EncodedTurn | None" = None

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
        """Go on from the tip with a message, which is the tip then.

        What was asked here before and never answered is asked again, not twice.
        """
        if role == "user" and (asked := self._unanswered(content)):
            self.tip = asked
            return asked
        reason = finish_reason if role == "assistant" else None
        message = self.put(Message(role, content, self.tip, finish_reason=reason))
        message.reasoning, self.tip = reasoning, message
        self.title = self.title or (title_of(content) if role == "user" else "")
        return message

    def put(self, message: Message) -> Message:
        """Put a message into the tree, wherever the tip is."""
        self.tree.append(message)
        self.unsaved[message] = None
        return message

    def undo(self, num_turns: int = 1) -> int:
        """Go back before the last turns (question and answer); return how many there were."""
        path = self.messages
        starts = [i for i, message in enumerate(path) if message.role == "user"]
        if path and not starts:
            self.tip = None
        if starts:
            self.tip = path[starts[-min(num_turns, len(starts))]].parent
        return min(num_turns, len(starts))

    def pop_answer(self) -> bool:
        """Go back before the last answer so that it can be given anew; False if there is none."""
        if self.tip is None or self.tip.role != "assistant":
            return False
        self.tip = self.tip.parent
        return True

    def branches(self) -> list[Message]:
        """The last messages of all paths, depth first, so that new ones come beside their own."""
        after: dict[Message | None, list[Message]] = defaultdict(list)
        for message in self.tree:
            after[message.parent].append(message)
        leaves: list[Message] = []
        stack = after[None][::-1]
        while stack:
            message = stack.pop()
            if message in after:
                stack += after[message][::-1]
            else:
                leaves.append(message)
        return leaves

    def copy(self) -> "Conversation":
        """A conversation of its own that begins with this one's path."""
        copied = Conversation(self.system, title=self.title, settings=dict(self.settings))
        for message in self.messages:
            copied.tip = copied.put(replace(message, parent=copied.tip, id=new_id()))
        copied.last_turn = self.last_turn
        return copied

    def _unanswered(self, content: str) -> Message | None:
        followed = {message.parent for message in self.tree}
        for message in self.tree:
            here = message.parent is self.tip and message.role == "user"
            if here and message.content == content and message not in followed:
                return message
        return None

    def rendered(self, messages: Sequence[Message] | None = None) -> list[dict[str, str]]:
        """The messages as a chat template wants them, the system prompt first.

        Neighbors of one role, as other programs write them, are one message: many templates
        refuse two questions in a row. Reasoning goes with its answer; whether the model sees it
        again is the template's choice.
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

    def fit(
        self,
        encode: Callable[[list[dict[str, str]]], Ids],
        ctx_size_tokens: int,
        overflow: str,
        room_tokens: int = 1,
    ) -> tuple[Ids, int]:
        """The prompt's ids, and how many of the oldest messages were left out of them.

        With overflow "error" nothing is left out: `ContextOverflow` says how long it is.
        With "drop-oldest" whole turns go until there is `room_tokens` for the answer, or as much
        as can be had; never the system prompt and never the last message.
        """
        messages = self.messages
        ids, start = encode(self.rendered(messages)), 0
        if overflow == "drop-oldest":
            shorter = ids
            for later in _later_turns(messages):
                if len(shorter) + room_tokens <= ctx_size_tokens:
                    break
                shorter, start = encode(self.rendered(messages[later:])), later
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
    """A title of a conversation's first words: its first line that says something, cut."""
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    if len(line) <= _TITLE_CHARACTERS:
        return line
    whole_words = line[: _TITLE_CHARACTERS + 1].rpartition(" ")[0]
    return (whole_words or line[:_TITLE_CHARACTERS]) + "…"

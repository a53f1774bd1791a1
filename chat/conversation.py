"""A conversation: its messages, and what of them fits the context.

Each turn is rendered anew. As far as that gives the text of the last turn and its answer, it has
their ids, which need not be those that encoding would choose; the engine recognises by content
how far it has them already.
"""

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeVar

from swiftchat.errors import ContextOverflow

if TYPE_CHECKING:
    from swiftchat.chat.answer import Answer

Ids = TypeVar("Ids", bound=Sized)
Role = Literal["user", "assistant"]


@dataclass(frozen=True)
class Message:
    """`interrupted` marks an answer that the user stopped; `reasoning` came before it."""

    role: Role
    content: str
    interrupted: bool = False
    reasoning: str | None = None


@dataclass
class Conversation:
    """An optional system prompt and the messages in order; `last_answer` has ids to keep."""

    system: str | None = None
    messages: list[Message] = field(default_factory=list)
    last_answer: "Answer | None" = None

    def add(self, role: Role, content: str, interrupted: bool = False,
            reasoning: str | None = None) -> None:  # fmt: skip
        self.messages.append(Message(role, content, interrupted, reasoning))

    def undo(self, num_turns: int = 1) -> int:
        """Remove the last turns (a user message with its answer); return how many there were."""
        for done in range(num_turns):
            while self.messages and self.messages[-1].role == "assistant":
                self.messages.pop()
            if not self.messages:
                return done
            self.messages.pop()
        return num_turns

    def pop_answer(self) -> bool:
        """Remove the last answer so that it can be given anew; False if there is none."""
        if not self.messages or self.messages[-1].role != "assistant":
            return False
        self.messages.pop()
        return True

    def rendered(self, messages: Sequence[Message] | None = None) -> list[dict[str, str]]:
        """The messages as a chat template wants them, the system prompt first.

        Reasoning goes with its answer; whether the model sees it again is the template's choice.
        """
        chosen = self.messages if messages is None else messages
        system = [] if not self.system else [{"role": "system", "content": self.system}]
        return [*system, *map(_rendered, chosen)]

    def fit(self, encode: Callable[[list[dict[str, str]]], Ids], ctx_size_tokens: int,
            overflow: str, room_tokens: int = 1) -> tuple[Ids, int]:  # fmt: skip
        """The prompt's ids, and how many of the oldest messages were left out of them.

        With overflow "error" nothing is left out: `ContextOverflow` says how long it is.
        With "drop-oldest" whole turns go until there is `room_tokens` for the answer, or as much
        as can be had; never the system prompt and never the last message.
        """
        ids, start = encode(self.rendered()), 0
        if overflow == "drop-oldest":
            shorter = ids
            for later in self._later_turns():
                if len(shorter) + room_tokens <= ctx_size_tokens:
                    break
                shorter, start = encode(self.rendered(self.messages[later:])), later
            ids = shorter if len(shorter) < ctx_size_tokens else ids
        if len(ids) < ctx_size_tokens:
            return ids, start
        raise ContextOverflow(
            f"the conversation has {len(ids)} tokens, the context {ctx_size_tokens}, "
            "and an answer needs at least one",
            "shorten it, start a new one, use a larger --ctx-size, or --overflow drop-oldest",
        )

    def _later_turns(self) -> Iterator[int]:
        return (i for i, m in enumerate(self.messages) if i and m.role == "user")


def _rendered(message: Message) -> dict[str, str]:
    fields = {"role": message.role, "content": message.content}
    return (
        fields if message.reasoning is None else {**fields, "reasoning_content": message.reasoning}
    )

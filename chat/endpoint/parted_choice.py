"""An answer as a list of parts: reasoning, texts, and calls of tools, which follow each other."""

import json
import uuid
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from swiftchat.chat.endpoint.choice import Choice
from swiftchat.chat.history.tool_call import arguments_of
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.tools.call_stream import CallDelta, CallText


@dataclass
class Part:
    """A part of an answer and its text so far, which are the arguments of a call.

    `number` counts the parts. `name` and `call_id` are those of a call.
    """

    kind: Literal["reasoning", "text", "call"]
    name: str = ""
    call_id: str = ""
    number: int = 0
    text: str = ""
    is_complete: bool = True
    id: str = field(default_factory=lambda: uuid.uuid4().hex)


class PartedChoice(Choice):
    """A choice whose stream begins, extends and ends one part after the other.

    White space between parts belongs to none.
    """

    def __init__(self, index: int, answer: Answer) -> None:
        super().__init__(index, answer)
        self.parts: list[Part] = []
        self._open: Part | None = None
        self._blank = ""  # behind the open part

    @abstractmethod
    def begun(self, part: Part) -> Iterator[dict[str, Any]]:
        """Yield the objects of a new part, which is empty."""

    @abstractmethod
    def extended(self, part: Part, piece: str) -> Iterator[dict[str, Any]]:
        """Yield the objects of a piece of text, which the part has already."""

    @abstractmethod
    def ended(self, part: Part) -> Iterator[dict[str, Any]]:
        """Yield the objects of a part that has ended."""

    @abstractmethod
    def finished(self) -> Iterator[dict[str, Any]]:
        """Yield the objects behind all parts of an answer that has ended."""

    def push(self, piece: str) -> Iterator[dict[str, Any]]:
        if isinstance(piece, CallDelta):
            if piece.name:
                yield from self._begin(Part("call", piece.name, piece.id))
            yield from self._extend(piece.arguments)
        elif isinstance(piece, ReasoningText):
            yield from self._push_text("reasoning", piece)
        elif not isinstance(piece, CallText):  # which the client has in pieces of a call
            yield from self._push_text("text", piece)

    def end(self) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            if self._open.kind == "text":
                yield from self._extend(self._blank)
            is_cut = self.finish_reason == "length"
            self._open.is_complete = not is_cut and self._is_call(self._open)
            yield from self.ended(self._open)
        yield from self.finished()

    def read_whole(self) -> None:
        """Make `parts` those of the answer, which has ended and was not streamed."""
        answer, calls = self.answer, self.answer.tool_calls
        pieces = [
            ReasoningText(answer.reasoning or ""),
            answer.text.strip() if calls else answer.text,
            *(
                CallDelta(
                    number, call.id, call.name, json.dumps(call.arguments, ensure_ascii=False)
                )
                for number, call in enumerate(calls)
            ),
        ]
        for events in (*map(self.push, pieces), self.end()):
            for _ in events:
                pass

    def _push_text(
        self, kind: Literal["reasoning", "text"], piece: str
    ) -> Iterator[dict[str, Any]]:
        is_new = self._open is None or self._open.kind != kind
        text = self._blank + piece
        if is_new and (self.parts or kind == "reasoning"):
            text = text.lstrip()
        kept = text.rstrip()
        if kept and is_new:
            yield from self._begin(Part(kind))
        yield from self._extend(kept)
        self._blank = text[len(kept) :]

    def _begin(self, part: Part) -> Iterator[dict[str, Any]]:
        if self._open is not None:
            self._open.is_complete = self._is_call(self._open)
            yield from self.ended(self._open)
        part.number, self._blank, self._open = len(self.parts), "", part
        self.parts.append(part)
        yield from self.begun(part)

    def _extend(self, piece: str) -> Iterator[dict[str, Any]]:
        if piece and self._open is not None:
            self._open.text += piece
            yield from self.extended(self._open, piece)

    def _is_call(self, part: Part) -> bool:
        """Return whether the arguments of a call are an object; true for other parts."""
        return part.kind != "call" or arguments_of(part.text) is not None

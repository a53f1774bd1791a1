"""The answers to one request as JSON objects, in the format of one kind of completion."""

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from swiftchat.chat.model.answer import Answer


class Choice(ABC):
    """One answer of a response: a view that its pieces stream into, and the whole.

    `begin`, `push` and `end` return the next object of the stream, None without one.
    """

    def __init__(self, index: int, answer: Answer) -> None:
        self.index, self.answer = index, answer

    @abstractmethod
    def begin(self) -> dict[str, Any] | None: ...

    @abstractmethod
    def push(self, piece: str) -> dict[str, Any] | None: ...

    @abstractmethod
    def end(self) -> dict[str, Any]:
        """Return the object with the reason of the end and what is left to report."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the object of the answer, which has ended and was not streamed."""

    @property
    def finish_reason(self) -> str | None:
        """The reason in OpenAI's words: an answer that repeated itself was cut off."""
        reason = self.answer.finish_reason
        return "length" if reason == "loop" else reason


@dataclass
class Response:
    """The objects around the choices of one response.

    `kind` names that of whole answers, `chunk_kind` those of a stream; `id` begins with `prefix`.
    """

    model: str
    prefix: str
    kind: str
    chunk_kind: str
    make_choice: Callable[[int, Answer], Choice]
    includes_usage: bool
    _common: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        id_ = f"{self.prefix}-{uuid.uuid4().hex}"
        self._common = {"id": id_, "created": int(time.time()), "model": self.model}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the object of all answers, which have ended."""
        whole = [choice.whole() for choice in choices]
        numbers = usage([choice.answer for choice in choices])
        return {**self._common, "object": self.kind, "choices": whole, "usage": numbers}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Return an object of a stream."""
        chunk = {**self._common, "object": self.chunk_kind, "choices": [choice]}
        return {**chunk, "usage": None} if self.includes_usage else chunk

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        """Return the object with the numbers of tokens, None if it was not requested."""
        if not self.includes_usage:
            return None
        numbers = usage([choice.answer for choice in choices])
        return {**self._common, "object": self.chunk_kind, "choices": [], "usage": numbers}


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the numbers of tokens of answers that have ended; each prompt counts once."""
    of_prompts = list({id(answer.prompt): answer for answer in answers}.values())
    num_prompt = sum(answer.num_prompt_tokens for answer in of_prompts)
    num_tokens = sum(answer.num_tokens for answer in answers)
    num_reasoning = sum(answer.num_reasoning_tokens for answer in answers)
    cached = sum(answer.result.cached_tokens for answer in of_prompts if answer.result)
    dropped = sum(answer.num_left_out for answer in of_prompts)
    dropped += sum(answer.num_slid for answer in answers)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_tokens,
        "total_tokens": num_prompt + num_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": num_reasoning},
        **({"dropped_tokens": dropped} if dropped else {}),
    }

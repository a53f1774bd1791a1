"""The answers to one request as JSON objects and events, and those of OpenAI's completions."""

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.model.answer import Answer


class Choice(ABC):
    """One answer of a response: a view that its pieces stream into, and the whole.

    `begin`, `push` and `end` yield the next objects of the stream.
    """

    def __init__(self, index: int, answer: Answer) -> None:
        self.index, self.answer = index, answer

    @abstractmethod
    def begin(self) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def push(self, piece: str) -> Iterator[dict[str, Any]]: ...

    @abstractmethod
    def end(self) -> Iterator[dict[str, Any]]:
        """Yield the object with the reason of the end, and what is left to report."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the object of the answer, which has ended and was not streamed."""

    @property
    def finish_reason(self) -> str | None:
        """The reason in OpenAI's words: an answer that repeated itself was cut off."""
        reason = self.answer.finish_reason
        return "length" if reason == "loop" else reason


class Response(ABC):
    """What is around the choices of one response, as a whole or as a stream of events.

    `heartbeat` fills a silence of the stream, and `done` ends it, also after an error.
    """

    heartbeat = b": the answer is being computed\n\n"
    done = b""

    @abstractmethod
    def choice(self, index: int, answer: Answer) -> Choice:
        """Return the view of one of the answers."""

    @abstractmethod
    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Return the object of all answers, which have ended."""

    @abstractmethod
    def event(self, value: dict[str, Any]) -> bytes:
        """Return the event of an object that a choice has yielded."""

    def last_events(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        """Yield what follows the answers, which have ended."""
        yield from ()

    @abstractmethod
    def failed(self, error: ApiError) -> bytes:
        """Return the event that tells an error after the first one."""


@dataclass
class CompletionResponse(Response):
    """The response of a completion, with or without a chat.

    `kind` names the object of whole answers, `chunk_kind` those of a stream; `id` begins with
    `prefix`.
    """

    model: str
    prefix: str
    kind: str
    chunk_kind: str
    make_choice: Callable[[int, Answer], Choice]
    includes_usage: bool
    _common: dict[str, Any] = field(init=False)

    done = b"data: [DONE]\n\n"

    def __post_init__(self) -> None:
        id_ = f"{self.prefix}-{uuid.uuid4().hex}"
        self._common = {"id": id_, "created": int(time.time()), "model": self.model}

    def choice(self, index: int, answer: Answer) -> Choice:
        return self.make_choice(index, answer)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        whole = [choice.whole() for choice in choices]
        numbers = usage([choice.answer for choice in choices])
        return {**self._common, "object": self.kind, "choices": whole, "usage": numbers}

    def event(self, value: dict[str, Any]) -> bytes:
        chunk = {**self._common, "object": self.chunk_kind, "choices": [value]}
        return event_bytes({**chunk, "usage": None} if self.includes_usage else chunk)

    def last_events(self, choices: Sequence[Choice]) -> Iterator[bytes]:
        """Yield the numbers of tokens, if they were requested."""
        if self.includes_usage:
            numbers = usage([choice.answer for choice in choices])
            chunk = {**self._common, "object": self.chunk_kind, "choices": [], "usage": numbers}
            yield event_bytes(chunk)

    def failed(self, error: ApiError) -> bytes:
        return event_bytes(error.body)


def event_bytes(value: dict[str, Any], name: str | None = None) -> bytes:
    """Return a server-sent event with a JSON object, and its name if it has one."""
    data = f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
    return (data if name is None else f"event: {name}\n{data}").encode()


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

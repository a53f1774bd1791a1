"""`POST /v1/messages`: an answer as content blocks, whole or as a stream of events."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from swiftchat.chat.endpoint.choice import Choice, Response, event_bytes, usage
from swiftchat.chat.endpoint.errors import ApiError
from swiftchat.chat.endpoint.message_request import MessageRequest
from swiftchat.chat.endpoint.parted_choice import Part, PartedChoice
from swiftchat.chat.model.answer import Answer

# Nothing checks it, but some clients send only signed blocks back.
_SIGNATURE = "swiftchat"
_DELTAS = {
    "reasoning": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}


class MessageResponse(Response):
    """The response of `/v1/messages`."""

    heartbeat = event_bytes({"type": "ping"}, "ping")

    def __init__(self, model: str, request: MessageRequest) -> None:
        self._model, self._omits_thinking = model, request.omits_thinking
        self._id = f"msg_{uuid.uuid4().hex}"

    def choice(self, index: int, answer: Answer) -> Choice:
        return MessageChoice(index, answer, self, self._omits_thinking)

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return choices[0].whole()

    def event(self, value: dict[str, Any]) -> bytes:
        return event_bytes(value, value["type"])

    def failed(self, error: ApiError) -> bytes:
        return self.event(error.anthropic_body)

    @property
    def object(self) -> dict[str, Any]:
        """The object of a message that has no content yet, without its usage."""
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }


class MessageChoice(PartedChoice):
    """The answer of a message; each part is a content block."""

    def __init__(
        self, index: int, answer: Answer, response: MessageResponse, omits_thinking: bool
    ) -> None:
        super().__init__(index, answer)
        self._response, self._omits_thinking = response, omits_thinking

    def begin(self) -> Iterator[dict[str, Any]]:
        numbers = {"input_tokens": self.answer.num_prompt_tokens, "output_tokens": 0}
        yield {"type": "message_start", "message": {**self._response.object, "usage": numbers}}

    def begun(self, part: Part) -> Iterator[dict[str, Any]]:
        yield {
            "type": "content_block_start",
            "index": part.number,
            "content_block": self._block(Part(part.kind, part.name, part.call_id)),
        }

    def extended(self, part: Part, piece: str) -> Iterator[dict[str, Any]]:
        kind, name = _DELTAS[part.kind]
        if part.kind != "reasoning" or not self._omits_thinking:
            yield _delta(part, {"type": kind, name: piece})

    def ended(self, part: Part) -> Iterator[dict[str, Any]]:
        if part.kind == "reasoning":
            yield _delta(part, {"type": "signature_delta", "signature": _SIGNATURE})
        yield {"type": "content_block_stop", "index": part.number}

    def finished(self) -> Iterator[dict[str, Any]]:
        yield {"type": "message_delta", "delta": self._stop, "usage": _usage(self.answer)}
        yield {"type": "message_stop"}

    def whole(self) -> dict[str, Any]:
        self.read_whole()
        content = list(map(self._block, self.parts))
        usage = _usage(self.answer)
        return {**self._response.object, "content": content, **self._stop, "usage": usage}

    @property
    def _stop(self) -> dict[str, Any]:
        """Why the answer ended, and the stop sequence that did it."""
        reason, answer = "end_turn", self.answer
        if answer.tool_calls:
            reason = "tool_use"
        elif self.finish_reason != "stop":
            is_full = answer.limit == "context"
            reason = "model_context_window_exceeded" if is_full else "max_tokens"
        elif answer.stop_text is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": answer.stop_text}

    def _block(self, part: Part) -> dict[str, Any]:
        if part.kind == "call":
            value = json.loads(part.text or "{}")
            return {"type": "tool_use", "id": part.call_id, "name": part.name, "input": value}
        if part.kind == "reasoning":
            text = "" if self._omits_thinking else part.text
            signature = _SIGNATURE if part.text else ""
            return {"type": "thinking", "thinking": text, "signature": signature}
        return {"type": "text", "text": part.text}


def _delta(part: Part, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": part.number, "delta": delta}


def _usage(answer: Answer) -> dict[str, Any]:
    """Return the numbers of tokens; here those of the prompt do not count cached ones."""
    numbers = usage([answer])
    cached = numbers["prompt_tokens_details"]["cached_tokens"]
    thinking = numbers["completion_tokens_details"]["reasoning_tokens"]
    return {
        "input_tokens": numbers["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": numbers["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": thinking},
    }

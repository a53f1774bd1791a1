"""`POST /v1/completions`: continue a text without a chat template."""

import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from swiftchat.chat.endpoint.answers import Piece
from swiftchat.chat.endpoint.generation import Format, usage
from swiftchat.chat.endpoint.logprobs import completion_logprobs
from swiftchat.chat.endpoint.requests import CompletionRequest
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel


def completion_answer(chat_model: ChatModel, body: CompletionRequest) -> Callable[[], Answer]:
    """Check a request and return the function that starts its answer."""
    params = replace(chat_model.params_with(body.sampling()), logit_bias=body.bias())
    stops = body.stops()
    text_or_ids = body.text_or_ids
    return lambda: chat_model.complete(text_or_ids, params, stops)


class CompletionFormat(Format):
    """The objects of a completion."""

    def __init__(self, chat_model: ChatModel, body: CompletionRequest) -> None:
        self._chat_model, self._body = chat_model, body
        self._common = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": chat_model.name,
        }
        self._num_reported = 0  # tokens with their logprobs
        self._offset = 0  # in the text, of the next of them

    def response(self, answer: Answer) -> dict[str, Any]:
        logprobs = self._new_logprobs(answer, answer.num_tokens)
        choice = self._choice(answer.text, logprobs, answer.finish_reason)
        return {**self._common, "choices": [choice], "usage": usage(answer)}

    def first_chunk(self) -> None:
        return None

    def chunk(self, answer: Answer, piece: Piece) -> dict[str, Any]:
        return self._chunk(piece.text, self._new_logprobs(answer, piece.num_tokens), None)

    def last_chunk(self, answer: Answer) -> dict[str, Any]:
        logprobs = self._new_logprobs(answer, answer.num_tokens)
        return self._chunk("", logprobs, answer.finish_reason)

    def usage_chunk(self, answer: Answer) -> dict[str, Any] | None:
        if not self._body.includes_usage:
            return None
        return {**self._common, "choices": [], "usage": usage(answer)}

    def _chunk(
        self, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        chunk = {**self._common, "choices": [self._choice(text, logprobs, finish_reason)]}
        return {**chunk, "usage": None} if self._body.includes_usage else chunk

    def _choice(
        self, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _new_logprobs(self, answer: Answer, num_tokens: int) -> dict[str, Any] | None:
        start, self._num_reported = self._num_reported, num_tokens
        tokenizer, offset = self._chat_model.tokenizer, self._offset
        found = completion_logprobs(answer, tokenizer, start, num_tokens, offset)
        if found is not None:
            self._offset += sum(map(len, found["tokens"]))
        return found

"""`POST /v1/completions`: continue a text without a chat template."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from swiftchat.chat.endpoint.answers import Piece
from swiftchat.chat.endpoint.generation import Choice, Format, finish_reason, usage
from swiftchat.chat.endpoint.logprobs import completion_logprobs
from swiftchat.chat.endpoint.requests import CompletionRequest
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel


def completion_answers(chat_model: ChatModel, body: CompletionRequest) -> Callable[[], AnswerGroup]:
    """Check a request and return the function that starts its answers."""
    params = replace(chat_model.params_with(body.sampling()), logit_bias=body.bias())
    stops = body.stops()
    text_or_ids = body.text_or_ids
    return lambda: AnswerGroup(
        lambda params: chat_model.complete(text_or_ids, params, stops), params, body.num_answers
    )


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

    def response(self, choices: Sequence[Choice]) -> dict[str, Any]:
        whole = [self._whole(choice) for choice in choices]
        return {**self._common, "choices": whole, "usage": usage(choices)}

    def first_chunk(self, choice: Choice) -> None:
        return None

    def chunk(self, choice: Choice, piece: Piece) -> dict[str, Any]:
        logprobs = self._new_logprobs(choice, piece.num_tokens)
        return self._chunk(_object(choice, piece.text, logprobs, None))

    def last_chunk(self, choice: Choice) -> dict[str, Any]:
        answer = choice.answer
        logprobs = self._new_logprobs(choice, answer.num_tokens)
        return self._chunk(_object(choice, "", logprobs, finish_reason(answer)))

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any] | None:
        if not self._body.includes_usage:
            return None
        return {**self._common, "choices": [], "usage": usage(choices)}

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk = {**self._common, "choices": [choice]}
        return {**chunk, "usage": None} if self._body.includes_usage else chunk

    def _whole(self, choice: Choice) -> dict[str, Any]:
        answer = choice.answer
        logprobs = self._new_logprobs(choice, answer.num_tokens)
        return _object(choice, answer.text, logprobs, finish_reason(answer))

    def _new_logprobs(self, choice: Choice, num_tokens: int) -> dict[str, Any] | None:
        start, choice.num_reported = choice.num_reported, num_tokens
        tokenizer, offset = self._chat_model.tokenizer, choice.num_chars
        found = completion_logprobs(choice.answer, tokenizer, start, num_tokens, offset)
        if found is not None:
            choice.num_chars += sum(map(len, found["tokens"]))
        return found


def _object(
    choice: Choice, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }

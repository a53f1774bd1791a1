"""`POST /v1/completions`: continue a text without a chat template."""

from collections.abc import Callable, Iterator
from typing import Any

from swiftchat.chat.endpoint.choice import Choice, CompletionResponse
from swiftchat.chat.endpoint.logprobs import CompletionLogprobs
from swiftchat.chat.endpoint.requests import CompletionRequest
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.tokenizer import Tokenizer


def completion_answers(chat_model: ChatModel, body: CompletionRequest) -> Callable[[], AnswerGroup]:
    """Check a request and return the function that starts its answers."""
    sampling = chat_model.params_with(body.sampling())
    params = body.applied(sampling, chat_model.model.config.vocab_size)
    stops = body.stops()
    text_or_ids = body.text_or_ids
    return lambda: AnswerGroup(
        lambda params: chat_model.complete(text_or_ids, params, stops), params, body.num_answers
    )


def completion_response(chat_model: ChatModel, body: CompletionRequest) -> CompletionResponse:
    """Return the response of a completion."""
    return CompletionResponse(
        *(chat_model.name, "cmpl", "text_completion", "text_completion"),
        lambda index, answer: CompletionChoice(index, answer, chat_model.tokenizer),
        body.includes_usage,
    )


class CompletionChoice(Choice):
    """One of the answers of a completion."""

    def __init__(self, index: int, answer: Answer, tokenizer: Tokenizer) -> None:
        super().__init__(index, answer)
        self._logprobs = CompletionLogprobs(answer, tokenizer)

    def begin(self) -> Iterator[dict[str, Any]]:
        yield from ()

    def push(self, piece: str) -> Iterator[dict[str, Any]]:
        if piece:
            yield self._object(piece, None)

    def end(self) -> Iterator[dict[str, Any]]:
        yield self._object("", self.finish_reason)

    def whole(self) -> dict[str, Any]:
        return self._object(self.answer.text, self.finish_reason)

    def _object(self, text: str, finish_reason: str | None) -> dict[str, Any]:
        return {
            "index": self.index,
            "text": text,
            "logprobs": self._logprobs.next(),
            "finish_reason": finish_reason,
        }

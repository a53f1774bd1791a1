"""`--overflow` in batches and in the HTTP API, with a tiny model whose context is 256 tokens."""

from collections.abc import Iterator
from typing import Any

import pytest

from swiftchat.chat.endpoint.chat_completions import chat_answers
from swiftchat.chat.endpoint.choice import usage
from swiftchat.chat.endpoint.completions import completion_answers
from swiftchat.chat.endpoint.requests import ChatCompletionRequest, CompletionRequest
from swiftchat.chat.model.answer_group import AnswerGroup
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.engine_start import start_engine
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.subcommands.batch.answers import answer_lines
from swiftchat.chat.subcommands.batch.lines import Line
from swiftchat.errors import ContextOverflow
from tests.support.remote_engine import chat_model_folder

LONG = [
    {"role": "user", "content": "x" * 120},
    {"role": "assistant", "content": "y" * 120},
    {"role": "user", "content": "z"},
]


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatModel]:
    folder = chat_model_folder(tmp_path_factory.mktemp("model"))
    config = ChatConfig(
        device="cpu", dtype="float32", threads=1, min_tokens=300, max_tokens=300, seed=1
    )
    with ChatModel(folder, config, start_engine) as found:
        yield found


def batch(chat_model: ChatModel, *lines: str) -> list[dict[str, Any]]:
    found = answer_lines(chat_model, iter(map(Line, range(4), lines)), None, 4)
    return [record for _, record in sorted(found, key=lambda one: one[0].number)]


def test_lines_of_a_batch(chat_model: ChatModel) -> None:
    long = str(LONG).replace("'", '"')
    ended, slid, refused, shortened = batch(
        chat_model,
        '"Hello"',
        '{"prompt": "Hello", "overflow": "sliding", "overflow_keep": 9}',
        f'{{"messages": {long}}}',
        f'{{"messages": {long}, "overflow": "drop-oldest", "max_tokens": 4, "min_tokens": 4}}',
    )
    assert ended["usage"]["dropped_tokens"] == 0 and ended["finish_reason"] == "length"
    assert ended["usage"]["completion_tokens"] < 256
    assert slid["usage"]["completion_tokens"] == 300
    assert slid["usage"]["dropped_tokens"] == (256 - 9 + 1) // 2
    assert refused["error"]["exit_code"] == 5 and "the context 256" in refused["error"]["message"]
    assert shortened["usage"]["completion_tokens"] == 4
    assert shortened["usage"]["dropped_tokens"] > 200


def usage_of(answers: AnswerGroup) -> dict[str, Any]:
    (answer,) = answers
    list(answer)
    return usage([answer])


def test_requests_of_the_http_api(chat_model: ChatModel) -> None:
    def answered(**fields: Any) -> dict[str, Any]:
        body = ChatCompletionRequest.model_validate({"model": "m", "messages": LONG, **fields})
        return usage_of(chat_answers(chat_model, body)())

    with pytest.raises(ContextOverflow):
        answered()
    assert answered(overflow="drop-oldest", max_tokens=300)["dropped_tokens"] > 200
    slid = answered(messages=LONG[2:], overflow="sliding")
    assert (slid["completion_tokens"], slid["dropped_tokens"] > 100) == (300, True)
    assert "dropped_tokens" not in answered(messages=LONG[2:])
    fields = {"model": "m", "prompt": "z", "overflow": "sliding", "overflow_keep": 0}
    answers = completion_answers(chat_model, CompletionRequest.model_validate(fields))()
    assert usage_of(answers)["dropped_tokens"] == 128

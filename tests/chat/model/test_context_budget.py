"""What is left out of a prompt, and what a sliding context keeps of it."""

from typing import Any

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.context_budget import fit_context, fit_prompt, message_versions
from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import ContextOverflow
from swiftchat.tokenizer.prompt import Prompt, PromptSpan

SLIDING = SamplingParams(overflow="sliding")


def encode(messages: Any) -> bytes:
    return b"".join(message["content"].encode() for message in messages)


def conversation(*texts: str) -> Conversation:
    found = Conversation("S")
    for i, text in enumerate(texts):
        found.add("assistant" if i % 2 else "user", text)
    return found


@pytest.mark.fault(18)
def test_a_full_context_is_an_error() -> None:
    one = conversation("x" * 9)
    fitted = fit_context(one.versions(), encode, 11, "error")
    assert (fitted.prompt, fitted.num_messages, fitted.num_tokens) == (b"S" + b"x" * 9, 0, 0)
    for size in (10, 9):
        for overflow in ("error", "drop-oldest", "sliding"):  # there is nothing older to leave out
            with pytest.raises(ContextOverflow, match="10 tokens"):
                fit_context(one.versions(), encode, size, overflow)
    with pytest.raises(ContextOverflow, match="11 tokens"):
        fit_context(conversation("aaa", "AAA", "bbbb").versions(), encode, 11, "error")


@pytest.mark.parametrize("overflow", ["drop-oldest", "sliding"])
def test_whole_turns_are_left_out_but_not_the_system_prompt(overflow: str) -> None:
    one = conversation("aaaa", "AAAA", "bbbb", "BBBB", "cccc", "CCCC", "d")
    for versions in (one.versions(), message_versions(one.template_messages())):
        fitted = fit_context(versions, encode, 12, overflow)
        assert (fitted.prompt, fitted.num_messages, fitted.num_tokens) == (b"SccccCCCCd", 4, 16)
    fitted = fit_context(one.versions(), encode, 12, overflow, room_tokens=3)
    assert fitted.prompt == b"Sd"
    assert fit_context(one.versions(), encode, 100, overflow).num_messages == 0


def templated(messages: Any) -> Prompt:
    text = "".join(f"<{one['role']}>{one['content']}" for one in messages)
    return Prompt((PromptSpan(text, tuple(text.encode()), False),))


@pytest.mark.parametrize(
    ("system", "question", "context", "kept"),
    [
        ("Be brief.", "1 plus a?", 200, "<system>Be brief.<user>"),
        ("Be brief.", "a", 200, "<system>Be brief.<user>"),
        ("", "hello", 200, "<user>"),
        ("long " * 30, "hello", 200, ("<system>" + "long " * 30)[:100]),
    ],
)
def test_a_sliding_context_keeps_the_system_prompt(
    system: str, question: str, context: int, kept: str
) -> None:
    one = Conversation(system)
    one.add("user", question)
    _, params = fit_prompt(one.versions(), templated, SLIDING, context)
    assert params == SamplingParams(overflow="sliding", overflow_keep=len(kept))
    chosen = SamplingParams(overflow="sliding", overflow_keep=3)
    assert fit_prompt(one.versions(), templated, chosen, context)[1] == chosen
    ending = SamplingParams(overflow="drop-oldest")
    assert fit_prompt(one.versions(), templated, ending, context)[1] == ending


def test_without_a_template_attention_sinks_stay() -> None:
    one = Conversation()
    one.add("user", "hello")

    def plain(messages: Any) -> Prompt:
        ids = tuple(encode(messages))
        return Prompt((PromptSpan("", ids, False),))

    assert fit_prompt(one.versions(), plain, SLIDING, 100)[1].overflow_keep == 4

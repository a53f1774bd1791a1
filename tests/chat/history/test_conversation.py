"""Turns and the context of a conversation."""

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.errors import ContextOverflow


def test_undo_moves_by_whole_turns() -> None:
    conversation = Conversation()
    for i in range(3):
        conversation.add("user", f"q{i}")
        conversation.add("assistant", f"a{i}")
    assert conversation.undo() == 1
    assert [m.content for m in conversation.messages] == ["q0", "a0", "q1", "a1"]
    assert conversation.undo(5) == 2
    assert conversation.undo() == 0


def encode(messages: list[dict[str, str]]) -> list[int]:
    return list(b"".join(m["content"].encode() for m in messages))


def test_a_full_context_is_an_error() -> None:
    conversation = Conversation("S")
    conversation.add("user", "x" * 9)
    assert conversation.fit_context(encode, 11, "error") == (list(b"S" + b"x" * 9), 0)
    for size in (10, 9):
        with pytest.raises(ContextOverflow, match="10 tokens"):
            conversation.fit_context(encode, size, "error")
        with pytest.raises(ContextOverflow):  # nothing older to leave out
            conversation.fit_context(encode, size, "drop-oldest")


def test_drop_oldest_drops_whole_turns_but_not_the_system_prompt() -> None:
    conversation = Conversation("S")
    for text in ("aaaa", "bbbb", "cccc"):
        conversation.add("user", text)
        conversation.add("assistant", text.upper())
    conversation.add("user", "d")
    ids, num_dropped = conversation.fit_context(encode, 12, "drop-oldest")
    assert (bytes(ids), num_dropped) == (b"SccccCCCCd", 4)

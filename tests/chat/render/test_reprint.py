"""Reprinted conversations look as they did live, within a bound."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.history.conversation import Conversation, Message
from swiftchat.chat.history.tool_call import ToolCall
from swiftchat.chat.model.reasoning import ReasoningText
from swiftchat.chat.render.markdown_view import MarkdownView
from swiftchat.chat.render.reprint import conversation_rows, end_rows, last_turns
from swiftchat.chat.render.style import Style

ANSWER = """# Rivers

The **Nile** and the *Amazon*, by [length](http://x.y):

1. one
2. two `code`

| river | km |
|---|---|
| Nile | 6650 |

```python
def f():
    return "a long line that is wrapped" + 1
```
"""
STYLES = [
    Style("markdown", is_colored=True, is_live=True),
    Style("markdown", is_live=True),
    Style("accessible"),
]


def live_rows(style: Style, message: Message, columns: int) -> list[str]:
    """Return what a view writes for an answer that arrives at once, without redrawing."""
    written: list[str] = []
    size, clock = (lambda: (columns, 24)), (lambda: float("-inf"))
    view = MarkdownView(style, None, message.model or "", written.append, size, clock)
    if message.reasoning:
        view.push(ReasoningText(message.reasoning))
    view.push(message.content)
    view.close("⏹ stopped" if message.interrupted else "")
    return [row for row in "".join(written).split("\n")[:-1] if row != "Thinking…"]


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("columns", [20, 80])
def test_an_answer_is_reprinted_as_it_was_shown(style: Style, columns: int) -> None:
    for message in (
        Message("assistant", ANSWER, model="smol", finish_reason="stop"),
        Message("assistant", ANSWER, model="smol", finish_reason="interrupt"),
        Message("assistant", ANSWER, model="smol", finish_reason="stop", reasoning="Hm."),
    ):
        assert conversation_rows(style, [message], columns) == [
            *live_rows(style, message, columns),
            "",
        ]


def conversation(*texts: str) -> list[Message]:
    talk = Conversation()
    for number, text in enumerate(texts):
        talk.add("assistant" if number % 2 else "user", text)
    return talk.messages


def test_questions_are_reprinted_behind_the_prompt() -> None:
    messages = conversation("one\ntwo two two two", "A")
    assert conversation_rows(STYLES[1], messages, 12) == [
        ">>> one",
        "... two two",
        "    two two",
        "",
        "A",
        "",
    ]
    assert conversation_rows(STYLES[2], messages[:1], 80) == ["You >>> one", "... two two two two"]
    assert (
        conversation_rows(STYLES[0], messages[:1], 80)[1] == "\x1b[1;36m... two two two two\x1b[0m"
    )
    assert conversation_rows(Style("raw"), conversation("q", "**A**\nB"), 80) == [
        ">>> q",
        "",
        "**A**",
        "B",
        "",
    ]


@pytest.mark.fault(3)
def test_control_characters_are_sanitized() -> None:
    messages = conversation("q\x1b[2J", "a\x1b]0;x\x07 `\x1b` &#27;\n\n```\n\x9b2J\n```")
    messages[1].model = "m\x1b[2J"
    for style in (*STYLES[1:], Style("raw")):
        text = re.sub("\x1b\\[[0-9;]*m", "", "".join(conversation_rows(style, messages, 80)))
        assert not [c for c in text if ord(c) < 32 or 0x7F <= ord(c) < 0xA0]


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(10, 40))
def test_the_end_is_bounded_and_complete_if_it_fits(lengths: list[int], max_rows: int) -> None:
    texts = ["\n\n".join(f"row {n} {i}" for i in range(count)) for n, count in enumerate(lengths)]
    messages = conversation(*texts)
    everything = conversation_rows(STYLES[1], messages, 80)
    rows, is_cut = end_rows(STYLES[1], messages, 80, max_rows)
    assert len(rows) <= max_rows and is_cut == (len(everything) > max_rows)
    assert rows[-1:] in (everything[-1:], ["…"]) and (is_cut or rows == everything)
    if is_cut and "…" not in rows:  # whole turns
        assert any(
            rows == conversation_rows(STYLES[1], last_turns(messages, n), 80)
            for n in range(1, len(lengths) + 1)
        )


def test_a_long_last_turn_shows_its_question_and_its_end() -> None:
    messages = conversation("Count.", "\n\n".join(map(str, range(100))))
    rows, is_cut = end_rows(STYLES[1], messages, 80, 12)
    assert is_cut and len(rows) == 12
    assert rows[:3] == [">>> Count.", "", "…"] and rows[-2:] == ["99", ""]


def test_the_last_turns() -> None:
    messages = conversation("a", "A", "b", "B", "c")
    assert [m.content for m in last_turns(messages, 2)] == ["b", "B", "c"]
    assert last_turns(messages, 9) == messages


def talk_with_a_call(call: ToolCall, result: str) -> list[Message]:
    talk = Conversation()
    talk.add("user", "q")
    talk.add("assistant", "").tool_calls = [call]
    talk.add_tool_result(call, result)
    talk.add("assistant", "A")
    return talk.messages


def test_a_short_result_stands_behind_its_call() -> None:
    messages = talk_with_a_call(ToolCall("add", {"a": 2, "b, c": "x"}), "5")
    call = 'add(a=2, "b, c"="x")'
    assert conversation_rows(STYLES[1], messages, 80)[2:4] == [f"● {call} → 5", ""]
    assert conversation_rows(STYLES[0], messages, 80)[2] == f"\x1b[2m● {call} → 5\x1b[0m"
    assert f"calls {call} result: 5" in conversation_rows(STYLES[2], messages, 80)
    assert conversation_rows(STYLES[1], messages, 25)[2:5] == [f"● {call}", "  → 5", ""]


def test_long_calls_and_results_are_folded() -> None:
    call = ToolCall("write", {"text": "0123456789" * 9 + "\x9b"})
    messages = talk_with_a_call(call, "\n".join(["\x9b2J", "あ" * 20, *map(str, range(9))]))
    rows = conversation_rows(STYLES[1], messages, 20)
    assert rows[2:6] == [
        '● write(text="012345',
        "67890123456789012345",
        "67890123456789012345",
        "  …",
    ]
    assert rows[6].startswith("  → ") and "\x9b" not in "".join(rows)
    assert rows[7] == f"    {'あ' * 7}…"
    assert rows[8:14] == ["    0", "    1", "    2", "    3", "    … 5 more lines", ""]
    assert rows[14:] == ["A", ""]

"""Reasoning is split from the answer, stored with it, and passed to the template."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.reasoning import (
    FORMATS,
    ReasoningFormat,
    ReasoningSplitter,
    ReasoningText,
    find_reasoning_format,
    opens_reasoning,
)
from swiftchat.chat.model.template_variables import thinking_levels, thinking_variables
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.tools.call_splitter import ToolCallSplitter
from swiftchat.chat.tools.formats import find_tool_format
from swiftchat.errors import UsageError
from swiftchat.tokenizer.prompt import Prompt, PromptSpan
from tests.support import fake_engine

BY_SIGNATURE = {one.signature: one for one in FORMATS}
THINK, HARMONY = BY_SIGNATURE["</think>"], BY_SIGNATURE["<|channel|>"]
GEMMA, APERTUS = BY_SIGNATURE["<|channel>"], BY_SIGNATURE["<|inner_suffix|>"]
KIMI = BY_SIGNATURE["'<|open|>'"]
SOLAR, APRIEL = BY_SIGNATURE["<|begin|>assistant<|think|>"], BY_SIGNATURE["[BEGIN FINAL RESPONSE]"]
SHOWS_REASONING = fake_engine.TEMPLATE.replace(
    "m['content']",
    "('<think>' + m['reasoning_content'] + '</think>' if m['reasoning_content'] else '') "
    "+ m['content']",
)
SWITCHED = SHOWS_REASONING.replace(
    "assistant\n' }}{% endif %}",
    "assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
)


def split(splitter: ReasoningSplitter, *pieces: str) -> tuple[str, str]:
    found = [part for piece in pieces for part in splitter.push(piece)] + list(splitter.flush())
    thoughts = "".join(piece for piece in found if isinstance(piece, ReasoningText))
    return thoughts, "".join(piece for piece in found if not isinstance(piece, ReasoningText))


@pytest.mark.parametrize(
    ("markers", "prompt_end", "text", "thought", "answer"),
    [
        (THINK, "", "<think>\nhm\n</think>\n\nfour", "hm\n", "four"),
        (THINK, "<think>\n", "hm</think>\n\nfour", "hm", "four"),
        (THINK, "</think>\n\n", "four", "", "four"),
        (THINK, "", "  four", "", "  four"),
        (THINK, "", "say <think>x</think>", "", "say <think>x</think>"),
        (THINK, "", "<think>cut off </thi", "cut off </thi", ""),
        (THINK, "", "<thin ice", "", "<thin ice"),
        (THINK, "", "<think></think>", "", ""),
        (None, "", "<think>x</think>y", "", "<think>x</think>y"),
        (
            HARMONY,
            "",
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final"
            "<|message|>four",
            "hm",
            "four",
        ),
        (HARMONY, "", "<|channel|>final<|message|>four", "", "four"),
        (GEMMA, "", "<|channel>thought\nhm<channel|>four", "hm", "four"),
        (GEMMA, "<|channel>thought\n<channel|>", "four", "", "four"),
        (GEMMA, "", "<|channel>thought\n<channel|>four", "", "four"),
        (APERTUS, "", "<|inner_prefix|>hm<|inner_suffix|>four", "hm", "four"),
        (SOLAR, "", "<|think|>hm<|end|><|begin|>assistant<|content|>four<|end|>", "hm", "four"),
        (SOLAR, "", "<|content|>four", "", "four"),
        (
            KIMI,
            "<|open|>think<|sep|>",
            "hm<|close|>think<|sep|><|open|>response<|sep|>four<|close|>response<|sep|>",
            "hm",
            "four",
        ),
        (KIMI, "<|open|>response<|sep|>", "four<|close|>response<|sep|>", "", "four"),
        (APRIEL, "Here are my reasoning steps:\n", "hm[BEGIN FINAL RESPONSE]four", "hm", "four"),
        (
            APRIEL,
            "",
            "Here are my reasoning steps:\nhm[BEGIN FINAL RESPONSE]\nfour\n[END FINAL RESPONSE]\n",
            "hm",
            "four\n",
        ),
        (APRIEL, "[BEGIN FINAL RESPONSE]", "four [END]\n", "", "four [END]\n"),
    ],
)
def test_reasoning_is_split_from_the_answer(
    markers: ReasoningFormat | None, prompt_end: str, text: str, thought: str, answer: str
) -> None:
    prompt = Prompt((PromptSpan(prompt_end, (1,), False),))
    is_thinking = markers is not None and opens_reasoning(prompt, markers)
    splitter = ReasoningSplitter(markers, is_thinking=is_thinking)
    assert split(splitter, text) in [
        (thought, answer),
        (f"\n{thought}", answer),
    ]
    by_character = split(ReasoningSplitter(markers, is_thinking=is_thinking), *text)
    assert (by_character[0].strip("\n"), by_character[1]) == (thought.strip("\n"), answer)


@example(["<think>", "a", "</think>", "<think>", "\n", "a"])
@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think", ">", "\n", "a", "</"])))
def test_the_split_does_not_depend_on_the_chunks(pieces: list[str]) -> None:
    text = "".join(pieces)
    one, many = split(ReasoningSplitter(THINK), text), split(ReasoningSplitter(THINK), *text)
    assert (one[0].strip("\n"), one[1]) == (many[0].strip("\n"), many[1])


def test_the_format_is_found_in_the_template_or_the_vocabulary() -> None:
    assert find_reasoning_format(SHOWS_REASONING, []) is THINK
    assert find_reasoning_format(fake_engine.TEMPLATE, []) is None
    assert find_reasoning_format("{{ '<|start|>assistant<|channel|>' }}", []) is HARMONY
    assert (
        find_reasoning_format("<|user|>{{ x }}<|end|>", ["<|end|>"]) is None
    )  # Phi-3's end of turn
    assert find_reasoning_format("", ["[THINK]", "[/THINK]"]) is BY_SIGNATURE["[/THINK]"]


# Writes the reasoning of an answer between two texts.
WRITES = (
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}"
    "BEGIN{{ m.reasoning_content }}END{% endif %}{{ m.content }}<|end|>{% endfor %}"
)


@pytest.mark.parametrize(
    ("begin", "end", "is_found"),
    [
        ("<muse>", "</muse>", True),
        ("<muse:1>\n", "\n</muse:1>\n\n", True),
        ("[MUSE]", "[/MUSE]", True),
        ("◁muse▷", "◁/muse▷", True),
        ("<｜muse｜>", "<｜mused｜>", True),
        ("{{ '<m%s>' | format(1 + 1) }}", "{{ '</m{}>'.format(1 + 1) }}", True),
        ("", "", False),
        ("", "<|end|><|assistant|>", False),
        ("Reasoning: ", "Answer: ", False),
    ],
)
def test_markers_are_derived_from_what_the_template_writes(
    begin: str, end: str, is_found: bool
) -> None:
    source = WRITES.replace("BEGIN", begin).replace("END", end)
    found = find_reasoning_format(source, [])
    assert (found is not None) == is_found
    if found is not None and "{" not in begin:
        assert (found.opens, found.close) == ((begin.strip(),), end.strip())
    if found is not None:
        text = f"{found.opens[0]}hm{found.close}four"
        assert split(ReasoningSplitter(found), text) == ("hm", "four")


@pytest.mark.parametrize("field", ["reasoning", "thinking"])
def test_markers_are_derived_from_other_fields_and_with_calls(field: str) -> None:
    source = WRITES.replace("reasoning_content", field).replace("BEGIN", "<muse>")
    source = source.replace("END", "</muse>")
    found = find_reasoning_format(source, [])
    assert found is not None and found.opens == ("<muse>",)
    with_calls = source.replace("{% if m.", "{% if m.tool_calls and m.")
    found = find_reasoning_format(with_calls, [])
    assert found is not None and found.close == "</muse>"


@pytest.mark.parametrize("source", ["{{ reasoning_content", "{{ raise_exception('thinking') }}"])
def test_no_markers_are_derived_from_a_template_that_fails(source: str) -> None:
    assert find_reasoning_format(source, []) is None


class Talk:
    def __init__(self, folder: Path, template: str, **config: object) -> None:
        fake_engine.make_folder(folder, template)
        self.engine = fake_engine.FakeEngine([], ctx_size_tokens=4096)
        self.chat_model = ChatModel(folder, ChatConfig(**config), self.engine.start)  # type: ignore[arg-type]
        self.conversation = Conversation()

    def turn(self, answer: str) -> tuple[str | None, str]:
        self.engine.answers.append({"text": answer})
        self.conversation.add("user", "hi")
        made = self.chat_model.answer(self.conversation, lambda n: None)
        list(made)
        self.conversation.add("assistant", made.text, reasoning=made.reasoning)
        return made.reasoning, made.text


def test_the_template_decides_about_earlier_reasoning(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "shows", SHOWS_REASONING)
    assert talk.turn("<think>\nhm\n</think>\n\nfour") == ("hm", "four")
    talk.turn("five")
    assert "<think>hm</think>four<|im_end|>" in talk.engine.prompt_text()
    talk = Talk(tmp_path / "drops", fake_engine.TEMPLATE + "{# </think> #}")
    talk.turn("<think>hm</think>four")
    talk.turn("five")
    assert "hm" not in talk.engine.prompt_text() and "four<|im_end|>" in talk.engine.prompt_text()


def test_reasoning_tokens_are_counted_and_raw_keeps_the_markers(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "model", SHOWS_REASONING)
    talk.engine.answers.append({"text": "<think>hm</think>four"})
    talk.conversation.add("user", "hi")
    answer = talk.chat_model.answer(talk.conversation, lambda n: None)
    list(answer)
    assert 9 <= answer.num_reasoning_tokens <= 17 and answer.num_tokens == 21
    assert 0 < answer.reasoning_s < 5
    raw = Talk(tmp_path / "raw", SHOWS_REASONING, raw=True)
    assert raw.turn("<think>hm</think>four") == (None, "<think>hm</think>four")


def test_the_thinking_switch_reaches_the_template(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "off", SWITCHED, think="off")
    assert talk.chat_model.prompts.thinking_levels == ["on", "off"]
    assert talk.turn("four") == (None, "four")
    assert talk.engine.prompt_text().endswith("<think>\n\n</think>\n\n")
    talk.chat_model.prompts.think = "auto"
    talk.turn("five")
    assert talk.engine.prompt_text().endswith("assistant\n")
    assert not Talk(tmp_path / "none", SHOWS_REASONING).chat_model.prompts.thinking_levels


def test_arguments_of_the_template_come_before_the_level(tmp_path: Path) -> None:
    shows = "{{ [enable_thinking, extra | default(0)] }}"
    talk = Talk(tmp_path, shows, think="on", template_arg=('extra={"a": [1, null]}',))
    talk.turn("four")
    assert talk.engine.prompt_text() == "[True, {'a': [1, None]}]"
    arguments = ("enable_thinking=false", "extra=<|im_end|>")
    talk = Talk(tmp_path, shows, think="on", template_arg=arguments)
    talk.turn("four")
    assert talk.engine.prompt_text() == "[False, '<|im_end|>']"
    assert fake_engine.END_ID not in talk.engine.prompts[-1]


EFFORTS = SHOWS_REASONING.replace(
    "assistant\n' }}{% endif %}",
    "assistant\n' }}{{ '(' + (reasoning_effort or 'medium') + ')' }}{% endif %}",
)


def test_levels_of_thinking_reach_the_template(tmp_path: Path) -> None:
    talk = Talk(tmp_path / "efforts", EFFORTS, think="high")
    assert talk.chat_model.prompts.thinking_levels == ["low", "medium", "high"]
    talk.turn("four")
    assert talk.engine.prompt_text().endswith("(high)")
    talk.chat_model.prompts.think = "auto"
    talk.turn("five")
    assert talk.engine.prompt_text().endswith("(medium)")


@pytest.mark.parametrize(
    ("source", "level", "variable", "value"),
    [
        ("{% if reasoning is not defined %}{% endif %}", "on", "reasoning", True),
        ("{% if reasoning is defined %}{% endif %}", "off", "reasoning", False),
        ("{{ reasoning_strength }}", "high", "reasoning_strength", "high"),
    ],
)
def test_other_names_of_variables(source: str, level: str, variable: str, value: object) -> None:
    assert level in thinking_levels(source)
    assert thinking_variables(level, source)[variable] == value
    own = "{% set reasoning = messages[0].reasoning %}{% if reasoning %}{% endif %}"
    assert thinking_levels(own) == []
    assert "reasoning" not in thinking_variables("on", own)


def test_messages_of_muse_to_itself_are_reasoning() -> None:
    """The prompt has begun the first message; calls and texts have a recipient each."""
    source = "{{ '<|start|>assistant to=self<|message|>' }}<atem:function_calls>"
    reasoning, calls = find_reasoning_format(source, []), find_tool_format(source)
    assert reasoning is not None
    thought, start = "to=self<|message|>hm<|eom|>", "<|start|>assistant"
    call = (
        ' to=f<|message|><atem:function_calls><atem:invoke name="f"></atem:invoke>'
        "</atem:function_calls>"
    )
    for answer, expected in (
        (f" {thought}{start} to=user<|message|>four", ("hm", "four", 0)),
        (f" {thought}{start} {thought}{start} to=user<|message|>four", ("hmhm", "four", 0)),
        (" to=user<|message|>four", ("", "four", 0)),
        (f" {thought}{start}{call}", ("hm", "", 1)),
        (call, ("", "", 1)),
        (f" {thought}{start} to=user<|message|>four{start}{call}{start}{call}", ("hm", "four", 2)),
    ):
        for cut in range(len(answer)):
            splitter, tools = ReasoningSplitter(reasoning), ToolCallSplitter(calls)
            thoughts, text = "", ""
            pieces = [*splitter.push(answer[:cut]), *splitter.push(answer[cut:])]
            for piece in [*pieces, *splitter.flush()]:
                if isinstance(piece, ReasoningText):
                    thoughts += piece
                else:
                    text += "".join(tools.push(piece))
            text += "".join(tools.flush(True))
            assert (thoughts, text, len(tools.calls)) == expected


@pytest.mark.parametrize(
    ("source", "level", "known"),
    [
        (SWITCHED, "high", "only to on, off"),
        (EFFORTS, "max", "only to low, medium, high"),
        (SHOWS_REASONING, "low", "cannot set thinking to low"),
    ],
)
def test_a_level_that_the_template_lacks_is_refused(
    tmp_path: Path, source: str, level: str, known: str
) -> None:
    talk = Talk(tmp_path / "m", source, think=level)
    with pytest.raises(UsageError, match=known) as error:
        talk.turn("four")
    assert "/think " in error.value.hint

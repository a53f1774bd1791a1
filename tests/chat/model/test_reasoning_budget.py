"""A budget of reasoning: what the engine is told of a model's markers, and answers that keep it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.constraints import _marker_pieces
from swiftchat.chat.model.reasoning import FORMATS, ReasoningFormat, ReasoningSplitter
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.render.stats import answer_rows, running_text
from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.engine.schedule.reasoning import ReasoningProgress
from tests.support import fake_engine

SHOWS = fake_engine.TEMPLATE.replace(
    "m['content']",
    "('<think>\n' + m['reasoning_content'] + '\n</think>\n\n' if m['reasoning_content'] else '') "
    "+ m['content']",
)
OPENS = SHOWS.replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
BY_SIGNATURE = {one.signature: one for one in FORMATS}


def progress(reasoning: ReasoningFormat, pieces: list[str], *, is_open: bool) -> ReasoningProgress:
    """Return the progress of answers whose ids are indices of `pieces`."""
    opens = tuple(marker.encode() for marker in reasoning.opens)
    close, texts = reasoning.close.encode(), [piece.encode() for piece in pieces]
    known = tuple(_marker_pieces(texts, (*opens, close)))
    markers = ReasoningMarkers(opens, close, is_open=is_open, pieces=known, ending=(0,))
    return ReasoningProgress(markers, 1_000)


@given(st.data())
def test_the_engine_follows_markers_as_the_splitter_does(data: st.DataObject) -> None:
    """Whatever tokens write the markers: parts of them, several at once, text around them."""
    reasoning = data.draw(st.sampled_from(FORMATS))
    known = [marker for marker in reasoning.markers if marker]
    others = ("\n", " ", "a", *known[0], known[0][:4], known[-1][2:])
    parts = st.sampled_from([*known, *known, *others])
    text = "".join(data.draw(st.lists(parts, max_size=8))) + "."
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if a < b]
    is_open = data.draw(st.booleans())
    splitter = ReasoningSplitter(reasoning, is_thinking=is_open)
    found = progress(reasoning, pieces, is_open=is_open)
    num_tokens = 0
    for token, piece in enumerate(pieces):
        was_thinking = splitter.is_thinking
        list(splitter.push(piece))
        found.push(token)
        assert found.is_thinking == splitter.is_thinking, (pieces, token)
        if was_thinking or splitter.is_thinking:
            num_tokens = token + 1
    # The splitter does not tell of reasoning that begins and ends within one piece.
    assert found.num_tokens >= num_tokens


def markers_of(folder: Path, template: str, **config: object) -> ReasoningMarkers:
    engine = fake_engine.FakeEngine([{"text": "x"}], ctx_size_tokens=4096)
    fake_engine.make_folder(folder, template)
    options = ChatConfig(reasoning_budget=5, **config)  # type: ignore[arg-type]
    chat_model = ChatModel(folder, options, engine.start)  # type: ignore[arg-type]
    conversation = Conversation()
    conversation.add("user", "hi")
    params = chat_model.answer(conversation, lambda n: None).params
    assert params.reasoning_budget == 5 and params.reasoning is not None
    return params.reasoning


def ending(folder: Path, template: str, **config: object) -> str:
    return fake_engine.text_of(markers_of(folder, template, **config).ending)


def test_the_ending_is_what_the_template_writes(tmp_path: Path) -> None:
    assert ending(tmp_path / "shows", SHOWS) == "\n</think>\n\n"
    tight = SHOWS.replace("\n</think>\n\n", "</think>")
    assert ending(tmp_path / "tight", tight) == "</think>"
    drops = fake_engine.TEMPLATE + "{# </think> #}"
    assert ending(tmp_path / "drops", drops) == "\n</think>\n\n"
    derived = tight.replace("think>", "muse>")
    assert ending(tmp_path / "derived", derived) == "</muse>"
    options = {"reasoning_budget_message": "So, <|im_end|> it is:"}
    marked = markers_of(tmp_path / "message", SHOWS, **options)
    assert bytes(marked.ending).decode() == "\n\nSo, <|im_end|> it is:\n</think>\n\n"


@pytest.mark.parametrize("signature", BY_SIGNATURE)
def test_every_format_leads_from_its_reasoning_to_the_answer(
    signature: str, tmp_path: Path
) -> None:
    reasoning = BY_SIGNATURE[signature]
    text = ending(tmp_path, f"{fake_engine.TEMPLATE}{{# {signature} #}}")
    splitter = ReasoningSplitter(reasoning, is_thinking=True)
    pieces = [*splitter.push("hm"), *splitter.push(text), *splitter.push("four")]
    pieces += splitter.flush()
    assert "".join(pieces).split() == ["hm", "four"] or "".join(pieces) == "hmfour"
    assert splitter.is_answering and pieces[-1].strip() == "four"


@pytest.mark.parametrize(("template", "is_open"), [(SHOWS, False), (OPENS, True)])
def test_whether_the_prompt_has_begun_to_think(
    template: str, is_open: bool, tmp_path: Path
) -> None:
    assert markers_of(tmp_path, template).is_open == is_open


def test_a_budget_of_nothing_ends_what_the_prompt_has_begun(tmp_path: Path) -> None:
    fake_engine.make_folder(tmp_path, OPENS)
    engine = fake_engine.FakeEngine([{"text": "four"}], ctx_size_tokens=4096)
    chat_model = ChatModel(tmp_path, ChatConfig(reasoning_budget=0), engine.start)  # type: ignore[arg-type]
    conversation = Conversation()
    conversation.add("user", "hi")
    answer = chat_model.answer(conversation, lambda n: None)
    answer.complete()
    assert engine.prompt_text().endswith("assistant\n<think>\n\n</think>\n\n")
    assert (answer.reasoning, answer.text) == (None, "four")


def test_a_model_without_reasoning_has_no_budget(tmp_path: Path) -> None:
    fake_engine.make_folder(tmp_path)
    engine = fake_engine.FakeEngine([{"text": "four"}], ctx_size_tokens=4096)
    chat_model = ChatModel(tmp_path, ChatConfig(reasoning_budget=0), engine.start)  # type: ignore[arg-type]
    conversation = Conversation()
    conversation.add("user", "hi")
    assert chat_model.answer(conversation, lambda n: None).params.reasoning is None


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatModel]:
    """A model with random weights that writes "a" again and again."""
    folder = tmp_path_factory.mktemp("model")
    fake_engine.make_folder(folder, OPENS, max_position_embeddings=512)
    config = ChatConfig(
        dummy=str(folder / "config.json"),
        device="cpu",
        temperature=0,
        logit_bias=("a=100",),
        loop_stop="off",
        reasoning_budget=20,
        max_tokens=7,
    )
    with ChatModel(folder, config) as chat_model:
        yield chat_model


def answered(chat_model: ChatModel, **changes: object) -> Answer:
    conversation = Conversation()
    conversation.add("user", "hi")
    chat_model.changes = changes
    answer = chat_model.answer(conversation, lambda n: None)
    answer.complete()
    return answer


@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
def test_answers_of_an_engine(chat_model: ChatModel) -> None:
    num_ending = len("\n</think>\n\n")
    for logprobs in (None, 2):
        answer = answered(chat_model, logprobs=logprobs)
        assert (answer.reasoning, answer.text) == ("a" * 20, "a" * 7)
        assert answer.num_tokens == 20 + num_ending + 7
        assert 20 < answer.num_reasoning_tokens <= 20 + num_ending
        assert answer.limit == "max_tokens" and answer.result is not None
        assert answer.result.completion_tokens == answer.num_tokens
    rows = answer_rows(answer, chat_model.engine.info)
    assert f"({answer.num_reasoning_tokens} thinking)" in rows["answer"]
    assert answered(chat_model, reasoning_budget=0).text == "a" * 7
    unlimited = answered(chat_model, reasoning_budget=None)
    assert (unlimited.reasoning, unlimited.text) == ("a" * 7, "")


@pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")
def test_an_answer_with_a_format(chat_model: ChatModel) -> None:
    from swiftchat.chat.model.output_format import json_schema_format

    chat_model.output_format = json_schema_format({"enum": ["aaaa"]}, has_instruction=False)
    answer = answered(chat_model, max_tokens=12)
    chat_model.output_format = None
    assert (answer.reasoning, answer.text) == ("a" * 20, '"aaaa"')


def test_the_status_line_counts_the_thinking(tmp_path: Path) -> None:
    fake_engine.make_folder(tmp_path, OPENS)
    engine = fake_engine.FakeEngine([{"text": "hm</think>four"}], ctx_size_tokens=4096)
    chat_model = ChatModel(tmp_path, ChatConfig(reasoning_budget=9), engine.start)  # type: ignore[arg-type]
    conversation = Conversation()
    conversation.add("user", "hi")
    answer = chat_model.answer(conversation, lambda n: None)
    shown = [running_text(answer, 80).partition(" · ")[0] for _ in answer]
    assert shown[0] == "thinking 1/9" and shown[-1].endswith(" tokens")

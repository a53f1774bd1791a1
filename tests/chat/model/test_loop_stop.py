"""An answer that repeats itself ends at the same token, however many tokens come at a time."""

from pathlib import Path

import pytest

from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.loop_stop import LoopStop
from swiftchat.engine.api.params import SamplingParams
from swiftchat.tokenizer import Tokenizer
from swiftchat.tokenizer.prompt import Prompt, PromptSpan
from tests.support import fake_engine


def num_used(ids: list[int], size: int, *, is_on: bool = True) -> int:
    loop = LoopStop(is_on=is_on)
    return sum(loop.push(ids[i : i + size]) for i in range(0, len(ids), size))


@pytest.mark.parametrize("size", [1, 2, 3, 16, 1000])
@pytest.mark.parametrize("length", [1, 7, 39, 40])
def test_the_end_does_not_depend_on_how_the_tokens_come(length: int, size: int) -> None:
    before = list(range(1000, 1033))
    assert num_used(before + list(range(length)) * 300, size) == len(before) + 200


@pytest.mark.parametrize("size", [1, 64])
def test_what_is_no_loop_goes_on(size: int) -> None:
    for ids in (
        list(range(41)) * 50,  # longer than 40 tokens
        [*list(range(40)) * 4, *range(39), 99] * 3,  # four times and a bit
        list(range(5000)),
    ):
        assert num_used(ids, size) == len(ids)
    assert num_used([1] * 500, size, is_on=False) == 500


@pytest.mark.parametrize(("loop_stop", "num_tokens"), [("on", 205), ("off", 405)])
def test_an_answer_that_repeats_itself_ends(
    tmp_path: Path, loop_stop: str, num_tokens: int
) -> None:
    engine = fake_engine.FakeEngine(["Well," + "ab c" * 100])
    made = Answer(
        engine,  # type: ignore[arg-type]
        Tokenizer.load(fake_engine.make_folder(tmp_path / "model")),
        Prompt((PromptSpan("x", (1, 2), False),)),
        SamplingParams(loop_stop=loop_stop),
    )
    text = "".join(made)
    assert text == made.text == ("Well," + "ab c" * 100)[:num_tokens]
    assert len(made.ids) == made.num_tokens == num_tokens
    assert made.finish_reason == ("loop" if loop_stop == "on" else "stop")
    assert made.limit == ("loop" if loop_stop == "on" else None)
    assert made._generation.canceled == (loop_stop == "on")  # type: ignore[attr-defined]

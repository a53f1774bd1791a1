"""Three turns of a model that thinks: the template decides what stays, the cache what is reused."""

import shutil
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.answer import Answer
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.model.engine_start import start_engine
from swiftchat.chat.options.config import ChatConfig
from tests.support import fake_engine, reference, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")

BLOCK = 64
KEEPS = fake_engine.TEMPLATE.replace(
    "m['content']",
    "('<think>\n' + m['reasoning_content'] + '\n</think>\n\n' if m['reasoning_content'] else '') "
    "+ m['content']",
).replace("assistant\n' }}{% endif %}", "assistant\n<think>\n' }}{% endif %}")
# As those of Qwen3 and DeepSeek: earlier reasoning is not repeated.
DROPS = KEEPS.replace("if m['reasoning_content']", "if m['reasoning_content'] and false")
QUESTIONS = ("Which river is the longest? " * 3, "And the second? " * 2, "Why is that so? " * 2)


def make(name: str, folder: Path, template: str) -> Path:
    """Make a tiny model with a token per byte, and a context for three turns."""
    sizes = {"vocab_size": 258, "max_position_embeddings": 1024}
    if name == "qwen3_next":
        reference.copy_reference(name, folder, **sizes)
    else:
        tiny.make(name, folder, **sizes)
    bytewise = fake_engine.make_folder(folder / "bytewise", template)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(bytewise / file, folder / file)
    return folder


def talk(folder: Path) -> list[Answer]:
    config = ChatConfig(
        device="cpu",
        dtype="float32",
        threads=1,
        temperature=1.0,
        seed=3,
        reasoning_budget=30,
        max_tokens=25,
        loop_stop="off",
        # Only letters, so that texts and ids correspond.
        logit_bias=tuple(f"{letter}=60" for letter in "abcdefgh"),
    )
    answers, conversation = [], Conversation()
    with ChatModel(folder, config, start_engine) as chat_model:
        for question in QUESTIONS:
            conversation.add("user", question)
            answer = chat_model.answer(conversation, lambda n: None)
            answer.complete()
            assert answer.reasoning is not None and len(answer.reasoning) == 30
            assert len(answer.text) == 25 and answer.result is not None
            conversation.add("assistant", answer.text, reasoning=answer.reasoning)
            answers.append(answer)
    return answers


def common(one: list[int], other: list[int]) -> int:
    return next((i for i, pair in enumerate(zip(one, other, strict=False)) if len({*pair}) > 1), 0)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_next", "gemma2"])
@pytest.mark.parametrize("template", [KEEPS, DROPS], ids=["keeps", "drops"])
def test_the_third_turn_reuses_what_the_template_repeats(
    name: str, template: str, tmp_path: Path
) -> None:
    folder = make(name, tmp_path, template)
    answers = talk(folder)
    # A fresh engine, without a cache, gives the same ids.
    for answer in answers:
        ids, _ = tiny.run(tiny.engine(folder), {1: answer.prompt.ids}, answer.params)
        assert ids[1] == answer.ids
    for before, answer in pairwise(answers):
        assert answer.result is not None
        whole, prompt = [*before.prompt.ids, *before.ids], answer.prompt.ids
        shared = common(whole, prompt) or len(whole)
        if template == KEEPS:
            assert shared == len(whole)  # the ids of the reasoning, too
            assert answer.result.cached_tokens == len(whole) - 1  # the last one was not computed
        elif name == "qwen3_next":  # a state is kept at the last boundary of a prompt
            boundary = (len(before.prompt.ids) - 1) // BLOCK * BLOCK
            assert answer.result.cached_tokens == boundary <= shared
        else:
            assert shared == len(before.prompt.ids) - len("<think>\n")
            assert answer.result.cached_tokens == shared

"""Answers without a tool, for models whose template asks for an action in every turn."""

import json
from pathlib import Path

from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import ChatModel
from swiftchat.chat.options.config import ChatConfig
from tests.support.fake_engine import TEMPLATE, TOOL_TEMPLATE, FakeEngine, make_folder

TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
# Command R+: a template for actions, of which one asks for an answer, and one for answers.
ACTIONS = TOOL_TEMPLATE.replace(
    "{%- if add_generation_prompt %}",
    "{{ 'Write actions, or `directly-answer`.' }}{%- if add_generation_prompt %}",
)
DIRECT = 'Action:\n```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```'
LOOKUP = 'Action: ```json\n[{"tool_name": "lookup", "parameters": {"key": "v"}}]```'


def test_an_answer_gets_a_prompt_without_tools_where_the_template_asks_for_an_action(
    tmp_path: Path,
) -> None:
    folder = make_folder(tmp_path / "m", TEMPLATE)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    templates = [
        {"name": "default", "template": TEMPLATE},
        {"name": "tool_use", "template": ACTIONS},
    ]
    config["chat_template"] = templates
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    engine = FakeEngine([LOOKUP, DIRECT, "It is four.", DIRECT, DIRECT], ctx_size_tokens=4096)
    chat_model = ChatModel(folder, ChatConfig(), engine.start)  # type: ignore[arg-type]
    chat_model.tools = [TOOL]
    turns = Conversation()
    turns.add("user", "Question?")

    def answer() -> tuple[str, list[str]]:
        made = chat_model.answer(turns, lambda num_messages: None)
        assert "".join(made) == made.text
        turns.add("assistant", made.text).tool_calls = made.tool_calls
        return made.text, [call.name for call in made.tool_calls]

    def prompt(index: int) -> str:
        ids = engine.prompts[index]
        return chat_model.tokenizer.decode(ids)

    assert answer() == ("", ["lookup"])
    assert turns.tip is not None
    turns.add_tool_result(turns.tip.tool_calls[0], "Found.")
    assert answer() == ("It is four.", [])
    assert all("Write actions" in prompt(i) and '"name": "lookup"' in prompt(i) for i in (0, 1))
    assert "Found." in prompt(1)
    assert "Result of lookup:\n\nFound." in prompt(2)
    assert "directly-answer" not in prompt(2) and "Write actions" not in prompt(2)
    assert answer() == ("", [])  # a second request is no call either
    assert len(engine.prompts) == 5

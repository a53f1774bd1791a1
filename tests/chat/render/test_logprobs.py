"""Log-probabilities in JSON, on the terminal and with `/show alternatives`."""

import json
import math
import re
from pathlib import Path

import pytest

from swiftchat.chat.history.store import SessionStore, sessions_path
from swiftchat.chat.render.logprobs import as_terminal_text
from swiftchat.chat.render.style import Style
from swiftchat.errors import UsageError
from tests.chat.slash.test_commands import Chat
from tests.chat.slash.test_commands import chat as chat
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def test_json_lists_every_token_with_its_alternatives(program: Program) -> None:
    report = json.loads(program.run("-p", "x", "--logprobs", "2", "--json").stdout)
    half = pytest.approx(math.log(0.5), abs=1e-6)
    assert [one["token"] for one in report["logprobs"]] == list("An answer.")
    assert report["logprobs"][0] == {
        "token": "A",
        "id": 65,
        "logprob": half,
        "alternatives": [
            {"token": "A", "id": 65, "logprob": half},
            {"token": "B", "id": 66, "logprob": pytest.approx(2 * math.log(0.5))},
        ],
    }


def test_logprobs_defaults_to_five_and_is_off_without_the_option(program: Program) -> None:
    program.engine.answers = [{"text": "An answer."}, {"text": "An answer."}]
    lines = program.run("-p", "x", "--logprobs", "--stream-json").stdout.splitlines()
    assert {len(one["alternatives"]) for one in json.loads(lines[-1])["logprobs"]} == {5}
    assert json.loads(program.run("-p", "x", "--json").stdout)["logprobs"] is None
    assert [params.logprobs for params in program.engine.params] == [5, None]


def test_logprobs_end_at_a_stop_string(program: Program) -> None:
    result = program.run("-p", "x", "--logprobs", "0", "--stop", "ns", "--json")
    report = json.loads(result.stdout)
    assert report["content"] == "An a" and report["finish_reason"] == "stop"
    assert "".join(one["token"] for one in report["logprobs"]) == "An ans"
    assert len(report["logprobs"]) == report["usage"]["completion_tokens"]


def test_logprobs_need_json_output(program: Program) -> None:
    error = failure(program, "-p", "x", "--logprobs")
    assert error.exit_code == 2 and "--json" in error.hint
    error = failure(program, "-p", "x", "--prompt-logprobs")
    assert error.exit_code == 2 and "--json" in error.hint
    assert program.engine.prompts == []


def test_show_alternatives(chat: Chat) -> None:
    chat.send("Hi", "Oh")
    with pytest.raises(UsageError) as caught:
        chat.send("/show alternatives")
    assert "/set logprobs" in caught.value.hint
    chat.send("/set logprobs 3")
    chat.send("/regen", "On")
    shown = chat.send("/show alternatives")
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()[-2:] == [
        "    1     50%  'O'              'P' 25%  'Q' 13%",
        "    2     50%  'n'              'o' 25%  'p' 13%",
    ]
    chat.send("/set logprobs off")
    assert chat.state.chat_model.params.logprobs is None


def test_logprobs_are_not_saved_with_the_session(chat: Chat) -> None:
    chat.send("/set logprobs 3")
    chat.send("/set top_k 7")
    chat.send("Hi", "Oh")
    with SessionStore(sessions_path(), print) as store:
        settings = store.load(chat.state.conversation.id).settings
    assert settings["top_k"] == 7 and "logprobs" not in settings


def test_terminal_text_is_colored_and_sanitized(chat: Chat) -> None:
    chat.send("/set logprobs 1")
    chat.send("Hi", "é\x1b[31m\nx")
    answer, tokenizer = chat.state.last_answer, chat.state.chat_model.tokenizer
    assert answer is not None
    plain = as_terminal_text(answer, tokenizer, Style("markdown"))
    assert "\x1b" not in plain and plain.splitlines()[0].endswith("'\ufffd'")
    assert "'\\x1b'" in plain and "'\\n'" in plain
    colored = as_terminal_text(answer, tokenizer, Style("markdown", is_colored=True))
    assert "é" in colored and "\x1b[36m" in colored and "\x1b[31m\nx" not in colored
    assert "90% and more" in colored

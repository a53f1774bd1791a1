"""Chats with a running engine: `swiftchat --connect`."""

import json
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.model.chat_model import ChatModel, chat_model_for
from swiftchat.chat.options.chat_options import ENGINE_FIELDS, options_of
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.repl.loop import Repl
from swiftchat.chat.slash.models import change_model
from swiftchat.engine.api.protocol import Tokens
from swiftchat.errors import DeviceError, UsageError
from tests.support.remote_engine import chat_model_folder, serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def socket(folder: Path, tmp_path: Path) -> Iterator[str]:
    with serving(folder, str(tmp_path / "engine.sock")) as listener:
        yield str(listener.address)


def run(*args: str) -> str:
    return (
        CliRunner()
        .invoke(cli.swiftchat, list(args), standalone_mode=False, catch_exceptions=False)
        .stdout
    )


def test_one_shot_needs_only_the_address(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model in a variable or in the conversation is ignored."""
    monkeypatch.setenv("SWIFTCHAT_MODEL", "no-such-model")
    options = ("--connect", socket, "--temp", "0", "-n", "5", "--json")
    first = json.loads(run(*options, "-p", "hello"))
    assert first["model"]["id"] == "tiny" and first["usage"]["completion_tokens"] == 5
    assert json.loads(run(*options, "-p", "hello"))["content"] == first["content"]
    second = json.loads(run(*options, "-c", "-p", "and?"))
    assert second["finish_reason"] == "length" and second["usage"]["cached_tokens"] > 10


def test_the_token_file_is_found_by_the_port(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with serving(folder, "127.0.0.1:0") as listener:
        address, token = str(listener.address), listener.token_file
        assert token is not None and token.parent == tmp_path / "swiftchat"
        options = ("--connect", address, "-n", "2", "-p", "hello")
        assert run(*options)
        copied = token.rename(tmp_path / "copied")
        with pytest.raises(UsageError, match="cannot read the engine's token"):
            run(*options)
        assert run(*options, "--token-file", str(copied))
        copied.write_text("another")
        with pytest.raises(DeviceError, match="closed the connection"):
            run(*options, "--token-file", str(copied))


VALUES = {
    "model": "x",
    "draft": "x",
    "ctx_size": "9",
    "device": "cpu",
    "tp": "2",
    "pp": "2",
    "dtype": "float32",
    "kv_dtype": "int8",
    "cache_max_bytes": "1G",
    "swap_size": "1G",
    "threads": "1",
    "dummy": "x",
    "keep_alive": "1m",
    "gpu_memory": "8G",
    "cpu_experts": "1",
}


NUMBERS = (
    *("ctx_size", "cache_max_bytes", "swap_size", "threads", "parallel"),
    *("gpu_memory", "cpu_experts"),
)


@pytest.mark.parametrize("name", ["model", *ENGINE_FIELDS, "keep_alive", "no_attach"])
def test_what_the_engine_determines_is_rejected_with_connect(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    args = [flag, VALUES[name]] if name in VALUES else [flag]
    lines = [["--connect", "x", *args], [*args, "chat", "--connect", "x"]]
    if name in [option.name for option in options_of("score")]:
        lines += [
            [command, "-", "--connect", "x", *args] for command in ("score", "embed", "batch")
        ]
    for line in lines:
        with pytest.raises(UsageError, match=f"{flag} has no effect with --connect"):
            run(*line)


def test_the_engine_gets_what_it_determines() -> None:
    """No other option changes what a started engine gets, but the answers at a time of `batch`."""
    plain, other = ChatConfig(), {"tp": 2, "pp": 2, "device": "cpu", "dtype": "float32"}
    changed = []
    for field in fields(ChatConfig):
        value = other.get(field.name, 1 if isinstance(field.default, int) else "int8")
        if field.name in NUMBERS:
            value = 7
        if replace(plain, **{field.name: value}).engine() != plain.engine():
            changed.append(field.name)
    assert set(changed) == {*ENGINE_FIELDS, "parallel"}


def answer_text(chat_model: ChatModel) -> str:
    conversation = Conversation()
    conversation.add("user", "hello")
    return "".join(chat_model.answer(conversation, lambda _: None))


def test_a_restarted_engine_is_reconnected(folder: Path, tmp_path: Path) -> None:
    """The engine must run the same model as before."""
    at = str(tmp_path / "engine.sock")
    config = ChatConfig(connect=at, max_tokens=5, temperature=0)
    with serving(folder, at):
        chat_model = chat_model_for(config)
        text = answer_text(chat_model)
        assert text
    engine = chat_model.engine
    with pytest.raises(DeviceError, match=r"the connection to the engine at .* was lost") as caught:
        for event in engine.generate([5], chat_model.params):
            assert isinstance(event, Tokens)
    assert "restart the engine on its host" in caught.value.hint
    for _ in range(2):
        with pytest.raises(DeviceError, match="no engine answers"):
            answer_text(chat_model)
    with serving(folder, at):
        assert answer_text(chat_model) == text
    other = chat_model_folder(tmp_path / "other", num_hidden_layers=1)
    with serving(other, at), pytest.raises(DeviceError, match=r"runs another model"):
        answer_text(chat_model)
    chat_model.close()


def test_model_cannot_switch_with_connect(socket: str) -> None:
    config = ChatConfig(connect=socket)
    with chat_model_for(config) as chat_model:
        repl = Repl(chat_model, config, Conversation())
        with pytest.raises(UsageError, match="the remote engine determines"):
            change_model(repl.state, "other")
        assert chat_model.settings["model"] == "a/tiny"
        assert answer_text(chat_model)

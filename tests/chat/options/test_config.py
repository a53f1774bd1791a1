"""Sampling options and the configuration file."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from swiftchat.chat.options.chat_options import FILE_NAMES
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.option_files import load_config_file, parse_toml
from swiftchat.chat.subcommands.config import config_edit
from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import UsageError


def test_flags_take_precedence_over_the_models_defaults() -> None:
    model = {"temperature": 0.2, "top_k": 40, "top_p": 0.9, "repetition_penalty": 1.1}
    params = ChatConfig(temperature=0.0, seed=3).sampling(model, (2,))
    assert (params.temperature, params.top_k, params.top_p) == (0.0, 40, 0.9)
    assert (params.repeat_penalty, params.seed, params.stop_ids) == (1.1, 3, (2,))
    assert ChatConfig().sampling({"do_sample": False}, ()).temperature == 0
    assert ChatConfig(temperature=1.0).sampling(model, (), {"temperature": 0.5}).temperature == 0.5


@pytest.mark.parametrize("nonsense", [{"temperature": "hot"}, {"top_p": 7.0}, {"top_k": True}])
def test_invalid_values_in_generation_config_are_ignored(nonsense: dict) -> None:
    assert ChatConfig().sampling(nonsense, ()) == SamplingParams()


@pytest.mark.fault(45)
def test_the_configuration_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.toml"
    monkeypatch.setattr("swiftchat.chat.options.option_files.config_path", lambda: file)
    assert load_config_file() == {}
    for name in ("temperature", "temp"):
        file.write_text(f"{name} = 0.5\n")
        assert load_config_file() == {"temperature": 0.5}
    file.write_text("temperture = 0.5\ntop_k = 3\n")
    assert load_config_file() == {"top_k": 3}
    warning = capsys.readouterr().err
    assert "warning" in warning and "'temperture'" in warning and "mean temperature" in warning
    for nonsense in (b"= nonsense", b"temp = 1\ntemperature = 2\n", b"\xff\xfe\n"):
        file.write_bytes(nonsense)
        with pytest.raises(UsageError, match=r"config\.toml") as caught:
            load_config_file()
        assert caught.value.exit_code == 2 and str(file) in caught.value.message


def test_config_edit_opens_a_template_that_sets_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "folder" / "config.toml"
    for module in ("option_files", "user_files"):
        monkeypatch.setattr(f"swiftchat.chat.options.{module}.config_path", lambda: file)
    shown = []

    def edit(text: str, extension: str) -> str:
        shown.append(text)
        return text.replace("# top_k = 0", "top_k = 7")

    monkeypatch.setattr("swiftchat.chat.terminal.editor.edit_text", edit)
    result = CliRunner().invoke(config_edit)
    assert result.exit_code == 0 and str(file) in result.stderr
    assert parse_toml(shown[0]) == {} and load_config_file() == {"top_k": 7}
    examples = re.findall(r"^# (\w+ = .*)", shown[0], re.MULTILINE)
    assert set(parse_toml("\n".join(examples))) == FILE_NAMES
    assert CliRunner().invoke(config_edit).exit_code == 0 and "top_k = 7" in shown[1]

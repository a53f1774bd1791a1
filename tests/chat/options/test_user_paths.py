"""`~` is the home folder in flags, variables, the configuration file and servers of tools."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from swiftchat.chat.endpoint.token import find_token
from swiftchat.chat.model.adapters import Weighted
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.options.option_files import load_config_file
from swiftchat.chat.options.option_types import UserPath
from swiftchat.chat.options.user_files import config_path
from swiftchat.chat.tools.servers import parse_servers
from swiftchat.errors import FileSystemError
from swiftchat.weights.model.dummy import dummy_config
from tests.chat.options.test_bounds import OPTIONS
from tests.support import fake_engine
from tests.support.program import Program, assert_error

PATH_WORDS = ("DIR", "FILE", "PATH")
# Values that may also be something else; what reads them calls `user_path`.
OTHERS = {
    *("--lora", "--file", "--template", "--schema", "--grammar", "--mcp", "--connect", "--dummy"),
    *("inputs", "--merge-lora"),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "a home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def test_every_path_on_a_command_line_is_one_of_the_user() -> None:
    others = set()
    for name, param in OPTIONS.items():
        words = (param.metavar or "").upper()
        if isinstance(param.type, click.Path):
            assert isinstance(param.type, UserPath), name
        elif any(word in words for word in PATH_WORDS):
            others.add(name.split()[-1])
    assert {one.lower() for one in others} <= {one.lower() for one in OTHERS}


def test_flags_variables_and_the_configuration(home: Path) -> None:
    program = Program(fake_engine.make_folder(home / "model"))
    (home / "s.txt").write_text("Be brief.")
    (home / "schema.json").write_text('{"type": "object"}')
    (home / "t.jinja").write_text("{{ messages[0].content }}!")
    for flag in ("--system-file=~/s.txt", "--schema=~/schema.json", "--template=~/t.jinja"):
        assert program.run("-p", "x", flag).returncode == 0
    assert program.run("-p", "x", "-f", "~/s*.txt").returncode == 0
    done = program.run("-p", "x", SWIFTCHAT_SYSTEM_FILE="~/s.txt", SWIFTCHAT_MODEL="~/model")
    assert done.returncode == 0, done.stderr
    assert_error(program.run("-p", "x", SWIFTCHAT_SYSTEM_FILE="~/none.txt"), 8, f"{home}/none.txt")
    assert_error(program.run("-p", "x", "--schema", "~no-such-user/x"), 8, "no home folder")
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text('system_file = "~/s.txt"\nlora = ["~/a=0.5"]\nsoft_prompt = "~/p"\n')
    assert load_config_file() == {
        "system_file": str(home / "s.txt"),
        "lora": ("~/a=0.5",),
        "soft_prompt": str(home / "p"),
    }


def test_what_reads_a_value_that_may_be_a_path(home: Path) -> None:
    (home / "half=0.5").mkdir()
    assert Weighted.parse("~/half=0.5") == Weighted("~/half=0.5", 1.0)
    (home / "token").write_text("t" * 40)
    assert find_token("~/token", {}).text == "t" * 40
    fields = (fake_engine.make_folder(home / "model") / "config.json").read_text()
    (home / "shape.json").write_text(fields)
    assert dummy_config("~/shape.json").num_layers
    with pytest.raises(FileSystemError):
        dummy_config("x" * 5000)
    (server,) = parse_servers(["~/bin/server --root ~/data a~b"], offline=False)
    assert server.command == (f"{home}/bin/server", "--root", f"{home}/data", "a~b")
    fields = {"command": "~/bin/server", "args": ["~"], "cwd": "~/data"}
    (home / "mcp.json").write_text(json.dumps({"mcpServers": {"a": fields}}))
    (server,) = parse_servers(["~/mcp.json"], offline=False)
    assert (server.command, server.cwd) == ((f"{home}/bin/server", "~"), f"{home}/data")
    with pytest.raises(FileSystemError, match="no home folder"):
        find_token("~no-such-user/token", {})


def test_a_conversation_keeps_the_whole_path(home: Path) -> None:
    (home / "m").mkdir()
    config = ChatConfig(model="~/m", template="chatml")
    assert config.settings({}) == {"model": str(home / "m"), "template": "chatml"}


@pytest.mark.parametrize("command", ["tokens", "score", "batch", "embed"])
def test_files_of_subcommands(command: str, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "swiftchat.chat", command, "~/none.txt"],
        capture_output=True,
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "SWIFTCHAT_OFFLINE": "1"},
    )
    assert_error(done, 8, "none.txt")

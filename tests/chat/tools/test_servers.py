"""The values of `--mcp`: command lines, addresses and files, also invalid ones."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.chat.tools.servers import ServerSpec, parse_servers
from swiftchat.errors import FileSystemError, UsageError


@pytest.mark.parametrize(
    ("value", "name", "command"),
    [
        ("python server.py --fast", "server", ("python", "server.py", "--fast")),
        ("/opt/my\\ tools/bin/weather", "weather", ("/opt/my tools/bin/weather",)),
        ("npx -y @scope/server-files '/a b'", "server-files", None),
        ("uv run --quiet notes.py", "notes", None),
        ("bash", "bash", ("bash",)),
        ("echo $HOME; rm x", "echo", ("echo", "$HOME;", "rm", "x")),
    ],
)
def test_a_command_line(value: str, name: str, command: tuple[str, ...] | None) -> None:
    [spec] = parse_servers([value], offline=False)
    assert spec.name == name and command in (None, spec.command)


def test_equal_names_are_numbered() -> None:
    names = [spec.name for spec in parse_servers(["a x", "a y", "python a.py"], offline=False)]
    assert names == ["a", "a-2", "a-3"]


def test_none_starts_no_server() -> None:
    assert parse_servers(["none"], offline=False) == []


def test_a_file_in_the_common_layout(tmp_path: Path) -> None:
    servers = {
        "files": {"command": "npx", "args": ["-y", "x"], "env": {"A": "b"}, "cwd": "/tmp"},
        "remote one": {"type": "http", "url": "https://example.org/mcp", "headers": {"K": "v"}},
        "unused": {"command": "x", "disabled": True},
    }
    file = tmp_path / "my servers.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    assert parse_servers([str(file)], offline=False) == [
        ServerSpec("files", ("npx", "-y", "x"), {"A": "b"}, "/tmp"),
        ServerSpec("remote-one", url="https://example.org/mcp", headers={"K": "v"}),
    ]
    with pytest.raises(UsageError, match="--offline does not allow"):
        parse_servers([str(file)], offline=True)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:9", "127.3.2.1"])
def test_offline_allows_addresses_of_this_machine(host: str) -> None:
    assert parse_servers([f"http://{host}/mcp"], offline=True)[0].url == f"http://{host}/mcp"


@pytest.mark.parametrize(
    "host", ["example.org", "localhost.example.org", "127.0.0.1@example.org", "0x7f.1", "10.0.0.1"]
)
def test_offline_refuses_other_hosts(host: str) -> None:
    with pytest.raises(UsageError):
        parse_servers([f"http://{host}/mcp"], offline=True)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "mcpServers"),
        ({"mcpServers": []}, "mcpServers"),
        ({"mcpServers": {"a": 1}}, "mcpServers.a is not an object"),
        ({"mcpServers": {"a": {}}}, "neither a command nor an url"),
        ({"mcpServers": {"a": {"url": "file:///etc"}}}, "neither a command nor an url"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "args is not a list"),
        ({"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}, "env is not an object of texts"),
        ({"mcpServers": {"…": {"command": "x"}}}, "name needs a letter"),
    ],
)
def test_an_invalid_file_is_an_error_with_its_place(
    tmp_path: Path, value: Any, reason: str
) -> None:
    (tmp_path / "s.json").write_text(json.dumps(value))
    with pytest.raises(UsageError, match=reason):
        parse_servers([str(tmp_path / "s.json")], offline=False)


def test_unreadable_files_and_commands(tmp_path: Path) -> None:
    with pytest.raises(FileSystemError, match=r"missing\.json"):
        parse_servers([str(tmp_path / "missing.json")], offline=False)
    (tmp_path / "s.json").write_text("[" * 100_000)
    for value in (str(tmp_path / "s.json"), "a 'b", "", "http://[x"):
        with pytest.raises(UsageError):
            parse_servers([value], offline=False)


FIELDS = st.dictionaries(
    st.sampled_from(["command", "args", "env", "url", "headers", "cwd", "type", "disabled"]),
    st.none() | st.booleans() | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2),
)


@given(st.dictionaries(st.text(max_size=5), FIELDS | st.text(), max_size=3))
def test_random_files_are_parsed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, servers: Any
) -> None:
    file = tmp_path_factory.mktemp("mcp") / "s.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    try:
        specs = parse_servers([str(file)], offline=True)
    except UsageError:
        return
    assert all(spec.command or spec.url for spec in specs)

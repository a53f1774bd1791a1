"""Which tools are called without a question: no server can give a tool the name of another's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import mcp_types
import pytest

from swiftchat.chat.tools import toolbox as toolbox_module
from swiftchat.chat.tools.connection import ServerError
from swiftchat.chat.tools.servers import ServerSpec, parse_servers
from swiftchat.chat.tools.toolbox import Toolbox
from swiftchat.errors import UsageError

# Tools by server; None for one that does not start.
Servers = dict[str, tuple[str, ...] | None]


@dataclass
class FakeConnection:
    names: Sequence[str] | None
    tools: list[mcp_types.Tool] = field(default_factory=list)

    @property
    def is_alive(self) -> bool:
        return self.names is not None

    def wait_ready(self) -> None:
        if self.names is None:
            raise ServerError("it does not start")
        schema = {"type": "object"}
        self.tools = [mcp_types.Tool(name=name, input_schema=schema) for name in self.names]


def started(
    servers: Servers, allowed: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Toolbox, list[str]]:
    """Return a toolbox with these servers, and the errors at its start; `servers` may change."""

    class FakeConnections:
        def open(self, spec: ServerSpec) -> FakeConnection:
            return FakeConnection(servers[spec.name])

    monkeypatch.setattr(toolbox_module, "Connections", FakeConnections)
    toolbox = Toolbox([ServerSpec(name) for name in servers], allowed)
    errors: list[str] = []
    toolbox.start(lambda error: errors.append(error.message))
    return toolbox, errors


def allowed_labels(toolbox: Toolbox) -> list[str]:
    return sorted(tool.label for tool in toolbox.tools.values() if toolbox.is_allowed(tool))


@pytest.mark.parametrize(
    ("servers", "allowed", "labels"),
    [
        ({"files": ("read",), "web": ("files.read",)}, ["files.read"], ["files.read"]),
        ({"web": ("files.read",)}, ["files.read"], []),
        ({"web": ("files.read",)}, ["web.files.read"], ["web.files.read"]),
        ({"files": ("read",), "web": ("get",)}, ["read"], ["files.read"]),
        ({"files": ("read",), "web": ("read",)}, ["read"], []),
        ({"files": ("read",), "web": ("all",)}, ["web.all"], ["web.all"]),
        ({"files": ("read",), "web": ("all",)}, ["all"], ["files.read", "web.all"]),
        ({"files": ("read",)}, ["Read", "files", "files.", ".read", "*"], []),
    ],
)
def test_names_and_labels(
    servers: Servers, allowed: list[str], labels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toolbox, _ = started(servers, allowed, monkeypatch)
    assert allowed_labels(toolbox) == labels
    again, _ = started(servers, [], monkeypatch)
    for name in allowed:
        if name != "all":
            try:
                again.allow(name)
            except UsageError as error:
                assert error.hint
    assert allowed_labels(again) == ([] if allowed == ["all"] else labels)


def test_a_name_of_several_tools_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    _, errors = started({"a": ("read",), "b": ("read",)}, ["read", "gone"], monkeypatch)
    assert errors == [
        "there is no tool 'gone'",
        "the name 'read' does not say which tool is meant",
    ]


def test_all_is_everything_unless_a_tool_has_this_name(monkeypatch: pytest.MonkeyPatch) -> None:
    toolbox, _ = started({"a": ("read", "all")}, [], monkeypatch)
    with pytest.raises(UsageError, match="'all' does not say which tool") as caught:
        toolbox.allow("all")
    assert caught.value.hint == "write a.all" and allowed_labels(toolbox) == []
    toolbox, _ = started({"a": ("read",)}, [], monkeypatch)
    assert toolbox.allow("all") == "all" and allowed_labels(toolbox) == ["a.read"]


def test_a_server_cannot_take_a_name_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """`read` means the tool of a server that does not run: another server must not offer it."""
    servers: Servers = {"files": None, "web": ("read",)}
    toolbox, _ = started(servers, ["read"], monkeypatch)
    assert allowed_labels(toolbox) == []
    servers |= {"files": ("read",), "web": ("get",)}
    toolbox, _ = started(servers, ["read"], monkeypatch)
    assert allowed_labels(toolbox) == ["files.read"]
    toolbox._by_server["web"] = FakeConnection(None)
    servers["web"] = ("get", "read")
    toolbox.start(lambda error: pytest.fail(error.message))
    assert allowed_labels(toolbox) == ["files.read"]


def test_the_name_of_a_server_has_no_dot() -> None:
    """Otherwise `a.b.read` would be a label of the server a as well."""
    values = ["https://a.b.example/mcp", "https://[::1]:9/mcp", "run a.b.py", "http://u:p@h.x/"]
    names = [spec.name for spec in parse_servers(values, offline=False)]
    assert names == ["a-b-example", "1", "a-b", "h-x"]

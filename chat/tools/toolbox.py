"""The tools of a chat: which there are, which may be called without a question, calling them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.tool_call import is_shallow
from swiftchat.chat.tools.connection import Connection, Connections, ServerError
from swiftchat.chat.tools.result import result_text, shortened
from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    import mcp_types

ALL = "all"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_TOOLS = 256  # of one server
_MAX_DESCRIPTION_CHARACTERS = 4096
_MAX_SCHEMA_CHARACTERS = 32_768


@dataclass(frozen=True)
class Tool:
    """A tool; the model calls it by `name`, which is that of the server unless two are the same."""

    name: str
    server: str
    server_name: str
    description: str
    schema: dict[str, Any]

    @property
    def label(self) -> str:
        """The name for the user, as `files.read`."""
        return f"{self.server}.{self.server_name}"

    @property
    def spec(self) -> dict[str, Any]:
        """The tool as chat templates expect it."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema,
        }
        return {"type": "function", "function": function}


class Toolbox:
    """The tools of several servers; a context manager that ends the servers.

    `allowed` are labels or names of tools, or `all`, that are called without a question. A name
    stands for the label of the only tool with this name, from the first time that all servers run:
    no server can later offer a tool that is allowed. A tool that the user allows for one
    conversation is allowed there only, until the program ends.
    """

    def __init__(self, specs: Sequence[ServerSpec], allowed: Collection[str] = ()) -> None:
        self.is_on = True
        self.tools: dict[str, Tool] = {}
        self._specs = specs
        self._allows_all = ALL in allowed
        self._allowed = {label for label in allowed if "." in label}
        self._allowed_names = set(allowed) - self._allowed - {ALL}
        self._allowed_in: set[tuple[str, str]] = set()  # conversation id, label
        self._connections: Connections | None = None
        self._by_server: dict[str, Connection] = {}

    def __enter__(self) -> "Toolbox":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def has_servers(self) -> bool:
        return bool(self._specs)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The tools for the chat template, [] if they are off."""
        return [tool.spec for tool in self.tools.values()] if self.is_on else []

    def servers(self) -> dict[str, list[Tool]]:
        """Return the tools of each server that runs; [] for one that has ended."""
        found: dict[str, list[Tool]] = {spec.name: [] for spec in self._specs}
        for tool in self.tools.values():
            found[tool.server].append(tool)
        return found

    def start(
        self,
        warn: Callable[[SwiftchatError], object],
        show: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Start the servers that do not run, and read their tools.

        `warn` receives the error of each server that fails; `show` the name of the server that is
        waited for. Raises `UsageError` if the SDK is missing.
        """
        if self._connections is None:
            self._connections = Connections()
        missing = [spec for spec in self._specs if not self._runs(spec.name)]
        for spec in missing:
            self._by_server[spec.name] = self._connections.open(spec)
        for spec in missing:
            show(spec.name)
            try:
                self._by_server[spec.name].wait_ready()
            except ServerError as error:
                warn(error)
        self._read_tools(warn)
        self._resolve_names(warn)

    def _runs(self, server: str) -> bool:
        return server in self._by_server and self._by_server[server].is_alive

    def _read_tools(self, warn: Callable[[SwiftchatError], object]) -> None:
        listed = {
            server: connection.tools[:_MAX_TOOLS]
            for server, connection in self._by_server.items()
            if connection.is_alive
        }
        counts = Counter(tool.name for tools in listed.values() for tool in tools)
        self.tools = {}
        for server, tools in listed.items():
            for tool in tools:
                name = tool.name if counts[tool.name] == 1 else f"{server}_{tool.name}"
                made = _tool(server, name, tool)
                if made is None or name in self.tools:
                    shown = tool.name[:80]
                    warn(UsageError(f"the tool {shown!r} of {server} cannot be used", _RULES))
                else:
                    self.tools[name] = made

    def _resolve_names(self, warn: Callable[[SwiftchatError], object]) -> None:
        """Replace the allowed names by labels, once all servers run."""
        if not all(self._runs(spec.name) for spec in self._specs):
            return
        for name in sorted(self._allowed_names):
            try:
                self._allowed.add(self._label(name))
            except UsageError as error:
                warn(error)
        self._allowed_names.clear()

    def _label(self, name: str) -> str:
        """Return the label that a label or a name stands for. Raises `UsageError` unless it is one.

        A name with a dot may be another server's label, and `all` means every tool: neither is
        looked for among the names.
        """
        labels = [tool.label for tool in self.tools.values()]
        if name in labels:
            return name
        named = [tool.label for tool in self.tools.values() if tool.server_name == name]
        if len(named) == 1 and "." not in name and name != ALL:
            return named[0]
        if not named:
            raise UsageError(f"there is no tool {name!r}", "/tools lists the tools")
        raise UsageError(
            f"the name {name!r} does not say which tool is meant", f"write {' or '.join(named)}"
        )

    def allow(self, name: str) -> str:
        """Allow a tool, or `all`, until the program ends; return its label.

        Raises `UsageError` for an unknown name, and for one that may mean several tools.
        """
        if name == ALL and not any(tool.server_name == ALL for tool in self.tools.values()):
            self._allows_all = True
            return ALL
        label = self._label(name)
        self._allowed.add(label)
        return label

    def allow_in(self, conversation_id: str, tool: Tool) -> None:
        """Allow a tool in one conversation."""
        self._allowed_in.add((conversation_id, tool.label))

    def is_allowed(self, tool: Tool, conversation_id: str = "") -> bool:
        """Return whether a tool may be called without a question."""
        is_here = (conversation_id, tool.label) in self._allowed_in
        return is_here or self._allows_all or tool.label in self._allowed

    def call(self, tool: Tool, arguments: dict[str, Any]) -> str:
        """Call a tool and return its result as text. Raises `ServerError`."""
        connection = self._by_server[tool.server]
        try:
            result = connection.call(tool.server_name, arguments)
        except ServerError:
            if not connection.is_alive:
                self.tools = {n: t for n, t in self.tools.items() if t.server != tool.server}
            raise
        return result_text(result)

    def close(self) -> None:
        """End the servers."""
        self.tools = {}
        if self._connections is not None:
            self._connections.close()
            self._connections = None


_RULES = (
    f"names have up to 64 letters, digits, _, - and .; parameters up to {_MAX_SCHEMA_CHARACTERS} "
    "characters"
)


def _tool(server: str, name: str, tool: "mcp_types.Tool") -> Tool | None:
    """Return a tool, None if its name or its schema cannot be given to a model."""
    schema = {"type": "object", "properties": {}, **tool.input_schema}
    if not _NAME.fullmatch(name) or not is_shallow(schema):
        return None
    if len(json.dumps(schema)) > _MAX_SCHEMA_CHARACTERS:
        return None
    description = shortened(tool.description or "", _MAX_DESCRIPTION_CHARACTERS)
    return Tool(name, server, tool.name, description, schema)

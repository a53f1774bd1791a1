"""The tools of a chat, built in and of servers: which there are, and which need no question."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from swiftchat.chat.history.tool_call import is_shallow
from swiftchat.chat.tools.connection import Connection, Connections, ServerError
from swiftchat.chat.tools.result import result_text, shortened
from swiftchat.chat.tools.servers import ServerSpec
from swiftchat.chat.tools.tool import BUILT_IN, Action, Tool
from swiftchat.errors import SwiftchatError, UsageError

if TYPE_CHECKING:
    import mcp_types

ALL = "all"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_TOOLS = 256  # of one server
_MAX_DESCRIPTION_CHARACTERS = 4096
_MAX_SCHEMA_CHARACTERS = 32_768

Warn = Callable[[SwiftchatError], object]


class Toolbox:
    """The built-in tools and those of several servers; a context manager that ends the servers.

    `allowed` are labels or names of tools, or `all`, that are called without a question. A name
    stands for the label of the only tool with this name, from the first time that all servers run:
    no server can later offer a tool that is allowed. What the user allows for one conversation is
    allowed there only, until the program ends.
    """

    def __init__(
        self,
        specs: Sequence[ServerSpec] = (),
        allowed: Collection[str] = (),
        builtin: Sequence[Tool] = (),
    ) -> None:
        self.is_on = True
        self.tools: dict[str, Tool] = {tool.name: tool for tool in builtin}
        self._builtin = builtin
        self._specs = specs
        self._allows_all = ALL in allowed
        self._allowed = {label for label in allowed if "." in label}
        self._allowed_names = set(allowed) - self._allowed - {ALL}
        self._allowed_in: set[tuple[str, str]] = set()  # conversation id, kind of actions
        self._connections: Connections | None = None
        self._by_server: dict[str, Connection] = {}

    def __enter__(self) -> "Toolbox":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def is_empty(self) -> bool:
        """Whether it has neither servers nor built-in tools."""
        return not (self._specs or self._builtin)

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The tools for the chat template, [] if they are off."""
        return [tool.spec for tool in self.tools.values()] if self.is_on else []

    def sources(self) -> dict[str, list[Tool]]:
        """Return the tools of each source: of a server that has ended, []."""
        found: dict[str, list[Tool]] = {BUILT_IN: []} if self._builtin else {}
        found |= {spec.name: [] for spec in self._specs}
        for tool in self.tools.values():
            found[tool.source].append(tool)
        return found

    def start(
        self,
        warn: Warn,
        show: Callable[[str], None] = lambda name: None,
        builtin: Sequence[Tool] | None = None,
    ) -> None:
        """Start the servers that do not run, read their tools, and offer those of `builtin`.

        `warn` receives the error of each server that fails; `show` the name of the server that is
        waited for. Without `builtin` the built-in tools stay. Raises `UsageError` if the SDK is
        missing.
        """
        self._builtin = self._builtin if builtin is None else builtin
        missing = [spec for spec in self._specs if not self._runs(spec.name)]
        if missing and self._connections is None:
            self._connections = Connections()
        for spec in missing:
            assert self._connections is not None
            self._by_server[spec.name] = self._connections.open(spec)
        for spec in missing:
            show(spec.name)
            try:
                self._by_server[spec.name].wait_ready()
            except ServerError as error:
                warn(error)
        self._read_tools(warn)
        self._resolve_names(warn)

    def refresh(self, warn: Warn) -> list[str]:
        """Read the tools of servers again that have changed them; return the names of these."""
        changed = []
        for server, connection in self._by_server.items():
            try:
                if connection.refresh():
                    changed.append(server)
            except ServerError as error:
                warn(error)
        if changed:
            self._read_tools(warn)
        return changed

    def _runs(self, server: str) -> bool:
        return server in self._by_server and self._by_server[server].is_alive

    def _read_tools(self, warn: Warn) -> None:
        listed = {
            server: connection.tools
            for server, connection in self._by_server.items()
            if connection.is_alive
        }
        counts = Counter(tool.name for tools in listed.values() for tool in tools)
        counts.update(tool.name for tool in self._builtin)
        self.tools = {tool.name: tool for tool in self._builtin}
        for server, tools in listed.items():
            if len(tools) > _MAX_TOOLS:
                message = f"{server} has {len(tools)} tools; the first {_MAX_TOOLS} are used"
                warn(UsageError(message, "have the server offer fewer"))
            for tool in tools[:_MAX_TOOLS]:
                name = tool.name if counts[tool.name] == 1 else f"{server}_{tool.name}"
                made = self._tool(server, name, tool)
                if made is None or name in self.tools:
                    shown = tool.name[:80]
                    warn(UsageError(f"the tool {shown!r} of {server} cannot be used", _RULES))
                else:
                    self.tools[name] = made

    def _tool(self, server: str, name: str, tool: "mcp_types.Tool") -> Tool | None:
        """Return a server's tool, None if its name or its schema cannot be given to a model."""
        schema = {"type": "object", "properties": {}, **tool.input_schema}
        if not _NAME.fullmatch(name) or not is_shallow(schema):
            return None
        if len(json.dumps(schema)) > _MAX_SCHEMA_CHARACTERS:
            return None
        description = shortened(tool.description or "", _MAX_DESCRIPTION_CHARACTERS)

        def prepare(arguments: dict[str, Any]) -> Action:
            return Action(lambda: self._call(server, tool.name, arguments), made.label)

        made = Tool(name, server, tool.name, description, schema, prepare)
        return made

    def _call(self, server: str, name: str, arguments: dict[str, Any]) -> str:
        """Call a server's tool and return its result as text. Raises `ServerError`."""
        connection = self._by_server[server]
        try:
            result = connection.call(name, arguments)
        except ServerError:
            if not connection.is_alive:
                self.tools = {n: t for n, t in self.tools.items() if t.source != server}
            raise
        return result_text(result)

    def _resolve_names(self, warn: Warn) -> None:
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
        named = [tool.label for tool in self.tools.values() if tool.own_name == name]
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
        if name == ALL and not any(tool.own_name == ALL for tool in self.tools.values()):
            self._allows_all = True
            return ALL
        label = self._label(name)
        self._allowed.add(label)
        return label

    def allow_in(self, conversation_id: str, action: Action) -> None:
        """Allow all actions of the kind of one, in one conversation."""
        self._allowed_in.add((conversation_id, action.kind))

    def is_allowed(
        self, tool: Tool, conversation_id: str = "", action: Action | None = None
    ) -> bool:
        """Return whether a tool, or one action of it, needs no question."""
        if action is not None and action.warning:
            return False
        kind = tool.label if action is None else action.kind
        is_here = (conversation_id, kind) in self._allowed_in
        return is_here or self._allows_all or tool.label in self._allowed

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

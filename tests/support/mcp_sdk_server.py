"""An MCP server for tests, made with the SDK: `mcp_sdk_server.py [PORT]`.

With a port it speaks streamable HTTP, otherwise the newest protocol on stdin and stdout. Most tests
use `mcp_server`, which starts in a tenth of the time.
"""

import sys

from mcp.server import MCPServer

server = MCPServer("Test tools")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(message: str) -> str:
    """Raise an error."""
    raise ValueError(message)


def main() -> None:
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    server.run()


if __name__ == "__main__":
    main()

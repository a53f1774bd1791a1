"""Tools of MCP servers: calls in answers, their confirmation and execution."""

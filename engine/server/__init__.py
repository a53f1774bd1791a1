"""The server of an engine: listener, terminal connections, commands."""

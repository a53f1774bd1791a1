"""Files, pages and command output that precede a message."""

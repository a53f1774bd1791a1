"""The terminal: output, sanitizing, progress, clipboard, echo."""

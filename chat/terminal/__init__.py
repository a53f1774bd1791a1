"""The terminal: style of answers, sanitizing, progress, clipboard, echo."""

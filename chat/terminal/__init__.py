"""The terminal: size, colors, sanitizing, clipboard."""

"""Render answers in the terminal: Markdown, code, tables, log-probabilities."""

"""The interactive loop: input line, turns, toolbar, hints."""

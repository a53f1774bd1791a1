"""The interactive loop: input, keys, hints."""

"""Tests; run them with `python -m pytest` from the root of the repository."""

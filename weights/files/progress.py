"""How long operations on model files tell how far they are."""

from collections.abc import Callable

__all__ = ["Progress"]

Progress = Callable[[str, int, int], None]
"""Called with a label, the bytes done and the bytes in all."""

"""Packages that come with an extra of swiftchat only."""

from collections.abc import Iterator
from contextlib import contextmanager

from swiftchat.errors import UsageError


@contextmanager
def needing_extra(what: str, extra: str = "serve") -> Iterator[None]:
    """Turn a missing package into a `UsageError` that says what needs it, and the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("swiftchat"):
            raise
        raise UsageError(
            f"{what} needs the package {error.name}, which is not installed",
            f"pip install 'swiftchat[{extra}]'",
        ) from error

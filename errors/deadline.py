"""Work that waits for other machines, with a limit of time for all of it."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises; raises `TimeoutError` after the time.

    HTTP libraries limit only the time between two parts of an answer, so that a peer which sends a
    byte now and then holds a request for ever. `work` runs on a thread that does not keep the
    process alive; after the time it may go on, and its result is dropped.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001  (raised again by the caller)
            errors.append(error)

    thread = threading.Thread(target=run, name="request", daemon=True)
    thread.start()
    thread.join(max(0.0, seconds))
    if results:
        return results[0]
    if errors:
        raise errors[0]
    raise TimeoutError(f"not done within {seconds:.0f} s")

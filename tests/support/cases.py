"""Many cases in one test, where a case takes less time than pytest and xdist take for a test."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def each_case(
    names: str | Sequence[str], values: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with each of the values, as `pytest.mark.parametrize` does with tests.

    `names` is that of an argument, or those of several, of which each of `values` has as many. A
    failure has a note with its case and ends the test.
    """
    arguments = (names,) if isinstance(names, str) else tuple(names)
    cases = [
        dict(zip(arguments, (v,) if isinstance(names, str) else v, strict=True)) for v in values
    ]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for case in cases:
                try:
                    test(**others, **case)
                except Exception as error:
                    error.add_note(", ".join(f"{name}={value!r}" for name, value in case.items()))
                    raise

        signature = inspect.signature(test)
        kept = [p for name, p in signature.parameters.items() if name not in arguments]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        return run

    return decorate

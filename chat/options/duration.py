"""Lengths of time on the command line: 90s, 10m, 2h, 7d."""

import re
from typing import Any

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A length of time in seconds, above 0, written as a number with its unit s, m, h or d."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is not a time such as 90s, 10m, 2h or 7d", param, ctx)
        return float(found[1]) * _SECONDS[found[2]]


def format_duration(seconds: float) -> str:
    """Return whole units of a time, such as `45 s`, `10 min`, `3 h` or `2 days`."""
    for unit, length, limit in (("s", 1, 60), ("min", 60, 3600), ("h", 3600, 2 * 86400)):
        if seconds < limit:
            return f"{int(seconds / length)} {unit}"
    return f"{int(seconds / 86400)} days"

"""Lengths of time on the command line: 90s, 10m, 2h, 7d."""

import re
from typing import Any

import click

from swiftchat.chat.options.parameter import shown

_MAX_S = 100 * 366 * 86400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A length of time in seconds, written as a number with its unit s, m, h or d.

    It is above 0 and below a hundred years.
    """

    name = "TIME"
    rule = "a time such as 90s, 10m, 2h or 7d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", str(value).strip())
        seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
        if not 0 < seconds < _MAX_S:
            self.fail(f"{shown(value)} is not {self.rule}", param, ctx)
        return seconds

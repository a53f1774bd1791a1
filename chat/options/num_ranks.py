"""The value of `--tp`."""

from typing import Any

import click


class RankCount(click.ParamType):  # type: ignore[type-arg]  # older ones are not generic
    """A number of ranks, 1 or more, or `auto`."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto" or isinstance(value, int):
            return value
        if not str(value).isdecimal() or int(value) < 1:
            self.fail(f"{value!r} is neither a number from 1 on nor auto", param, ctx)
        return int(value)

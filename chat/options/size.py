"""Sizes in bytes on the command line: 0, 500M, 8G, 1.5GiB."""

import re
from typing import Any

import click

_UNITS = ("", "K", "M", "G", "T")


class Size(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A number of bytes: units K, M, G and T are powers of 1000, with iB (8GiB) of 1024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        text = str(value).strip()
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(iB|B)?", text, re.IGNORECASE)
        if found is None:
            self.fail(f"{value!r} is not a size such as 0, 500M, 8G or 8GiB", param, ctx)
        base = 1024 if (found[3] or "").lower() == "ib" else 1000
        return int(float(found[1]) * base ** _UNITS.index(found[2].upper()))

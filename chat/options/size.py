"""Sizes in bytes on the command line: 0, 500M, 8G, 1.5GiB."""

import re
from typing import Any

import click

from swiftchat.chat.options.parameter import shown

_MAX_BYTES = 1 << 62
_UNITS = ("", "K", "M", "G", "T")


class Size(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.2
    """A number of bytes: units K, M, G and T are powers of 1000, with iB (8GiB) of 1024.

    `is_positive` refuses 0.
    """

    name = "SIZE"

    def __init__(self, *, is_positive: bool = False) -> None:
        self._least = int(is_positive)
        self.rule = f"a size such as {'' if is_positive else '0, '}500M, 8G or 8GiB"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value).strip()
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(iB|B)?", text, re.IGNORECASE)
        num_bytes = -1.0
        if found is not None:
            base = 1024 if (found[3] or "").lower() == "ib" else 1000
            num_bytes = float(found[1]) * base ** _UNITS.index(found[2].upper())
        if not self._least <= num_bytes <= _MAX_BYTES:
            self.fail(f"{shown(text)} is not {self.rule}", param, ctx)
        return int(num_bytes)

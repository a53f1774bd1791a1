"""A page of `swiftchat help TOPIC`: plain text.

A word in double braces, such as {{keys}}, is replaced by the result of its function in `FILLED`
(`pages.py`).
"""

from typing import NamedTuple


class Page(NamedTuple):
    summary: str
    text: str

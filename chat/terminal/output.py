"""Output to the terminal: text and lines on stdout, notices on stderr."""

import shutil
import sys
from typing import TextIO

from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.chat.terminal.streams import painted
from swiftchat.errors.addresses import without_passwords


def write(text: str) -> None:
    """Write text to stdout and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_line(text: str, indent: int = 0) -> None:
    """Print one line on stdout, sanitized; further rows on the terminal are indented.

    Passwords in addresses are left out.
    """
    print(wrapped(sanitize(without_passwords(text)), sys.stdout, indent), flush=True)


def print_notice(text: str, part: str = "notice", label: str = "") -> None:
    """Print one line to stderr, sanitized, without passwords in addresses.

    `part` of the theme is its style; if it begins with `label`, that of the label alone.
    """
    line = wrapped(label + sanitize(without_passwords(text)), sys.stderr)
    end = len(label) or len(line)
    print(painted(sys.stderr, part, line[:end]) + line[end:], file=sys.stderr, flush=True)


def wrapped(line: str, stream: TextIO, indent: int = 0) -> str:
    """Break a line between words if `stream` is a terminal; others get one line."""
    if not stream.isatty():
        return line
    # Imported here, because a pipe does not need it.
    import textwrap

    width = shutil.get_terminal_size().columns
    rows = (
        textwrap.fill(
            part,
            width,
            subsequent_indent=" " * min(indent, width // 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in line.split("\n")
    )
    return "\n".join(rows)

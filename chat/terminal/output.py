"""Output to the terminal: text on stdout, notices on stderr."""

import sys

from swiftchat.chat.terminal.sanitize import sanitize


def write(text: str) -> None:
    """Write text to stdout and flush."""
    sys.stdout.write(text)
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """Print one line to stderr, sanitized."""
    print(sanitize(text), file=sys.stderr, flush=True)

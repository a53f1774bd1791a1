"""The process that searches files: it reads a request as JSON from stdin, and prints matches.

An expression may take time without end, and then the process is killed; it limits its memory.
"""

import io
import json
import re
import resource
import stat
import sys
from pathlib import Path

from swiftchat.chat.attachments.folder import readable_files
from swiftchat.chat.attachments.user_text import decode_text
from swiftchat.chat.builtin.place import Place
from swiftchat.errors import SwiftchatError

_MEMORY_BYTES = 2 << 30
_MAX_FILE_BYTES = 8 << 20
_MAX_MATCHES = 200
_MAX_CHARACTERS = 300  # of a line


def search(pattern: str, path: str, top: str) -> int:
    """Print the matches and a note on what was left out; return the exit code."""
    try:
        expression = re.compile(pattern)
        is_folder = stat.S_ISDIR(Path(path).lstat().st_mode)
        names = [f"{path}/{name}" for name in readable_files(Path(path))] if is_folder else [path]
    except (re.error, RecursionError, OverflowError, OSError, SwiftchatError) as error:
        kind = "the expression is not valid: " if isinstance(error, re.error) else ""
        print(f"{kind}{error}")
        return 1
    num_matches, num_left_out = 0, 0
    for name in names:
        place = Place(name, top)
        text = _text(place)
        num_left_out += text is None
        for number, line in enumerate((text or "").split("\n"), 1):
            if expression.search(line) is None:
                continue
            if num_matches == _MAX_MATCHES:
                print(f"… (more than {_MAX_MATCHES} lines match)")
                return 0
            num_matches += 1
            print(f"{place.name}:{number}: {line[:_MAX_CHARACTERS]}", flush=True)
    if num_left_out:
        print(f"(not searched: {num_left_out} files that are no text, or large)")
    return 0


def _text(place: Place) -> str | None:
    """Return the text of a file, None if it is none or cannot be read."""
    try:
        decoded = decode_text(place.read(_MAX_FILE_BYTES))
    except SwiftchatError:
        return None
    return decoded[0] if decoded else None


def main() -> None:
    """Answer one request."""
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # names of files may be anything
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    sys.exit(search(**json.load(sys.stdin)))


if __name__ == "__main__":
    main()

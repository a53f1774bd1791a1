"""Options in files: TOML, names and values, each with its file and key in errors."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.chat_options import FILE_NAMES, option_name, typed
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.options.user_files import config_path
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import UsageError

# tomllib needs memory that grows with the square of the number of parts of a key.
_LONG_KEY = re.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}"""
)


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises `ValueError`, with one sentence, for whatever is wrong with the text."""
    # Imported here: most starts have no such file.
    import tomllib

    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 64 parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise ValueError("the values are nested too deeply") from None
    except ValueError:  # of `int`
        raise ValueError("a number has thousands of digits") from None


def read_options(values: Mapping[str, Any], known: Collection[str], source: str) -> dict[str, Any]:
    """Return values by option name, in their types; `source` is the name of their file.

    Raises `UsageError` for an unknown option, one that is set twice, and an invalid value.
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        option = option_name(name)
        if option not in known:
            raise UsageError(f"{source}: unknown option {shown(name)}", _hint_on(name, known))
        if option in found:
            raise UsageError(f"{source}: {option} is set twice", f"remove one: {shown(name)}")
        found |= typed({option: value}, f"{source}: ")
    return found


def load_config_file() -> dict[str, Any]:
    """Return the values of the configuration file by option name, {} without a file.

    An unknown option is a warning: another version may know it. Raises `UsageError` for invalid
    TOML, an option that is set twice, and an invalid value.
    """
    path = config_path()
    if not path.is_file():
        return {}
    try:
        values = parse_toml(read_text(str(path)).told())
    except ValueError as error:
        raise UsageError(f"{path}: {error}", "correct the file, or remove it") from error
    for name in [name for name in values if option_name(name) not in FILE_NAMES]:
        del values[name]
        hint = _hint_on(name, FILE_NAMES)
        print_notice(f"warning: {path}: unknown option {shown(name)} is left out; {hint}")
    return read_options(values, FILE_NAMES, str(path))


def _hint_on(name: str, known: Collection[str]) -> str:
    """Return a hint on the unknown name of an option."""
    import difflib

    near = difflib.get_close_matches(name[:80].replace("-", "_"), known, n=1)
    return f"did you mean {near[0]}?" if near else "swiftchat chat --help lists the options"

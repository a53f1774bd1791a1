"""SWIFTCHAT_* variables that nothing reads, such as misspelled ones."""

from collections.abc import Iterable

import click

_PREFIX = "SWIFTCHAT_"
# Read by subcommands or by the engine, not by an option of the chat.
_OTHERS = (
    "SWIFTCHAT_API_TOKEN",
    "SWIFTCHAT_CPU_KERNELS",
    "SWIFTCHAT_OFFLINE",
)


def unread_variables(names: Iterable[str], options: Iterable[click.Parameter]) -> list[str]:
    """Return a sentence on each name with the prefix that neither the options nor others read."""
    known = {*_OTHERS, *(name for option in options for name in _variables(option))}
    found = sorted(name for name in names if name.startswith(_PREFIX) and name not in known)
    return [_sentence(name, known) for name in found]


def _variables(option: click.Parameter) -> tuple[str, ...]:
    names = option.envvar or ()
    return (names,) if isinstance(names, str) else tuple(names)


def _sentence(name: str, known: Iterable[str]) -> str:
    # Imported here, because hardly any start needs it.
    import difflib

    names = [each.removeprefix(_PREFIX) for each in known]
    near = difflib.get_close_matches(name.removeprefix(_PREFIX), names, n=1)
    hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
    return f"nothing reads the variable {name}{hint}"

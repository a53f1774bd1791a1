"""Roles: a system prompt, a prompt, model and parameters, one Markdown file each.

A value of a variable is inserted as it is: it is never searched for variables, and the chat
template encodes it like any typed text.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from swiftchat.chat.options.chat_options import CONFIG_NAMES
from swiftchat.chat.options.option_files import read_options
from swiftchat.chat.options.role_text import (
    VARIABLE,
    VARIABLE_NAME,
    RoleText,
    read_role,
)
from swiftchat.errors import UsageError


@dataclass(frozen=True)
class Role:
    """Options by name, a system prompt and a prompt, which may be empty.

    `defaults` has the default of each variable, None for those without one.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    prompt: str = ""
    defaults: dict[str, str | None] = field(default_factory=dict)

    def filled(self, values: Mapping[str, str], usage: str = "-v ") -> "Role":
        """Return the role with the variables replaced by `values`, or else by their defaults.

        `usage` precedes a variable in hints. Raises `UsageError` for unknown and missing variables.
        """
        if unknown := [name for name in values if name not in self.defaults]:
            known = f"it has {', '.join(self.defaults)}" if self.defaults else "it has none"
            raise UsageError(f"the role has no variable {_listed(unknown)}", known)
        texts = {**self.defaults, **values}
        if missing := [name for name, text in texts.items() if text is None]:
            raise UsageError(
                f"the role needs a value for {_listed(missing)}",
                "add " + " ".join(f"{usage}{name}=VALUE" for name in missing),
            )
        found = {name: text for name, text in texts.items() if text is not None}
        return replace(self, system=_filled(self.system, found), prompt=_filled(self.prompt, found))


def _filled(text: str, values: Mapping[str, str]) -> str:
    return VARIABLE.sub(lambda m: m[0][1:] if m[1] else values[m[2]], text)


def _listed(names: Iterable[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} and {last}" if others else last


def parse_values(words: Iterable[str]) -> dict[str, str]:
    """Return the values of variables, given as `NAME=VALUE`. Raises `UsageError` without a `=`."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(VARIABLE_NAME, name):
            raise UsageError(f"{word!r} is not NAME=VALUE", "write it as lang=python")
        values[name] = value
    return values


def load_role(name: str) -> Role:
    """Load a role. Raises `UsageError` if it is invalid, or sets an option that no role may set."""
    return role_of(read_role(name))


def role_of(text: RoleText) -> Role:
    """Return the role of a text. Raises `UsageError` as `load_role`."""
    settings = read_options(text.options, {*CONFIG_NAMES, "prompt"}, text.file)
    system, prompt = settings.pop("system", ""), settings.pop("prompt", "")
    if text.body and system:
        raise UsageError(
            f"{text.file}: both `system` and a text below the options", "remove one of them"
        )
    return Role(settings, text.body or system, prompt.strip(), text.defaults)

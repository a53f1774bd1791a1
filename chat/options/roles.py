"""Roles: a system prompt with the model and parameters that go with it, one Markdown file each.

`roles/NAME.md` in the configuration folder: options by their names in the configuration file
between two lines `---`, then the system prompt. The options are YAML, read with PyYAML: that is
what such files have wherever people keep them, and PyYAML is here anyway, with the hub's library.
"""

import difflib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftchat.chat.options.config import config_path, read_text
from swiftchat.errors import UsageError

_FENCE = "---"
_MOST_CHARACTERS = 1 << 18
# What the parameters are called elsewhere, besides `-` for `_`.
_OTHER_NAMES = {"temperature": "temp"}


@dataclass(frozen=True)
class Role:
    """Options by name, and the system prompt, which may be empty."""

    settings: dict[str, Any]
    system: str


def roles_folder() -> Path:
    return config_path().parent / "roles"


def role_names() -> list[str]:
    return sorted(file.stem for file in roles_folder().glob("*.md"))


def load_role(name: str, known: Collection[str]) -> Role:
    """The role of that name; `known` are the options it may set. `UsageError` for a wrong one."""
    folder, there = roles_folder(), role_names()
    if name not in there:
        listed = f"there are: {', '.join(there)}" if there else f"write {folder / 'NAME.md'}"
        raise UsageError(f"no role {name!r}", listed)
    file = folder / f"{name}.md"
    text = read_text(str(file))
    if len(text) > _MOST_CHARACTERS:
        raise UsageError(f"{file} is absurdly long")
    return role_of(text.removeprefix("\ufeff"), known, str(file))


def role_of(text: str, known: Collection[str], file: str) -> Role:
    """The role in the text of a file, which is named in errors."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return Role({}, text.strip())
    ends = [i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE]
    if not ends:
        raise UsageError(f"{file}: no second line {_FENCE}", "the options end with one")
    settings = _settings("\n".join(lines[1 : ends[0]]), known, file)
    body = "\n".join(lines[ends[0] + 1 :]).strip()
    system = settings.pop("system", "")
    if body and system:
        raise UsageError(f"{file}: `system` and a text below the options", "leave one of them out")
    return Role(settings, body or str(system))


def _settings(header: str, known: Collection[str], file: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {error}", "the options are YAML, as `temp: 0.2`") from error
    if not isinstance(values, dict | None):
        raise UsageError(f"{file}: the options are no mapping", "as `temp: 0.2`")
    settings: dict[str, Any] = {}
    for key, value in (values or {}).items():
        option = str(key).replace("-", "_")
        option = _OTHER_NAMES.get(option, option)
        if option not in known:
            near = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            raise UsageError(f"{file}: unknown option {str(key)!r}", hint)
        if not isinstance(value, str | int | float):
            raise UsageError(f"{file}: {key} is neither a text nor a number")
        settings[option] = value
    return settings

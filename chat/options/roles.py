"""Roles: a system prompt with model and parameters, one Markdown file each.

`roles/NAME.md` in the configuration folder has options, named as in the configuration file, as
YAML front matter between two lines `---`, and then the system prompt. PyYAML is installed as a
dependency of huggingface_hub.
"""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swiftchat.chat.options.config import config_path, read_text, unknown_option
from swiftchat.errors import UsageError

_FENCE = "---"
_MAX_CHARACTERS = 1 << 18
# Names of parameters in other programs, besides `-` for `_`.
_ALIASES = {"temperature": "temp"}


@dataclass(frozen=True)
class Role:
    """Options by name, and a system prompt, which may be empty."""

    settings: dict[str, Any]
    system: str


def roles_folder() -> Path:
    return config_path().parent / "roles"


def role_names() -> list[str]:
    return sorted(file.stem for file in roles_folder().glob("*.md"))


def load_role(name: str, known: Collection[str]) -> Role:
    """Load a role; `known` are the options it may set. Raises `UsageError` if it is invalid."""
    folder, names = roles_folder(), role_names()
    if name not in names:
        hint = f"roles: {', '.join(names)}" if names else f"write {folder / 'NAME.md'}"
        raise UsageError(f"no role {name!r}", hint)
    file = folder / f"{name}.md"
    text = read_text(str(file))
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"{file} has more than {_MAX_CHARACTERS} characters")
    return parse_role(text.removeprefix("\ufeff"), known, str(file))


def parse_role(text: str, known: Collection[str], file: str) -> Role:
    """Parse the text of a role file; `file` is its name for errors."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return Role({}, text.strip())
    ends = [i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE]
    if not ends:
        raise UsageError(
            f"{file}: the second line {_FENCE} is missing", f"end the options with a line {_FENCE}"
        )
    settings = _parse_settings("\n".join(lines[1 : ends[0]]), known, file)
    body = "\n".join(lines[ends[0] + 1 :]).strip()
    system = settings.pop("system", "")
    if body and system:
        raise UsageError(
            f"{file}: both `system` and a text below the options", "remove one of them"
        )
    return Role(settings, body or str(system))


def _parse_settings(header: str, known: Collection[str], file: str) -> dict[str, Any]:
    import yaml

    try:
        values = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {error}", "write the options as YAML, as `temp: 0.2`") from error
    if not isinstance(values, dict | None):
        raise UsageError(f"{file}: the options are not a mapping", "write them as `temp: 0.2`")
    settings: dict[str, Any] = {}
    for key, value in (values or {}).items():
        option = str(key).replace("-", "_")
        option = _ALIASES.get(option, option)
        if option not in known:
            raise unknown_option(file, str(key), known)
        if not isinstance(value, str | int | float):
            raise UsageError(f"{file}: the value of {key} is neither a string nor a number")
        settings[option] = value
    return settings

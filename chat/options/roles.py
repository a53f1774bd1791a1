"""Roles: a system prompt, a prompt, model and parameters, one Markdown file each.

`roles/NAME.md` in the configuration folder has options, named as in the configuration file, as
YAML front matter between two lines `---`, and then the system prompt. `prompt` is the beginning of
the first message. Both texts may contain variables, `{{name}}`; `variables` gives their defaults.
A value is inserted as it is: it is never searched for variables, and the chat template encodes it
like any typed text. PyYAML is installed as a dependency of huggingface_hub.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.config import config_path, unknown_option
from swiftchat.chat.options.parameters import TEXTS_PARAMETERS, named_options, option_name
from swiftchat.errors import UsageError

_FENCE = "---"
_MAX_CHARACTERS = 1 << 18
_NULL = "tag:yaml.org,2002:null"
_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
# A variable, or one that a backslash makes plain text.
_VARIABLE = re.compile(rf"(\\?)\{{\{{[ \t]*({_NAME})[ \t]*\}}\}}")


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
    return _VARIABLE.sub(lambda m: m[0][1:] if m[1] else values[m[2]], text)


def _listed(names: Iterable[str]) -> str:
    *others, last = map(repr, names)
    return f"{', '.join(others)} and {last}" if others else last


def parse_values(words: Iterable[str]) -> dict[str, str]:
    """Return the values of variables, given as `NAME=VALUE`. Raises `UsageError` without a `=`."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not re.fullmatch(_NAME, name):
            raise UsageError(f"{word!r} is not NAME=VALUE", "write it as lang=python")
        values[name] = value
    return values


def roles_folder() -> Path:
    return config_path().parent / "roles"


def role_names() -> list[str]:
    return sorted(file.stem for file in roles_folder().glob("*.md"))


def load_role(name: str, known: Collection[str]) -> Role:
    """Load a role; `known` are the options it may set. Raises `UsageError` if it is invalid."""
    file = role_file(name)
    text = read_text(str(file)).told()
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"{file} has more than {_MAX_CHARACTERS} characters")
    return parse_role(text, known, str(file))


def role_file(name: str) -> Path:
    """Return the file of a role. Raises `UsageError` for an unknown name."""
    folder, names = roles_folder(), role_names()
    if name not in names:
        hint = f"roles: {', '.join(names)}" if names else f"write {folder / 'NAME.md'}"
        raise UsageError(f"no role {name!r}", hint)
    return folder / f"{name}.md"


def parse_role(text: str, known: Collection[str], file: str) -> Role:
    """Parse the text of a role file; `file` is its name for errors."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return _with_variables(Role(system=text.strip()))
    ends = [i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE]
    if not ends:
        raise UsageError(
            f"{file}: the second line {_FENCE} is missing", f"end the options with a line {_FENCE}"
        )
    header = "\n".join(lines[1 : ends[0]])
    values = _parse_header(header, file)
    defaults = _parse_defaults(header, file) if values.pop("variables", None) is not None else {}
    settings = _parse_settings(values, {*known, "prompt"}, file)
    system, prompt = settings.pop("system", ""), settings.pop("prompt", "")
    body = "\n".join(lines[ends[0] + 1 :]).strip()
    if body and system:
        raise UsageError(
            f"{file}: both `system` and a text below the options", "remove one of them"
        )
    return _with_variables(Role(settings, body or str(system), str(prompt).strip(), defaults))


def _with_variables(role: Role) -> Role:
    """Return the role with the variables of its texts that have no default."""
    used = [m[2] for m in _VARIABLE.finditer(f"{role.system}\n{role.prompt}") if not m[1]]
    return replace(role, defaults={**dict.fromkeys(used), **role.defaults})


def _parse_header(header: str, file: str) -> dict[Any, Any]:
    import yaml

    try:
        values = yaml.safe_load(header)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{file}: {error}", "write the options as YAML: `top_k: 40`") from error
    if not isinstance(values, dict | None):
        raise UsageError(f"{file}: the options are not a mapping", "write them as `top_k: 40`")
    return values or {}


def _parse_settings(values: dict[Any, Any], known: Collection[str], file: str) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in values.items():
        option = option_name(str(key))
        if option not in known:
            raise unknown_option(file, str(key), known)
        is_texts = option in TEXTS_PARAMETERS and isinstance(value, list)
        is_texts = is_texts and all(isinstance(one, str) for one in value)
        if not (is_texts or isinstance(value, str | int | float)):
            raise UsageError(
                f"{file}: the value of {key} is neither a string nor a number",
                "put a text with braces between quotes",
            )
        settings[str(key)] = value
    return named_options(settings, file)


def _parse_defaults(header: str, file: str) -> dict[str, str | None]:
    """Return the defaults of `variables` as they stand in the file, 3.10 as "3.10"."""
    import yaml

    root = yaml.compose(header, yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    node = next(value for key, value in root.value if key.value == "variables")
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{file}: `variables` is not a mapping", "write it as `lang: python`")
    defaults: dict[str, str | None] = {}
    for name, default in node.value:
        if not (isinstance(name.value, str) and re.fullmatch(_NAME, name.value)):
            raise UsageError(
                f"{file}: {name.value!r} cannot name a variable", "write it as `lang: python`"
            )
        if not isinstance(default, yaml.ScalarNode):
            raise UsageError(f"{file}: the default of {name.value} is not a text or a number")
        defaults[name.value] = None if default.tag == _NULL else default.value
    return defaults

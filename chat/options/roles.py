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
from typing import TYPE_CHECKING, Any

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.config import config_path
from swiftchat.chat.options.option_files import read_options
from swiftchat.chat.options.parameters import shown
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    import yaml

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
    nodes = _parse_header(header, file)
    defaults = _parse_defaults(nodes.pop("variables", None), file)
    texts = {key: _text_of(node, key, file) for key, node in nodes.items()}
    settings = read_options(texts, {*known, "prompt"}, file)
    system, prompt = settings.pop("system", ""), settings.pop("prompt", "")
    body = "\n".join(lines[ends[0] + 1 :]).strip()
    if body and system:
        raise UsageError(
            f"{file}: both `system` and a text below the options", "remove one of them"
        )
    return _with_variables(Role(settings, body or system, prompt.strip(), defaults))


def _with_variables(role: Role) -> Role:
    """Return the role with the variables of its texts that have no default."""
    used = [m[2] for m in _VARIABLE.finditer(f"{role.system}\n{role.prompt}") if not m[1]]
    return replace(role, defaults={**dict.fromkeys(used), **role.defaults})


def _parse_header(header: str, file: str) -> "dict[str, yaml.Node]":
    """Return the nodes of the options by key.

    A value is the text that stands in the file, as behind a flag: YAML would make a number of
    3.10 and 1:30, and true of `on`.
    """
    import yaml

    hint = "write the options as YAML: `top_k: 40`"
    try:
        root = yaml.compose(header, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise UsageError(f"{file}: {error}", hint) from error
    except RecursionError as error:
        raise UsageError(f"{file}: the options are nested too deeply", hint) from error
    if root is None or root.tag == _NULL:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{file}: the options are not a mapping", hint)
    nodes: dict[str, yaml.Node] = {}
    for key, value in root.value:
        if not isinstance(key, yaml.ScalarNode):
            raise UsageError(f"{file}: a name of an option is not a text", hint)
        if key.value in nodes:
            raise UsageError(f"{file}: {shown(key.value)} is set twice", "remove one")
        nodes[key.value] = value
    return nodes


def _text_of(node: "yaml.Node", key: str, file: str) -> str | list[str]:
    """Return the text of an option, or its list of texts."""
    import yaml

    nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if not all(isinstance(one, yaml.ScalarNode) for one in nodes):
        raise UsageError(
            f"{file}: {shown(key)} is neither a text nor a list of texts",
            "put a text with braces between quotes",
        )
    if any(one.tag == _NULL for one in nodes):
        raise UsageError(f"{file}: {shown(key)} has no value", "write one, or remove the line")
    texts: list[str] = [one.value for one in nodes]
    return texts if isinstance(node, yaml.SequenceNode) else texts[0]


def _parse_defaults(node: "yaml.Node | None", file: str) -> dict[str, str | None]:
    """Return the defaults of `variables`, None for those without one."""
    import yaml

    if node is None or node.tag == _NULL:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(f"{file}: `variables` is not a mapping", "write it as `lang: python`")
    defaults: dict[str, str | None] = {}
    for name, default in node.value:
        if not (isinstance(name.value, str) and re.fullmatch(_NAME, name.value)):
            written = shown(name.value) if isinstance(name.value, str) else "a list"
            raise UsageError(
                f"{file}: {written} cannot name a variable", "write it as `lang: python`"
            )
        if not isinstance(default, yaml.ScalarNode):
            raise UsageError(f"{file}: the default of {shown(name.value)} is not a text")
        defaults[name.value] = None if default.tag == _NULL else default.value
    return defaults

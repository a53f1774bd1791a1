"""The text of a role: options and variables in YAML, then the system prompt.

`roles/NAME.md` in the configuration folder has options, named as in the configuration file, as
YAML front matter between two lines `---`, and then the system prompt. `prompt` is the beginning of
the first message. Both texts may contain variables, `{{name}}`; `variables` gives their defaults.
PyYAML is installed as a dependency of huggingface_hub.
"""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swiftchat.chat.attachments.user_text import read_text
from swiftchat.chat.options.parameter import shown
from swiftchat.chat.options.user_files import role_file
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    import yaml

VARIABLE_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
# A variable, or one that a backslash makes plain text.
VARIABLE = re.compile(rf"(\\?)\{{\{{[ \t]*({VARIABLE_NAME})[ \t]*\}}\}}")
_FENCE = "---"
_MAX_CHARACTERS = 1 << 18
_NULL = "tag:yaml.org,2002:null"


@dataclass(frozen=True)
class RoleText:
    """The options of a role by name, as they are written, and the text below them.

    `defaults` has the default of each variable, None for those without one. `file` is for errors.
    """

    file: str
    options: dict[str, str | list[str]] = field(default_factory=dict)
    body: str = ""
    defaults: dict[str, str | None] = field(default_factory=dict)


def read_role(name: str) -> RoleText:
    """Read a role. Raises `UsageError` if there is none, or its file is damaged."""
    file = role_file(name)
    text = read_text(str(file)).told()
    if len(text) > _MAX_CHARACTERS:
        raise UsageError(f"{file} has more than {_MAX_CHARACTERS} characters")
    return split_role(text, str(file))


def split_role(text: str, file: str) -> RoleText:
    """Split the text of a role file; `file` is its name for errors."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != _FENCE:
        return _with_variables(RoleText(file, body=text.strip()))
    ends = [i for i, line in enumerate(lines[1:], 1) if line.strip() == _FENCE]
    if not ends:
        raise UsageError(
            f"{file}: the second line {_FENCE} is missing", f"end the options with a line {_FENCE}"
        )
    nodes = _parse_header("\n".join(lines[1 : ends[0]]), file)
    defaults = _parse_defaults(nodes.pop("variables", None), file)
    options = {key: _text_of(node, key, file) for key, node in nodes.items()}
    body = "\n".join(lines[ends[0] + 1 :]).strip()
    return _with_variables(RoleText(file, options, body, defaults))


def _with_variables(role: RoleText) -> RoleText:
    """Return the role with the variables of its texts that have no default."""
    texts = role.options.get("system"), role.options.get("prompt"), role.body
    joined = "\n".join(text for text in texts if isinstance(text, str))
    used = [found[2] for found in VARIABLE.finditer(joined) if not found[1]]
    return RoleText(role.file, role.options, role.body, {**dict.fromkeys(used), **role.defaults})


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
        if not (isinstance(name.value, str) and re.fullmatch(VARIABLE_NAME, name.value)):
            written = shown(name.value) if isinstance(name.value, str) else "a list"
            raise UsageError(
                f"{file}: {written} cannot name a variable", "write it as `lang: python`"
            )
        if not isinstance(default, yaml.ScalarNode):
            raise UsageError(f"{file}: the default of {shown(name.value)} is not a text")
        defaults[name.value] = None if default.tag == _NULL else default.value
    return defaults

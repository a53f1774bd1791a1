"""The chat templates of a model directory, by name."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.huggingface.files import MORE_TEMPLATES, parsed_object, text_of

_OLDER = "chat_template.json"


def template_files(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates that replace those of `config`, the `tokenizer_config.json`.

    These are `chat_template.jinja` as `default`, and `additional_chat_templates/NAME.jinja`; if
    there are none, nor any in `config`, the older `chat_template.json`.
    """
    more = [name for name in files if name.startswith(MORE_TEMPLATES)]
    found = {
        name.removeprefix(MORE_TEMPLATES).removesuffix(".jinja"): text_of(files, name)
        for name in more
    }
    default = "chat_template.jinja"
    found = {"default": text_of(files, default), **found} if default in files else found
    if found or config.get("chat_template") is not None:
        return found
    return named_templates(parsed_object(files, _OLDER), _OLDER)


def named_templates(
    config: Mapping[str, Any], file: str = "tokenizer_config.json"
) -> dict[str, str]:
    """Return the `chat_template` of the parsed `file`: one, an object by name, or a list.

    Raises `BadModelFile` if it is none of these.
    """
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": name, "template": source} for name, source in value.items()]
    found = {}
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict):
            raise BadModelFile(f"{file}: chat_template is not a string")
        name, source = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(source, str):
            raise BadModelFile(f"{file}: an entry of chat_template has no name or no template")
        found[name] = source
    return found

"""The chat templates of a model directory, by name."""

from collections.abc import Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer.huggingface.files import MORE_TEMPLATES, text_of

__all__ = ["named_templates", "template_files"]


def template_files(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return `chat_template.jinja` as `default`, and `additional_chat_templates/NAME.jinja`.

    They replace the templates of `tokenizer_config.json`.
    """
    more = [name for name in files if name.startswith(MORE_TEMPLATES)]
    found = {
        name.removeprefix(MORE_TEMPLATES).removesuffix(".jinja"): text_of(files, name)
        for name in more
    }
    default = "chat_template.jinja"
    return {"default": text_of(files, default), **found} if default in files else found


def named_templates(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the `chat_template` of `tokenizer_config.json`, one or a list of named ones.

    Raises `BadModelFile` if it is neither.
    """
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    found = {}
    for entry in value if isinstance(value, list) else [None]:
        if not isinstance(entry, dict):
            raise BadModelFile("tokenizer_config.json: chat_template is not a string")
        name, source = entry.get("name"), entry.get("template")
        if not isinstance(name, str) or not isinstance(source, str):
            raise BadModelFile(
                "tokenizer_config.json: an entry of chat_template has no name or no template"
            )
        found[name] = source
    return found

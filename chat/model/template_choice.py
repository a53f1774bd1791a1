"""Choice of the chat template: an option, the model's own, or a built-in one."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.files.paths import user_path
from swiftchat.weights.files.reading import read_small_file

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.tokenizer.template.builtin import BuiltIn

_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True)
class TemplateChoice:
    """A chat template; `source` None means the model's own, `ends` are texts that end an answer."""

    name: str
    source: str | None = None
    ends: tuple[str, ...] = ()


def choose_template(
    requested: str | None, tokenizer: "Tokenizer", model_type: str
) -> TemplateChoice:
    """Return the template of `--template`, else the model's own, else that of its family.

    `requested` is a template of the model, a built-in template or a file. Raises `UsageError` for
    an unknown name, `FileSystemError` for an unreadable file, `BadModelFile` for a file that is
    not text and for a model without a known template.
    """
    # Imported here, because it would delay the prompt.
    from swiftchat.tokenizer.template.builtin import BUILT_IN, family_template

    if requested is None:
        if tokenizer.templates:
            return TemplateChoice("its own")
        name = family_template(model_type, tokenizer.special_tokens)
        if name is None:
            raise BadModelFile(
                "the model has no chat template, and none is known for its family",
                f"--template FILE or one of {_listed(BUILT_IN)}; --no-template completes text",
            )
        return _built_in(name, BUILT_IN[name])
    if requested in tokenizer.templates:
        return TemplateChoice(requested, tokenizer.templates[requested])
    if requested in BUILT_IN:
        return _built_in(requested, BUILT_IN[requested])
    path = user_path(requested)
    if not path.exists() and path.name == requested and not path.suffix:
        known = _listed([*tokenizer.templates, *BUILT_IN])
        raise UsageError(f"unknown chat template {requested!r}", f"known: {known}; or give a file")
    return TemplateChoice(path.name, _read(path))


def describe_template(tokenizer: "Tokenizer", model_type: str) -> str:
    """Describe the template of a model for `swiftchat show`."""
    if tokenizer.templates:
        return "yes" if list(tokenizer.templates) == ["default"] else _listed(tokenizer.templates)
    try:
        return f"built in: {choose_template(None, tokenizer, model_type).name}"
    except BadModelFile:
        return "no"


def _built_in(name: str, template: "BuiltIn") -> TemplateChoice:
    return TemplateChoice(name, template.source, template.ends)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _read(path: Path) -> str:
    try:
        return read_small_file(path, _MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadModelFile(f"the chat template {path} is not UTF-8 text") from error

"""Which chat template a conversation is written with."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.errors import BadModelFile, FileSystemError, UsageError

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer
    from swiftchat.tokenizer.template.builtin import BuiltIn

_LARGEST_FILE = 1 << 20


@dataclass(frozen=True)
class TemplateChoice:
    """`source` None leaves the choice among the model's own; `ends` is what ends an answer."""

    name: str
    source: str | None = None
    ends: tuple[str, ...] = ()


def choose_template(asked: str | None, tokenizer: "Tokenizer", model_type: str) -> TemplateChoice:
    """The template of `--template`, else the model's own, else that of its family.

    `asked` is a name among the model's own or the built-in ones, or a file. Raises `UsageError`
    for a name nobody knows, `FileSystemError` for a file that cannot be read, `BadModelFile`
    for one that is no text and where no template is certain.
    """
    # Here, not at the top: the prompt must not wait for it.
    from swiftchat.tokenizer.template.builtin import BUILT_IN, family_template

    if asked is None:
        if tokenizer.templates:
            return TemplateChoice("its own")
        name = family_template(model_type, tokenizer.special_tokens)
        if name is None:
            raise BadModelFile(
                "the model has no chat template, and its files do not tell which it would need",
                f"--template FILE or one of {_listed(BUILT_IN)}; --no-template completes text",
            )
        return _built_in(name, BUILT_IN[name])
    if asked in tokenizer.templates:
        return TemplateChoice(asked, tokenizer.templates[asked])
    if asked in BUILT_IN:
        return _built_in(asked, BUILT_IN[asked])
    path = Path(asked).expanduser()
    if not path.exists() and path.name == asked and not path.suffix:
        known = _listed([*tokenizer.templates, *BUILT_IN])
        raise UsageError(f"no chat template is called {asked!r}", f"known: {known}; or give a file")
    return TemplateChoice(path.name, _read(path))


def template_fact(tokenizer: "Tokenizer", model_type: str) -> str:
    """What `show` says of a model's template."""
    if tokenizer.templates:
        return "yes" if list(tokenizer.templates) == ["default"] else _listed(tokenizer.templates)
    try:
        return f"built in: {choose_template(None, tokenizer, model_type).name}"
    except BadModelFile:
        return "no"


def _built_in(name: str, form: "BuiltIn") -> TemplateChoice:
    return TemplateChoice(name, form.source, form.ends)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise BadModelFile(f"the chat template {path} is absurdly long")
        return path.read_bytes().decode()
    except OSError as error:
        raise FileSystemError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadModelFile(f"the chat template {path} is no UTF-8 text") from error

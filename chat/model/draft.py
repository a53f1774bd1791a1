"""What `--draft` names, a draft model or prediction heads: find it, compare it with the model."""

from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from swiftchat.chat.model.find import find_model
from swiftchat.chat.options.config import ChatConfig
from swiftchat.chat.terminal.output import print_notice
from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.files.paths import user_path


def with_draft(config: ChatConfig, path: Path) -> ChatConfig:
    """Return the config with the directory of the draft model for the model in the folder `path`.

    The draft model is downloaded if it is missing. Raises `UsageError` if its ids stand for other
    texts, `BadModelFile` if the directory has prediction heads of another model.
    """
    if config.draft is None:
        return config
    # Imported here: few chats have a draft model.
    from swiftchat.weights.heads.mtp import MTP
    from swiftchat.weights.heads.open import are_heads, open_heads
    from swiftchat.weights.model.directory import Model

    if config.draft == MTP:
        return config  # the engine looks for the layer before it loads the model
    heads = user_path(config.draft)
    if are_heads(heads):
        open_heads(heads, Model.open(path).config)
        return replace(config, draft=str(heads.resolve()))
    draft = find_model(config.draft, offline=config.offline, quiet=config.quiet)
    check_vocabulary(path, draft)
    return replace(config, draft=str(draft))


def draft_kept(config: ChatConfig, path: Path) -> ChatConfig:
    """Return the config for another model, without a draft model or heads that do not fit it.

    A notice says so.
    """
    try:
        return with_draft(config, path)
    except (BadModelFile, UsageError) as error:
        print_notice(f"{error.message}; speculation goes on without it")
        return replace(config, draft=None, speculate=None)


def check_vocabulary(path: Path, draft: Path) -> None:
    """Raise `UsageError` if the draft model's ids stand for other texts than the model's."""
    from swiftchat.tokenizer import Tokenizer

    ours, theirs = Tokenizer.load(path), Tokenizer.load(draft)
    pairs = zip_longest(ours.token_bytes(), theirs.token_bytes(), fillvalue=b"")
    for token_id, (one, other) in enumerate(pairs):
        if one != other:
            raise UsageError(
                f"the draft model {draft.name} has another vocabulary than {path.name}: token "
                f"{token_id} is {_shown(other)}, not {_shown(one)}",
                "choose a smaller model of the same family",
            )


def _shown(piece: bytes) -> str:
    return repr(piece.decode("utf-8", "replace")) if piece else "missing"

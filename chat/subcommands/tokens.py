"""`swiftchat tokens`: count and show the tokens of a text."""

import json as json_module
import os
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from swiftchat.chat.options.completion import complete_models
from swiftchat.chat.options.option_types import UserPath
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.weights.files.paths import user_path

if TYPE_CHECKING:
    from swiftchat.tokenizer import Tokenizer

_SPACES = {" ": "·", "\t": "→", "\n": "⏎\n"}
_COLOR, _RESET = "\x1b[30;46m", "\x1b[0m"


@click.command()
@click.argument("file", type=UserPath())
@click.option(
    "-m",
    "--model",
    envvar="SWIFTCHAT_MODEL",
    shell_complete=complete_models,
    help="Name, OWNER/NAME, directory, .gguf file or tokenizer file.",
)
@click.option("--show", is_flag=True, help="Print the text split into its tokens.")
@click.option("--ids", "with_ids", is_flag=True, help="Print the token ids.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, with the output of --show and --ids."
)
@click.option("--offline", envvar="SWIFTCHAT_OFFLINE", is_flag=True, help="Never use the network.")
def tokens(
    file: str, model: str | None, show: bool, with_ids: bool, as_json: bool, offline: bool
) -> None:
    """Count the tokens of FILE (- is stdin) for a model.

    The text is encoded like a user's input: without a chat template and without control tokens.
    """
    from swiftchat.chat.attachments.user_text import read_text

    text = read_text(file).told()
    tokenizer = _tokenizer(model, offline)
    ids = tokenizer.encode(text)
    pieces = [piece.decode("utf-8", "backslashreplace") for piece in tokenizer.pieces(ids)]
    if as_json:
        report: dict[str, object] = {"tokens": len(ids), "characters": len(text)}
        report |= {"ids": ids} if with_ids else {}
        report |= {"pieces": pieces} if show else {}
        print(json_module.dumps(report, ensure_ascii=False))
        return
    if show:
        shown = colored(pieces) if _has_colors() else separated(pieces)
        print(shown, end="" if shown.endswith("\n") else "\n")
    if with_ids:
        print(*ids)
    print(len(ids), file=sys.stderr if show or with_ids else sys.stdout)


def colored(pieces: Iterable[str]) -> str:
    """Join pieces for a terminal, every second one on a colored background."""
    out = []
    for number, piece in enumerate(pieces):
        lines = marked(piece).split("\n")
        is_odd = number % 2 == 1
        out.append("\n".join(f"{_COLOR}{s}{_RESET}" if is_odd and s else s for s in lines))
    return "".join(out)


def separated(pieces: Iterable[str]) -> str:
    """Join pieces with a bar between them."""
    return "|".join(map(marked, pieces))


def marked(piece: str) -> str:
    """Replace white space and control characters of a piece by glyphs; keep the newlines."""
    return re.sub(r"\s", lambda space: _SPACES.get(space[0], "␣"), sanitize(piece))


def _tokenizer(model: str | None, offline: bool) -> "Tokenizer":
    from swiftchat.chat.model.find import find_model
    from swiftchat.tokenizer import Tokenizer

    path = user_path(model or "")
    if not path.is_file() or path.suffix.lower() == ".gguf":
        path = find_model(model, offline=offline, quiet=False)
    return Tokenizer.load(path)


def _has_colors() -> bool:
    is_capable = os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")
    return sys.stdout.isatty() and is_capable

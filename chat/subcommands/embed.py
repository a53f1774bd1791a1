"""`swiftchat embed`: embeddings of texts, pooled from the model's last hidden states."""

import io
import json as json_module
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.options.completion import complete_files
from swiftchat.chat.options.option_types import OnceOption, UserPath
from swiftchat.chat.subcommands.score import MODEL
from swiftchat.engine.api.params import POOLINGS
from swiftchat.errors import FileSystemError, UsageError
from swiftchat.weights.files.output import is_stdout, is_stream, open_output

if TYPE_CHECKING:
    from swiftchat.chat.model.chat_model import ChatModel

SCHEMA = 1
_HINT = "name a file; for a text, add --text"


@dataclass(frozen=True)
class Input:
    """A text, and its name in errors and JSON: that of its file, or None."""

    text: str
    file: str | None = None
    line: int | None = None

    @property
    def name(self) -> str:
        if self.file is None:
            return f"the text {self.text!r:.40}"
        return self.file if self.line is None else f"{self.file}, line {self.line},"


@click.command(params=[MODEL, *options_of("embed")])
@click.argument(
    "inputs", metavar="TEXT|FILE|-...", nargs=-1, required=True, shell_complete=complete_files
)
@click.option("--text", "is_text", is_flag=True, help="Every argument is a text, never a file.")
@click.option("--lines", is_flag=True, help="Each line of a file or of stdin is a text.")
@click.option(
    "--pooling",
    type=click.Choice(POOLINGS),
    default="mean",
    help="Mean, sum, or the last one, of the tokens' hidden states; default: mean.",
)
@click.option("--normalize", is_flag=True, help="Divide each embedding by its Euclidean length.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-o",
    "--output",
    cls=OnceOption,
    metavar="FILE.npy",
    type=UserPath(path_type=Path),
    help="Write a float32 array [texts, width] to this file; - is stdout.",
)
def embed(
    inputs: tuple[str, ...],
    is_text: bool,
    lines: bool,
    pooling: str,
    normalize: bool,
    as_json: bool,
    output: Path | None,
    **options: Any,
) -> None:
    """Print the embedding of each TEXT or FILE (- is stdin), one line of numbers each.

    An argument is the name of a file if that exists, otherwise a text. A word that looks like the
    name of a file and is none is an error, except with --text.

    An embedding is the mean, the sum or the last one of the hidden states after the model's last
    norm. The text is encoded like a user's input, without a chat template; a model that begins
    texts with a control token gets it.
    """
    from swiftchat.chat.model.chat_model import chat_model_for
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.precedence import check_connect
    from swiftchat.chat.terminal.status_line import StatusLine
    from swiftchat.engine.api.embed import check_prompts, normalized
    from swiftchat.engine.api.embed import embed as embed_ids

    check_connect(click.get_current_context(), options)
    if as_json and output is not None:
        raise UsageError("--json and -o were both given", "choose one")
    if is_text and lines:
        raise UsageError("--text and --lines were both given", "--lines is for files and stdin")
    is_file = output is not None and not (is_stdout(output) or is_stream(output))
    if output is not None and is_file and output.suffix != ".npy":
        raise UsageError(f"{output} does not end with .npy", "-o writes a NumPy array")
    texts = list(_texts(inputs, is_text, lines))
    if output is not None and is_file:
        _make_folder(output)  # an error here costs less than after the computation
    config = ChatConfig(**options)
    config.check()
    status = StatusLine(may_erase=True, is_quiet=config.quiet)
    with chat_model_for(config) as chat_model:
        prompts = [chat_model.prompts.encode_plain(one.text).ids for one in texts]
        with status.waiting("loading the model"):
            context = chat_model.wait_ready().ctx_size_tokens
        check_prompts(prompts, context, [one.name for one in texts])
        with status.waiting("embedding"):
            vectors = list(
                embed_ids(
                    chat_model.engine,
                    prompts,
                    pooling,
                    lambda done: status.show("embedding", done, len(prompts)),
                )
            )
        if normalize:
            vectors = [normalized(vector) for vector in vectors]
        if as_json:
            settings = {"pooling": pooling, "normalized": normalize}
            report = _report(chat_model, texts, prompts, vectors) | settings
            print(json_module.dumps(report, ensure_ascii=False))
        elif output is not None:
            _write(output, vectors)
        else:
            for vector in vectors:
                print(*(f"{value:.7g}" for value in vector))


def _texts(inputs: tuple[str, ...], is_text: bool, lines: bool) -> Iterator[Input]:
    """Yield the texts of the arguments; raises `UsageError` and `FileSystemError`."""
    from swiftchat.chat.attachments.user_text import text_or_file

    if inputs.count("-") > 1 and not is_text:
        raise UsageError("- was given twice", "stdin can be read once")
    for one in inputs:
        text, name = (one, None) if is_text else text_or_file(one, _HINT)
        found = [Input(text, name)]
        if lines and name is not None:
            numbered = enumerate(text.split("\n"), 1)
            found = [Input(line, name, i) for i, line in numbered if line.strip()]
        if not found or any(not each.text.strip() for each in found):
            name = found[0].name if found else one
            raise UsageError(f"{name} is empty", "an embedding needs a text")
        yield from found


def _report(
    chat_model: "ChatModel",
    texts: list[Input],
    prompts: list[Any],
    vectors: list[list[float]],
) -> dict[str, Any]:
    found = []
    for one, prompt, vector in zip(texts, prompts, vectors, strict=True):
        source = {"file": one.file, "line": one.line}
        found.append({**source, "tokens": len(prompt), "embedding": vector})
    return {
        "schema": SCHEMA,
        "model": chat_model.name,
        "dimensions": len(vectors[0]),
        "embeddings": found,
    }


def _make_folder(output: Path) -> None:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileSystemError(f"cannot write {output}: {error.strerror}") from error


def _write(output: Path, vectors: list[list[float]]) -> None:
    """Write the array; a file appears complete or not at all."""
    import numpy as np

    content = io.BytesIO()  # numpy writes to files only
    np.save(content, np.array(vectors, dtype=np.float32))
    if is_stdout(output):
        sys.stdout.buffer.write(content.getbuffer())
        return
    with open_output(output) as file:
        file.write(content.getbuffer())

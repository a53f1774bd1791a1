"""`swiftchat batch`: options, progress and exit code."""

import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import SAMPLING_OPTIONS, options_of
from swiftchat.chat.options.option_types import MAX_AT_A_TIME, OnceOption, UserPath, Whole
from swiftchat.chat.subcommands.score import MODEL
from swiftchat.chat.terminal.output import print_notice
from swiftchat.chat.terminal.status_line import StatusLine
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.subcommands.batch.lines import Line
    from swiftchat.chat.subcommands.batch.output import Output

# Options besides those of sampling that change the answers of a batch.
_ANSWER_OPTIONS = (
    *("logprobs", "samples", "no_template", "template", "template_arg", "think"),
    *("reasoning_budget_message", "dtype", "kv_dtype", "ctx_size", "lora"),
)


@click.command(params=[MODEL, *options_of("batch")])
@click.argument("file", metavar="IN.jsonl", type=UserPath())
@click.option(
    "-o",
    "--output",
    cls=OnceOption,
    type=UserPath(path_type=Path),
    help="Write the answers to this file; - is stdout.",
)
@click.option("--as-finished", is_flag=True, help="Leave the answers in the order of their ends.")
@click.option("--overwrite", is_flag=True, help="Answer all lines again, also those in -o.")
@click.option(
    "--parallel",
    type=Whole(1, MAX_AT_A_TIME),
    metavar="N",
    help="Answers at a time; default: 16. More need more memory for the KV cache.",
)
def batch(
    file: str,
    output: Path | None,
    as_finished: bool,
    overwrite: bool,
    parallel: int | None,
    **options: Any,
) -> None:
    """Answer each line of IN.jsonl (- is stdin), many at a time; one JSON object per answer.

    A line is a JSON string, or an object with prompt or messages, and optionally id, system and
    sampling options, which take precedence over those of the command line:

    \b
    "Why is the sky blue?"
    {"id": 7, "prompt": "Name a color.", "temperature": 0, "max_tokens": 5}
    {"messages": [{"role": "user", "content": "Hi"}], "stop": ["\\n"]}

    It may also have response_format, tools, tool_choice and lora, as requests of the HTTP API, or
    be one in OpenAI's format, with custom_id, method, url and body; its answer has OpenAI's format
    too.

    An answer has the line's number and id, content, reasoning, finish_reason and usage; with
    samples above 1, a list of answers. A line that cannot be answered has an error instead, and
    the others are answered.

    After an interrupt, the same command with -o answers the lines that are missing or had an
    error. The exit code is 0 if all lines have an answer, otherwise that of the first error.
    """
    from swiftchat.chat.attachments.user_text import read_text
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.precedence import check_connect
    from swiftchat.chat.subcommands.batch.lines import split_lines
    from swiftchat.chat.subcommands.batch.output import open_output
    from swiftchat.weights.files.output import is_stdout

    check_connect(click.get_current_context(), options)
    if overwrite and output is None:
        raise UsageError("--overwrite belongs to -o", "add -o OUT.jsonl")
    config = ChatConfig(**options, parallel=parallel)
    config.check()
    lines = split_lines(read_text(file).told())
    with open_output(
        *(output, lines),
        as_finished=as_finished,
        overwrite=overwrite,
        made_with=_made_with(config),
    ) as out:
        waiting = [line for line in lines if line.number not in out.kept]
        # A status line would mix with answers on the same terminal.
        on_stdout = output is None or is_stdout(output)
        is_quiet = config.quiet or (on_stdout and sys.stdout.isatty())
        run = _Run(config, Totals(len(lines), len(out.kept)), StatusLine(True, is_quiet))
        try:
            run.answer(waiting, out)
        finally:
            run.print_totals(is_resumable=out.is_resumable)
        out.finish()
    click.get_current_context().exit(run.exit_code)


def _made_with(config: "ChatConfig") -> dict[str, str]:
    """Return the model and a short hash of the options that change answers."""
    from swiftchat.chat.model.output_format import chosen_format

    names = (*SAMPLING_OPTIONS, *_ANSWER_OPTIONS)
    options = {name: getattr(config, name) for name in names}
    form = chosen_format(config)
    wanted = None if form is None else [form.grammar, form.instruction]
    text = json.dumps([options, config.system_text(), wanted], sort_keys=True)
    return {
        "model": config.model or "default",
        "options": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


@dataclass
class Totals:
    """Counts of lines and tokens, `kept` those with an answer from before."""

    lines: int
    kept: int
    answered: int = 0
    errors: int = 0
    tokens: int = 0

    @property
    def missing(self) -> int:
        return self.lines - self.kept - self.answered - self.errors

    def text(self, seconds: float) -> str:
        """Describe the counts, with the speed of `seconds` seconds."""
        kept = f" · {self.kept} from before" if self.kept else ""
        errors = f" · {self.errors} error{'' if self.errors == 1 else 's'}" if self.errors else ""
        missing = f" · {self.missing} missing" if self.missing else ""
        speed = f" · {self.tokens / seconds:.1f} tok/s" if self.tokens and seconds else ""
        return (
            f"{self.lines} lines · {self.answered} answered{kept}{errors}{missing} · "
            f"{self.tokens} tokens in {seconds:.1f} s{speed}"
        )


class _Run:
    """Answers the waiting lines and counts them; `exit_code` is that of the first error."""

    def __init__(self, config: "ChatConfig", totals: Totals, status: StatusLine) -> None:
        self.exit_code = 0
        self._config, self._totals, self._status = config, totals, status
        self._started: float | None = None

    def answer(self, waiting: "list[Line]", out: "Output") -> None:
        """Answer the lines in `waiting`; raises the error that ended the engine."""
        from swiftchat.chat.model.chat_model import chat_model_for
        from swiftchat.chat.subcommands.batch.answers import answer_lines

        if not waiting:
            return
        config = self._config
        num_parallel = config.engine().max_num_seqs
        with chat_model_for(config) as chat_model, self._status.waiting("loading the model"):
            chat_model.prepare()
            chat_model.wait_ready()
            self._started = time.monotonic()
            for _, record in answer_lines(
                chat_model, iter(waiting), config.system_text(), num_parallel
            ):
                out.add(record)
                self._count(record)

    def print_totals(self, is_resumable: bool) -> None:
        """Print what was done; the engine may have ended in the middle."""
        self._status.clear()
        if self._config.quiet:
            return
        seconds = time.monotonic() - self._started if self._started else 0.0
        print_notice(self._totals.text(seconds))
        if self._totals.missing and is_resumable:
            print_notice("the same command answers the missing lines")

    def _count(self, record: dict[str, Any]) -> None:
        from swiftchat.chat.subcommands.batch.answers import num_tokens

        totals = self._totals
        if (error := record.get("error")) is not None:
            totals.errors += 1
            self.exit_code = self.exit_code or error["exit_code"]
        else:
            totals.answered += 1
            totals.tokens += num_tokens(record)
        assert self._started is not None
        seconds = time.monotonic() - self._started
        self._status.show(totals.text(seconds), totals.lines - totals.missing, totals.lines)

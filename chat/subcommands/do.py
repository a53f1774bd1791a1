"""`swiftchat do`: a shell command for a task, which runs only after the user has agreed."""

import json
import os
import platform
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swiftchat.chat.options.chat_options import options_of
from swiftchat.chat.subcommands.score import MODEL
from swiftchat.errors import ContextOverflow, UsageError

if TYPE_CHECKING:
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.terminal.keyboard import Keyboard

# A command is one line without control characters, so nothing in it can hide the rest.
_SCHEMA = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]{1,400}$"},
        "explanation": {"type": "string", "pattern": r"^[^\x00-\x1f\x7f-\x9f]{1,200}$"},
    },
    "required": ["command", "explanation"],
    "additionalProperties": False,
}
# Without an example small models explain at length, and forget to escape a backslash.
_EXAMPLE = (
    "delete empty files",
    {
        "command": r"find . -type f -empty -exec rm {} \;",
        "explanation": "Deletes all empty files below this folder.",
    },
)
_MAX_TOKENS = 4096  # for models that always think first; the schema limits the command
_CHOICES = {"y": "run it", "n": "do not", "e": "edit it first"}
_NOT_RUN = 130  # as after the question of other commands


@dataclass(frozen=True)
class Proposal:
    """A command of one line, and what it does."""

    command: str
    explanation: str


@click.command(params=[MODEL, *options_of("do")])
@click.argument("task", nargs=-1, required=True)
@click.option("--print", "is_printed", is_flag=True, help="Print the command only; run nothing.")
@click.pass_context
def do(ctx: click.Context, /, task: tuple[str, ...], is_printed: bool, **options: Any) -> None:
    """Propose a shell command for TASK, say what it does, and run it after a y.

    e edits the command first, everything else runs nothing. The exit code is that of the command.
    In a pipe nothing runs: --print prints the command.
    """
    from swiftchat.chat.options.config import ChatConfig
    from swiftchat.chat.precedence import check_connect
    from swiftchat.chat.terminal.sanitize import sanitize

    check_connect(ctx, options)
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not (is_printed or at_terminal):
        raise UsageError("a command runs only after a y in a terminal", "--print prints it")
    config = replace(ChatConfig(**options), no_save=True)
    config.check()
    if config.think == "auto":
        config = replace(config, think="off")  # a command should come soon
    if is_printed:
        command = propose(config, " ".join(task)).command
        print(sanitize(command) if sys.stdout.isatty() else command)
        return
    from swiftchat.chat.render.style import is_dumb
    from swiftchat.chat.terminal.keyboard import Keyboard

    with Keyboard(is_dumb(os.environ)) as keyboard:
        ctx.exit(_ask_and_run(propose(config, " ".join(task)), keyboard))


def propose(config: "ChatConfig", task: str) -> Proposal:
    """Return the command that a model proposes. Raises `ContextOverflow` for a part of one."""
    from swiftchat.chat.history.conversation import Conversation
    from swiftchat.chat.model.chat_model import chat_model_for
    from swiftchat.chat.model.output_format import json_schema_format
    from swiftchat.chat.render.style import is_accessible
    from swiftchat.chat.terminal.status_line import StatusLine

    status = StatusLine(not is_accessible(config, os.environ), config.quiet)
    with chat_model_for(config) as chat_model:
        chat_model.output_format = json_schema_format(_SCHEMA, has_instruction=False)
        chat_model.set_parameters({"temperature": 0.0, "max_tokens": _MAX_TOKENS})
        with status.waiting("loading the model"):
            chat_model.wait_ready(status.show_progress)
        conversation = Conversation(system=_instruction())
        conversation.add("user", _EXAMPLE[0])
        conversation.add("assistant", json.dumps(_EXAMPLE[1]))
        conversation.add("user", task)
        with status.waiting("looking for a command"):
            answer = chat_model.answer(conversation, lambda num_messages: None, status.show_wait)
            for _ in answer:
                status.show(f"looking for a command, {answer.num_tokens} tokens")
    try:
        found = json.loads(answer.text)
    except ValueError:
        raise ContextOverflow(
            f"the command is not complete after {answer.num_tokens} tokens",
            "say it in other words, or choose another model with -m",
        ) from None
    return Proposal(found["command"], found["explanation"])


def _instruction() -> str:
    shell = Path(os.environ.get("SHELL") or "/bin/sh").name
    return (
        f"You write one command for the shell {shell} on {platform.system()}, which does what the "
        "user asks for in the current folder. It uses usual programs only and needs no input. "
        "Explain in at most 15 words what it shows, changes or deletes. Answer with JSON: "
        '{"command": "…", "explanation": "…"}'
    )


def _ask_and_run(proposal: Proposal, keyboard: "Keyboard") -> int:
    """Show the command, ask until the answer is clear, and return the exit code."""
    from swiftchat.chat.terminal.consent import ask_consent, changed_by_user
    from swiftchat.chat.terminal.output import print_line
    from swiftchat.chat.terminal.sanitize import escape_invisible
    from swiftchat.chat.terminal.shell import run_shown

    command = proposal.command
    print(escape_invisible(command))
    print_line(escape_invisible(proposal.explanation))
    while (choice := ask_consent(keyboard, "run it?", _CHOICES)) != "n":
        if choice == "y":
            return run_shown(command, keyboard).status
        command = changed_by_user(keyboard, command) or ""
        print(escape_invisible(command))
        if not command:
            break
    return _NOT_RUN

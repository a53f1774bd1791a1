"""Attachments of the next message: files and pages (`/read`), shell output (`!CMD`, `/attach`)."""

from collections.abc import Sequence

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.hidden_text import hidden_text_notes
from swiftchat.chat.slash.command import Command
from swiftchat.chat.slash.state import ChatState
from swiftchat.chat.terminal.output import print_line
from swiftchat.chat.terminal.shell import MAX_OUTPUT, run_shown
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import split_words

_INDENT = len(f"{0:7} tokens  ")


def read(state: ChatState, argument: str) -> None:
    """Attach files and pages, and print the tokens of each; without an argument list them."""
    words = split_words(argument, "/read")
    if not words:
        _list(state)
        return
    _attach(state, read_attachments(words, offline=state.config.offline))


def _attach(state: ChatState, new: Sequence[Attachment]) -> None:
    """Attach texts to the next message, all or none.

    Raises `UsageError` if the context is too small for the attachments and an answer.
    """
    before = sum(_num_tokens(state, one) for one in state.attachments)
    size = sum(_num_tokens(state, one) for one in new)
    context = state.chat_model.context_tokens
    if size + before >= context:
        name = f"{new[0].name} has" if len(new) == 1 else f"these {len(new)} files have"
        also = f", the other attachments {before}" if before else ""
        drop = "/attach none drops the others, " if before else ""
        raise UsageError(
            f"{name} {size} tokens{also}, and the context {context}: not attached",
            f"{drop}/set ctx_size N changes the context; or attach a part of the text",
        )
    state.attachments += new
    for one in new:
        for note in one.notes:
            print_line(note)
        count = _num_tokens(state, one)
        print_line(f"{count:7} tokens  {one.name} is attached to the next message", _INDENT)


def _num_tokens(state: ChatState, attachment: Attachment) -> int:
    return len(state.chat_model.tokenizer.encode(attachment.fenced))


def _list(state: ChatState) -> None:
    if not state.attachments:
        print_line("nothing is attached; /read FILE… attaches files, !CMD and /attach its output")
        return
    for one in state.attachments:
        print_line(f"{_num_tokens(state, one):7} tokens  {one.name}", _INDENT)
    print_line("/attach none drops them")


def run_shell(state: ChatState, command: str) -> None:
    """Run a shell command on the terminal, and store its output as a text for `/attach`."""
    if not command:
        raise UsageError("! needs a command", "!ls")
    ended = run_shown(command, state.keyboard)
    if ended.size > MAX_OUTPUT:
        print_line(f"only the first {MAX_OUTPUT} of {ended.size} characters are stored")
    state.shell_output = _shell_output(command, ended.output) if ended.output else None
    if ended.output:
        print_line("/attach sends this with the next message")


def _shell_output(command: str, output: str) -> Attachment:
    return Attachment(f"$ {command}", output, hidden_text_notes("the output", output))


def attach(state: ChatState, argument: str) -> None:
    """Attach files, or new shell output; without any, list the attachments; `none` drops them."""
    if argument == "none":
        print_line(f"dropped {_count(state)} of the next message")
        state.attachments = []
    elif argument:
        read(state, argument)
    elif state.shell_output is not None:
        _attach(state, [state.shell_output])
        state.shell_output = None
    else:
        _list(state)


def _count(state: ChatState) -> str:
    count = len(state.attachments)
    return f"{count or 'no'} attachment{'' if count == 1 else 's'}"


ATTACH_COMMANDS = (
    Command(
        "/read",
        "[FILE…|URL]",
        "attach files and pages to the next message",
        read,
        details="Patterns such as 'src/**/*.py' and addresses (https://…) work too. Without a\n"
        "file, the attachments are listed; /attach none drops them.",
    ),
    Command(
        "/attach",
        "[FILE…|none]",
        "attach the output of the last !CMD, or files as /read; none drops all",
        attach,
        completion=("none",),
        details="Without an argument: the output of the last !CMD, or else the list of what is\n"
        "attached. /attach none drops the attachments of the next message.",
    ),
    Command("!", "CMD", "run a command in the shell", run_shell),
)

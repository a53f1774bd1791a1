"""Attachments of the next message: files and pages (`/read`), shell output (`!CMD`, `/attach`)."""

import codecs
import io
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from typing import IO

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.attachments.hidden_text import hidden_text_notes
from swiftchat.chat.commands.command import Command
from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import split_words

_MAX_OUTPUT = 1 << 20  # characters
_END_LIMIT_S = 2  # of a command that was interrupted


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
            print(sanitize(note))
        count = _num_tokens(state, one)
        print(sanitize(f"{count:7} tokens  {one.name} is attached to the next message"))


def _num_tokens(state: ChatState, attachment: Attachment) -> int:
    return len(state.chat_model.tokenizer.encode(attachment.fenced))


def _list(state: ChatState) -> None:
    if not state.attachments:
        print("nothing is attached; /read FILE… attaches files, !CMD and /attach its output")
        return
    for one in state.attachments:
        print(sanitize(f"{_num_tokens(state, one):7} tokens  {one.name}"))
    print("/attach none drops them")


def run_shell(state: ChatState, command: str) -> None:
    """Run a shell command, print its output as it arrives, and store it for `/attach`."""
    if not command:
        raise UsageError("! needs a command", "!ls")
    with state.keyboard.lent():
        output, size = _run(command)
    if size > _MAX_OUTPUT:
        print(f"only the first {_MAX_OUTPUT} of {size} characters are stored")
    state.shell_output = _shell_output(command, output) if output else None
    if output:
        print("/attach sends this with the next message")


def _shell_output(command: str, output: str) -> Attachment:
    return Attachment(f"$ {command}", output, hidden_text_notes("the output", output))


def _run(command: str) -> tuple[str, int]:
    """Run and print; return the beginning of the output and the number of its characters."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    process = subprocess.Popen(
        [shell, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output, size = "", 0
    is_interrupted = False
    try:
        for text in _decoded(process.stdout):
            print(sanitize(text), end="", flush=True)
            output += text[: max(0, _MAX_OUTPUT - size)]
            size += len(text)
        process.wait()  # however long: the command may close its output and go on
    except KeyboardInterrupt:
        # The terminal has sent SIGINT to the process group; this reaches a process outside of it.
        process.send_signal(signal.SIGINT)
        is_interrupted = True
    finally:
        process.stdout.close()
        code = _wait(process)
    if is_interrupted:
        print("\ninterrupted")  # below the ^C that the terminal has shown
    elif output and not output.endswith("\n"):
        print()
    if code < 0 and not is_interrupted:
        print(f"ended by {signal.Signals(-code).name}")
    elif code > 0:
        print(f"exit status {code}")
    return output, size


def _decoded(stream: IO[bytes]) -> Iterator[str]:
    """Decode a stream as it arrives, with newlines as line ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lines = io.IncrementalNewlineDecoder(decoder, translate=True)
    while data := os.read(stream.fileno(), 1 << 16):
        yield lines.decode(data)
    yield lines.decode(b"", final=True)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit status; kill the process if it does not end within the limit."""
    try:
        return process.wait(_END_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def attach(state: ChatState, argument: str) -> None:
    """Attach new shell output; without any, list the attachments; `none` drops them."""
    if argument == "none":
        print(f"dropped {_count(state)} of the next message")
        state.attachments = []
    elif argument:
        raise UsageError(f"/attach cannot attach {argument!r}", "/read FILE… attaches files")
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
        "[none]",
        "attach the output of the last !CMD, or list the attachments",
        attach,
        completion=("none",),
        details="/attach none drops the attachments of the next message.",
    ),
    Command("!", "CMD", "run a command in the shell", run_shell),
)

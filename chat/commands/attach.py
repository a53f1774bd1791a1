"""Attachments of the next message: files and pages (`/read`), shell output (`!CMD`, `/attach`)."""

import codecs
import io
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from typing import IO

from swiftchat.chat.attachments.attachment import Attachment
from swiftchat.chat.attachments.files import read_attachments
from swiftchat.chat.commands.command import Command
from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

_MAX_OUTPUT = 1 << 20  # characters


def read(state: ChatState, argument: str) -> None:
    """Attach files and pages, and print the tokens of each; without an argument drop all."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"/read: {error}") from None
    if not words:
        if not state.attachments:
            raise UsageError(
                "/read needs a file", "/read FILE…, /read 'src/**/*.py' or /read https://HOST/PATH"
            )
        state.attachments.clear()
        print("dropped all attachments of the next message")
        return
    for attachment in read_attachments(words, offline=state.config.offline):
        _attach(state, attachment)


def _attach(state: ChatState, attachment: Attachment) -> None:
    state.attachments.append(attachment)
    for note in attachment.notes:
        print(sanitize(note))
    num_tokens = len(state.chat_model.tokenizer.encode(attachment.fenced))
    print(sanitize(f"{num_tokens:7} tokens  {attachment.name} is attached to the next message"))


def run_shell(state: ChatState, command: str) -> None:
    """Run a shell command, print its output as it arrives, and store it for `/attach`."""
    if not command:
        raise UsageError("! needs a command", "!ls")
    with state.keyboard.lent():
        output, size = _run(command)
    if size > _MAX_OUTPUT:
        print(f"only the first {_MAX_OUTPUT} of {size} characters are stored")
    state.shell_output = Attachment(f"$ {command}", output) if output else None
    if output:
        print("/attach sends this with the next message")


def _run(command: str) -> tuple[str, int]:
    """Run and print; return the beginning of the output and the number of its characters."""
    shell = os.environ.get("SHELL") or "/bin/sh"
    process = subprocess.Popen(
        [shell, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output, size = "", 0
    try:
        for text in _decoded(process.stdout):
            print(sanitize(text), end="", flush=True)
            output += text[: max(0, _MAX_OUTPUT - size)]
            size += len(text)
    except KeyboardInterrupt:
        # The terminal has sent SIGINT to the process group; this reaches a process outside of it.
        process.send_signal(signal.SIGINT)
    finally:
        process.stdout.close()
        code = _wait(process)
    if output and not output.endswith("\n"):
        print()
    if code:
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
    """Return the exit status; kill the process if it does not end within two seconds."""
    try:
        return process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def attach_output(state: ChatState, argument: str) -> None:
    if state.shell_output is None:
        raise UsageError("there is no output to attach", "run a command first, as !ls")
    _attach(state, state.shell_output)
    state.shell_output = None


ATTACH_COMMANDS = (
    Command(
        "/read",
        "FILE…|URL",
        "attach files and pages to the next message",
        read,
        details="Patterns such as 'src/**/*.py' and addresses (https://…) work too. Without a\n"
        "file, all attachments are dropped.",
    ),
    Command("/attach", "", "attach the output of the last !CMD", attach_output),
    Command("!", "CMD", "run a command in the shell", run_shell),
)

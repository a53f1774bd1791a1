"""Attachments of the next message: files (`/read`) and shell output (`!CMD`, `/attach`)."""

import codecs
import glob
import io
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from swiftchat.chat.commands.command import Command
from swiftchat.chat.commands.state import ChatState
from swiftchat.chat.options.config import read_text
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError
from swiftchat.weights.files.paths import user_path

_MAX_OUTPUT = 1 << 20  # characters
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tiff", ".heic")
_TEXT_ONLY = "models read text files only"


def read(state: ChatState, argument: str) -> None:
    """Attach files and print the tokens of each; without an argument drop all attachments."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"/read: {error}") from None
    if not words:
        if not state.attachments:
            raise UsageError("/read needs a file", "/read FILE… or /read 'src/**/*.py'")
        state.attachments.clear()
        print("dropped all attachments of the next message")
        return
    texts = [(name, _file_text(name)) for word in words for name in _matching_files(word)]
    for name, text in texts:
        _attach(state, name, f"{name}:\n{text}")


def _attach(state: ChatState, name: str, text: str) -> None:
    state.attachments.append(text)
    num_tokens = len(state.chat_model.tokenizer.encode(text))
    print(sanitize(f"{num_tokens:7} tokens  {name} is attached to the next message"))


def _matching_files(word: str) -> Iterator[str]:
    """The file of that name, or else the files that match a pattern, sorted."""
    name = str(user_path(word))
    if Path(name).is_dir():
        raise UsageError(f"{word} is a folder", f"/read '{word.rstrip('/')}/*' reads its files")
    if Path(name).exists() or not glob.has_magic(name):
        yield name
        return
    # Path.glob would need the pattern split into a root and a relative part.
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207
    files = [file for file in found if Path(file).is_file()]
    if not files:
        raise UsageError(f"no file matches {word}", "** also searches subfolders")
    yield from files


def _file_text(name: str) -> str:
    if name.lower().endswith(_IMAGES):
        raise UsageError(f"{name} is an image", _TEXT_ONLY)
    text = read_text(name)
    if "\0" in text:
        raise UsageError(f"{name} is not a text file", _TEXT_ONLY)
    return text


def run_shell(state: ChatState, command: str) -> None:
    """Run a shell command, print its output as it arrives, and store it for `/attach`."""
    if not command:
        raise UsageError("! needs a command", "!ls")
    with state.keyboard.lent():
        output, size = _run(command)
    if size > _MAX_OUTPUT:
        print(f"only the first {_MAX_OUTPUT} of {size} characters are stored")
    state.shell_output = f"$ {command}\n{output}" if output else ""
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
    if not state.shell_output:
        raise UsageError("there is no output to attach", "run a command first, as !ls")
    _attach(state, state.shell_output.partition("\n")[0], state.shell_output)
    state.shell_output = ""


ATTACH_COMMANDS = (
    Command(
        "/read",
        "FILE…",
        "attach files to the next message",
        read,
        details="Patterns such as 'src/**/*.py' work too. Without a file, all attachments are\n"
        "dropped.",
    ),
    Command("/attach", "", "attach the output of the last !CMD", attach_output),
    Command("!", "CMD", "run a command in the shell", run_shell),
)

"""What goes with the next message: files (/read) and the output of commands (!CMD, /attach)."""

import codecs
import glob
import io
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from swiftchat.chat.options.config import read_text
from swiftchat.chat.terminal.sanitize import sanitize
from swiftchat.errors import UsageError

if TYPE_CHECKING:
    from swiftchat.chat.repl.loop import Repl

_MOST_OUTPUT = 1 << 20
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tiff", ".heic")


def read(repl: "Repl", argument: str) -> None:
    """Attach files, each with what it costs; without one, drop what is attached."""
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"/read: {error}") from None
    if not words:
        if not repl.attached:
            raise UsageError("/read needs a file", "/read FILE… or /read 'src/**/*.py'")
        repl.attached.clear()
        print("nothing goes with the next message now")
        return
    texts = [(name, _text_of(name)) for word in words for name in _names(word)]
    for name, text in texts:
        attach(repl, name, f"{name}:\n{text}")


def attach(repl: "Repl", name: str, text: str) -> None:
    repl.attached.append(text)
    num_tokens = len(repl.speaker.tokenizer.encode(text))
    print(sanitize(f"{num_tokens:7} tokens  {name} goes with the next message"))


def _names(word: str) -> Iterator[str]:
    """The files that a word means: itself, or what a pattern fits, in order."""
    name = str(Path(word).expanduser())
    if Path(name).is_dir():
        raise UsageError(f"{word} is a folder", f"/read '{word.rstrip('/')}/*' takes its files")
    if Path(name).exists() or not glob.has_magic(name):
        yield name
        return
    # Not Path.glob: that would not take a pattern as it was typed.
    found = sorted(glob.glob(name, recursive=True))  # noqa: PTH207
    files = [file for file in found if Path(file).is_file()]
    if not files:
        raise UsageError(f"no file fits {word}", "** also goes into folders")
    yield from files


def _text_of(name: str) -> str:
    if name.lower().endswith(_IMAGES):
        raise UsageError(f"{name} is an image", "the models that run here read text only")
    text = read_text(name)
    if "\0" in text:
        raise UsageError(f"{name} is no text file", "the models that run here read text only")
    return text


def run_shell(repl: "Repl", command: str) -> None:
    """Run a command in the shell; what it writes is shown as it comes, and kept for /attach."""
    if not command:
        raise UsageError("! needs a command", "!ls")
    shell = os.environ.get("SHELL") or "/bin/sh"
    process = subprocess.Popen(
        [shell, "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    output, size = "", 0
    try:
        for text in _texts(process.stdout):
            print(sanitize(text), end="", flush=True)
            output += text[: max(0, _MOST_OUTPUT - size)]
            size += len(text)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)  # it has it from the terminal, unless it is deaf to that
    finally:
        process.stdout.close()
        code = _ended(process)
    if output and not output.endswith("\n"):
        print()
    if code:
        print(f"exit status {code}")
    if size > _MOST_OUTPUT:
        print(f"only the first {_MOST_OUTPUT} of {size} characters are kept")
    repl.shell_output = f"$ {command}\n{output}" if output else ""
    if output:
        print("/attach sends this with the next message")


def _texts(stream: IO[bytes]) -> Iterator[str]:
    """What a stream has, as it comes, as text with plain line ends."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    lines = io.IncrementalNewlineDecoder(decoder, translate=True)
    while data := os.read(stream.fileno(), 1 << 16):
        yield lines.decode(data)
    yield lines.decode(b"", final=True)


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """The exit status; what does not end is killed."""
    try:
        return process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def attach_output(repl: "Repl", argument: str) -> None:
    if not repl.shell_output:
        raise UsageError("there is no output to attach", "!CMD runs a command and keeps its output")
    attach(repl, repl.shell_output.partition("\n")[0], repl.shell_output)
    repl.shell_output = ""


ATTACH_COMMANDS: dict[str, tuple[str, str, Callable[["Repl", str], None]]] = {
    "/read": ("FILE…", "files or 'patterns' for the next message (no file: drop them)", read),
    "/attach": ("", "the output of the last !CMD for the next message", attach_output),
}

"""Record the session in the README, docs/session.svg with its text in docs/session.txt, and the
pictures of two themes, docs/dark.svg and docs/light.svg.

    python docs/record_session.py [--model NAME] [--only session|themes]
    python docs/record_session.py --first FILE.gguf

Type INPUTS into swiftchat in a pseudo-terminal (screen: pyte) and save the final screen. Requires
the extra `test` and the model, which is downloaded if it is missing.

The second form records a newcomer's first commands, docs/first-minutes.svg and .txt: in a shell
with an empty home, and with a hub on this machine that has one model.
"""

import argparse
import contextlib
import io
import os
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

import pexpect
import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME, TerminalTheme
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.fake_hub import FakeHub, serving

COLUMNS, ROWS = 80, 40
INPUTS = (
    "/set temperature 0",
    "/set logprobs 3",
    "What is the capital of France?",
    "/show alternatives",
    "Write a Python function that tells whether a number is even.",
    "/undo",
    "/role",
    "/role review lang=Rust",
)
THEMED_INPUTS = (
    "/set temperature 0",
    "Write a short Markdown answer about lists and tuples in Python, with a level 1 heading, "
    "a table with 2 rows and 3 columns, and a code example. Nothing else.",
    "/nosuch",
)
# The picture → the theme of swiftchat and that of the terminal.
THEMES = {"dark": ("harbor", SVG_EXPORT_THEME), "light": ("paper", DEFAULT_TERMINAL_THEME)}
REPOSITORY, QUANTIZATION = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "Q4_K_M"
FIRST_COMMANDS = (
    "swiftchat models --fits 6G",
    f"swiftchat use {REPOSITORY}:{QUANTIZATION} --yes",
    'time swiftchat -p "What is the capital of France?" --keep-alive 1m',
    'time swiftchat -p "What is the capital of Italy?"',
    "swiftchat stop",
)
ROLE = "---\ntemperature: 0.2\nvariables:\n  lang: Python\n---\nYou review {{lang}} code.\n"
HERE = Path(__file__).parent
_SIGN, _PROMPT = ">>> ", ">>> Send a message"
_SHELL_SIGN, _SHELL_PROMPT = "$ ", "$"
_TIMEOUT_S = 180
_XDG_FOLDERS = {
    "XDG_DATA_HOME": ".local/share",
    "XDG_CACHE_HOME": ".cache",
    "XDG_CONFIG_HOME": ".config",
    "XDG_STATE_HOME": ".local/state",
}


def record(command: list[str], inputs: tuple[str, ...] = INPUTS) -> pyte.Screen:
    """Return the screen after typing each input when the answer to the previous one is complete."""
    with tempfile.TemporaryDirectory() as folder:
        # Without the user's configuration and the hints of a first start.
        hints = Path(folder, "swiftchat", "hints")
        hints.parent.mkdir()
        hints.write_text("start\nstopped\ncode\npath\nundone\n")
        role = Path(folder, "swiftchat", "roles", "review.md")
        role.parent.mkdir()
        role.write_text(ROLE)
        folders = {"XDG_STATE_HOME": folder, "XDG_CONFIG_HOME": folder}
        return _typed(command, inputs, folders, _SIGN, _PROMPT)


def record_first_minutes(
    weights: Path, home: Path, commands: tuple[str, ...] = FIRST_COMMANDS
) -> pyte.Screen:
    """Return the screen after a newcomer's first commands in a shell whose home is empty."""
    hub = FakeHub(
        {f"{REPOSITORY.split('/')[1]}-{QUANTIZATION}.gguf": weights.read_bytes()}, REPOSITORY
    )
    scripts = str(Path(sys.executable).parent)
    folders = {name: str(home / folder) for name, folder in _XDG_FOLDERS.items()}
    with serving(hub) as url:
        variables = {
            "HOME": str(home),
            "XDG_RUNTIME_DIR": str(home),
            "HF_ENDPOINT": url,
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PS1": _SHELL_SIGN,
            "TIMEFORMAT": "(%1R s)",
            "CUDA_VISIBLE_DEVICES": "",
        }
        shell = ["bash", "--norc", "--noprofile", "--noediting"]
        return _typed(shell, commands, folders | variables, _SHELL_SIGN, _SHELL_PROMPT)


def _typed(
    command: list[str], inputs: tuple[str, ...], env: dict[str, str], sign: str, prompt: str
) -> pyte.Screen:
    """Return the screen after typing each input at a prompt: a row that begins with `sign`."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    # pyte does not report its cursor position, and prompt_toolkit would wait for the report.
    terminal = {"TERM": "xterm-256color", "FORCE_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}
    terminal |= {"NO_COLOR": "", "COLORFGBG": "", "COLORTERM": "truecolor", "PAGER": ""}
    process = pexpect.spawn(
        command[0],
        command[1:],
        dimensions=(ROWS, COLUMNS),
        env={**os.environ, **terminal, **env},
    )
    try:
        for number, text in enumerate(("", *inputs)):
            process.send(f"{text}\r" if text else "")
            _wait_for_prompt(process, screen, stream, number, sign, prompt)
    finally:
        process.close(force=True)
    return screen


def _wait_for_prompt(
    process: pexpect.spawn,
    screen: pyte.Screen,
    stream: pyte.ByteStream,
    num_typed: int,
    sign: str,
    prompt: str,
) -> None:
    """Feed the program's output to the screen until it shows the prompt for the next input."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        with contextlib.suppress(pexpect.TIMEOUT):
            stream.feed(process.read_nonblocking(65536, timeout=0.2))
            continue  # until there is no output for 0.2 s
        prompts = [line for line in screen.display if line.startswith(sign)]
        if len(prompts) == num_typed + 1 and prompts[-1].startswith(prompt):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("\n".join(screen.display))


def text_of(screen: pyte.Screen, prompt: str = _PROMPT) -> str:
    """Return the text above the last prompt."""
    lines = [line.rstrip() for line in screen.display]
    last = max(i for i, line in enumerate(lines) if line.startswith(prompt))
    return "\n".join(lines[:last]).rstrip() + "\n"


def picture_of(
    screen: pyte.Screen, theme: TerminalTheme = SVG_EXPORT_THEME, prompt: str = _PROMPT
) -> str:
    """Return the screen as SVG, without the empty lines below the last prompt.

    The toolbar is missing: prompt_toolkit shows it only if the terminal reports its cursor.
    """
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        color_system="truecolor",
        force_terminal=True,
        legacy_windows=False,
    )
    rows = [_row(screen, number) for number in range(ROWS)]
    last = max(i for i, row in enumerate(rows) if row.plain.startswith(prompt))
    for row in rows[: last + 1]:
        console.print(row, no_wrap=True, overflow="crop")
    return console.export_svg(title="swiftchat", theme=theme, unique_id="swiftchat")


def _row(screen: pyte.Screen, number: int) -> Text:
    text = Text()
    cells = (screen.buffer[number][column] for column in range(COLUMNS))
    for style, run in groupby(cells, _style):
        text.append("".join(cell.data for cell in run), style)
    text.rstrip()
    return text


def _style(cell: pyte.screens.Char) -> Style:
    return Style(
        color=_color(cell.fg),
        bgcolor=_color(cell.bg),
        bold=cell.bold,
        italic=cell.italics,
        underline=cell.underscore,
        reverse=cell.reverse,
    )


def _color(name: str) -> str | None:
    """Convert a color name of pyte to one of rich."""
    if name == "default":
        return None
    if len(name) == 6 and all(c in "0123456789abcdefABCDEF" for c in name):
        return f"#{name}"
    name = name.replace("brown", "yellow")
    return f"bright_{name.removeprefix('bright')}" if name.startswith("bright") else name


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--only", choices=["session", "themes"])
    parser.add_argument("--first", type=Path, metavar="FILE.gguf")
    arguments = parser.parse_args()
    if arguments.first is not None:
        with tempfile.TemporaryDirectory() as home:
            screen = record_first_minutes(arguments.first, Path(home))
        text, picture = (
            text_of(screen, _SHELL_PROMPT),
            picture_of(screen, prompt=_SHELL_PROMPT),
        )
        (HERE / "first-minutes.txt").write_text(text, "utf-8")
        (HERE / "first-minutes.svg").write_text(picture, "utf-8")
        return
    options = ["-m", arguments.model, "--device", "cpu", "--no-save"]
    command = [sys.executable, "-m", "swiftchat.chat", *options]
    if arguments.only != "themes":
        screen = record(command)
        (HERE / "session.txt").write_text(text_of(screen), "utf-8")
        (HERE / "session.svg").write_text(picture_of(screen), "utf-8")
    if arguments.only != "session":
        for name, (theme, terminal_theme) in THEMES.items():
            screen = record([*command, "--theme", theme], THEMED_INPUTS)
            (HERE / f"{name}.svg").write_text(picture_of(screen, terminal_theme), "utf-8")


if __name__ == "__main__":
    main()

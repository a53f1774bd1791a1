"""Every subcommand writes to a terminal: two widths, with nothing to show and with one entry.

Each case runs in a process of its own, which has a terminal.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pexpect
import pytest
from rich.cells import cell_len

from swiftchat.chat import cli
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import open_store
from swiftchat.chat.options.user_files import config_path, roles_folder
from swiftchat.engine.api.kv_folder import KVFolder, user_kv_folder
from swiftchat.weights.formats.safetensors import header_bytes
from swiftchat.weights.store import default_store
from tests.support import fake_engine
from tests.support.program import patched
from tests.support.replaced_engines import replace_engines
from tests.support.zero_model import make_zero_model

_ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Case:
    """The arguments of a subcommand, and what is expected of it.

    `{name}` in the arguments is a file or folder of the test, or an id. `expected` is in the output
    with one entry; its exit code is 0. `empty_code` is the exit code with nothing to show. The
    lines of a `laid_out` output are no longer than the terminal is wide.
    """

    arguments: str
    expected: str = ""
    empty_code: int = 0
    is_laid_out: bool = False


CASES = {
    "chat": Case("chat -m {model} -p hi", "An answer."),
    "download": Case("download -y owner/model", "downloaded"),
    "models": Case("models --fits 8G", "HERE", is_laid_out=True),
    "use": Case("use -y small-one", "is the default"),
    "convert": Case("convert {weights} {out}", "wrote and verified"),
    "list": Case("list -a", "small-one", is_laid_out=True),
    "show": Case("show {weights}", "architecture"),
    "rm": Case("rm -y small-one", "removed small-one", empty_code=3),
    "serve": Case("serve {model}", "is ready"),
    "ps": Case("ps", "123456", is_laid_out=True),
    "stop": Case("stop", "stopped", empty_code=2),
    "cache": Case("cache", "SIZE", is_laid_out=True),
    "cache list": Case("cache list", "SIZE", is_laid_out=True),
    "cache clear": Case("cache clear", "removed 1 files"),
    "sessions": Case("sessions", "企鹅", is_laid_out=True),
    "sessions list": Case("sessions list", "企鹅", is_laid_out=True),
    "sessions show": Case("sessions show {session}", "penguins", empty_code=2),
    "sessions search": Case("sessions search penguin", "penguins"),
    "sessions export": Case("sessions export {session}", "penguins", empty_code=2),
    "sessions import": Case("sessions import {exported}", "imported talk"),
    "sessions rm": Case("sessions rm -y {session}", "removed", empty_code=2),
    "sessions prune": Case("sessions prune --one-shots --dry-run", "企鹅", is_laid_out=True),
    "tokens": Case("tokens --show --ids -m {model} {text}", "102"),
    "batch": Case("batch -m {model} {lines}", "An answer."),
    "score": Case("score -m {model} {text}", "perplexity"),
    "embed": Case("embed -m {model} {text}", "0.5"),
    "bench": Case("bench -m {model}", "prefill of 9 tokens"),
    "doctor": Case("doctor", "2 cores"),
    "config": Case("config", "temperature", is_laid_out=True),
    "config show": Case("config show", "temperature", is_laid_out=True),
    "config theme": Case("--color always config theme", "ember", is_laid_out=True),
    "config path": Case("config path", "config.toml"),
    "completion": Case("completion bash", "_SWIFTCHAT_COMPLETE"),
    "help": Case("help", "COMMAND --help", is_laid_out=True),
}


def subcommands(group: click.Group, prefix: str = "") -> Iterator[str]:
    """Yield the names of all subcommands, without the aliases."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    for name, command in {id(one): (key, one) for key, one in [*found.items()][::-1]}.values():
        yield f"{prefix}{name}"
        if isinstance(command, click.Group):
            yield from subcommands(command, f"{prefix}{name} ")


def test_every_subcommand_has_a_case() -> None:
    asking = {"config edit", "do"}  # in an editor, and in test_do.py
    assert set(subcommands(cli.swiftchat)) - asking == set(CASES)


def fill() -> str:
    """Write one entry of each kind; return the id of the conversation."""
    conversation = Conversation(title="企鹅 and penguins in winter, and what they eat")
    conversation.settings = {"model": "owner/a-model-with-a-long-name"}
    conversation.add("user", "What do penguins eat?")
    conversation.add("assistant", "Fish.")
    one_shot = conversation.copy()
    one_shot.is_one_shot = True
    with open_store() as store:
        store.save(one_shot)
        store.save(conversation)
    metadata = {"model": "/models/a-model-with-a-long-name-it", "dtype": "bf16", "num_tokens": "64"}
    folder = KVFolder(user_kv_folder()).create("model")
    (folder / "a.safetensors").write_bytes(header_bytes([], metadata))
    fake_engine.make_folder(default_store().root / "small-one")
    roles_folder().mkdir(parents=True)
    (roles_folder() / "reviewer.md").write_text("Review {{what}}.")
    config_path().write_text('top_k = 11\nsystem = "A system prompt that is longer than a line"\n')
    return conversation.id


@pytest.mark.parametrize("columns", [80, 40])
@pytest.mark.parametrize("is_filled", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("name", CASES)
def test_output_on_a_terminal(name: str, is_filled: bool, columns: int, tmp_path: Path) -> None:
    case = CASES[name]
    names = {"session": fill() if is_filled else "none", "out": tmp_path / "out"}
    names["model"] = fake_engine.make_folder(tmp_path / "model")
    inputs = {
        "text": "few",
        "lines": '"A question"\n',
        "exported": '{"title": "imported talk", "messages": [{"role": "user", "content": "x"}]}',
    }
    for file, text in inputs.items():
        names[file] = tmp_path / file
        names[file].write_text(text)
    if "{weights}" in case.arguments:
        names["weights"] = make_zero_model(tmp_path / "weights")
    arguments = shlex.split(case.arguments.format(**names))
    code, output = run(arguments, columns, is_filled)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert code == (0 if is_filled else case.empty_code), shown
    assert "Traceback" not in shown and "internal error" not in shown
    if is_filled:
        assert case.expected in shown, shown
    if case.is_laid_out:
        # A word that the user may have to type, such as a path, is never broken.
        lines = [line for line in re.split(r"[\r\n]+", shown) if len(line.split()) > 1]
        assert [line for line in lines if cell_len(line) > columns] == []


def run(arguments: list[str], columns: int, is_filled: bool) -> tuple[int, str]:
    """Run the program in a terminal of this width; return its exit code and its output."""
    code = f"from {replace_engines.__module__} import replace_engines\nreplace_engines({is_filled})"
    command, *rest = patched(code, *arguments)
    environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}  # of xdist
    environ |= {"TERM": "xterm-256color", "PYTHONPATH": str(_ROOT)}
    process = pexpect.spawn(command, rest, dimensions=(24, columns), env=environ, timeout=120)
    output: bytes = process.read()
    process.wait()
    assert process.exitstatus is not None, process.signalstatus
    return process.exitstatus, output.decode()

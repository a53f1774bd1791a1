"""Help pages, `--help`, the manual page and completion match the program."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from swiftchat import errors
from swiftchat.chat import cli
from swiftchat.chat.help.pages import FILLED, PAGES, page
from swiftchat.chat.help.setup_pages import EXIT_CODES
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import SessionStore, list_names, sessions_path
from swiftchat.chat.options.chat_options import ALL_PARAMETERS, SECTIONS
from swiftchat.chat.options.user_files import roles_folder
from swiftchat.chat.slash.registry import BY_NAME, command_table
from swiftchat.chat.subcommands.help.man_page import man_page
from swiftchat.engine.server.standalone import _parser
from swiftchat.errors import UsageError
from swiftchat.weights.store import default_store
from tests.support import fake_engine


def options_of(command: click.Command) -> set[str]:
    found = {option for param in command.params for option in param.opts if option[0] == "-"}
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            inner = command.get_command(ctx, name)
            assert inner is not None
            found |= options_of(inner)
    return found


@pytest.mark.parametrize("topic", PAGES)
def test_pages_name_only_existing_options_and_commands(topic: str) -> None:
    text = page(topic, command_table)
    known = options_of(cli.swiftchat) | {"--help", "--listen", "--no-python"}  # of other programs
    assert set(re.findall(r"(?<!\S)--?[a-z][a-z-]*\b", text)) - {"-m"} <= known
    commands = {name for name in BY_NAME if name.startswith("/")}
    assert set(re.findall(r"(?<!\S)/[a-z]+\b(?!/)", text)) <= commands
    for word in re.findall(r"swiftchat ([a-z]+)", text):
        assert word in (*cli._COMMANDS, "run"), word
    assert not [name for name in FILLED if f"{{{{{name}}}}}" in text]
    assert len(text.splitlines()) <= {"commands": 64, "parameters": 60}.get(topic, 48)


def test_help_shows_pages_commands_and_suggestions() -> None:
    def shown(*args: str) -> str:
        result = CliRunner().invoke(cli.swiftchat, ["help", *args], catch_exceptions=False)
        assert result.exit_code == 0
        return result.stdout

    assert all(topic in shown() for topic in PAGES)
    assert "Ctrl-X Ctrl-E" in shown("keys") and "/branches" in shown("commands")
    assert str(roles_folder()) in shown("roles") and "vicuna" in shown("templates")
    assert "--dry-run" in shown("convert")
    assert shown("top_k").startswith("top_k: a whole number") and "qwen3:8b" in shown("models")
    for args, hint in (
        (("help", "smapling"), "swiftchat help sampling"),
        (("downlod",), "swiftchat download"),
        (("why",), "swiftchat -p"),
    ):
        with pytest.raises(UsageError) as caught:
            CliRunner().invoke(cli.swiftchat, args, standalone_mode=False, catch_exceptions=False)
        assert caught.value.hint.startswith(hint)


def test_exit_codes_of_all_errors_are_listed() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.SwiftchatError)}
    assert codes <= {code for code, _ in EXIT_CODES}


def test_help_is_short_and_every_option_has_a_section() -> None:
    short = CliRunner().invoke(cli.swiftchat, ["--help"]).stdout
    assert len(short.splitlines()) <= 56 and "swiftchat chat --help" in short
    shown = [option.name or "" for options in SECTIONS.values() for option in options]
    assert sorted(shown) == sorted(param.name or "" for param in cli.chat.params)
    whole = CliRunner().invoke(cli.swiftchat, ["chat", "--help"]).stdout
    options = {option for param in cli.chat.params for option in param.opts}
    aliases = {flag for parameter in ALL_PARAMETERS for flag in parameter.flags[1:]}
    assert all(option in whole for option in options - aliases)
    parameters = page("parameters", command_table)
    assert all(flag.removeprefix("--").replace("-", "_") in parameters for flag in aliases)


def test_manual_page_is_valid_roff(tmp_path: Path) -> None:
    text = man_page(cli.swiftchat)
    assert text.isascii() and text.startswith(".TH SWIFTCHAT 1 ")
    assert r"\-\-repeat\-penalty" in text and ".SS swiftchat sessions search" in text
    if groff := shutil.which("groff"):
        done = subprocess.run(
            [groff, "-man", "-ww", "-Tutf8", "-P-c"], input=text.encode(), capture_output=True
        )
        assert done.returncode == 0 and done.stderr == b""
        plain = re.sub(".\b", "", done.stdout.decode())
        assert '>>> """' in plain and "swiftchat doctor" in plain and "\\" in plain


def offered(*args: str) -> list[str]:
    """Return the completions of the last word."""
    completer = ShellComplete(cli.swiftchat, {}, "swiftchat", "_SWIFTCHAT_COMPLETE")
    found = completer.get_completions(list(args[:-1]), args[-1])
    return [item.value for item in found if item.type == "plain"]


def test_completion_offers_names(tmp_path: Path) -> None:
    folder = default_store().root / "smol-one"
    fake_engine.make_folder(folder)
    (folder / "model.safetensors").write_bytes(b"")
    snapshot = Path(os.environ["HF_HOME"]) / "hub/models--some--smol-two/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (default_store().root / "evil\nsmol").mkdir()
    store = default_store()
    store = type(store)(store.root, store.cache, Path(os.environ["HF_HOME"]) / "hub")
    assert store.names() == ["smol-one", "some/smol-two"]
    assert offered("-m", "smol") == offered("show", "smol") == ["smol-one"]
    assert offered("download", "smollm2:1") == ["smollm2:135m", "smollm2:1.7b"]
    forms = ["smollm2:1.7b", *(f"smollm2:1.7b-{bits}bit" for bits in (4, 8, 16))]
    assert offered("download", "smollm2:1.7b") == forms

    roles_folder().mkdir(parents=True)
    (roles_folder() / "reviewer.md").write_text("Review.")
    assert offered("--role", "") == ["reviewer"]
    assert "vicuna" in offered("--template", "v") and offered("--dummy", "sm") == ["smollm2-135m"]
    assert offered("help", "ro") == ["roles"] and "sessions" in offered("sess")
    assert offered("frobnicate", "x") == []


def test_completion_offers_conversations_and_writes_no_files() -> None:
    assert offered("--session", "") == [] and not sessions_path().exists()
    with SessionStore(sessions_path(), print) as store:
        named = Conversation(name="tides", title="About tides\x1b[31m")
        named.add("user", "x")
        store.save(named)
        other = Conversation(title="Other")
        other.add("user", "x")
        store.save(other)
    assert set(offered("sessions", "show", "")) == {"tides", other.id[:8]}
    assert offered("--session", "ti") == ["tides"]
    sessions_path().write_bytes(b"no database at all" * 100)
    assert list_names(sessions_path()) == [] and len(list(sessions_path().parent.glob("*.db"))) == 1


@pytest.mark.parametrize(
    "words", ["swiftchat -m sm", "swiftchat sessions show ", "swiftchat help "]
)
def test_completion_imports_no_slow_modules(words: str) -> None:
    """Run it as a shell does. Checks imports instead of time, which depends on the load."""
    script = (
        "import os, sys\n"
        f"os.environ.update(_SWIFTCHAT_COMPLETE='bash_complete', COMP_LINE={words!r})\n"
        "from swiftchat.chat.cli import main\n"
        "sys.argv = ['swiftchat']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'rich', 'prompt_toolkit', 'requests', 'jinja2'}\n"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert done.returncode == 0 and done.stderr == b"", done.stderr


def test_the_lines_of_the_page_on_hosts_can_be_run() -> None:
    lines = [
        shlex.split(line) for line in page("hosts", command_table).splitlines() if line[:2] == "  "
    ]
    workers = [line[1:] for line in lines if line[0] == "swiftchat-engine"]
    assert [_parser().parse_args(args).listen for args in workers] == ["127.0.0.1:4000"]
    chats = [line[1:] for line in lines if line[0] == "swiftchat"]
    connections = [
        cli.swiftchat.make_context("swiftchat", args).params["connect"] for args in chats
    ]
    assert connections == ["127.0.0.1:4000", "127.0.0.1:4000", "./engine.sock"]

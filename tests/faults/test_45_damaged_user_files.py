"""Fault 45: files of the user or of the model's settings are damaged.

Required: an error or a warning names each of them, the rest works; exit code 2 for the
configuration, a role and an import, 7 for a file of the model, never a traceback.

Provoked by: a configuration file, a role, an export, `generation_config.json` and a row of the
database with wrong syntax and wrong values.
"""

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from swiftchat.chat.history.store import sessions_path
from swiftchat.chat.options.config import config_path
from swiftchat.chat.options.roles import roles_folder
from tests.support.program import Program, assert_error
from tests.support.serve_processes import swiftchat


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"temperature = = 1\n", "config.toml"),
        (b"temperature = 'hot'\n", "temperature"),
        (b"\xff\xfe\n", "config.toml"),
    ],
)
def test_a_damaged_configuration_file(program: Program, text: bytes, named: str) -> None:
    config_path().parent.mkdir(parents=True)
    config_path().write_bytes(text)
    error, hint = assert_error(program.run("-p", "x"), 2, named)
    assert str(config_path()) in error + hint


def test_a_damaged_role_does_not_stop_another(program: Program) -> None:
    roles_folder().mkdir(parents=True)
    (roles_folder() / "good.md").write_text("Be brief.\n")
    (roles_folder() / "bad.md").write_bytes(b"---\ntemperature: [\n---\n\xff")
    assert_error(program.run("--role", "bad", "-p", "x"), 2, "bad.md")
    done = program.run("--role", "good", "-p", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"An answer.\n", b"")


def test_wrong_values_in_generation_config_are_named(program: Program) -> None:
    file = program.folder / "generation_config.json"
    file.write_text('{"temperature": 0.25, "top_p": "much", "top_k": NaN, "min_p": -3}')
    done = program.run("-p", "x", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["params"]["temperature"] == 0.25
    notes = done.stderr.decode().splitlines()
    assert len(notes) == 3 and all(
        note.startswith("note: generation_config.json: ") for note in notes
    )
    for name, note in zip(("top_k", "top_p", "min_p"), notes, strict=True):
        assert name in note
    file.write_text("{")
    assert_error(program.run("-p", "x"), 7, "generation_config.json")


def test_damaged_rows_leave_the_rest(program: Program) -> None:
    for question in ("one", "two"):
        assert program.run("-c" if question == "two" else "-q", "-p", question).returncode == 0
    with contextlib.closing(sqlite3.connect(sessions_path())) as db, db:
        db.execute("UPDATE messages SET role = 7 WHERE content = 'two'")
        db.execute("UPDATE sessions SET settings = '{', created = 'then', title = x'ff'")
    done = program.run("-c", "-p", "three")
    assert (done.returncode, done.stdout) == (0, b"An answer.\n"), done.stderr
    (warning,) = done.stderr.decode().splitlines()
    assert warning == "warning: damaged messages of this conversation were left out: 1"
    listed = swiftchat("sessions", "list")
    assert (listed.returncode, listed.stderr) == (0, b"") and len(listed.stdout.splitlines()) == 1
    shown = swiftchat("sessions", "show", listed.stdout.decode().split("\t")[0])
    assert shown.returncode == 0 and b"one" in shown.stdout and b"three" in shown.stdout


@pytest.mark.parametrize(
    "text", [b"{", b"\xff", b'{"messages": [{"role": "user"}]}', b"[" * 100_000]
)
def test_a_damaged_export_changes_nothing(program: Program, tmp_path: Path, text: bytes) -> None:
    assert program.run("-p", "one").returncode == 0
    before = swiftchat("sessions", "list").stdout
    file = tmp_path / "talk.json"
    file.write_bytes(text)
    assert_error(swiftchat("sessions", "import", str(file)), 2, "talk.json")
    assert swiftchat("sessions", "list").stdout == before

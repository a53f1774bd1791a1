"""Damaged settings of the user and of the model are named, and the rest works."""

import json
from pathlib import Path

import pytest

from swiftchat.chat.options.user_files import roles_folder
from tests.support import fake_engine
from tests.support.in_process import Program, failure


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


@pytest.mark.fault(45)
def test_a_damaged_role_does_not_stop_another(program: Program) -> None:
    roles_folder().mkdir(parents=True)
    (roles_folder() / "good.md").write_text("Be brief.\n")
    (roles_folder() / "bad.md").write_bytes(b"---\ntemperature: [\n---\n\xff")
    error = failure(program, "--role", "bad", "-p", "x")
    assert error.exit_code == 2 and "bad.md" in error.message
    result = program.run("--role", "good", "-p", "x")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "An answer.\n", "")


@pytest.mark.fault(45)
def test_wrong_values_in_generation_config_are_named(program: Program) -> None:
    file = program.folder / "generation_config.json"
    file.write_text('{"temperature": 0.25, "top_p": "much", "top_k": NaN, "min_p": -3}')
    result = program.run("-p", "x", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["params"]["temperature"] == 0.25
    notes = result.stderr.splitlines()
    assert len(notes) == 3
    for name, note in zip(("top_k", "min_p", "top_p"), notes, strict=True):
        assert note.startswith("note: generation_config.json: ") and name in note
    file.write_text("{")
    error = failure(program, "-p", "x")
    assert error.exit_code == 7 and "generation_config.json" in error.message

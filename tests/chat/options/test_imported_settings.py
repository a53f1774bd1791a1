"""An imported conversation names no files: neither as its template nor as its model."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swiftchat.chat import cli
from swiftchat.chat.history.conversation import Conversation
from swiftchat.chat.history.store import open_store
from swiftchat.weights.store import default_store
from tests.chat.test_oneshot import Program
from tests.support import fake_engine


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    monkeypatch.chdir(tmp_path)
    return Program(fake_engine.make_folder(tmp_path / "model"), monkeypatch)


def imported(settings: dict[str, Any]) -> tuple[Result, Conversation]:
    """Import a conversation with these settings; return the result and what is stored."""
    value = {"swiftchat": 1, "settings": settings, "messages": [{"role": "user", "content": "q"}]}
    Path("x.json").write_text(json.dumps(value))
    done = CliRunner().invoke(cli.swiftchat, ["sessions", "import", "x.json"])
    assert done.exit_code == 0, done.output
    with open_store() as store:
        return done, store.load(store.find(done.stdout.split()[0]))


@pytest.mark.parametrize("spelling", ["{}/secret.txt", "secret.txt", "./secret.txt", "secret"])
def test_the_text_of_a_file_never_enters_the_prompt(
    spelling: str, program: Program, tmp_path: Path
) -> None:
    for name in ("secret.txt", "secret"):
        (tmp_path / name).write_text("A SECRET {{ messages[0].content }}")
    done, stored = imported({"template": spelling.format(tmp_path), "seed": 5})
    assert "warning: left out: x.json: a setting of 'q': the template " in done.stderr
    assert stored.settings == {"seed": 5}
    assert program.run("--session", stored.id, "-p", "next").exit_code == 0
    assert "SECRET" not in program.engine.prompt_text()


@pytest.mark.parametrize("spelling", ["{}/model", "model", "./model", "../{}", "~/model", "a/b"])
def test_only_installed_models_are_taken_from_it(
    spelling: str, program: Program, tmp_path: Path
) -> None:
    done, stored = imported({"model": spelling.format(tmp_path)})
    assert "is not the name of an installed model" in done.stderr and stored.settings == {}


def test_a_template_and_a_model_of_the_user_stay(program: Program, tmp_path: Path) -> None:
    installed = default_store().root / "some" / "tiny"
    shutil.copytree(program.folder, installed)
    (installed / "additional_chat_templates").mkdir()
    (installed / "additional_chat_templates" / "rag.jinja").write_text("{{ messages }}")
    (installed / "model.safetensors").write_bytes(b"")
    for settings in (
        {"model": "some/tiny", "template": "rag"},
        {"model": "some/tiny", "template": "chatml"},
        {"template": "vicuna"},
    ):
        done, stored = imported(settings)
        assert (done.stderr, stored.settings) == ("", settings)
    _, stored = imported({"model": "other", "template": "rag"})
    assert stored.settings == {}, "a name of another model's template may be that of a file"


def test_a_conversation_that_was_imported_earlier_does_not_hang(
    program: Program, tmp_path: Path
) -> None:
    """Such conversations are stored with the settings that they came with."""
    os.mkfifo(tmp_path / "fifo")
    conversation = Conversation(settings={"template": str(tmp_path / "fifo")})
    conversation.add("user", "q")
    with open_store() as store:
        store.save(conversation)
    done = program.run("--session", conversation.id, "-p", "next")
    assert done.exit_code != 0 and "is not a regular file" in str(done.exception)

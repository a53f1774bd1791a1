"""The project file: what it may set, precedence, files that are ignored."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from swiftchat.chat.history.store import load_session
from swiftchat.chat.options.project import FILE_NAME, Project, current_project, find_project
from swiftchat.chat.options.user_files import config_path, roles_folder
from tests.support import fake_engine

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder two levels below the home folder."""
    found = tmp_path / "home" / "project" / "src"
    found.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(found)
    return found


def written(folder: Path, text: str) -> Project:
    (folder / FILE_NAME).write_text(text)
    project = current_project()
    assert project is not None
    return project


def test_the_nearest_file_up_to_the_home_folder_counts(folder: Path, tmp_path: Path) -> None:
    assert current_project() is None
    (tmp_path / FILE_NAME).write_text("seed = 1")
    assert current_project() is None
    for number, place in enumerate((tmp_path / "home", folder.parent, folder), 2):
        assert written(place, f"seed = {number}").values == {"seed": number}
    assert find_project(tmp_path, tmp_path / "home") is not None  # not below the home folder


def test_it_sets_model_role_and_sampling(folder: Path) -> None:
    roles_folder().mkdir(parents=True)
    (roles_folder() / "review.md").write_text("Review.")
    project = written(
        folder, 'model = "qwen3:8b"\nrole = "review"\ntemp = 0\ntop-k = 4\nnum_predict = 9'
    )
    assert project.notices == ()
    assert project.values == {
        "model": "qwen3:8b",
        "role": "review",
        "temperature": 0.0,
        "top_k": 4,
        "max_tokens": 9,
    }


@pytest.mark.parametrize(
    "line",
    [
        'connect = "evil.example:4000"',
        'token_file = "x"',
        'system_file = "/etc/passwd"',
        'system = "Obey."',
        'template = "./x.jinja"',
        'device = "cpu"',
        "offline = false",
        'editor = "rm -rf ."',
        "no_such_key = 1",
        'model = "/etc"',
        'model = "~/secret"',
        'model = "../other"',
        'model = "a/../../b"',
        'model = "link"',
        'model = ""',
        "model = true",
        'role = "none"',
        'role = "../x"',
        "[model]\nname = 1",
        'temp = "hot"',
        "temperature = -1",
        "top_k = [1]",
        "temperature = 1\ntemp = 2",
        '"\\u001b]0;x\\u0007" = 1',
    ],
)
def test_every_other_key_is_ignored_with_one_line(folder: Path, line: str) -> None:
    (folder / "link").symlink_to("/etc")
    project = written(folder, f"seed = 7\n{line}\n")
    (notice,) = project.notices
    assert project.values.pop("seed") == 7 and set(project.values.values()) <= {1.0}
    assert notice.startswith(str(folder / FILE_NAME)) and "ignored" in notice


def test_a_model_inside_the_project(folder: Path) -> None:
    (folder.parent / "models").mkdir()
    assert written(folder.parent, 'model = "models"').values == {
        "model": str(folder.parent / "models")
    }


def test_files_that_are_not_the_users_own_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / FILE_NAME

    def ignored() -> str:
        project = current_project()
        assert project is not None and project.values == {}
        (notice,) = project.notices
        return notice

    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        path.write_text("seed = 1")
        assert "another user" in ignored()
    path.write_text("seed = ")
    assert "is ignored" in ignored()
    path.write_bytes(b"\xff")
    assert "is ignored" in ignored()
    path.write_text("#" * 100_000)
    assert "larger" in ignored()
    path.write_text("a = " + "[" * 20_000)
    assert "is ignored" in ignored()
    path.unlink()
    path.symlink_to("/etc/passwd")
    assert "is ignored" in ignored()
    path.unlink()
    os.mkfifo(path)
    assert "regular" in ignored()
    path.unlink()
    path.mkdir()
    assert "directory" in ignored()


@pytest.fixture
def run(folder: Path) -> Run:
    """Run swiftchat with the fake engine in the working folder."""
    fake_engine.make_folder(folder / "model")

    def run(*args: str, **env: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, fake_engine.__file__, "-", '["A."]', *args],
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )

    return run


def shown(run: Run, *args: str, **env: str) -> dict[str, str]:
    """Return the rows of `config show`, by option."""
    done = run(*args, "config", "show", **env)
    assert done.returncode == 0, done.stderr
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {row[0]: " ".join(row[1:]) for row in rows}


def test_config_show_prints_the_source_of_each_value(run: Run, folder: Path) -> None:
    roles_folder().mkdir(parents=True)
    (roles_folder() / "review.md").write_text("---\ntop_p: 0.5\nmin_p: 0.25\n---\nReview.")
    config_path().write_text("temperature = 0.1\nseed = 1\ntop_k = 1\nrepeat_penalty = 2\n")
    text = 'role = "review"\ntop_k = 2\nseed = 2\nmin_p = 0.5\nmodel = "model"\ndevice = "cpu"'
    (folder / FILE_NAME).write_text(text)
    rows = shown(run, SWIFTCHAT_SEED="3")
    assert rows["role"] == "review project file" and rows["top_k"] == "2 project file"
    assert rows["seed"] == "3 environment" and rows["repeat_penalty"] == "2.0 config file"
    assert rows["top_p"] == "0.5 role review" and rows["min_p"] == "0.5 project file"
    assert rows["model"].endswith("/model project file")
    assert rows["project"] == f"file: {folder / FILE_NAME}"
    rows = shown(run, "--top-k", "4", "--role", "review")
    assert rows["top_k"] == "4 flag" and rows["min_p"] == "0.25 role review"
    done = run("config", "show")
    assert done.stderr.count("\n") == 1 and "device is ignored" in done.stderr


def test_a_session_takes_precedence_over_the_project(run: Run, folder: Path) -> None:
    roles_folder().mkdir(parents=True)
    (roles_folder() / "review.md").write_text("---\nprompt: Go.\n---\nReview.")
    done = run("-m", "model", "-p", "x", "--top-k", "3")
    assert done.returncode == 0, done.stderr
    assert load_session(None, with_one_shots=True).settings["top_k"] == 3
    (folder / FILE_NAME).write_text('role = "review"\ntop_k = 5\ntop_p = 0.5\nmodel = "other"')
    assert run("-c", "-p", "y").returncode == 0
    conversation = load_session(None, with_one_shots=True)
    assert conversation.settings["top_k"] == 3 and conversation.settings["top_p"] == 0.5
    assert conversation.settings["model"].endswith("model") and not conversation.system
    assert conversation.messages[2].content == "y"
    done = run("-m", "model", "-p", "z")
    assert done.stdout == "A.\n" and done.stderr == ""
    conversation = load_session(None, with_one_shots=True)
    assert (conversation.system, conversation.settings["top_k"]) == ("Review.", 5)
    assert conversation.messages[0].content == "Go.\n\nz"

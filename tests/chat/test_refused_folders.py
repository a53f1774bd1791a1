"""Folders that the system refuses: caches that cannot be written, a deleted working folder.

No cache is necessary; where nothing can be written nothing was saved; the rest are our errors.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swiftchat.chat.history.store import SessionStore
from swiftchat.errors import FileSystemError
from swiftchat.errors.interpreter import child_folder
from swiftchat.weights.derived import in_cache
from tests.support.program import Program, assert_error
from tests.support.serve_processes import SWIFTCHAT

Done = subprocess.CompletedProcess[bytes]
# root ignores the modes of folders unless it loses these capabilities.
OBEDIENT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
DELETED = ["sh", "-c", 'mkdir "$1" && cd "$1" && rmdir "$1" && shift && exec "$@"', "sh"]


def user_folders(root: Path, **others: Path) -> dict[str, str]:
    """Return variables that put all folders of the user below `root`, but for some."""
    names = {
        "data": "XDG_DATA_HOME",
        "config": "XDG_CONFIG_HOME",
        "cache": "XDG_CACHE_HOME",
        "state": "XDG_STATE_HOME",
        "runtime": "XDG_RUNTIME_DIR",
        "hub": "HF_HOME",
    }
    folders = {one: str(others.get(one, root / one)) for one in names}
    return {**os.environ, **{names[one]: folders[one] for one in names}, "SWIFTCHAT_OFFLINE": "1"}


@pytest.fixture(params=["below a file", "read-only", "closed"])
def refused(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """The beginning of a command, and a folder in which the command can create nothing."""
    folder = tmp_path / "refused"
    if request.param == "below a file":
        folder.touch()
        yield [], folder
        return
    prefix = OBEDIENT if os.getuid() == 0 else []
    if prefix and shutil.which("setpriv") is None:
        pytest.skip("root without setpriv can write everywhere")
    folder.mkdir(mode=0o555 if request.param == "read-only" else 0)
    yield prefix, folder
    folder.chmod(0o755)


COMMANDS = [
    ["list", "--all"],
    ["sessions"],
    ["sessions", "search", "x"],
    ["sessions", "show", "x"],
    ["sessions", "prune", "--one-shots", "-y"],
    ["cache"],
    ["cache", "clear"],
    ["ps"],
    ["stop", "x"],
    ["rm", "-y", "x"],
    ["show", "x"],
    ["config", "show"],
    ["-c", "-p", "x"],
    ["-m", "x", "--role", "r", "-p", "x"],
    ["download", "x/y"],
]


# All commands in one process: each start would take longer than a command.
RUN_ALL = """
import json, pathlib, sys
from swiftchat.chat import cli
commands, codes = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
found = []
for command in commands:
    sys.argv = ["swiftchat", *command]
    print("#", *command, file=sys.stderr, flush=True)
    found.append(cli._exit_code(cli._run))
codes.write_text(json.dumps(found))
"""


def run_all(prefix: list[str], codes: Path, env: dict[str, str]) -> None:
    """Run all commands; fail if one ends with an internal error, or an error without a hint."""
    codes.touch()
    arguments = [sys.executable, "-c", RUN_ALL, json.dumps(COMMANDS), str(codes)]
    done = subprocess.run([*prefix, *arguments], capture_output=True, env=env)
    text = done.stderr.decode()
    assert "internal" not in text and "Traceback" not in text, text
    found = json.loads(codes.read_text())
    assert len(found) == len(COMMANDS) and set(found) <= {0, 2, 3, 6, 8}, text
    assert text.count("error: ") == text.count("hint: ") == len([one for one in found if one])


def test_no_command_ends_with_an_internal_error(
    refused: tuple[list[str], Path], tmp_path: Path
) -> None:
    prefix, folder = refused
    env = user_folders(folder, config=tmp_path)
    run_all(prefix, tmp_path / "codes", env)
    run_all(prefix, tmp_path / "codes", user_folders(folder, config=tmp_path, data=tmp_path))
    done = subprocess.run(
        [*prefix, *SWIFTCHAT, "ps"], capture_output=True, env=user_folders(folder)
    )
    assert done.returncode in (0, 8) and b"internal" not in done.stderr


def test_nothing_can_be_saved_where_nothing_was_saved(
    program: Program, refused: tuple[list[str], Path], tmp_path: Path
) -> None:
    prefix, folder = refused
    env = user_folders(tmp_path / "other", data=folder)

    def run(*command: str) -> Done:
        return subprocess.run([*prefix, *command], capture_output=True, env=env, input=b"")

    listed = run(*SWIFTCHAT, "sessions")
    if prefix and folder.stat().st_mode & 0o777 == 0:  # there may be some
        assert_error(listed, 8, "Permission denied")
        return
    assert listed.returncode == 0 and b"no saved chats" in listed.stderr
    assert run(*SWIFTCHAT, "sessions", "search", "x").stderr == b"no matches\n"
    assert_error(run(*SWIFTCHAT, "-c", "-p", "x"), 2, "no conversation to continue")
    done = run(*program.command("An answer.", options=("-p", "x")))
    assert (done.returncode, done.stdout) == (0, b"An answer.\n")
    assert done.stderr.count(b"not saved") == 1
    file = tmp_path / "x.json"
    file.write_text('[{"role": "user", "content": "q"}]')
    assert_error(run(*SWIFTCHAT, "sessions", "import", str(file)), 8, str(folder))


@pytest.mark.parametrize("place", ["file/inner", "file/inner/deeper"])
def test_a_store_that_cannot_be_created_is_empty(place: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with SessionStore(tmp_path / place / "sessions.db", pytest.fail) as store:
        assert store.recent() == [] and store.search("x") == []


def test_what_no_cache_can_hold_is_made_in_a_folder_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def make(folder: Path) -> Path:
        asked.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    assert in_cache(tmp_path / "cache", make) == tmp_path / "cache"
    (tmp_path / "file").touch()
    made = in_cache(tmp_path / "file" / "cache", make)
    assert made.is_dir() and made.stat().st_mode & 0o77 == 0
    assert in_cache(tmp_path / "file" / "cache", make) == made

    def refuse(folder: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(folder))

    with pytest.raises(FileSystemError, match="file: Permission denied"):
        in_cache(tmp_path / "file", refuse)


def test_a_gguf_file_runs_without_caches_and_without_a_working_folder(
    smollm2_gguf: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**user_folders(tmp_path / "file"), "TMPDIR": str(temporary)}
    gone = [*DELETED, str(tmp_path / "gone")]
    options = ("-m", str(smollm2_gguf), "--device", "cpu", "-n", "3", "-q")
    command = [*SWIFTCHAT, *options, "-p", "Say hi"]
    done = subprocess.run([*gone, *command], capture_output=True, env=env, input=b"")
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert list(temporary.iterdir()) == []


@pytest.fixture
def run_in_deleted(program: Program, tmp_path: Path) -> Callable[..., Done]:
    def run(*command: str) -> Done:
        gone = [*DELETED, str(tmp_path / "gone")]
        return subprocess.run([*gone, *command], capture_output=True, input=b"")

    return run


def test_a_deleted_working_folder_is_no_internal_error(tmp_path: Path) -> None:
    run_all([*DELETED, str(tmp_path / "gone")], tmp_path / "codes", user_folders(tmp_path))


def test_relative_paths_in_a_deleted_working_folder(
    program: Program, run_in_deleted: Callable[..., Done], tmp_path: Path
) -> None:
    done = run_in_deleted(*program.command("An answer.", options=("-p", "x")))
    assert (done.returncode, done.stdout) == (0, b"An answer.\n")
    options = ("-p", "x", "-f", "rel.txt")
    assert_error(run_in_deleted(*program.command("x", options=options)), 8, "rel.txt")
    done = run_in_deleted(*SWIFTCHAT, "-m", "x.gguf", "-p", "x")
    assert_error(done, 3, "no file x.gguf")


def test_child_processes_start_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_folder() is None
    before = Path.cwd()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    try:
        assert child_folder() == "/"
    finally:
        os.chdir(before)

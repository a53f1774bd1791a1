"""Every file of the user is private, whatever the umask."""

import os
import stat
from pathlib import Path

import pytest

from swiftchat.chat.history.store import sessions_path
from tests.support.failing_commands import open_failing_chat
from tests.support.program import Program

_NOT_ROOT = os.getuid() != 0


def user_files() -> list[Path]:
    """Return the program's folders and all that is in them."""
    homes = [Path(os.environ[f"XDG_{name}_HOME"]) for name in ("DATA", "CONFIG", "CACHE", "STATE")]
    own = [home / "swiftchat" for home in homes if (home / "swiftchat").exists()]
    return [*own, *(path for folder in own for path in folder.rglob("*"))]


@pytest.mark.fault(28)
@pytest.mark.parametrize("umask", [0, 0o777])
def test_only_the_user_can_read(program: Program, umask: int) -> None:
    if umask and _NOT_ROOT:
        pytest.skip("only root uses a folder that was made without permissions")
    for name in ("DATA", "CONFIG", "CACHE", "STATE"):
        Path(os.environ[f"XDG_{name}_HOME"]).mkdir(parents=True)
    old = os.umask(umask)
    try:
        terminal = open_failing_chat(program, "Answer.")
        terminal.type("secret\r")
        terminal.wait_for("Answer.", 60)
        terminal.type("/stats\r")
        terminal.wait_for("internal error", 60)
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in user_files()}
        terminal.type("\x04")
        assert terminal.wait_end() == 0
    finally:
        os.umask(old)
    modes |= {path: stat.S_IMODE(path.stat().st_mode) for path in user_files()}
    state = Path(os.environ["XDG_STATE_HOME"], "swiftchat")
    assert {sessions_path(), state / "history", state / "errors"} <= modes.keys()
    assert any(path.parent == state / "errors" for path in modes)
    wrong = {
        str(path): oct(mode)
        for path, mode in modes.items()
        if mode != (0o700 if path.is_dir() else 0o600)
    }
    assert not wrong

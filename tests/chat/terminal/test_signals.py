"""Ctrl-C takes effect wherever its exception would be raised."""

import subprocess
import sys
from pathlib import Path

import pytest

CALLBACK = """
import signal, time, weakref
from swiftchat.chat.terminal.signals import install_signal_handlers

class Target:
    pass

install_signal_handlers()
target = Target()
reference = weakref.ref(target, lambda _: signal.raise_signal(signal.{signal}))
try:
    del target  # the callback drops the exception
    time.sleep(60)
except BaseException as error:
    print(repr(error))
"""
IMPORT = """
import signal, time
from swiftchat.chat.terminal.signals import install_signal_handlers

install_signal_handlers()
try:
    import interrupting
    print(interrupting.is_complete)
    time.sleep(60)
except BaseException as error:
    print(repr(error))
"""


def run(program: str, folder: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=folder
    )
    return done.stdout, done.stderr


@pytest.mark.fault(36)
@pytest.mark.parametrize(
    ("signal", "raised"),
    [
        ("SIGINT", "KeyboardInterrupt()"),
        ("SIGTERM", "SystemExit(143)"),
        ("SIGHUP", "SystemExit(129)"),
    ],
)
def test_a_signal_in_a_callback_is_repeated(signal: str, raised: str, tmp_path: Path) -> None:
    assert run(CALLBACK.format(signal=signal), tmp_path) == (f"{raised}\n", "")


def test_a_signal_during_an_import_comes_after_it(tmp_path: Path) -> None:
    module = "import signal\nsignal.raise_signal(signal.SIGINT)\nis_complete = True\n"
    (tmp_path / "interrupting.py").write_text(module)
    assert run(IMPORT, tmp_path) == ("True\nKeyboardInterrupt()\n", "")

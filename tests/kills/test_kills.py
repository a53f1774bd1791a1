"""A round of every target with two signals, in one process; `python -m tests.kills` has more.

SIGHUP and SIGSTOP have tests of their own: those of hangups and of stopped engines and ranks.
"""

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found as Linux does")
def test_killed_processes_lose_and_leave_nothing() -> None:
    signals = ("--signal", "SIGKILL", "--signal", "SIGTERM")
    command = [sys.executable, "-m", "tests.kills", "--rounds", "1", "--jobs", "4", *signals]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[2:]
    assert len(rows) == 10, done.stdout

"""A round of every target with three signals; `python -m tests.kills` runs many with all."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are found as Linux does")
def test_killed_processes_lose_and_leave_nothing() -> None:
    command = [sys.executable, "-m", "tests.kills", "--rounds", "1", "--jobs", "4"]
    for name in ("SIGKILL", "SIGTERM", "SIGSTOP"):
        command += ["--signal", name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()[2:]
    assert len(rows) == 24, done.stdout

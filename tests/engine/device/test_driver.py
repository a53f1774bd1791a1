"""The early start of the driver, without a GPU: it must not fail, and needs no torch."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from swiftchat.engine.device.driver import open_early
open_early(sys.argv[1])
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
print("torch" in sys.modules)
"""


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:1", "cuda:x"])
def test_it_imports_no_torch_and_reports_nothing(device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, device], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n" and not done.stderr

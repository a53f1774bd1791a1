"""Fault 20: a download is interrupted or killed.

Required: nothing of the model is visible, exit code 130 after Ctrl-C; the next run goes on with
the byte where the first one ended, and then verifies the file.

Provoked by: SIGINT and SIGKILL while the hub stalls in the middle of a file; the hub's log has the
ranges that were requested.
"""

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.fake_hub import WEIGHTS, FakeHub, Fault
from tests.support.serve_processes import SWIFTCHAT, swiftchat
from tests.support.worker_processes import wait_until

TOKEN = "hf_canarycanarycanary"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_download_goes_on(
    hub: FakeHub, tmp_path: Path, number: int, code: int
) -> None:
    hub.faults["model.safetensors"] = Fault(stall_after=700_000, times=1)
    process = subprocess.Popen(
        [*SWIFTCHAT, "download", "owner/model"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_TOKEN": TOKEN},
    )
    folder = tmp_path / "hub-home" / "hub" / "models--owner--model"
    part = folder / "blobs" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.swiftchat-part"
    wait_until(lambda: part.exists() and part.stat().st_size > 500_000, 60)
    assert TOKEN.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code and b"Traceback" not in stderr and b"error" not in stderr
    assert TOKEN.encode() not in stderr
    assert not (folder / "snapshots").exists()
    done_bytes = part.stat().st_size
    assert WEIGHTS.startswith(part.read_bytes())
    again = swiftchat("download", "owner/model")
    assert again.returncode == 0 and b" still missing" in again.stderr
    path = Path(again.stdout.decode().strip()) / "model.safetensors"
    assert path.read_bytes() == WEIGHTS and not part.exists()
    assert hub.ranges("model.safetensors") == [None, f"bytes={done_bytes}-"]

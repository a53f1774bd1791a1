"""Fault 29: the user's token for the hub is shown.

Required: it is sent to the hub only, and is in no message, log, file or list of processes, also
with `--debug`.

Provoked by: downloads with a canary for a token, in a variable and in the file of the hub's
library, that stall, fail and succeed.
"""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.fake_hub import FakeHub, Fault
from tests.support.program import assert_error
from tests.support.serve_processes import SWIFTCHAT, swiftchat
from tests.support.worker_processes import command_line, wait_until

TOKEN = "hf_canarycanarycanary"
FAULTS = {
    "rejected": ("api", Fault(status=401)),
    "forbidden": ("model.safetensors", Fault(status=403)),
    "broken": ("api", Fault(status=500)),
    "no listing": ("api", Fault(sends=b"[" + TOKEN.encode())),
}


def files_with_token(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [file for file in files if TOKEN.encode() in file.read_bytes()]


def assert_sent_to_the_hub_only(hub: FakeHub) -> None:
    sent = {request.server: request.authorization for request in hub.log}
    assert sent["hub"] == f"Bearer {TOKEN}"
    assert all(not request.authorization for request in hub.log if request.server == "storage")


@pytest.mark.parametrize("name", FAULTS)
def test_no_error_has_the_token(hub: FakeHub, tmp_path: Path, name: str) -> None:
    where, hub.faults[where] = FAULTS[name][0], FAULTS[name][1]
    done = swiftchat("--debug", "download", hub.repo, "-y", HF_TOKEN=TOKEN, HF_DEBUG="1")
    assert done.returncode in (6, 7) and b"Traceback" in done.stderr
    assert TOKEN.encode() not in done.stdout + done.stderr
    assert files_with_token(tmp_path) == []
    assert_sent_to_the_hub_only(hub)


def test_a_malformed_token_is_not_quoted(hub: FakeHub) -> None:
    done = swiftchat("download", hub.repo, HF_TOKEN=f"{TOKEN} \x7f")
    assert_error(done, 6, "token has invalid characters")
    assert TOKEN.encode() not in done.stderr and hub.log == []


def test_a_stored_token_is_in_no_process_and_no_file(hub: FakeHub, tmp_path: Path) -> None:
    stored = Path(os.environ["HF_HOME"], "token")
    stored.parent.mkdir()
    stored.write_text(TOKEN)
    hub.faults["model.safetensors"] = Fault(stall_after=500_000, times=1)
    process = subprocess.Popen(
        [*SWIFTCHAT, "--debug", "download", hub.repo, "-y"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "60"},
    )
    try:
        wait_until(lambda: hub.ranges("model.safetensors"), 60)
        running = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        assert not any(TOKEN in argument for one in running for argument in command_line(one))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130 and TOKEN.encode() not in output
    done = swiftchat("download", hub.repo, "-y")
    assert done.returncode == 0 and TOKEN.encode() not in done.stdout + done.stderr
    assert files_with_token(tmp_path) == [stored]
    assert_sent_to_the_hub_only(hub)

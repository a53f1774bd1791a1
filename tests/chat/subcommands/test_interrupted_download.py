"""`swiftchat download` is interrupted or fails; the user's token for the hub is never shown."""

import hashlib
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.support.arriving_models import content_of, converted, repository_files
from tests.support.fake_hub import WEIGHTS, FakeHub, Fault
from tests.support.serve_processes import SWIFTCHAT, swiftchat
from tests.support.tiny_llama import entry_names, tiny_llama
from tests.support.worker_processes import command_line, wait_until

TOKEN = "hf_canarycanarycanary"


def files_with_token(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [file for file in files if TOKEN.encode() in file.read_bytes()]


def assert_sent_to_the_hub_only(hub: FakeHub) -> None:
    sent = {request.server: request.authorization for request in hub.log}
    assert sent["hub"] == f"Bearer {TOKEN}"
    assert all(not request.authorization for request in hub.log if request.server == "storage")


@pytest.mark.fault(20, 29)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_download_goes_on(
    hub: FakeHub, tmp_path: Path, number: int, code: int
) -> None:
    stored = Path(os.environ["HF_HOME"], "token")
    stored.parent.mkdir()
    stored.write_text(TOKEN)
    hub.faults["model.safetensors"] = Fault(stall_after=700_000, times=1)
    process = subprocess.Popen(
        [*SWIFTCHAT, "--debug", "download", hub.repo, "-y"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "60"},
    )
    folder = tmp_path / "hub-home" / "hub" / "models--owner--model"
    part = folder / "blobs" / f"{hashlib.sha256(WEIGHTS).hexdigest()}.swiftchat-part"
    wait_until(lambda: part.exists() and part.stat().st_size > 500_000, 60)
    running = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
    assert not any(TOKEN in argument for one in running for argument in command_line(one))
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code and b"Traceback" not in stderr and b"error" not in stderr
    assert not (folder / "snapshots").exists()
    is_told = b"are missing; the same command downloads the rest\n" in stderr
    assert is_told == (number == signal.SIGINT)
    done_bytes = part.stat().st_size
    assert WEIGHTS.startswith(part.read_bytes())
    again = swiftchat("download", hub.repo)
    assert again.returncode == 0 and b" still missing" in again.stderr
    path = Path(again.stdout.decode().strip()) / "model.safetensors"
    assert path.read_bytes() == WEIGHTS and not part.exists()
    assert hub.ranges("model.safetensors") == [None, f"bytes={done_bytes}-"]
    assert TOKEN.encode() not in stderr + again.stdout + again.stderr
    assert files_with_token(tmp_path) == [stored]
    assert_sent_to_the_hub_only(hub)


@pytest.mark.fault(29)
def test_no_debug_output_has_the_token(hub: FakeHub, tmp_path: Path) -> None:
    hub.faults["api"] = Fault(sends=b"[" + TOKEN.encode())
    done = swiftchat("--debug", "download", hub.repo, "-y", HF_TOKEN=TOKEN, HF_DEBUG="1")
    assert done.returncode in (6, 7) and b"Traceback" in done.stderr
    assert TOKEN.encode() not in done.stdout + done.stderr
    assert files_with_token(tmp_path) == []
    assert_sent_to_the_hub_only(hub)


@pytest.mark.fault(20)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_download_that_quantizes_goes_on(
    hub: FakeHub, tmp_path: Path, number: int, code: int
) -> None:
    hub.files = repository_files(tmp_path / "model", tiny_llama())
    name = f"{hub.repo}:4bit"
    # The first two requests are for the size and for both ends.
    stall = Fault(stall_after=20_000, after=2)
    hub.faults["model-00003-of-00003.safetensors"] = stall
    process = subprocess.Popen(
        [*SWIFTCHAT, "download", name, "-y"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "HF_HUB_DOWNLOAD_TIMEOUT": "60"},
    )
    assert stall.arrived.wait(60)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == code and b"Traceback" not in stderr and b"error" not in stderr
    told = b"are missing; the same command downloads the rest\n" in stderr
    assert told == (number == signal.SIGINT)
    assert swiftchat("show", name).returncode == 3
    hub.faults.clear()
    again = swiftchat("download", name)
    assert again.returncode == 0 and b" still missing" in again.stderr
    path = Path(again.stdout.decode().strip())
    assert content_of(path) == converted(hub.files, tmp_path / "expected", "4bit")
    assert b"owner/model:4bit" in swiftchat("list").stdout
    assert entry_names(path.parent) == ["model:4bit"]
    assert b"removed owner/model:4bit" in swiftchat("rm", name, "-y").stderr

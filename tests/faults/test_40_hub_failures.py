"""Fault 40: the hub refuses, fails, stalls or cannot be reached.

Required: each cause has an error line of its own, exit codes 3 and 6 (3: no such model); a model
that is installed works without the hub.

Provoked by: a hub that answers with 401, 403, 404, 429 and 5xx, a hub that stalls, a port
without a listener, and offline mode.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.fake_hub import FakeHub, Fault
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat
from tests.support.zero_model import make_zero_model

GATED = {"X-Error-Code": "GatedRepo"}


def download(hub: FakeHub, **environ: str) -> subprocess.CompletedProcess[bytes]:
    environ = {"HF_TOKEN": "hf_token", "HF_HUB_DOWNLOAD_TIMEOUT": "1", **environ}
    return swiftchat("download", hub.repo, "-q", **environ)


@pytest.mark.parametrize(
    ("where", "fault", "code", "words"),
    [
        ("api", Fault(status=401), 6, "rejected the token (HTTP 401)"),
        ("api", Fault(status=403), 6, "forbids access"),
        ("model.safetensors", Fault(status=403, headers=GATED), 6, "gated"),
        ("api", Fault(status=404), 3, "no model"),
        ("api", Fault(status=429, headers={"Retry-After": "9"}), 6, "429"),
        ("api", Fault(status=502), 6, "502"),
        ("api", Fault(status=503), 6, "503"),
        ("api", Fault(stall_after=0), 6, "timed out"),
        ("tokenizer.json", Fault(sends=b"{}"), 6, "has only part"),
    ],
)
def test_each_cause_has_its_own_error(
    hub: FakeHub, where: str, fault: Fault, code: int, words: str
) -> None:
    hub.faults[where] = fault
    assert_error(download(hub), code, words)


def test_a_hub_that_cannot_be_reached(hub: FakeHub) -> None:
    assert_error(download(hub, HF_ENDPOINT="http://127.0.0.1:9"), 6, "refused the connection")
    assert_error(download(hub, HF_HUB_OFFLINE="1"), 6, "offline mode")
    assert hub.log == []


def test_an_installed_model_works_without_the_hub(hub: FakeHub, tmp_path: Path) -> None:
    source = make_zero_model(tmp_path / "source")
    hub.files = {path.name: path.read_bytes() for path in source.iterdir()}
    assert swiftchat("download", hub.repo, "-y", "-q").returncode == 0
    hub.log.clear()
    hub.faults["api"] = Fault(status=503)
    for environ in ({}, {"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        done = swiftchat("tokens", "-", "-m", hub.repo, stdin=b"four", **environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"4\n", b"")
    assert hub.log == []

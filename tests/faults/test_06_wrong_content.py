"""Fault 6: a downloaded file has the right size and other content.

Required: the SHA-256 or the hash of git is compared, the file is renamed and not used, exit code 7;
the next run downloads that file again.

Provoked by: a hub that sends one wrong byte.
"""

from pathlib import Path

import pytest

from tests.support.fake_hub import MODEL, FakeHub, Fault
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat


@pytest.mark.parametrize(
    ("name", "digest"), [("model.safetensors", "SHA-256"), ("tokenizer.json", "git")]
)
def test_wrong_content_is_renamed(hub: FakeHub, tmp_path: Path, name: str, digest: str) -> None:
    right = MODEL[name]
    wrong = right[:-1] + bytes([right[-1] ^ 1])
    hub.faults[name] = Fault(sends=wrong)
    error, _ = assert_error(swiftchat("download", "owner/model"), 7, f"{name}: its {digest}")
    folder = tmp_path / "hub-home" / "hub" / "models--owner--model"
    (aside,) = (folder / "blobs").glob("*.damaged")
    assert aside.read_bytes() == wrong and str(aside) in error
    assert not (folder / "snapshots").exists()
    del hub.faults[name]
    hub.log.clear()
    again = swiftchat("download", "owner/model")
    assert again.returncode == 0, again.stderr
    assert (Path(again.stdout.decode().strip()) / name).read_bytes() == right
    assert hub.ranges(name) == [None] and not list((folder / "blobs").glob("*.damaged"))

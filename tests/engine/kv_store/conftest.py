"""Tests of the tiers: nothing depends on how fast this machine reads and computes."""

from pathlib import Path

import pytest

from swiftchat.engine.kv_store.speeds import Speeds
from tests.support.tiny_models import make


@pytest.fixture(autouse=True)
def _reading_is_faster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "speeds" not in request.node.path.name:
        monkeypatch.setattr(Speeds, "is_worth_reading", lambda *_: True)


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make("llama", folder)
    return folder

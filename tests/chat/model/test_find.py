"""The default model is downloaded once, with a hint at a better one."""

from pathlib import Path

import pytest
from huggingface_hub import constants

from swiftchat.chat.model import bandwidth, fit
from swiftchat.chat.model.find import find_model
from swiftchat.chat.model.memory import DeviceMemory
from swiftchat.errors import ModelNotFound
from swiftchat.weights.hub.known_models import DEFAULT_MODEL, known_models
from tests.support.fake_hub import FakeHub, in_use
from tests.support.zero_model import make_zero_model


@pytest.mark.parametrize(
    ("free_gb", "is_quiet", "hints"), [(10, False, 1), (0, False, 0), (10, True, 0)]
)
def test_the_first_download_of_the_default_model_names_a_better_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    free_gb: int,
    is_quiet: bool,
    hints: int,
) -> None:
    folder = make_zero_model(tmp_path / "source")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    memory = DeviceMemory("CPU", 10**11, free_gb * 10**9)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(fit, "usable_devices", lambda: [memory])
    monkeypatch.setattr(bandwidth, "bandwidth_bytes_per_s", lambda device: 40e9)
    with in_use(FakeHub(files, f"HuggingFaceTB/{DEFAULT_MODEL}"), monkeypatch):
        with pytest.raises(ModelNotFound):
            find_model(None, offline=True, quiet=is_quiet)
        path = find_model(None, offline=False, quiet=is_quiet)
    first = capsys.readouterr().err
    assert first.count("swiftchat use ") == hints and (first == "") == is_quiet
    if hints:
        assert first.rpartition("swiftchat use ")[2].strip() in known_models()
    assert find_model(None, offline=False, quiet=False) == path
    assert capsys.readouterr().err == ""

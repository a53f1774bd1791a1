"""Whether a second model fits beside the loaded one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.chat.model import memory
from swiftchat.chat.model.memory import DeviceMemory, fits_beside
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.weights.model.directory import Model
from tests.support.zero_model import make_zero_model

INFO = EngineInfo("cpu, avx2 kernels", "float32", 1000, 4000, 512, 8000, 2048, 1, 0.125)


def test_a_second_model_fits_with_a_context_as_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_zero_model(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    model = Model.open(folder)
    per_token = memory.cache_bytes_per_token(model)
    enough = (model.weights_bytes + 2048 * per_token) * 2
    scarce = model.weights_bytes + 1024 * per_token

    def fits(info: EngineInfo, *free: int) -> bool:
        devices = [DeviceMemory("x", 10**12, count) for count in free]
        monkeypatch.setattr(memory, "device_memory", lambda: devices)
        return fits_beside(model, info)

    assert fits(INFO, enough) and not fits(INFO, scarce)
    assert fits(replace(INFO, ctx_size_tokens=512), scarce)
    gpu = replace(INFO, device="NVIDIA H200")
    assert fits(gpu, scarce, enough) and not fits(gpu, enough, scarce)
    assert not fits(replace(gpu, tp=2), enough, enough, enough)

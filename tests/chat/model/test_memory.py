"""Whether a second model fits beside the loaded one; what quantized weights become here."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.chat.model import memory
from swiftchat.chat.model.memory import (
    DeviceMemory,
    dequantized_note,
    fits_beside,
    weight_bytes_on_cpu,
)
from swiftchat.engine.api.cpu_kernels import cpu_kernels
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.engine.cpu.library import choose_kernels
from swiftchat.engine.generation.build import build_engine
from swiftchat.errors import UsageError
from swiftchat.weights.model.directory import Model
from tests.support.quantized_models import FORMATS, quantized_model
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
        return fits_beside(model, [info])

    assert fits(INFO, enough) and not fits(INFO, scarce)
    assert fits(replace(INFO, ctx_size_tokens=512), scarce)
    gpu = replace(INFO, device="NVIDIA H200")
    assert fits(gpu, scarce, enough) and not fits(gpu, enough, scarce)
    assert not fits(replace(gpu, tp=2), enough, enough, enough)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    cpu_kernels.cache_clear()
    monkeypatch.setenv("SWIFTCHAT_CPU_KERNELS", request.param)
    request.addfinalizer(cpu_kernels.cache_clear)
    return str(request.param)


@pytest.mark.parametrize("kernels", ["auto", "plain", "off"], indirect=True)
@pytest.mark.parametrize("name", ["gptq-8-v2", "compressed-w8a8", "fp8-row"])
def test_the_bytes_of_quantized_weights_are_those_of_the_engine(
    tmp_path: Path, kernels: str, name: str
) -> None:
    """Without native kernels they are dequantized, and a note says so."""
    quantized_model(tmp_path / "m", *FORMATS[name])
    model = Model.open(tmp_path / "m")
    engine = build_engine(tmp_path / "m", EngineConfig(device="cpu", dtype="float32"))
    actual, is_reference = engine.info.weights_bytes, engine.back_end.is_reference
    assert weight_bytes_on_cpu(model) == pytest.approx(actual, rel=0 if is_reference else 0.1)
    note = dequantized_note(model)
    assert is_reference == (kernels == "off") == (note is not None)
    assert note is None or ("SWIFTCHAT_CPU_KERNELS=off" in note and "become float32" in note)


@pytest.mark.parametrize("kernels", ["auto", "off"], indirect=True)
def test_the_kernels_are_those_that_an_engine_chooses(kernels: str) -> None:
    choice = choose_kernels(os.environ)
    assert (cpu_kernels().variant, cpu_kernels().reason) == (choice.variant, choice.reason)


@pytest.mark.parametrize("kernels", ["sse9"], indirect=True)
def test_an_unknown_variant_is_the_error_of_the_engine(kernels: str) -> None:
    with pytest.raises(UsageError, match=f"unknown value '{kernels}'"):
        cpu_kernels()

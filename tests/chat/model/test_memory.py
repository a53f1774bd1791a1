"""Whether a second model fits beside the loaded one; what quantized weights become here."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.chat.model import memory
from swiftchat.chat.model.description import property_text
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
from tests.support import tiny
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

    def fits(*infos: EngineInfo | int, total: int = 10**12, context: int | None = None) -> bool:
        free = [one for one in infos if isinstance(one, int)]
        devices = [DeviceMemory("x", total, count) for count in free]
        monkeypatch.setattr(memory, "device_memory", lambda: devices)
        loaded = [one for one in infos if isinstance(one, EngineInfo)]
        return fits_beside(model, loaded, context_tokens=context)

    assert fits(INFO, enough) and not fits(INFO, scarce)
    assert fits(replace(INFO, ctx_size_tokens=512), scarce)
    gpu = replace(INFO, device="NVIDIA H200")
    assert fits(gpu, scarce, enough) and not fits(gpu, enough, scarce)
    assert not fits(replace(gpu, tp=2), enough, enough, enough)
    assert fits(INFO, scarce, context=512) and not fits(INFO, enough, context=4096)
    # The system counts the mapped weights of loaded models as free.
    mapped = replace(INFO, weights_bytes=enough, cache_bytes=0)
    assert fits(INFO, mapped, 4 * enough, total=4 * enough)
    assert not fits(INFO, *[mapped] * 4, 4 * enough, total=4 * enough)


def test_show_says_which_experts_would_be_in_main_memory(tmp_path: Path) -> None:
    config = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    tiny.make("qwen3-moe", tmp_path, **config)
    model, main_memory = Model.open(tmp_path), DeviceMemory("CPU", 10**10, 10**10)
    each = sum(
        nbytes for name, (_, nbytes) in model.stored_tensors.items() if ".1.mlp.experts." in name
    )
    needed = model.weights_bytes + 256 * memory.cache_bytes_per_token(model)
    for missing, num_layers in ((0, None), (1, 1), (each, 1), (each + 1, 2), (3 * each + 1, None)):
        gpu = DeviceMemory("GPU 0", 10**10, -(-(needed - missing) * 100 // 85))
        row = memory.context_limits(model, main_memory, [gpu])[1]
        assert row.get("expert_layers_in_main_memory") == num_layers, missing
        placed = f"with the experts of {num_layers} of 3 layers in main memory"
        assert property_text("fits", [row]).endswith(placed) == (num_layers is not None)
    small = replace(main_memory, free_bytes=each - 1)
    gpu = DeviceMemory("GPU 0", 10**10, -(-(needed - each) * 100 // 85))
    assert "expert_layers" not in memory.context_limits(model, small, [gpu])[1]


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

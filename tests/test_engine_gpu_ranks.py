"""Several GPUs against the CPU, on tiny random models in fp32: the same ids.

Through the client and real worker processes, so that ranks that wait for each other for ever are
named by this file's time limit, and end with the client.
"""

from pathlib import Path

import pytest
import tiny
from worker_processes import WIDE, assert_as_one

from swiftchat.engine.client import EngineClient
from swiftchat.engine.params import EngineConfig
from swiftchat.weights.convert import convert
from swiftchat.weights.quantise import FORMS, Quantisation

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]
# Fused and not, heads normed, branches normed, windows, LayerNorm, ALiBi, parallel branches.
NAMES = ("llama", "llama-biases", "qwen3", "gemma2", "gemma3", "olmo2", "gpt2", "bloom", "gpt-neox")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All workers of this file find the kernels that the first of them compiled."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("tp", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_one_cpus(
    name: str, tp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn, alone and together, by prefill in chunks and by decode steps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make(name, tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE,
                          chunk_tokens=16, tp=tp)  # fmt: skip
    with EngineClient(config, tmp_path) as client:
        assert_as_one(client, tmp_path, 64)


@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        pytest.param(1, 2, marks=pytest.mark.gpus(2)),
        pytest.param(1, 3, marks=pytest.mark.gpus(3)),
        pytest.param(2, 2, marks=pytest.mark.gpus(4)),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral"])
def test_ids_of_stages_equal_one_cpus(
    name: str, tp: int, pp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make(name, tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE,
                          chunk_tokens=16, tp=tp, pp=pp)  # fmt: skip
    with EngineClient(config, tmp_path) as client:
        assert_as_one(client, tmp_path, 64)


@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        pytest.param(2, 1, marks=pytest.mark.gpus(2)),
        pytest.param(1, 2, marks=pytest.mark.gpus(2)),
        pytest.param(4, 1, marks=pytest.mark.gpus(4)),
        pytest.param(2, 2, marks=pytest.mark.gpus(4)),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_ids_of_packed_weights_equal_one_cpus(
    form: str, tp: int, pp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors of bfloat16, which the kernels keep exactly; of four ranks each has 32 columns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    sizes = {**WIDE, "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}
    tiny.make("llama", tmp_path / "in", **sizes)
    folder = tmp_path / "out"
    convert(tmp_path / "in", folder, dtype="bfloat16", quantisation=Quantisation(form))
    config = EngineConfig(device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE,
                          chunk_tokens=16, tp=tp, pp=pp)  # fmt: skip
    with EngineClient(config, folder) as client:
        client.wait_ready()
        assert client.info is not None and "decoded" not in client.info.device
        assert_as_one(client, folder, 64)

"""Several GPUs against the CPU, on tiny random models in fp32, or against one: the same ids.

Through the client and real worker processes, so that ranks that wait for each other for ever are
named by this file's time limit, and end with the client.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import tiny
from tests.support.worker_processes import WIDE, assert_equals_single_rank, collect

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
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=tp
    )
    with EngineClient(config, tmp_path) as client:
        assert_equals_single_rank(client, tmp_path, 64)


def answers_from_graphs(config: EngineConfig, folder: Path) -> list[list[int]]:
    """Greedy, drawn and penalized, one at a time, each token but the first from a graph."""
    drawn = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.9,
        repeat_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        max_tokens=64,
        seed=7,
    )
    greedy = SamplingParams(temperature=0, max_tokens=64)
    found = []
    with EngineClient(config, folder) as client:
        client.wait_ready()
        for length, params in ((1, greedy), (40, greedy), (14, drawn), (27, drawn)):
            before = client.stats()["graph_steps"]
            found.append(collect(client.generate(tiny.random_ids(length), params))[0])
            assert client.stats()["graph_steps"] - before >= 63
    return found


@pytest.mark.gpus(2)
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "gpt2", "mixtral"])
def test_graphs_of_stages_equal_one_gpus(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16, where other kernels or another order of sums would soon choose other tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make(name, tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="bfloat16", block_size=tiny.BLOCK_SIZE)
    expected = answers_from_graphs(config, tmp_path)
    assert answers_from_graphs(replace(config, pp=2), tmp_path) == expected


@pytest.mark.gpus(4)
def test_stages_of_two_gpus_add_up_in_their_graphs(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make("llama", tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="bfloat16", block_size=tiny.BLOCK_SIZE, tp=2)
    expected = answers_from_graphs(config, tmp_path)
    assert answers_from_graphs(replace(config, pp=2), tmp_path) == expected


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
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=tp, pp=pp
    )
    with EngineClient(config, tmp_path) as client:
        assert_equals_single_rank(client, tmp_path, 64)
        assert client.stats()["graph_steps"] > 4 * 60


@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        pytest.param(2, 1, marks=pytest.mark.gpus(2)),
        pytest.param(1, 2, marks=pytest.mark.gpus(2)),
        pytest.param(4, 1, marks=pytest.mark.gpus(4)),
        pytest.param(2, 2, marks=pytest.mark.gpus(4)),
    ],
)
@pytest.mark.parametrize("form", ["int8", "int4", "fp8"])
def test_ids_of_packed_weights_equal_one_cpus(
    form: str, tp: int, pp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors of bfloat16, which the kernels keep exactly; of four ranks each has 32 columns."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    sizes = {**WIDE, "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}
    tiny.make("llama", tmp_path / "in", **sizes)
    folder = tmp_path / "out"
    convert(tmp_path / "in", folder, dtype="bfloat16", quantization=QuantizationSpec(form))
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=tp, pp=pp
    )
    with EngineClient(config, folder) as client:
        client.wait_ready()
        assert client.info is not None and "decoded" not in client.info.device
        assert_equals_single_rank(client, folder, 64)

"""Several GPUs generate the ids of the CPU in fp32, or of one GPU in bf16, on tiny random models.

The ranks are real worker processes of a client: if they deadlock, the time limit of this file
fails the test and they end with the client.
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
# With and without biases, QK norm, post-norm, windows, LayerNorm, ALiBi, parallel branches.
NAMES = ("llama", "llama-biases", "qwen3", "gemma2", "gemma3", "olmo2", "gpt2", "bloom", "gpt-neox")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache shared by all workers of this file."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("tp", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (2, 4)])
@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_cpu(
    name: str, tp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and sampled, single and concurrent, with chunked prefill."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make(name, tmp_path, **WIDE)
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=tp
    )
    with EngineClient(config, tmp_path) as client:
        assert_equals_single_rank(client, tmp_path, 64)


def generate_with_graphs(config: EngineConfig, folder: Path) -> list[list[int]]:
    """Generate greedily, sampled and with penalties; all but the first token from CUDA graphs."""
    sampled = SamplingParams(
        temperature=0.9,
        top_k=40,
        top_p=0.9,
        repeat_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        max_tokens=64,
        seed=7,
        speculate="off",  # verification steps have more tokens
    )
    greedy = SamplingParams(temperature=0, max_tokens=64, speculate="off")
    found = []
    with EngineClient(config, folder) as client:
        client.wait_ready()
        for length, params in ((1, greedy), (40, greedy), (14, sampled), (27, sampled)):
            before = client.stats()["graph_steps"]
            found.append(collect(client.generate(tiny.random_ids(length), params))[0])
            assert client.stats()["graph_steps"] - before >= 63
    return found


@pytest.mark.gpus(2)
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3", "gpt2", "mixtral"])
def test_graphs_of_stages_equal_one_gpu(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16, where other kernels or another summation order would soon change the tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make(name, tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="bfloat16", block_size=tiny.BLOCK_SIZE)
    expected = generate_with_graphs(config, tmp_path)
    assert generate_with_graphs(replace(config, pp=2), tmp_path) == expected


@pytest.mark.gpus(4)
def test_graphs_of_stages_with_two_gpus_all_reduce(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    tiny.make("llama", tmp_path, **WIDE)
    config = EngineConfig(device="cuda", dtype="bfloat16", block_size=tiny.BLOCK_SIZE, tp=2)
    expected = generate_with_graphs(config, tmp_path)
    assert generate_with_graphs(replace(config, pp=2), tmp_path) == expected


@pytest.mark.parametrize(
    ("tp", "pp"),
    [
        pytest.param(1, 2, marks=pytest.mark.gpus(2)),
        pytest.param(1, 3, marks=pytest.mark.gpus(3)),
        pytest.param(2, 2, marks=pytest.mark.gpus(4)),
    ],
)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "mixtral"])
def test_ids_of_stages_equal_the_cpu(
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
@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_ids_of_quantized_weights_equal_the_cpu(
    scheme: str, tp: int, pp: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scales in bfloat16, which the kernels represent exactly; four ranks have 32 columns each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    sizes = {**WIDE, "hidden_size": 128, "intermediate_size": 256, "num_key_value_heads": 4}
    tiny.make("llama", tmp_path / "in", **sizes)
    folder = tmp_path / "out"
    convert(tmp_path / "in", folder, dtype="bfloat16", quantization=QuantizationSpec(scheme))
    config = EngineConfig(
        device="cuda", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=tp, pp=pp
    )
    with EngineClient(config, folder) as client:
        client.wait_ready()
        assert client.info is not None and "dequantized" not in client.info.device
        assert_equals_single_rank(client, folder, 64)

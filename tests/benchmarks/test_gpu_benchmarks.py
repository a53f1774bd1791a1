"""Two GPU benchmarks run on a CPU with a tiny shape, so that a run on a GPU does not fail."""

import json
import re
import runpy
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def shape(tmp_path: Path) -> str:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    return str(file)


def test_many_sequences(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "cpu", "--dtype", "float32", "--rows", "1", "3", "--no-peer"]
    main = runpy.run_path(str(BENCHMARKS / "gpu/batch.py"))["main"]
    main(["--shape", shape, "--input", "20", "--output", "4", *options])
    printed = capsys.readouterr().out
    assert re.findall(r"engine: (\d) sequences: \d+ tok/s in all, ", printed) == ["1", "3"]


def test_beams(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(BENCHMARKS / "gpu/beams.py"))["main"]
    main(["--shape", shape, "--device", "cpu", "--prompt", "9", "--tokens", "5", "--beams", "2"])
    assert re.search(
        r"^2 beams: [\d.]+ ms a step, [\d.]+ of greedy$", capsys.readouterr().out, re.M
    )

"""`benchmarks/gpu_batch.py` runs on a CPU with a tiny shape, so that a GPU run does not fail."""

import json
import re
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/gpu_batch.py"
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


def test_it_runs_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(CONFIG))
    options = ["--device", "cpu", "--dtype", "float32", "--rows", "1", "3", "--no-peer"]
    main = runpy.run_path(str(SCRIPT))["main"]
    main(["--shape", str(shape), "--input", "20", "--output", "4", *options])
    printed = capsys.readouterr().out
    assert re.findall(r"engine: (\d) sequences: \d+ tok/s in all, ", printed) == ["1", "3"]

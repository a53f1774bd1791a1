"""`swiftchat bench` measures what it says, on a tiny real model."""

import json
from pathlib import Path

import pytest
import tiny
from click.testing import CliRunner

from swiftchat.chat.bench import bench


def test_it_measures_every_context_and_batch(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    args = ["-m", str(tmp_path), "--device", "cpu", "--prompt-tokens", "30", "--answer-tokens", "5",
            "--context", "0", "--context", "20", "--batch", "2", "--runs", "1"]  # fmt: skip
    result = CliRunner().invoke(bench, [*args, "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(row["context"], row["batch"]) for row in report["decode"]] == [(0, 2), (20, 2)]
    assert all(row["decode_tps"] > 0 for row in report["decode"])
    assert report["prefill"]["prefill_tps"] == pytest.approx(30 / report["prefill"]["ttft_s"])
    assert "prompt of 30 tokens" in CliRunner().invoke(bench, args).stdout

"""`swiftchat bench` with a tiny model, and with a fake engine of known speed."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner, Result

from swiftchat.chat.subcommands.bench.command import bench
from swiftchat.chat.subcommands.bench.costs import Costs
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import EngineInfo, Event, Finished, Tokens
from swiftchat.errors import ModelNotFound, UsageError
from swiftchat.weights.model.directory import Model
from tests.support import fake_engine, tiny

INFO = EngineInfo("H", "float32", 1000, 200_000, 100, 76_800, 256, 1, 0.125)
SHORT = (
    "--prompt-tokens",
    "30",
    "--answer-tokens",
    "5",
    "--context",
    "0",
    "--context",
    "20",
    "--batch",
    "2",
    "--runs",
    "1",
)


class Engine:
    """A fake `EngineClient` that records prompts; a prefill takes 0.5 s, a step 10 ms."""

    started: ClassVar[list["Engine"]] = []
    extra: ClassVar[list[dict[str, Any]]] = []  # statistics of each started engine

    def __init__(self, config: EngineConfig, path: Path) -> None:
        self.config, self.path = config, path
        self.cache = os.environ.get("XDG_CACHE_HOME")
        self.prompts: list[list[int]] = []
        self.closed = False
        Engine.started.append(self)

    def start(self) -> "Engine":
        return self

    def wait_ready(self) -> EngineInfo:
        return INFO

    def generate(self, prompt: Sequence[int], params: SamplingParams) -> list[Event]:
        assert not self.closed
        self.prompts.append(list(prompt))
        length = params.max_tokens or 0
        end = Finished("length", len(prompt), 0, length, 0.5, (length - 1) * 0.010, 0)
        return [Tokens([5]), end]

    def stats(self, *, measure: bool = False) -> dict[str, Any]:
        index = min(len(Engine.started), len(Engine.extra)) - 1
        return {"free_blocks": 4, **(Engine.extra[index] if Engine.extra else {})}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine(monkeypatch) -> type[Engine]:
    monkeypatch.setattr("swiftchat.engine.api.client.EngineClient", Engine)
    monkeypatch.setattr(Engine, "started", [])
    monkeypatch.setattr(Engine, "extra", [])
    return Engine


def run(*args: str) -> Result:
    result = CliRunner().invoke(bench, [*SHORT, *args])
    assert result.exit_code == 0, result.output
    return result


def report(*args: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(run(*args, "--json").stdout)
    return parsed


def test_every_context_and_batch_is_measured(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    found = report("-m", str(tmp_path), "--device", "cpu")
    assert [(row["context"], row["batch"]) for row in found["decode"]] == [(0, 2), (20, 2)]
    for row in found["decode"]:
        assert row["decode_tps"] == pytest.approx(2 / row["step_ms"] * 1e3)
        assert row["bytes_per_s"] == pytest.approx(row["step_bytes"] / row["step_ms"] * 1e3)
        assert row["fraction_of_bandwidth_ceiling"] is None
    prefill = found["prefill"]
    assert prefill["prefill_tps"] == pytest.approx(30 / prefill["prefill_s"])
    assert prefill["ttft_s"] >= prefill["prefill_s"] and prefill["tflop_per_s"] > 0
    assert found["compile_cold_s"] is None and found["compile_warm_s"] is None
    assert found["start_s"] > found["load_s"] > 0
    assert "prefill of 30 tokens" in run("-m", str(tmp_path), "--device", "cpu").stdout


def test_decode_speed_excludes_the_first_token(engine, tmp_path: Path) -> None:
    found = report("-m", str(fake_engine.make_folder(tmp_path)))
    for row in found["decode"]:
        assert row["step_ms"] == pytest.approx(10) and row["decode_tps"] == pytest.approx(200)
    assert found["prefill"]["prefill_tps"] == 60
    flop = Costs(Model.open(tmp_path).config, INFO).prefill_flop(30)
    assert found["prefill"]["tflop_per_s"] == pytest.approx(flop / 0.5 / 1e12)
    (only,) = engine.started
    assert only.closed and only.path == tmp_path and only.config.dummy is None
    assert only.config.max_num_seqs >= 2 and only.config.cache_tokens >= 2 * 35


def test_prompts_of_a_batch_are_prefilled_before_decoding(engine, tmp_path: Path) -> None:
    report("-m", str(fake_engine.make_folder(tmp_path)), "--context", "20")
    prompts = [prompt for prompt in engine.started[0].prompts if len(prompt) == 20]
    assert prompts[:2] == prompts[2:4] and prompts[0] != prompts[1]
    assert all(3 <= token < 258 for prompt in prompts for token in prompt)


def test_a_batch_of_one_is_generated_once(engine, tmp_path: Path) -> None:
    report("-m", str(fake_engine.make_folder(tmp_path)), "--batch", "1")
    prompts = [tuple(prompt) for prompt in engine.started[0].prompts if len(prompt) == 20]
    assert len(prompts) == 2 * 2 + 1 and len(set(prompts)) == 3


def test_cold_and_warm_compilation(engine, tmp_path: Path) -> None:
    engine.extra += [{"compile_s": 8.0}, {"compile_s": 0.5, "bandwidth_ceiling_bytes_per_s": 4e12}]
    folder, before = fake_engine.make_folder(tmp_path), os.environ["XDG_CACHE_HOME"]
    found = report("-m", str(folder))
    assert (found["compile_cold_s"], found["compile_warm_s"]) == (8.0, 0.5)
    cold, warm = engine.started
    assert cold.cache == warm.cache != before and not Path(cold.cache).exists()
    assert os.environ["XDG_CACHE_HOME"] == before and cold.closed and warm.closed
    assert len(cold.prompts) < len(warm.prompts)
    row = found["decode"][1]
    assert row["fraction_of_bandwidth_ceiling"] == pytest.approx(row["bytes_per_s"] / 4e12)
    del engine.started[:]
    lines = run("-m", str(folder)).stdout.splitlines()
    assert "kernel compilation 8.00 s, with cached kernels 0.50 s" in lines
    assert "bandwidth ceiling 4.00 TB/s (measured)" in lines


def test_costs_of_a_shape(tmp_path: Path) -> None:
    costs = Costs(Model.open(fake_engine.make_folder(tmp_path)).config, INFO)
    # q and o 48 × 48, k and v 16 × 48, gate, up and down 80 × 48; two layers, six heads of 8.
    matrices = 2 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48)
    pairs = 4 * 2 * 6 * 8
    assert costs.prefill_flop(3) == 3 * 2 * matrices + pairs * (1 + 2 + 3) + 2 * 258 * 48
    kv_bytes = 76_800 / 100
    # An answer of 4 tokens after 10: the steps after the first have contexts of 11, 12 and 13.
    expected = 200_000 + 3 * 12 * kv_bytes
    assert costs.step_bytes(10, 4, 3) == pytest.approx(expected)
    with_table = Costs(costs.shape, replace(INFO, table_bytes=258 * 48))
    assert with_table.step_bytes(10, 4, 3) == pytest.approx(expected - 258 * 48)


def test_a_sliding_window_limits_the_cache_bytes(tmp_path: Path) -> None:
    folder = fake_engine.make_folder(
        tmp_path, architectures=["MistralForCausalLM"], sliding_window=4, tie_word_embeddings=True
    )
    costs = Costs(Model.open(folder).config, INFO)
    assert costs.step_bytes(10, 9, 1) == pytest.approx(200_000 + 4 * 768)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("MixtralForCausalLM", {"num_local_experts": 8, "num_experts_per_tok": 2}),
        (
            "GptOssForCausalLM",
            {
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "head_dim": 8,
                "layer_types": ["full_attention"] * 2,
            },
        ),
    ],
)
def test_only_chosen_experts_are_counted(tmp_path: Path, family: str, changes) -> None:
    folder = fake_engine.make_folder(
        tmp_path, architectures=[family], tie_word_embeddings=True, **changes
    )
    expert = 3 * 80 * 48
    # Experts of 4 bits a weight: the bytes are the engine's, whatever the compute type.
    expert_bytes = 2 * 8 * expert // 2
    costs = Costs(Model.open(folder).config, replace(INFO, expert_bytes=expert_bytes))
    matrices = 2 * (2 * 48 * 48 + 2 * 16 * 48 + 8 * 48 + 2 * expert)
    assert costs.prefill_flop(1) == 2 * matrices + 4 * 2 * 6 * 8 + 2 * 258 * 48
    assert costs.step_bytes(1, 2, 1) == pytest.approx(200_000 - expert_bytes * 6 / 8 + 2 * 768)


def test_dummy_from_a_config_file(engine, tmp_path: Path) -> None:
    file = str(fake_engine.make_folder(tmp_path) / "config.json")
    found = report("--dummy", file)
    assert found["model"] == file and found["dummy"] and found["decode"][0]["step_bytes"] > 0
    assert engine.started[0].config.dummy == file


def test_dummy_by_name(engine) -> None:
    found = report("--dummy", "smollm2-135m")
    assert found["model"] == "smollm2-135m"
    assert found["prefill"]["tflop_per_s"] > 0 and found["decode"][0]["bytes_per_s"] > 0


def test_an_unknown_dummy_hints_at_the_known_ones(engine) -> None:
    error = CliRunner().invoke(bench, [*SHORT, "--dummy", "some-shape-8b"]).exception
    assert isinstance(error, ModelNotFound) and "llama-3.1-8b" in error.hint


def test_invalid_requests_are_usage_errors(engine, tmp_path: Path) -> None:
    folder = str(fake_engine.make_folder(tmp_path))
    for args in (("-m", folder, "--dummy", "x"), ("-m", folder, "--context", "252")):
        assert isinstance(CliRunner().invoke(bench, [*SHORT, *args]).exception, UsageError)
    assert all(started.closed for started in engine.started)


def test_the_root_command_has_a_dummy_option() -> None:
    from swiftchat.chat import cli
    from swiftchat.chat.options.config import ChatConfig

    options = {param.name for param in cli.chat.params}
    assert "dummy" in options and ChatConfig(dummy="x").engine().dummy == "x"
    assert EngineConfig.from_wire(EngineConfig(dummy="x").to_wire()).dummy == "x"
    with pytest.raises(UsageError):
        ChatConfig(dummy="").check()

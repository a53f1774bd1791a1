"""The rows of `doctor --model`: what computes each part of a model, from the engine itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from swiftchat.engine.cpu.library import VARIABLE
from swiftchat.engine.doctor.diagnosis import Check
from swiftchat.engine.doctor.model import engine_checks
from tests.support import tiny
from tests.support.quantized_models import FORMATS, quantized_model
from tests.support.remote_engine import chat_model_folder

TORCH_HINT = "torch's operators take several times as long as the kernels"


def rows(folder: Path, **config: object) -> dict[str, Check]:
    checks = engine_checks(tiny.engine(folder, **config))
    assert len({check.name for check in checks}) == len(checks)
    return {check.name: check for check in checks}


def test_kernels_compute_a_model_of_floats(tmp_path: Path) -> None:
    kernels = tiny.native_kernels()
    tiny.make("llama", tmp_path)
    found = rows(tmp_path)
    assert found["computed by"] == Check("computed by", "ok", f"cpu, {kernels.description}")
    assert found["down"] == Check("down", "ok", "F32 in the file, float32, native kernels")
    assert {"model", "q, k, v", "attention output", "gate, up"} <= set(found)


def test_torch_computes_if_the_kernels_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    tiny.make("llama", tmp_path)
    found = rows(tmp_path)
    text = f"cpu, torch only: switched off by {VARIABLE}=off"
    assert found["computed by"] == Check("computed by", "note", text, TORCH_HINT)
    assert found["down"] == Check("down", "ok", "F32 in the file, float32, torch")


def test_a_format_without_a_kernel_is_dequantized(tmp_path: Path) -> None:
    quantized_model(tmp_path / "model", *FORMATS["nf4"])
    check = rows(tmp_path / "model")["gate, up"]
    assert (check.state, check.text.split(" in the file, ")[0]) == ("note", "nf4")
    assert check.hint == "no kernel has this format: dequantized when loaded"


def test_experts_are_parts(tmp_path: Path) -> None:
    tiny.make("qwen3-moe", tmp_path)
    found = rows(tmp_path)
    assert found["experts: gate, up"].text.startswith("F32 in the file, float32")
    assert found["experts: down"].state == "ok"


def test_command(tmp_path: Path) -> None:
    model = chat_model_folder(tmp_path / "model")
    command = [sys.executable, "-m", "swiftchat.chat", "doctor", "--device", "cpu", "-m"]
    done = subprocess.run([*command, str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "ok  down              F32 in the file, float32" in done.stdout
    done = subprocess.run([*command, str(model), "--json"], capture_output=True, text=True)
    assert json.loads(done.stdout)["checks"][1]["name"] == "computed by"


def test_command_with_a_model_that_cannot_run(tmp_path: Path) -> None:
    model = chat_model_folder(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 9}))
    command = [sys.executable, "-m", "swiftchat.chat", "doctor", "-m", str(model)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.startswith("error: ") and len(done.stderr.splitlines()) <= 2

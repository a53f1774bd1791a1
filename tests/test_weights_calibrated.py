"""Rounding by what goes into a matrix: moments are right, products nearer to what they were."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import tiny
import tiny_gguf
import torch
from tiny_llama import tiny_llama

from swiftchat.chat import calibration
from swiftchat.engine.moments import write_moments
from swiftchat.engine.quantised import Int4Weight
from swiftchat.errors import UsageError
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.checkpoint import Checkpoint
from swiftchat.weights.compensated import Compensation
from swiftchat.weights.convert import convert
from swiftchat.weights.quantise import Quantisation


def step_of(matrix: np.ndarray) -> np.ndarray:
    return np.abs(matrix).max(1) / 7


def rounded_by(compensation: Compensation, matrix: np.ndarray) -> np.ndarray:
    """`matrix` as its codes mean it, with a factor for each row."""
    step = step_of(matrix)

    def round_column(column: int, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        codes = np.clip(np.rint(numbers / step), -7, 7)
        return codes, codes * step

    return compensation.codes(matrix, round_column) * step[:, None]


def test_products_come_nearer_than_by_the_nearest() -> None:
    rng = np.random.default_rng(2)
    inputs = (
        rng.normal(size=(500, 100)) @ rng.normal(size=(100, 100)) * np.exp(rng.normal(size=100))
    )
    matrix = rng.normal(size=(40, 100)).astype(np.float32)
    before = matrix.copy()
    moment = (inputs.T @ inputs).astype(np.float32)
    ours = rounded_by(Compensation(moment), matrix)
    step = step_of(matrix)[:, None]
    nearest = np.rint(matrix / step) * step
    assert np.array_equal(matrix, before)
    errors = [np.square(inputs @ (m - matrix).T).sum() for m in (ours, nearest)]
    assert errors[0] < 0.3 * errors[1]


def test_inputs_that_have_nothing_in_common_change_nothing() -> None:
    """Without correlation there is nothing to make up with; a text may also show nothing at all."""
    matrix = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    step = step_of(matrix)[:, None]
    for moment in (np.eye(64), np.diag(np.arange(64.0)), np.zeros((64, 64))):
        ours = rounded_by(Compensation(moment.astype(np.float32)), matrix)
        assert np.array_equal(ours, np.rint(matrix / step) * step)


def test_moments_are_those_of_transformers(tmp_path: Path) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path / "in")
    ids = tiny.random_ids(300)  # more than one context
    (tmp_path / "moments").mkdir()
    seen: list[tuple[int, int]] = []
    write_moments(tmp_path / "in", ids, tmp_path / "moments", lambda *done: seen.append(done))
    expected: dict[str, torch.Tensor] = {}

    def watch(key: str):
        def add(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x = args[0][0]
            expected[key] = expected.get(key, 0) + x.T @ x

        return add

    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for field, module in (("qkv", attention.q_proj), ("o", attention.o_proj),
                              ("gate_up", mlp.gate_proj), ("down", mlp.down_proj)):  # fmt: skip
            module.register_forward_pre_hook(watch(f"{i}-{field}"))
    with torch.inference_mode():
        for start in range(0, len(ids), 256):
            model(torch.tensor([ids[start : start + 256]]))
    assert {file.stem for file in (tmp_path / "moments").iterdir()} == expected.keys()
    for key, moment in expected.items():
        found = torch.from_numpy(np.load(tmp_path / "moments" / f"{key}.npy"))
        torch.testing.assert_close(found, moment, rtol=1e-4, atol=1e-3)
    assert all(done <= total for done, total in seen) and seen == sorted(seen)


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swiftchat.chat", "convert", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_calibrates_a_gguf_file(tmp_path: Path) -> None:
    """The products of all matrices are nearer to what they were, for inputs like the text's."""
    source = tmp_path / "model.gguf"
    tiny_gguf.write(source, tiny_llama(), quantise=gguf.GGMLQuantizationType.Q8_0)
    done = run(source, tmp_path / "calibrated", "--quantize", "int4", "--calibrate")
    assert done.returncode == 0, done.stderr
    bench = tiny.Bench(tmp_path / "calibrated")
    assert isinstance(bench.decoder.weights.layers[0].qkv, Int4Weight)
    convert(source, tmp_path / "nearest", quantisation=Quantisation("int4"))
    convert(source, tmp_path / "meant", dtype="float32")
    for name in ("nearest", "calibrated"):
        convert(tmp_path / name, tmp_path / f"{name}-plain", dtype="float32")
    meant, nearest, ours = (
        Checkpoint.open(tmp_path / n) for n in ("meant", "nearest-plain", "calibrated-plain")
    )
    (tmp_path / "moments").mkdir()
    text = Path(calibration.__file__).with_name("calibration.txt").read_text()[-3000:]
    ids = Tokenizer.load(tmp_path / "meant").encode(text)
    write_moments(tmp_path / "meant", ids, tmp_path / "moments", lambda *_: None)
    for name, key in (("self_attn.q_proj", "0-qkv"), ("self_attn.o_proj", "1-o"),
                      ("mlp.up_proj", "1-gate_up"), ("mlp.down_proj", "0-down")):  # fmt: skip
        tensor, moment = f"model.layers.{key[0]}.{name}.weight", tmp_path / "moments" / f"{key}.npy"
        moved = [checkpoint.read(tensor) - meant.read(tensor) for checkpoint in (ours, nearest)]
        errors = [((by @ np.load(moment)) * by).sum() for by in moved]
        assert errors[0] < errors[1], name


def test_what_cannot_be_calibrated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="int8 is not calibrated"):
        Quantisation("int8", moments=lambda name: np.eye(2, dtype=np.float32))
    (tmp_path / "in").mkdir()
    done = run(tmp_path / "in", tmp_path / "out", "--quantize", "int8", "--calibrate")
    assert done.returncode == 2 and "--calibrate is for --quantize int4" in done.stderr
    done = run(tmp_path / "in", tmp_path / "out", "--quantize", "int4", "--calibrate")
    assert done.returncode == 2 and "no model that can read a text" in done.stderr
    tiny.make("mixtral", tmp_path / "mixture")
    done = run(tmp_path / "mixture", tmp_path / "out", "--quantize", "int4", "--calibrate")
    assert done.returncode == 2 and "experts are not calibrated" in done.stderr

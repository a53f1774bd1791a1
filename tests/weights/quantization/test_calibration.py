"""Calibration: second moments are correct, and GPTQ lowers the error of the outputs."""

import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.chat.subcommands import calibration
from swiftchat.engine.calibrate import write_statistics
from swiftchat.errors import FileSystemError
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.files import disk
from swiftchat.weights.files.disk import disk_full
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.quantization.gptq_rounding import GptqRounding, scale_update
from swiftchat.weights.quantization.quantize import WEIGHT_ONLY, QuantizationSpec
from tests.support import tiny
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama


def scale_of(matrix: np.ndarray) -> np.ndarray:
    return np.abs(matrix).max(1) / 7


def gptq_round(gptq: GptqRounding, matrix: np.ndarray) -> np.ndarray:
    """Return `matrix` rounded by GPTQ, with a scale per row."""
    scale = scale_of(matrix)

    def round_column(column: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values = np.clip(np.rint(weights / scale), -7, 7)
        return values, values * scale

    values, dequantized = gptq.quantize(matrix, round_column)
    assert np.array_equal(dequantized, values * scale)
    return values.T * scale[:, None]


def test_gptq_has_a_lower_output_error_than_rounding_to_nearest() -> None:
    rng = np.random.default_rng(2)
    inputs = (
        rng.normal(size=(500, 100)) @ rng.normal(size=(100, 100)) * np.exp(rng.normal(size=100))
    )
    matrix = rng.normal(size=(40, 100)).astype(np.float32)
    before = matrix.copy()
    moment = (inputs.T @ inputs).astype(np.float32)
    rounded = gptq_round(GptqRounding(moment), matrix)
    scale = scale_of(matrix)[:, None]
    nearest = np.rint(matrix / scale) * scale
    assert np.array_equal(matrix, before)
    errors = [np.square(inputs @ (m - matrix).T).sum() for m in (rounded, nearest)]
    assert errors[0] < 0.3 * errors[1]


def test_refine_lowers_the_output_error() -> None:
    """Values stay in range, scales stay storable, and the output error falls in each call."""
    rng = np.random.default_rng(4)
    inputs = rng.normal(size=(500, 128)) @ rng.normal(size=(128, 128))
    moment = (inputs.T @ inputs).astype(np.float32)
    moment[7] = moment[:, 7] = 0  # an input that the text never shows
    matrix = rng.normal(size=(40, 128)).astype(np.float32)
    matrix[3, 32:64] = 0  # a group without a range
    scale = np.full((4, 40), 2.0**-2, np.float32)
    zero_point = rng.integers(6, 10, size=(4, 40)).astype(np.float32)

    def round_column(column: int, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        s, z = scale[column // 32], zero_point[column // 32]
        values = np.clip(np.rint(weights / s) + z, 0, 15)
        return values, (values - z) * s

    def refit(
        group: int, values: np.ndarray, gradient: np.ndarray, moments: np.ndarray
    ) -> np.ndarray:
        steps = values - zero_point[group]
        found = np.clip(scale[group] + scale_update(steps, gradient, moments), 2.0**-4, 1)
        scale[group] = np.rint(found * 2.0**10) / 2.0**10
        return steps * scale[group]

    def loss() -> float:
        error = (values - np.repeat(zero_point, 32, 0)) * np.repeat(scale, 32, 0) - matrix.T
        return float((error * (moment @ error)).sum())

    pairs = [round_column(i, column) for i, column in enumerate(matrix.T)]
    values, dequantized = (np.stack(arrays) for arrays in zip(*pairs, strict=True))
    losses = [loss()]
    for again in (None, refit, refit):
        GptqRounding(moment.copy()).refine(matrix, values, dequantized, round_column, 32, again)
        losses.append(loss())
        assert np.array_equal(
            dequantized, (values - np.repeat(zero_point, 32, 0)) * np.repeat(scale, 32, 0)
        )
    assert losses[1] < 0.4 * losses[0] and losses[2] < 0.9 * losses[1]
    assert 0.8 * losses[2] < losses[3] <= losses[2]  # it has nearly converged
    assert set(np.unique(values)) <= set(range(16))


def test_gptq_equals_rounding_to_nearest_for_uncorrelated_inputs() -> None:
    """Without correlation no column can compensate another; second moments may also be zero."""
    matrix = np.random.default_rng(3).normal(size=(8, 64)).astype(np.float32)
    scale = scale_of(matrix)[:, None]
    for moment in (np.eye(64), np.diag(np.arange(64.0)), np.zeros((64, 64))):
        rounded = gptq_round(GptqRounding(moment.astype(np.float32)), matrix)
        assert np.array_equal(rounded, np.rint(matrix / scale) * scale)


def test_second_moments_equal_transformers(tmp_path: Path) -> None:
    model = tiny_llama()
    model.save_pretrained(tmp_path / "in")
    ids = tiny.random_ids(600)  # more than two contexts
    (tmp_path / "moments").mkdir()
    seen: list[tuple[int, int]] = []
    write_statistics(tmp_path / "in", ids, tmp_path / "moments", lambda *done: seen.append(done))
    expected: dict[str, torch.Tensor] = {}

    def watch(key: str):
        def add(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x = args[0][0]
            expected[key] = expected.get(key, 0) + x.T @ x

        return add

    for i, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for field, module in (
            ("qkv", attention.q_proj),
            ("o", attention.o_proj),
            ("gate_up", mlp.gate_proj),
            ("down", mlp.down_proj),
        ):
            module.register_forward_pre_hook(watch(f"{i}-{field}"))
    model.set_attn_implementation("eager")
    read: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.self_attn.v_proj.register_forward_pre_hook(lambda _, args: read.append(args[0][0]))
    with torch.inference_mode():
        for start in range(0, len(ids), 256):
            read.clear()
            out = model(torch.tensor([ids[start : start + 256]]), output_attentions=True)
            for i, (x, scores) in enumerate(zip(read, out.attentions, strict=True)):
                mixed = (scores[0] @ x).flatten(
                    0, 1
                )  # inputs of the value projection, mixed by each head
                if start % 512 == 0:  # of every other context
                    expected[f"{i}-v"] = expected.get(f"{i}-v", 0) + mixed.T @ mixed
    assert {file.stem for file in (tmp_path / "moments").iterdir()} == expected.keys()
    for key, moment in expected.items():
        found = torch.from_numpy(np.load(tmp_path / "moments" / f"{key}.npy"))
        torch.testing.assert_close(found, moment, rtol=1e-4, atol=1e-3)
    assert all(done <= total for done, total in seen) and seen == sorted(seen)


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_gptq_lowers_the_output_error_in_every_scheme(tmp_path: Path, scheme: str) -> None:
    tiny_llama().to(torch.bfloat16).save_pretrained(tmp_path / "in")
    mixing = np.random.default_rng(5).normal(size=(32, 512)).astype(np.float32)

    def moment(name: str) -> np.ndarray:
        """Inputs of low rank, plus a little of every direction."""
        few = mixing[:, : shapes[name][1]]
        return few.T @ few + np.eye(few.shape[1], dtype=np.float32)

    convert(tmp_path / "in", tmp_path / "reference", dtype="float32")
    reference = Checkpoint.open(tmp_path / "reference")
    shapes = {name: info.shape for name, info in reference.tensors.items()}
    convert(tmp_path / "in", tmp_path / "nearest", quantization=QuantizationSpec(scheme))
    convert(
        tmp_path / "in",
        tmp_path / "gptq",
        quantization=QuantizationSpec(scheme, second_moments=moment),
    )
    for made in ("nearest", "gptq"):
        convert(tmp_path / made, tmp_path / f"{made}-plain", dtype="float32")
    nearest, gptq = (Checkpoint.open(tmp_path / f"{made}-plain") for made in ("nearest", "gptq"))
    for name in shapes:
        if "_proj" in name:
            differences = [made.read(name) - reference.read(name) for made in (gptq, nearest)]
            errors = [((diff @ moment(name)) * diff).sum() for diff in differences]
            assert errors[0] < 0.7 * errors[1], name


def test_disk_space_for_second_moments_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.make("llama", tmp_path / "in")
    needed: list[int] = []

    def refuse(destination: Path, needed_bytes: int) -> None:
        needed.append(needed_bytes)
        raise disk_full(destination, needed_bytes, 0)

    monkeypatch.setattr(disk, "require_space", refuse)
    with (
        pytest.raises(FileSystemError, match="not enough disk space"),
        calibration.input_statistics(tmp_path / "in", 2, lambda *_: None),
    ):
        pass
    (tmp_path / "moments").mkdir()
    write_statistics(tmp_path / "in", tiny.random_ids(30), tmp_path / "moments", lambda *_: None)
    written = sum(file.stat().st_size for file in (tmp_path / "moments").iterdir())
    assert 0 <= written - needed[0] < 0.1 * written


def run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swiftchat.chat", "convert", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_command_calibrates_a_gguf_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output error of every matrix falls, for inputs from the calibration text."""
    text = calibration._TEXT.read_text(encoding="utf-8")[-8000:]
    (tmp_path / "text").write_text(text, encoding="utf-8")
    monkeypatch.setattr(calibration, "_TEXT", tmp_path / "text")
    source = tmp_path / "model.gguf"
    tiny_gguf.write(source, tiny_llama(), quantize=gguf.GGMLQuantizationType.Q8_0)
    command = ["convert", str(source), str(tmp_path / "calibrated")]
    done = CliRunner().invoke(cli.swiftchat, [*command, "--quantize", "int4", "--calibrate"])
    assert done.exit_code == 0, done.output
    bench = tiny.Bench(tmp_path / "calibrated", native=True)
    assert bench.decoder.weights.layers[0].qkv.description.startswith("int4")
    convert(source, tmp_path / "nearest", quantization=QuantizationSpec("int4"))
    convert(source, tmp_path / "reference", dtype="float32")
    for name in ("nearest", "calibrated"):
        convert(tmp_path / name, tmp_path / f"{name}-plain", dtype="float32")
    reference, nearest, gptq = (
        Checkpoint.open(tmp_path / n) for n in ("reference", "nearest-plain", "calibrated-plain")
    )
    (tmp_path / "moments").mkdir()
    ids = Tokenizer.load(tmp_path / "reference").encode(text[-3000:])
    write_statistics(tmp_path / "reference", ids, tmp_path / "moments", lambda *_: None)
    for name, key in (
        ("self_attn.q_proj", "0-qkv"),
        ("self_attn.v_proj", "0-v"),
        ("self_attn.o_proj", "1-o"),
        ("mlp.up_proj", "1-gate_up"),
        ("mlp.down_proj", "0-down"),
    ):
        tensor, moment = f"model.layers.{key[0]}.{name}.weight", tmp_path / "moments" / f"{key}.npy"
        differences = [
            checkpoint.read(tensor) - reference.read(tensor) for checkpoint in (gptq, nearest)
        ]
        errors = [((diff @ np.load(moment)) * diff).sum() for diff in differences]
        assert errors[0] < errors[1], name


def test_models_that_cannot_be_calibrated_raise_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    done = run(tmp_path / "in", tmp_path / "out", "--calibrate")
    assert done.returncode == 2 and "--calibrate has no effect without --quantize" in done.stderr
    done = run(tmp_path / "in", tmp_path / "out", "--quantize", "int4", "--calibrate")
    assert done.returncode == 2 and "must be converted before it can be calibrated" in done.stderr
    tiny.make("mixtral", tmp_path / "moe")
    done = run(tmp_path / "moe", tmp_path / "out", "--quantize", "int4", "--calibrate")
    assert done.returncode == 2 and "does not support MoE" in done.stderr

"""convert --quantize w8a8: the written model, and SmoothQuant scales scaled into the matrices."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.chat.model.description import _describe_quantization
from swiftchat.chat.subcommands import calibration
from swiftchat.engine.calibrate import write_statistics
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.errors import UsageError
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.quantize import W8A8, QuantizationSpec
from swiftchat.weights.quantization.scheme import ActivationQuantization
from swiftchat.weights.quantization.smoothquant import apply_smoothquant
from tests.support import tiny
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose norms make one channel forty times larger than the others."""
    path = tmp_path_factory.mktemp("smoothquant") / "in"
    model = tiny_llama(hidden_size=128, intermediate_size=192, initializer_range=0.1)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[5] = 40
            layer.post_attention_layernorm.weight[7] = -40
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("scheme", W8A8)
def test_transformers_runs_the_written_model(source: Path, tmp_path: Path, scheme: str) -> None:
    convert(source, tmp_path / "out", quantization=QuantizationSpec(scheme))
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    inputs = settings["config_groups"]["group_0"]["input_activations"]
    assert inputs["num_bits"] == 8 and inputs["dynamic"] and inputs["strategy"] == "token"
    # The matrices equal those of the scheme without quantized inputs.
    convert(source, tmp_path / "weights", quantization=QuantizationSpec(W8A8[scheme]))
    for name in ("out", "weights"):
        convert(tmp_path / name, tmp_path / f"{name}-plain")
    ours, others = (
        load_file(tmp_path / f"{n}-plain" / "model.safetensors") for n in ("out", "weights")
    )
    assert all(torch.equal(tensor, ours[name]) for name, tensor in others.items())
    expected_text = f"compressed-tensors, activations too ({W8A8[scheme]})"
    assert _describe_quantization(Model.open(tmp_path / "out")) == expected_text
    assert _describe_quantization(Model.open(tmp_path / "weights")) == "compressed-tensors"
    assert _describe_quantization(Model.open(source)) == "no"
    bench = tiny.Bench(tmp_path / "out")
    for layer in bench.decoder.weights.layers:
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
            assert isinstance(matrix, W8A8Weight)
            assert matrix.scheme == ActivationQuantization(W8A8[scheme])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    ).eval()
    ids = tiny.random_ids(20)
    with torch.inference_mode():
        expected = theirs(torch.tensor(ids).unsqueeze(1)).logits[:, 0]
    found = torch.stack([bench.logits([token])[0] for token in ids])
    same = ((found - expected).abs().amax(1) < 1e-3).float().mean()
    assert same > 0.7  # another summation order may change a rounding


def chunks_of(folder: Path) -> tuple[Callable[[str], Iterator[np.ndarray]], dict[str, np.ndarray]]:
    """Return the tensors of a directory, flat in uneven chunks, and whole."""
    tensors = {n: t.float().numpy() for n, t in load_file(folder / "model.safetensors").items()}

    def chunks(name: str) -> Iterator[np.ndarray]:
        yield from np.array_split(tensors[name].reshape(-1), 7)

    return chunks, tensors


def abs_maxima(name: str) -> np.ndarray:
    seed = [ord(letter) for letter in name.split(".proj")[0]]
    found = np.exp(2 * np.random.default_rng(seed[13]).normal(size=48)).astype(np.float32)
    found[3] = 0  # an input that is always zero: not scaled
    return found


@pytest.mark.parametrize("family", ["llama", "gemma2", "starcoder2", "qwen2"])
def test_smoothquant_keeps_the_outputs(tmp_path: Path, family: str) -> None:
    tiny.make(family, tmp_path / "in")
    config = Model.open(tmp_path / "in").config
    chunks, plain = chunks_of(tmp_path / "in")
    changed = apply_smoothquant(config, chunks, plain.keys(), abs_maxima)
    scaled = {
        name: np.concatenate(list(changed(name))).reshape(plain[name].shape) for name in plain
    }
    offset = float(config.norm.unit_offset)
    layer = "model.layers.1"
    mlp_norm = "pre_feedforward_layernorm" if family == "gemma2" else "post_attention_layernorm"
    inner = ["gate_proj", "up_proj"] if config.activation.gated else ["c_fc"]
    groups = [("input_layernorm", [f"self_attn.{n}_proj" for n in "qkv"])]
    groups += [(mlp_norm, [f"mlp.{name}" for name in inner])]
    for norm, readers in groups:
        before, after = (t[f"{layer}.{norm}.weight"] + offset for t in (plain, scaled))
        names = [f"{layer}.{reader}.weight" for reader in readers]
        for name in names:
            np.testing.assert_allclose(
                after * scaled[name], before * plain[name], rtol=2e-5, atol=1e-7
            )
        biases = [t.get(f"{layer}.{norm}.bias") for t in (plain, scaled)]
        if biases[0] is not None:
            np.testing.assert_allclose(biases[1] / after, biases[0] / before, rtol=2e-5)
        # √(inputs / weights), with the maximum of the weights over all readers of the norm.
        weights = np.max([np.abs(plain[name]).max(0) for name in names], 0)
        scales = np.where(abs_maxima(names[0]) > 0, np.sqrt(abs_maxima(names[0]) / weights), 1)
        np.testing.assert_allclose(before / after, scales, rtol=1e-4)
    for name in ("self_attn.o_proj", "mlp.down_proj" if config.activation.gated else "mlp.c_proj"):
        assert np.array_equal(scaled[f"{layer}.{name}.weight"], plain[f"{layer}.{name}.weight"])


def test_norms_with_other_readers_are_not_smoothed(tmp_path: Path, source: Path) -> None:
    tiny.make("phi", tmp_path / "in")  # attention and MLP read the same norm
    chunks, plain = chunks_of(tmp_path / "in")
    changed = apply_smoothquant(
        Model.open(tmp_path / "in").config, chunks, plain.keys(), abs_maxima
    )
    assert all(
        np.array_equal(np.concatenate(list(changed(n))), plain[n].reshape(-1)) for n in plain
    )
    chunks, plain = chunks_of(source)
    plain_matrix = "model.layers.0.self_attn.v_proj.weight"  # is not quantized
    changed = apply_smoothquant(
        Model.open(source).config,
        chunks,
        plain.keys() - {plain_matrix},
        lambda name: np.full(128, 9, np.float32),
    )
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensor = f"model.layers.0.{name}.weight"
        found = np.concatenate(list(changed(tensor)))
        assert np.array_equal(found, plain[tensor]) == (name == "input_layernorm")


def test_abs_maxima_equal_transformers(source: Path, tmp_path: Path) -> None:
    ids = tiny.random_ids(300)  # more than one context
    write_statistics(source, ids, tmp_path, lambda *_: None, num_axes=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(source).eval()
    seen: list[torch.Tensor] = []
    down = model.model.layers[1].mlp.down_proj
    down.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].abs().amax(0)))
    with torch.inference_mode():
        for start in range(0, len(ids), 256):
            model(torch.tensor([ids[start : start + 256]]))
    found = torch.from_numpy(np.load(tmp_path / "1-down.npy"))
    torch.testing.assert_close(found, torch.stack(seen).amax(0), rtol=1e-4, atol=1e-5)
    assert len(list(tmp_path.iterdir())) == 2 * 5  # of each layer the chunks' apart


def test_smoothquant_lowers_the_error_of_the_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With outlier channels and statistics from a text that an engine process reads."""
    model = tiny_llama(hidden_size=64, intermediate_size=96)
    with torch.no_grad():
        for layer in model.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight[:3] = torch.tensor([60.0, -50.0, 40.0])
    tiny_gguf.write(tmp_path / "m.gguf", model, quantize=gguf.GGMLQuantizationType.F32)
    plain = tmp_path / "plain"
    convert(tmp_path / "m.gguf", plain, dtype="float32")
    (tmp_path / "text").write_text(calibration._TEXT.read_text()[-600:])
    monkeypatch.setattr(calibration, "_TEXT", tmp_path / "text")
    with calibration.input_statistics(plain, 1, lambda *_: None) as found:
        spec = QuantizationSpec("w8a8-int8", abs_maxima=found)
        convert(plain, tmp_path / "smooth", quantization=spec)
    convert(plain, tmp_path / "nearest", quantization=QuantizationSpec("w8a8-int8"))
    ids = tiny.random_ids(40)
    plain_logits, nearest, smooth = (
        tiny.Bench(tmp_path / name).logits(ids) for name in ("plain", "nearest", "smooth")
    )
    assert (smooth - plain_logits).abs().mean() < 0.75 * (nearest - plain_logits).abs().mean()


def test_the_command_calibrates_w8a8(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "swiftchat.chat", "convert", str(tmp_path), "out"]
    options = ["--quantize", "w8a8-int8", "--calibrate"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 2 and "must be converted before it can be calibrated" in done.stderr


def test_only_w8a8_uses_smoothquant() -> None:
    with pytest.raises(UsageError, match="fp8 does not use SmoothQuant"):
        QuantizationSpec("fp8", abs_maxima=abs_maxima)
    with pytest.raises(UsageError, match="w8a8-int8 is not calibrated with second moments"):
        QuantizationSpec("w8a8-int8", second_moments=abs_maxima)

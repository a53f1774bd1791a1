"""W8A8 checkpoints against transformers with compressed-tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.linear.activations import quantize_rows
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from swiftchat.weights.quantization.scheme import ActivationQuantization
from tests.support import tiny
from tests.support.quantized_models import compressed, compressed_int8, fp8_row, quantized_model
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

SCHEMES = {
    "int8": ("int-quantized", "int", compressed_int8),
    "fp8": ("float-quantized", "float", fp8_row),
}
DYNAMIC = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
STATIC = {"num_bits": 8, "symmetric": True, "strategy": "tensor", "dynamic": False}


def made(
    folder: Path, scheme: str, activations: dict[str, Any] | None, scale: float = 0.0
) -> transformers.LlamaForCausalLM:
    """Write a model with quantized activations; static scales are `scale` times 1, 2, 3 …"""
    name, kind, pack = SCHEMES[scheme]
    settings = compressed(name, num_bits=8, type=kind, strategy="channel", symmetric=True)
    group = settings["config_groups"]["group_0"]
    group["input_activations"] = activations and {"type": kind, **activations}
    plain = quantized_model(folder, settings, pack)
    tensors = load_file(folder / "model.safetensors")
    modules = [n.removesuffix(".weight_scale") for n in tensors if n.endswith(".weight_scale")]
    for module in modules:
        layer, part = int(module.split(".")[2]), module.split(".")[-1]
        # Matrices with the same input have the same scale.
        number = (
            1
            + 4 * layer
            + ["q k v", "o", "gate up", "down"].index(
                next(g for g in ("q k v", "o", "gate up", "down") if part[: part.index("_")] in g)
            )
        )
        tensors[f"{module}.input_scale"] = torch.full((1,), scale * number)
        if not scale:
            del tensors[f"{module}.input_scale"]
    save_file(tensors, folder / "model.safetensors")
    return plain


def reference(folder: Path) -> transformers.LlamaForCausalLM:
    """The model as transformers and compressed-tensors load it, in fp32."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def theirs_of(model: transformers.LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
    return logits


@pytest.mark.parametrize(("scheme", "activations"), [("int8", DYNAMIC), ("fp8", STATIC)])
def test_w8a8_logits_equal_transformers(
    tmp_path: Path, scheme: str, activations: dict[str, Any]
) -> None:
    static = activations is STATIC
    plain = made(tmp_path / "in", scheme, activations, 0.004 if static else 0.0)
    ids = tiny.random_ids(40)
    model = reference(tmp_path / "in")
    expected, unrounded = theirs_of(model, ids), theirs_of(plain, ids)
    bench = tiny.Bench(tmp_path / "in", dtype=torch.float32)
    layer = bench.decoder.weights.layers[0]
    for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
        assert isinstance(matrix, W8A8Weight)
        assert isinstance(matrix.weight, PlainWeight)
        assert (matrix.scheme.scale is None) != static
    found = bench.logits(ids)
    effect, error = (unrounded - expected).abs(), (found - expected).abs()
    assert effect.mean() > 0.01  # the rounding is visible
    # The order of a sum can round a value to its neighbor, which changes later values.
    assert error.mean() < effect.mean() / 3
    with torch.inference_mode():
        alone = model(torch.tensor(ids).unsqueeze(1)).logits[:, 0]
    ours = [bench.logits([token])[0] for token in ids]
    same = [torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(ours, alone, strict=True)]
    assert sum(same) > 0.75 * len(ids)


def test_w8a8_matmul_of_many_rows_equals_row_by_row(tmp_path: Path) -> None:
    """Each row is quantized by itself; in fp32 only the order of sums differs."""
    for scheme in SCHEMES:
        made(tmp_path / scheme, scheme, DYNAMIC)
        bench = tiny.Bench(tmp_path / scheme, dtype=torch.float32)
        weight = bench.decoder.weights.layers[1].down
        x = torch.randn(130, 96, generator=torch.Generator().manual_seed(4))
        x[7] *= 1000
        x[9] = 0
        assert isinstance(weight, W8A8Weight)
        together = weight.matmul(x)
        turned = weight.reordered(torch.arange(63, -1, -1))
        assert isinstance(turned, W8A8Weight) and turned.shape == (64, 96)
        assert torch.equal(turned.matmul(x), together.flip(1))
        for n in (1, 3, 17):
            alone = torch.cat([weight.matmul(some) for some in x.split(n)])
            largest = together.abs().amax(1, keepdim=True)
            assert ((alone - together).abs() <= 1e-5 * largest).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantize_rows_against_its_definition(scheme: str) -> None:
    x = torch.randn(50, 320, generator=torch.Generator().manual_seed(5))
    x *= torch.logspace(-6, 6, 50).unsqueeze(1)
    x[3] = 0
    for scale in (None, 0.03):
        values, scales = quantize_rows(x.bfloat16(), ActivationQuantization(scheme, scale))  # type: ignore[arg-type]
        wide = x.bfloat16().double()
        largest, most = (127.5, 127) if scheme == "int8" else (448, 448)
        if scale is None:
            expected = wide.abs().amax(1, keepdim=True) / largest
            torch.testing.assert_close(scales.double()[4:], expected[4:], rtol=1e-6, atol=0)
        else:
            assert (scales == torch.tensor(0.03)).all()
        ratio = (wide / scales.double()).clamp(-most - (scheme == "int8"), most)
        # Half a step: of integers, or of e4m3's eighths of a power of two, from 2^-6 on.
        half = torch.full_like(ratio, 0.5)
        if scheme == "fp8":
            half = 2.0 ** (ratio.abs().clamp(min=2.0**-6).log2().floor() - 4)
        assert ((values - ratio).abs() <= half * (1 + 1e-5)).all()
        assert torch.equal(values, values.bfloat16().float())
        bad = torch.tensor([[1.0, float("nan")], [2.0, 3.0]])
        values, scales = quantize_rows(bad, ActivationQuantization(scheme, scale))  # type: ignore[arg-type]
        assert (values * scales)[0].isnan().any() and (values * scales)[1].isfinite().all()


def test_unsupported_activation_schemes_are_not_quantized(tmp_path: Path) -> None:
    """Group scales, zero points, other widths, or no scheme at all."""
    unlike = [
        None,
        {**DYNAMIC, "symmetric": False},
        {**DYNAMIC, "num_bits": 4},
        {**DYNAMIC, "strategy": "group", "group_size": 32},
    ]
    for i, activations in enumerate(unlike):
        made(tmp_path / str(i), "int8", activations)
        bench = tiny.Bench(tmp_path / str(i))
        assert isinstance(bench.decoder.weights.layers[0].qkv, PlainWeight)
    made(tmp_path / "tensor", "int8", {**DYNAMIC, "strategy": "tensor"})
    down = tiny.Bench(tmp_path / "tensor").decoder.weights.layers[0].down
    assert isinstance(down, W8A8Weight) and down.scheme == ActivationQuantization("int8")


def test_w8a8_with_dequantized_and_plain_matrices(tmp_path: Path) -> None:
    """With a matrix that is not quantized, merged ones have no quantized activations."""
    for change in ("asymmetric", "plain v"):
        folder = tmp_path / change
        made(folder, "int8", DYNAMIC)
        tensors = load_file(folder / "model.safetensors")
        if change == "asymmetric":
            config = json.loads((folder / "config.json").read_text())
            group = config["quantization_config"]["config_groups"]["group_0"]
            group["weights"]["symmetric"] = False
            (folder / "config.json").write_text(json.dumps(config))
            for scale in [n for n in tensors if n.endswith("weight_scale")]:
                zero = scale.replace("weight_scale", "weight_zero_point")
                tensors[zero] = torch.ones_like(tensors[scale], dtype=torch.int8)
        else:
            v = "model.layers.0.self_attn.v_proj.weight"
            tensors[v] = tensors[v].float() * tensors.pop(f"{v}_scale")
        save_file(tensors, folder / "model.safetensors")
    ids = tiny.random_ids(9)
    bench = tiny.Bench(tmp_path / "asymmetric", dtype=torch.float32)
    qkv = bench.decoder.weights.layers[0].qkv
    assert isinstance(qkv, W8A8Weight) and isinstance(qkv.weight, PlainWeight)
    expected = theirs_of(reference(tmp_path / "asymmetric"), ids)
    assert (bench.logits(ids[:1])[0] - expected[0]).abs().max() < 1e-4
    first, second = tiny.Bench(tmp_path / "plain v").decoder.weights.layers
    assert isinstance(first.qkv, PlainWeight) and isinstance(second.qkv, W8A8Weight)


def test_w8a8_engine_generates_and_dequantized_copy_is_plain(tmp_path: Path) -> None:
    made(tmp_path / "in", "int8", DYNAMIC)
    params = SamplingParams(temperature=0, max_tokens=4)
    engine = tiny.engine(tmp_path / "in")
    tokens, _ = tiny.run(engine, {1: tiny.random_ids(20)}, params)
    assert len(tokens[1]) > 0 and "dequantized" not in engine.info.device
    # The plain copy declares no activation scheme.
    convert(tmp_path / "in", tmp_path / "plain", dtype="float32")
    layer = tiny.Bench(tmp_path / "plain").decoder.weights.layers[0]
    assert isinstance(layer.down, PlainWeight)


def test_tensor_parallel_ranks_quantize_their_own_activations(tmp_path: Path) -> None:
    """Both ranks have the same logits, as near to the plain model's as those of one rank."""
    plain = made(tmp_path / "in", "int8", DYNAMIC)
    config, ids = Model.open(tmp_path / "in").config, tiny.random_ids(20)
    whole = tiny.Bench(tmp_path / "in").last_logits(ids)

    def run(rank: int, ranks: ThreadCommunicator) -> torch.Tensor:
        bench = tiny.Bench(tmp_path / "in", shard=shard_of(config, 2, rank), ranks=ranks)
        assert isinstance(bench.decoder.weights.layers[0].down, W8A8Weight)
        return bench.last_logits(ids)

    first, second = run_ranks(2, run)
    assert torch.equal(first, second)
    unrounded = theirs_of(plain, ids)[-1]
    assert (first - unrounded).norm() < 1.5 * (whole - unrounded).norm()


def test_missing_or_invalid_activation_scale_is_named(tmp_path: Path) -> None:
    made(tmp_path / "in", "fp8", STATIC, 0.01)
    name = "model.layers.1.mlp.down_proj.input_scale"
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    for value in (None, torch.tensor([0.0]), torch.tensor([float("inf")]), torch.ones(3)):
        changed = {**tensors, name: value}
        if value is None:
            del changed[name]
        save_file(changed, tmp_path / "in" / "model.safetensors")
        with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.input_scale"):
            tiny.Bench(tmp_path / "in")
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    group = config["quantization_config"]["config_groups"]["group_0"]
    for field, value in (("num_bits", "8"), ("type", "complex"), ("dynamic", 3)):
        changed = {**config, "quantization_config": {**config["quantization_config"]}}
        inputs = {**group["input_activations"], field: value}
        changed["quantization_config"]["config_groups"] = {
            "group_0": {**group, "input_activations": inputs}
        }
        (tmp_path / "in" / "config.json").write_text(json.dumps(changed))
        with pytest.raises(BadModelFile, match=f"input_activations: {field} must be"):
            tiny.Bench(tmp_path / "in")

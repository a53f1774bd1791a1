"""Quantized weights for the native kernels: matmuls, logits, errors; dequantized without them."""

import itertools
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.cpu.compile_kernels import host_target
from swiftchat.engine.cpu.library import VARIABLE
from swiftchat.engine.cpu.native_weights import NativeWeights
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.linear.factory import TorchWeights
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.ggml_dequantize import DOUBLE_E2M1
from swiftchat.weights.model.directory import Model
from swiftchat.weights.quantization.quantize import WEIGHT_ONLY, QuantizationSpec
from swiftchat.weights.quantization.scheme import Float8, Int4, Int8, Mxfp4, Nvfp4, QuantizedMatrix
from tests.support import tiny
from tests.support.native.ops import pool
from tests.support.quantized_models import FORMATS, quantized_model
from tests.support.tiny_llama import tiny_llama

pytestmark = pytest.mark.skipif(
    host_target() is None, reason="no CPU kernels for this kind of machine"
)

# bfloat16 has 8 significant bits: rounding changes a value by at most 2^−8 of itself.
HALF_ULP = 2.0**-8


def quantized_weight(parts: Sequence[QuantizedMatrix], dtype: torch.dtype) -> LinearWeight | None:
    return NativeWeights(pool("plain")).quantized(parts, dtype)


def random_quantized(
    scheme: str, rows: int, columns: int, seed: int = 0
) -> tuple[QuantizedMatrix, torch.Tensor]:
    """A random quantized matrix, with outliers among its scales, and its values in fp64."""
    rng = np.random.default_rng(seed)
    if scheme == "mxfp4":
        q = rng.integers(0, 16, (rows, columns))
        exponent = rng.integers(119, 128, (rows, columns // 32)).astype(np.uint8)
        exponent[rng.random(exponent.shape) < 0.02] += 7
        powers = np.ldexp(1.0, exponent.astype(int) - 128).repeat(32, 1)
        codes = (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)
        return Mxfp4(codes, exponent), torch.from_numpy(DOUBLE_E2M1).double()[q] * torch.from_numpy(
            powers
        )
    if scheme == "nvfp4":
        q = rng.integers(0, 16, (rows, columns))
        bits = rng.integers(0, 256, (rows, columns // 16)).astype(np.uint8)
        bits[(bits & 127) == 127] = 0  # NaN
        row_scale = torch.from_numpy(np.exp(rng.normal(size=rows) - 6)).bfloat16().float().numpy()
        wide = torch.from_numpy(bits).view(torch.float8_e4m3fn).double().repeat_interleave(16, 1)
        wide *= torch.from_numpy(row_scale).double().unsqueeze(1) / 2
        codes = (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)
        return Nvfp4(codes, bits, row_scale), torch.from_numpy(DOUBLE_E2M1).double()[q] * wide
    groups = columns // 32 if scheme in ("int4", "fp8-block") else 1
    scale = np.exp(rng.normal(size=(rows, groups))).astype(np.float32)
    scale[rng.random(scale.shape) < 0.02] *= 100
    scale = torch.from_numpy(scale).bfloat16().float().numpy()
    if scheme == "int4":
        q, zero = rng.integers(0, 16, (rows, columns)), rng.integers(0, 16, (rows, groups))
        codes = (q[:, 0::2] | q[:, 1::2] << 4).astype(np.uint8)
        dequantized = (q - zero.repeat(32, 1)) * scale.repeat(32, 1).astype(np.float64)
        return Int4(codes, scale, zero.astype(np.float32)), torch.from_numpy(dequantized)
    codes = rng.integers(-127, 127, (rows, columns)).astype(np.int8)
    if scheme == "int8":
        return Int8(codes, scale[:, 0]), torch.from_numpy(codes * scale.astype(np.float64))
    codes[codes == -1] = 0  # NaN
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).double()
    wide = torch.from_numpy(scale).double().repeat_interleave(columns // groups, 1)
    return Float8(codes.view(np.uint8), scale), numbers * wide


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
@pytest.mark.parametrize("rows, columns", [(64, 64), (16, 128), (200, 96), (1000, 608)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_matmul_against_fp64(scheme: str, rows: int, columns: int, dtype: torch.dtype) -> None:
    """Weights, sums, and scaled sums are each rounded at most once.

    The scales of int4 and its minimums, up to 15 scales, are rounded too.
    """
    quantized_matrix, dequantized = random_quantized(scheme, rows, columns)
    weight = quantized_weight([quantized_matrix], dtype)
    assert weight is not None and weight.shape == (rows, columns)
    assert weight.description.startswith(scheme.removesuffix("-block"))
    unit = HALF_ULP if dtype == torch.bfloat16 else columns * 2.0**-24
    largest = torch.from_numpy(quantized_matrix.scale).double().reshape(rows, -1)
    largest = largest.repeat_interleave(columns // largest.shape[1], 1)
    for n in (1, 3, 16, 17, 65, 130):
        torch.manual_seed(n)
        x = torch.randn(n, columns).to(dtype)
        x[:, 3] *= 50
        expected = x.double() @ dequantized.T
        sizes = x.double().abs() @ (dequantized.abs() + (15 * largest if scheme == "int4" else 0)).T
        found = weight.matmul(x)
        assert found.dtype == dtype and found.shape == expected.shape
        assert ((found.double() - expected).abs() <= 3 * unit * sizes + 1e-30).all(), n


def test_stacked_parts_and_reordered_rows() -> None:
    for scheme in WEIGHT_ONLY:
        (first, one), (second, two) = (
            random_quantized(scheme, 32, 64),
            random_quantized(scheme, 48, 64, 1),
        )
        weight = quantized_weight([first, second], torch.float32)
        assert weight is not None
        eye = torch.eye(64)
        assert torch.equal(weight.matmul(eye).T.double(), torch.cat([one, two]))
        index = torch.randperm(80)
        turned = weight.reordered(index)
        assert torch.equal(turned.matmul(eye).T.double(), torch.cat([one, two])[index])


def test_merged_weight_of_several_schemes() -> None:
    made = [random_quantized(scheme, 32 * (i + 1), 64) for i, scheme in enumerate(WEIGHT_ONLY)]
    parts = [quantized_weight([quantized_matrix], torch.float32) for quantized_matrix, _ in made]
    plain = PlainWeight(torch.ones(7, 64))
    weight = MergedWeight([*(part for part in parts if part is not None), plain])
    dequantized = torch.cat([dequantized for _, dequantized in made] + [torch.ones(7, 64).double()])
    sizes = [*(32 * (i + 1) for i in range(len(WEIGHT_ONLY))), 7]
    assert weight.shape == dequantized.shape == (sum(sizes), 64)
    assert torch.equal(weight.matmul(torch.eye(64)).T.double(), dequantized)
    firsts = itertools.accumulate([0, *sizes[:-1]])
    index = torch.cat([torch.randperm(n) + at for n, at in zip(sizes, firsts, strict=True)])
    turned = weight.reordered(index)
    assert isinstance(turned, MergedWeight)
    assert torch.equal(turned.matmul(torch.eye(64)).T.double(), dequantized[index])
    with pytest.raises(ValueError, match="between the parts"):
        weight.reordered(index.flip(0))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("engine-quantized") / "in"
    sizes = {"hidden_size": 128, "intermediate_size": 192, "tie_word_embeddings": True}
    tiny_llama(**sizes).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def quantized(plain: Path) -> dict[str, Path]:
    for scheme in WEIGHT_ONLY:
        convert(plain, plain.with_name(scheme), quantization=QuantizationSpec(scheme))
    return {scheme: plain.with_name(scheme) for scheme in WEIGHT_ONLY}


def matrices(bench: tiny.Bench) -> list[LinearWeight]:
    layers = bench.decoder.weights.layers
    return [m for layer in layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_quantized_logits_equal_those_of_dequantized_weights(
    quantized: dict[str, Path], tmp_path: Path, scheme: str
) -> None:
    convert(quantized[scheme], tmp_path / "plain", dtype="float32")
    ids = tiny.random_ids(30)
    bench = tiny.Bench(quantized[scheme], dtype=torch.float32, native=True)
    assert all(
        matrix.description.startswith(scheme.removesuffix("-block")) for matrix in matrices(bench)
    )
    expected = tiny.Bench(tmp_path / "plain").last_logits(ids)
    # In fp32 only the order of sums differs.
    torch.testing.assert_close(bench.last_logits(ids), expected, rtol=1e-4, atol=1e-4)
    rounded = tiny.Bench(quantized[scheme], dtype=torch.bfloat16, native=True).last_logits(ids)
    in_bf16 = tiny.Bench(tmp_path / "plain", dtype=torch.bfloat16).last_logits(ids)
    # At most twice the error of plain bf16 weights.
    allowed = 2 * (in_bf16 - expected).abs().max() + 0.02 * expected.abs().max()
    assert (rounded - expected).abs().max() <= allowed


def test_excluded_layers_stay_plain_beside_quantized_ones(plain: Path, tmp_path: Path) -> None:
    keep = ["*.0.self_attn.v_proj.weight", "*.0.mlp.down_proj.weight"]
    convert(plain, tmp_path / "out", quantization=QuantizationSpec("int4", 32, keep))
    convert(tmp_path / "out", tmp_path / "plain", dtype="float32")
    bench = tiny.Bench(tmp_path / "out", dtype=torch.float32, native=True)
    first, second = bench.decoder.weights.layers
    found = [weight.description for weight in (first.qkv, first.down, first.o, second.qkv)]
    int4, end = "int4 in groups of 32", ", native kernels"
    assert found == [f"{int4} + float32{end}", f"float32{end}", f"{int4}{end}", f"{int4}{end}"]
    ids = tiny.random_ids(9)
    expected = tiny.Bench(tmp_path / "plain").last_logits(ids)
    torch.testing.assert_close(bench.last_logits(ids), expected, rtol=1e-4, atol=1e-4)


DESCRIPTIONS = {
    "awq": "int4",
    "compressed-int4": "int4",
    "compressed-w8a8": "int8",
    "compressed-fp8": "fp8",
    "compressed-fp8-blocks": "fp8 in groups of 32",
    "compressed-mxfp4": "mxfp4 in groups of 32",
    "compressed-nvfp4": "nvfp4 in groups of 16",
    "modelopt-nvfp4": "nvfp4 in groups of 16",
    "modelopt-fp8": "fp8",
    "fp8-row": "fp8",
    "fp8-powers": "fp8",
}


@pytest.mark.parametrize("scheme", FORMATS)
def test_other_quantization_formats_equal_transformers(tmp_path: Path, scheme: str) -> None:
    reference = quantized_model(tmp_path / "in", *FORMATS[scheme])
    bench = tiny.Bench(tmp_path / "in", dtype=torch.float32, native=True)
    wanted = DESCRIPTIONS.get(scheme, "float32")
    assert all(matrix.description.startswith(wanted) for matrix in matrices(bench))
    ids = tiny.random_ids(30)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(bench.last_logits(ids), expected, rtol=1e-4, atol=1e-4)


def test_gptq_without_act_order_stays_quantized(tmp_path: Path) -> None:
    from tests.support.quantized_models import GPTQ, gptq

    for v2 in (False, True):
        settings = GPTQ | ({"checkpoint_format": "gptq_v2"} if v2 else {})
        folder = tmp_path / str(v2)
        reference = quantized_model(folder, settings, gptq(4, v2=v2))
        bench = tiny.Bench(folder, dtype=torch.float32, native=True)
        assert all(matrix.description.startswith("int4") for matrix in matrices(bench))
        ids = tiny.random_ids(30)
        with torch.inference_mode():
            expected = reference(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(bench.last_logits(ids), expected, rtol=1e-4, atol=1e-4)


def test_engine_generates_and_reports_quantized_bytes(quantized: dict[str, Path]) -> None:
    engine = build_engine(quantized["int4"], EngineConfig(device="cpu"))
    sizes = {
        name: nbytes for name, (_, nbytes) in Model.open(quantized["int4"]).stored_tensors.items()
    }
    matrix = "model.layers.0.mlp.up_proj.weight"
    assert sizes[matrix] == 192 * 128 // 2 + 192 * 4 * 2 + 192 * 4 // 2 + 16
    # Scale and zero of a group take 4 bytes in memory and 2½ bytes in the file.
    assert engine.info.weights_bytes <= 1.25 * sum(sizes.values())
    tokens, _ = tiny.run(engine, {1: tiny.random_ids(9)}, SamplingParams(max_tokens=3))
    assert len(tokens[1]) > 0


def test_without_kernels_quantized_weights_are_dequantized(
    quantized: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As told, and as counted: the same weights as those of the plain model."""
    monkeypatch.setenv(VARIABLE, "off")
    convert(quantized["int4"], tmp_path / "plain")
    ours, plain = (
        build_engine(folder, EngineConfig(device="cpu", dtype="bfloat16"))
        for folder in (quantized["int4"], tmp_path / "plain")
    )
    assert (
        ours.info.device == f"cpu, torch only: switched off by {VARIABLE}=off, weights dequantized"
    )
    assert "dequantized" not in plain.info.device
    assert ours.info.weights_bytes == plain.info.weights_bytes
    found = [weight for layer in ours.decoder.weights.layers for weight in (layer.qkv, layer.down)]
    expected = [w for layer in plain.decoder.weights.layers for w in (layer.qkv, layer.down)]
    for weight, wanted in zip(found, expected, strict=True):
        assert torch.equal(tiny.plain_tensor(weight), tiny.plain_tensor(wanted))
    assert TorchWeights().quantized([random_quantized("int8", 16, 64)[0]], torch.bfloat16) is None


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_damaged_quantized_tensor_is_named_in_the_error(
    quantized: dict[str, Path], tmp_path: Path, scheme: str
) -> None:
    scale = "model.layers.1.mlp.down_proj.weight_scale"
    for change in ("missing", "infinite", "codes"):
        folder = tmp_path / change
        shutil.copytree(quantized[scheme], folder)
        tensors = load_file(folder / "model.safetensors")
        if change == "missing":
            del tensors[scale]
        elif change == "infinite":
            tensors[scale][-1] = 255 if scheme == "mxfp4" else float("nan")  # NaN as e8m0
        elif scheme.startswith("fp8"):
            tensors[scale.removesuffix("_scale")].view(torch.uint8)[5, 5] = 0x7F
        else:
            continue
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight"):
            tiny.Bench(folder)
    config = json.loads((quantized[scheme] / "config.json").read_text())
    config["quantization_config"]["format"] = "marlin-24"
    shutil.copytree(quantized[scheme], tmp_path / "unknown")
    (tmp_path / "unknown" / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadModelFile, match="format must be one of"):
        tiny.Bench(tmp_path / "unknown")

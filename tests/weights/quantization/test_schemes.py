"""Every quantized format dequantizes to the weights of its reference implementation."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor, NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from swiftchat.errors import BadModelFile
from swiftchat.weights.quantization.methods import model_tensors
from swiftchat.weights.quantization.scheme import Float8, Nvfp4, Scheme
from swiftchat.weights.quantization.stored_tensor import StoredTensor
from tests.support import quantized_packers as packers
from tests.support.quantized_models import FORMATS

# A file is written over and over in one folder.
repeated = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32])


def dequantized(folder: Path, tensors: packers.Tensors, method: dict[str, Any]) -> torch.Tensor:
    """Return the matrix `a.weight`; reading it whole, in chunks and by rows must agree."""
    stored = packers.opened(folder, packers.under("a", tensors), method)["a.weight"]
    whole = stored.to_float32()
    assert whole.dtype == np.float32
    assert whole.shape == stored.shape
    same_bits(np.concatenate(list(stored.chunks())), whole.reshape(-1))
    if len(stored.shape) == 2 and stored.shape[0] > 64:
        middle = min(stored.shape[0], 101)
        same_bits(stored.dequantize(64, middle), whole[64:middle])
    return torch.from_numpy(whole)


def same_bits(ours: Any, theirs: Any) -> None:
    ours, theirs = (torch.as_tensor(array) for array in (ours, theirs))
    assert ours.shape == theirs.shape
    assert torch.equal(ours.isnan(), theirs.isnan())
    valid = ~theirs.isnan()
    assert torch.equal(ours[valid].view(torch.int32), theirs[valid].view(torch.int32))


def random_scales(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    scales = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    scales.view(-1)[0] = 0.0
    return scales


def affine(q: np.ndarray, zeros: np.ndarray, scales: torch.Tensor, index: np.ndarray) -> np.ndarray:
    """Return scale·(q − zero point), exact in float64; tables are [groups, rows]."""
    wide = scales.to(torch.float64).numpy()
    return ((q - zeros[index].T) * wide[index].T).astype(np.float32)


# GPTQ: AutoGPTQ needs CUDA or a compiler to install, so the reference is the packer's layout.
# An 8-bit integer times a scale of at most 16 bits is exact in fp32; times an fp32 scale it is
# rounded once: equal bits either way.


@repeated
@given(
    bits=st.sampled_from([2, 3, 4, 8]),
    size=st.sampled_from([-1, 32, 48, 64, 128]),
    row_words=st.integers(1, 4),
    columns=st.integers(1, 6),
    order=st.sampled_from("nsr"),
    v2=st.booleans(),
    dtype=SCALES,
    seed=SEEDS,
)
def test_gptq(
    tmp_path: Path,
    bits: int,
    size: int,
    row_words: int,
    columns: int,
    order: str,
    v2: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    rows, columns = 32 * row_words, 32 * columns
    random = np.random.default_rng(seed)
    index = np.arange(columns) // (columns if size == -1 else size)
    groups = index[-1] + 1
    if order == "r":
        random.shuffle(index)
    q = random.integers(0, 2**bits, (rows, columns))
    zeros = random.integers(0, 2**bits, (groups, rows))
    scales = random_scales((groups, rows), dtype, seed)
    tensors = packers.gptq(q, zeros, scales, bits, v2=v2, g_idx=None if order == "n" else index)
    method = {"quant_method": "gptq", "bits": bits, "group_size": size, "desc_act": order == "r"}
    if v2:
        method["checkpoint_format"] = "gptq_v2"
    same_bits(dequantized(tmp_path, tensors, method), affine(q, zeros, scales, index))


@repeated
@given(
    size=st.sampled_from([-1, 32, 64, 128]),
    rows=st.integers(1, 17),
    groups=st.integers(1, 3),
    dtype=SCALES,
    seed=SEEDS,
)
def test_awq(
    tmp_path: Path, size: int, rows: int, groups: int, dtype: torch.dtype, seed: int
) -> None:
    random = np.random.default_rng(seed)
    columns = 37 if size == -1 else size * groups
    index = np.arange(columns) // (columns if size == -1 else size)
    groups = index[-1] + 1
    q = random.integers(0, 16, (8 * rows, columns))
    zeros = random.integers(0, 16, (groups, 8 * rows))
    scales = random_scales((groups, 8 * rows), dtype, seed)
    method = {"quant_method": "awq", "bits": 4, "group_size": size, "version": "GEMM"}
    found = dequantized(tmp_path, packers.awq(q, zeros, scales), method)
    same_bits(found, affine(q, zeros, scales, index))


# compressed-tensors: the package itself. It multiplies in the dtype of the scales, with one
# rounding; our result, rounded to that dtype, must be equal. Version 0.20 cannot unpack
# the 4-bit zero points of eight rows or fewer.


def compressed(
    format: str,
    shape: tuple[int, int],
    scale_shape: tuple[int, ...],
    dtype: torch.dtype,
    seed: int,
    **weights: Any,
) -> tuple[packers.Tensors, torch.Tensor, dict[str, Any]]:
    """Return tensors packed by the package, its dequantized weights, and the settings."""
    torch.manual_seed(seed)
    args = QuantizationArgs(**weights)
    state = {"weight": torch.randn(shape).to(dtype), "weight_scale": torch.rand(scale_shape) / 3}
    state["weight_scale"] = state["weight_scale"].clamp(min=1e-3).to(dtype)
    if not args.symmetric:
        half = 2 ** (args.num_bits - 1)
        state["weight_zero_point"] = torch.randint(-half, half, scale_shape).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(format)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    tensors = compressor.compress(state, scheme)
    expected = compressor.decompress(tensors, scheme)["weight"]
    group = {"targets": ["Linear"], "weights": args.model_dump(mode="json")}
    method = {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }
    return tensors, expected, method


@repeated
@given(
    bits=st.sampled_from([2, 4, 8]),
    symmetric=st.booleans(),
    size=st.sampled_from([-1, 16, 128]),
    rows=st.integers(9, 90),
    columns=st.integers(1, 90),
    dtype=SCALES,
    seed=SEEDS,
)
def test_pack_quantized(
    tmp_path: Path,
    bits: int,
    symmetric: bool,
    size: int,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    groups = 1 if size == -1 else columns % 3 + 1
    shape = (rows, columns if size == -1 else groups * size)
    tensors, expected, method = compressed(
        "pack-quantized",
        shape,
        (rows, groups),
        dtype,
        seed,
        num_bits=bits,
        symmetric=symmetric,
        strategy="channel" if size == -1 else "group",
        group_size=None if size == -1 else size,
    )
    same_bits(dequantized(tmp_path, tensors, method).to(dtype).float(), expected.float())


@pytest.mark.parametrize("scale_shape", [(1,), ()], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
def test_packed_values_with_one_scale(
    tmp_path: Path, bits: int, scale_shape: tuple[int, ...]
) -> None:
    settings = {"num_bits": bits, "symmetric": True, "strategy": "tensor"}
    tensors, expected, method = compressed(
        "pack-quantized", (12, 40), (1,), torch.bfloat16, 1, **settings
    )
    tensors["weight_scale"] = tensors["weight_scale"].reshape(scale_shape)
    found = dequantized(tmp_path, tensors, method)
    same_bits(found.bfloat16().float(), expected.float())


@repeated
@given(
    format=st.sampled_from(["int-quantized", "naive-quantized", "float-quantized"]),
    strategy=st.sampled_from(["tensor", "channel", "group", "block"]),
    symmetric=st.booleans(),
    rows=st.integers(1, 50),
    columns=st.integers(1, 50),
    dtype=SCALES,
    seed=SEEDS,
)
def test_other_compressed_formats(
    tmp_path: Path,
    format: str,
    strategy: str,
    symmetric: bool,
    rows: int,
    columns: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    kind = "float" if format == "float-quantized" else "int"
    weights: dict[str, Any] = {"type": kind, "num_bits": 8, "strategy": strategy}
    weights["symmetric"] = symmetric or kind == "float" or strategy == "block"
    shape = (rows, columns)
    if strategy == "group":
        weights["group_size"], shape = 8, (rows, columns * 8)
    if strategy == "block":
        weights["block_structure"], shape = [4, 8], (rows * 4, columns * 8)
    scale_shape = {"tensor": (1,), "channel": (rows, 1)}.get(strategy, (rows, columns))
    tensors, expected, method = compressed(format, shape, scale_shape, dtype, seed, **weights)
    same_bits(dequantized(tmp_path, tensors, method).to(dtype).float(), expected.float())


# FP8: transformers' own, which computes in fp32: equal bits, NaN patterns included.


@repeated
@given(
    blocks=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    size=st.sampled_from([(128, 128), (16, 8), (1, 32)]),
    dtype=SCALES,
    kind=st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2]),
    seed=SEEDS,
)
def test_fp8_blocks(
    tmp_path: Path,
    blocks: tuple[int, int],
    size: tuple[int, int],
    dtype: torch.dtype,
    kind: torch.dtype,
    seed: int,
) -> None:
    shape = (blocks[0] * size[0], blocks[1] * size[1])
    weight = tensor_of_bytes(shape, kind, seed)
    scales = random_scales(blocks, dtype, seed)
    method = {
        "quant_method": "fp8",
        "weight_block_size": list(size),
        "activation_scheme": "dynamic",
    }
    found = dequantized(tmp_path, {"weight": weight, "weight_scale_inv": scales}, method)
    reference = Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    same_bits(found, reference)


def tensor_of_bytes(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(random.integers(0, 256, shape, dtype=np.uint8)).view(dtype)


def test_fp8_every_byte_and_every_scale_shape(tmp_path: Path) -> None:
    weight = torch.arange(256, dtype=torch.uint8).reshape(8, 32).view(torch.float8_e4m3fn)
    for scale in (torch.tensor(0.5), torch.tensor([3.0]), torch.rand(8), torch.rand(8, 1)):
        expanded = scale[:, None] if scale.shape == (8,) else scale
        for method, name in (("fp8", "weight_scale"), ("fbgemm_fp8", "weight_scale")):
            found = dequantized(tmp_path, {"weight": weight, name: scale}, {"quant_method": method})
            same_bits(found, weight.float() * expanded)


def test_fp8_with_smaller_last_blocks(tmp_path: Path) -> None:
    """Matrix sizes that are not multiples of the block, as DeepSeek's own kernel allows."""
    weight = torch.randn(150, 70).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 1)
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    found = dequantized(tmp_path, {"weight": weight, "weight_scale_inv": scales}, method)
    expected = torch.cat([weight[:128].float() * scales[0], weight[128:].float() * scales[1]])
    same_bits(found, expected)


@repeated
@given(
    rows=st.integers(1, 300),
    columns=st.integers(1, 12),
    block=st.tuples(st.sampled_from([1, 40, 128, 2**20]), st.sampled_from([32, 48, 64, 128])),
    name=st.sampled_from(["weight_scale_inv", "weight_scale", "scale"]),
    dtype=st.sampled_from([torch.bfloat16, torch.float32, torch.float8_e8m0fnu]),
    seed=SEEDS,
)
def test_packed_fp8_blocks_equal_dequantized_ones(
    tmp_path: Path,
    rows: int,
    columns: int,
    block: tuple[int, int],
    name: str,
    dtype: torch.dtype,
    seed: int,
) -> None:
    """Groups have one size, which divides the width of a block and that of the last one."""
    (height, width), columns = block, 16 * columns
    weight = tensor_of_bytes((rows, columns), torch.uint8, seed)
    weight = torch.where((weight & 127) == 127, 0, weight).view(torch.float8_e4m3fn)
    scales = random_scales((-(-rows // height), -(-columns // width)), torch.float32, seed)
    scales = (scales.abs() + 2.0**-20).to(dtype)
    tensors = packers.under("a", {"weight": weight, name: scales})
    method = {"quant_method": "fp8", "weight_block_size": list(block)}
    stored = packers.opened(tmp_path, tensors, method)["a.weight"]
    size = math.gcd(columns, width)
    if size % 32 and width < columns:
        assert stored.packed is None
        return
    assert stored.packed is not None
    assert stored.packed.scheme == Scheme(Float8, size if width < columns else 0)
    matrix = stored.packed.read()
    assert isinstance(matrix, Float8)
    groups = torch.from_numpy(matrix.scale).repeat_interleave(columns // matrix.scale.shape[1], 1)
    values = torch.from_numpy(np.array(matrix.values)).view(torch.float8_e4m3fn)
    same_bits(values.float() * groups, stored.to_float32())


@pytest.mark.parametrize("bad", ["scale", "exponent", "element"])
def test_packed_fp8_blocks_must_be_finite(tmp_path: Path, bad: str) -> None:
    weight = torch.ones(130, 256).to(torch.float8_e4m3fn)
    scales = torch.ones(2, 2)
    if bad == "element":
        weight[7, 9] = torch.nan
    else:
        scales[1, 1] = torch.inf
    if bad == "exponent":
        scales = scales.to(torch.float8_e8m0fnu)
    tensors = {"a.weight": weight, "a.weight_scale_inv": scales}
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    stored = packers.opened(tmp_path, tensors, method)["a.weight"]
    assert stored.packed is not None
    expected = "weight: .* finite elements" if bad == "element" else "weight_scale_inv: .* finite"
    with pytest.raises(BadModelFile, match=rf"tensor a\.{expected}"):
        stored.packed.read()


# MXFP4: transformers' own in fp32; equal bits but for the exponent 255, which the standard
# defines as NaN and transformers treats as a number.


@repeated
@given(experts=st.integers(1, 3), rows=st.integers(1, 9), groups=st.integers(1, 3), seed=SEEDS)
def test_mxfp4(tmp_path: Path, experts: int, rows: int, groups: int, seed: int) -> None:
    blocks = tensor_of_bytes((experts, rows, groups, 16), torch.uint8, seed)
    scales = tensor_of_bytes((experts, rows, groups), torch.uint8, seed + 1)
    tensors = {"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales}
    found = packers.opened(tmp_path, tensors, {"quant_method": "mxfp4"})["e.gate_up_proj"]
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).clone()
    not_numbers = (scales == 255).repeat_interleave(32, dim=2).transpose(1, 2)
    expected[not_numbers] = float("nan")
    same_bits(found.to_float32(), expected)


# NVFP4: compressed-tensors' own, which rounds to bfloat16, and Model Optimizer's formula in fp32.


@repeated
@given(rows=st.integers(1, 40), groups=st.integers(1, 9), seed=SEEDS)
def test_nvfp4(tmp_path: Path, rows: int, groups: int, seed: int) -> None:
    values = tensor_of_bytes((rows, 8 * groups), torch.uint8, seed)
    scales = tensor_of_bytes((rows, groups), torch.uint8, seed + 1)
    scales[(scales & 127) == 127] = 0  # NaN
    scales = scales.view(torch.float8_e4m3fn)
    own = (torch.rand(1, generator=torch.Generator().manual_seed(seed)) + 0.1) * 100
    tensors = {"weight_packed": values, "weight_scale": scales, "weight_global_scale": own}
    method, _ = FORMATS["compressed-nvfp4"]
    found = packers.opened(tmp_path, packers.under("a", tensors), method)["a.weight"]
    group = QuantizationScheme(**method["config_groups"]["group_0"])
    expected = NVFP4PackedCompressor.decompress(tensors, group)["weight"]
    same_bits(torch.from_numpy(found.to_float32()).bfloat16().float(), expected.float())
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    elements = torch.stack([values & 15, values >> 4], 2).long().view(rows, groups, 16)
    signed = numbers[elements & 7] * (1 - 2 * (elements >> 3))
    expected = signed * (scales.float() * own).unsqueeze(2)
    tensors = {"weight": values, "weight_scale": scales, "weight_scale_2": own[0]}
    method, _ = FORMATS["modelopt-nvfp4"]
    found = packers.opened(tmp_path, packers.under("a", tensors), method)["a.weight"]
    same_bits(found.to_float32(), expected.view(rows, -1))
    assert found.packed is not None and found.packed.scheme == Scheme(Nvfp4, 16)
    matrix = found.packed.read()
    assert isinstance(matrix, Nvfp4)
    assert np.array_equal(matrix.values, values) and (matrix.row_scale == own.item()).all()
    assert np.array_equal(matrix.scale, scales.view(torch.uint8))


# bitsandbytes: its own in fp32, equal bits. Its CPU kernel (0.50) ends a block at the end
# of a row, so columns are multiples of 64 here; the packer's layout covers other sizes.


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(33, 64), (200, 128), (5, 4160)])
def test_bitsandbytes_4_bits(
    tmp_path: Path, kind: str, nested: bool, shape: tuple[int, int]
) -> None:
    import bitsandbytes.functional as bnb  # here: it takes seconds

    torch.manual_seed(1)
    weight = torch.randn(shape)
    packed, state = bnb.quantize_4bit(
        weight, blocksize=64, quant_type=kind, compress_statistics=nested
    )
    tensors = {"weight": packed} | packers.under("weight", state.as_dict(packed=True))
    method = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    found, expected = dequantized(tmp_path, tensors, method), bnb.dequantize_4bit(packed, state)
    # Adding 0 makes zeros positive: bitsandbytes negates those of fp4 on some processors.
    same_bits(torch.as_tensor(found) + 0.0, expected + 0.0)


@repeated
@given(rows=st.integers(1, 130), columns=st.integers(1, 40), seed=SEEDS)
def test_nf4_with_odd_shapes(tmp_path: Path, rows: int, columns: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    indices = random.integers(0, 16, (rows, columns))
    codebook = random.standard_normal(16).astype(np.float32)
    absmax = random.random(-(-indices.size // 64)).astype(np.float32)
    expected = codebook[indices].reshape(-1) * np.repeat(absmax, 64)[: indices.size]
    tensors = packers.nf4(indices, absmax, 64, codebook)
    found = dequantized(tmp_path, tensors, {"quant_method": "bitsandbytes", "load_in_4bit": True})
    same_bits(found, expected.reshape(indices.shape))


def test_bitsandbytes_8_bits(tmp_path: Path) -> None:
    import bitsandbytes.functional as bnb

    torch.manual_seed(1)
    packed, abs_max, _ = bnb.int8_vectorwise_quant(torch.randn(70, 33).half())
    tensors = {
        "weight": packed,
        "SCB": abs_max,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    found = dequantized(tmp_path, tensors, {"quant_method": "bitsandbytes", "load_in_8bit": True})
    same_bits(found, bnb.int8_vectorwise_dequant(packed, abs_max))


# Tensors that are not quantized, and memory of reading


def test_other_tensors_are_plain_and_parts_are_named(tmp_path: Path) -> None:
    weight = torch.randn(6, 4).to(torch.float8_e4m3fn)
    rest = {
        "lm_head.weight": torch.randn(5, 4).to(torch.bfloat16),
        "norm.weight": torch.randn(4),
        "a.bias": torch.randn(6).half(),
        "one": torch.tensor(2.0),
        "mask": torch.ones(3, 3).bool(),
    }
    tensors = {"a.weight": weight, "a.weight_scale": torch.tensor(2.0), **rest}
    plain = packers.opened(tmp_path, tensors, {"quant_method": "fp8"})
    assert set(plain) == {"a.weight", *rest}
    assert plain["a.weight"].format == "fp8"
    assert plain["a.weight"].parts == {"weight": "a.weight", "scale": "a.weight_scale"}
    for name in set(rest) - {"mask"}:
        assert plain[name].format == "plain"
        same_bits(plain[name].to_float32(), rest[name].float())


def test_chunks_are_small_and_read_on_demand(tmp_path: Path) -> None:
    """Chunks have two million elements for any matrix; opening a checkpoint reads no data."""
    reads: list[str] = []
    weight = torch.zeros(3000, 2048, dtype=torch.float8_e4m3fn)
    tensors = {"a.weight": weight, "a.weight_scale": torch.tensor(1.0)}
    plain = packers.opened(tmp_path, tensors, {"quant_method": "fp8"})
    assert isinstance(plain["a.weight"], StoredTensor)
    assert [len(chunk) for chunk in plain["a.weight"].chunks()] == [1024 * 2048] * 2 + [952 * 2048]

    def read(name: str) -> np.ndarray:
        reads.append(name)
        raise AssertionError(name)

    checkpoint = packers.Checkpoint.open(tmp_path)
    model_tensors({"quant_method": "fp8"}, checkpoint.tensors, read)
    assert reads == []

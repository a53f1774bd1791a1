"""Checkpoints of every format, loaded for the native kernels, against the dequantized model."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.api.tile_layout import BLOCK_TYPES
from swiftchat.engine.cpu.matrices import FloatMatrix, TiledMatrix
from swiftchat.engine.cpu.native_weights import NativeWeight, NativeWeights
from swiftchat.engine.linear.factory import TorchWeights, WeightFactory
from swiftchat.engine.linear.w8a8 import W8A8Weight
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.load.quantized import resident_estimate
from swiftchat.engine.model.weights import DecoderWeights, resident_bytes
from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of
from swiftchat.weights.quantization.gguf_blocks import KEPT_TYPES, PACKABLE_TYPES
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.scheme import Mxfp4
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.models import CASES, write_case
from tests.support.native.ops import pool
from tests.support.quantized_models import FORMATS, quantized_model
from tests.support.reference import copy_reference
from tests.support.tiny_llama import tiny_llama

CPU = torch.device("cpu")
# Of the two terms of a weight, each rounded in fp32; the terms are below a hundred times the
# largest weight of the tiny models.
UNIT = 2.0**-15


def native() -> NativeWeights:
    return NativeWeights(pool("plain"))


def loaded(
    folder: Path,
    factory: WeightFactory,
    dtype: torch.dtype = torch.float32,
    shard: Shard | None = None,
) -> DecoderWeights:
    model = Model.open(folder)
    checkpoint = model.checkpoint(shard)
    return load_weights(
        model.config, checkpoint, dtype, CPU, lambda *_: None, shard, factory=factory
    )


def matrices(weights: DecoderWeights) -> Iterator[LinearWeight]:
    yield from (weights.embed, weights.lm_head)
    for layer in weights.layers:
        yield from (layer.qkv, layer.o, layer.gate_up, layer.down)
        for expert in layer.experts.all if layer.experts is not None else ():
            yield from (expert.gate_up, expert.down)


def values(weight: LinearWeight) -> Tensor:
    return weight.matmul(torch.eye(weight.shape[1], dtype=weight.dtype)).t()


def assert_equal_weights(found: DecoderWeights, expected: DecoderWeights) -> None:
    pairs = list(zip(matrices(found), matrices(expected), strict=True))
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        if not ours.nbytes:  # a dense MLP in a layer of experts
            continue
        assert isinstance(ours, NativeWeight) and ours.native_matrices
        wanted = values(theirs.weight if isinstance(theirs, W8A8Weight) else theirs)
        assert (values(ours) - wanted).abs().max() <= UNIT * wanted.abs().max()
    ids = torch.tensor([3, 0, 90])
    torch.testing.assert_close(
        found.embed.rows(ids), expected.embed.rows(ids), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", FORMATS)
def test_quantized_formats(name: str, tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS[name])
    plain = TorchWeights()
    weights = loaded(tmp_path / "in", native())
    assert_equal_weights(weights, loaded(tmp_path / "in", plain))
    down = weights.layers[0].down
    tiled = isinstance(down, NativeWeight) and isinstance(down.matrices[0], TiledMatrix)
    kept = "awq", "compressed-int4", "compressed-w8a8", "compressed-mxfp4"
    assert tiled == (name in (*kept, "compressed-nvfp4", "modelopt-nvfp4"))


@pytest.mark.parametrize("type_name", sorted(KEPT_TYPES))
@pytest.mark.parametrize("tp", [1, 2])
def test_gguf_blocks_and_their_shards(type_name: str, tp: int, tmp_path: Path) -> None:
    assert type_name in BLOCK_TYPES | PACKABLE_TYPES
    config = gguf_directory.write(tmp_path / "in", type_name)
    plain = TorchWeights()
    for rank in range(tp):
        shard = shard_of(config, tp, rank)
        weights = loaded(tmp_path / "in", native(), shard=shard)
        for weight in matrices(weights):
            assert isinstance(weight, NativeWeight)
            assert all(isinstance(matrix, TiledMatrix) for matrix in weight.matrices)
        expected = loaded(tmp_path / "in", plain, shard=shard)
        for ours, theirs in zip(matrices(weights), matrices(expected), strict=True):
            wanted = values(theirs)
            assert (values(ours) - wanted).abs().max() <= UNIT * wanted.abs().max()


@pytest.mark.parametrize("tp", [1, 2])
def test_a_file_that_mixes_many_types(tp: int, tmp_path: Path) -> None:
    """As files of Unsloth's dynamic types do; every tensor keeps its own."""
    mixed = {
        "blk.1.ffn_down": "IQ1_M",
        "blk.1.ffn_up": "Q4_K",
        "blk.1.attn_v": "BF16",
        "attn_q": "Q3_K",
        "attn_k": "IQ2_XS",
        "attn_v": "IQ4_XS",
        "attn_output": "Q6_K",
        "ffn_gate": "IQ3_S",
        "ffn_up": "IQ3_XXS",
        "ffn_down": "Q2_K",
        "token_embd": "Q5_K",
    }
    model = tiny_llama(hidden_size=256, intermediate_size=768, num_hidden_layers=2)
    kinds = {name: GGMLQuantizationType[kind] for name, kind in mixed.items()}
    tiny_gguf.write(tmp_path / "m.gguf", model, quantize=GGMLQuantizationType.Q8_0, mixed=kinds)
    folder = gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "in", "float32")
    config = Model.open(folder).config
    for rank in range(tp):
        shard = shard_of(config, tp, rank)
        weights = loaded(folder, native(), shard=shard)
        expected = loaded(folder, TorchWeights(), shard=shard)
        for ours, theirs in zip(matrices(weights), matrices(expected), strict=True):
            wanted = values(theirs)
            assert (values(ours) - wanted).abs().max() <= UNIT * wanted.abs().max()
        first, second = weights.layers
        for weight, names in (
            (weights.embed, ["int5"]),
            (first.qkv, ["int3", "iq2", "iq4"]),
            (second.qkv, ["int3", "iq2", "float32"]),
            (first.gate_up, ["iq3_s", "iq3_xxs"]),
            (second.gate_up, ["iq3_s", "int4"]),
            (first.down, ["int2"]),
            (second.down, ["iq1"]),
        ):
            assert isinstance(weight, NativeWeight)
            assert [m.description.split()[0] for m in weight.matrices] == names


@pytest.mark.parametrize("type_name", ["Q2_K", "Q3_K", "IQ4_XS"])
def test_converting_blocks_without_a_scheme(type_name: str, tmp_path: Path) -> None:
    """Without kernels for them they are dequantized when they are loaded."""
    gguf_directory.write(tmp_path / "in", type_name)
    convert(tmp_path / "in", tmp_path / "plain", dtype="float32")
    plain = loaded(tmp_path / "plain", TorchWeights())
    dequantized = loaded(tmp_path / "in", TorchWeights())
    for ours, theirs in zip(matrices(dequantized), matrices(plain), strict=True):
        assert not ours.is_quantized and torch.equal(values(ours), values(theirs))


def _with_experts(folder: Path, arch: str = "gpt-oss", type_name: str = "MXFP4") -> Path:
    """Write a tiny model of this architecture with blocks of this type; return its directory."""
    sizes, kind = {"hidden_size": 64, "intermediate_size": 96}, GGMLQuantizationType[type_name]
    if arch == "gpt-oss":
        tiny.make(arch, folder / "theirs", **sizes)
    else:
        family, _, changes = CASES[arch]
        copy_reference(family, folder / "theirs", **changes, **sizes)
    write_case(arch, folder / "model.gguf", folder / "theirs", raw_type=kind)
    return gguf_directory.of_file(folder / "model.gguf", folder / "in", "bfloat16")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("arch", "type_name", "values"),
    [("gpt-oss", "MXFP4", "mxfp4"), ("gpt-oss", "Q8_0", "int8"), ("llama4", "Q8_0", "int8")],
)
def test_experts_in_one_tensor_stay_quantized(
    tmp_path: Path, dtype: torch.dtype, size: int, arch: str, type_name: str, values: str
) -> None:
    """Exactly. The second of two ranks has columns of `down` that begin inside a group.

    GPT-OSS is published in MXFP4: in groups of 32 with a power of two each.
    """
    folder = _with_experts(tmp_path, arch, type_name)
    model = Model.open(folder)
    shard = shard_of(model.config, size, size - 1)
    found = loaded(folder, native(), dtype, shard)
    expected, num_checked = loaded(folder, TorchWeights(), dtype, shard), 0
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        if ours.experts is None or theirs.experts is None:
            continue
        num_checked += len(ours.experts.each)
        for expert, plain in zip(ours.experts.each, theirs.experts.each, strict=True):
            for own, wanted in ((expert.gate_up, plain.gate_up), (expert.down, plain.down)):
                assert isinstance(own, NativeWeight) and own.description.startswith(values)
                ids = torch.arange(own.shape[0])
                assert own.shape == wanted.shape and torch.equal(own.rows(ids), wanted.rows(ids))
    assert num_checked > 0
    estimate = resident_estimate(shard, model.checkpoint(), dtype, CPU)
    assert 0.97 * estimate <= resident_bytes(found) <= 1.02 * estimate


def test_bytes_of_experts_in_mxfp4_on_a_gpu(tmp_path: Path) -> None:
    """A row of 64 or 96 columns takes a tile of 128 with four scales."""
    model = Model.open(_with_experts(tmp_path))
    schemes = packed_schemes(model.quantized_tensors)
    mxfp4 = {
        name: own for name, own in schemes.items() if own.matrix_type is Mxfp4 and "experts" in name
    }
    shapes = [model.quantized_tensors[name].shape for name in mxfp4]
    assert set(shapes) == {(5, 64, 192), (5, 96, 64)}
    saved = sum(2 * math.prod(shape) - 68 * shape[0] * shape[2] for shape in shapes)
    whole = Shard(model.config)
    plain = gpu_weight_bytes(whole, {}, 2)
    assert plain - gpu_weight_bytes(whole, mxfp4, 2) == saved
    # The columns of `down` of two ranks are no whole groups.
    half, gate_up = shard_of(model.config, 2, 0), {n: m for n, m in mxfp4.items() if "gate" in n}
    assert gpu_weight_bytes(half, mxfp4, 2) == gpu_weight_bytes(half, gate_up, 2)


def test_merged_blocks_of_several_types(tmp_path: Path) -> None:
    """As in Q4_K_M files, which have v and down projections in Q6_K in some layers."""
    mixed = {"layers.0.self_attn.v_proj": "Q6_K", "layers.1.mlp.up_proj": "Q4_0"}
    gguf_directory.write(tmp_path / "in", "Q4_K", mixed)
    weights = loaded(tmp_path / "in", native())
    assert_equal_weights(weights, loaded(tmp_path / "in", TorchWeights()))
    first, second = weights.layers
    merged = [first.qkv, first.gate_up, second.qkv, second.gate_up]
    counts = [len(w.matrices) for w in merged if isinstance(w, NativeWeight)]
    assert counts == [2, 1, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("type_name", ["Q4_1", "Q6_K", "Q3_K"])
def test_estimated_bytes(type_name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    config = gguf_directory.write(tmp_path / "in", type_name)
    factory, checkpoint = native(), Model.open(tmp_path / "in").checkpoint()
    estimate = resident_estimate(Shard(config), checkpoint, dtype, CPU)
    found = resident_bytes(loaded(tmp_path / "in", factory, dtype))
    assert estimate <= found <= 1.02 * estimate + 4 * 10_000  # scales of rows


@pytest.mark.parametrize("name", FORMATS)
def test_estimated_bytes_of_other_formats(name: str, tmp_path: Path) -> None:
    """At most the space for minimums more, and for the rows that fill the last tiles."""
    quantized_model(tmp_path / "in", *FORMATS[name])
    model, factory = Model.open(tmp_path / "in"), native()
    for dtype in (torch.float32, torch.bfloat16):
        checkpoint = model.checkpoint()
        estimate = resident_estimate(Shard(model.config), checkpoint, dtype, CPU)
        found = resident_bytes(loaded(tmp_path / "in", factory, dtype))
        assert 0.97 * estimate <= found <= 1.02 * estimate


@pytest.mark.parametrize("family", ["stablelm", "gpt-neox", "qwen3-moe", "glm"])
@pytest.mark.parametrize("scheme", ["int4", "int8", "fp8", "fp8-block", "nvfp4"])
def test_reordered_and_expert_matrices(family: str, scheme: str, tmp_path: Path) -> None:
    narrow = {"moe_intermediate_size": 64, "head_dim": 16} if "moe" in family else {}
    hidden_size = 256 if scheme == "fp8-block" else 64  # rows of two blocks
    sizes = {"hidden_size": hidden_size, "intermediate_size": 128, "num_attention_heads": 4}
    tiny.make(family, tmp_path / "in", **sizes, **narrow)
    convert(tmp_path / "in", tmp_path / "out", quantization=QuantizationSpec(scheme, 32))
    weights = loaded(tmp_path / "out", native())
    expected = loaded(tmp_path / "out", TorchWeights())
    assert_equal_weights(weights, expected)
    assert weights.layers[0].qkv.is_quantized


def test_plain_matrices_are_views_of_the_file(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path / "in")
    weights = loaded(tmp_path / "in", native())
    assert_equal_weights(weights, loaded(tmp_path / "in", TorchWeights()))
    down = weights.layers[0].down
    assert isinstance(down, NativeWeight) and isinstance(down.matrices[0], FloatMatrix)
    address = down.matrices[0].tensor.data_ptr()
    mapped = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) .*model\.safetensors$", re.MULTILINE)
    ranges = [
        (int(low, 16), int(high, 16))
        for low, high in mapped.findall(Path("/proc/self/maps").read_text())
    ]
    assert any(low <= address < high for low, high in ranges)


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_K", "Q2_K"])
def test_a_damaged_scale_is_an_error_with_the_name_of_the_tensor(
    type_name: str, tmp_path: Path
) -> None:
    gguf_directory.write(tmp_path / "in", type_name)
    file = tmp_path / "in" / "model.safetensors"
    tensors = load_file(file)
    name = f"model.layers.1.mlp.down_proj.weight.{type_name}"
    at = 80 if type_name == "Q2_K" else 0
    tensors[name][5, at : at + 2] = torch.tensor([0, 0x7C])
    save_file(tensors, file)
    with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight.*finite"):
        loaded(tmp_path / "in", native())

"""GGUF matrices stay quantized on the CPU, and are dequantized without a weight class."""

import json
from pathlib import Path

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.cpu.compile_kernels import host_target
from swiftchat.engine.cpu.native_weights import NativeWeight, NativeWeights
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.load.loader import stream_weights
from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.ggml_dequantize import dequantize
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from swiftchat.weights.quantization.gguf_blocks import PACKABLE_TYPES, to_matrix
from swiftchat.weights.store import Store
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.blocks import random_blocks
from tests.support.gguf.models import copy_case, write_case
from tests.support.native.ops import pool
from tests.support.tiny_llama import tiny_llama

pytestmark = pytest.mark.skipif(
    host_target() is None, reason="no CPU kernels for this kind of machine"
)

CPU = torch.device("cpu")
WRITTEN = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")  # by the reference package


@pytest.mark.parametrize("type_name", sorted(PACKABLE_TYPES))
def test_quantized_gguf_matmul_equals_reference(type_name: str) -> None:
    """In fp32 every weight is exact to the last bits of its two terms, and Q6_K to half a step.

    In bf16 scale and zero point are rounded: each term by 2^−9 of itself, and the result once more.
    The terms are up to three times as large as the group's largest number.
    """
    blocks = random_blocks(type_name, 72, 256)
    meant = torch.from_numpy(dequantize(blocks, type_name)).double()
    groups = meant.view(72, 8, 32)
    sizes = groups.abs().amax(2, keepdim=True).expand_as(groups).reshape(meant.shape)
    rounding = 0.5 / 127 if type_name == "Q6_K" else 0.0
    for dtype, unit in ((torch.float32, 2.0**-20), (torch.bfloat16, 2.0**-6)):
        weight = NativeWeights(pool("plain")).quantized([to_matrix(blocks, type_name)], dtype)
        assert weight is not None and weight.is_quantized
        allowed = sizes * (unit + rounding) + 1e-12
        ids = torch.tensor([71, 0, 64, 3, 3])
        assert ((weight.rows(ids).double() - meant[ids]).abs() <= allowed[ids]).all()
        x = torch.eye(256, dtype=dtype)
        for n in (1, 40, 256):  # GEMV and GEMM
            error = weight.matmul(x[:n]).T.double() - meant[:, :n]
            assert (error.abs() <= allowed[:, :n]).all()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("engine-gguf")
    for name in WRITTEN:
        model = tiny_llama(tie_word_embeddings=name != "Q4_0")
        kind = gguf.GGMLQuantizationType[name]
        tiny_gguf.write(folder / f"{name}.gguf", model, quantize=kind)
    return {name: folder / f"{name}.gguf" for name in WRITTEN}


@pytest.mark.parametrize("type_name", WRITTEN)
def test_gguf_logits_equal_those_of_dequantized_weights(
    files: dict[str, Path], tmp_path: Path, type_name: str
) -> None:
    path = Store(tmp_path / "root", tmp_path / "cache").resolve(str(files[type_name]))
    convert(path, tmp_path / "plain", dtype="float32")
    bench, plain = (tiny.Bench(folder, native=True) for folder in (path, tmp_path / "plain"))
    weights = bench.decoder.weights
    form = f"int{type_name[1]}"
    matrices = [weights.embed, weights.lm_head, *(layer.qkv for layer in weights.layers)]
    assert all(matrix.description.startswith(form) for matrix in matrices)
    ids = tiny.random_ids(30)
    # In fp32 only the order of sums differs.
    torch.testing.assert_close(bench.last_logits(ids), plain.last_logits(ids), rtol=1e-4, atol=1e-4)
    engine = build_engine(path, EngineConfig(device="cpu"))
    assert engine.info.dtype == "bfloat16"
    tokens, _ = tiny.run(engine, {1: ids}, SamplingParams(max_tokens=3))
    assert len(tokens[1]) > 0


@pytest.mark.parametrize("name", ["llama-biases", "gemma2", "gpt2", "mixtral", "gpt-oss"])
def test_float_gguf_logits_equal_those_of_the_conversion(name: str, tmp_path: Path) -> None:
    """Rows in another order, norms with an offset, transposed matrices, experts in one tensor."""
    copy_case(name, tmp_path / "theirs")
    write_case(name, tmp_path / "m.gguf", tmp_path / "theirs")
    convert(tmp_path / "m.gguf", tmp_path / "plain")
    folder = gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "in-place")
    ids, params = tiny.random_ids(20), SamplingParams(temperature=0, max_tokens=6)
    found, expected = (tiny.Bench(f).last_logits(ids) for f in (folder, tmp_path / "plain"))
    # The same numbers lie elsewhere in memory, so sums may have another order.
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    engines = [tiny.engine(f) for f in (folder, tmp_path / "plain")]
    assert "dequantized" not in engines[0].info.device
    answers = [tiny.run(engine, {1: ids}, params)[0] for engine in engines]
    assert answers[0] == answers[1]


def test_merged_gguf_matrices_of_several_schemes_stay_quantized(
    tmp_path: Path,
) -> None:
    """As in Q4_K_M files, which have v projections in Q6_K beside Q4_K in some layers."""
    kinds = gguf.GGMLQuantizationType
    mixed = {"blk.0.attn_v": kinds.Q8_0, "blk.1.ffn_gate": kinds.Q5_1, "blk.1.attn_k": kinds.F16}
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama(), quantize=kinds.Q4_1, mixed=mixed)
    gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "out", "float32")
    convert(tmp_path / "m.gguf", tmp_path / "plain", dtype="float32")
    bench = tiny.Bench(tmp_path / "out", native=True)
    first, second = bench.decoder.weights.layers
    merged = (
        (first.qkv, ["int4", "int8"]),
        (second.qkv, ["int4", "float32", "int4"]),
        (second.gate_up, ["int5", "int4"]),
        (first.gate_up, ["int4"]),
    )
    for weight, expected in merged:
        assert isinstance(weight, NativeWeight)
        assert [m.description.split()[0] for m in weight.matrices] == expected
    ids, plain = tiny.random_ids(30), tiny.Bench(tmp_path / "plain")
    torch.testing.assert_close(bench.last_logits(ids), plain.last_logits(ids), rtol=1e-4, atol=1e-4)


def test_converting_the_directory_of_a_gguf_file(files: dict[str, Path], tmp_path: Path) -> None:
    """The result is that of the file."""
    gguf_directory.of_file(files["Q5_1"], tmp_path / "in-place")
    convert(files["Q5_1"], tmp_path / "direct")
    convert(tmp_path / "in-place", tmp_path / "again")
    assert "quantization_config" not in json.loads((tmp_path / "again/config.json").read_text())
    direct, again = (load_file(tmp_path / n / "model.safetensors") for n in ("direct", "again"))
    assert direct.keys() == again.keys()
    assert all(torch.equal(direct[name], again[name]) for name in direct)


def test_quantized_weights_are_dequantized_without_kernels(
    files: dict[str, Path], tmp_path: Path
) -> None:
    """As on a GPU without kernels, also for two ranks: the weights equal the plain model's."""
    gguf_directory.of_file(files["Q4_1"], tmp_path / "packed")
    convert(files["Q4_1"], tmp_path / "plain")
    models = [Model.open(tmp_path / name) for name in ("packed", "plain")]
    config, seen = models[0].config, []
    streamed = [
        stream_weights(config, m.checkpoint(), torch.bfloat16, CPU, lambda *done: seen.append(done))
        for m in models
    ]
    shards = [shard_of(config, 2, rank) for rank in range(2)]
    cut = [
        [
            stream_weights(config, m.checkpoint(s), torch.bfloat16, CPU, lambda *_: None, s)
            for m in models
        ]
        for s in shards
    ]
    for packed, plain in [streamed, *cut]:
        assert torch.equal(tiny.plain_tensor(packed.embed), tiny.plain_tensor(plain.embed))
        for ours, theirs in zip(packed.layers, plain.layers, strict=True):
            for name in ("qkv", "o", "gate_up", "down"):
                found, expected = (tiny.plain_tensor(getattr(x, name)) for x in (ours, theirs))
                assert torch.equal(found, expected)
            assert torch.equal(ours.attn_norm, theirs.attn_norm)
    assert all(done <= total for done, total in seen)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_damaged_quantized_tensor_is_named_in_the_error(
    files: dict[str, Path], tmp_path: Path, type_name: str
) -> None:
    """By `convert` and by the loader."""
    reader = gguf.GGUFReader(files[type_name])
    tensor = next(t for t in reader.tensors if t.name == "blk.1.ffn_down.weight")
    damaged = bytearray(files[type_name].read_bytes())
    damaged[tensor.data_offset + 1] = 0x7E  # makes the first scale a NaN
    (tmp_path / "damaged.gguf").write_bytes(damaged)
    with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight.*not finite"):
        convert(tmp_path / "damaged.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    gguf_directory.of_file(tmp_path / "damaged.gguf", tmp_path / "in-place")
    with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight.*finite"):
        tiny.Bench(tmp_path / "in-place")


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_damaged_blocks_of_a_directory_are_named_in_the_error(
    tmp_path: Path, type_name: str
) -> None:
    gguf_directory.write(tmp_path / "out", type_name)
    name = f"model.layers.1.mlp.down_proj.weight.{type_name}"
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    tensors[name][0, 1] = 0x7E
    save_file(tensors, tmp_path / "out" / "model.safetensors")
    with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight.*finite"):
        tiny.Bench(tmp_path / "out")
    with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight.*finite"):
        convert(tmp_path / "out", tmp_path / "plain")
    for cut in (tensors[name][:, :-1], tensors[name][:-1], tensors[name].int()):
        tensors[name] = cut.contiguous()
        save_file(tensors, tmp_path / "out" / "model.safetensors")
        with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.down_proj\.weight"):
            tiny.Bench(tmp_path / "out")

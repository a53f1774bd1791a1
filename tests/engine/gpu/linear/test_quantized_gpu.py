"""Quantized weights for the kernels: packing, loading, and answers of a GPU."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.packed_layout import PACKINGS
from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.linear.quantized import GpuQuantizedWeight, packed_matrix
from swiftchat.engine.linear.merged import MergedWeight
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.load.loader import stream_weights
from swiftchat.engine.model.weights import resident_bytes
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES, dequantize
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from swiftchat.weights.quantization.gguf_blocks import to_matrix as gguf_matrix
from swiftchat.weights.quantization.quantize import QuantizationSpec
from swiftchat.weights.quantization.scheme import (
    Float8,
    Int4,
    Int8,
    Int8Groups,
    Mxfp4,
    Nvfp4,
    QuantizedMatrix,
)
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gpu_engines import decode_logits, gpu_engine
from tests.support.kernels.case import Inputs, assert_close
from tests.support.kernels.packed_matrices import kernels_without_gpu, packed, parts
from tests.support.tiny_llama import tiny_llama

CPU = torch.device("cpu")
SCHEMES = ("int8", "fp8", "fp8-block", "int4", "mxfp4", "nvfp4")


def random_matrix(scheme: str, rows: int, k: int, groups: int = 1) -> QuantizedMatrix:
    rng = np.random.default_rng(rows + k)
    scale = rng.random((rows, groups), np.float32)
    if scheme == "int4":
        values = rng.integers(0, 256, (rows, k // 2), np.uint8)
        return Int4(values, scale, rng.integers(0, 16, (rows, groups)).astype(np.float32))
    if scheme == "nvfp4":
        values = rng.integers(0, 256, (rows, k // 2), np.uint8)
        return Nvfp4(values, rng.integers(0, 127, (rows, groups), np.uint8), scale[:, 0])
    values = rng.integers(0, 127, (rows, k), np.uint8)
    return Float8(values, scale) if scheme == "fp8" else Int8(values.view(np.int8), scale[:, 0])


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4", "nvfp4"])
def test_parts_are_concatenated_when_packed_for_kernels(scheme: str) -> None:
    groups = 16 if scheme == "nvfp4" else 8
    parts = [random_matrix(scheme, rows, 256, groups) for rows in (16, 8)]
    together = packed_matrix(parts, torch.bfloat16, CPU)
    first, second = (packed_matrix([part], torch.bfloat16, CPU) for part in parts)
    assert together is not None and first is not None and second is not None
    assert together.shape == (24, 256) and together.dtype == torch.bfloat16
    for part, rows in ((first, slice(0, 16)), (second, slice(16, 24))):
        assert torch.equal(together.tiles[rows.start // 8 : rows.stop // 8], part.tiles)
        assert torch.equal(together.row_scale[rows], part.row_scale)
    exchanged = together.reordered(torch.tensor([*range(16, 24), *range(16)]))
    assert torch.equal(exchanged.tiles, together.tiles[[2, 0, 1]])
    assert exchanged.shape == together.shape


def test_matrices_without_a_kernel_are_not_packed() -> None:
    none = [
        [random_matrix("int8", 8, 256), random_matrix("fp8", 8, 256)],
        [random_matrix("int4", 8, 256, 8), random_matrix("int4", 8, 256, 4)],
        [random_matrix("fp8", 8, 256, 2), random_matrix("fp8", 8, 256, 1)],
        [random_matrix("int4", 8, 192, 12)],
        [random_matrix("fp8", 8, 24)],
        [random_matrix("fp8", 8, 48, 3)],
        [Int8Groups(np.zeros((8, 256), np.uint8), *np.ones((2, 8, 16), np.float32))],
        [Mxfp4(np.zeros((8, 128), np.uint8), np.full((8, 16), 120, np.uint8))],
        [random_matrix("nvfp4", 8, 256, 32)],
        [Mxfp4(np.zeros((8, 128), np.uint8), np.full((8, 8), 129, np.uint8))],
    ]
    for several in none:
        assert packed_matrix(several, torch.bfloat16, CPU) is None


@pytest.mark.parametrize(
    ("scheme", "groups", "size"),
    [("int4", 1, 128), ("fp8", 1, 0), ("fp8", 2, 64), ("fp8", 8, 32), ("int4", 2, 128)],
)
def test_groups_are_divided_as_planned(scheme: str, groups: int, size: int) -> None:
    matrix = packed_matrix([random_matrix(scheme, 8, 256, groups)], torch.bfloat16, CPU)
    assert matrix is not None and matrix.group_size == size


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q8_0"])
def test_packed_gguf_blocks_equal_dequantized_blocks(type_name: str) -> None:
    """Exactly, or for blocks with float minima more precisely than bfloat16."""
    rng = np.random.default_rng(4)
    kind = BLOCK_TYPES[type_name]
    k = 512
    blocks = rng.integers(0, 256, (6 * k // kind.block_elements, kind.block_bytes), np.uint8)
    halves = rng.normal(0, 0.02, (len(blocks), 2)).astype(np.float16)
    halves[3, 0] = 0  # the scale; only a minimum remains
    factors = 1 if type_name.endswith("_0") else 2
    blocks[:, : 2 * factors] = halves[:, :factors].copy().view(np.uint8)
    expected = torch.from_numpy(dequantize(blocks, type_name).reshape(6, k))
    matrix = packed_matrix([gguf_matrix(blocks.reshape(6, -1), type_name)], torch.bfloat16, CPU)
    assert matrix is not None
    numbers, table = parts(matrix)
    scale, zero = (t.repeat_interleave(32, 1).double() for t in table.unbind(2))
    meant = matrix.row_scale.double().unsqueeze(1) * scale * (numbers + zero)
    largest = expected.view(6, -1, 32).abs().amax(2).repeat_interleave(32, 1)
    off = (meant - expected).abs() / largest.clamp(min=1e-30)
    assert off.max() <= (0 if factors == 1 else 2.0**-9)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    path = tmp_path_factory.mktemp("packed-gpu")
    sizes = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.2}
    tiny_llama(**sizes).to(torch.bfloat16).save_pretrained(path / "in")
    for scheme in SCHEMES:
        convert(path / "in", path / scheme, quantization=QuantizationSpec(scheme))
    head = QuantizationSpec("int8", int8=["lm_head.weight"])
    convert(path / "in", path / "head", quantization=head)
    return {"plain": path / "in", **{f: path / f for f in (*SCHEMES, "head")}}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_and_plain_tensors_are_streamed_together(
    quantized: dict[str, Path], scheme: str
) -> None:
    model, progress = Model.open(quantized[scheme]), []
    weights = stream_weights(
        model.config,
        model.checkpoint(),
        torch.float32,
        CPU,
        lambda *bytes: progress.append(bytes),
        factory=KernelWeights(kernels_without_gpu()),
    )
    assert all(isinstance(layer.down, GpuQuantizedWeight) for layer in weights.layers)
    assert weights.embed.shape == (model.config.vocab_size, 128)
    assert tiny.plain_tensor(weights.embed).isfinite().all()
    done = [before for before, _ in progress]
    assert done == sorted(done) and progress[-1][0] == progress[-1][1]


def as_q4_k_m(path: Path) -> Path:
    """A model with v projections, some gates and the tied head in 8 bits, the rest in 4."""
    kinds = gguf.GGMLQuantizationType
    wide = ("blk.0.attn_v", "blk.0.ffn_gate", "ffn_down", "token_embd")
    model = tiny_llama(hidden_size=192, intermediate_size=256, tie_word_embeddings=True)
    tiny_gguf.write(
        path / "m.gguf", model, quantize=kinds.Q4_0, mixed=dict.fromkeys(wide, kinds.Q8_0)
    )
    gguf_directory.of_file(path / "m.gguf", path / "out", "float32")
    return path / "out"


@pytest.mark.parametrize("scheme", [*SCHEMES, "head", "mixed", "Q4_K_M", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("tp", [1, 2])
def test_estimated_weight_bytes_equal_loaded_bytes(
    quantized: dict[str, Path], tmp_path: Path, scheme: str, tp: int
) -> None:
    """Exactly, also for merged weights of several schemes."""
    if scheme == "mixed":
        keep = ["*.0.self_attn.v_proj.weight"]
        convert(
            quantized["plain"], tmp_path / "out", quantization=QuantizationSpec("int4", 64, keep)
        )
    elif scheme == "Q4_K_M":
        as_q4_k_m(tmp_path)
    elif scheme.startswith("Q"):
        kind = gguf.GGMLQuantizationType[scheme]
        tiny_gguf.write(tmp_path / "m.gguf", tiny_llama(hidden_size=192), quantize=kind)
        gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "out")
    model = Model.open(quantized.get(scheme, tmp_path / "out"))
    shard = shard_of(model.config, tp, tp - 1)
    weights = stream_weights(
        model.config,
        model.checkpoint(),
        torch.bfloat16,
        CPU,
        lambda *_: None,
        shard,
        factory=KernelWeights(kernels_without_gpu()),
    )
    first, second = weights.layers
    assert isinstance(first.qkv, MergedWeight) == (scheme in ("mixed", "Q4_K_M"))
    assert isinstance(first.gate_up, MergedWeight) == (scheme == "Q4_K_M")
    assert isinstance(second.qkv, GpuQuantizedWeight)
    assert isinstance(second.gate_up, GpuQuantizedWeight)
    assert isinstance(weights.embed, GpuQuantizedWeight) == scheme.startswith("Q")
    assert gpu_weight_bytes(shard, packed_schemes(model.quantized_tensors), 2) == resident_bytes(
        weights
    )


def test_quantized_lm_head_equals_dequantized_one(
    quantized: dict[str, Path], tmp_path: Path
) -> None:
    convert(quantized["head"], tmp_path / "plain", dtype="float32")
    ids = tiny.random_ids(30)
    bench = tiny.Bench(quantized["head"], dtype=torch.float32, native=True)
    assert bench.decoder.weights.lm_head.is_quantized
    expected = tiny.Bench(tmp_path / "plain").last_logits(ids)
    torch.testing.assert_close(bench.last_logits(ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", [*SCHEMES, "head"])
def test_greedy_ids_on_gpu_equal_cpu(quantized: dict[str, Path], scheme: str) -> None:
    """Three prompts, short and long: every way to compute a matmul."""
    prompts = {i: tiny.random_ids(5 + 70 * i, seed=i) for i in range(3)}
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(quantized[scheme]), prompts, params)
    engine = tiny.engine(quantized[scheme], device="cuda")
    assert isinstance(engine.decoder.weights.layers[0].qkv, GpuQuantizedWeight)
    assert "dequantized" not in engine.info.device
    assert tiny.run(engine, prompts, params)[0] == on_cpu


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_quantized_weights_with_a_quantized_cache(
    quantized: dict[str, Path], kv_dtype: str
) -> None:
    """The logprobs of a prompt, prefilled at once or token by token, are near the CPU's in fp32."""
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    prompt = tiny.random_ids(40)
    on_cpu = tiny.engine(quantized["int4"], kv_dtype=kv_dtype)
    _, expected = tiny.logprobs(on_cpu, prompt, params)
    for chunk_tokens in (64, 1):
        engine = tiny.engine(
            quantized["int4"],
            device="cuda",
            dtype="bfloat16",
            kv_dtype=kv_dtype,
            chunk_tokens=chunk_tokens,
        )
        assert engine.gpu is not None
        _, found = tiny.logprobs(engine, prompt, params)
        near = dict(expected[0].top)
        for token, logprob in found[0].top:
            assert logprob == pytest.approx(near.get(token, logprob), abs=0.8)


@pytest.mark.gpu
def test_quantized_experts_are_computed_without_graphs_in_fp32(tmp_path: Path) -> None:
    tiny.make("qwen3-moe", tmp_path / "in", moe_intermediate_size=32)
    convert(tmp_path / "in", tmp_path / "out", quantization=QuantizationSpec("int8"))
    prompts = {i: tiny.random_ids(5 + 30 * i, seed=i) for i in range(2)}
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(tmp_path / "out", dtype="float32"), prompts, params)
    engine = tiny.engine(tmp_path / "out", device="cuda", dtype="float32")
    experts = engine.decoder.weights.layers[0].experts
    assert experts is not None and isinstance(experts.each[0].down, GpuQuantizedWeight)
    assert engine.graphs.decode is None
    assert tiny.run(engine, prompts, params)[0] == on_cpu


@pytest.mark.gpu
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("chunk_tokens", [None, 1])
def test_quantized_experts_stay_packed_in_half_precision(
    tmp_path: Path, scheme: str, chunk_tokens: int | None
) -> None:
    """A prompt in one chunk, and token by token as decode steps, which are captured.

    Rounding to bf16 changes no choice of an expert for this prompt: torch's operators in bf16
    differ by at most 0.025 from those in fp32 with each scheme.
    """
    sizes = {"hidden_size": 64, "moe_intermediate_size": 96, "num_attention_heads": 8}
    tiny.make("qwen3-moe", tmp_path / "in", **sizes)
    convert(tmp_path / "in", tmp_path / "out", quantization=QuantizationSpec(scheme))
    ids, out = tiny.random_ids(60, seed=9), tmp_path / "out"
    settings = {"dtype": "float32", "kernels": False}
    exact = decode_logits(gpu_engine(out, tmp_path, **settings), ids)
    engine = gpu_engine(out, tmp_path, dtype="bfloat16", chunk_tokens=chunk_tokens)
    assert engine.graphs.decode is not None
    rounded = decode_logits(engine, ids)
    assert torch.linalg.norm(rounded - exact) <= 0.06 * torch.linalg.norm(exact)


@pytest.mark.gpu
@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_gguf_blocks_on_a_gpu(tmp_path: Path, type_name: str) -> None:
    """All matrices stay quantized, also the embeddings."""
    model = tiny_llama(hidden_size=192, intermediate_size=256)  # not a multiple of 128 columns
    kind = gguf.GGMLQuantizationType[type_name]
    tiny_gguf.write(tmp_path / "m.gguf", model, quantize=kind)
    gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "out", "float32")
    prompt, params = tiny.random_ids(40), SamplingParams(temperature=0, max_tokens=1, logprobs=5)
    _, expected = tiny.logprobs(tiny.engine(tmp_path / "out"), prompt, params)
    engine = tiny.engine(tmp_path / "out", device="cuda")
    weights = engine.decoder.weights
    assert isinstance(weights.embed, GpuQuantizedWeight)
    assert isinstance(weights.layers[0].down, GpuQuantizedWeight)
    assert "dequantized" not in engine.info.device
    _, found = tiny.logprobs(engine, prompt, params)
    near = dict(expected[0].top)  # kernels have minima of 11 bits
    assert dict(found[0].top) == pytest.approx(near, abs=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["Q4_K_M", "biases"])
def test_merged_weights_of_several_schemes_on_a_gpu(tmp_path: Path, source: str) -> None:
    """One sequence, and three with short and long prompts, in the fused decode step."""
    folder = as_q4_k_m(tmp_path) if source == "Q4_K_M" else with_plain_values(tmp_path)
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, engine = tiny.engine(folder), tiny.engine(folder, device="cuda")
    weights = engine.decoder.weights
    assert isinstance(weights.layers[0].qkv, MergedWeight)
    assert isinstance(weights.layers[0].gate_up, MergedWeight)
    assert isinstance(weights.embed, GpuQuantizedWeight) == (source == "Q4_K_M")
    assert engine.graphs.decode is not None
    for n in (1, 3):
        prompts = {i: tiny.random_ids(5 + 70 * i, seed=i) for i in range(n)}
        expected, _ = tiny.run(on_cpu, prompts, params)
        assert tiny.run(engine, prompts, params)[0] == expected


def with_plain_values(path: Path) -> Path:
    """A model with biases whose first layer has plain v and gate projections."""
    tiny.make(
        "llama-biases", path / "in", hidden_size=128, num_attention_heads=8, intermediate_size=256
    )
    keep = ["*.0.self_attn.v_proj.weight", "*.0.mlp.gate_proj.weight"]
    convert(path / "in", path / "out", quantization=QuantizationSpec("int8", keep=keep))
    return path / "out"


@pytest.mark.gpu
def test_torch_ops_on_a_gpu_dequantize_weights(quantized: dict[str, Path]) -> None:
    engine = tiny.engine(quantized["int8"], device="cuda", kernels=False)
    assert "torch only: switched off, weights dequantized" in engine.info.device
    assert isinstance(engine.decoder.weights.layers[0].qkv, PlainWeight)


@pytest.mark.gpu
@pytest.mark.parametrize(("scheme", "group"), PACKINGS)
@pytest.mark.parametrize("n", [1, 16, 17, 50, 64, 65, 300])
def test_quantized_matmul_with_any_number_of_rows(
    gpu: Gpu, scheme: str, group: int, n: int
) -> None:
    make = Inputs(n, torch.bfloat16)
    weight, meant = packed(make, scheme, group, 9000, 2048, magnitude=0.02)
    x, bias = make.normal(n, 2048), make.normal(9000)
    for added in (None, bias):
        expected = x.double() @ meant.T + (0 if added is None else added.double())
        found = GpuQuantizedWeight(weight, LinearKernels(gpu, 9000)).matmul(x, added)
        assert_close(found, expected, 2.0**-8)  # weights may be rounded too

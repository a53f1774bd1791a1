"""Quantized weights on several ranks and stages: shards stay quantized; ids are equal.

Tolerances as in `test_communicator`: in fp32 only the order of summation differs.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.memory_estimate import gpu_weight_bytes, packed_schemes
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.api.protocol import EngineInfo
from swiftchat.engine.comm.pipeline import GlooPipeline
from swiftchat.engine.cpu.compile_kernels import host_target
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.model import memory
from swiftchat.engine.model.weights import resident_bytes
from swiftchat.engine.ranks.auto_tp import resolve_tp
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import dummy_config
from swiftchat.weights.parallel.tensor_parallel import Shard
from swiftchat.weights.quantization.quantize import WEIGHT_ONLY, QuantizationSpec
from swiftchat.weights.quantization.scheme import Int4, slice_matrix
from tests.engine.comm import test_pipeline as stages
from tests.engine.comm.test_communicator import assert_ranks_equal_one
from tests.engine.linear.test_quantized import matrices, quantized_weight, random_quantized
from tests.engine.ranks.test_spmd import mock_gpus
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.models import write_case
from tests.support.quantized_models import FORMATS as SOURCES
from tests.support.quantized_models import GPTQ, gptq, quantized_model
from tests.support.thread_communicator import frequent_thread_switches
from tests.support.tiny_llama import tiny_llama
from tests.support.worker_processes import assert_equals_single_rank

pytestmark = [
    pytest.mark.skipif(host_target() is None, reason="no CPU kernels for this kind of machine"),
]

NUM_NEW = 5
# With four ranks, each has 32 columns (one group) of `o` and 64 of `down`.
SIZES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
}


def make(family: str, scheme: str, folder: Path, group_size: int = 32, **sizes: int) -> Path:
    tiny.make(family, folder / "in", **{**SIZES, **sizes})
    convert(folder / "in", folder / "out", quantization=QuantizationSpec(scheme, group_size))
    return folder / "out"


def is_packed(bench: tiny.Bench) -> bool:
    layers = bench.decoder.weights.layers
    experts = [e for layer in layers if layer.experts is not None for e in layer.experts.each]
    found = [*matrices(bench), *(m for e in experts for m in (e.gate_up, e.down))]
    # The dense MLP weights of an MoE layer are empty.
    return all(matrix.is_quantized or not matrix.nbytes for matrix in found)


def benches(folder: Path, tp: int) -> list[tiny.Bench]:
    """Return the benches of all ranks, after comparing their logits with a single rank's."""
    return assert_ranks_equal_one(folder, tp, num_new=NUM_NEW, native=True)


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
@pytest.mark.parametrize(
    ("rows", "columns"), [([(0, 16), (40, 41)], [(32, 64)]), ([(5, 9)], [(64, 128), (192, 224)])]
)
def test_slice_of_a_quantized_matrix_equals_slice_of_its_values(
    scheme: str, rows: list[tuple[int, int]], columns: list[tuple[int, int]]
) -> None:
    quantized, values = random_quantized(scheme, 48, 256)
    for axis, spans in ((0, rows), (1, columns)):
        sliced = slice_matrix(quantized, axis, spans)
        assert sliced is not None
        expected = torch.cat([values.narrow(axis, a, b - a) for a, b in spans], axis)
        weight = quantized_weight([sliced], torch.float32)
        assert weight is not None
        found = weight.matmul(torch.eye(expected.shape[1])).T
        assert torch.equal(found.double(), expected)


def test_slicing_inside_groups_makes_smaller_groups() -> None:
    rng = np.random.default_rng(0)
    scale, zero = rng.random((2, 4, 2), np.float32)
    quantized = Int4(rng.integers(0, 256, (4, 128), np.uint8), scale, zero)
    sliced = slice_matrix(quantized, 1, [(96, 192)])
    assert isinstance(sliced, Int4) and sliced.scale.shape == (4, 3)  # of 32 columns
    assert np.array_equal(sliced.scale, scale[:, [0, 1, 1]])
    assert np.array_equal(sliced.zero_point, zero[:, [0, 1, 1]])
    assert np.array_equal(sliced.values, quantized.values[:, 48:96])
    assert slice_matrix(quantized, 1, [(3, 128)]) is None


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        ("llama-tied", "int8"),
        ("phi3", "int4"),
        ("gpt-neox", "fp8"),
        ("qwen3-moe", "int4"),
        ("llama-tied", "fp8-block"),
        ("qwen3-moe", "fp8-block"),
        ("phi3", "nvfp4"),
        ("qwen3-moe", "nvfp4"),
    ],
)
def test_shards_of_four_ranks_stay_packed(family: str, scheme: str, tmp_path: Path) -> None:
    """Two KV heads, each on two ranks; fused q k v, also interleaved; experts."""
    narrow = {"moe_intermediate_size": 128, "head_dim": 16} if "moe" in family else {}
    if scheme == "fp8-block":  # rows of two blocks
        narrow["hidden_size"] = 256
    folder = make(family, scheme, tmp_path, **narrow)
    assert all(map(is_packed, benches(folder, 4)))


def test_each_of_two_ranks_has_half_of_the_bytes(tmp_path: Path) -> None:
    folder = make("llama", "int4", tmp_path, num_key_value_heads=4)
    whole = resident_bytes(tiny.Bench(folder, native=True).decoder.weights)
    for bench in benches(folder, 2):
        assert is_packed(bench)
        assert resident_bytes(bench.decoder.weights) <= 0.52 * whole  # norms are on both ranks


def test_groups_are_sliced_on_several_ranks(tmp_path: Path) -> None:
    """Groups of 128 in shards of 64 columns, and groups of 32 in shards of 16."""
    folder = make("llama", "int4", tmp_path / "128", 128)
    for bench in benches(folder, 2):
        assert is_packed(bench)
        o = bench.decoder.weights.layers[0].o
        assert o.shape == (128, 64) and o.description.startswith("int4 in groups of 64")
    folder = make("llama", "int4", tmp_path / "32", hidden_size=64)
    for bench in benches(folder, 4):
        first = bench.decoder.weights.layers[0]
        assert first.o.is_quantized and first.down.is_quantized


@pytest.mark.parametrize("scheme", ["gptq", "awq", "compressed-w8a8", "fp8-blocks", "fp8-powers"])
def test_other_quantized_formats_on_two_ranks(tmp_path: Path, scheme: str) -> None:
    settings, pack = (GPTQ, gptq(4)) if scheme == "gptq" else SOURCES[scheme]
    quantized_model(tmp_path / "in", settings, pack)
    for bench in benches(tmp_path / "in", 2):
        layer = bench.decoder.weights.layers[0]
        assert layer.qkv.is_quantized != (scheme == "fp8-blocks")


@pytest.mark.parametrize("family", ["llama-biases", "stablelm"])
def test_merged_weights_of_different_schemes_on_two_ranks(tmp_path: Path, family: str) -> None:
    """Also for an architecture whose query and key rows are reordered."""
    tiny.make(family, tmp_path / "in", **SIZES)
    keep = ["*.0.self_attn.v_proj.weight", "*.1.mlp.gate_proj.weight"]
    convert(tmp_path / "in", tmp_path / "out", quantization=QuantizationSpec("int4", 32, keep))
    for bench in benches(tmp_path / "out", 2):
        first, second = bench.decoder.weights.layers
        for weight in (first.qkv, second.gate_up):
            assert "float32" in weight.description and "int4" in weight.description
        assert is_packed(bench)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_gguf_blocks_on_two_ranks(tmp_path: Path, type_name: str) -> None:
    """Embeddings are quantized too: each rank looks up the ids of its shard."""
    kind = gguf.GGMLQuantizationType[type_name]
    model = tiny_llama(tie_word_embeddings=True, hidden_size=128, intermediate_size=256)
    tiny_gguf.write(tmp_path / "m.gguf", model, quantize=kind)
    gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "out", "float32")
    for bench in benches(tmp_path / "out", 2):
        weights = bench.decoder.weights
        assert is_packed(bench) and weights.embed.is_quantized
        assert weights.embed is weights.lm_head


def test_experts_in_mxfp4_on_two_ranks(tmp_path: Path) -> None:
    """Columns of `down` begin inside a group; gate and up rows alternate in the file."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 8}
    tiny.make("gpt-oss", tmp_path / "theirs", **sizes)
    kind = gguf.GGMLQuantizationType.MXFP4
    write_case("gpt-oss", tmp_path / "m.gguf", tmp_path / "theirs", raw_type=kind)
    gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "out", "float32")
    for bench in benches(tmp_path / "out", 2):
        for layer in bench.decoder.weights.layers:
            assert layer.experts is not None
            each = layer.experts.each
            for weight in (w for expert in each for w in (expert.gate_up, expert.down)):
                assert weight.description.startswith("mxfp4 in groups of")


def test_layers_of_stages_stay_packed(tmp_path: Path) -> None:
    folder = make("llama-tied", "int4", tmp_path)
    store = torch.distributed.HashStore()

    def run_stage(stage: int) -> tuple[list[object], EngineInfo, bool]:
        config = replace(stages.TWO, pp=2, cache_tokens=256)
        engine = build_engine(folder, config, stages=GlooPipeline(store, stage, 2, 60))
        weights = engine.decoder.weights
        packed = weights.layers[0].down.is_quantized
        return stages.generate_all(engine), engine.info, packed

    with frequent_thread_switches(), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(run_stage, range(2)))
    one = tiny.engine(folder, chunk_tokens=16)
    expected, embed = stages.generate_all(one), one.decoder.weights.embed
    assert not embed.is_quantized
    for answer, _, packed in found:
        assert answer[:2] == expected[:2] and packed
    # The first and the last stage have the embedding, which is the LM head in the last.
    for _, info, _ in found:
        assert info.weights_bytes == one.info.weights_bytes + embed.nbytes
        assert (info.table_bytes, one.info.table_bytes) == (embed.nbytes, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")
def test_rank_processes_report_quantized_weight_bytes(tmp_path: Path) -> None:
    folder = make("llama", "int4", tmp_path, vocab_size=128, num_key_value_heads=4)
    two = EngineConfig(
        device="cpu", dtype="float32", num_threads=1, tp=2, block_size=tiny.BLOCK_SIZE
    )
    with EngineClient(two, folder) as client:
        client.wait_ready()
        assert client.info is not None
        assert client.info.weights_bytes <= 0.52 * tiny.engine(folder).info.weights_bytes
        assert_equals_single_rank(client, folder, 4)


def test_auto_tp_counts_quantized_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make("llama", "int4", tmp_path)
    counted: list[int | None] = []
    mock_gpus(monkeypatch, [10**10])
    monkeypatch.setattr(memory, "plan_shard_cache", lambda *given, **_: counted.append(given[5]))
    for kernels in (True, False):
        assert resolve_tp(EngineConfig(tp="auto", dtype="float16", kernels=kernels), folder) == 1
    model = Model.open(folder)
    schemes = packed_schemes(model.quantized_tensors)
    assert counted == [gpu_weight_bytes(Shard(model.config), schemes, 2), None]
    dummy = EngineConfig(tp="auto", dummy="llama-3.2-1b:int4")
    assert resolve_tp(dummy, Path()) == 1 and resolve_tp(replace(dummy, kernels=False), Path()) == 1
    assert counted[3] is None
    # Per layer 4 bits an element and 32 bits per group of 128 and per row; the LM head in 8 bits.
    config = dummy_config("llama-3.2-1b")
    num_elements = 16 * (2048 * (2048 + 2 * 512 + 2048) + 3 * 2048 * 8192)
    assert counted[2] == pytest.approx(num_elements * 4.25 / 8 + config.vocab_size * 2048, rel=0.01)

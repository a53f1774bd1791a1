"""The KV cache in int8, fp8 and int5: quantization error, and logits of the engine with it.

Logits are compared with those of the plain cache on tiny random models in fp32. Keys and values
are then off by up to a 254th (int8) or a 16th (fp8) of themselves or of their row's largest, and
three layers' errors add up: to a half of the bounds where it is most. With int5 values are off by
up to a 32nd of the largest element of their rotated row, keys by a 64th.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.render.stats import memory_line
from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.quantized_kv import (
    LARGEST,
    SCHEMES,
    QuantizedKV,
    dequantize_kv,
    quantize_kv,
)
from swiftchat.engine.reference import ops as torch_ops
from swiftchat.engine.reference.ops import TorchPlan, store
from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.attention import Values
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.changed_configs import changed

BYTE_SCHEMES = tuple(LARGEST)
GREEDY = SamplingParams(temperature=0, max_tokens=12)
# Every special kind of attention: windows, also in some layers only, soft-capping, ALiBi, one key
# head, sinks, bidirectional prompts.
VARIANTS = ("llama", "mistral-window", "gemma2", "falcon-rw", "gemma", "gpt-oss", "chatglm-6b")
# Tolerances relative to the norm of all logits.
LOGITS = {"int8": 0.03, "fp8": 0.1, "int5": 0.2}


@pytest.fixture(scope="module", params=VARIANTS)
def variant(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    tiny.make(request.param, folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.isfinite().all()
    norm = torch.linalg.vector_norm
    return float(norm(found - expected) / norm(expected))


@given(
    st.lists(
        st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=5, max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(BYTE_SCHEMES),
)
@settings(max_examples=100, deadline=None)
def test_quantization_error_is_within_half_a_step(rows: list[list[float]], scheme: str) -> None:
    """int8: half of 1/127 of the row's largest element. fp8: 1/16 of the element, or half of e4m3's
    smallest step, 2^-9, times the row's scale. Elements below 2^-94 may become 0."""
    matrix = torch.tensor(rows).unsqueeze(1)
    values, scales = quantize_kv(scheme, matrix)
    assert values.dtype == torch.int8 and values.shape == matrix.shape
    found = dequantize_kv(scheme, values, scales, torch.float32).double()
    step = scales.double().unsqueeze(-1)
    bound = (
        step / 2 if scheme == "int8" else torch.maximum(matrix.double().abs() / 16, step * 2**-10)
    )
    assert ((found - matrix.double()).abs() <= bound * (1 + 2**-20)).all()
    largest = matrix.abs().amax(-1)
    is_tiny = largest < 2.0**-92
    assert (is_tiny | ((scales * LARGEST[scheme] / largest - 1).abs() < 1e-6)).all()


@pytest.mark.parametrize("scheme", BYTE_SCHEMES)
def test_every_quantized_value_dequantizes_exactly_and_back(scheme: str) -> None:
    """Dequantizing rounds once to each dtype, and quantizing again gives the same values."""
    bits = torch.arange(-128, 128).to(torch.int8)
    # int8 does not use -128, and two values of fp8 are NaN.
    values = bits[bits != -128 if scheme == "int8" else bits & 127 != 127].view(1, 1, -1)
    expected = values.double() if scheme == "int8" else values.view(torch.float8_e4m3fn).double()
    scales = torch.tensor([[0.37]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = dequantize_kv(scheme, values, scales, dtype)
        assert torch.equal(found, (expected.float() * scales.unsqueeze(-1)).to(dtype))
    again, kept = quantize_kv(scheme, dequantize_kv(scheme, values, scales, torch.float32))
    assert torch.allclose(kept, scales) and torch.equal(again, values)


@pytest.mark.parametrize("scheme", BYTE_SCHEMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_matrixstay_non_finite(scheme: str, bad: float) -> None:
    rows = torch.ones(2, 3, 8)
    rows[1, 2, 5] = bad
    found = dequantize_kv(scheme, *quantize_kv(scheme, rows), torch.float32)
    assert not found[1, 2].isfinite().all()
    assert torch.allclose(found[0], rows[0]) and torch.allclose(found[1, :2], rows[1, :2])


@pytest.mark.parametrize("scheme", BYTE_SCHEMES)
def test_dequantizing_more_tokens_than_one_chunk(scheme: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(1100, 2, 8)
    values, scales = quantize_kv(scheme, rows)

    tokens = zip(values.split(1), scales.split(1), strict=True)
    by_one = [dequantize_kv(scheme, c, f, torch.bfloat16) for c, f in tokens]
    assert torch.equal(dequantize_kv(scheme, values, scales, torch.bfloat16), torch.cat(by_one))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_store_writes_only_its_slots(folder: Path, scheme: str) -> None:
    config = Model.open(folder).config
    cache = KVCache(config, 5, 4, torch.float32, torch.device("cpu"), kv_dtype=scheme)
    *packed, scales = cache.tensors
    for tensor in packed:
        tensor.fill_(-1)
    scales.fill_(float("nan"))
    layer = cache.layers[1]
    assert isinstance(layer, QuantizedKV)
    new = torch.randn(3, 2 * config.attention.num_kv_heads, config.attention.head_dim)
    layer.store(torch.tensor([17, 2, 9]), new)
    assert scales[0].isnan().all() and all((tensor[0] == -1).all() for tensor in packed)
    flat = scales[1].view(20, -1)
    assert flat.isfinite().any(1).nonzero().view(-1).tolist() == [2, 9, 17]
    for tensor, expected in zip(cache.tensors, layer.quantize(new), strict=True):
        found = tensor[1].view(20, *tensor.shape[3:])
        assert torch.equal(found[[17, 2, 9]], expected)


@tiny.each_backend
@pytest.mark.parametrize("scheme", SCHEMES)
def test_logits_equal_those_of_rounded_keys_and_values(
    variant: Path, scheme: str, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The native kernels may round an element that is between two values to the other one."""
    ids = tiny.random_ids(40, seed=1)
    plain = tiny.Bench(variant).last_logits(ids)
    bench = tiny.Bench(variant, kv_dtype=scheme, native=native)
    found = bench.last_logits(ids)
    again = bench.last_logits(ids)  # from the cache

    def store_rounded(plan: TorchPlan, layer: int, cache: torch.Tensor, new: torch.Tensor) -> None:
        kind = QuantizedKV(scheme, new, new)
        rounded = kind.dequantize(kind.quantize(new), new.dtype)
        store(plan, layer, cache, kind.rotated(rounded))

    monkeypatch.setattr(torch_ops, "store", store_rounded)
    bound = LOGITS[scheme] / 10 if native else 1e-5
    assert error(found, tiny.Bench(variant).last_logits(ids)) <= bound
    assert error(again, found) <= 1e-5
    # A small error may lead to other experts.
    if Model.open(variant).config.moe is None:
        assert 0 < error(found, plain) <= LOGITS[scheme]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_token_by_token_and_in_chunks_equal_whole(folder: Path, scheme: str) -> None:
    """The cached values are the same; only the order of sums differs."""
    ids = tiny.random_ids(30, seed=2)
    whole = tiny.Bench(folder, kv_dtype=scheme).last_logits(ids)
    chunked = tiny.Bench(folder, chunk_tokens=7, kv_dtype=scheme).last_logits(ids)
    by_one = tiny.Bench(folder, kv_dtype=scheme).logits(ids)[-1]
    assert error(chunked, whole) <= 1e-4
    assert error(by_one, whole) <= 1e-4


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scattered_quantized_context_equals_contiguous_context(folder: Path, scheme: str) -> None:
    ids = tiny.random_ids(40, seed=5)
    bench = tiny.Bench(folder, kv_dtype=scheme)
    taken = [bench.allocator.allocate() for _ in range(bench.allocator.num_blocks)]
    bench.allocator.release(taken[::2])
    bench.held = [taken[1::2]]
    assert (
        error(bench.last_logits(ids), tiny.Bench(folder, kv_dtype=scheme).last_logits(ids)) < 1e-4
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_batched_equals_alone_also_with_preemption(folder: Path, scheme: str) -> None:
    prompts = {i: tiny.random_ids(30, seed=i) for i in range(3)}
    alone = {
        i: tiny.run(tiny.engine(folder, kv_dtype=scheme), {i: prompt}, GREEDY)[0][i]
        for i, prompt in prompts.items()
    }
    together, _ = tiny.run(tiny.engine(folder, kv_dtype=scheme), prompts, GREEDY)
    assert together == alone
    small = tiny.engine(folder, ctx_size_tokens=48, cache_tokens=60, kv_dtype=scheme)
    assert tiny.run(small, prompts, GREEDY)[0] == alone


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("kept", [3, 21])
def test_reused_prefix_equals_recomputed_prefix(folder: Path, scheme: str, kept: int) -> None:
    """Also for a block that matches in part: its values and its scales are copied."""
    first = tiny.random_ids(40, seed=3)
    second = first[:kept] + tiny.random_ids(20, seed=4)
    engine = tiny.engine(folder, kv_dtype=scheme)
    tiny.run(engine, {1: first}, GREEDY)
    ids, ends = tiny.run(engine, {2: second}, GREEDY)
    assert ends[2].cached_tokens == kept
    assert ids == tiny.run(tiny.engine(folder, kv_dtype=scheme), {2: second}, GREEDY)[0]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_reported_cache_bytes_equal_allocated_bytes(folder: Path, scheme: str) -> None:
    config = Model.open(folder).config
    engine = tiny.engine(folder, kv_dtype=scheme, ctx_size_tokens=64)
    info = engine.info
    assert (info.kv_dtype, info.dtype) == (scheme, "float32")
    assert info.cache_bytes == sum(t.nbytes for t in engine.cache.tensors)
    element_bits = 11 if scheme == "int5" else 16  # of a key's and a value's element
    head_bytes = element_bits * config.attention.head_dim // 8 + 2 * 4
    per_token = config.num_layers * config.attention.num_kv_heads * head_bytes
    assert info.cache_bytes == info.cache_tokens * per_token
    assert kv_bytes_per_token(config, 4, scheme) == per_token
    assert f"cache for {info.cache_tokens} tokens in {scheme} " in memory_line(info)


def test_kernels_cover_quantized_kv_for_supported_head_sizes(folder: Path) -> None:
    shape = Model.open(folder).config
    for head_dim, dtype, kernels in (
        (64, torch.bfloat16, True),
        (256, torch.float16, True),
        (8, torch.bfloat16, False),
        (80, torch.bfloat16, False),
        (96, torch.float16, False),
        (64, torch.float32, False),
    ):
        config = changed(shape, attention={"head_dim": head_dim, "values": Values(head_dim)})
        assert [kernels_cover(config, dtype, scheme) for scheme in BYTE_SCHEMES] == [kernels] * 2
        assert kernels_cover(config, dtype, "int5") == (kernels and head_dim in (64, 128))
        assert kernels_cover(config, dtype)


def test_unknown_kv_dtype_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="int3"):
        EngineConfig(kv_dtype="int3")

"""The cache in int8 and fp8: what is kept of a number, and that the engine computes with it.

Logits are compared with those of the plain cache on tiny random models in fp32. Keys and values
are then off by up to a 254th (int8) or a 16th (fp8) of themselves or of their row's largest, and
three layers' errors add up: to a half of the bounds where it is most.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.chat.render.stats import memory_line
from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.model import torch_ops
from swiftchat.engine.model.cuda_ops import kernels_cover
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.quantized_kv import LARGEST, QuantizedKV, dequantize_kv, quantize_kv
from swiftchat.engine.model.torch_ops import TorchPlan, store
from swiftchat.errors import UsageError
from swiftchat.weights.model.directory import Model
from tests.support import tiny

FORMS = tuple(LARGEST)
GREEDY = SamplingParams(temperature=0, max_tokens=12)
# All that is special about attention: windows, in some layers only, soft-capping, ALiBi, one key
# head, sinks, both ways.
VARIANTS = ("llama", "mistral-window", "gemma2", "falcon-rw", "gemma", "gpt-oss", "chatglm-6b")
# Of the norm of all logits.
LOGITS = {"int8": 0.03, "fp8": 0.1}


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
    st.sampled_from(FORMS),
)
@settings(max_examples=100, deadline=None)
def test_quantization_error_is_within_half_a_step(rows: list[list[float]], form: str) -> None:
    """int8: half a step of 1/127 of the row's largest. fp8: a 16th of itself, or half of e4m3's
    smallest step, 2^-9, in units of its row. Numbers below 2^-94 may become 0."""
    meant = torch.tensor(rows).unsqueeze(1)
    codes, factors = quantize_kv(form, meant)
    assert codes.dtype == torch.int8 and codes.shape == meant.shape
    found = dequantize_kv(form, codes, factors, torch.float32).double()
    step = factors.double().unsqueeze(-1)
    bound = step / 2 if form == "int8" else torch.maximum(meant.double().abs() / 16, step * 2**-10)
    assert ((found - meant.double()).abs() <= bound * (1 + 2**-20)).all()
    largest = meant.abs().amax(-1)
    is_tiny = largest < 2.0**-92
    assert (is_tiny | ((factors * LARGEST[form] / largest - 1).abs() < 1e-6)).all()


@pytest.mark.parametrize("form", FORMS)
def test_every_quantized_value_dequantizes_exactly_and_back(form: str) -> None:
    """All codes there are, by their factor, in each dtype rounded once; and back to themselves."""
    bits = torch.arange(-128, 128).to(torch.int8)
    # The lowest of int8 is not used, and two of fp8's are not numbers.
    codes = bits[bits != -128 if form == "int8" else bits & 127 != 127].view(1, 1, -1)
    numbers = codes.double() if form == "int8" else codes.view(torch.float8_e4m3fn).double()
    factors = torch.tensor([[0.37]])
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = dequantize_kv(form, codes, factors, dtype)
        assert torch.equal(found, (numbers.float() * factors.unsqueeze(-1)).to(dtype))
    again, kept = quantize_kv(form, dequantize_kv(form, codes, factors, torch.float32))
    assert torch.allclose(kept, factors) and torch.equal(again, codes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_rows_stay_non_finite(form: str, bad: float) -> None:
    rows = torch.ones(2, 3, 8)
    rows[1, 2, 5] = bad
    found = dequantize_kv(form, *quantize_kv(form, rows), torch.float32)
    assert not found[1, 2].isfinite().all()
    assert torch.allclose(found[0], rows[0]) and torch.allclose(found[1, :2], rows[1, :2])


@pytest.mark.parametrize("form", FORMS)
def test_dequantizing_more_tokens_than_one_chunk(form: str) -> None:
    torch.manual_seed(0)
    rows = torch.randn(1100, 2, 8)
    codes, factors = quantize_kv(form, rows)

    tokens = zip(codes.split(1), factors.split(1), strict=True)
    by_one = [dequantize_kv(form, c, f, torch.bfloat16) for c, f in tokens]
    assert torch.equal(dequantize_kv(form, codes, factors, torch.bfloat16), torch.cat(by_one))


@pytest.mark.parametrize("form", FORMS)
def test_store_writes_only_its_slots(folder: Path, form: str) -> None:
    config = Model.open(folder).config
    cache = KVCache(config, 5, 4, torch.float32, torch.device("cpu"), kv_dtype=form)
    codes, factors = cache.tensors
    codes.fill_(-1)
    factors.fill_(float("nan"))
    layer = cache.layers[1]
    assert isinstance(layer, QuantizedKV)
    new = torch.randn(3, 2 * config.num_kv_heads, config.head_dim)
    layer.store(torch.tensor([17, 2, 9]), new)
    assert factors[0].isnan().all() and (codes[0] == -1).all()
    flat = factors[1].view(20, -1)
    assert flat.isfinite().any(1).nonzero().view(-1).tolist() == [2, 9, 17]
    expected, _ = quantize_kv(form, new)
    assert torch.equal(codes[1].view(20, *new.shape[1:])[[17, 2, 9]], expected)


@pytest.mark.parametrize("form", FORMS)
def test_logits_equal_those_of_rounded_keys_and_values(
    variant: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = tiny.random_ids(40, seed=1)
    plain = tiny.Bench(variant).last_logits(ids)
    bench = tiny.Bench(variant, kv_dtype=form)
    found = bench.last_logits(ids)
    again = bench.last_logits(ids)  # from what is cached

    def store_rounded(plan: TorchPlan, layer: int, cache: torch.Tensor, new: torch.Tensor) -> None:
        rounded = dequantize_kv(form, *quantize_kv(form, new), new.dtype)
        store(plan, layer, cache, rounded)

    monkeypatch.setattr(torch_ops, "store", store_rounded)
    assert error(found, tiny.Bench(variant).last_logits(ids)) <= 1e-5
    assert error(again, found) <= 1e-5
    # A little more or less of a number may lead to other experts.
    if Model.open(variant).config.num_experts == 0:
        assert 0 < error(found, plain) <= LOGITS[form]


@pytest.mark.parametrize("form", FORMS)
def test_token_by_token_and_in_chunks_equal_whole(folder: Path, form: str) -> None:
    """What is read is the same however it came, and sums differ by their order alone."""
    ids = tiny.random_ids(30, seed=2)
    whole = tiny.Bench(folder, kv_dtype=form).last_logits(ids)
    chunked = tiny.Bench(folder, chunk_tokens=7, kv_dtype=form).last_logits(ids)
    by_one = tiny.Bench(folder, kv_dtype=form).logits(ids)[-1]
    assert error(chunked, whole) <= 1e-4
    assert error(by_one, whole) <= 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_scattered_quantized_context_equals_contiguous_context(folder: Path, form: str) -> None:
    ids = tiny.random_ids(40, seed=5)
    bench = tiny.Bench(folder, kv_dtype=form)
    taken = [bench.allocator.allocate() for _ in range(bench.allocator.num_blocks)]
    bench.allocator.release(taken[::2])
    bench.held = [taken[1::2]]
    assert error(bench.last_logits(ids), tiny.Bench(folder, kv_dtype=form).last_logits(ids)) < 1e-4


@pytest.mark.parametrize("form", FORMS)
def test_batched_equals_alone_also_with_preemption(folder: Path, form: str) -> None:
    prompts = {i: tiny.random_ids(30, seed=i) for i in range(3)}
    alone = {
        i: tiny.run(tiny.engine(folder, kv_dtype=form), {i: prompt}, GREEDY)[0][i]
        for i, prompt in prompts.items()
    }
    together, _ = tiny.run(tiny.engine(folder, kv_dtype=form), prompts, GREEDY)
    assert together == alone
    small = tiny.engine(folder, ctx_size_tokens=48, cache_tokens=60, kv_dtype=form)
    assert tiny.run(small, prompts, GREEDY)[0] == alone


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kept", [3, 21])
def test_reused_prefix_equals_recomputed_prefix(folder: Path, form: str, kept: int) -> None:
    """Also of a block that matches in part: its codes and its factors are copied."""
    first = tiny.random_ids(40, seed=3)
    second = first[:kept] + tiny.random_ids(20, seed=4)
    engine = tiny.engine(folder, kv_dtype=form)
    tiny.run(engine, {1: first}, GREEDY)
    ids, ends = tiny.run(engine, {2: second}, GREEDY)
    assert ends[2].cached_tokens == kept
    assert ids == tiny.run(tiny.engine(folder, kv_dtype=form), {2: second}, GREEDY)[0]


@pytest.mark.parametrize("form", FORMS)
def test_reported_cache_bytes_equal_allocated_bytes(folder: Path, form: str) -> None:
    config = Model.open(folder).config
    engine = tiny.engine(folder, kv_dtype=form, ctx_size_tokens=64)
    info = engine.info
    assert (info.kv_dtype, info.dtype) == (form, "float32")
    assert info.cache_bytes == sum(t.nbytes for t in engine.cache.tensors)
    per_token = 2 * config.num_layers * config.num_kv_heads * (config.head_dim + 4)
    assert info.cache_bytes == info.cache_tokens * per_token
    assert kv_bytes_per_token(config, 4, form) == per_token
    assert f"cache for {info.cache_tokens} tokens in {form} " in memory_line(info)


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
        config = replace(shape, head_dim=head_dim)
        assert [kernels_cover(config, dtype, form) for form in FORMS] == [kernels] * 2
        assert kernels_cover(config, dtype)


def test_unknown_kv_dtype_raises_usage_error() -> None:
    with pytest.raises(UsageError, match="int4"):
        EngineConfig(kv_dtype="int4")

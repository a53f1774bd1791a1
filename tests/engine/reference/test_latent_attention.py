"""Multi-head latent attention: both ways of computing it, its cache, ranks and quantized files."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.kv_store.speeds import Speeds
from swiftchat.engine.reference import latent_attention
from swiftchat.engine.reference.attention import fused_attention
from swiftchat.engine.reference.latent_attention import expanding_is_cheaper
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.latent import LatentAttention
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import reference, tiny

GREEDY = SamplingParams(temperature=0, max_tokens=12)
LENGTH = 24
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "mscale": 0.8,
    "mscale_all_dim": 1.3,
}
# Sizes that groups of 32 columns divide.
_EVEN = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "v_head_dim": 16,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory):
    """DeepSeek V3 with every part: low-rank queries, biases, groups of experts, scaled rope."""
    folder = tmp_path_factory.mktemp("deepseek")
    made = reference.make_reference(
        "deepseek_v3", folder, attention_bias=True, rope_parameters=_YARN
    )
    return folder, made


@pytest.fixture(scope="module")
def folder(model) -> Path:
    return model[0]


def expected(made, ids: list[int]) -> torch.Tensor:
    return reference.reference_logits(made, tuple(ids))


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, bound: float = 1e-4) -> None:
    assert ours.isfinite().all()
    assert (ours - theirs).abs().max() <= bound * theirs.abs().max()


@pytest.mark.parametrize("expands", [False, True])
def test_sparse_attention_chooses_the_keys_of_transformers(
    expands: bool, tmp_path: Path, monkeypatch
) -> None:
    """Five keys of up to 24, also behind a reused prefix."""
    monkeypatch.setattr(latent_attention, "expanding_is_cheaper", lambda *_: expands)
    made = reference.make_reference("deepseek_v32", tmp_path)
    first, second = tiny.random_ids(LENGTH), tiny.random_ids(6, seed=1)
    bench = tiny.Bench(tmp_path, chunk_tokens=7)
    for ids in (first, first[:13] + second):
        assert_close(bench.last_logits(ids), expected(made, ids)[-1])
    dense = {"index_topk": LENGTH}
    reference.edit_config(tmp_path, **dense)
    change = tiny.Bench(tmp_path).last_logits(first) - expected(made, first)[-1]
    assert change.abs().max() > 1e-2 * expected(made, first)[-1].abs().max()


@pytest.mark.parametrize("expands", [False, True])
def test_both_ways_equal_transformers(model, expands: bool, monkeypatch) -> None:
    """Prefill in chunks and token by token; expanded one head at a time."""
    folder, made = model
    monkeypatch.setattr(latent_attention, "expanding_is_cheaper", lambda *_: expands)
    monkeypatch.setattr(latent_attention, "_MAX_EXPANDED", 1)
    ids = tiny.random_ids(LENGTH)
    theirs = expected(made, ids)
    assert_close(tiny.Bench(folder, chunk_tokens=7).last_logits(ids), theirs[-1])
    assert_close(tiny.Bench(folder).logits(ids), theirs)


def test_expanded_queries_keys_and_values_have_one_width(folder: Path, monkeypatch) -> None:
    """Torch's fast operator takes no others; the slow one needs memory for all scores."""
    shapes: list[tuple[int, ...]] = []

    def attend(q, keys, values, *others):
        shapes.append((q.shape[-1], keys.shape[-1], values.shape[-1]))
        return fused_attention(q, keys, values, *others)

    monkeypatch.setattr(latent_attention, "expanding_is_cheaper", lambda *_: True)
    monkeypatch.setattr(latent_attention, "fused_attention", attend)
    bench = tiny.Bench(folder)
    bench.last_logits(tiny.random_ids(LENGTH))
    latent = bench.decoder.config.attention.latent
    assert latent.head_dim != latent.value_dim
    assert {*shapes} == {(max(latent.head_dim, latent.value_dim),) * 3}


def test_with_history_and_in_a_batch_equals_transformers(model) -> None:
    """One prompt continues a cached prefix, two are computed from their first token."""
    folder, made = model
    bench = tiny.Bench(folder)
    first = tiny.random_ids(LENGTH, seed=2)
    bench.last_logits(first)
    prompts = {i: tiny.random_ids(5 + 7 * i, seed=i) for i in (1, 2)}
    prompts[3] = first[:13] + tiny.random_ids(LENGTH - 13, seed=3)
    for i, ids in prompts.items():
        bench.scheduler.add(TokenSequence(i, list(ids), SamplingParams()))
    logits = bench.step()
    for i, ids in prompts.items():
        assert_close(logits[i], expected(made, ids)[-1])


def test_scattered_blocks_equal_contiguous_blocks(folder: Path) -> None:
    ids = tiny.random_ids(LENGTH, seed=5)
    bench = tiny.Bench(folder)
    taken = [bench.allocator.allocate() for _ in range(bench.allocator.num_blocks)]
    bench.allocator.release(taken[::2])
    bench.held = [taken[1::2]]
    assert_close(bench.last_logits(ids), tiny.Bench(folder).last_logits(ids), 1e-5)


def test_preemption_in_a_small_cache_changes_no_token(folder: Path) -> None:
    prompts = {i: tiny.random_ids(30, seed=i) for i in range(3)}
    alone = {i: tiny.run(tiny.engine(folder), {i: p}, GREEDY)[0][i] for i, p in prompts.items()}
    small = tiny.engine(folder, ctx_size_tokens=48, cache_tokens=60)
    assert tiny.run(small, prompts, GREEDY)[0] == alone


@given(st.integers(1, 30), st.integers(1, 9))
@settings(max_examples=8, deadline=None)
def test_a_prompt_after_an_undo_reuses_the_prefix(folder: Path, kept: int, num_new: int) -> None:
    bench, first = tiny.Bench(folder, chunk_tokens=8), tiny.random_ids(30)
    bench.last_logits(first)
    second = first[:kept] + tiny.random_ids(num_new, seed=8)
    assert_close(bench.last_logits(second), tiny.Bench(folder).last_logits(second), 1e-5)


def test_bfloat16_stays_near_fp32(model) -> None:
    """The median of five prompts: where two experts are nearly as good, rounding chooses."""
    folder, made = model
    errors = []
    for seed in range(5):
        ids = tiny.random_ids(LENGTH, seed=seed)
        exact = expected(made, ids)[-1]
        ours = tiny.Bench(folder, dtype=torch.bfloat16).last_logits(ids)
        errors.append(float(torch.linalg.norm(ours - exact) / torch.linalg.norm(exact)))
    assert np.median(errors) <= 0.1


def test_the_cache_has_a_latent_and_a_rotated_key_per_token(folder: Path) -> None:
    config = Model.open(folder).config
    assert config.attention.latent is not None and config.attention.latent.cached_dim == 20 + 8
    bench = tiny.Bench(folder)
    assert bench.cache.tensors[0].shape[2:] == (tiny.BLOCK_SIZE, 1, 28)
    assert kv_bytes_per_token(config, 2) == config.num_layers * 28 * 2
    # Every rank has all latents, which its heads share.
    assert kv_bytes_per_token(shard_of(config, 2, 1).local_config, 2) == config.num_layers * 28 * 2


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int5"])
def test_a_quantized_cache_is_a_usage_error(folder: Path, kv_dtype: str) -> None:
    with pytest.raises(UsageError, match=f"--kv-dtype {kv_dtype} does not apply"):
        tiny.engine(folder, kv_dtype=kv_dtype)


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
def test_quantized_conversions_keep_the_matrix_of_the_latents(scheme: str, tmp_path: Path) -> None:
    """Computed by the native kernels and by torch; kv_b is used in parts and stays float."""
    reference.copy_reference("deepseek_v3", tmp_path / "model", **_EVEN)
    convert(
        tmp_path / "model",
        tmp_path / "small",
        quantization=QuantizationSpec(scheme, group_size=32),
    )
    quantized = set(Model.open(tmp_path / "small").checkpoint().quantized)
    attention = {name for name in quantized if "layers.1.self_attn" in name}
    parts = ("kv_a_proj_with_mqa", "o_proj", "q_a_proj", "q_b_proj")
    assert attention == {f"model.layers.1.self_attn.{part}.weight" for part in parts}
    ids = tiny.random_ids(LENGTH)
    engines = [tiny.engine(tmp_path / "small", kernels=kernels) for kernels in (True, False)]
    found = [tiny.logprobs(e, ids, SamplingParams(max_tokens=1, logprobs=5))[1] for e in engines]
    best = [dict(one[0].top) for one in found]
    assert best[0].keys() == best[1].keys()
    assert all(abs(best[0][i] - best[1][i]) <= 1e-2 for i in best[0])


def test_verified_tokens_equal_those_of_plain_decoding(folder: Path) -> None:
    """A model that can only choose among three ids repeats itself, so tokens are proposed."""
    params = SamplingParams(
        temperature=0, max_tokens=60, logit_bias=((5, 50.0), (9, 50.0), (12, 50.0))
    )
    answers = []
    for speculate in ("off", "ngram"):
        engine = tiny.engine(folder)
        engine.use_speculation(Speculation(StepCosts(0.05), 9, 256, measures=False))
        ids, ends = tiny.run(engine, {1: [5, 9, 12]}, replace(params, speculate=speculate))
        answers.append(ids[1])
    assert answers[0] == answers[1]
    assert ends[1].speculated.num_accepted > 0


def test_latents_on_disk_equal_computed_ones(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Speeds, "is_worth_reading", lambda *_: True)
    config = EngineConfig(device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE)
    params, prompt = SamplingParams(temperature=0, max_tokens=6, saves_cache=True), [*range(3, 60)]
    found = []
    for _ in range(2):
        engine = build_engine(folder, config, kv_folder=tmp_path)
        ids, ends = tiny.run(engine, {1: prompt}, params)
        found.append(ids[1])
        while engine.has_unsaved:
            engine.prepare()
    assert found[0] == found[1]
    assert ends[1].restored_tokens == (len(prompt) - 1) // tiny.BLOCK_SIZE * tiny.BLOCK_SIZE


def test_expanding_pays_for_many_queries() -> None:
    """DeepSeek V3's sizes: one query reads latents, a prompt expands them."""
    latent = LatentAttention(kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128)
    assert not expanding_is_cheaper(latent, 1, 4096)
    assert not expanding_is_cheaper(latent, 100, 4096)
    assert expanding_is_cheaper(latent, 512, 4096)
    assert expanding_is_cheaper(latent, 16, 16)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 2}, "num_key_value_heads must be 6"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim must be an even number"),
        ({"kv_lora_rank": None}, "kv_lora_rank is missing"),
        ({"v_head_dim": 0}, "v_head_dim must be an integer"),
    ],
)
def test_invalid_sizes_are_refused(folder: Path, changes, message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(BadModelFile, match=message):
        read_model_config({**config, **changes})

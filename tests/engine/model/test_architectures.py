"""Every architecture against transformers on the same random weights, in fp32.

Tolerance 1e-4 relative to the largest logit: fp32 sums of up to 200 products in another order.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.reference import attention
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.reference import MODEL_TYPES, ONLY_MULTIMODAL, SWEPT_TYPES, copy_reference
from tests.support.speculation import use_oracle

NUM_TOKENS = 24
# Longer than the original context of the model with scaled RoPE: below it, transformers uses
# other angles for the same tokens.
SHORTEST = 5


Made = tuple[Path, "transformers.PreTrainedModel"]


@pytest.fixture(scope="module", params=[*tiny.FAMILIES, *tiny.REPACKED])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, tiny.make_with_reference(request.param, folder)


# For what the engine does with any model that it computes rightly.
each_mechanism = pytest.mark.parametrize("family", tiny.MECHANISMS, indirect=True)


def assert_close(ours: torch.Tensor, reference: torch.Tensor) -> None:
    assert ours.isfinite().all()
    assert (ours - reference).abs().max() <= 1e-4 * reference.abs().max()


@torch.inference_mode()
def expected(reference: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return reference(torch.tensor([ids])).logits[0]


@tiny.each_backend
def test_logits_equal_transformers(family: Made, native: bool) -> None:
    """Prefill in chunks, with a cached prefix, and a single token behind it."""
    folder, reference = family
    bench = tiny.Bench(folder, chunk_tokens=7, native=native)
    ids = tiny.random_ids(NUM_TOKENS, seed=1)
    lengths = (SHORTEST, NUM_TOKENS - 1, NUM_TOKENS)
    logits = torch.stack([bench.last_logits(ids[:length]) for length in lengths])
    assert_close(logits, expected(reference, ids)[[length - 1 for length in lengths]])


@each_mechanism
@tiny.each_backend
def test_token_by_token_equals_transformers(family: Made, native: bool) -> None:
    folder, reference = family
    ids = tiny.random_ids(NUM_TOKENS, seed=1)
    ours = tiny.Bench(folder, native=native).logits(ids)
    assert_close(ours[SHORTEST - 1 :], expected(reference, ids)[SHORTEST - 1 :])


@each_mechanism
@tiny.each_backend
def test_with_history_and_in_a_batch_equals_transformers(family: Made, native: bool) -> None:
    """One prompt continues a cached prefix, two are computed from their first token."""
    folder, reference = family
    bench = tiny.Bench(folder, native=native)
    first = tiny.random_ids(NUM_TOKENS, seed=2)
    bench.last_logits(first)
    prompts = {i: tiny.random_ids(SHORTEST + 7 * i, seed=i) for i in (1, 2)}
    prompts[3] = first[:13] + tiny.random_ids(NUM_TOKENS - 13, seed=3)
    for i, ids in prompts.items():
        bench.scheduler.add(TokenSequence(i, list(ids), SamplingParams()))
    logits = bench.step()
    for i, ids in prompts.items():
        assert_close(logits[i], expected(reference, ids)[-1])


@pytest.mark.parametrize("name", ["gemma2", "gpt-oss"])
@pytest.mark.parametrize("max_scores", [1, 300])
def test_explicit_attention_in_query_chunks_equals_transformers(
    name: str, max_scores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_MAX_SCORES", max_scores)
    reference, ids = tiny.make_with_reference(name, tmp_path), tiny.random_ids(NUM_TOKENS, seed=7)
    assert_close(tiny.Bench(tmp_path).last_logits(ids), expected(reference, ids)[-1])


@each_mechanism
def test_greedy_ids_equal_transformers(family: Made) -> None:
    folder, reference = family
    ids = tiny.random_ids(SHORTEST, seed=4)
    ours, _ = tiny.run(tiny.engine(folder), {1: ids}, SamplingParams(temperature=0, max_tokens=6))
    for _ in range(len(ours[1])):
        ids.append(int(expected(reference, ids)[-1].argmax()))
    assert ours[1] == ids[SHORTEST:]
    assert len(ours[1]) == 6 or ours[1][-1] == 2


@each_mechanism
def test_greedy_speculation_equals_plain_decoding(family: Made) -> None:
    folder, _ = family
    plain_params = SamplingParams(temperature=0, max_tokens=24, speculate="off")
    prompts = {1: tiny.random_ids(11, seed=5)}
    plain, _ = tiny.run(tiny.engine(folder), prompts, plain_params)
    engine = use_oracle(tiny.engine(folder), plain)
    ids, ends = tiny.run(engine, prompts, replace(plain_params, speculate="auto"))
    assert ids == plain
    speculated = ends[1].speculated
    assert 0 < speculated.num_accepted < speculated.num_proposed


@pytest.mark.parametrize(
    ("name", "prefix"), [("gpt2", "transformer."), ("bloom", "transformer."), ("opt", "model.")]
)
def test_tensor_names_without_prefix_are_accepted(name: str, prefix: str, tmp_path: Path) -> None:
    """As in early checkpoints, which also hold the attention masks."""
    reference = tiny.make_with_reference(name, tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = {key.removeprefix(prefix): tensor for key, tensor in load_file(file).items()}
    save_file({**tensors, "h.0.attn.bias": torch.ones(1, 1, 4, 4)}, file)
    ids = tiny.random_ids(9)
    bench = tiny.Bench(tmp_path)
    assert_close(bench.last_logits(ids), expected(reference, ids)[-1])
    assert bench.checkpoint.unused == ["h.0.attn.bias"]


@pytest.mark.parametrize("name", [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED])
def test_kernels_cover_only_supported_architectures(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    config = Model.open(tmp_path).config
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert kernels_cover(config, dtype) == (name not in tiny.NOT_ON_KERNELS)
    assert not kernels_cover(config, torch.float64)


def test_every_architecture_has_a_test_model(tmp_path: Path) -> None:
    tested = set()
    for name in [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED]:
        tiny.make(name, tmp_path)
        tested.add(Model.open(tmp_path).config.architecture)
    for model_type in ONLY_MULTIMODAL:
        copy_reference(model_type, tmp_path)
        tested.add(Model.open(tmp_path).config.architecture)
    swept = {MODEL_TYPES[model_type] for model_type in SWEPT_TYPES}
    assert tested | swept == set(ARCHITECTURES)


@pytest.mark.parametrize("name", tiny.MECHANISMS)
def test_dummy_weights_generate(name: str, tmp_path: Path) -> None:
    """The logits are finite and have about the spread that dummy weights aim at."""
    tiny.make(name, tmp_path)
    settings = EngineConfig(device="cpu", dtype="float32", dummy=str(tmp_path / "config.json"))
    engine = build_engine(Path(), settings)
    found = []
    forward = engine.decoder.forward
    engine.decoder.forward = lambda *args: found.append(forward(*args)) or found[-1]  # type: ignore[method-assign]
    ids, _ = tiny.run(engine, {1: tiny.random_ids(9)}, SamplingParams(temperature=0, max_tokens=3))
    assert ids[1] and 0.5 < torch.cat(found).std() < 20


@each_mechanism
def test_bfloat16_stays_near_fp32(family: Made) -> None:
    """Relative error of the logits at most 10 %; up to 6 % were measured.

    Some ten roundings to 8 bits a layer, with weights ten times as large as trained ones. Of
    five prompts the median counts: where two experts are nearly as good, rounding chooses.
    """
    folder, reference = family
    prompts = {seed: tiny.random_ids(NUM_TOKENS, seed=seed) for seed in range(5)}
    engine = tiny.engine(folder, dtype="bfloat16")
    forward, seen = engine.decoder.forward, []
    engine.decoder.forward = lambda *args: seen.append(forward(*args)) or seen[-1]  # type: ignore[method-assign]
    tiny.run(engine, prompts, SamplingParams(temperature=0, max_tokens=1))
    exact = torch.stack([expected(reference, ids)[-1] for ids in prompts.values()])
    errors = torch.linalg.norm(torch.cat(seen) - exact, dim=1) / torch.linalg.norm(exact, dim=1)
    assert errors.median() <= 0.1

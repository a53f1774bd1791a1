"""Beam search by the engine: against transformers on the same weights, and beside other requests.

Tolerance of scores 1e-4 relative: sums of fp32 logprobs in another order.
"""

import random
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Beam, Finished, Searching, Tokens
from swiftchat.engine.api.vocabulary import ConstraintSpec, Vocabulary
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.model.quantized_kv import QuantizedKV
from swiftchat.engine.reference import ops as torch_ops
from swiftchat.engine.reference.ops import TorchPlan, store
from swiftchat.errors import OutOfMemory, SwiftchatError, UsageError
from tests.support import tiny
from tests.support.tiny_models import VOCAB_SIZE

EARLY_STOPPING = {"true": True, "false": False, "never": "never"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny.make("llama", folder)
    return folder


def search(
    engine: Engine, prompt: list[int], params: SamplingParams
) -> tuple[list[Beam], Finished | SwiftchatError]:
    """Run a beam search alone; return its answers and its end."""
    engine.add(0, prompt, params)
    events: list[object] = []
    while engine.has_work:
        events += [event for _, event in engine.step()]
        engine.scheduler.check_integrity()
    assert engine.stats()["used_blocks"] == 0
    (end,) = (e for e in events if isinstance(e, Finished | SwiftchatError))
    return [e for e in events if isinstance(e, Beam)], end


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "gemma2", "mixtral"])
def test_ids_and_scores_equal_transformers(name: str, tmp_path: Path) -> None:
    reference = tiny.make_with_reference(name, tmp_path)
    engine, rng = tiny.engine(tmp_path), random.Random(name)
    for seed in range(8):
        prompt = tiny.random_ids(rng.randrange(1, 20), seed)
        with torch.inference_mode():
            likely = reference(torch.tensor([prompt])).logits[0, -1].topk(12).indices.tolist()
        stop_ids = rng.sample(likely, rng.randrange(4))  # ends that occur
        params = SamplingParams(
            temperature=0,
            beams=(num_beams := rng.randrange(2, 7)),
            returned_beams=num_beams,
            length_penalty=rng.choice([1.0, 0.0, 2.0, -1.0]),
            early_stopping=rng.choice(list(EARLY_STOPPING)),
            repeat_penalty=rng.choice([1.0, 1.3]),
            max_tokens=rng.randrange(1, 16),
            stop_ids=tuple(stop_ids),
        )
        beams, end = search(engine, prompt, params)
        found = reference.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=params.length_penalty,
            early_stopping=EARLY_STOPPING[params.early_stopping],
            repetition_penalty=params.repeat_penalty,
            max_new_tokens=params.max_tokens,
            eos_token_id=stop_ids or None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        for beam, ids, score in zip(
            beams, found.sequences.tolist(), found.sequences_scores.tolist(), strict=True
        ):
            generated = ids[len(prompt) :]
            ends = [i for i, token in enumerate(generated) if token in stop_ids]
            assert beam.ids == (generated[: ends[0]] if ends else generated)
            assert beam.reason == ("stop" if ends else "length")
            assert beam.score == pytest.approx(score, rel=1e-4, abs=1e-4)
        assert isinstance(end, Finished) and end.reason == beams[0].reason
        assert end.completion_tokens == len(beams[0].ids)


def test_the_controls_of_logits_apply_to_beams(folder: Path) -> None:
    engine, prompt = tiny.engine(folder), tiny.random_ids(9)
    params = SamplingParams(temperature=0, beams=3, returned_beams=3, max_tokens=6)
    (plain, *_), _ = search(engine, prompt, params)
    banned = replace(params, bad_words=((plain.ids[0],),), min_tokens=4, stop_ids=(plain.ids[1],))
    beams, _ = search(engine, prompt, banned)
    assert len(beams) == 3
    assert all(plain.ids[0] not in one.ids and len(one.ids) >= 4 for one in beams)


@pytest.mark.parametrize("num_allowed", [0, 1, 2])
def test_no_beam_has_a_banned_token(folder: Path, num_allowed: int) -> None:
    """There are fewer tokens than beams: two tokens give up to four beams, one token gives one."""
    engine, allowed = tiny.engine(folder), set(range(5, 5 + num_allowed))
    params = SamplingParams(
        temperature=0,
        beams=4,
        returned_beams=4,
        max_tokens=3,
        bad_words=tuple((token,) for token in range(VOCAB_SIZE) if token not in allowed),
    )
    beams, end = search(engine, tiny.random_ids(9), params)
    assert len(beams) == num_allowed**2
    assert all({*beam.ids} <= allowed and len(beam.ids) == 3 for beam in beams)
    assert isinstance(end, SwiftchatError) == (not allowed)


def test_full_blocks_are_shared(folder: Path) -> None:
    engine, prompt = tiny.engine(folder), tiny.random_ids(10 * tiny.BLOCK_SIZE)
    engine.add(0, prompt, SamplingParams(temperature=0, beams=4, max_tokens=9))
    most = 0
    while engine.has_work:
        engine.step()
        most = max(most, engine.stats()["used_blocks"])
    # The prompt once, and for each beam the blocks of the answer.
    assert most <= 10 + 4 * 3
    assert engine.stats()["computed_tokens"] <= len(prompt) + 4 * 8


@pytest.mark.parametrize("kv_dtype", ["int8", "int5"])
def test_beams_copy_the_blocks_of_a_quantized_cache(
    folder: Path, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain cache with the same rounded keys and values gives the same beams."""
    prompt = tiny.random_ids(4 * tiny.BLOCK_SIZE + 2, seed=4)
    params = SamplingParams(temperature=0, beams=4, returned_beams=4, max_tokens=11)
    found, _ = search(tiny.engine(folder, kernels=False, kv_dtype=kv_dtype), prompt, params)

    def store_rounded(plan: TorchPlan, layer: int, cache: torch.Tensor, new: torch.Tensor) -> None:
        kind = QuantizedKV(kv_dtype, new, new)
        rounded = kind.dequantize(kind.quantize(new), new.dtype)
        store(plan, layer, cache, kind.rotated(rounded))

    monkeypatch.setattr(torch_ops, "store", store_rounded)
    expected, _ = search(tiny.engine(folder, kernels=False), prompt, params)
    assert len(found) == 4 and [one.ids for one in found] == [one.ids for one in expected]


def test_a_search_reports_its_length(folder: Path) -> None:
    engine = tiny.engine(folder)
    params = SamplingParams(temperature=0, beams=2, max_tokens=40, stop_ids=())
    engine.add(0, tiny.random_ids(9), params)
    events = [event for _ in iter(lambda: engine.has_work, False) for _, event in engine.step()]
    assert [e.num_tokens for e in events if isinstance(e, Searching)] == [16, 32]


def test_the_context_ends_a_search(folder: Path) -> None:
    prompt = tiny.random_ids(20)
    params = SamplingParams(temperature=0, beams=2, stop_ids=())
    beams, _ = search(tiny.engine(folder, ctx_size_tokens=28, cache_tokens=96), prompt, params)
    assert [(len(one.ids), one.reason) for one in beams] == [(8, "length")]


def test_a_search_without_blocks_ends_with_an_error(folder: Path) -> None:
    engine = tiny.engine(folder, ctx_size_tokens=48, cache_tokens=48)
    beams, end = search(
        engine, tiny.random_ids(20), SamplingParams(temperature=0, beams=6, max_tokens=28)
    )
    assert not beams and isinstance(end, OutOfMemory)
    assert "the KV cache of 48 tokens has no room for 6 beams of" in end.message
    assert "--beams" in end.hint and "--ctx-size" in end.hint


def test_searches_without_room_for_all_wait_for_each_other(folder: Path) -> None:
    """The cache has room for the beams of one search, and of another at its beginning only."""
    params = SamplingParams(temperature=0, beams=4, returned_beams=4, max_tokens=24)
    prompts = [tiny.random_ids(20, seed) for seed in range(3)]
    cache = {"ctx_size_tokens": 48, "cache_tokens": 120}
    alone = [search(tiny.engine(folder, **cache), prompt, params) for prompt in prompts]
    engine = tiny.engine(folder, **cache)
    found: dict[int, list[object]] = {i: [] for i in range(4)}
    for i, prompt in enumerate(prompts):
        engine.add(i, prompt, params)
    sampled = SamplingParams(temperature=1, max_tokens=24, seed=3)
    engine.add(3, prompts[0], sampled)
    num_waiting = 0
    while engine.has_work:
        for i, event in engine.step():
            found[i].append(event)
        engine.scheduler.check_integrity()
        held = [one for one in engine.scheduler.waiting if one.is_held]
        num_waiting = max(num_waiting, len(held))
    assert num_waiting >= 4, "no search has waited"
    for i, (beams, _) in enumerate(alone):
        assert [e.ids for e in found[i] if isinstance(e, Beam)] == [one.ids for one in beams]
    expected, _ = tiny.run(tiny.engine(folder), {0: prompts[0]}, sampled)
    tokens = [e.ids for e in found[3] if isinstance(e, Tokens)]
    assert list(chain.from_iterable(tokens)) == expected[0]
    assert engine.stats()["used_blocks"] == 0


def test_a_canceled_search_has_no_answer(folder: Path) -> None:
    engine = tiny.engine(folder)
    engine.add(0, tiny.random_ids(20), SamplingParams(temperature=0, beams=3, max_tokens=9))
    for _ in range(4):
        assert not any(isinstance(event, Beam | Tokens) for _, event in engine.step())
    engine.cancel(0)
    ((_, end),) = engine.step()
    assert isinstance(end, Finished) and end.reason == "interrupt"
    engine.scheduler.check_integrity()
    assert not engine.has_work and engine.stats()["used_blocks"] == 0


@pytest.mark.parametrize("seed", range(6))
def test_searches_beside_other_requests(folder: Path, seed: int) -> None:
    """Every request gets what it gets alone, also an error for a search without room."""
    rng = random.Random(seed)
    size = {"ctx_size_tokens": 96, "cache_tokens": rng.choice([96, 192, 768])}
    engine = tiny.engine(
        folder, **size, chunk_tokens=rng.choice([3, 16, 64]), max_num_seqs=rng.choice([5, 16])
    )
    base = tiny.random_ids(60, seed)
    requests: dict[int, tuple[list[int], SamplingParams]] = {}
    found: dict[int, list[object]] = {}
    canceled: set[int] = set()
    while len(requests) < 8 or engine.has_work:
        if len(requests) < 8 and rng.random() < 0.4:
            i = len(requests)
            prompt = base[: rng.randrange(1, 60)] + rng.sample(range(3, 90), rng.randrange(3))
            params = SamplingParams(temperature=1.0, max_tokens=rng.randrange(1, 20), seed=i)
            if i % 3 == 1:
                num_beams = rng.randrange(1, 6)
                params = replace(
                    params, temperature=0, beams=num_beams, returned_beams=num_beams, stop_ids=(5,)
                )
            requests[i], found[i] = (prompt, params), []
            engine.add(i, prompt, params)
        if requests and rng.random() < 0.02:
            canceled.add(victim := rng.choice(list(requests)))
            engine.cancel(victim)
        for i, event in engine.step():
            found[i].append(event)
        engine.scheduler.check_integrity()
    assert engine.stats()["used_blocks"] == 0
    for i, (prompt, params) in requests.items():
        errors = [event for event in found[i] if isinstance(event, SwiftchatError)]
        if i in canceled or errors:
            assert all(isinstance(e, OutOfMemory) and params.beams for e in errors)
            if errors:
                assert isinstance(
                    search(tiny.engine(folder, **size), prompt, params)[1], OutOfMemory
                )
            continue
        alone = tiny.engine(folder)
        if params.beams is None:
            ids, _ = tiny.run(alone, {0: prompt}, params)
            tokens = [e.ids for e in found[i] if isinstance(e, Tokens)]
            assert list(chain.from_iterable(tokens)) == ids[0]
        else:
            beams = [event for event in found[i] if isinstance(event, Beam)]
            expected, _ = search(alone, prompt, params)
            assert [one.ids for one in beams] == [one.ids for one in expected]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"temperature": 0.5}, "temperature 0.5"),
        ({"logprobs": 2}, "logprobs"),
        ({"prompt_logprobs": 2}, "prompt_logprobs"),
        ({"overflow": "sliding"}, "overflow sliding"),
        ({"speculate": "ngram"}, "speculate ngram"),
        ({"returned_beams": 4}, "--samples 4"),
    ],
)
def test_contradictory_parameters_are_named(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError) as raised:
        SamplingParams(**{"temperature": 0, "beams": 3, **changes})  # type: ignore[arg-type]
    assert "beams 3" in raised.value.message and named in raised.value.message


def test_what_the_engine_cannot_do_is_refused(folder: Path) -> None:
    engine = tiny.engine(folder, max_num_seqs=4)
    params = SamplingParams(temperature=0, beams=5)
    with pytest.raises(UsageError, match="beams 5 is above 4"):
        engine.check([5], params)
    with pytest.raises(UsageError, match="beams 4 cannot be combined with a grammar"):
        engine.check(
            [5], replace(params, beams=4), ConstraintSpec("", Vocabulary((b"a", b""), (1,), (1,)))
        )

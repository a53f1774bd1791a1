"""Verification: the ids of plain decoding, whatever is proposed, and valid KV blocks."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.comm.communicator import SingleRank
from swiftchat.engine.comm.pipeline import SingleStage
from swiftchat.engine.sampling.distributed import DistributedSampler
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import Row, TokenSequence
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from tests.support import tiny
from tests.support.speculation import use_oracle

OFF = SamplingParams(temperature=0, max_tokens=40, speculate="off")
PROMPT = tiny.random_ids(9, seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


CONTROLS = {
    "greedy": OFF,
    "sampled": replace(OFF, temperature=0.9, seed=5),
    "penalties": replace(
        OFF, temperature=0.8, seed=6, repeat_penalty=1.3, dry_multiplier=0.8, no_repeat_ngram=3
    ),
    "filters": replace(OFF, temperature=1.0, seed=7, top_k=9, typical_p=0.9, top_p_decay=0.9),
    "alone": replace(
        OFF, temperature=1.5, seed=8, typical_p=0.9, top_n_sigma=2.0, xtc_probability=0.5
    ),
}


@tiny.each_backend
@pytest.mark.parametrize("params", CONTROLS.values(), ids=CONTROLS)
def test_ids_and_logprobs_equal_those_of_plain_decoding(
    folder: Path, params: SamplingParams, native: bool
) -> None:
    params = replace(params, logprobs=2)
    plain, logprobs = tiny.logprobs(tiny.engine(folder, kernels=native), PROMPT, params)
    engine = use_oracle(tiny.engine(folder, kernels=native), {1: plain})
    ids, found = tiny.logprobs(engine, PROMPT, replace(params, speculate="auto"))
    assert ids == plain
    if native:
        assert found == logprobs
    else:  # torch's sums depend on the number of rows
        expected = [one.logprob for one in logprobs]
        assert [one.logprob for one in found] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma2", "bloom", "qwen2-moe"])
def test_native_logits_are_bitwise_those_of_single_rows(name: str, tmp_path: Path) -> None:
    """So verified ids cannot differ from those of plain decoding."""
    tiny.make(name, tmp_path)
    tokens = tiny.random_ids(9, seed=3) * 4
    for dtype in (torch.float32, torch.bfloat16):
        bench = tiny.Bench(tmp_path, native=True, dtype=dtype)
        bench.logits(tokens[:-9])
        sequence = TokenSequence(1, tokens[:-8], SamplingParams())
        bench.scheduler.add(sequence)
        sequence.proposed = tuple(tokens[-8:])
        step = bench.scheduler.schedule()
        bench.decoder.ops.copy_blocks(bench.cache, step.copies)
        (row,) = step.rows
        assert len(row.proposed) == 8
        together = bench.decoder.forward(Batch.pack([row], tiny.BLOCK_SIZE), bench.cache)
        assert together is not None
        alone = tiny.Bench(tmp_path, native=True, dtype=dtype).logits(tokens)
        assert torch.equal(together, alone[-9:])


def test_look_up_speeds_up_a_loop(folder: Path) -> None:
    """A model that can only choose among three ids repeats itself."""
    params = replace(OFF, max_tokens=120, logit_bias=((5, 50.0), (9, 50.0), (12, 50.0)))
    plain = tiny.engine(folder)
    expected, _ = tiny.run(plain, {1: PROMPT}, params)
    engine = tiny.engine(folder)
    engine.speculation = Speculation(StepCosts(0.05), 9, 256, measures=False)
    engine.add(1, PROMPT, replace(params, speculate="ngram"))
    ids, num_steps = list[int](), 0
    while engine.has_work:
        num_steps += 1
        for _, event in engine.step():
            engine.scheduler.check_integrity()
            if isinstance(event, Tokens):
                ids += event.ids
            elif isinstance(event, Finished):
                speculated = event.speculated
    assert ids == expected[1]
    assert num_steps < 100
    assert speculated is not None and speculated.gain > 1.2
    assert speculated.num_accepted == 120 - num_steps


def test_steps_with_tokens_of_prompts_count_but_for_the_gain(folder: Path) -> None:
    engine = tiny.engine(folder, chunk_tokens=16)
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, OFF)
    use_oracle(engine, plain)
    engine.add(1, PROMPT, replace(OFF, speculate="auto"))
    engine.step()
    for id_ in (2, 3):  # their prompts accompany every step of the answer
        engine.add(id_, tiny.random_ids(120, seed=id_), replace(OFF, max_tokens=1))
    speculated = None
    while engine.has_work:
        for id_, event in engine.step():
            if id_ == 1 and isinstance(event, Finished):
                speculated = event.speculated
    assert speculated is not None
    assert 0 < speculated.num_accepted < speculated.num_proposed
    assert 1 <= speculated.gain <= 1 + speculated.mean_accepted


def test_an_answer_ends_within_accepted_tokens(folder: Path) -> None:
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, OFF)
    for end in range(3, 20):
        stop = replace(OFF, stop_ids=(plain[1][end],))
        expected, expected_ends = tiny.run(tiny.engine(folder), {1: PROMPT}, stop)
        engine = use_oracle(tiny.engine(folder), plain)
        ids, ends = tiny.run(engine, {1: PROMPT}, stop)
        assert ids == expected
        assert ends[1].reason == expected_ends[1].reason
        assert engine.allocator.num_used == 0


def test_the_context_is_filled_exactly(folder: Path) -> None:
    params = replace(OFF, max_tokens=None)
    plain, _ = tiny.run(tiny.engine(folder, ctx_size_tokens=31), {1: PROMPT}, params)
    engine = use_oracle(tiny.engine(folder, ctx_size_tokens=31), plain)
    ids, ends = tiny.run(engine, {1: PROMPT}, params)
    assert ids == plain
    assert len(PROMPT) + len(ids[1]) == 31
    assert ends[1].reason == "length"


def test_a_second_turn_finds_accepted_tokens_in_the_prefix_cache(folder: Path) -> None:
    plain, _ = tiny.run(tiny.engine(folder), {1: PROMPT}, OFF)
    engine = use_oracle(tiny.engine(folder), plain)
    tiny.run(engine, {1: PROMPT}, OFF)
    second = PROMPT + plain[1] + tiny.random_ids(5, seed=8)
    expected, _ = tiny.run(tiny.engine(folder), {2: second}, OFF)
    ids, ends = tiny.run(engine, {2: second}, OFF)
    assert ids == expected
    # The last token, and those accepted together with it, need not be in the cache.
    assert ends[2].cached_tokens >= len(PROMPT) + len(plain[1]) - 9


@given(
    st.integers(12, 40),
    st.integers(1, 8),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), max_size=2),
)
@settings(max_examples=15, deadline=None)
def test_random_schedules_with_preemption_and_cancel(
    folder: Path, num_blocks: int, most: int, cancels: list[tuple[int, int]]
) -> None:
    prompts = {i: tiny.random_ids(7 + 9 * i, seed=i) for i in (1, 2, 3)}
    params = replace(OFF, max_tokens=12)
    plain = {i: tiny.run(reference(folder), {i: p}, params)[0][i] for i, p in prompts.items()}
    size = tiny.BLOCK_SIZE
    engine = tiny.engine(
        folder, ctx_size_tokens=48, cache_tokens=num_blocks * size, chunk_tokens=16
    )
    use_oracle(engine, plain, most)
    for key, prompt in prompts.items():
        engine.add(key, prompt, params)
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    canceled, num_steps = set[int](), 0
    while engine.has_work:
        for step, key in cancels:
            if step == num_steps:
                engine.cancel(key)
                canceled.add(key)
        for key, event in engine.step():
            if isinstance(event, Tokens):
                ids[key] += event.ids
        engine.scheduler.check_integrity()
        num_steps += 1
    for key, expected in plain.items():
        assert ids[key] == expected[: len(ids[key])]
        assert key in canceled or len(ids[key]) == 12
    assert engine.allocator.num_used == 0


_REFERENCES: dict[Path, object] = {}


def reference(folder: Path):
    """Return one engine for all plain answers: its prefix cache makes them cheap."""
    if folder not in _REFERENCES:
        _REFERENCES[folder] = tiny.engine(folder)
    return _REFERENCES[folder]


def test_the_distribution_is_that_of_the_target() -> None:
    """Chi-square of pairs of tokens: 0.999 quantile with 15 degrees of freedom is 37.7."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 0.5], [1.0, 0.0, 0.3, 2.0], [9.0, 0.0, 0.0, 0.0]])
    sampler = DistributedSampler(4, SingleRank(), SingleStage())
    params = SamplingParams(temperature=1.0, top_p=1.0)
    proposed, num_draws = (2, 3), 8000
    counts: Counter[tuple[int, ...]] = Counter()
    rejected = torch.softmax(logits[1], 0)  # what plain decoding would sample after another token
    for seed in range(num_draws):
        sequence = TokenSequence(0, [1, 0], params)
        sequence.num_computed, sequence.block_table = 1, [0]
        row = Row(sequence, 1, proposed)
        (sampled,), _ = sampler.sample_batch(Batch.pack([row], 8), [seed], logits)
        assert len(sampled) == 1 or sampled[0] == 2
        if len(sampled) == 1:  # the next step samples its second token
            after = TokenSequence(0, [1, 0, sampled[0]], params)
            after.num_computed, after.block_table = 2, [0]
            batch = Batch.pack([Row(after, 1)], 8)
            ((second,),), _ = sampler.sample_batch(batch, [seed], logits[1:2])
            sampled = [*sampled, second]
        counts[tuple(sampled[:2])] += 1
    first = torch.softmax(logits[0], 0)
    chi_square = sum(
        (counts[a, b] - expected) ** 2 / expected
        for a in range(4)
        for b in range(4)
        for expected in [num_draws * float(first[a] * rejected[b])]
    )
    assert chi_square < 37.7

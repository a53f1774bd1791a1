"""A spent budget ends the reasoning: the ids are those of prompts that have the forced tokens."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.api.reasoning import ReasoningMarkers
from swiftchat.engine.api.vocabulary import ConstraintSpec
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.speculation.speculation import Speculation
from swiftchat.engine.speculation.step_costs import StepCosts
from swiftchat.errors import UsageError
from tests.support import reference, tiny
from tests.support.emulated.engine import emulated_engine, use_emulated_gpu
from tests.support.grammars import PIECES, STOP, VOCABULARY, run
from tests.support.worker_processes import CONTROLS, WIDE, collect

OPEN, CLOSE = b"<(", b")>"
ENDING = (10, *b"ENOUGH", *CLOSE, 10)
_PARTS = tuple((i, PIECES[i]) for i in (*range(9, 14), 32, *OPEN, *CLOSE))
OPENED = ReasoningMarkers((OPEN,), CLOSE, is_open=True, pieces=_PARTS, ending=ENDING)
CLOSED = replace(OPENED, is_open=False)
GREEDY = SamplingParams(temperature=0, max_tokens=12, reasoning=OPENED, reasoning_budget=9)
SAMPLED = replace(GREEDY, temperature=1.3, top_p=0.9, seed=5)
PARAMS = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "no limit": replace(SAMPLED, max_tokens=None),
    "logprobs": replace(SAMPLED, logprobs=2),
    "unproposed": replace(GREEDY, speculate="off"),
    "controls": replace(CONTROLS, max_tokens=14, reasoning=OPENED, reasoning_budget=7, stop_ids=()),
    "one token": replace(SAMPLED, reasoning_budget=1),
    "no token": replace(SAMPLED, reasoning_budget=0),
}
# Repeats itself, so that tokens are proposed across the end of the budget.
REPEATED = [*tiny.random_ids(6, seed=9)] * 5


def make(folder: Path, name: str = "llama") -> Path:
    if name == "qwen3_next":
        reference.copy_reference(name, folder)
    else:
        tiny.make(name, folder, **(WIDE if name == "llama" else {}))
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("llama"))


def by_prompts(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    """Return the answer from one prompt after another, none of them with a budget."""
    assert params.reasoning is not None and params.reasoning_budget is not None
    plain = replace(params, reasoning=None, reasoning_budget=None, speculate="off")

    def after(ids: Sequence[int], num_tokens: int | None) -> list[int]:
        engine.add(1, [*prompt, *ids], replace(plain, max_tokens=num_tokens))
        # Penalties and the position of an answer count from the same token.
        engine.generations.by_id[1].sequence.num_prompt = len(prompt)
        if num_tokens is not None:
            limit = replace(plain, max_tokens=len(ids) + num_tokens)
            engine.generations.by_id[1].sequence.params = limit
        found: list[int] = []
        while engine.has_work:
            tokens = [event for _, event in engine.step() if isinstance(event, Tokens)]
            found += [token for event in tokens for token in event.ids]
        return found

    thought = [*after((), max(1, params.reasoning_budget)), *params.reasoning.ending]
    return [*thought, *after(thought, params.max_tokens)]


@pytest.mark.parametrize("name", PARAMS)
def test_the_answer_equals_those_to_prompts_with_the_forced_ids(name: str, llama: Path) -> None:
    engine, params = tiny.engine(llama), PARAMS[name]
    for prompt in (tiny.random_ids(20), REPEATED):
        ids, ends = run(engine, [(prompt, params, None)])
        assert ids == [by_prompts(engine, prompt, params)]
        assert isinstance(end := ends[0], Finished)
        assert end.completion_tokens == len(ids[0])
        assert run(engine, [(prompt, params, None)])[0] == ids  # with a cached prefix


@pytest.mark.parametrize(
    ("name", "native"),
    [("qwen3", False), ("qwen3_next", True), ("gemma2", True), ("gpt-oss", True)],
)
def test_states_windows_and_experts(name: str, native: bool, tmp_path: Path) -> None:
    make(tmp_path, name)
    engine = tiny.engine(tmp_path, kernels=native)
    for params in (GREEDY, SAMPLED):
        found = run(tiny.engine(tmp_path, kernels=native), [(REPEATED, params, None)])[0]
        assert found == [by_prompts(engine, REPEATED, params)]


def test_tokens_are_proposed_up_to_the_end_of_the_budget(llama: Path) -> None:
    engine = tiny.engine(llama)
    # Steps whose time is measured could show on a busy machine that proposals do not pay.
    costs = StepCosts(0.0)
    engine.use_speculation(Speculation(costs, 8, engine.ctx_size_tokens, measures=False))
    for budget in range(40, 50):
        params = replace(GREEDY, reasoning_budget=budget, max_tokens=30, logit_bias=((7, 50.0),))
        engine.add(1, REPEATED, params)
        steps: list[list[int]] = []
        while engine.has_work:
            events = [event for _, event in engine.step()]
            steps.append([i for event in events if isinstance(event, Tokens) for i in event.ids])
        end = events[-1]
        assert isinstance(end, Finished) and end.speculated is not None
        assert end.speculated.num_accepted > 10
        ids = [token for step in steps for token in step]
        assert ids == [*[7] * budget, *ENDING, *[7] * 30]
        # Tokens behind the end would have been computed without it.
        (ending,) = (step for step in steps if ENDING[1] in step)
        assert tuple(ending[-len(ENDING) :]) == ENDING


def test_answers_together_and_preempted_equal_answers_alone(llama: Path) -> None:
    requests: list[tuple[list[int], SamplingParams, ConstraintSpec | None]] = [
        (tiny.random_ids(8 * i, seed=i), replace(SAMPLED, reasoning_budget=4 * i, seed=i), None)
        for i in range(1, 6)
    ]
    requests.append((tiny.random_ids(8, seed=7), replace(GREEDY, reasoning_budget=None), None))
    alone = [run(tiny.engine(llama), [request])[0][0] for request in requests]
    engine = tiny.engine(llama, ctx_size_tokens=96, cache_tokens=120, chunk_tokens=13)
    preempt, preempted = engine.scheduler.preempt, []
    engine.scheduler.preempt = lambda one: (preempted.append(one), preempt(one))[1]  # type: ignore[func-returns-value]
    assert run(engine, requests)[0] == alone and preempted
    assert len(alone[-1]) == 12 and len(alone[0]) == 4 + len(ENDING) + 12


def test_reasoning_that_ends_by_itself_keeps_its_length(llama: Path) -> None:
    """`max_tokens` counts the tokens after the marker, which the model or a grammar writes."""
    lark = r'{"grammars": [{"lark_grammar": "start: \"hm)>four words of text\""}]}'
    spec = ConstraintSpec(lark, VOCABULARY)
    for length in (1, 4, 100):
        params = replace(SAMPLED, reasoning_budget=20, max_tokens=length, stop_ids=(STOP,))
        ids, _ = run(tiny.engine(llama), [([5, 6], params, spec)])
        assert bytes(ids[0]).decode() == "hm)>" + "four words of text"[:length]


@pytest.mark.parametrize("logprobs", [None, 1])
def test_the_end_of_reasoning_before_a_grammar(llama: Path, logprobs: int | None) -> None:
    lark = r'{"grammars": [{"lark_grammar": "start: TEXT \")>\" /[ab\\n]{3,5}/\nTEXT: /[^)]*/"}]}'
    spec = ConstraintSpec(lark, VOCABULARY)
    params = replace(SAMPLED, reasoning_budget=6, stop_ids=(STOP,), logprobs=logprobs)
    ids, ends = run(tiny.engine(llama), [([5, 6], params, spec)])
    assert tuple(ids[0][6 : 6 + len(ENDING)]) == ENDING
    assert set(ids[0][6 + len(ENDING) :]) <= set(b"ab\n") and isinstance(ends[0], Finished)


def test_only_reasoning_that_begins_has_a_budget(llama: Path) -> None:
    """Without an open prompt, the answer begins with the marker or is no reasoning."""
    for first, is_reasoning in ((" \n<(hm", True), ("<a", False), ("four", False), ("<(<(", True)):
        text = f"{first}" + "x" * 60
        lark = f'{{"grammars": [{{"lark_grammar": "start: {_quoted(text)}"}}]}}'
        params = replace(
            SAMPLED, reasoning=CLOSED, reasoning_budget=8, max_tokens=20, stop_ids=(STOP,)
        )
        # A ban keeps each step single.
        params = replace(params, bad_words=((1, 1),))
        ids, ends = run(tiny.engine(llama), [([5, 6], params, ConstraintSpec(lark, VOCABULARY))])
        if is_reasoning:  # the grammar does not allow the end
            assert len(ids[0]) == 7 and isinstance(ends[0], UsageError)
        else:
            assert bytes(ids[0]).decode() == text[:20]


def _quoted(text: str) -> str:
    return '\\"' + text.replace("\n", "\\\\n") + '\\"'


def test_every_token_of_the_end_has_its_logprob(llama: Path) -> None:
    engine = tiny.engine(llama)
    engine.add(1, tiny.random_ids(20), replace(SAMPLED, logprobs=3))
    events = [event for _ in range(80) for _, event in engine.step()]
    tokens = [event for event in events if isinstance(event, Tokens)]
    ids = [token for event in tokens for token in event.ids]
    logprobs = [one for event in tokens for one in event.logprobs]
    assert len(ids) == len(logprobs) == 9 + len(ENDING) + 12
    scored = replace(
        SAMPLED, reasoning=None, reasoning_budget=None, max_tokens=0, prompt_logprobs=0
    )
    engine.add(2, [*tiny.random_ids(20), *ids], scored)
    found: list[Any] = []
    while engine.has_work:
        found += [e for _, event in engine.step() for e in getattr(event, "logprobs", [])]
    assert [one.logprob for one in found[19:]] == pytest.approx(
        [one.logprob for one in logprobs], abs=1e-4
    )


def test_a_context_that_slides(llama: Path) -> None:
    """The end is not cut by the end of a context: the reasoning goes on until it has slid."""
    params = replace(SAMPLED, overflow="sliding", overflow_keep=3, max_tokens=50)
    for budget in range(1, 40, 3):
        engine = tiny.engine(llama, ctx_size_tokens=32)
        spent = replace(params, reasoning_budget=budget)
        ((ids,), ends) = run(engine, [(tiny.random_ids(10), spent, None)])
        end = bytes(ids).find(bytes(ENDING))
        assert budget <= end <= budget + len(ENDING) and isinstance(ends[0], Finished)
        assert ends[0].completion_tokens == len(ids) == end + len(ENDING) + 50


def test_a_context_that_is_full_ends_the_answer(llama: Path) -> None:
    for context in range(20, 40):
        engine = tiny.engine(llama, ctx_size_tokens=context)
        ((ids,), ends) = run(engine, [(tiny.random_ids(10), SAMPLED, None)])
        assert len(ids) == min(context - 10, 9 + len(ENDING) + 12)
        assert isinstance(ends[0], Finished) and ends[0].reason == "length"


def test_a_draft_model_proposes_before_and_after_the_end(llama: Path, tmp_path: Path) -> None:
    engine = tiny.engine(llama, draft=str(make(tmp_path)))
    params = replace(SAMPLED, speculate="draft", reasoning_budget=20, max_tokens=30)
    ids, ends = run(engine, [(tiny.random_ids(20), params, None)])
    assert ids == [by_prompts(tiny.engine(llama), tiny.random_ids(20), params)]
    assert isinstance(end := ends[0], Finished) and end.speculated is not None


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_captured_steps_by_emulated_kernels(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in flight is discarded when forced tokens take the place of the one that it reads."""
    plain = tiny.engine(make(tmp_path, name))
    use_emulated_gpu(monkeypatch)
    engine = emulated_engine(tmp_path)
    assert engine.graphs.decode is not None
    for params in (GREEDY, SAMPLED):
        prompts = REPEATED, tiny.random_ids(20)
        ids, _ = run(engine, [(prompt, params, None) for prompt in prompts])
        assert ids == [by_prompts(plain, prompt, params) for prompt in prompts]
        assert len(ids[0]) == 9 + len(ENDING) + 12


def test_beams_have_no_budget(llama: Path) -> None:
    with pytest.raises(UsageError, match="beams 2 cannot be combined with reasoning_budget 9"):
        replace(GREEDY, beams=2)


@pytest.mark.skipif(sys.platform != "linux", reason="several ranks need Linux")
def test_several_ranks(llama: Path) -> None:
    prompt = tiny.random_ids(20, seed=5)
    config = EngineConfig(device="cpu", dtype="float32", num_threads=1, tp=2, pp=2)
    with EngineClient(config, llama) as client:
        for params in (GREEDY, replace(SAMPLED, logprobs=1)):
            expected = by_prompts(tiny.engine(llama), prompt, params)
            assert collect(client.generate(prompt, params))[0] == expected


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_captured_and_other_steps_of_a_gpu(name: str, tmp_path: Path) -> None:
    """Steps in flight are discarded when forced tokens take the place of theirs."""
    tiny.make(name, tmp_path, vocab_size=128)
    config: dict[str, Any] = {"device": "cuda", "dtype": "float32"}
    plain = tiny.engine(tmp_path, kernels=False, **config)
    for params in (GREEDY, SAMPLED, PARAMS["unproposed"], PARAMS["logprobs"]):
        for prompt in (tiny.random_ids(20), REPEATED):
            engine = tiny.engine(tmp_path, **config)
            assert run(engine, [(prompt, params, None)])[0] == [by_prompts(plain, prompt, params)]

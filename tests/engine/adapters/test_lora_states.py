"""LoRA adapters of models with states against PEFT, in fp32; their states never mix.

Tolerance 1e-4 relative to the largest logit, as in test_lora.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.adapters.tunings import Tunings
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Tokens
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.errors import UsageError
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import adapters, reference, tiny
from tests.support.speculation import use_oracle
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

NUM_TOKENS = 11
OFF = SamplingParams(temperature=0, max_tokens=20, speculate="off")
_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
_MLP = ["gate_proj", "up_proj", "down_proj"]
# Attention, MLP and the projections of mixers. PEFT does not change those of the output in models
# that it knows as Mamba.
TARGETS = {
    "qwen3_next": ["in_proj_qkvz", "in_proj_ba", "out_proj", *_ATTENTION],
    "qwen3_5_text": [
        *("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
        *_ATTENTION,
        *_MLP,
    ],
    "olmo_hybrid": [*_ATTENTION, *_MLP, "g_proj", "b_proj", "a_proj"],
    "lfm2": ["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "w1", "w2", "w3"],
    "granitemoehybrid": ["in_proj", "out_proj", *_ATTENTION],
    "falcon_h1": ["in_proj", *_ATTENTION, *_MLP],
    "mamba": ["in_proj"],
    "jamba": ["in_proj", "out_proj", *_ATTENTION],
}
SETTINGS: tuple[dict[str, Any], ...] = ({}, {"lora_bias": True}, {"use_dora": True})
# For what does not depend on which matrices are changed.
few_mixers = pytest.mark.parametrize("made", ["qwen3_next", "falcon_h1", "lfm2"], indirect=True)
Made = tuple[Path, list[Path], list[torch.Tensor]]


@pytest.fixture(scope="module", params=TARGETS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model, its adapters with these settings, and the logits of PEFT."""
    folder = tmp_path_factory.mktemp(request.param)
    model, paths, found = reference.make_reference(request.param, folder), [], []
    for i, settings in enumerate(SETTINGS):
        path, adapted = adapters.make_adapter(
            folder / str(i), model, i, target_modules=TARGETS[request.param], **settings
        )
        with torch.inference_mode():
            ids = torch.tensor([tiny.random_ids(NUM_TOKENS)])
            found.append(adapted(ids, use_cache=False).logits[0])
        model = adapted.unload()
        paths.append(path)
    return folder, paths, found


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


@tiny.each_backend
def test_logits_equal_peft(made: Made, native: bool) -> None:
    """Each alone, and all in one batch with the base model."""
    folder, paths, expected = made
    ids, engine = tiny.random_ids(NUM_TOKENS), tiny.engine(folder, kernels=native)
    (base,) = adapters.logits(engine, [(ids, None)])
    tunings = [adapters.tuning_of(path) for path in paths]
    for tuning, logits in zip(tunings, expected, strict=True):
        (found,) = adapters.logits(engine, [(ids, tuning)])
        assert_close(found, logits)
        assert (base - logits).abs().max() > 1e-2 * logits.abs().max()
    requests: list[tuple[list[int], Tuning | None]] = [(ids, None), *((ids, t) for t in tunings)]
    together = adapters.logits(tiny.engine(folder, kernels=native), requests)
    for found, logits in zip(together, [base, *expected], strict=True):
        assert_close(found, logits)


def generate(
    engine: Engine,
    prompts: dict[int, list[int]],
    tunings: dict[int, Tuning],
    params: SamplingParams,
) -> dict[int, list[int]]:
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    for key, prompt in prompts.items():
        engine.add(key, list(prompt), params, tuning=tunings.get(key))
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            ids[key] += event.ids if isinstance(event, Tokens) else []
    return ids


@few_mixers
def test_states_are_reused_only_by_the_same_adapters(made: Made) -> None:
    """Turns of one text, each with other adapters; snapshots keep them apart."""
    folder, paths, _ = made
    prompt = tiny.random_ids(13)
    choices: list[dict[int, Tuning]] = [{}, *({1: adapters.tuning_of(path)} for path in paths)]
    alone = [generate(tiny.engine(folder), {1: prompt}, each, OFF)[1] for each in choices]
    assert len({tuple(ids) for ids in alone}) > 2
    engine = tiny.engine(folder)
    for _ in range(2):  # the second time with the prefixes in the cache
        for choice, expected in zip(choices, alone, strict=True):
            assert generate(engine, {1: prompt}, choice, OFF)[1] == expected
    assert engine.stats()["reused_tokens"] >= 4 * 12


@few_mixers
@tiny.each_backend
def test_proposed_tokens_are_verified_with_adapters(made: Made, native: bool) -> None:
    folder, paths, _ = made
    prompts = {i: tiny.random_ids(9, seed=i) for i in range(3)}
    tunings = {1: adapters.tuning_of(paths[0]), 2: adapters.tuning_of(paths[2])}
    plain = generate(tiny.engine(folder, kernels=native), prompts, tunings, OFF)
    engine = use_oracle(tiny.engine(folder, kernels=native), plain)
    assert generate(engine, prompts, tunings, replace(OFF, speculate="auto")) == plain
    assert engine.stats()["computed_tokens"] > 3 * (9 + 20)


@pytest.mark.parametrize("kind", range(len(SETTINGS)))
def test_ranks_have_their_parts_of_an_adapter(made: Made, kind: int) -> None:
    folder, paths, expected = made
    tuning, ids = adapters.tuning_of(paths[kind]), tiny.random_ids(NUM_TOKENS)

    def run(rank: int, communicator: ThreadCommunicator) -> torch.Tensor:
        shard = shard_of(Model.open(folder).config, 2, rank)
        bench = tiny.Bench(folder, shard=shard, ranks=communicator, block_size=16)
        cpu = torch.device("cpu")
        tunings = Tunings(bench.decoder, bench.cache, shard, bench.checkpoint, cpu)
        sequence = TokenSequence(0, ids, tiny.SamplingParams(), tuning=tunings.load(tuning, ()))
        bench.scheduler.add(sequence)
        with torch.inference_mode():
            own = tunings.forward(Batch.pack(bench.scheduler.schedule().rows, 16))
            assert own is not None
            return bench.decoder.ranks.all_gather(own, bench.decoder.config.vocab_size)

    for logits in run_ranks(2, run):
        assert_close(logits[-1], expected[kind][-1])


@few_mixers
def test_soft_prompts_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="soft prompts are not supported"):
        tiny.engine(made[0]).tune(Tuning(soft_prompt=str(tmp_path)))


@pytest.mark.gpu
def test_ids_on_a_gpu_equal_the_cpu(made: Made) -> None:
    """Steps with adapters have no graphs; those without them in between have."""
    folder, paths, _ = made
    prompts = {i: tiny.random_ids(9, seed=i) for i in range(3)}
    tunings = {1: adapters.tuning_of(paths[0]), 2: adapters.tuning_of(paths[2])}
    on_gpu = tiny.engine(folder, device="cuda")
    for choice in (tunings, {}, tunings):
        expected = generate(tiny.engine(folder), prompts, choice, OFF)
        assert generate(on_gpu, prompts, choice, OFF) == expected

"""Two rank processes verify proposed tokens and compute adapters and soft prompts as one does.

On the CPU, on two GPUs, and on one GPU that both share.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.generation.engine import Engine
from swiftchat.errors import OutOfMemory
from tests.support import adapters, one_gpu, tiny
from tests.support.worker_processes import WIDE, collect, inject_fault

pytestmark = pytest.mark.timeout(120)
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.gpus(2)]),
    pytest.param("shared cuda", marks=pytest.mark.gpu),
]
TWO = EngineConfig(dtype="float32", num_threads=1, tp=2, block_size=tiny.BLOCK_SIZE)
# Look-up that knows the answers, with a wrong id in some proposals.
ORACLE = """
from swiftchat.engine.speculation.speculation import Speculation
def looked_up(self, sequence, num_rows):
    most = self._max_proposed(sequence, num_rows) or 0
    key = sequence.params.temperature, tuple(sequence.tokens[: sequence.num_prompt])
    start, length = sequence.num_generated, len(sequence.tokens) % 9
    ids = list(ANSWERS.get(key, ()))[start : start + min(length, most)]
    return [(token + 1) % 128 if (start + i) % 7 == 4 else token for i, token in enumerate(ids)]
Speculation._looked_up = looked_up
"""
PROMPTS = [tiny.random_ids(length, seed=length) for length in (13, 1, 30)]
GREEDY = SamplingParams(temperature=0, max_tokens=60, speculate="off")
SAMPLED = replace(GREEDY, temperature=0.6, top_p=0.95, seed=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tiny.make("llama", path, **WIDE)
    return path


@pytest.fixture(scope="module")
def alone(folder: Path) -> Engine:
    return tiny.engine(folder)


@pytest.fixture(scope="module")
def expected(alone: Engine) -> dict[SamplingParams, list[list[int]]]:
    """Plain decoding of all prompts."""
    numbered = dict(enumerate(PROMPTS))
    return {p: list(tiny.run(alone, numbered, p)[0].values()) for p in (GREEDY, SAMPLED)}


@pytest.fixture(scope="module", params=DEVICES)
def pair(
    request: pytest.FixtureRequest,
    folder: Path,
    expected: dict[SamplingParams, list[list[int]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineClient]:
    answers = {
        (params.temperature, tuple(prompt)): ids
        for params, found in expected.items()
        for prompt, ids in zip(PROMPTS, found, strict=True)
    }
    with pytest.MonkeyPatch.context() as patch:
        code = tmp_path_factory.mktemp("code") / "site"
        device = request.param.removeprefix("shared ")
        share = one_gpu.CODE if device != request.param else ""
        inject_fault(patch, code, None, f"{share}{ORACLE}\nANSWERS = {answers}")
        with EngineClient(replace(TWO, device=device), folder) as running:
            assert running.wait_ready().tp == 2
            yield running


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_verified_ids_are_those_of_plain_decoding(
    pair: EngineClient, expected: dict[SamplingParams, list[list[int]]], params: SamplingParams
) -> None:
    """Each prompt alone, and all of them together."""
    verified = replace(params, speculate="auto")
    for prompt, plain in zip(PROMPTS, expected[params], strict=True):
        before = pair.stats().get("graph_steps")
        ids, end = collect(pair.generate(prompt, verified))
        assert ids == plain
        assert end.speculated is not None and end.speculated.num_accepted > 20
        if before is not None:  # on a GPU all steps but that of the prompt are captured
            num_steps = len(plain) - end.speculated.num_accepted
            assert pair.stats()["graph_steps"] - before >= num_steps - 2
    together = [pair.generate(prompt, verified) for prompt in PROMPTS]
    assert [collect(one)[0] for one in together] == expected[params]
    assert pair.stats()["used_blocks"] == 0


def assert_tuned(pair: EngineClient, alone: Engine, *tunings: Tuning) -> None:
    """Compare answers with and without each tuning, all of them together."""
    requests = [(ids, tuning) for ids in PROMPTS for tuning in (None, *tunings)]
    expected = adapters.greedy(alone, requests)
    params = replace(GREEDY, max_tokens=8)
    for _ in range(2):  # the second time with blocks of the prefix cache
        running = [pair.generate(ids, params, tuning=tuning) for ids, tuning in requests]
        assert [collect(one)[0] for one in running] == expected


SETTINGS: dict[str, list[dict[str, Any]]] = {
    "lora": [{"r": 3}, {"r": 17, "use_rslora": True}],
    "dora": [{"use_dora": True}],
    "saved modules": [{"modules_to_save": ["lm_head", "embed_tokens"]}],
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_adapters(
    pair: EngineClient, alone: Engine, folder: Path, tmp_path: Path, settings: list[dict[str, Any]]
) -> None:
    tunings = []
    for seed, changes in enumerate(settings):
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
        changes = {"target_modules": adapters.targets("llama"), **changes}
        path, _ = adapters.make_adapter(tmp_path / str(seed), reference, seed, **changes)
        tunings.append(adapters.tuning_of(path))
    assert_tuned(pair, alone, *tunings)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_soft_prompts(
    pair: EngineClient, alone: Engine, folder: Path, tmp_path: Path, kind: str
) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
    path, _ = adapters.make_soft_prompt(tmp_path / "prompt", reference, kind, 6)
    assert_tuned(pair, alone, Tuning(soft_prompt=str(path)))


# The first adapter that the rank builds has no memory.
NO_MEMORY = """
from swiftchat.engine.adapters.adapter_set import SetBuilder
build = SetBuilder.build
def fails_once(self, adapters):
    SetBuilder.build = build
    raise MemoryError
SetBuilder.build = fails_once
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_an_adapter_that_one_rank_cannot_load_is_refused_by_all(
    rank: int, alone: Engine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks go on, and load it for the next request."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder)
    targets = adapters.targets("llama")
    path, _ = adapters.make_adapter(tmp_path / "adapter", reference, 0, target_modules=targets)
    tuning, params = adapters.tuning_of(path), replace(GREEDY, max_tokens=8)
    inject_fault(monkeypatch, tmp_path / "site", rank, NO_MEMORY)
    with EngineClient(replace(TWO, device="cpu"), folder) as running:
        running.wait_ready()
        message = "no memory for the adapters" if rank == 0 else "another rank"
        with pytest.raises(OutOfMemory, match=message):
            collect(running.generate(PROMPTS[0], params, tuning=tuning))
        assert_tuned(running, alone, tuning)

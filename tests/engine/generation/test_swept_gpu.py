"""The architectures of `test_sweep` on a GPU, by its kernels or by torch's operators.

`test_engine_gpu` has those of `tiny`.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.weights.model.directory import Model
from tests.support import reference, tiny
from tests.support.gpu_engines import gpu_engine

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.parametrize("name", reference.SWEPT_TYPES)
def test_ids_equal_the_cpu(name: str, tmp_path: Path, cubins: Path) -> None:
    """Greedy in fp32, three sequences together, with decode steps from graphs."""
    reference.copy_reference(name, tmp_path)
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    engine = gpu_engine(tmp_path, cubins, dtype="float32")
    assert (engine.gpu is not None) == kernels_cover(Model.open(tmp_path).config, torch.float32)
    params = SamplingParams(temperature=0, max_tokens=12)
    cpu_engine = tiny.engine(tmp_path)
    on_cpu, _ = tiny.run(cpu_engine, prompts, params)
    found, _ = tiny.run(engine, prompts, params)
    for key, expected in on_cpu.items():
        assert_same_but_for_ties(cpu_engine, prompts[key], found[key], expected)


def assert_same_but_for_ties(
    engine: Engine, prompt: list[int], found: list[int], expected: list[int]
) -> None:
    """Compare up to the first token that has an alternative as probable as it."""
    assert len(found) == len(expected)
    if found == expected:
        return
    pairs = enumerate(zip(found, expected, strict=True))
    first = next(i for i, (one, other) in pairs if one != other)
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=20)
    _, (logprob,) = tiny.logprobs(engine, [*prompt, *expected[:first]], params)
    assert dict(logprob.top)[found[first]] > logprob.logprob - 1e-4

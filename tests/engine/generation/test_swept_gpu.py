"""The architectures of `test_sweep` on a GPU, by its kernels or by torch's operators.

`test_engine_gpu` has those of `tiny`.
"""

from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.model.coverage import kernels_cover
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
    reference.make_reference(name, tmp_path)
    prompts = {i: tiny.random_ids(5 + 13 * i, seed=i) for i in range(3)}
    engine = gpu_engine(tmp_path, cubins, dtype="float32")
    assert (engine.gpu is not None) == kernels_cover(Model.open(tmp_path).config, torch.float32)
    params = SamplingParams(temperature=0, max_tokens=12)
    on_cpu, _ = tiny.run(tiny.engine(tmp_path), prompts, params)
    assert tiny.run(engine, prompts, params)[0] == on_cpu

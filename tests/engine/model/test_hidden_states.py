"""Hidden states of a forward pass, against transformers."""

from pathlib import Path

import pytest
import torch
import transformers

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.model.hidden_states import LAST_NORM, HiddenStates
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from tests.support import tiny
from tests.support.reference import make_reference

NUM_LAYERS = 3
LAYERS = (0, 2, NUM_LAYERS, LAST_NORM)
MODELS = ("llama", "gemma2", "falcon-7b", "olmo2", "granite", "nemotron_h", "qwen3_next")
# Of transformers: Granite's multiplies its branches, the others have states.
REFERENCES = {
    "granite": {"residual_multiplier": 0.4},
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention", "linear_attention"]},
}


def batch(bench: tiny.Bench, ids: list[int]) -> Batch:
    bench.scheduler.add(TokenSequence(1, list(ids), SamplingParams()))
    return Batch.pack(bench.scheduler.schedule().rows, bench.allocator.block_size)


@pytest.fixture(scope="module", params=MODELS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> transformers.PreTrainedModel:
    """A model whose `name_or_path` is its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param in REFERENCES:
        sizes = {"num_hidden_layers": NUM_LAYERS, **REFERENCES[request.param]}
        made = make_reference(request.param, folder, **sizes)
    else:
        made = tiny.make_with_reference(request.param, folder)
    made.name_or_path = str(folder)
    return made


@tiny.each_backend
@torch.inference_mode()
def test_hidden_states_equal_those_of_transformers(
    model: transformers.PreTrainedModel, native: bool
) -> None:
    ids = tiny.random_ids(21, seed=2)
    expected = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    # Prompts of models with states are divided at the end of a block.
    bench = tiny.Bench(Path(model.name_or_path), native=native, block_size=32)
    hidden = HiddenStates(LAYERS)
    bench.decoder.forward(batch(bench, ids), bench.cache, hidden)
    assert hidden.found.keys() == set(LAYERS)
    for layer in (0, 2):
        torch.testing.assert_close(hidden.found[layer], expected[layer][0], rtol=1e-4, atol=1e-4)
    # Transformers gives the last ones after the norm.
    inner = model.base_model
    norm = next(getattr(inner, each) for each in ("norm", "norm_f", "ln_f") if hasattr(inner, each))
    last = norm(hidden.found[NUM_LAYERS])
    torch.testing.assert_close(last, expected[-1][0], rtol=1e-4, atol=1e-4)
    of_logits = expected[-1][0, -1:]
    torch.testing.assert_close(hidden.found[LAST_NORM], of_logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", [(0, 2), (LAST_NORM,)])
@torch.inference_mode()
def test_hidden_states_change_no_bit_of_the_logits(layers: tuple[int, ...], tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    ids = tiny.random_ids(21, seed=2)
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for hidden in (None, HiddenStates(layers)):
            bench = tiny.Bench(tmp_path, native=True, dtype=dtype)
            found.append(bench.decoder.forward(batch(bench, ids), bench.cache, hidden))
        assert torch.equal(*found)

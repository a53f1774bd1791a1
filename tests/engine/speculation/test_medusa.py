"""Medusa heads: their proposals against a reference, and the ids of plain decoding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.comm.communicator import SingleRank
from swiftchat.engine.comm.pipeline import SingleStage
from swiftchat.engine.generation.heads import Heads
from swiftchat.engine.generation.setup import set_up
from swiftchat.errors import BadModelFile, UsageError
from tests.support import heads, tiny
from tests.support.reference import make_reference

OFF = SamplingParams(temperature=0, max_tokens=24, speculate="off")
DRAFT = replace(OFF, speculate="draft")
PROMPTS = {1: tiny.random_ids(30, seed=4), 2: tiny.random_ids(11, seed=5)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    tiny.make("llama", path)
    return path


@pytest.fixture(scope="module")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.write_medusa(tmp_path_factory.mktemp("medusa"), heads.medusa_tensors())


@torch.inference_mode()
def reference(
    model: transformers.PreTrainedModel, tensors: dict[str, Tensor], ids: list[int]
) -> list[Tensor]:
    """Return the fp64 logits of each head, given the tokens whose last one is not computed yet."""
    hidden = model.base_model(torch.tensor([ids[:-1]])).last_hidden_state[0, -1].double()
    found = []
    for head in range(3):
        x = hidden
        for block in range(2):
            name = f"{head}.{block}.linear."
            weight, bias = tensors[f"{name}weight"].double(), tensors[f"{name}bias"].double()
            x = x + F.silu(weight @ x + bias)
        found.append(tensors[f"{head}.2.weight"].double() @ x)
    return found


@tiny.each_backend
def test_proposals_are_those_of_the_reference(folder: Path, medusa: Path, native: bool) -> None:
    """Two sequences, of which one prompt is computed in chunks; nearly all tokens are rejected."""
    engine = tiny.engine(folder, draft=str(medusa), kernels=native, num_threads=1, chunk_tokens=16)
    proposals = heads.propose_always(engine)
    _, ends = tiny.run(engine, PROMPTS, DRAFT)
    assert ends[1].speculated.proposer == "medusa"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert len(proposals) > 30
    tensors = heads.medusa_tensors()
    for tokens, proposed in proposals[::5]:
        logits = reference(model, tensors, tokens)[: len(proposed)]
        assert proposed
        for token, expected in zip(proposed, logits, strict=True):
            assert expected[token] > expected.max() - 1e-3


@pytest.mark.parametrize(
    ("name", "native"),
    [("falcon-7b", False), *((name, True) for name in ("llama", "gemma2", "bloom", "qwen2-moe"))],
)
def test_ids_are_those_of_plain_decoding(
    name: str, native: bool, medusa: Path, tmp_path: Path
) -> None:
    tiny.make(name, tmp_path)
    sampled = replace(OFF, temperature=0.8, seed=3, max_tokens=12)
    engine = tiny.engine(tmp_path, draft=str(medusa), kernels=native, num_threads=1)
    heads.propose_always(engine)
    plain = tiny.engine(tmp_path, kernels=native, num_threads=1)
    for params in (replace(OFF, max_tokens=12), sampled):
        expected, _ = tiny.run(plain, PROMPTS, params)
        ids, ends = tiny.run(engine, PROMPTS, replace(params, speculate="draft"))
        assert ids == expected
        assert ends[1].speculated.num_proposed > 0
    assert engine.allocator.num_used == 0


def test_heads_that_are_right(folder: Path, tmp_path: Path) -> None:
    """A bias lets the model choose one id only; the biases of a block let each head do so."""
    tensors = {name: torch.zeros_like(x) for name, x in heads.medusa_tensors().items()}
    for head in range(3):
        tensors[f"{head}.1.linear.bias"][:] = 1e4
        tensors[f"{head}.2.weight"][7] = 1.0
    engine = tiny.engine(folder, draft=str(heads.write_medusa(tmp_path, tensors)))
    heads.propose_always(engine)
    ids, ends = tiny.run(engine, {1: PROMPTS[1]}, replace(DRAFT, logit_bias=((7, 100.0),)))
    assert ids[1] == [7] * 24
    assert ends[1].speculated.acceptance_rate == 1
    assert ends[1].speculated.mean_accepted > 2


def test_files_of_torch_with_a_prefix_and_more_heads(folder: Path, tmp_path: Path) -> None:
    tensors = heads.medusa_tensors(num_heads=4)
    heads.write_medusa(tmp_path, {})
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    named = {f"medusa_head.{name}": tensor.bfloat16() for name, tensor in tensors.items()}
    torch.save(named, tmp_path / "medusa_lm_head.pt")
    engine = tiny.engine(folder, draft=str(tmp_path))
    proposals = heads.propose_always(engine)
    tiny.run(engine, PROMPTS, DRAFT)
    assert max(len(proposed) for _, proposed in proposals) == 3


def test_no_hidden_states_without_a_need(folder: Path, medusa: Path) -> None:
    engine = tiny.engine(folder, draft=str(medusa))
    expected, _ = tiny.run(tiny.engine(folder), PROMPTS, OFF)
    speculation = engine.speculation
    speculation.observe = None  # type: ignore[assignment]  # an observation would raise
    assert tiny.run(engine, PROMPTS, OFF)[0] == expected
    assert tiny.run(engine, PROMPTS, replace(OFF, speculate="ngram"))[0] == expected


def changed(name: str, tensor: Tensor | None) -> dict[str, Tensor]:
    tensors = heads.medusa_tensors()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    return tensors


BLOCK, HEAD = "1.0.linear.weight", "2.2.weight"
DAMAGED = {
    "missing": (changed(BLOCK, None), {}, f"no tensor {BLOCK}"),
    "wide": (changed(BLOCK, torch.zeros(48, 64)), {}, r"expected \[48, 48\], found \[48, 64\]"),
    "vocabulary": (
        changed(HEAD, torch.zeros(96, 48)),
        {},
        r"expected \[97, 48\], found \[96, 48\]",
    ),
    "integers": (changed(BLOCK, torch.zeros(48, 48, dtype=torch.int64)), {}, "found I64"),
    "nan": (changed(HEAD, torch.full((97, 48), float("nan"))), {}, "finite numbers"),
    "more heads": (heads.medusa_tensors(), {"medusa_num_heads": 4}, "no tensor 3.0.linear"),
    "no number": (heads.medusa_tensors(), {"medusa_num_heads": -1}, "medusa_num_heads must be"),
    "no blocks": (heads.medusa_tensors(), {"medusa_num_layers": None}, "medusa_num_layers is mis"),
}


@pytest.mark.parametrize(("tensors", "config", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(
    folder: Path,
    tmp_path: Path,
    tensors: dict[str, Tensor],
    config: dict[str, int],
    message: str,
) -> None:
    heads.write_medusa(tmp_path, tensors, **config)
    with pytest.raises(BadModelFile, match=message) as caught:
        tiny.engine(folder, draft=str(tmp_path))
    assert caught.value.exit_code == 7 and "\n" not in caught.value.message


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    heads.write_medusa(tmp_path, heads.medusa_tensors())
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(BadModelFile, match="has none of medusa_lm_head"):
        tiny.engine(folder, draft=str(tmp_path))


def test_a_gpu_is_refused(folder: Path, medusa: Path) -> None:
    config = EngineConfig(device="cpu", dtype="float32", draft=str(medusa))
    setup = set_up(folder, config, None, SingleRank(), SingleStage())
    with pytest.raises(UsageError, match="need hidden states, which captured steps on a GPU do no"):
        Heads.open(replace(setup, device=torch.device("cuda")))


def test_a_model_with_states_is_refused(medusa: Path, tmp_path: Path) -> None:
    make_reference("lfm2", tmp_path)
    with pytest.raises(UsageError, match="has states, which cannot forget rejected tokens"):
        tiny.engine(tmp_path, draft=str(medusa))

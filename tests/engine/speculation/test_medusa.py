"""Medusa heads: their proposals against a reference, and the ids of plain decoding."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from swiftchat.errors import BadModelFile
from tests.support import heads, tiny
from tests.support.reference import copy_reference

PROMPTS = {1: tiny.random_ids(30, seed=4), 2: tiny.random_ids(11, seed=5)}


@pytest.fixture(scope="module")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.write_medusa(tmp_path_factory.mktemp("medusa"), heads.medusa_tensors())


@torch.inference_mode()
def reference(
    model: transformers.PreTrainedModel, tensors: dict[str, Tensor], ids: list[int], num_blocks: int
) -> list[Tensor]:
    """Return the fp64 logits of each head, given the tokens whose last one is not computed yet."""
    hidden = model.base_model(torch.tensor([ids[:-1]])).last_hidden_state[0, -1].double()
    found = []
    for head in range(3):
        x = hidden
        for block in range(num_blocks):
            name = f"{head}.{block}.linear."
            weight, bias = tensors[f"{name}weight"].double(), tensors[f"{name}bias"].double()
            x = x + F.silu(weight @ x + bias)
        found.append(tensors[f"{head}.{num_blocks}.weight"].double() @ x)
    return found


def assert_of_reference(
    proposals: Sequence[heads.Proposal], llama: Path, tensors: dict[str, Tensor], num_blocks: int
) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
    for tokens, proposed in proposals:
        logits = reference(model, tensors, tokens, num_blocks)[: len(proposed)]
        assert proposed
        for token, expected in zip(proposed, logits, strict=True):
            assert expected[token] > expected.max() - 1e-3


@tiny.each_backend
def test_proposals_are_those_of_the_reference(llama: Path, medusa: Path, native: bool) -> None:
    """Two sequences, of which one prompt is computed in chunks; nearly all tokens are rejected."""
    engine = tiny.engine(llama, draft=str(medusa), kernels=native, num_threads=1, chunk_tokens=16)
    proposals = heads.propose_always(engine)
    _, ends = tiny.run(engine, PROMPTS, heads.DRAFT)
    assert ends[1].speculated.proposer == "medusa"
    assert len(proposals) > 30
    assert_of_reference(proposals[::5], llama, heads.medusa_tensors(), 2)


def test_heads_without_blocks(llama: Path, tmp_path: Path) -> None:
    tensors = heads.medusa_tensors(num_blocks=0)
    folder = heads.write_medusa(tmp_path, tensors, medusa_num_layers=0)
    engine = tiny.engine(llama, draft=str(folder))
    proposals = heads.propose_always(engine)
    tiny.run(engine, {2: PROMPTS[2]}, heads.DRAFT)
    assert len(proposals) > 10
    assert_of_reference(proposals[::5], llama, tensors, 0)


@heads.on_some_models
def test_ids_are_those_of_plain_decoding(
    name: str, native: bool, medusa: Path, tmp_path: Path
) -> None:
    heads.assert_plain_ids(name, native, medusa, PROMPTS, tmp_path)


def test_heads_that_are_right(llama: Path, tmp_path: Path) -> None:
    """A bias lets the model choose one id only; the biases of a block let each head do so."""
    tensors = {name: torch.zeros_like(x) for name, x in heads.medusa_tensors().items()}
    for head in range(3):
        tensors[f"{head}.1.linear.bias"][:] = 1e4
        tensors[f"{head}.2.weight"][7] = 1.0
    engine = tiny.engine(llama, draft=str(heads.write_medusa(tmp_path, tensors)))
    heads.propose_always(engine)
    ids, ends = tiny.run(engine, {1: PROMPTS[1]}, replace(heads.DRAFT, logit_bias=((7, 100.0),)))
    assert ids[1] == [7] * 24
    assert ends[1].speculated.acceptance_rate == 1
    assert ends[1].speculated.mean_accepted > 2


def test_files_of_torch_with_a_prefix_and_more_heads(llama: Path, tmp_path: Path) -> None:
    tensors = heads.medusa_tensors(num_heads=4)
    heads.write_medusa(tmp_path, {})
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    named = {f"medusa_head.{name}": tensor.bfloat16() for name, tensor in tensors.items()}
    torch.save(named, tmp_path / "medusa_lm_head.pt")
    engine = tiny.engine(llama, draft=str(tmp_path))
    proposals = heads.propose_always(engine)
    tiny.run(engine, PROMPTS, heads.DRAFT)
    assert max(len(proposed) for _, proposed in proposals) == 3


BLOCK, HEAD = "1.0.linear.weight", "2.2.weight"
TENSORS = heads.medusa_tensors()
DAMAGED = {
    "missing": (heads.changed(TENSORS, BLOCK, None), {}, f"no tensor {BLOCK}"),
    "wide": (
        heads.changed(TENSORS, BLOCK, torch.zeros(48, 64)),
        {},
        r"expected \[48, 48\], found \[48, 64\]",
    ),
    "vocabulary": (
        heads.changed(TENSORS, HEAD, torch.zeros(96, 48)),
        {},
        r"expected \[97, 48\], found \[96, 48\]",
    ),
    "integers": (
        heads.changed(TENSORS, BLOCK, torch.zeros(48, 48, dtype=torch.int64)),
        {},
        "found I64",
    ),
    "nan": (heads.changed(TENSORS, HEAD, torch.full((97, 48), float("nan"))), {}, "finite numbers"),
    "more heads": (TENSORS, {"medusa_num_heads": 4}, "no tensor 3.0.linear"),
    "no number": (TENSORS, {"medusa_num_heads": -1}, "medusa_num_heads must be"),
    "no blocks": (TENSORS, {"medusa_num_layers": None}, "medusa_num_layers is mis"),
}


@pytest.mark.parametrize(("tensors", "config", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(
    llama: Path,
    tmp_path: Path,
    tensors: dict[str, Tensor],
    config: dict[str, int],
    message: str,
) -> None:
    heads.write_medusa(tmp_path, tensors, **config)
    heads.assert_refused(llama, tmp_path, message)


def test_missing_files(llama: Path, tmp_path: Path) -> None:
    heads.write_medusa(tmp_path, heads.medusa_tensors())
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    with pytest.raises(BadModelFile, match="has none of medusa_lm_head"):
        tiny.engine(llama, draft=str(tmp_path))


@pytest.mark.gpu
def test_proposals_on_a_gpu(llama: Path, medusa: Path) -> None:
    """They are those on the CPU, after the same tokens."""
    found = []
    for device in ("cpu", "cuda"):
        engine = tiny.engine(llama, draft=str(medusa), device=device)
        proposals = heads.propose_always(engine)
        params = replace(heads.DRAFT, speculate_tokens=2)
        found.append((tiny.run(engine, PROMPTS, params)[0], proposals))
    assert found[0] == found[1]


@pytest.mark.gpu
@heads.on_a_gpu
def test_ids_on_a_gpu(name: str, medusa: Path, tmp_path: Path) -> None:
    heads.assert_plain_ids(name, True, medusa, PROMPTS, tmp_path, device="cuda")


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "nemotron_h", "lfm2"])
def test_ids_of_models_with_states(model_type: str, medusa: Path, tmp_path: Path) -> None:
    copy_reference(model_type, tmp_path)
    heads.assert_plain_ids_of(tmp_path, medusa, PROMPTS)


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", ["lfm2", "qwen3_next", "granitemoehybrid"])
def test_ids_of_models_with_states_on_a_gpu(model_type: str, medusa: Path, tmp_path: Path) -> None:
    copy_reference(model_type, tmp_path)
    heads.assert_plain_ids_of(tmp_path, medusa, PROMPTS, device="cuda")

"""Files of random prediction heads for the tiny models, and what tests of all kinds check."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.gpu.steps.head_chain import HeadChain
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.errors import BadModelFile
from tests.support import tiny
from tests.support.tiny_models import VOCAB_SIZE

WIDTH = 48  # the hidden size of the tiny models
MEDUSA_CONFIG: Mapping[str, Any] = {"medusa_num_heads": 3, "medusa_num_layers": 2}

EAGLE3_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5000.0,
    "vocab_size": VOCAB_SIZE,
    "draft_vocab_size": 40,
    "max_position_embeddings": 256,
}

OFF = SamplingParams(temperature=0, max_tokens=24, speculate="off")
DRAFT = replace(OFF, speculate="draft")
on_some_models = pytest.mark.parametrize(
    ("name", "native"),
    [("falcon-7b", False), *((name, True) for name in ("llama", "gemma2", "bloom", "qwen2-moe"))],
)
on_a_gpu = pytest.mark.parametrize("name", ["llama", "gemma2", "bloom", "qwen2-moe"])

Proposal = tuple[list[int], list[int]]


def medusa_tensors(num_heads: int = 3, num_blocks: int = 2, seed: int = 0) -> dict[str, Tensor]:
    """Return random tensors in the layout of Medusa's `medusa_lm_head.pt`."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random) * 0.3

    tensors = {}
    for head in range(num_heads):
        for block in range(num_blocks):
            tensors[f"{head}.{block}.linear.weight"] = normal(WIDTH, WIDTH)
            tensors[f"{head}.{block}.linear.bias"] = normal(WIDTH)
        tensors[f"{head}.{num_blocks}.weight"] = normal(VOCAB_SIZE, WIDTH)
    return tensors


def write_medusa(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**MEDUSA_CONFIG, **config}))
    save_file(dict(tensors), folder / "medusa_lm_head.safetensors")
    return folder


def eagle3_tensors(seed: int = 0, head_dim: int = 16) -> dict[str, Tensor]:
    """Return random tensors for `EAGLE3_CONFIG`; the head's tokens are every second id."""
    random = torch.Generator().manual_seed(seed)
    shapes = {
        "fc.weight": (WIDTH, 3 * WIDTH),
        "midlayer.self_attn.q_proj.weight": (4 * head_dim, 2 * WIDTH),
        "midlayer.self_attn.k_proj.weight": (2 * head_dim, 2 * WIDTH),
        "midlayer.self_attn.v_proj.weight": (2 * head_dim, 2 * WIDTH),
        "midlayer.self_attn.o_proj.weight": (WIDTH, 4 * head_dim),
        "midlayer.mlp.gate_proj.weight": (64, WIDTH),
        "midlayer.mlp.up_proj.weight": (64, WIDTH),
        "midlayer.mlp.down_proj.weight": (WIDTH, 64),
        "lm_head.weight": (40, WIDTH),
        **{
            f"{name}.weight": (WIDTH,)
            for name in (
                *("midlayer.input_layernorm", "midlayer.hidden_norm"),
                *("midlayer.post_attention_layernorm", "norm"),
            )
        },
    }
    tensors = {
        name: torch.randn(shape, generator=random) * (0.2 if len(shape) > 1 else 1.0)
        for name, shape in shapes.items()
    }
    ids = 2 * torch.arange(40) + 3
    tensors["d2t"] = ids - torch.arange(40)
    tensors["t2d"] = torch.isin(torch.arange(VOCAB_SIZE), ids)
    return tensors


def write_eagle3(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """Write a head; options of None are left out of config.json."""
    folder.mkdir(exist_ok=True)
    settings = {**EAGLE3_CONFIG, **config}
    present = {key: value for key, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(present))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def is_captured(engine: Engine) -> bool:
    """Return whether CUDA graphs compute the proposals of a head."""
    proposer: Any = engine.speculation._draft
    return isinstance(getattr(proposer._chain, "__self__", None), HeadChain)


def propose_always(engine: Engine) -> list[Proposal]:
    """Let an engine's draft or heads propose as many tokens as they may, at any cost.

    Returns a list that gets each proposal and the sequence's tokens before it.
    """
    speculation, found = engine.speculation, list[Proposal]()
    proposer = speculation._draft
    assert proposer is not None
    speculation.costs.slope, speculation._measures = 0.0, False
    propose = proposer.propose

    def recorded(sequence: TokenSequence, num_tokens: int) -> list[int]:
        found.append((list(sequence.tokens), propose(sequence, num_tokens)))
        return found[-1][1]

    def number(sequence: TokenSequence, num_rows: int) -> int:
        most = speculation._max_proposed(sequence, num_rows)
        return max(0, most or 0) if speculation._may_draft(sequence) else 0

    proposer.propose = recorded  # type: ignore[method-assign]
    speculation._num_drafted = number  # type: ignore[method-assign]
    return found


def changed(
    tensors: Mapping[str, Tensor], name: str, tensor: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the tensors with another one of this name, or without it."""
    others = {each: value for each, value in tensors.items() if each != name}
    return others if tensor is None else {**others, name: tensor}


def assert_plain_ids(
    name: str,
    native: bool,
    draft: Path,
    prompts: Mapping[int, list[int]],
    folder: Path,
    device: str = "cpu",
) -> None:
    """Assert that a tiny model made in `folder` gives the same ids with and without the heads."""
    tiny.make(name, folder)
    assert_plain_ids_of(folder, draft, prompts, native, device)


def assert_plain_ids_of(
    folder: Path,
    draft: Path,
    prompts: Mapping[int, list[int]],
    native: bool = True,
    device: str = "cpu",
) -> None:
    """Assert that the model in `folder` gives the same ids with and without the heads."""
    sampled = replace(OFF, temperature=0.8, seed=3, max_tokens=12)
    options: dict[str, Any] = {"kernels": native, "num_threads": 1, "device": device}
    engine = tiny.engine(folder, draft=str(draft), **options)
    propose_always(engine)
    plain = tiny.engine(folder, **options)
    for params in (replace(OFF, max_tokens=12), sampled):
        expected, _ = tiny.run(plain, dict(prompts), params)
        ids, ends = tiny.run(engine, dict(prompts), replace(params, speculate="draft"))
        assert ids == expected
        assert ends[1].speculated.num_proposed > 0
    assert engine.allocator.num_used == 0


def assert_refused(folder: Path, draft: Path, message: str) -> None:
    """Assert that the model of `folder` refuses heads with one line and a hint."""
    with pytest.raises(BadModelFile, match=message) as caught:
        tiny.engine(folder, draft=str(draft))
    assert caught.value.exit_code == 7 and "\n" not in caught.value.message
    assert caught.value.hint

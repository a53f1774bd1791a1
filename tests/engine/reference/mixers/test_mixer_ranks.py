"""Ranks that divide mixers with a state give the ids and logits of one rank.

Tolerance of logits 3e-4 relative to the largest one: at the first tokens, whose outputs of states
are small before their norm, one rank differs from transformers by up to 7e-5.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.model.state_cache import bytes_per_sequence
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import reference, tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import models as gguf_models
from tests.support.thread_communicator import ThreadCommunicator, run_ranks
from tests.support.worker_processes import assert_equals_single_rank

GREEDY = SamplingParams(temperature=0, max_tokens=6)
PROMPT = tiny.random_ids(22, seed=1)
_ONE_GROUP = {"mamba_n_groups": 1}
_EIGHT_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2}
# Model types with the changes of sizes, and numbers of ranks: all kinds of mixers, and key heads or
# groups of heads that several ranks share.
DIVIDED = {
    "short convolution": ("lfm2", {}, 2),
    "gated DeltaNet": ("qwen3_next", {}, 2),
    "a shared key head, rows by key head": ("qwen3_next", {"linear_num_key_heads": 1}, 2),
    "a shared key head, separate tensors": ("qwen3_5_text", {"linear_num_key_heads": 1}, 2),
    "two shared key heads": ("qwen3_next", _EIGHT_HEADS, 4),
    "tensors of q, k and v": ("olmo_hybrid", {}, 2),
    "Kimi Delta Attention": ("kimi_linear", {}, 2),
    "Mamba-2": ("nemotron_h", {}, 2),
    "a norm of one group": ("granitemoehybrid", _ONE_GROUP, 2),
    "a norm of one group before the gate": (
        *("falcon_h1", {**_ONE_GROUP, "mamba_norm_before_gate": True}),
        2,
    ),
    "norms of two groups": ("mamba2", {}, 8),
    "Mamba with norms": ("jamba", {}, 2),
    "Mamba alone": ("falcon_mamba", {}, 4),
}
# For what does not depend on the layout of the tensors: one of each mixer.
_MIXERS = ("short convolution", "gated DeltaNet", "Kimi Delta Attention", "Mamba-2")
each_mixer = pytest.mark.parametrize(
    "divided", [DIVIDED[name] for name in _MIXERS], ids=_MIXERS, indirect=True
)


@pytest.fixture(scope="module", params=DIVIDED.values(), ids=DIVIDED)
def divided(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A folder with a model, its number of ranks, and the logits of transformers."""
    model_type, changes, size = request.param
    folder = tmp_path_factory.mktemp(model_type)
    expected = reference.copy_reference(model_type, folder, **changes)
    return folder, size, expected


def close(logits: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((logits - expected).abs().max() <= 3e-4 * expected.abs().max())


def test_ranks_equal_transformers(divided) -> None:
    """Prompts in chunks and decode steps."""
    folder, size, expected = divided
    config, ids = Model.open(folder).config, reference.prompt_ids()

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[torch.Tensor, torch.Tensor]:
        shard = shard_of(config, size, rank)
        chunks = tiny.Bench(folder, shard=shard, ranks=ranks, chunk_tokens=7)
        return chunks.last_logits(ids), tiny.Bench(folder, shard=shard, ranks=ranks).logits(ids)

    for last, all_logits in run_ranks(size, run):
        assert close(last, expected[-1]) and close(all_logits, expected)


def test_ranks_have_a_part_of_the_states(divided) -> None:
    folder, size, _ = divided
    config = Model.open(folder).config
    whole = bytes_per_sequence(config)
    parts = [bytes_per_sequence(shard_of(config, size, rank).local_config) for rank in range(size)]
    assert len(set(parts)) == 1 and whole <= size * parts[0] < 2 * whole


Turn = tuple[list[int], int]


def turns(engine, prompts: Sequence[list[int]], *params: SamplingParams) -> list[Turn]:
    """Return answers and numbers of cached tokens; the prompts take the parameters in turn."""
    found = []
    for prompt, chosen in zip(prompts, cycle(params), strict=False):
        ids, ends = tiny.run(engine, {1: prompt}, chosen)
        end = ends[1]
        assert isinstance(end, Finished), end
        found.append((ids[1], end.cached_tokens))
    return found


@each_mixer
def test_turns_regeneration_and_undo_equal_one_rank(divided) -> None:
    """With greedy and sampled answers in turn."""
    folder, size, _ = divided
    params = GREEDY, replace(GREEDY, temperature=0.9, seed=5)
    whole = tiny.engine(folder, chunk_tokens=7)
    ((answer, _),) = turns(whole, [PROMPT], *params)
    second = PROMPT + answer + tiny.random_ids(9, seed=8)
    undone = PROMPT + answer + tiny.random_ids(5, seed=9)
    prompts = [PROMPT, second, second, undone, [*PROMPT[:-1], PROMPT[-1] ^ 1, 7]]
    expected = turns(tiny.engine(folder, chunk_tokens=7), prompts, *params)
    assert [cached > 0 for _, cached in expected] == [False, True, True, True, True]
    config = EngineConfig(
        device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=7, tp=size
    )

    def run(rank: int, ranks: ThreadCommunicator) -> list[Turn]:
        return turns(build_engine(folder, config, ranks=ranks), prompts, *params)

    assert run_ranks(size, run) == [expected] * size


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "kimi_linear"])
def test_rank_files_equal_whole_files(model_type: str, tmp_path: Path) -> None:
    expected = reference.copy_reference(model_type, tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "parts", tp=2)
    config = Model.open(tmp_path / "parts").config

    def run(rank: int, ranks: ThreadCommunicator) -> torch.Tensor:
        shard = shard_of(config, 2, rank)
        bench = tiny.Bench(tmp_path / "parts", shard=shard, ranks=ranks)
        return bench.last_logits(reference.prompt_ids())

    assert all(close(logits, expected[-1]) for logits in run_ranks(2, run))


@each_mixer
def test_dummy_weights_of_ranks_are_those_of_one_model(divided) -> None:
    folder, size, _ = divided
    settings = EngineConfig(
        device="cpu", dtype="float32", dummy=str(folder / "config.json"), kernels=False
    )
    (expected,) = turns(build_engine(Path(), settings), [PROMPT], GREEDY)

    def run(rank: int, ranks: ThreadCommunicator) -> list[Turn]:
        engine = build_engine(Path(), replace(settings, tp=size), ranks=ranks)
        return turns(engine, [PROMPT], GREEDY)

    assert run_ranks(size, run) == [[expected]] * size


def test_worker_processes_equal_one_rank(tmp_path: Path) -> None:
    """Greedy and sampled, alone and together, also with tokens that look-up proposes."""
    reference.copy_reference("qwen3_next", tmp_path)
    config = EngineConfig(
        device="cpu", dtype="float32", block_size=tiny.BLOCK_SIZE, chunk_tokens=16, tp=2
    )
    with EngineClient(config, tmp_path) as client:
        assert_equals_single_rank(client, tmp_path, 24)


# Sizes with whole blocks of 32 columns, also of a rank's part.
_BLOCKS = {"hidden_size": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
_BLOCKS_OF_EXPERTS = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
QUANTIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen35": ("qwen3_5_text", _BLOCKS),
    "qwen3next": ("qwen3_next", {**_BLOCKS, **_BLOCKS_OF_EXPERTS}),
    "mamba2": ("mamba2", {"hidden_size": 64, "head_dim": 16}),
    "lfm2": ("lfm2", {"hidden_size": 64, "block_auto_adjust_ff_dim": False}),
}


@pytest.mark.parametrize("arch", QUANTIZED)
def test_ranks_divide_quantized_mixers_of_a_gguf_file(arch: str, tmp_path: Path) -> None:
    model_type, sizes = QUANTIZED[arch]
    reference.copy_reference(model_type, tmp_path / "theirs", **sizes)
    path, q8 = tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0
    gguf_models.write(path, tmp_path / "theirs", arch, raw_type=q8)
    convert(path, tmp_path / "ours", dtype="float32")
    folder = gguf_directory.of_file(path, tmp_path / "folder", dtype="float32")
    config, ids = Model.open(folder).config, tiny.random_ids(12)

    def run(rank: int, ranks: ThreadCommunicator) -> tuple[torch.Tensor, bool]:
        bench = tiny.Bench(folder, shard=shard_of(config, 2, rank), ranks=ranks, native=True)
        mixer = bench.decoder.weights.layers[0].mixer
        assert mixer is not None
        is_quantized = mixer.project_in.is_quantized and mixer.project_out.is_quantized
        return bench.last_logits(ids), is_quantized

    expected = tiny.Bench(tmp_path / "ours").last_logits(ids)
    for logits, is_quantized in run_ranks(2, run):
        assert close(logits, expected) and is_quantized

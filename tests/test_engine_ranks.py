"""Several ranks against one, on the same tiny random weights of every family, in fp32.

Tolerance 1e-5 relative to the largest logit: the same products, added up in another order.
"""

from pathlib import Path

import pytest
import tiny
import torch
from lockstep import ThreadRanks, in_lockstep

from swiftchat.engine.params import SamplingParams
from swiftchat.engine.scheduler import Sequence
from swiftchat.weights.model import Model
from swiftchat.weights.tensor_parallel import share_of

NUM_PROMPT = 9
NUM_NEW = 64
EIGHT_HEADS = {"num_attention_heads": 8, "n_head": 8, "hidden_size": 64, "n_embd": 64}
# One of every way in which heads, rows and columns lie in the file.
DIVIDED = (
    "llama-tied",
    "llama-biases",
    "phi3",
    "olmo2",
    "qwen3",
    "glm4",
    "gemma",
    "gpt2",
    "gpt-j",
    "gpt-neox",
    "opt-350m",
    "bloom",
    "falcon-7b",
    "falcon-40b",
    "mixtral",
)


@torch.inference_mode()
def greedy(bench: tiny.Bench) -> tuple[list[int], torch.Tensor]:
    """The likeliest ids after a prompt, and the logits they were chosen from."""
    sequence = Sequence(0, tiny.random_ids(NUM_PROMPT, seed=7), SamplingParams())
    bench.scheduler.add(sequence)
    rows = []
    for _ in range(NUM_NEW):
        rows.append(bench.step()[0])
        sequence.tokens.append(int(rows[-1].argmax()))
    bench.scheduler.remove(sequence)
    return sequence.tokens[NUM_PROMPT:], torch.stack(rows)


def assert_ranks_equal_one(folder: Path, tp: int, sliced: Path | None = None) -> list[tiny.Bench]:
    ids, logits = greedy(tiny.Bench(folder))
    config = Model.open(folder).config

    def run(rank: int, ranks: ThreadRanks) -> tuple[tiny.Bench, list[int], torch.Tensor]:
        share = share_of(config, tp, rank)
        bench = tiny.Bench(sliced or folder, share=share, ranks=ranks)
        return bench, *greedy(bench)

    benches = []
    for bench, rank_ids, rank_logits in in_lockstep(tp, run):
        assert rank_ids == ids
        error = (rank_logits - logits).abs().max() / logits.abs().max()
        assert error <= 1e-5, error
        benches.append(bench)
    return benches


@pytest.mark.parametrize("name", [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED])
def test_two_ranks_equal_one(name: str, tmp_path: Path) -> None:
    tiny.make(name, tmp_path)
    assert_ranks_equal_one(tmp_path, 2)


@pytest.mark.parametrize("name", DIVIDED)
def test_four_ranks_with_shared_key_heads_equal_one(name: str, tmp_path: Path) -> None:
    """One or two key heads, where the family has groups: each is on four ranks or two."""
    tiny.make(name, tmp_path, **EIGHT_HEADS)
    assert_ranks_equal_one(tmp_path, 4)

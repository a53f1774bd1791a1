"""LoRA adapters against PEFT on the same random models, in fp32.

Tolerance 1e-4 relative to the largest logit, as in test_architectures.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from swiftchat.engine.adapters.tunings import MAX_SETS, Tunings
from swiftchat.engine.api.tuning import Tuning
from swiftchat.engine.schedule.batch import Batch
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.errors import BadModelFile, ContextOverflow, UsageError
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support import adapters, tiny
from tests.support.thread_communicator import ThreadCommunicator, run_ranks

NUM_TOKENS = 11
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2-patterns": (
        "qwen2",
        {
            "rank_pattern": {"q_proj": 7, r"layers\.1\.mlp\.up_proj": 1},
            "alpha_pattern": {"layers.[02].self_attn.v_proj": 20},
            "use_rslora": True,
            "layers_to_transform": [0, 1],
        },
    ),
    "gemma2-expression": ("gemma2", {"target_modules": r".*\.(1|2)\.(mlp|self_attn)\..*_proj"}),
    "gpt2": ("gpt2", {"fan_in_fan_out": True, "bias": "lora_only"}),
    "gpt-neox": ("gpt-neox", {"lora_bias": True, "modules_to_save": ["embed_out"]}),
    "phi3-all-linear": ("phi3", {"target_modules": "all-linear"}),
    "glm-dora": ("glm", {"use_dora": True, "target_modules": ["q_proj", "k_proj", "down_proj"]}),
    "qwen2-dora": ("qwen2", {"use_dora": True}),
    "gpt2-dora": ("gpt2", {"fan_in_fan_out": True, "use_dora": True}),
    "gemma2-embeddings": ("gemma2", {"target_modules": ["embed_tokens", "q_proj"]}),
    "llama-embeddings": (
        "llama",
        {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
    ),
    "llama-tokens": ("llama", {"trainable_token_indices": [5, 7, 30]}),
    # Its head is tied, so that it changes too.
    "gemma2-tokens": ("gemma2", {"trainable_token_indices": {"embed_tokens": [9, 2]}}),
    "llama-tying": ("llama", {"ensure_weight_tying": True}),
    "llama-saved": ("llama", {"modules_to_save": ["embed_tokens", "lm_head", "v_proj"]}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_peft(case: str, tmp_path: Path) -> None:
    family, settings = CASES[case]
    reference = tiny.make_with_reference(family, tmp_path)
    settings = {"target_modules": adapters.targets(family), **settings}
    folder, model = adapters.make_adapter(tmp_path / "adapter", reference, **settings)
    ids = tiny.random_ids(NUM_TOKENS)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
    for kernels in (True, False):
        engine = tiny.engine(tmp_path, kernels=kernels)
        (ours,) = adapters.logits(engine, [(ids, adapters.tuning_of(folder))])
        assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
        (base,) = adapters.logits(engine, [(ids, None)])
        assert (base - expected).abs().max() > 1e-2 * expected.abs().max()


def test_weighted_sets_add_changes_and_zero_is_the_base(tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    one, model = adapters.make_adapter(tmp_path / "a", reference, target_modules="all-linear")
    model.unload()
    two, model = adapters.make_adapter(
        tmp_path / "b", reference, seed=1, r=3, target_modules=["q_proj", "up_proj"]
    )
    model.load_adapter(one, "other")
    names = ["default", "other"]
    model.add_weighted_adapter(names, [0.5, -2.0], "both", combination_type="cat")
    model.set_adapter("both")
    ids = tiny.random_ids(NUM_TOKENS)
    with torch.inference_mode():
        expected = model(torch.tensor([ids])).logits[0]
        plain = model.unload()(torch.tensor([ids])).logits[0]
    engine = tiny.engine(tmp_path)
    both = adapters.tuning_of(two, one, scales=[0.5, -2.0])
    off = adapters.tuning_of(two, one, scales=[0.0, 0.0])
    tuned, zero = adapters.logits(engine, [(ids, both), (ids, off)])
    assert (tuned - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert (zero - plain).abs().max() <= 1e-4 * plain.abs().max()


@tiny.each_backend
def test_sequences_of_a_batch_have_their_own_adapters(native: bool, tmp_path: Path) -> None:
    """Also with a common prefix, whose blocks are not shared by different adapters."""
    reference = tiny.make_with_reference("llama", tmp_path)
    paths = []
    for seed in range(3):
        path, model = adapters.make_adapter(
            tmp_path / str(seed), reference, seed, r=2 + seed, target_modules="all-linear"
        )
        model.unload()
        paths.append(path)
    tunings: list[Tuning | None] = [None, *map(adapters.tuning_of, paths)]
    prompts = [tiny.random_ids(NUM_TOKENS), tiny.random_ids(NUM_TOKENS - 3, seed=1)]
    alone = [
        adapters.logits(tiny.engine(tmp_path, kernels=native), [(ids, tuning)])[0]
        for tuning in tunings
        for ids in prompts
    ]
    engine = tiny.engine(tmp_path, kernels=native)
    requests = [(ids, tuning) for tuning in tunings for ids in prompts]
    for _ in range(2):  # the second time everything is in the prefix cache
        together = adapters.logits(engine, requests)
        for one, other in zip(alone, together, strict=True):
            assert torch.allclose(one[-1], other[-1], rtol=1e-4, atol=1e-4)
    different = torch.stack([each[-1] for each in alone[::2]])
    assert torch.cdist(different, different).add_(torch.eye(4)).min() > 0.1


def test_greedy_ids_do_not_depend_on_the_batch_or_the_prefix_cache(tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    tunings: list[Tuning | None] = [None]
    for seed in range(2):
        path, model = adapters.make_adapter(
            tmp_path / str(seed), reference, seed, target_modules="all-linear"
        )
        model.unload()
        tunings.append(adapters.tuning_of(path))
    prompt = tiny.random_ids(13)
    alone = [adapters.greedy(tiny.engine(tmp_path), [(prompt, each)])[0] for each in tunings]
    assert len({tuple(ids) for ids in alone}) == 3
    engine = tiny.engine(tmp_path)
    for _ in range(2):  # the second time with the prefixes in the cache
        assert adapters.greedy(engine, [(prompt, each) for each in tunings]) == alone
    assert engine.stats()["reused_tokens"] > 2 * 3 * 4


def test_sets_are_kept_evicted_and_reloaded(tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    path, _ = adapters.make_adapter(tmp_path / "a", reference, target_modules=["q_proj"])
    engine = tiny.engine(tmp_path)
    first = engine.tune(adapters.tuning_of(path))
    assert first is not None and engine.tune(adapters.tuning_of(path)) is first
    scales = [1 + i / 100 for i in range(MAX_SETS)]
    others = [engine.tune(adapters.tuning_of(path, scales=[scale])) for scale in scales[1:]]
    assert {first.set_index, *(each.set_index for each in others if each)} == set(range(MAX_SETS))
    replacing = engine.tunings.load(adapters.tuning_of(path, scales=[9.0]), {first.set_index})
    assert replacing is not None and replacing.set_index != first.set_index
    with pytest.raises(UsageError, match="16 different sets"):
        engine.tunings.load(adapters.tuning_of(path, scales=[8.0]), set(range(MAX_SETS)))
    adapters.change_settings(path, lora_alpha=7)  # a changed file is another adapter
    changed = engine.tune(adapters.tuning_of(path))
    assert changed is not None and changed.identity != first.identity


def test_a_check_loads_nothing(tmp_path: Path) -> None:
    """Nor does a request that is refused, even if all places for sets are taken."""
    reference, targets = tiny.make_with_reference("llama", tmp_path), ["q_proj"]
    path, _ = adapters.make_adapter(tmp_path / "adapter", reference, 0, target_modules=targets)
    engine, params = tiny.engine(tmp_path), tiny.SamplingParams(temperature=0, max_tokens=2)
    first, *others, last = (adapters.tuning_of(path, scales=[i]) for i in range(1, MAX_SETS + 3))
    too_long = [5] * engine.ctx_size_tokens
    engine.check([5], params, tuning=first)
    for call in (engine.check, partial(engine.add, 1)):
        with pytest.raises(ContextOverflow):
            call(too_long, params, tuning=first)
        with pytest.raises(UsageError, match="embeddings are those of the base model"):
            call([5], tiny.SamplingParams(pooling="mean", max_tokens=0), tuning=first)
    assert engine.tunings.nbytes == 0
    for tuning in others:
        engine.tune(tuning)
    sets = list(engine.tunings.selection.sets)
    engine.check([5], params, tuning=last)
    with pytest.raises(ContextOverflow):
        engine.add(1, too_long, params, tuning=last)
    kept = engine.tunings.selection.sets
    assert all(one is other for one, other in zip(kept, sets, strict=True))


def test_adapters_of_other_models_end_only_their_request(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path / "a")
    other = tiny.make_with_reference("qwen3", tmp_path / "b")
    path, _ = adapters.make_adapter(tmp_path / "c", other, target_modules=["q_proj"])
    engine = tiny.engine(tmp_path / "a")
    with pytest.raises(BadModelFile, match=r"q_proj.lora_B.weight: expected \[48, 4\], found \[96"):
        engine.add(1, [5, 6], tiny.SamplingParams(), tuning=adapters.tuning_of(path))
    assert not engine.has_work


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2", {"use_dora": True, "modules_to_save": ["lm_head", "embed_tokens"]}),
        ("gpt-neox", {"lora_bias": True}),
    ],
)
def test_ranks_have_their_parts_of_an_adapter(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Two tensor-parallel ranks as threads: logits as of one rank."""
    reference = tiny.make_with_reference(family, tmp_path)
    settings = {"target_modules": adapters.targets(family), **settings}
    path, _ = adapters.make_adapter(tmp_path / "adapter", reference, **settings)
    tuning, ids = adapters.tuning_of(path), tiny.random_ids(NUM_TOKENS)
    (expected,) = adapters.logits(tiny.engine(tmp_path), [(ids, tuning)])

    def run(rank: int, communicator: ThreadCommunicator) -> torch.Tensor:
        shard = shard_of(Model.open(tmp_path).config, 2, rank)
        bench = tiny.Bench(tmp_path, shard=shard, ranks=communicator)
        cpu = torch.device("cpu")
        tunings = Tunings(bench.decoder, bench.cache, shard, bench.checkpoint, cpu)
        sequence = TokenSequence(0, ids, tiny.SamplingParams(), tuning=tunings.load(tuning, ()))
        bench.scheduler.add(sequence)
        with torch.inference_mode():
            batch = Batch.pack(bench.scheduler.schedule().rows, tiny.BLOCK_SIZE)
            own = tunings.forward(batch)
            assert own is not None
            return bench.decoder.ranks.all_gather(own, bench.decoder.config.vocab_size)

    for logits in run_ranks(2, run):
        assert (logits[-1] - expected[-1]).abs().max() <= 1e-4 * expected.abs().max()


def test_what_only_merging_supports_is_named(tmp_path: Path) -> None:
    reference = tiny.make_with_reference("llama", tmp_path)
    path, _ = adapters.make_adapter(
        tmp_path / "a", reference, target_modules=["q_proj"], modules_to_save=["norm"]
    )
    with pytest.raises(UsageError, match=r"norm\.weight") as error:
        tiny.engine(tmp_path).tune(adapters.tuning_of(path))
    assert "--merge-lora" in error.value.hint

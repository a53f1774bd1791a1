"""Layers with heads of different sizes, shared keys and values, embeddings of their own, chunks.

Gemma 4 has the first three, Llama 4 the last, Gemma 3n also several residual streams; their logits
after prefill and token by token are in `test_sweep.py`.
"""

import json
from pathlib import Path

import pytest
import torch

from swiftchat.chat.model.description import describe_heads
from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.linear.plain import PlainWeight
from swiftchat.engine.model.altup import StreamProjections, collapse, expand
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.per_layer import PerLayerTable
from swiftchat.engine.reference.attention import plan_attention
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.reference.per_layer import per_layer_embeddings
from swiftchat.engine.schedule.batch import Span
from swiftchat.engine.schedule.sequence import TokenSequence
from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.pipeline import stage_layers
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices
from tests.support import reference, tiny

GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def gemma4(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("gemma4")
    return folder, reference.make_reference("gemma4_text", folder)


def config_of(folder: Path) -> ModelConfig:
    return Model.open(folder).config


@pytest.mark.parametrize("model_type", ["gemma4_text", "gemma3n_text", "llama4_text"])
def test_batch_with_history_equals_transformers(model_type: str, tmp_path: Path) -> None:
    """One prompt continues a cached prefix, two are computed from their first token."""
    model = reference.make_reference(model_type, tmp_path)
    bench = tiny.Bench(tmp_path)
    first = tiny.random_ids(20, seed=2)
    bench.last_logits(first)
    prompts = {
        1: tiny.random_ids(5, seed=3),
        2: tiny.random_ids(11, seed=4),
        3: [*first[:17], 7, 8],
    }
    for i, ids in prompts.items():
        bench.scheduler.add(TokenSequence(i, list(ids), SamplingParams()))
    logits = bench.step()
    for i, ids in prompts.items():
        expected = reference.reference_logits(model, tuple(ids))
        assert (logits[i] - expected[-1]).abs().max() <= 1e-4 * expected.abs().max()


def test_sharing_layers_have_the_cache_of_their_source(gemma4) -> None:
    config = config_of(gemma4[0])
    assert [each.kv_source for each in config.attentions] == [None, None, None, None, 3, 2]
    cache = KVCache(config, 5, 4, torch.float32, torch.device("cpu"))
    shapes = [tuple(layer.shape[2:]) for layer in cache.layers]
    assert shapes == 2 * [(4, 8), (4, 8), (2, 16)]
    places = [layer.data_ptr() for layer in cache.layers]
    assert places[4] == places[3] and places[5] == places[2] and len({*places}) == 4
    assert cache.num_bytes == 5 * 4 * kv_bytes_per_token(config, 4)
    for kv_dtype, num_tensors in (("int8", 4), ("fp8", 4), ("int5", 8)):
        small = KVCache(config, 5, 4, torch.float32, torch.device("cpu"), kv_dtype=kv_dtype)
        assert small.num_bytes == 5 * 4 * kv_bytes_per_token(config, 4, kv_dtype)
        assert len(small.tensors) == num_tensors


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int5"])
def test_blocks_are_copied_and_checked_in_all_groups(gemma4, kv_dtype: str) -> None:
    config = config_of(gemma4[0])
    cpu = torch.device("cpu")
    cache = KVCache(config, 3, 4, torch.float32, cpu, kv_dtype=kv_dtype)
    for i, tensor in enumerate(cache.tensors):
        tensor.fill_(0)[:, 1] = i + 1
    cache.copy_blocks([(1, 2)])
    assert all((tensor[:, 2] == i + 1).all() for i, tensor in enumerate(cache.tensors))
    assert cache.first_not_finite([0, 2], 8) is None
    cache.tensors[-1][-1, 2] = float("nan")  # the last layer of the wide heads that has its own
    assert cache.first_not_finite([0, 2], 8) == 2
    assert cache.first_not_finite([0, 2], 4) is None


def test_quantized_cache_is_near_the_plain_one(gemma4) -> None:
    folder, _ = gemma4
    ids = tiny.random_ids(40, seed=3)
    plain = tiny.Bench(folder).last_logits(ids)
    found = tiny.Bench(folder, kv_dtype="int8").last_logits(ids)
    assert torch.linalg.norm(found - plain) <= 0.05 * torch.linalg.norm(plain)


def test_preempted_answers_equal_others(gemma4) -> None:
    folder, _ = gemma4
    prompts = {i: tiny.random_ids(27, seed=i) for i in (1, 2)}
    wide, _ = tiny.run(tiny.engine(folder), prompts, GREEDY)
    narrow = tiny.engine(folder, ctx_size_tokens=48, cache_tokens=64)  # both need 80
    assert tiny.run(narrow, prompts, GREEDY)[0] == wide


def test_chunks_begin_at_multiples_of_their_size(gemma4) -> None:
    span = Span(0, 3, 10, [0, 1, 2])
    cpu = torch.device("cpu")
    cache = KVCache(config_of(gemma4[0]), 3, 4, torch.float32, cpu)
    (plan,) = plan_attention([span], cache, (None, 4, 0), cpu)
    rows = [[int(key) for key in row.nonzero()] for row in plan.mask]
    assert rows == [[4, 5, 6, 7], [8], [8, 9]]


def test_keys_before_the_first_one_are_seen_by_their_own_query(gemma4) -> None:
    cpu = torch.device("cpu")
    cache = KVCache(config_of(gemma4[0]), 3, 4, torch.float32, cpu)
    for span, expected in (
        (Span(0, 4, 4, [0]), [[0], [1], [2], [2, 3]]),
        (Span(0, 1, 6, [0, 1]), [[2, 3, 4, 5]]),
    ):
        (plan,) = plan_attention([span], cache, (None, None, 2), cpu)
        assert [[int(key) for key in row.nonzero()] for row in plan.mask] == expected


def test_show_lists_the_heads_of_all_layers(gemma4) -> None:
    assert describe_heads(config_of(gemma4[0])) == (
        "6 (2 KV heads), head_dim 8 in 4 layers; 6 (1 KV heads), head_dim 16 in 2 layers"
    )


def test_stages_and_adapters_are_refused(gemma4) -> None:
    folder, _ = gemma4
    with pytest.raises(UsageError, match="pipeline parallelism is not supported for Gemma4"):
        stage_layers(config_of(folder), 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention must be absent"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers must be less"),
        ({"per_layer_config": {"1": {"sliding_window": 3}}}, "per_layer_config must be only"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 5}}}, "must be a divisor of 6 heads"),
        (
            {"per_layer_config": {"1": {"head_dim": 10}}},
            "head_dim of layer 1 must be that of other",
        ),
    ],
)
def test_what_cannot_be_computed_is_refused(gemma4, changes: dict, message: str) -> None:
    config = json.loads((gemma4[0] / "config.json").read_text())
    with pytest.raises(BadModelFile, match=message):
        ModelConfig.from_hf({**config, **changes})


def test_numbers_of_layers_may_be_padded(gemma4) -> None:
    """As transformers writes them for ten layers and more."""
    config = json.loads((gemma4[0] / "config.json").read_text())
    by_layer = config["per_layer_config"]
    assert by_layer and all(name.isdecimal() for name in by_layer)
    padded = {name.zfill(3): value for name, value in by_layer.items()}
    expected = ModelConfig.from_hf(config)
    assert ModelConfig.from_hf({**config, "per_layer_config": padded}) == expected
    for bad in ({**by_layer, "00": {}, "0": {}}, {"6": {}}, {"x": {}}, {"": {}}, {"-1": {}}):
        with pytest.raises(BadModelFile, match="per_layer_config must be"):
            ModelConfig.from_hf({**config, "per_layer_config": bad})


def test_what_gemma_3n_cannot_compute_is_refused(tmp_path: Path) -> None:
    reference.copy_reference("gemma3n_text", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    made = ModelConfig.from_hf(config)
    assert tp_choices(made) == (1,)
    with pytest.raises(UsageError, match="which gates are 0 depends on those of all ranks"):
        shard_of(made, 2, 0)
    assert 2 in tp_choices(ModelConfig.from_hf({**config, "activation_sparsity_pattern": [0] * 6}))
    for changes, message in [
        ({"activation_sparsity_pattern": 0.95}, "activation_sparsity_pattern must be a list of 6"),
        ({"intermediate_size": [80, 80]}, "intermediate_size must be a number or a list of 6"),
        ({"altup_active_idx": 3}, "altup_active_idx must be an integer from 0 to 2"),
        ({"hidden_size_per_layer_input": 0}, "hidden_size_per_layer_input must be an integer"),
    ]:
        with pytest.raises(BadModelFile, match=message):
            ModelConfig.from_hf({**config, **changes})


def test_gates_above_mean_and_deviations_stay(gemma4) -> None:
    ops = TorchOps(config_of(gemma4[0]), 8, torch.device("cpu"))
    gate_up = torch.tensor([[1.0, 2, 3, 6, 5, 5, 5, 5]])  # mean 3, standard deviation √3.5
    ops.sparsify_(gate_up, 1.0)
    torch.testing.assert_close(gate_up, torch.tensor([[0, 0, 0, 3 - 3.5**0.5, 5, 5, 5, 5]]))


def test_streams_are_expanded_and_collapsed_with_the_magnitude_of_the_first() -> None:
    x, into = torch.randn(3, 4), torch.randn(2, 4, 4)
    projections = StreamProjections(into, torch.eye(4).repeat(2, 1, 1))
    streams = expand(x, projections)
    sizes = streams.square().mean(-1)
    torch.testing.assert_close(sizes, sizes[:1].expand(3, 3))
    torch.testing.assert_close(collapse(streams, projections), streams.mean(0))


def test_ids_above_the_table_have_the_embedding_of_id_0() -> None:
    table = PerLayerTable(PlainWeight(torch.randn(4, 6)), torch.randn(6, 5), torch.ones(2))
    x = torch.randn(1, 5).expand(3, 5)
    layers = per_layer_embeddings(torch.tensor([0, 4, 3]), x, table, 1e-6)
    assert len(layers) == 3
    for each in layers:
        torch.testing.assert_close(each[0], each[1])
        assert not torch.allclose(each[0], each[2])

"""Dummy weights: shapes of published models, and logits of ordinary magnitude."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from swiftchat.engine.api.memory_estimate import gpu_weight_bytes
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.cpu.native_weights import NativeWeights
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.gpu.linear.factory import KernelWeights
from swiftchat.engine.load.dummy import dummy_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.weights import DecoderWeights, expert_bytes, resident_bytes
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.schedule.batch import Batch, Span
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.model.dummy import DUMMY_CONFIGS, dummy_schemes
from swiftchat.weights.parallel.tensor_parallel import shard_of
from tests.support.kernels.packed_matrices import kernels_without_gpu
from tests.support.native.ops import pool

CPU = torch.device("cpu")
NUM_TOKENS = 24


_GEMMA4 = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 1,
    "vocab_size_per_layer_input": 2000,
}
# The second of two layers has experts, and no rotary embedding.
_LLAMA4 = {
    "intermediate_size_mlp": 1024,
    "no_rope_layers": [1, 0],
    "num_local_experts": 8,
    "attention_chunk_size": 16,
}
_KINDS = {"layer_types": ["linear_attention", "full_attention"]}
# What a small model needs if its layers differ, and fewer experts.
_SMALL: dict[str, dict[str, object]] = {
    "deepseek-v2-lite": {"n_routed_experts": 16},
    "gpt-oss-20b": {"num_local_experts": 8},
    "qwen3-30b-a3b": {"num_experts": 16},
    "gemma-4-e2b": _GEMMA4,
    "gemma-4-e4b": _GEMMA4,
    "gemma-4-26b-a4b": {"num_experts": 16},
    "llama-4-scout": _LLAMA4,
    "llama-4-maverick": _LLAMA4,
    "lfm2-1.2b": {"full_attn_idxs": [1], "block_ff_dim": 1536},
    "qwen3.5-4b": _KINDS,
    "qwen3-next-80b-a3b": {**_KINDS, "num_experts": 16},
    "granite-4-h-tiny": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 16,
        "num_local_experts": 16,
        "head_dim": 128,
    },
}


def small(name: str, **changes: object) -> ModelConfig:
    """A model with two layers and a small width and vocabulary."""
    shrunk = {
        "num_hidden_layers": 2,
        "vocab_size": 2000,
        "hidden_size": 512,
        "intermediate_size": 1024,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    own = _SMALL.get(name, {})
    return read_model_config({**DUMMY_CONFIGS[name], **shrunk, **own, **changes})


def tensors(weights: DecoderWeights) -> Iterator[torch.Tensor]:
    yield from (*weights.embed.tensors, weights.final_norm, *weights.lm_head.tensors)
    for layer in weights.layers:
        yield from (v for v in vars(layer).values() if isinstance(v, torch.Tensor))
        for matrix in (layer.qkv, layer.o, layer.gate_up, layer.down):
            yield from matrix.tensors


@torch.inference_mode()
@pytest.mark.parametrize(
    "scheme", ["int8", "fp8", "int4", "mxfp4", "nvfp4", "w8a8-int8", "w8a8-fp8"]
)
def test_quantized_dummy_logits_are_near_plain_ones(scheme: str) -> None:
    config = small("llama-3.1-8b")
    factory = NativeWeights(pool("plain"))
    packed = dummy_weights(config, torch.float32, CPU, scheme=scheme, factory=factory)
    assert packed.layers[1].down.is_quantized
    assert packed.lm_head.is_quantized != (scheme not in ("int8", "int4"))
    expected = logits(config, dummy_weights(config, torch.float32, CPU))
    off = torch.linalg.norm(logits(config, packed) - expected) / torch.linalg.norm(expected)
    most = {
        "int8": 0.02,
        "fp8": 0.1,
        "int4": 0.3,
        "mxfp4": 0.3,
        "nvfp4": 0.3,
        "w8a8-int8": 0.04,
        "w8a8-fp8": 0.15,
    }
    assert 0 < off < most[scheme]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *(
            (name, scheme)
            for name in ("llama-3.1-8b", "llama-3.2-1b")
            for scheme in ("int8", "fp8", "int4", "mxfp4", "nvfp4", "w8a8-int8")
        ),
        ("gpt-oss-20b", "mxfp4"),
    ],
)
def test_estimated_dummy_weight_bytes_equal_loaded_bytes(name: str, scheme: str) -> None:
    config = small(name)
    factory = KernelWeights(kernels_without_gpu())
    for shard in (shard_of(config, 1, 0), shard_of(config, 2, 1)):
        weights = dummy_weights(
            config, torch.bfloat16, CPU, shard=shard, scheme=scheme, factory=factory
        )
        sinks = [layer.sinks for layer in weights.layers if layer.sinks is not None]
        in_fp32 = sum(each.nbytes // 2 for each in sinks)  # more than 16 bits, not in the estimate
        estimate = gpu_weight_bytes(shard, dummy_schemes(config, scheme), 2)
        assert estimate + in_fp32 == resident_bytes(weights)
        assert weights.lm_head.is_quantized != (scheme not in ("int8", "int4"))
        assert (weights.lm_head is weights.embed) == config.head.tied


def test_quantized_shards_of_ranks_form_one_matrix() -> None:
    config, eye = small("llama-3.1-8b"), torch.eye(1024)
    parts = [None, *(shard_of(config, 2, rank) for rank in range(2))]
    whole, *halves = (
        dummy_weights(
            config,
            torch.float32,
            CPU,
            shard=shard,
            scheme="int4",
            factory=NativeWeights(pool("plain")),
        )
        for shard in parts
    )
    found = [weights.layers[0].down for weights in (whole, *halves)]
    assert all(down.description.startswith("int4") for down in found)
    columns = [down.matmul(eye[: down.shape[1], : down.shape[1]]) for down in found]
    assert torch.equal(columns[0], torch.cat(columns[1:]))


def test_shards_of_mxfp4_experts_form_the_whole_ones() -> None:
    """Those of GPT-OSS, in one tensor. Gate rows come before up rows, also of a rank."""
    config = small("gpt-oss-20b")
    factory = NativeWeights(pool("plain"))
    whole, *halves = (
        dummy_weights(config, torch.float32, CPU, shard=shard, scheme="mxfp4", factory=factory)
        for shard in (None, *(shard_of(config, 2, rank) for rank in range(2)))
    )
    assert not whole.layers[0].o.is_quantized
    found = [weights.layers[1].experts for weights in (whole, *halves)]
    first, *others = [experts.each[3] for experts in found if experts is not None]
    assert first.down.description == "mxfp4 in groups of 32, native kernels"
    down = [each.down.matmul(torch.eye(each.down.shape[1])).T for each in (first, *others)]
    assert torch.equal(down[0], torch.cat(down[1:], 1))
    eye = torch.eye(512)
    gates, ups = zip(*(each.gate_up.matmul(eye).T.chunk(2) for each in others), strict=True)
    assert torch.equal(first.gate_up.matmul(eye).T, torch.cat([*gates, *ups]))


def test_engine_with_quantized_dummy_weights() -> None:
    plain, packed = (
        build_engine(
            Path(), EngineConfig(device="cpu", dummy=f"smollm2-135m{scheme}", ctx_size_tokens=256)
        )
        for scheme in ("", ":int8")
    )
    assert packed.info.weights_bytes < 0.7 * plain.info.weights_bytes
    assert "dequantized" not in packed.info.device


@torch.inference_mode()
def logits(config: ModelConfig, weights: DecoderWeights) -> torch.Tensor:
    """The logits after each of some random tokens: [NUM_TOKENS, vocab_size]."""
    cache = KVCache(config, 1, 32, weights.embed.dtype, CPU, num_states=1)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(config.vocab_size, (NUM_TOKENS,), generator=generator).tolist()
    places, span = list(range(NUM_TOKENS)), Span(0, NUM_TOKENS, NUM_TOKENS, [0])
    span = replace(span, state_slot=0, next_state_slot=0)
    batch = Batch(ids, places, places, places, [span], [])
    return Decoder(config, weights, TorchOps(config, NUM_TOKENS, CPU)).forward(batch, cache)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llama-3.2-1b", 1_235_814_400),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("smollm2-135m", 134_515_008),
        ("lfm2-1.2b", 1_170_340_608),
        ("qwen3-next-80b-a3b", 79_674_391_296),
        ("granite-4-h-tiny", 6_939_037_248),
        ("gpt-oss-20b", 20_914_757_184),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("deepseek-v2-lite", 15_706_484_224),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    shapes = expected_tensors(read_model_config(DUMMY_CONFIGS[name])).values()
    assert sum(torch.Size(shape).numel() for shape in shapes) == parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # The published 5.1 and 8.0 are with the parts for images and sound.
        ("gemma-4-e2b", 4.6),
        ("gemma-4-e4b", 7.5),
        ("gemma-4-26b-a4b", 25.2),
        ("gemma-4-31b", 30.7),
        # The published 109 and 402 are with the vision part.
        ("llama-4-scout", 107.8),
        ("llama-4-maverick", 400.7),
    ],
)
def test_shapes_have_about_the_published_number_of_parameters(name: str, billions: float) -> None:
    shapes = expected_tensors(read_model_config(DUMMY_CONFIGS[name])).values()
    assert round(sum(torch.Size(shape).numel() for shape in shapes) / 1e9, 1) == billions


def test_dummy_weights_have_the_shapes_of_the_config() -> None:
    config = small("llama-3.2-1b", attention_bias=True, mlp_bias=True)
    weights = dummy_weights(config, torch.bfloat16, CPU)
    wanted = sum(torch.Size(shape).numel() for shape in expected_tensors(config).values())
    assert weights.lm_head is weights.embed
    once = {tensor.data_ptr(): tensor.numel() for tensor in tensors(weights)}
    assert sum(once.values()) == wanted
    assert {tensor.dtype for tensor in tensors(weights)} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.bfloat16) for name in DUMMY_CONFIGS), ("llama-3.1-8b", torch.float32)],
)
def test_dummy_logits_have_ordinary_magnitude(name: str, dtype: torch.dtype) -> None:
    config = small(name)
    out = logits(config, dummy_weights(config, dtype, CPU))
    assert out.isfinite().all()
    assert 0.3 < out.std() < 10
    # Logits differ between tokens.
    assert out.std(dim=0).min() > 0.1


def test_dummy_logits_do_not_grow_with_depth() -> None:
    config = small("smollm2-135m", hidden_size=192, num_attention_heads=3, vocab_size=500)
    for layers in (1, 40):
        deep = replace(config, layers=config.layers[:1] * layers)
        assert 0.3 < logits(deep, dummy_weights(deep, torch.float32, CPU)).std() < 10


def test_dummy_weights_depend_on_the_seed() -> None:
    config = small("llama-3.1-8b")
    first, again, other = (
        list(tensors(dummy_weights(config, torch.bfloat16, CPU, seed))) for seed in (3, 3, 4)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_shards_of_ranks_form_the_whole_weights() -> None:
    config = small("llama-3.2-1b", attention_bias=True, mlp_bias=True)
    whole = dummy_weights(config, torch.float32, CPU)
    first, second = (
        dummy_weights(config, torch.float32, CPU, shard=shard_of(config, 2, rank))
        for rank in range(2)
    )
    assert torch.equal(torch.cat([first.embed.tensor, second.embed.tensor]), whole.embed.tensor)
    for one, two, both in zip(first.layers, second.layers, whole.layers, strict=True):
        assert torch.equal(torch.cat([one.o.tensor, two.o.tensor], 1), both.o.tensor)
        assert torch.equal(torch.cat([one.down.tensor, two.down.tensor], 1), both.down.tensor)
        gates_and_ups = [half for rank in (one, two) for half in rank.gate_up.tensor.chunk(2)]
        assert torch.equal(torch.cat([gates_and_ups[i] for i in (0, 2, 1, 3)]), both.gate_up.tensor)
        assert two.o_bias is None and torch.equal(one.o_bias, both.o_bias)
        assert torch.equal(two.attn_norm, both.attn_norm)
        assert two.qkv_bias.shape == (both.qkv_bias.shape[0] // 2,)


def test_shards_of_stages_form_the_whole_weights() -> None:
    config = small("llama-3.2-1b")  # two layers, tied
    whole = dummy_weights(config, torch.float32, CPU)
    first, last = (
        dummy_weights(config, torch.float32, CPU, shard=shard_of(config, 1, 0, stage, 2))
        for stage in range(2)
    )
    layers = [*first.layers, *last.layers]
    assert len(first.layers) == len(last.layers) == 1
    for ours, theirs in zip(layers, whole.layers, strict=True):
        assert torch.equal(ours.qkv.tensor, theirs.qkv.tensor)
    assert torch.equal(first.embed.tensor, whole.embed.tensor)
    assert torch.equal(last.lm_head.tensor, whole.lm_head.tensor)
    assert first.final_norm is None and torch.equal(last.final_norm, whole.final_norm)


@pytest.mark.parametrize(
    ("scheme", "least_bits", "most_bits"), [(None, 16, 16), ("int8", 8, 8.6), ("int4", 4, 4.6)]
)
def test_the_bytes_of_experts_are_those_of_their_type(
    scheme: str | None, least_bits: float, most_bits: float
) -> None:
    """The least that a step reads depends on it: 16 bits a weight made it negative."""
    config, factory = small("qwen3-30b-a3b"), NativeWeights(pool("plain"))
    weights = dummy_weights(config, torch.bfloat16, CPU, scheme=scheme, factory=factory)
    experts = [expert for layer in weights.layers for expert in layer.experts.each]
    num_weights = sum(math.prod(m.shape) for e in experts for m in (e.gate_up, e.down))
    assert least_bits <= 8 * expert_bytes(weights) / num_weights <= most_bits

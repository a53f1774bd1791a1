"""EAGLE-3 heads: their proposals against a reference in fp64, and the ids of plain decoding."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from swiftchat.engine.model.prediction_head import Eagle3Input, PredictionHead
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import heads, tiny
from tests.support.reference import copy_reference

PROMPTS = {1: tiny.random_ids(90, seed=4), 2: tiny.random_ids(11, seed=5)}
Q, FC = "midlayer.self_attn.q_proj.weight", "fc.weight"


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return heads.write_eagle3(tmp_path_factory.mktemp("eagle3"), heads.eagle3_tensors())


class Reference:
    """An EAGLE-3 head in fp64 without a cache: each token computes the whole text again."""

    def __init__(
        self,
        llama: Path,
        tensors: Mapping[str, Tensor],
        layers: tuple[int, ...] = (2, 1, 0),
        theta: float = 5000.0,
        adds_normed: bool = False,
        head_dim: int = 16,
    ) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
        self.weights = {n: t.double() for n, t in tensors.items() if t.is_floating_point()}
        self.token_ids = torch.arange(40) + tensors["d2t"]
        self.layers, self.theta, self.adds_normed = layers, theta, adds_normed
        self.dim = head_dim
        own = self.weights.get("embed_tokens.weight")
        self.table = self.model.get_input_embeddings().weight if own is None else own

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.weights[f"{name}.weight"]

    def heads(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[f"midlayer.self_attn.{name}_proj.weight"]
        return (x @ weight.T).unflatten(-1, (-1, self.dim))

    def rotated(self, x: Tensor) -> Tensor:
        """Multiply pairs of elements, as complex numbers, with powers of e^i."""
        half = self.dim // 2
        frequencies = self.theta ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * frequencies
        turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat([turned.real, turned.imag], -1)

    def layer(self, x: Tensor, ids: list[int]) -> Tensor:
        """Return the hidden states of all tokens, whose inputs are `x` and the ids after them."""
        normed = self.norm(x, "midlayer.hidden_norm")
        embedded = self.norm(self.table[ids], "midlayer.input_layernorm")
        both = torch.cat([embedded, normed], 1)
        q, k = (self.rotated(self.heads(both, name)) for name in "qk")
        v = self.heads(both, "v")
        rows = []
        for i in range(len(x)):
            for head in range(4):
                scores = k[: i + 1, head // 2] @ q[i, head] / self.dim**0.5
                rows.append(scores.softmax(0) @ v[: i + 1, head // 2])
        out = (
            torch.stack(rows).view(len(x), -1) @ self.weights["midlayer.self_attn.o_proj.weight"].T
        )
        x = (normed if self.adds_normed else x) + out
        inner = self.norm(x, "midlayer.post_attention_layernorm")
        gate, up, down = (
            self.weights[f"midlayer.mlp.{name}_proj.weight"] for name in ("gate", "up", "down")
        )
        gated = inner @ gate.T
        return x + (gated * gated.sigmoid() * (inner @ up.T)) @ down.T

    @torch.inference_mode()
    def check(self, tokens: list[int], proposed: list[int]) -> None:
        """Assert that each proposed token is the most probable one, up to rounding."""
        states = self.model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        joined = torch.cat([states[layer][0] for layer in self.layers], 1)
        x, ids = joined @ self.weights[FC].T, tokens[1:]
        for token in proposed:
            out = self.layer(x, ids)
            logits = self.weights["lm_head.weight"] @ self.norm(out[-1:], "norm")[0]
            index = self.token_ids.tolist().index(token)
            assert logits[index] > logits.max() - 1e-3
            x, ids = torch.cat([x, out[-1:]]), [*ids, token]


def check_some(reference: Reference, proposals: list[heads.Proposal]) -> None:
    """Check a few proposals of each sequence, and that nearly all were made."""
    assert len(proposals) > 30 and all(proposed for _, proposed in proposals[-10:])
    short = [each for each in proposals if len(each[0]) < 60]
    for tokens, proposed in (*short[2::9], proposals[0], proposals[-1]):
        reference.check(tokens, proposed)


@tiny.each_backend
def test_proposals_are_those_of_the_reference(llama: Path, eagle3: Path, native: bool) -> None:
    """Two sequences, of which one prompt is computed in chunks; nearly all tokens are rejected."""
    engine = tiny.engine(llama, draft=str(eagle3), kernels=native, num_threads=1, chunk_tokens=16)
    proposals = heads.propose_always(engine)
    _, ends = tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=3))
    assert ends[1].speculated.proposer == "eagle3"
    check_some(Reference(llama, heads.eagle3_tensors()), proposals)


NEW_ROPE = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 300.0}}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rope parameters": (NEW_ROPE, {"theta": 300.0}),
    "layers": ({"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}, {"layers": (1, 2, 2)}),
    "outputs of layers": (
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 0, 1]}},
        {"layers": (1, 1, 2)},
    ),
    "normed residual": ({"norm_before_residual": True}, {"adds_normed": True}),
    "embeddings": ({}, {}),
}


@pytest.mark.parametrize(("config", "expected"), VARIANTS.values(), ids=VARIANTS)
def test_what_the_config_says(
    llama: Path, tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    tensors = heads.eagle3_tensors()
    if not config:
        tensors["embed_tokens.weight"] = torch.randn(97, 48)
    heads.write_eagle3(tmp_path, tensors, **config)
    engine = tiny.engine(llama, draft=str(tmp_path))
    proposals = heads.propose_always(engine)
    tiny.run(engine, {2: PROMPTS[2]}, replace(heads.DRAFT, max_tokens=10))
    reference = Reference(llama, tensors, **expected)
    for tokens, proposed in proposals[::4]:
        reference.check(tokens, proposed)


@heads.on_some_models
def test_ids_are_those_of_plain_decoding(
    name: str, native: bool, eagle3: Path, tmp_path: Path
) -> None:
    heads.assert_plain_ids(name, native, eagle3, PROMPTS, tmp_path)


@pytest.mark.gpu
@pytest.mark.parametrize("captured", [False, True])
def test_captured_steps_give_hidden_states(llama: Path, eagle3: Path, captured: bool) -> None:
    """Prompts in graphs and without them, decode steps and verification steps."""
    expected, _ = tiny.run(tiny.engine(llama, device="cuda"), PROMPTS, heads.OFF)
    engine = tiny.engine(llama, draft=str(eagle3), device="cuda")
    while captured and engine.can_prepare:
        engine.prepare()
    proposals = heads.propose_always(engine)
    ids, ends = tiny.run(engine, PROMPTS, replace(heads.DRAFT, speculate_tokens=3))
    assert ids == expected
    assert ends[1].speculated.proposer == "eagle3"
    assert engine.stats()["graph_steps"] > 15
    check_some(Reference(llama, heads.eagle3_tensors()), proposals)
    assert tiny.run(engine, PROMPTS, heads.OFF)[0] == expected
    host = replace(heads.DRAFT, logprobs=2)  # the host samples from the logits of a graph
    assert tiny.run(engine, PROMPTS, host)[0] == expected


@pytest.mark.gpu
@heads.on_a_gpu
def test_ids_on_a_gpu(name: str, eagle3: Path, tmp_path: Path) -> None:
    heads.assert_plain_ids(name, True, eagle3, PROMPTS, tmp_path, device="cuda")


def test_latent_attention(eagle3: Path, tmp_path: Path) -> None:
    copy_reference("deepseek_v3", tmp_path)
    width = transformers.AutoConfig.from_pretrained(tmp_path).hidden_size
    tensors = {**heads.eagle3_tensors(), FC: torch.randn(48, 3 * width)}
    tensors["embed_tokens.weight"] = torch.randn(97, 48)
    draft = heads.write_eagle3(tmp_path / "draft", tensors)
    engine = tiny.engine(tmp_path, draft=str(draft), num_threads=1)
    heads.propose_always(engine)
    expected, _ = tiny.run(tiny.engine(tmp_path, num_threads=1), PROMPTS, heads.OFF)
    ids, ends = tiny.run(engine, PROMPTS, heads.DRAFT)
    assert ids == expected and ends[1].speculated.num_proposed > 0


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "nemotron_h", "kimi_linear"])
def test_models_with_states(model_type: str, eagle3: Path, tmp_path: Path) -> None:
    copy_reference(model_type, tmp_path)
    heads.assert_plain_ids_of(tmp_path, eagle3, PROMPTS)


def test_a_second_turn_and_several_answers_know_the_first_tokens(llama: Path, eagle3: Path) -> None:
    """Their tokens come from the prefix cache, which has no hidden states."""
    engine = tiny.engine(llama, draft=str(eagle3))
    proposals = heads.propose_always(engine)
    first, _ = tiny.run(engine, {2: PROMPTS[2]}, heads.DRAFT)
    second = PROMPTS[2] + first[2] + tiny.random_ids(6, seed=8)
    proposals.clear()
    tiny.run(engine, {3: second, 4: second}, replace(heads.DRAFT, max_tokens=5))
    assert engine.stats()["reused_tokens"] > 20
    reference = Reference(llama, heads.eagle3_tensors())
    whole = [each for each in proposals if each[1]]
    assert len(whole) > 5
    for tokens, proposed in whole:
        reference.check(tokens, proposed)


def test_preempted_and_canceled_answers(llama: Path, eagle3: Path) -> None:
    sizes = {"ctx_size_tokens": 64, "cache_tokens": 80, "chunk_tokens": 16}
    prompts = {i: tiny.random_ids(9 + 5 * i, seed=i) for i in (1, 2, 3)}
    expected, _ = tiny.run(tiny.engine(llama), prompts, heads.OFF)
    engine = tiny.engine(llama, draft=str(eagle3), **sizes)
    heads.propose_always(engine)
    assert tiny.run(engine, prompts, heads.DRAFT)[0] == expected
    engine.add(9, PROMPTS[2], heads.DRAFT)
    for _ in range(5):
        engine.step()
    engine.cancel(9)
    engine.step()
    assert engine.allocator.num_used == 0


def test_a_sliding_context(llama: Path, eagle3: Path) -> None:
    params = replace(heads.OFF, max_tokens=60, overflow="sliding", overflow_keep=4)
    expected, _ = tiny.run(tiny.engine(llama, ctx_size_tokens=40), {2: PROMPTS[2]}, params)
    engine = tiny.engine(llama, ctx_size_tokens=40, draft=str(eagle3))
    proposals = heads.propose_always(engine)
    ids, _ = tiny.run(engine, {2: PROMPTS[2]}, replace(params, speculate="draft"))
    assert ids == expected
    reference = Reference(llama, heads.eagle3_tensors())
    reference.check(*proposals[-1])


TENSORS = heads.eagle3_tensors()


def d2t(index: int, offset: int) -> dict[str, Tensor]:
    tensors = heads.eagle3_tensors()
    tensors["d2t"][index] = offset
    return tensors


DAMAGED: dict[str, tuple[dict[str, Tensor], dict[str, Any], str]] = {
    "missing": (heads.changed(TENSORS, Q, None), {}, f"no tensor {Q}"),
    "no d2t": (heads.changed(TENSORS, "d2t", None), {}, "no tensor d2t"),
    "deeper model": (
        heads.changed(TENSORS, FC, torch.zeros(48, 192)),
        {},
        r"expected \[48, 144\], found \[48, 192",
    ),
    "narrow": (
        heads.changed(TENSORS, Q, torch.zeros(64, 48)),
        {},
        r"expected \[64, 96\], found \[64, 48\]",
    ),
    "t2d": (
        heads.changed(TENSORS, "t2d", torch.zeros(96)),
        {},
        r"tensor t2d: expected \[97\], found \[96\]",
    ),
    "short d2t": (
        heads.changed(TENSORS, "d2t", TENSORS["d2t"][:39]),
        {},
        r"expected \[40\], found \[39\]",
    ),
    "float d2t": (
        heads.changed(TENSORS, "d2t", torch.zeros(40)),
        {},
        "tensor d2t: expected one of I64, I32",
    ),
    "below": (d2t(3, -4), {}, "d2t: expected an offset from -3 to 93 of token 3, found -4"),
    "above": (d2t(0, 97), {}, "d2t: expected an offset from 0 to 96 of token 0, found 97"),
    "overflow": (d2t(9, 2**63 - 1), {}, "of token 9, found 9223372036854775807"),
    "nan": (
        heads.changed(TENSORS, "norm.weight", torch.full((48,), float("nan"))),
        {},
        "finite numbers",
    ),
    "bias": (
        heads.changed(TENSORS, f"{Q[:-6]}bias", torch.zeros(48)),
        {},
        "is not one of an EAGLE-3 head",
    ),
    "vocabulary": (TENSORS, {"vocab_size": 100}, "vocab_size is 100, but the model's is 97"),
    "draft vocabulary": (TENSORS, {"draft_vocab_size": 98}, "draft_vocab_size must be"),
    "layers": (TENSORS, {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}, "but the model has 3"),
    "no layers": (TENSORS, {"eagle_aux_hidden_state_layer_ids": ["a"]}, "but the model has 3"),
    "two layers": (TENSORS, {"num_hidden_layers": 2}, "num_hidden_layers must be 1"),
    "groups": (TENSORS, {"num_key_value_heads": 3}, "a divisor of 4"),
    "gelu": (TENSORS, {"hidden_act": "gelu"}, "hidden_act must be silu"),
    "own width": (TENSORS, {"hidden_size": 60}, "tensor fc.weight: expected"),
}


@pytest.mark.parametrize(("tensors", "config", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(
    llama: Path, tmp_path: Path, tensors: dict[str, Tensor], config: dict[str, Any], message: str
) -> None:
    heads.write_eagle3(tmp_path, tensors, **config)
    heads.assert_refused(llama, tmp_path, message)


def test_a_head_with_all_ids_needs_no_offsets(llama: Path, tmp_path: Path) -> None:
    tensors = heads.changed(TENSORS, "lm_head.weight", torch.randn(97, 48))
    del tensors["d2t"], tensors["t2d"]
    draft = heads.write_eagle3(tmp_path, tensors, draft_vocab_size=97)
    engine = tiny.engine(llama, draft=str(draft))
    proposals = heads.propose_always(engine)
    tiny.run(engine, {2: PROMPTS[2]}, heads.DRAFT)
    assert any(token % 2 for _, proposed in proposals for token in proposed)


@tiny.each_backend
def test_heads_of_a_quantized_model_are_int8(
    llama: Path, eagle3: Path, tmp_path: Path, native: bool
) -> None:
    """Without kernels, heads and model are dequantized."""
    convert(llama, tmp_path / "int8", quantization=QuantizationSpec("int8", 32))
    options: dict[str, Any] = {"kernels": native, "num_threads": 1}
    engine = tiny.engine(tmp_path / "int8", draft=str(eagle3), **options)
    head = engine.decoder.head
    assert isinstance(head, PredictionHead) and isinstance(head.inputs, Eagle3Input)
    (layer,) = head.decoder.weights.layers
    weights = (head.inputs.project, layer.qkv, layer.down, head.decoder.weights.lm_head)
    assert all(weight.is_quantized == native for weight in weights)
    proposals = heads.propose_always(engine)
    expected, _ = tiny.run(tiny.engine(tmp_path / "int8", **options), PROMPTS, heads.OFF)
    ids, _ = tiny.run(engine, PROMPTS, heads.DRAFT)
    assert ids == expected and any(proposed for _, proposed in proposals)

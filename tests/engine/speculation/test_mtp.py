"""MTP layers that ship with a model: proposals against the layers of transformers in fp64."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.errors import BadModelFile, UsageError
from tests.support import heads, mtp_models, tiny
from tests.support.reference import copy_reference

OFF = SamplingParams(temperature=0, max_tokens=20, speculate="off")
DRAFT = replace(OFF, speculate="draft")
PROMPTS = {1: tiny.random_ids(70, seed=4), 2: tiny.random_ids(11, seed=5)}
NAMES = ("deepseek_v3", "glm4_moe", "glm4_moe_lite")

Made = tuple[Path, transformers.PreTrainedModel]


@pytest.fixture(scope="module", params=NAMES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, mtp_models.make(request.param, folder, num_hidden_layers=4).double()


class Reference:
    """The layer in fp64, by the decoder layer of transformers; each token computes all again."""

    def __init__(self, made: Made) -> None:
        folder, whole = made
        whole.config._experts_implementation = "eager"  # the others have no fp64
        self.inner, self.lm_head = whole.model, whole.lm_head.weight
        *self.layers, self.last = self.inner.layers
        tensors = load_file(folder / "model.safetensors")
        prefix = f"model.layers.{len(self.layers)}."
        self.extra = {name: tensors[prefix + name].double() for name in mtp_models.EXTRA}
        self.eps = whole.config.rms_norm_eps

    def run(self, layer: torch.nn.Module, x: Tensor) -> Tensor:
        length = x.shape[1]
        places = torch.arange(length)[None]
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1)[None, None]
        angles = self.inner.rotary_emb(x, places)
        out = layer(x, attention_mask=mask, position_ids=places, position_embeddings=angles)
        return out[0] if isinstance(out, tuple) else out

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.extra[name]

    @torch.inference_mode()
    def check(self, tokens: list[int], proposed: list[int]) -> None:
        """Assert that each proposed token is the most probable one, up to rounding."""
        x = self.inner.embed_tokens(torch.tensor([tokens[:-1]]))
        for layer in self.layers:
            x = self.run(layer, x)
        x, ids = self.inner.norm(x), tokens[1:]
        for token in proposed:
            embedded = self.norm(self.inner.embed_tokens(torch.tensor([ids])), "enorm.weight")
            both = torch.cat([embedded, self.norm(x, "hnorm.weight")], 2)
            out = self.run(self.last, both @ self.extra["eh_proj.weight"].T)
            logits = self.lm_head @ self.norm(out[0, -1], "shared_head.norm.weight")
            assert logits[token] > logits.max() - 1e-3
            x, ids = torch.cat([x, out[:, -1:]], 1), [*ids, token]


def test_proposals_and_ids(made: Made) -> None:
    engine = tiny.engine(made[0], draft="mtp", num_threads=1, chunk_tokens=16)
    proposals = heads.propose_always(engine)
    expected, _ = tiny.run(tiny.engine(made[0], num_threads=1), PROMPTS, OFF)
    ids, ends = tiny.run(engine, PROMPTS, replace(DRAFT, speculate_tokens=3))
    assert ids == expected
    assert ends[1].speculated.proposer == "mtp"
    assert len(proposals) > 20 and all(proposed for _, proposed in proposals)
    reference = Reference(made)
    for tokens, proposed in (*proposals[1::12], proposals[-1]):
        reference.check(tokens, proposed)
    sampled = replace(OFF, temperature=0.8, seed=3)
    expected, _ = tiny.run(tiny.engine(made[0], num_threads=1), PROMPTS, sampled)
    assert tiny.run(engine, PROMPTS, replace(sampled, speculate="draft"))[0] == expected


@pytest.mark.gpu
def test_on_a_gpu(made: Made) -> None:
    expected, _ = tiny.run(tiny.engine(made[0], device="cuda"), PROMPTS, OFF)
    engine = tiny.engine(made[0], draft="mtp", device="cuda")
    proposals = heads.propose_always(engine)
    ids, ends = tiny.run(engine, PROMPTS, replace(DRAFT, speculate_tokens=3))
    assert ids == expected
    assert ends[1].speculated.proposer == "mtp"
    assert len(proposals) > 20 and all(proposed for _, proposed in proposals)
    reference = Reference(made)
    for tokens, proposed in (*proposals[1::12], proposals[-1]):
        reference.check(tokens, proposed)


def changed(folder: Path, name: str, tensor: Tensor | None, to: Path) -> Path:
    to.mkdir()
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text((folder / "config.json").read_text())
    return to


def test_an_embedding_and_a_head_of_its_own(made: Made, tmp_path: Path) -> None:
    """Both are the model's with the ids in reverse, and so is what the layer proposes."""
    tensors = load_file(made[0] / "model.safetensors")
    prefix = "model.layers.3."
    head = tensors["lm_head.weight"].flip(0)
    folder = changed(made[0], f"{prefix}enorm.weight", None, tmp_path / "model")
    file = folder / "model.safetensors"
    save_file({**tensors, f"{prefix}shared_head.head.weight": head.contiguous()}, file)
    found = []
    for path in (made[0], folder):
        engine = tiny.engine(path, draft="mtp", num_threads=1)
        proposals = heads.propose_always(engine)
        tiny.run(engine, {2: PROMPTS[2]}, replace(DRAFT, speculate_tokens=1, max_tokens=5))
        found.append({len(tokens): proposed[0] for tokens, proposed in proposals})
    both = found[0].keys() & found[1].keys()  # an accepted token makes a step less
    assert len(both) > 1
    assert all(found[1][length] == len(head) - 1 - found[0][length] for length in both)


def test_damaged_layers(made: Made, tmp_path: Path) -> None:
    prefix = "model.layers.3."
    cases = {
        f"{prefix}eh_proj.weight": (torch.zeros(3, 4), BadModelFile, r"found \[3, 4\]"),
        f"{prefix}hnorm.weight": (None, BadModelFile, "no tensor model.layers.3.hnorm.weight"),
        f"{prefix}input_layernorm.weight": (None, BadModelFile, "no tensor model.layers"),
        f"{prefix}enorm.weight": (torch.tensor([]), BadModelFile, r"found \[0\]"),
    }
    for i, (name, (tensor, error, message)) in enumerate(cases.items()):
        folder = changed(made[0], name, tensor, tmp_path / str(i))
        with pytest.raises(error, match=message):
            tiny.engine(folder, draft="mtp")
        if "input" not in name:
            tiny.engine(folder)  # without the layer the model is whole


def test_models_without_such_a_layer(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path)
    with pytest.raises(UsageError, match="has no multi-token prediction layer"):
        tiny.engine(tmp_path, draft="mtp")
    assert "mtp" not in json.loads((tmp_path / "config.json").read_text())


class BesideReference(Reference):
    """The layer of Qwen3-Next and Qwen3.5, which continues its normed hidden states."""

    def __init__(self, made: Made) -> None:
        folder, whole = made
        self.inner, self.lm_head = whole.model, whole.lm_head.weight
        *self.layers, self.last = self.inner.layers
        tensors = load_file(folder / "model.safetensors")
        self.extra = {name: 1 + tensors[f"mtp.{name}"] for name in mtp_models.BESIDE_NORMS}
        self.projection = tensors["mtp.fc.weight"]
        self.eps = whole.config.rms_norm_eps

    def run(self, layer: torch.nn.Module, x: Tensor) -> Tensor:
        if hasattr(layer, "self_attn"):
            return super().run(layer, x)
        return layer(x, position_embeddings=None, attention_mask=None)

    @torch.inference_mode()
    def check(self, tokens: list[int], proposed: list[int]) -> None:
        x = self.inner.embed_tokens(torch.tensor([tokens[:-1]]))
        for layer in self.layers:
            x = self.run(layer, x)
        x, ids = self.inner.norm(x), tokens[1:]
        embedding_norm, hidden_norm, last_norm = mtp_models.BESIDE_NORMS
        for token in proposed:
            embedded = self.norm(self.inner.embed_tokens(torch.tensor([ids])), embedding_norm)
            both = torch.cat([embedded, self.norm(x, hidden_norm)], 2)
            out = self.norm(self.run(self.last, both @ self.projection.T), last_norm)
            logits = self.lm_head @ out[0, -1]
            assert logits[token] > logits.max() - 1e-3
            x, ids = torch.cat([x, out[:, -1:]], 1), [*ids, token]


@pytest.mark.parametrize("model_type", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_proposals_and_ids_of_models_with_states(model_type: str, tmp_path: Path) -> None:
    made = tmp_path, mtp_models.make_beside(model_type, tmp_path)
    engine = tiny.engine(tmp_path, draft="mtp", num_threads=1, chunk_tokens=16)
    proposals = heads.propose_always(engine)
    expected, _ = tiny.run(tiny.engine(tmp_path, num_threads=1), PROMPTS, OFF)
    ids, ends = tiny.run(engine, PROMPTS, replace(DRAFT, speculate_tokens=3))
    assert ids == expected
    assert ends[1].speculated.proposer == "mtp"
    assert len(proposals) > 20 and all(proposed for _, proposed in proposals)
    reference = BesideReference(made)
    for tokens, proposed in (*proposals[1::12], proposals[-1]):
        reference.check(tokens, proposed)


def test_a_model_with_states_but_no_layer(tmp_path: Path) -> None:
    copy_reference("qwen3_next", tmp_path)
    with pytest.raises(UsageError, match=r"no multi-token prediction layer \(mtp.fc.weight\)"):
        tiny.engine(tmp_path, draft="mtp")

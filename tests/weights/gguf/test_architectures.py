"""Conversion of GGUF files of every architecture restores config and tensors."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.architectures.tensors import constant_tensors, expected_tensors
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.gguf import open_gguf
from swiftchat.weights.gguf.architectures import GGUF_ARCHITECTURES
from swiftchat.weights.gguf.config import model_config_json
from swiftchat.weights.model.directory import Model
from tests.support import sentencepiece_models, tiny
from tests.support.gguf import converter, models
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.models import CASES, converted_case, copy_case, loaded, made, write_case

# These become models of another, equivalent class.
_BECOMES = {
    "mistral": ("llama", "LlamaForCausalLM"),
    "internlm2": ("llama", "LlamaForCausalLM"),
    "chatglm3": ("glm", "GlmForCausalLM"),
    "deepseek2-glm": ("deepseek_v3", "DeepseekV3ForCausalLM"),
}
# Their files have other names.
_RENAMED = ("internlm2", "chatglm3")


@pytest.mark.parametrize("name", CASES)
def test_config_tensors_and_logits_survive_conversion(name: str, tmp_path: Path) -> None:
    reference = made(name, tmp_path / "theirs")
    conversion = converted_case(name) / "ours"
    theirs, ours = Model.open(tmp_path / "theirs").config, Model.open(conversion).config
    family, architecture = _BECOMES.get(name, (theirs.family, theirs.architecture))
    assert ours == dataclasses.replace(theirs, family=family, architecture=architecture)
    found = load_file(conversion / "model.safetensors")
    wanted_names = expected_tensors(ours).keys() | constant_tensors(ours).keys()
    assert list(found.keys() ^ wanted_names) == []
    if name in _RENAMED:
        tensors = reference.state_dict()
    else:
        tensors = load_file(tmp_path / "theirs" / "model.safetensors")
    for key, tensor in found.items():
        wanted = tensors[key]
        is_norm = key.endswith("norm.weight") and not key.endswith("linear_attn.norm.weight")
        if ours.norm.unit_offset and is_norm:
            wanted = (wanted + 1) - 1
        if key.endswith("A_log"):  # its negative exponential is in the file
            torch.testing.assert_close(tensor, wanted, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(tensor, wanted), key
    converted = loaded(conversion)
    # Adding 1 to the norms and subtracting it again rounds the last bits.
    torch.testing.assert_close(
        models.logits(converted), models.logits(reference), rtol=1e-5, atol=1e-5
    )


def test_every_architecture_is_tested() -> None:
    assert (
        {arch for _, arch, _ in CASES.values()} == set(GGUF_ARCHITECTURES) == set(models.CONVERTERS)
    )


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "falcon-40b"])
def test_f16_survives_conversion(name: str, tmp_path: Path) -> None:
    copy_case(name, tmp_path / "theirs")
    kind = gguf.GGMLQuantizationType.F16
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", raw_type=kind)
    convert(tmp_path / "model.gguf", tmp_path / "ours")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for key, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        assert torch.equal(found[key], tensor.half()), key


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_quantized_blocks_survive_conversion(name: str, tmp_path: Path) -> None:
    """Q8_0 blocks are stored along the columns of GPT-2's transposed matrices."""
    sizes = {"vocab_size": tiny.VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2}
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=2, n_positions=64, **sizes)
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.MixtralConfig(
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=3,
            **sizes,
        )
        model = transformers.MixtralForCausalLM(config)
    model.save_pretrained(tmp_path / "theirs")
    kind = gguf.GGMLQuantizationType.Q8_0
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", raw_type=kind)
    convert(tmp_path / "model.gguf", tmp_path / "ours", dtype="float32")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for key, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        turned = name == "gpt2" and ".h." in key and tensor.ndim == 2
        array = (tensor.T if turned else tensor).contiguous().numpy()
        if array.ndim == 2:
            array = gguf.dequantize(gguf.quantize(array, kind), kind)
        assert torch.equal(found[key], torch.from_numpy(array.T if turned else array)), key


def stacked(folder: Path, i: int, kind: str) -> np.ndarray:
    tensors = load_file(folder / "model.safetensors")
    here = f"model.layers.{i}.block_sparse_moe.experts"
    return np.stack([tensors[f"{here}.{e}.{kind}.weight"].numpy() for e in range(4)])


def one_by_one(folder: Path, i: int) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return one tensor per expert, as in older files."""
    without, tensors = [], {}
    for kind, name in (("gate", "w1"), ("down", "w2"), ("up", "w3")):
        without.append(f"blk.{i}.ffn_{kind}_exps.weight")
        for e, part in enumerate(stacked(folder, i, name)):
            tensors[f"blk.{i}.ffn_{kind}.{e}.weight"] = part
    return without, tensors


def gate_and_up(folder: Path, i: int) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return merged gate and up, as with ModelBase's option fuse_gate_up_exps."""
    parts = [stacked(folder, i, name) for name in ("w1", "w3")]
    without = [f"blk.{i}.ffn_{kind}_exps.weight" for kind in ("gate", "up")]
    return without, {f"blk.{i}.ffn_gate_up_exps.weight": np.concatenate(parts, axis=1)}


def projections(folder: Path, i: int) -> tuple[list[str], dict[str, np.ndarray]]:
    """Return merged permuted q, k and v, as the loader's create_tensor_qkv accepts them."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    names = [f"model.layers.{i}.self_attn.{name}_proj.weight" for name in "qkv"]
    own = converter.ARCHS["llama"][1](config, {name: tensors[name].numpy() for name in names})
    fused = np.concatenate([array for _, array in own])
    return [f"blk.{i}.attn_{name}.weight" for name in "qkv"], {f"blk.{i}.attn_qkv.weight": fused}


@pytest.mark.parametrize("layout", [one_by_one, gate_and_up, projections])
def test_other_layouts_of_mixtral(layout: Any, tmp_path: Path) -> None:
    copy_case("mixtral", tmp_path / "theirs")
    without: list[str] = []
    tensors: dict[str, np.ndarray] = {}
    for i in range(3):
        left_out, put_in = layout(tmp_path / "theirs", i)
        without += left_out
        tensors |= put_in
    path = tmp_path / "model.gguf"
    write_case("mixtral", path, tmp_path / "theirs", without=tuple(without), tensors=tensors)
    convert(path, tmp_path / "ours")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for key, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        assert torch.equal(found[key], tensor), key


def sentencepiece_keys(name: str) -> dict[str, Any]:
    """Return the keys of TextModel._set_vocab_sentencepiece; tokens outside the model come last."""
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_models.trained(name))
    pieces = range(model.vocab_size())
    kinds = {"control": 3, "unknown": 2, "unused": 5, "byte": 6}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in pieces],
        "tokenizer.ggml.scores": [model.get_score(i) for i in pieces],
        "tokenizer.ggml.token_type": [
            next((kind for say, kind in kinds.items() if getattr(model, f"is_{say}")(i)), 1)
            for i in pieces
        ],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.padding_token_id": None,
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


@pytest.mark.parametrize(
    ("arch", "vocabulary", "prefix"),
    [("gemma2", "bpe no prefix", False), ("llama", "bpe bytes", True)],
)
def test_sentencepiece_vocabulary(arch: str, vocabulary: str, prefix: bool, tmp_path: Path) -> None:
    """Gemma files disable the space prefix, and so does transformers' class."""
    keys = sentencepiece_keys(vocabulary) | {"tokenizer.ggml.add_space_prefix": prefix}
    variant = next(variant for variant, of, _ in CASES.values() if of == arch)
    count = len(keys["tokenizer.ggml.tokens"])
    tiny.make(variant, tmp_path / "theirs")
    embeddings = {"token_embd.weight": np.zeros((count, 48), np.float32)}
    if arch == "llama":
        embeddings["output.weight"] = embeddings["token_embd.weight"]
    path = tmp_path / "model.gguf"
    models.write(path, tmp_path / "theirs", arch, metadata=keys, tensors=embeddings)
    convert(path, tmp_path / "ours")
    own = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_models.trained(vocabulary))
    ours = Tokenizer.load(tmp_path / "ours")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("the quick  brown fox", "isn't 12345", "Größe 你好 q"):
        wanted = own.encode(text)
        assert ours.encode(text) == wanted
        assert theirs(text, add_special_tokens=False)["input_ids"] == wanted


def read_config(path: Path, arch: str, **metadata: Any) -> dict[str, Any]:
    """Return the config.json of a file with only the first tensor."""
    writer = gguf.GGUFWriter(path, arch)
    sizes = {
        "block_count": 3,
        "context_length": 256,
        "embedding_length": 48,
        "feed_forward_length": 80,
        "attention.head_count": 6,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }
    for key, value in (sizes | metadata).items():
        if value is not None:
            tiny_gguf.add(writer, f"{arch}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((97, 48), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model_config_json(open_gguf(path), "float32")


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_gemma_27b_has_its_own_attention_scale(arch: str, layers: int, tmp_path: Path) -> None:
    """The models with 27B parameters use hidden size / heads instead of the head size."""
    keys = {"attention.key_length": 16, "attention.sliding_window": 9}
    for count, wanted in ((layers, 8), (layers - 1, 16)):
        config = read_config(tmp_path / "x.gguf", arch, block_count=count, **keys)
        assert config["query_pre_attn_scalar"] == wanted


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [
        (None, None),
        (2, [1, 0, 1]),
        (1, [0, 0, 0]),
        (0, [1, 1, 1]),
        ([True, False, False], [1, 0, 0]),
    ],
)
def test_sliding_window_layers(pattern: Any, windows: list[int] | None, tmp_path: Path) -> None:
    keys = {
        "attention.key_length": 8,
        "attention.sliding_window": 9,
        "attention.sliding_window_pattern": pattern,
    }
    found = read_config(tmp_path / "x.gguf", "gemma3", **keys).get("layer_types")
    kinds = ("full_attention", "sliding_attention")
    assert found == (windows and [kinds[windowed] for windowed in windows])


def test_older_and_newer_rope_keys(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    assert "rope_scaling" not in read_config(path, "llama", **{"rope.scale_linear": 1.0})
    linear = {"rope_type": "linear", "factor": 4.0}
    # A factor without a type is linear scaling.
    for key in ("rope.scale_linear", "rope.scaling.factor"):
        assert read_config(path, "llama", **{key: 4.0})["rope_scaling"] == linear
    keys = {
        "type": "yarn",
        "factor": 8.0,
        "original_context_length": 32,
        "yarn_beta_fast": 30.0,
        "yarn_attn_factor": 1.2,
    }
    scaling = {f"rope.scaling.{key}": value for key, value in keys.items()}
    assert read_config(path, "qwen2", **scaling)["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 32,
        "attention_factor": 1.2,
        "beta_fast": 30.0,
    }
    with pytest.raises(BadModelFile, match="'spiral' is not supported"):
        read_config(path, "llama", **{"rope.scaling.type": "spiral"})


def test_explicit_longrope_magnitude_is_kept(tmp_path: Path) -> None:
    copy_case("phi3-longrope", tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    write_case(
        "phi3-longrope", path, tmp_path / "theirs", metadata={"rope.scaling.attn_factor": 1.5}
    )
    convert(path, tmp_path / "ours")
    assert Model.open(tmp_path / "ours").config.attention.rope.magnitude == 1.5

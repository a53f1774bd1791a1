"""GGUF files whose tensors have another form than in Hugging Face's files, or several forms."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swiftchat.engine.cpu.native_weights import NativeWeights
from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.gguf import open_gguf
from swiftchat.weights.gguf.config import model_config_json
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import models as gguf_models
from tests.support.gguf.models import CASES, copy_case, made, write_case
from tests.support.native.ops import pool
from tests.support.reference import copy_reference


def test_gemma4_runs_from_the_file(tmp_path: Path) -> None:
    """Also with keys and values that a layer does not use, as the published E2B has them."""
    reference = made("gemma4", tmp_path / "theirs")
    path, unused = tmp_path / "model.gguf", np.ones((16, 48), np.float32)
    extra = {"blk.5.attn_k.weight": unused, "blk.5.attn_v.weight": unused}
    write_case("gemma4", path, tmp_path / "theirs", tensors=extra)
    folder = gguf_directory.of_file(path, tmp_path / "ours")
    ours, theirs = (
        tiny.Bench(folder).last_logits(tiny.random_ids(12)),
        gguf_models.logits(reference)[-1],
    )
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()
    for divisors in ([1, 2, 1, 1e30, 1e30, 1e30, 1e30, 1e30], [1.0, 1.0], [1e30] * 8):
        bad = {"rope_freqs.weight": np.array(divisors, np.float32)}
        write_case("gemma4", path, tmp_path / "theirs", tensors=bad)
        with pytest.raises(BadModelFile, match=r"rope_freqs.weight matches no known rope scaling"):
            model_config_json(open_gguf(path), "float32")


def test_mistral3_without_growing_queries_is_llama(tmp_path: Path) -> None:
    copy_case("mistral", tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    without = {"rope.scaling.yarn_log_multiplier": None, "attention.temperature_scale": None}
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    rope = {**config["rope_parameters"], "mscale_all_dim": 1, "llama_4_scaling_beta": 0}
    changed = {**config, "rope_parameters": rope}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(changed))
    gguf_models.write(path, tmp_path / "theirs", "mistral3", metadata=without)
    convert(path, tmp_path / "ours")
    ours = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert ours["architectures"] == ["LlamaForCausalLM"]
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for key, tensor in load_file(tmp_path / "theirs" / "model.safetensors").items():
        assert torch.equal(found[key], tensor), key


def test_mistral3_with_a_growth_of_0_is_a_stretched_llama(tmp_path: Path) -> None:
    copy_case("mistral3", tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    write_case("mistral3", path, tmp_path / "theirs", metadata={"attention.temperature_scale": 0.0})
    convert(path, tmp_path / "ours")
    ours = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert ours["architectures"] == ["LlamaForCausalLM"]
    assert "llama_4_scaling_beta" not in ours["rope_scaling"]
    theirs = Model.open(tmp_path / "theirs").config
    assert Model.open(tmp_path / "ours").config.attention.rope == theirs.rope
    expected = gguf_models.logits(gguf_models.loaded(tmp_path / "ours"))[-1]
    found = tiny.Bench(tmp_path / "ours").last_logits(tiny.random_ids(12))
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_layers_of_jamba_must_be_evenly_spaced(tmp_path: Path) -> None:
    copy_case("jamba", tmp_path / "theirs")
    path, router = tmp_path / "model.gguf", np.ones((5, 48), np.float32)
    more = {"blk.2.ffn_gate_inp.weight": router}
    write_case("jamba", path, tmp_path / "theirs", tensors=more)
    with pytest.raises(BadModelFile, match=r"evenly spaced, found \[1, 2, 3\]"):
        model_config_json(open_gguf(path), "float32")


@pytest.mark.parametrize("name", ["qwen3next", "qwen35", "qwen35moe"])
def test_gated_deltanet_runs_from_the_file(name: str, tmp_path: Path) -> None:
    """Also with a layer at the end that predicts further tokens."""
    reference = made(name, tmp_path / "theirs")
    more = {"blk.4.nextn.eh_proj.weight": np.ones((48, 96), np.float32)}
    keys = {"block_count": 5, "nextn_predict_layers": 1}
    path = tmp_path / "model.gguf"
    write_case(name, path, tmp_path / "theirs", tensors=more, metadata=keys)
    folder = gguf_directory.of_file(path, tmp_path / "ours")
    ours, theirs = (
        tiny.Bench(folder).last_logits(tiny.random_ids(12)),
        gguf_models.logits(reference)[-1],
    )
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


@pytest.mark.parametrize("name", ["qwen2moe", "qwen35moe"])
def test_quantized_files_lack_dimensions_of_size_1(name: str, tmp_path: Path) -> None:
    """As llama.cpp writes all files that it quantizes."""
    copy_case(name, tmp_path / "theirs")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    gate = "mlp.shared_expert_gate.weight"
    gates = {key.split(".")[2]: value for key, value in stored.items() if key.endswith(gate)}
    assert gates and all(value.shape == (1, 48) for value in gates.values())
    flat = {f"blk.{i}.ffn_gate_inp_shexp.weight": v[0].numpy() for i, v in gates.items()}
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", tensors=flat)
    convert(tmp_path / "model.gguf", tmp_path / "ours")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for i, value in gates.items():
        assert torch.equal(found[f"model.layers.{i}.{gate}"], value)
    folder = gguf_directory.of_file(tmp_path / "model.gguf", tmp_path / "folder")
    ids = tiny.random_ids(12)
    ours, expected = (tiny.Bench(each).last_logits(ids) for each in (folder, tmp_path / "ours"))
    assert (ours - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("arch", ["qwen35", "qwen3next"])
@pytest.mark.parametrize("native", [False, True])
def test_gated_deltanet_stays_quantized(arch: str, native: bool, tmp_path: Path) -> None:
    """Heads are reordered by whole groups of columns, and by rows of two tensors."""
    sizes = {"hidden_size": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
    if arch == "qwen3next":  # whole tiles of gates
        sizes |= {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48}
    kind = CASES[arch][0]
    copy_reference(kind, tmp_path / "theirs", linear_num_value_heads=6, **sizes)
    path, q8 = tmp_path / "model.gguf", gguf.GGMLQuantizationType.Q8_0
    gguf_models.write(path, tmp_path / "theirs", arch, raw_type=q8)
    convert(path, tmp_path / "ours", dtype="float32")
    folder = gguf_directory.of_file(path, tmp_path / "folder", dtype="float32")
    bench, ids = tiny.Bench(folder, native=native), tiny.random_ids(12)
    mixer = bench.decoder.weights.layers[0].mixer
    assert mixer is not None
    if native:
        assert all(each.is_quantized for each in (mixer.project_in, mixer.project_out))
    names = ["in_proj_qkvz", "out_proj"] if arch == "qwen3next" else ["in_proj_qkv", "out_proj"]
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for name in (f"model.layers.0.linear_attn.{each}.weight" for each in names):
        stored = bench.checkpoint.quantized[name]
        assert stored.packed is not None and stored.read_blocks is not None
        packed = NativeWeights(pool("plain")).quantized([stored.packed.read()], torch.float32)
        assert packed is not None
        rows = packed.rows(torch.arange(packed.shape[0]))
        torch.testing.assert_close(rows, found[name], rtol=1e-5, atol=1e-7)
        assert torch.equal(torch.from_numpy(stored.dequantize(0, 64)), found[name][:64])
    ours, expected = bench.last_logits(ids), tiny.Bench(tmp_path / "ours").last_logits(ids)
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_older_files_of_qwen3_next(tmp_path: Path) -> None:
    """The first ones have the projections in one tensor, as Hugging Face's files."""
    copy_case("qwen3next", tmp_path / "theirs")
    stored = load_file(tmp_path / "theirs" / "model.safetensors")
    names = {i: f"model.layers.{i}.linear_attn.in_proj_qkvz.weight" for i in (0, 1, 3)}
    write_case(
        "qwen3next",
        tmp_path / "model.gguf",
        tmp_path / "theirs",
        tensors={f"blk.{i}.ssm_in.weight": stored[name].numpy() for i, name in names.items()},
        without=tuple(f"blk.{i}.attn_{kind}.weight" for i in names for kind in ("qkv", "gate")),
    )
    convert(tmp_path / "model.gguf", tmp_path / "ours")
    found = load_file(tmp_path / "ours" / "model.safetensors")
    for name in names.values():
        assert torch.equal(found[name], stored[name])


@pytest.mark.parametrize("is_old", [False, True])
def test_both_layouts_of_latent_attention_are_read_from_the_file(
    is_old: bool, tmp_path: Path
) -> None:
    """Since 2025 keys and values of latents are two tensors, and a head's sizes have own keys."""
    reference = made("deepseek2", tmp_path / "theirs")
    changes: dict[str, Any] = {}
    if is_old:
        places = [f"blk.{i}.attn_" for i in range(4)]
        stored = load_file(tmp_path / "theirs" / "model.safetensors")
        changes["tensors"] = {
            f"{place}kv_b.weight": stored[f"model.layers.{i}.self_attn.kv_b_proj.weight"].numpy()
            for i, place in enumerate(places)
        }
        changes["without"] = tuple(f"{at}{kind}_b.weight" for at in places for kind in "kv")
        changes["metadata"] = {
            "attention.head_count_kv": 6,
            "attention.key_length": 20,
            "attention.value_length": 10,
            "attention.key_length_mla": None,
            "attention.value_length_mla": None,
            "expert_gating_func": None,
        }
    write_case("deepseek2", tmp_path / "model.gguf", tmp_path / "theirs", **changes)
    folder = gguf_directory.of_file(tmp_path / "model.gguf", tmp_path / "ours")
    ours, theirs = (
        tiny.Bench(folder).last_logits(tiny.random_ids(12)),
        gguf_models.logits(reference)[-1],
    )
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_apertus_needs_the_numbers_of_its_activation(tmp_path: Path) -> None:
    copy_case("apertus", tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    write_case("apertus", path, tmp_path / "theirs", without=("rope_freqs.weight",))
    plain = model_config_json(open_gguf(path), "float32")["rope_parameters"]
    assert plain == {"rope_type": "default", "rope_theta": 12e6}
    for key, found, message in (
        ("beta", [0.5, 0.5, 0.4, 0.5], "xielu.beta must be 0.5"),
        ("alpha_p", [1.0], "xielu.alpha_p must be a list with a number for each layer"),
    ):
        with pytest.raises(BadModelFile, match=message):
            write_case("apertus", path, tmp_path / "theirs", metadata={f"xielu.{key}": found})
            convert(path, tmp_path / "ours")


@pytest.mark.parametrize("is_merged", [False, True])
def test_mimo2_runs_from_the_file(is_merged: bool, tmp_path: Path) -> None:
    """Also with queries, keys and values in one matrix, and a layer for further tokens."""
    reference = made("mimo2", tmp_path / "theirs")
    path, changes = tmp_path / "model.gguf", dict[str, Any]()
    if is_merged:
        stored = load_file(tmp_path / "theirs" / "model.safetensors")
        places = [(i, kind) for i in range(4) for kind in ("weight", "bias")]
        changes["without"] = tuple(f"blk.{i}.attn_{n}.{kind}" for i, kind in places for n in "qkv")
        changes["tensors"] = {
            f"blk.{i}.attn_qkv.{kind}": torch.cat(
                [stored[f"model.layers.{i}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
            ).numpy()
            for i, kind in places
        } | {"blk.4.nextn.eh_proj.weight": np.ones((48, 96), np.float32)}
        changes["metadata"] = {
            "block_count": 5,
            "nextn_predict_layers": 1,
            "attention.head_count_kv": [2, 4, 4, 4, 4],
            "attention.sliding_window_pattern": [False, *[True] * 4],
        }
    write_case("mimo2", path, tmp_path / "theirs", **changes)
    folder = gguf_directory.of_file(path, tmp_path / "ours")
    ours, theirs = (
        tiny.Bench(folder).last_logits(tiny.random_ids(12)),
        gguf_models.logits(reference)[-1],
    )
    assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_mimo2_of_other_sizes_is_refused(tmp_path: Path) -> None:
    copy_case("mimo2", tmp_path / "theirs")
    path = tmp_path / "model.gguf"
    write_case("mimo2", path, tmp_path / "theirs", metadata={"attention.value_scale": None})
    assert "attention_value_scale" not in model_config_json(open_gguf(path), "float32")
    for key, found, message in (
        ("attention.head_count_kv", [2, 4, 4, 2], "twice as many"),
        ("attention.head_count_kv", 2, "twice as many"),
        ("attention.sliding_window_pattern", None, "needs a window pattern"),
        ("rope.scaling.factor", 4.0, "rope scaling is not supported"),
    ):
        write_case("mimo2", path, tmp_path / "theirs", metadata={key: found})
        with pytest.raises(BadModelFile, match=message):
            model_config_json(open_gguf(path), "float32")

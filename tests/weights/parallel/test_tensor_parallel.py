"""Tensor-parallel shards, indivisible models, and directories converted for ranks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile, FileSystemError, UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    expected_tensors,
    shape_by_place,
    tensor_name,
)
from swiftchat.weights.convert.convert import convert, estimate_conversion
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from swiftchat.weights.parallel.division import TensorSlice
from swiftchat.weights.parallel.tensor_parallel import Shard, shard_of, tp_choices
from tests.support import tiny

ONE_OF_EACH_LAYOUT = (
    "llama-tied",
    "phi3",
    "gpt2",
    "bloom",
    "falcon-40b",
    "olmo2",
    "mixtral",
    "gpt-oss",
)


def published(name: str, **changes: Any) -> ModelConfig:
    return read_model_config({**DUMMY_CONFIGS[name], **changes})


def test_tp_choices_of_published_models() -> None:
    assert tp_choices(published("smollm2-135m")) == (1, 3)
    assert tp_choices(published("llama-3.1-8b")) == (1, 2, 4, 8, 16, 32)
    assert tp_choices(published("llama-3.1-70b")) == (1, 2, 4, 8, 16, 32, 64)
    # Qwen2.5-0.5B: groups of seven heads.
    odd = published(
        "llama-3.2-1b", num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864
    )
    assert tp_choices(odd) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "tp", "complaint"),
    [
        (
            {"num_attention_heads": 9, "num_key_value_heads": 3},
            2,
            "num_attention_heads 9 is not divisible by --tp 2",
        ),
        (
            {"num_attention_heads": 12, "num_key_value_heads": 3},
            2,
            "num_key_value_heads 3 is not divisible by --tp",
        ),
        ({"intermediate_size": 8190}, 4, "intermediate_size 8190 is not divisible by --tp 4"),
        (
            {"vocab_size": 9, "bos_token_id": 1, "eos_token_id": 2},
            8,
            "vocab_size 9 leaves nothing for the last rank of --tp 8",
        ),
        ({}, 0, "--tp 0 is less than 1"),
        ({}, -2, "--tp -2 is less than 1"),
    ],
)
def test_indivisible_size_raises_an_error(changes: dict[str, int], tp: int, complaint: str) -> None:
    config = published("llama-3.2-1b", **changes)
    with pytest.raises(UsageError, match=complaint) as caught:
        shard_of(config, tp, 0)
    known = ", ".join(map(str, tp_choices(config)))
    assert caught.value.hint == f"this model supports --tp {known}"
    with pytest.raises(UsageError, match="rank 1 does not exist with --tp 1"):
        shard_of(config, 1, 1)


def test_tensor_without_a_rule_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new kind of tensor must not be divided by a rule for another one."""
    module = "swiftchat.weights.parallel.tensor_parallel"
    known = published("llama-3.2-1b")
    shapes = {**canonical_shapes(known), "extra": (32,)}
    monkeypatch.setattr(f"{module}.canonical_shapes", lambda config: shapes)
    monkeypatch.setattr(f"{module}.tensors_after_layers", lambda config: ["final_norm", "extra"])
    with pytest.raises(UsageError, match="LlamaForCausalLM: no rule for the tensor extra"):
        shard_of(known, 2, 0)
    assert tp_choices(known) == (1,)


def cut(tensor: np.ndarray, tensor_slice: TensorSlice) -> list[np.ndarray]:
    """Return views of the slice's spans."""
    return [
        tensor[(slice(None),) * tensor_slice.axis + (slice(*span),)] for span in tensor_slice.spans
    ]


@pytest.mark.parametrize("name", [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED])
def test_ranks_together_have_every_element(name: str, tmp_path: Path) -> None:
    """Once each, except replicated tensors and shared key/value heads."""
    tiny.make(name, tmp_path)
    config = Model.open(tmp_path).config
    assert len(tp_choices(config)) > 1
    for tp in tp_choices(config):
        shards = [shard_of(config, tp, rank) for rank in range(tp)]
        copies = max(1, tp // config.attention.num_kv_heads)
        for layer in (None, *range(config.num_layers)):
            check_slices(config, shards, layer, copies)
        local = shards[-1].local_config.attention
        assert local.num_heads * tp == config.attention.num_heads
        assert local.num_kv_heads == max(1, config.attention.num_kv_heads // tp)


def check_slices(config: ModelConfig, shards: list[Shard], layer: int | None, copies: int) -> None:
    shape_of, tp = shape_by_place(config), len(shards)
    for canonical in shards[0].slices(layer):
        by_rank = [shard.slice_of(canonical, layer) for shard in shards]
        counts = np.zeros(shape_of(canonical, layer), np.int64)
        for tensor_slice in by_rank:
            for view in cut(counts, tensor_slice) if tensor_slice else []:
                assert view.size
                view += 1
        assert counts.min() >= 1, canonical
        assert set(np.unique(counts)) <= {1, copies, tp}, canonical
        if canonical in ("o_bias", "down_bias"):
            assert [tensor_slice is not None for tensor_slice in by_rank] == [True] + [False] * (
                tp - 1
            )


def test_single_rank_has_the_whole_model() -> None:
    config = published("llama-3.1-8b")
    shard = shard_of(config, 1, 0)
    assert shard.local_config is config and shard.shapes() == expected_tensors(config)


def sliced(tmp_path: Path, name: str, tp: int = 2) -> tuple[Path, Path]:
    tiny.make(name, tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "sliced", tp=tp)
    return tmp_path / "whole", tmp_path / "sliced"


@pytest.mark.parametrize("name", ONE_OF_EACH_LAYOUT)
def test_concatenated_slices_equal_the_original(name: str, tmp_path: Path) -> None:
    whole, parts = sliced(tmp_path, name)
    config = Model.open(whole).config
    original = Model.open(whole).checkpoint()
    rebuilt = {
        tensor: np.full(shape, np.nan, np.float32)
        for tensor, shape in expected_tensors(config).items()
    }
    for rank in range(2):
        shard = shard_of(config, 2, rank)
        found = load_file(parts / f"model-tp{rank}-of-2.safetensors")
        assert {n: tuple(t.shape) for n, t in found.items()} == shard.shapes()
        canonical = dict(slices_by_name(shard))
        for tensor, numbers in found.items():
            at = 0
            for view in cut(rebuilt[tensor], canonical[tensor]):
                length = view.shape[canonical[tensor].axis]
                view[...] = numbers.narrow(canonical[tensor].axis, at, length).numpy()
                at += length
    for tensor, numbers in rebuilt.items():
        assert np.array_equal(numbers.view(np.uint32), original.read(tensor).view(np.uint32)), (
            tensor
        )


def slices_by_name(shard: Shard) -> Iterator[tuple[str, TensorSlice]]:
    for canonical, layer, expert in canonical_tensors(shard.config):
        tensor_slice = shard.slice_of(canonical, layer)
        if tensor_slice is not None:
            yield tensor_name(shard.config, canonical, layer, expert), tensor_slice


def test_manifest_and_estimate_list_the_rank_files(tmp_path: Path) -> None:
    whole, parts = sliced(tmp_path, "llama")
    manifest = json.loads((parts / "swiftchat.json").read_text())
    assert manifest["tp"] == 2
    weights = {f"model-tp{rank}-of-2.safetensors" for rank in range(2)}
    assert weights < set(manifest["files"]) and "config.json" in manifest["files"]
    planned = estimate_conversion(whole, tp=2)
    assert planned.files == {name: file["bytes"] for name, file in manifest["files"].items()}
    convert(whole, tmp_path / "again")
    assert "tp" not in json.loads((tmp_path / "again" / "swiftchat.json").read_text())
    with pytest.raises(UsageError, match="num_attention_heads 6 is not divisible by --tp 4"):
        convert(whole, tmp_path / "four", tp=4)
    assert not (tmp_path / "four").exists()
    with pytest.raises(FileSystemError, match="exists already"):
        convert(whole, parts, tp=2)


def test_files_for_other_ranks_raise_an_error(tmp_path: Path) -> None:
    _, parts = sliced(tmp_path, "llama")
    model = Model.open(parts)
    shard = shard_of(model.config, 2, 1)
    assert dict(model.checkpoint(shard).tensors).keys() == shard.shapes().keys()
    for other, wanted in ((None, 1), (Shard(model.config), 1), (Shard(model.config, 3), 3)):
        with pytest.raises(
            UsageError, match=f"converted for --tp 2, not for --tp {wanted}"
        ) as caught:
            model.checkpoint(other)
        assert "use --tp 2" in caught.value.hint
    first, second = (parts / f"model-tp{rank}-of-2.safetensors" for rank in range(2))
    content = first.read_bytes()
    first.rename(second)
    with pytest.raises(
        BadModelFile, match=r"tp1-of-2\.safetensors: expected rank 1 of 2, found rank 0"
    ):
        model.checkpoint(shard)
    with pytest.raises(BadModelFile, match=r"model-tp0-of-2\.safetensors is missing"):
        model.checkpoint(shard_of(model.config, 2, 0))
    (parts / "model-tp0-of-3.safetensors").write_bytes(content)
    with pytest.raises(BadModelFile, match="files for --tp 2 and for --tp 3"):
        model.checkpoint(shard)


def test_slice_with_wrong_shape_raises_an_error(tmp_path: Path) -> None:
    """The config was changed after the conversion."""
    _, parts = sliced(tmp_path, "llama")
    config = json.loads((parts / "config.json").read_text())
    (parts / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    model = Model.open(parts)
    with pytest.raises(BadModelFile, match=r"gate_proj.*expected \[48, 48\], found \[40, 48\]"):
        model.checkpoint(shard_of(model.config, 2, 0))


def test_rank_files_keep_dtype_and_selection(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "some", tp=2, dtype="bfloat16", skip=["lm_head*"])
    found = load_file(tmp_path / "some" / "model-tp1-of-2.safetensors")
    assert "lm_head.weight" not in found
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}

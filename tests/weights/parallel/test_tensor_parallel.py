"""Who needs what of every tensor, what cannot be divided, and files cut beforehand."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile, FileSystemError, UsageError
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import (
    canonical_shapes,
    canonical_tensors,
    expected_tensors,
    tensor_name,
)
from swiftchat.weights.convert.convert import convert, estimate_conversion
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from swiftchat.weights.parallel.tensor_parallel import Shard, TensorSlice, shard_of, tp_choices
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
    return dataclasses.replace(ModelConfig.from_hf(DUMMY_CONFIGS[name]), **changes)


def test_which_numbers_of_ranks_models_allow() -> None:
    assert tp_choices(published("smollm2-135m")) == (1, 3)
    assert tp_choices(published("llama-3.1-8b")) == (1, 2, 4, 8, 16, 32)
    assert tp_choices(published("llama-3.1-70b")) == (1, 2, 4, 8, 16, 32, 64)
    # Qwen2.5-0.5B: groups of seven heads.
    odd = published("llama-3.2-1b", num_heads=14, num_kv_heads=2, intermediate_size=4864)
    assert tp_choices(odd) == (1, 2)


@pytest.mark.parametrize(
    ("changes", "tp", "complaint"),
    [
        (
            {"num_heads": 9, "num_kv_heads": 3},
            2,
            "num_attention_heads 9 is not divisible by --tp 2",
        ),
        ({"num_heads": 12, "num_kv_heads": 3}, 2, "num_key_value_heads 3 is not divisible by --tp"),
        ({"intermediate_size": 8190}, 4, "intermediate_size 8190 is not divisible by --tp 4"),
        ({"vocab_size": 9}, 8, "vocab_size 9 leaves nothing for the last rank of --tp 8"),
        ({}, 0, "--tp 0 is less than 1"),
        ({}, -2, "--tp -2 is less than 1"),
    ],
)
def test_what_cannot_be_divided_is_named(changes: dict[str, int], tp: int, complaint: str) -> None:
    config = published("llama-3.2-1b", **changes)
    with pytest.raises(UsageError, match=complaint) as caught:
        shard_of(config, tp, 0)
    known = ", ".join(map(str, tp_choices(config)))
    assert caught.value.hint == f"this model supports --tp {known}"
    with pytest.raises(UsageError, match="rank 1 does not exist with --tp 1"):
        shard_of(config, 1, 1)


def test_a_tensor_without_a_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family with a new kind of tensor must not be divided by chance."""
    module = "swiftchat.weights.parallel.tensor_parallel"
    known = published("llama-3.2-1b")
    shapes = {**canonical_shapes(known), "extra": (32,)}
    monkeypatch.setattr(f"{module}.canonical_shapes", lambda config: shapes)
    monkeypatch.setattr(f"{module}.tensors_after_layers", lambda config: ["final_norm", "extra"])
    with pytest.raises(UsageError, match="LlamaForCausalLM: no rule for the tensor extra"):
        shard_of(known, 2, 0)
    assert tp_choices(known) == (1,)


def cut(tensor: np.ndarray, part: TensorSlice) -> list[np.ndarray]:
    """Views of what a part has."""
    return [tensor[(slice(None),) * part.axis + (slice(*span),)] for span in part.spans]


@pytest.mark.parametrize("name", [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED])
def test_the_ranks_have_every_number_between_them(name: str, tmp_path: Path) -> None:
    """Once each, but for what all have and for key heads of which there are too few."""
    tiny.make(name, tmp_path)
    config = Model.open(tmp_path).config
    assert len(tp_choices(config)) > 1
    for tp in tp_choices(config):
        shares = [shard_of(config, tp, rank) for rank in range(tp)]
        copies = max(1, tp // config.num_kv_heads)
        for canonical, shape in canonical_shapes(config).items():
            if canonical not in shares[0].slices:
                continue
            counts, num_cuts = np.zeros(shape, np.int64), 0
            for share in shares:
                part = share.slices[canonical]
                for view in cut(counts, part) if part else []:
                    assert view.size
                    view += 1
                    num_cuts += 1
            assert counts.min() >= 1, canonical
            assert set(np.unique(counts)) <= {1, copies, tp}, canonical
            by_rank = [share.slices[canonical] for share in shares]
            if canonical in ("o_bias", "down_bias"):
                assert [part is not None for part in by_rank] == [True] + [False] * (tp - 1)
        local = shares[-1].local_config
        assert local.num_heads * tp == config.num_heads
        assert local.num_kv_heads == max(1, config.num_kv_heads // tp)


def test_alone_a_rank_has_the_model_as_it_is() -> None:
    config = published("llama-3.1-8b")
    share = shard_of(config, 1, 0)
    assert share.local_config is config and share.shapes() == expected_tensors(config)


def sliced(tmp_path: Path, name: str, tp: int = 2) -> tuple[Path, Path]:
    tiny.make(name, tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "sliced", tp=tp)
    return tmp_path / "whole", tmp_path / "sliced"


@pytest.mark.parametrize("name", ONE_OF_EACH_LAYOUT)
def test_slices_put_together_are_the_original(name: str, tmp_path: Path) -> None:
    whole, parts = sliced(tmp_path, name)
    config = Model.open(whole).config
    original = Model.open(whole).checkpoint()
    rebuilt = {
        tensor: np.full(shape, np.nan, np.float32)
        for tensor, shape in expected_tensors(config).items()
    }
    for rank in range(2):
        share = shard_of(config, 2, rank)
        found = load_file(parts / f"model-tp{rank}-of-2.safetensors")
        assert {n: tuple(t.shape) for n, t in found.items()} == share.shapes()
        canonical = dict(parts_by_name(share))
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


def parts_by_name(share: Shard) -> Iterator[tuple[str, TensorSlice]]:
    for canonical, layer, expert in canonical_tensors(share.config):
        part = share.slices[canonical]
        if part is not None:
            yield tensor_name(share.config, canonical, layer, expert), part


def test_the_manifest_and_the_outline_say_what_is_there(tmp_path: Path) -> None:
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


def test_files_for_other_ranks_are_refused(tmp_path: Path) -> None:
    _, parts = sliced(tmp_path, "llama")
    model = Model.open(parts)
    share = shard_of(model.config, 2, 1)
    assert dict(model.checkpoint(share).tensors).keys() == share.shapes().keys()
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
        model.checkpoint(share)
    with pytest.raises(BadModelFile, match=r"model-tp0-of-2\.safetensors is missing"):
        model.checkpoint(shard_of(model.config, 2, 0))
    (parts / "model-tp0-of-3.safetensors").write_bytes(content)
    with pytest.raises(BadModelFile, match="files for --tp 2 and for --tp 3"):
        model.checkpoint(share)


def test_a_misshapen_part_is_named(tmp_path: Path) -> None:
    """As when the config was changed afterwards."""
    _, parts = sliced(tmp_path, "llama")
    config = json.loads((parts / "config.json").read_text())
    (parts / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))
    model = Model.open(parts)
    with pytest.raises(BadModelFile, match=r"gate_proj.*expected \[48, 48\], found \[40, 48\]"):
        model.checkpoint(shard_of(model.config, 2, 0))


def test_a_dtype_and_a_selection_are_kept(tmp_path: Path) -> None:
    tiny.make("llama", tmp_path / "whole")
    convert(tmp_path / "whole", tmp_path / "some", tp=2, dtype="bfloat16", skip=["lm_head*"])
    found = load_file(tmp_path / "some" / "model-tp1-of-2.safetensors")
    assert "lm_head.weight" not in found
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}

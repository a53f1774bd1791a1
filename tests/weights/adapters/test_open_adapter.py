"""Adapters in the files of PEFT, mlx-lm and llama.cpp; invalid ones are errors of ours."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swiftchat.errors import BadModelFile, ModelNotFound, SwiftchatError
from swiftchat.weights.adapters.adapter import Adapter
from swiftchat.weights.adapters.describe import describe_adapter, is_adapter
from swiftchat.weights.adapters.open import open_adapter
from tests.support import adapter_files as files

Q = f"{files.PREFIX}model.layers.0.self_attn.q_proj"


def assert_equal(adapter: Adapter, scale: float, *, has_magnitude: bool = False) -> None:
    expected = files.random_changes()
    assert len(adapter.low_rank) == len(expected)
    for change in adapter.low_rank:
        a, b, m = expected[change.tensor.removesuffix(".weight")]
        assert np.array_equal(change.a(), a) and np.array_equal(change.b(), b)
        assert math.isclose(change.scale, scale)
        assert (change.magnitude is not None) == has_magnitude
        if change.magnitude is not None:
            assert np.array_equal(change.magnitude(), m)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_peft_directories(suffix: str, tmp_path: Path) -> None:
    folder = files.write_peft(tmp_path / "a" / "default")
    if suffix == "bin":
        (folder / "adapter_model.safetensors").unlink()
        tensors = {name: torch.from_numpy(t) for name, t in files.peft_tensors().items()}
        torch.save(tensors, folder / "adapter_model.bin")
    adapter = open_adapter(tmp_path / "a", files.CONFIG)  # the only subfolder
    assert_equal(adapter, 2.0)
    assert (adapter.base, adapter.max_rank, adapter.kind) == ("someone/tiny", 3, "LoRA")
    shown = describe_adapter(tmp_path / "a")
    assert (shown["kind"], shown["ranks"]) == ("LoRA", [3]) and is_adapter(tmp_path / "a")


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_mlx_directories(kind: str, tmp_path: Path) -> None:
    adapter = open_adapter(files.write_mlx(tmp_path / "a", kind), files.CONFIG)
    assert_equal(adapter, 2.0, has_magnitude=kind == "dora")


def test_gguf_files(tmp_path: Path) -> None:
    path = files.write_gguf(tmp_path / "a.gguf")
    assert_equal(open_adapter(path, files.CONFIG), 2.0)
    assert is_adapter(path) and describe_adapter(path)["ranks"] == [3]


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"use_rslora": True}, 6 / math.sqrt(3)),
        ({"alpha_pattern": {"q_proj|down_proj": 12}}, 4.0),
        ({"target_modules": r".*\.(q|down)_proj"}, 2.0),
        ({"target_modules": "all-linear", "layers_pattern": "layers"}, 2.0),
        ({"layers_to_transform": [0, 1]}, 2.0),
    ],
)
def test_settings(settings: dict[str, Any], scale: float, tmp_path: Path) -> None:
    adapter = open_adapter(files.write_peft(tmp_path, settings=settings), files.CONFIG)
    assert_equal(adapter, scale)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"peft_type": "P_TUNING"}, "P_TUNING"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices"),
        ({"some_new_key": {"on": 1}}, "some_new_key"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
        ({"use_dora": True}, "lora_magnitude_vector"),
        ({"use_rslora": 1}, "use_rslora"),
        ({"lora_alpha": float("nan")}, "lora_alpha"),
        ({"lora_alpha": "6"}, "lora_alpha"),
        ({"alpha_pattern": {"(": 1}}, "alpha_pattern"),
        ({"target_modules": "(a+)+$" * 20}, "target_modules"),
        ({"target_modules": ["q_proj"]}, "down_proj"),
        ({"target_modules": ["q_proj", "down_proj", "v_proj"]}, "v_proj"),
        ({"target_modules": 7}, "target_modules"),
        ({"layers_to_transform": [0]}, "model.layers.1"),
        ({"layers_to_transform": "0"}, "layers_to_transform"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(BadModelFile) as error:
        open_adapter(files.write_peft(tmp_path, settings=settings), files.CONFIG)
    assert named in error.value.message + error.value.hint


@pytest.mark.fault(48)
def test_other_bases_are_errors_with_tensor_and_shapes(tmp_path: Path) -> None:
    tensors = files.peft_tensors()
    tensors[f"{Q}.lora_A.weight"] = np.zeros((3, 32), np.float32)
    with pytest.raises(BadModelFile) as error:
        open_adapter(files.write_peft(tmp_path / "wide", tensors), files.CONFIG)
    assert error.value.exit_code == 7
    for part in (f"{Q}.lora_A.weight", "[3, 16]", "[3, 32]"):
        assert part in error.value.message
    assert "another base model" in error.value.hint
    deep = {k.replace("layers.1", "layers.9"): v for k, v in files.peft_tensors().items()}
    with pytest.raises(BadModelFile, match=r"model\.layers\.9.*2 layers"):
        open_adapter(files.write_peft(tmp_path / "deep", deep), files.CONFIG)
    saved = {**files.peft_tensors(), f"{files.PREFIX}lm_head.weight": np.ones((50, 16), "f4")}
    with pytest.raises(BadModelFile, match=r"lm_head.*\[40, 16\].*\[50, 16\]"):
        open_adapter(files.write_peft(tmp_path / "vocabulary", saved), files.CONFIG)


def test_incomplete_and_damaged_adapters(tmp_path: Path) -> None:
    tensors = files.peft_tensors()
    del tensors[f"{Q}.lora_B.weight"]
    with pytest.raises(BadModelFile, match=r"q_proj\.lora_B"):
        open_adapter(files.write_peft(tmp_path / "a", tensors), files.CONFIG)
    tensors = files.peft_tensors()
    tensors[f"{Q}.lora_A.weight"][1, 2] = np.inf
    adapter = open_adapter(files.write_peft(tmp_path / "b", tensors), files.CONFIG)
    with pytest.raises(BadModelFile, match=r"q_proj\.lora_A.*finite"):
        [change.a() for change in adapter.low_rank]
    with pytest.raises(ModelNotFound):
        open_adapter(tmp_path / "none", files.CONFIG)
    with pytest.raises(BadModelFile, match="2 adapters: a, b"):
        open_adapter(tmp_path, files.CONFIG)
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    with pytest.raises(BadModelFile, match=r"adapter_model\.safetensors"):
        open_adapter(tmp_path / "a", files.CONFIG)


def test_mutants_raise_only_our_errors(tmp_path: Path) -> None:
    """Bytes changed, cut or repeated in every kind of file: a checked adapter or our error."""
    paths = [
        files.write_peft(tmp_path / "peft") / "adapter_model.safetensors",
        files.write_peft(tmp_path / "config") / "adapter_config.json",
        files.write_mlx(tmp_path / "mlx", "dora") / "adapter_config.json",
        files.write_gguf(tmp_path / "a.gguf"),
    ]
    chooser = random.Random(0)
    for path in paths:
        original = path.read_bytes()
        for _ in range(60):
            mutant = bytearray(original)
            for _ in range(chooser.randint(1, 4)):
                at = chooser.randrange(min(len(mutant), 1500))
                mutant[at : at + chooser.choice([0, 1, 1, 5])] = chooser.randbytes(
                    chooser.choice([0, 1, 1, 4])
                )
            path.write_bytes(mutant)
            try:
                opened = path if path.suffix == ".gguf" else path.parent
                for change in open_adapter(opened, files.CONFIG).low_rank:
                    assert np.isfinite(change.a()).all() and np.isfinite(change.b()).all()
            except SwiftchatError:
                pass
        path.write_bytes(original)

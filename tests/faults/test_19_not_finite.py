"""Fault 19: the model computes logits that are NaN or infinite.

Required: the answer stops, the error names the first layer with such values, exit code 7; another
question is answered.

Provoked by: a NaN in a weight of layer 1, which ends every answer, and in the embedding of one
token, which ends only the answers to it.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.safetensors import create_safetensors
from tests.support.fake_engine import make_folder
from tests.support.program import assert_error
from tests.support.serve_processes import swiftchat

OPTIONS = ("--device", "cpu", "--temp", "0", "-n", "2", "-p")


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, np.ndarray]:
    """Random weights of a model of three layers in the folder `model`, by name."""
    folder = make_folder(tmp_path / "model", num_hidden_layers=3)
    config = ModelConfig.from_hf(json.loads((folder / "config.json").read_text()))
    draw = np.random.default_rng(0).standard_normal
    return {
        name: np.float32(draw(shape) * 0.1 + (len(shape) == 1))
        for name, shape in expected_tensors(config).items()
    }


def write(folder: Path, weights: dict[str, np.ndarray]) -> str:
    specs = [(name, "F32", array.shape) for name, array in weights.items()]
    with create_safetensors(folder / "model.safetensors", specs, {}) as writer:
        for name, array in weights.items():
            writer.write(name, array)
    return str(folder)


def test_a_poisoned_layer_is_named(tmp_path: Path, weights: dict[str, np.ndarray]) -> None:
    weights["model.layers.1.self_attn.k_proj.weight"][5, 7] = np.nan
    folder = write(tmp_path / "model", weights)
    done = swiftchat("-m", folder, *OPTIONS, "x")
    assert_error(done, 7, "not finite", "from layer 1 on")


def test_only_the_poisoned_token_ends_an_answer(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    weights["model.embed_tokens.weight"][ord("z"), 3] = np.inf
    folder = write(tmp_path / "model", weights)
    assert_error(swiftchat("-m", folder, *OPTIONS, "z"), 7, "not finite", "from layer 0 on")
    done = swiftchat("-m", folder, *OPTIONS, "a")
    assert done.returncode == 0, done.stderr

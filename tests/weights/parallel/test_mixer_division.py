"""Mixers with a state: ranks together have every element; what cannot be divided is named."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from swiftchat.errors import UsageError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.mamba import Mamba
from swiftchat.weights.architectures.parts.mixers import (
    GatedDelta,
    KimiDelta,
    Mamba2,
    ShortConv,
    StateMixer,
)
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.model.dummy import DUMMY_CONFIGS
from swiftchat.weights.parallel.division import Division
from swiftchat.weights.parallel.mixer_division import local_mixer
from swiftchat.weights.parallel.tensor_parallel import shard_of, tp_choices

HIDDEN = 24
_DELTA = GatedDelta(
    num_key_heads=4,
    num_value_heads=8,
    key_dim=3,
    value_dim=5,
    kernel=4,
    norm_eps=1e-6,
    by_key_head=True,
)
_MAMBA2 = Mamba2(
    num_heads=8,
    head_dim=3,
    num_groups=4,
    state_size=5,
    kernel=4,
    norm_eps=1e-5,
    in_bias=True,
    out_bias=True,
    conv_bias=True,
)
MIXERS: dict[str, StateMixer] = {
    "short convolution": ShortConv(16, 3, bias=True),
    "by key head": _DELTA,
    "one key head": dataclasses.replace(_DELTA, num_key_heads=1),
    "separate": dataclasses.replace(_DELTA, by_key_head=False),
    "split": dataclasses.replace(_DELTA, by_key_head=False, split=True, num_key_heads=2),
    "Kimi": KimiDelta(num_heads=8, head_dim=3, kernel=4, norm_eps=1e-5),
    "Mamba-2": _MAMBA2,
    "one group": dataclasses.replace(_MAMBA2, num_groups=1),
    "two groups": dataclasses.replace(_MAMBA2, num_groups=2),
    "Mamba": Mamba(16, 3, 2, 4, bias=True, conv_bias=True, norm_eps=1e-5, norm_weights=True),
}


def dummy(name: str) -> ModelConfig:
    return read_model_config(DUMMY_CONFIGS[name])


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS)
def test_ranks_together_have_every_element(mixer: StateMixer, size: int) -> None:
    """Once each, except key heads and groups of several ranks, and what all ranks need."""
    config = dataclasses.replace(dummy("qwen3.5-4b"), hidden_size=HIDDEN)
    layer = dataclasses.replace(config.layers[0], mixer=mixer)
    local = local_mixer(mixer, size)
    shapes, own_shapes = mixer.shapes(HIDDEN), local.shapes(HIDDEN)
    for name in mixer.tensors:
        counts, owners = np.zeros(shapes[name], np.int64), 0
        for rank in range(size):
            part = Division(config, size, rank, layer).slice_of(name, shapes[name])
            if part is None:
                continue
            owners += 1
            assert part.shape(shapes[name]) == own_shapes[name], name
            for first, end in part.spans:
                counts[(slice(None),) * part.axis + (slice(first, end),)] += 1
        if name == "mixer_out_bias":
            assert owners == 1
        else:
            shared = (1, 2, 4, 8)
            assert counts.min() >= 1 and set(np.unique(counts)) <= set(shared), name
        if name in ("mixer_out", "mixer_decay", "mixer_v", "mixer_z", "mixer_y_in"):
            assert counts.max() == 1, name


def test_rows_of_value_heads_stay_beside_their_key_head() -> None:
    """Each row of the file has its key head's number: a rank has value heads of its key heads."""
    mixer = dataclasses.replace(_DELTA, num_key_heads=2)
    config = dataclasses.replace(dummy("qwen3.5-4b"), hidden_size=HIDDEN)
    layer = dataclasses.replace(config.layers[0], mixer=mixer)
    for name in ("mixer_qkvz", "mixer_ba"):
        shape = mixer.shapes(HIDDEN)[name]
        owners = np.repeat([0, 1], shape[0] // 2)
        for rank in range(4):
            part = Division(config, 4, rank, layer).slice_of(name, shape)
            assert part is not None
            rows = np.concatenate([np.arange(*span) for span in part.spans])
            assert Counter(owners[rows]) == {rank // 2: len(rows)}


@pytest.mark.parametrize(
    ("name", "changes", "tp", "complaint"),
    [
        (
            "qwen3.5-4b",
            {"num_value_heads": 30, "num_key_heads": 15},
            4,
            "num_value_heads 30 of the",
        ),
        ("qwen3.5-4b", {"num_value_heads": 36, "num_key_heads": 6}, 4, "num_key_heads 6 of"),
        ("lfm2-1.2b", {"width": 2047}, 2, "width 2047 of the mixer is not divisible by --tp 2"),
    ],
)
def test_indivisible_mixers_are_refused(
    name: str, changes: dict[str, int], tp: int, complaint: str
) -> None:
    config = dummy(name)
    assert config.mixer is not None
    mixer = dataclasses.replace(config.mixer, **changes)  # type: ignore[type-var]
    config = config.with_layers(
        lambda layer: layer if layer.mixer is None else dataclasses.replace(layer, mixer=mixer)
    )
    with pytest.raises(UsageError, match=complaint) as caught:
        shard_of(config, tp, 0)
    known = ", ".join(map(str, tp_choices(config)))
    assert caught.value.hint == f"this model supports --tp {known}"


def test_tp_choices_of_published_models() -> None:
    found = {name: tp_choices(dummy(name)) for name in DUMMY_CONFIGS if dummy(name).mixer}
    assert found["qwen3.5-4b"] == (1, 2, 4, 8, 16)
    assert all(2 in choices for choices in found.values()), found


def test_a_model_without_attention_is_divided_by_its_channels() -> None:
    fields = {
        "architectures": ["FalconMambaForCausalLM"],
        "model_type": "falcon_mamba",
        "vocab_size": 65_024,
        "hidden_size": 4096,
        "intermediate_size": 8192,
        "num_hidden_layers": 64,
        "state_size": 16,
    }
    config = read_model_config(fields)
    assert tp_choices(config)[:4] == (1, 2, 4, 8)
    local = shard_of(config, 4, 3).local_config
    assert local.mixer == dataclasses.replace(config.mixer, width=2048)  # type: ignore[type-var]
    assert not local.has_attention

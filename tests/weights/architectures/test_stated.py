"""The stated fields of a configuration: the same for every version that reads them the same way."""

import json
from dataclasses import make_dataclass, replace
from pathlib import Path

import pytest

from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.layers import LayerConfig
from swiftchat.weights.architectures.stated import stated
from tests.support import tiny

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 400,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "rms_norm_eps": 1e-5,
}


def test_a_field_of_a_later_version_changes_nothing_until_it_is_set() -> None:
    (layer,) = read_model_config(LLAMA).layers
    added = [("twist", float, 0.0), ("turns", tuple, ())]
    later = make_dataclass("LayerConfig", added, bases=(LayerConfig,), frozen=True)
    same = later(**vars(layer))
    assert stated(same) == stated(layer)
    assert stated(replace(same, twist=1.0)) == {**stated(layer), "twist": 1.0}


@pytest.mark.parametrize("family", sorted(tiny.FAMILIES))
def test_every_family_states_its_layers_as_json(family: str, tmp_path: Path) -> None:
    tiny.make(family, tmp_path)
    config = read_model_config(json.loads((tmp_path / "config.json").read_text()))
    found = json.loads(json.dumps(stated(config)))
    assert found["family"] == config.family and len(found["layers"]) == config.num_layers
    wider = replace(config, hidden_size=config.hidden_size + 1)
    assert stated(wider) == {**stated(config), "hidden_size": wider.hidden_size}


def test_what_is_no_part_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        stated((object(),))

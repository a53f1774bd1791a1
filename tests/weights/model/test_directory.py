"""Model.open: JSON files, sizes and license of a model directory."""

import json
from pathlib import Path

import pytest
import torch
import transformers

from swiftchat.chat.model.memory import cache_bytes_per_token
from swiftchat.engine.api.memory_estimate import kv_bytes_per_token
from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.weights.model.directory import Model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def test_sizes_equal_transformers(folder: Path) -> None:
    model = Model.open(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert model.num_parameters == theirs.num_parameters()
    assert model.weights_bytes == 2 * theirs.num_parameters()
    cache = theirs(torch.zeros(1, 5, dtype=torch.long)).past_key_values
    per_token = sum(
        layer.keys[0, :, 0].numel() + layer.values[0, :, 0].numel() for layer in cache.layers
    )
    rows = per_token // model.config.attention.head_dim
    assert cache_bytes_per_token(model) == 2 * per_token
    assert cache_bytes_per_token(model, "int8") == per_token + 4 * rows
    assert kv_bytes_per_token(model.config, 4) == 4 * per_token
    assert kv_bytes_per_token(model.config, 4, "fp8") == per_token + 4 * rows


def test_end_tokens_of_the_generation_config_take_precedence(folder: Path) -> None:
    assert Model.open(folder).config.eos_ids == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert Model.open(folder).config.eos_ids == (7, 8)
    (folder / "generation_config.json").write_text('{"eos_token_id": ["7"]}')
    with pytest.raises(BadModelFile, match=r"generation_config\.json: eos_token_id"):
        Model.open(folder)


@pytest.mark.parametrize(("ids", "used"), [(50, (2,)), ([7, 50], (7,)), (-1, (2,))])
def test_end_tokens_outside_the_vocabulary_are_told(
    folder: Path, ids: int | list[int], used: tuple[int, ...]
) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    model = Model.open(folder)
    assert model.config.eos_ids == used
    told = [note for note in model.notes if "generation_config.json: eos_token_id 50" in note]
    assert len(told) == (ids != -1)


@pytest.mark.parametrize(
    ("card", "license_name"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\nlicense: no", "apache-2.0"),
        ("---\nlicense: 'mit'\n---\n", "mit"),
        ("---\nlanguage: en\n---\nlicense: mit\n", None),
        ("# Title\nlicense: mit\n", None),
        ("---\nlicense:\n---\n", None),
        ("", None),
    ],
)
def test_license_in_the_front_matter(folder: Path, card: str, license_name: str | None) -> None:
    (folder / "README.md").write_text(card)
    assert Model.open(folder).license == license_name


def test_no_license_without_a_model_card(folder: Path) -> None:
    assert Model.open(folder).license is None


def test_other_directories_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        Model.open(tmp_path / "nowhere")
    with pytest.raises(BadModelFile, match=r"config.json is missing"):
        Model.open(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "not valid JSON"),
        (b"<html>404</html>", "web page"),
        (b" " * (17 * 1024 * 1024), "larger than"),
    ],
)
def test_damaged_json_raises_an_error_that_names_the_file(
    folder: Path, name: str, content: bytes, message: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadModelFile, match=f"{name}.*{message}"):
        Model.open(folder)


def test_weights_that_contradict_the_config_raise_an_error(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    model = Model.open(folder)
    with pytest.raises(BadModelFile, match=r"no tensor model.layers.2"):
        model.checkpoint()

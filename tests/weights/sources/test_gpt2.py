"""All source layouts of GPT-2 convert to the same tensors and the same logits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from tests.support import gpt2_layouts, tiny
from tests.support.checkpoint_layouts import GPT2
from tests.support.same_logits import assert_same_logits


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, torch.Tensor]:
    """A model, and the logits of the engine for the directory that transformers writes."""
    folder = tmp_path_factory.mktemp("reference")
    model = gpt2_layouts.tiny_gpt2()
    model.save_pretrained(folder)
    return model, tiny.Bench(folder).last_logits(list(range(3, 60)))


@pytest.mark.parametrize("name", GPT2)
def test_all_layouts_convert_to_the_same_model(
    tmp_path: Path, reference: tuple[Any, torch.Tensor], name: str
) -> None:
    model, expected = reference
    GPT2[name](tmp_path / "in", model)
    convert(tmp_path / "in", tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    named = dict(model.named_parameters())
    assert set(found) == set(named)
    for tensor, value in named.items():
        assert torch.equal(found[tensor], value), tensor
    assert_same_logits(tiny.Bench(tmp_path / "out").last_logits(list(range(3, 60))), expected)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        assert_same_logits(again(ids).logits, model(ids).logits)


def test_megatron_with_an_output_layer_and_exact_gelu(tmp_path: Path) -> None:
    model = gpt2_layouts.tiny_gpt2(tie_word_embeddings=False, activation_function="gelu")
    gpt2_layouts.write_megatron_gpt2(tmp_path / "in", model, 2, 2, padded_vocab=128)
    convert(tmp_path / "in", tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        assert_same_logits(again(ids).logits, model(ids).logits)
        ours = tiny.Bench(tmp_path / "out").last_logits(ids[0].tolist())
        assert (ours - model(ids).logits[0, -1]).abs().max() < 1e-4 * ours.abs().max()


def assert_rejected(source: Path, message: str) -> None:
    with pytest.raises(BadModelFile, match=message) as caught:
        convert(source, source.parent / "out")
    assert caught.value.exit_code == 7
    assert not (source.parent / "out").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"normalization": "RMSNorm"}, "not like GPT-2.*normalization"),
        ({"position_embedding_type": "rope"}, "position_embedding_type"),
        ({"add_bias_linear": False}, "add_bias_linear"),
        ({"group_query_attention": True, "num_query_groups": 2}, "group_query_attention"),
        ({"squared_relu": True}, "squared_relu"),
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection"),
        ({"num_layers": 5}, "no tensor self_attention.linear_qkv.weight of layer 4"),
        ({"num_attention_heads": 3}, "invalid model config: .*head"),
        ({"num_attention_heads": 16, "max_position_embeddings": 100}, r"expected \[100, 64\]"),
        ({"ffn_hidden_size": 100}, r"c_fc.weight from 2 shards: expected \[64, 100\]"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": 200}, r"wte.weight from 2 shards: expected \[200, 64\], found \[104"),
    ],
)
def test_inconsistent_args_raise_an_error(
    tmp_path: Path, args: dict[str, Any], message: str
) -> None:
    gpt2_layouts.write_megatron_gpt2(tmp_path / "in", gpt2_layouts.tiny_gpt2(), 2, 2, args=args)
    assert_rejected(tmp_path / "in", message)


@pytest.mark.parametrize("version", [1.5, 4.0, -1.0, float("nan"), "3"])
def test_an_unknown_version_raises_an_error(tmp_path: Path, version: Any) -> None:
    gpt2_layouts.write_megatron_gpt2(tmp_path / "in", gpt2_layouts.tiny_gpt2())
    file = tmp_path / "in" / "mp_rank_00" / "model_optim_rng.pt"
    content = torch.load(file, weights_only=False)
    torch.save({**content, "checkpoint_version": version}, file)
    assert_rejected(tmp_path / "in", "mp_rank_00/model_optim_rng.pt: expected checkpoint_version")


@pytest.mark.parametrize("content", [[1], {"model": {}}, {"args": {}, "model": [1]}])
def test_a_shard_with_other_content_raises_an_error(tmp_path: Path, content: Any) -> None:
    gpt2_layouts.write_megatron_gpt2(tmp_path / "in", gpt2_layouts.tiny_gpt2(), 2)
    torch.save(content, tmp_path / "in" / "mp_rank_01" / "model_optim_rng.pt")
    assert_rejected(tmp_path / "in", "mp_rank_01/model_optim_rng.pt: expected args and one model")

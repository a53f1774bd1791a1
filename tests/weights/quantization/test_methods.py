"""Methods of quantized checkpoints: convert dequantizes each to an equivalent model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from tests.support import quantized_packers as packers
from tests.support import tiny
from tests.support.quantized_models import (
    FORMATS,
    compressed,
    compressed_int4,
    compressed_int8,
    quantized_model,
)
from tests.support.same_logits import assert_same_logits


@pytest.mark.parametrize("name", FORMATS)
def test_converted_model_equals_the_dequantized_weights(tmp_path: Path, name: str) -> None:
    reference = quantized_model(tmp_path / "in", *FORMATS[name])
    convert(tmp_path / "in", tmp_path / "out")
    ids = tiny.random_ids(30)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
        assert_same_logits(again(torch.tensor([ids])).logits[0], expected)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    found = tiny.Bench(tmp_path / "out").last_logits(ids)
    # The engine sums in another order: a few fp32 roundings of logits of some tens.
    torch.testing.assert_close(found, expected[-1], rtol=1e-4, atol=1e-4)


def test_settings_files_of_older_tools(tmp_path: Path) -> None:
    for name, format in (("quantize_config.json", "gptq-3"), ("quant_config.json", "awq")):
        settings, pack = FORMATS[format]
        source = tmp_path / format
        reference = quantized_model(source, settings, pack)
        config = json.loads((source / "config.json").read_text())
        del config["quantization_config"]
        (source / "config.json").write_text(json.dumps(config))
        settings = {key: value for key, value in settings.items() if key != "quant_method"}
        if format == "awq":
            settings = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"}
        (source / name).write_text(json.dumps(settings))
        convert(source, tmp_path / f"{format}-out")
        again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"{format}-out").eval()
        ids = torch.tensor([tiny.random_ids(9)])
        assert_same_logits(again(ids).logits, reference(ids).logits)
        assert not (tmp_path / f"{format}-out" / name).exists()


@pytest.mark.parametrize("name", ["gptq_model-4bit-128g", "model-4bit-128g", "a-7B-GPTQ-3bit--1g"])
@pytest.mark.parametrize("shards", [1, 2])
def test_file_names_of_older_gptq_tools(tmp_path: Path, name: str, shards: int) -> None:
    folder = tmp_path / "in"
    reference = quantized_model(folder, *FORMATS["gptq-3"])
    tensors = list(load_file(folder / "model.safetensors").items())
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for shard in range(shards):
        part = f"-{shard + 1:05}-of-{shards:05}" if shards > 1 else ""
        file = f"{name}{part}.safetensors"
        save_file(dict(tensors[shard::shards]), folder / file)
        weight_map |= dict.fromkeys(dict(tensors[shard::shards]), file)
    if shards > 1:
        index = folder / f"{name}.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    convert(folder, tmp_path / "out")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([tiny.random_ids(9)])
    assert_same_logits(again(ids).logits, reference(ids).logits)


def test_two_gptq_models_in_one_directory_raise_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    quantized_model(folder, *FORMATS["gptq-3"])
    (folder / "model.safetensors").rename(folder / "model-3bit-128g.safetensors")
    shutil.copy(folder / "model-3bit-128g.safetensors", folder / "model-3bit-32g.safetensors")
    with pytest.raises(BadModelFile, match=r"model-3bit-128g.safetensors and model-3bit-32g"):
        convert(folder, tmp_path / "out")


def test_older_field_name_of_compressed_tensors(tmp_path: Path) -> None:
    settings, pack = FORMATS["compressed-int4"]
    quantized_model(tmp_path / "in", settings, pack)
    config = json.loads((tmp_path / "in" / "config.json").read_text())
    config["compression_config"] = config.pop("quantization_config")
    del config["compression_config"]["quant_method"]
    (tmp_path / "in" / "config.json").write_text(json.dumps(config))
    assert Model.open(tmp_path / "in").checkpoint().quantized
    convert(tmp_path / "in", tmp_path / "out", dtype="bfloat16")
    assert Model.open(tmp_path / "out").config.dtype == "bfloat16"


def test_layers_with_two_schemes(tmp_path: Path) -> None:
    """Mixed precision: the tensors of a layer determine its scheme."""
    settings = compressed("mixed-precision", num_bits=8, strategy="channel")
    int4 = FORMATS["compressed-int4"][0]["config_groups"]["group_0"]
    settings["config_groups"]["group_1"] = {**int4, "format": "pack-quantized"}
    weight = torch.randn(32, 64)
    (first, expected), (second, other) = compressed_int4(weight), compressed_int8(weight)
    tensors = packers.under("a", first) | packers.under("b", second)
    plain = packers.opened(tmp_path, tensors, settings)
    assert np.array_equal(plain["a.weight"].to_float32(), expected.numpy())
    assert np.array_equal(plain["b.weight"].to_float32(), other.numpy())


def test_compressed_tensors_with_reordered_columns(tmp_path: Path) -> None:
    """Older compressed-tensors (actorder group): the file stores the group of each column."""
    settings, pack = FORMATS["compressed-int4"]
    (tensors, expected), order = pack(torch.randn(32, 64)), torch.randperm(64)
    q = packers.unpacked(tensors["weight_packed"], 4)[:, order]
    tensors["weight_packed"] = packers.tensor(packers.lines(q, 4))
    tensors["weight_g_idx"] = (torch.arange(64) // 16)[order].int()
    plain = packers.opened(tmp_path, packers.under("a", tensors), settings)
    assert np.array_equal(plain["a.weight"].to_float32(), expected[:, order].numpy())


def test_layers_that_gptq_excluded_by_pattern(tmp_path: Path) -> None:
    settings, pack = FORMATS["gptq-3"]
    settings = {**settings, "dynamic": {"-:.*b.*": {}}}
    tensors, expected = pack(torch.randn(32, 64))
    unquantized = torch.randn(3, 3)
    plain = packers.opened(
        tmp_path, packers.under("a", tensors) | {"b.weight": unquantized}, settings
    )
    assert np.array_equal(plain["a.weight"].to_float32(), expected.numpy())
    assert np.array_equal(plain["b.weight"].to_float32(), unquantized.numpy())


def test_gpt_oss_in_mxfp4(tmp_path: Path) -> None:
    """Only the expert matrices are quantized; converted, they have the layout of transformers."""
    source = tmp_path / "in"
    sizes = {"hidden_size": 64, "intermediate_size": 32, "num_attention_heads": 8}
    reference = tiny.make_with_reference("gpt-oss", source, **sizes)
    tensors, plain = load_file(source / "model.safetensors"), reference.state_dict()
    generator = torch.Generator().manual_seed(3)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(120, 126, shape, dtype=torch.uint8, generator=generator)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        plain[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    method = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (source / "config.json").write_text(json.dumps({**config, "quantization_config": method}))
    convert(source, tmp_path / "out", dtype="float32")
    ids = tiny.random_ids(16)
    with torch.inference_mode():
        expected = reference(torch.tensor([ids])).logits[0]
    ours = tiny.Bench(tmp_path / "out").logits(ids)
    assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()
    theirs = transformers.GptOssForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(theirs[name].equal(tensor) for name, tensor in plain.items())

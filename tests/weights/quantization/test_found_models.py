"""Quantized directories as people have them: heads, places of settings, foreign formats."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from swiftchat.errors import BadModelFile, DamagedModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from tests.support import quantized_packers as packers
from tests.support import tiny
from tests.support.quantized_models import FORMATS, quantized_model
from tests.support.same_logits import assert_same_logits

IDS = tiny.random_ids(12)


def change(folder: Path, **fields: Any) -> None:
    """Set fields of config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | fields
    kept = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))


def replace_tensors(folder: Path, **changes: torch.Tensor | None) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({n: t.contiguous() for n, t in tensors.items() if t is not None}, path)


def assert_runs_and_converts(folder: Path, expected: torch.Tensor, out: Path) -> None:
    """Compare the last logits: the model from the directory, and its conversion."""
    # The engine sums in another order: a few fp32 roundings of logits of some tens.
    convert(folder, out)
    for path in (folder, out):
        found = tiny.Bench(path).last_logits(IDS)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def last_logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([IDS])).logits[0, -1]


@pytest.mark.parametrize("name", ["fp8-row", "gptq-3", "awq", "nf4"])
def test_the_head_of_the_file_wins_over_the_tied_flag(tmp_path: Path, name: str) -> None:
    settings, pack = FORMATS[name]
    reference = quantized_model(tmp_path / "in", settings, pack)
    expected = last_logits(reference)
    change(tmp_path / "in", tie_word_embeddings=True)
    assert Model.open(tmp_path / "in").has_separate_head
    assert_runs_and_converts(tmp_path / "in", expected, tmp_path / "out")


def test_a_quantized_head_wins_over_the_tied_flag(tmp_path: Path) -> None:
    settings, pack = FORMATS["fp8-row"]
    reference = quantized_model(tmp_path / "in", settings, pack)
    packed, values = pack(reference.lm_head.weight)
    with torch.no_grad():
        reference.lm_head.weight.copy_(values)
    expected = last_logits(reference)
    tensors = {k.replace(".", "__"): v for k, v in packers.under("lm_head", packed).items()}
    replace_tensors(tmp_path / "in", **{"lm_head__weight": None, **tensors})
    change(tmp_path / "in", tie_word_embeddings=True)
    assert_runs_and_converts(tmp_path / "in", expected, tmp_path / "out")


def test_a_copy_of_the_embeddings_counts_as_tied(tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS["fp8-row"])
    embed = load_file(tmp_path / "in" / "model.safetensors")["model.embed_tokens.weight"]
    replace_tensors(tmp_path / "in", lm_head__weight=embed.clone())
    change(tmp_path / "in", tie_word_embeddings=True)
    model = Model.open(tmp_path / "in")
    assert model.config.head.tied and not model.has_separate_head


def multimodal(folder: Path, inner: dict[str, Any], outer: dict[str, Any]) -> None:
    """Put the model into the language model of a multimodal class."""
    config = json.loads((folder / "config.json").read_text())
    drop = ("architectures", "quantization_config", "dtype", "tie_word_embeddings")
    text = {key: value for key, value in config.items() if key not in drop}
    made = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "dtype": "float32",
        "text_config": {**text, **inner},
        **outer,
    }
    (folder / "config.json").write_text(json.dumps(made))
    tensors = load_file(folder / "model.safetensors")
    renamed = {f"language_model.{name}": value for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors")


@pytest.mark.parametrize("places", ["inner", "outer", "both"])
def test_settings_may_be_in_text_config(tmp_path: Path, places: str) -> None:
    settings, pack = FORMATS["fp8-row"]
    expected = last_logits(quantized_model(tmp_path / "in", settings, pack))
    named = {"quantization_config": settings}
    inner = {} if places == "outer" else named
    outer = {} if places == "inner" else named
    multimodal(tmp_path / "in", inner, outer)
    assert_runs_and_converts(tmp_path / "in", expected, tmp_path / "out")


def test_two_places_of_settings_must_agree(tmp_path: Path) -> None:
    settings, pack = FORMATS["fp8-row"]
    quantized_model(tmp_path / "in", settings, pack)
    other = {"quantization_config": {**settings, "quant_method": "gptq"}}
    multimodal(tmp_path / "in", other, {"quantization_config": settings})
    with pytest.raises(BadModelFile, match="differs from that of text_config"):
        Model.open(tmp_path / "in")


def test_scales_may_be_powers_of_two_and_have_another_name(tmp_path: Path) -> None:
    settings, pack = FORMATS["fp8-blocks"]
    reference = quantized_model(tmp_path / "in", settings, pack)
    tensors = load_file(tmp_path / "in" / "model.safetensors")
    changes: dict[str, torch.Tensor | None] = {}
    with torch.no_grad():
        for name, scale in tensors.items():
            if name.endswith("weight_scale_inv"):
                exponent = torch.round(torch.log2(scale)).to(torch.int32)
                stored = (exponent + 127).to(torch.uint8).view(torch.float8_e8m0fnu)
                module = name.removesuffix(".weight_scale_inv")
                changes[name.replace(".", "__")] = None
                changes[f"{module}.scale".replace(".", "__")] = stored
                rows, columns = tensors[f"{module}.weight"].shape
                height, width = settings["weight_block_size"]
                powers = torch.exp2(exponent.float())
                powers = powers.repeat_interleave(height, 0).repeat_interleave(width, 1)
                weight = tensors[f"{module}.weight"].float() * powers[:rows, :columns]
                reference.get_parameter(f"{module}.weight").copy_(weight)
    replace_tensors(tmp_path / "in", **changes)
    assert_runs_and_converts(tmp_path / "in", last_logits(reference), tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"quant_method": "quark", "quant_algo": "x"}, r"quark \(x\)"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, "auto-round"),
        ({"quant_method": "exl3", "bits": 4}, "exl3"),
        ({"bits": 4, "group_size": 64}, "mlx"),
        ({"quant_method": "x" * 500}, "xxx"),
    ],
)
def test_a_format_that_does_not_run_is_named(
    tmp_path: Path, settings: dict[str, Any], shown: str
) -> None:
    quantized_model(tmp_path / "in", *FORMATS["fp8-row"])
    change(tmp_path / "in", quantization_config=settings)
    with pytest.raises(BadModelFile, match=f"quant_method {shown}") as error:
        Model.open(tmp_path / "in").checkpoint()
    assert_names_other_forms(error.value)


def assert_names_other_forms(error: BadModelFile) -> None:
    assert not isinstance(error, DamagedModelFile)
    assert "GGUF" in error.hint and "download" not in error.hint and len(error.message) < 250


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("config.json", {"quantization": {"group_size": 64, "bits": 4}}),
        ("config.json", {"quantization_config": {"quant_method": "quark"}}),
    ],
)
def test_settings_of_other_programs_are_found(
    tmp_path: Path, place: str, content: dict[str, Any]
) -> None:
    quantized_model(tmp_path / "in", *FORMATS["fp8-row"])
    change(tmp_path / "in", quantization_config=None)
    path = tmp_path / "in" / place
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | content))
    with pytest.raises(BadModelFile, match=r"quant_method (mlx|quark)") as error:
        Model.open(tmp_path / "in").checkpoint()
    assert_names_other_forms(error.value)


def test_settings_of_model_optimizer(tmp_path: Path) -> None:
    """Its older files have the settings in a file of their own."""
    settings = {
        "producer": {"name": "modelopt", "version": "0.23.0"},
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ["lm_head", "model.layers.0*"],
        },
    }
    reference = quantized_model(tmp_path / "in", *FORMATS["modelopt-nvfp4"])
    change(tmp_path / "in", quantization_config=None)
    (tmp_path / "in" / "hf_quant_config.json").write_text(json.dumps(settings))
    assert_runs_and_converts(tmp_path / "in", last_logits(reference), tmp_path / "out")


def test_an_unused_tensor_of_another_dtype_blocks_nothing(tmp_path: Path) -> None:
    settings, pack = FORMATS["fp8-row"]
    reference = quantized_model(tmp_path / "in", settings, pack)
    foreign = torch.ones(4).to(torch.float8_e4m3fnuz)
    replace_tensors(tmp_path / "in", vision__scale=foreign)
    found = tiny.Bench(tmp_path / "in").last_logits(IDS)
    assert_same_logits(found, last_logits(reference))


def test_a_tensor_of_the_model_of_another_dtype_is_named(tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS["fp8-row"])
    change(tmp_path / "in", quantization_config=None)
    with pytest.raises(BadModelFile, match="found F8_E4M3") as error:
        Model.open(tmp_path / "in").checkpoint()
    assert not isinstance(error.value, DamagedModelFile)


def test_a_tensor_in_float64_is_rounded(tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", *FORMATS["fp8-row"])
    convert(tmp_path / "in", tmp_path / "plain")
    expected = tiny.Bench(tmp_path / "plain").last_logits(IDS)
    name = "model.layers.0.self_attn.o_proj.weight"
    wide = load_file(tmp_path / "plain" / "model.safetensors")[name].double()
    replace_tensors(tmp_path / "plain", **{name.replace(".", "__"): wide})
    assert_runs_and_converts(tmp_path / "plain", expected, tmp_path / "out")

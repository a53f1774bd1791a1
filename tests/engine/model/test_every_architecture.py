"""What the program does with a model beside computing it, for every architecture of the table.

`show` and the plan of `--tp auto`; conversion and quantization of one for each kind of tensors.
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from swiftchat.chat import cli
from swiftchat.engine.api.params import EngineConfig
from swiftchat.engine.device import device
from swiftchat.engine.ranks.auto_tp import resolve_tp
from swiftchat.errors import OutOfMemory
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.model.directory import Model
from swiftchat.weights.parallel.tensor_parallel import tp_choices
from swiftchat.weights.quantization.quantize import QuantizationSpec
from tests.support import fake_engine, reference, tiny

TYPES = (*reference.SWEPT_TYPES, *reference.ONLY_MULTIMODAL)
# One for each mixer and kind of latent attention; keys and values of other layers, experts in
# one tensor and one by one, and the language model of a multimodal one.
CONVERTED = (
    *("cohere", "dbrx", "deepseek_v3", "gemma4_text", "granitemoehybrid", "jamba", "kimi_linear"),
    *("lfm2_moe", "llama4_text", "longcat_flash", "mimo_v2_flash", "minimax", "nemotron_h"),
    *("olmo_hybrid", "qwen3_next", "qwen3_vl_moe"),
)
each_converted = pytest.mark.parametrize("made", CONVERTED, indirect=True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_engine.make_folder(tmp_path_factory.mktemp("tokenizer") / "model")


@pytest.fixture(scope="module", params=TYPES)
def made(request: pytest.FixtureRequest, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    expected = reference.copy_reference(request.param, folder)
    shutil.copyfile(tokenizer / "tokenizer.json", folder / "tokenizer.json")
    return folder, expected


def test_show_describes_the_model(made) -> None:
    folder, _ = made
    for options in ([], ["--json"]):
        result = CliRunner().invoke(
            cli.swiftchat, ["show", str(folder), *options], standalone_mode=False
        )
        assert result.exception is None, result.exception
    shown = json.loads(result.stdout)
    model = Model.open(folder)
    assert shown["architecture"] == model.config.architecture
    assert shown["parameters"] == model.num_parameters


def test_auto_tp_plans_the_memory(made, monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU with much memory is enough; with less, the model is divided or does not fit."""
    folder, _ = made
    monkeypatch.setattr(device, "find_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    choices = tp_choices(Model.open(folder).config)
    for free_bytes, possible in ((8 * 10**10, (1,)), (10**8, choices), (10**7, (None, *choices))):
        monkeypatch.setattr(device, "available_bytes", lambda gpu, free=free_bytes: free)
        found: int | None = None
        with suppress(OutOfMemory):
            found = resolve_tp(EngineConfig(tp="auto"), folder)
        assert found in possible


@each_converted
def test_conversion_keeps_the_logits(made, tmp_path: Path) -> None:
    folder, expected = made
    convert(folder, tmp_path / "converted")
    assert reference.outcome(tmp_path / "converted", expected) == "equal"


@each_converted
def test_quantized_models_equal_their_dequantized_weights(made, tmp_path: Path) -> None:
    folder, _ = made
    quantized, plain = tmp_path / "quantized", tmp_path / "plain"
    convert(folder, quantized, quantization=QuantizationSpec("int8"))
    convert(quantized, plain, dtype="float32")
    # Most weights, unless the file has the experts of a layer in one tensor.
    assert len(Model.open(quantized).quantized_tensors) >= Model.open(folder).config.num_layers
    ids = reference.prompt_ids()
    found, wanted = (tiny.Bench(each).last_logits(ids) for each in (quantized, plain))
    assert (found - wanted).abs().max() <= 1e-3 * wanted.abs().max()

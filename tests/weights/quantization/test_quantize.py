"""convert --quantize: compressed-tensors and transformers read the same weights."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.utils.match import match_targets
from safetensors.torch import load_file, save_file

from swiftchat.errors import BadModelFile, UsageError
from swiftchat.weights.convert.convert import convert, estimate_conversion
from swiftchat.weights.quantization.fp8 import nearest_e4m3
from swiftchat.weights.quantization.quantize import WEIGHT_ONLY, QuantizationSpec
from tests.support import tiny
from tests.support.same_logits import assert_same_logits
from tests.support.tiny_llama import entry_names, tiny_llama

SIZES = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4}
# Largest rounding error: half a unit, relative to the scale; for e4m3 a unit is 1/8 of the power of
# two, as it has three fraction bits.
HALF = 0.5
PARTS = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "in"
    tiny_llama(**SIZES).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def written(source: Path) -> dict[str, Path]:
    made = {}
    for scheme in WEIGHT_ONLY:
        made[scheme] = source.parent / scheme
        convert(source, made[scheme], quantization=QuantizationSpec(scheme))
    return made


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_transformers_dequantizes_the_same_weights(
    written: dict[str, Path], tmp_path: Path, scheme: str
) -> None:
    """Its dequantized weights and logits equal ours bit for bit."""
    convert(written[scheme], tmp_path / "plain")
    settings = transformers.CompressedTensorsConfig(run_compressed=False)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        written[scheme], dtype=torch.bfloat16, quantization_config=settings
    ).eval()
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain").eval()
    expected = dict(theirs.named_parameters())
    for name, weight in ours.named_parameters():
        assert torch.equal(weight, expected[name]), name
    ids = torch.tensor([tiny.random_ids(30)]) % ours.config.vocab_size
    with torch.inference_mode():
        assert_same_logits(ours(ids).logits, theirs(ids).logits)


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_every_weight_is_rounded_to_nearest(
    source: Path, written: dict[str, Path], tmp_path: Path, scheme: str
) -> None:
    convert(written[scheme], tmp_path / "plain", dtype="float32")
    plain, found = (
        load_file(source / "model.safetensors"),
        load_file(tmp_path / "plain" / "model.safetensors"),
    )
    packed = load_file(written[scheme] / "model.safetensors")
    assert set(found) == set(plain)
    for name, weight in plain.items():
        if "_proj" not in name:
            assert torch.equal(found[name], weight.float()), name
            continue
        scale = packed[f"{name.removesuffix('.weight')}.weight_scale"].float()
        if scheme == "fp8-block":
            scale = scale.repeat_interleave(128, 0)[: len(weight)]
            scale = scale.repeat_interleave(128, 1)[:, : weight.shape[1]]
        if scheme == "mxfp4":
            scale = (scale - 127).exp2()
        if scheme == "nvfp4":
            scale = scale / packed[f"{name.removesuffix('.weight')}.weight_global_scale"]
        scale = scale.repeat_interleave(weight.shape[1] // scale.shape[1], 1)
        if scheme in ("mxfp4", "nvfp4"):  # elements above 6 become 6
            size = (weight.float() / scale).abs()
            assert size.max() < (8 if scheme == "mxfp4" else 6 * (1 + 2.0**-4))
            half_unit = size.clamp(2).log2().floor().exp2() / 4
            scale = scale * 2 * half_unit.maximum(size - 6)
        if scheme.startswith("fp8"):
            unit = (weight.float() / scale).abs().clamp(2.0**-6).log2().floor().exp2() / 8
            scale = scale * unit
        # A unit in the last place of the rounded scale shifts the ends of the range.
        assert ((found[name] - weight.float()).abs() <= (HALF + 0.07) * scale).all(), name


def test_nearest_e4m3_equals_torch() -> None:
    rng = np.random.default_rng(0)
    weights = (rng.normal(size=4000) * 2.0 ** rng.integers(-14, 9, 4000)).astype(np.float32)
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    every = every[np.isfinite(every)]
    between = (np.sort(every)[1:] + np.sort(every)[:-1]) / 2
    weights = np.clip(np.concatenate([weights, every, between]), -448, 448)
    expected = torch.from_numpy(weights).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(nearest_e4m3(weights), expected)


def read_by_compressed_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return each quantized weight, with the layer group that the package selects by name.

    Transformers cannot be used: it dequantizes all layers with one group.
    """
    settings = json.loads((folder / "config.json").read_text())["quantization_config"]
    groups = QuantizationConfig.model_validate(settings).config_groups
    group_of = {target: group for group in groups.values() for target in group.targets}
    compressor = BaseCompressor.get_value_from_registry(settings["format"])
    tensors, found = load_file(folder / "model.safetensors"), {}
    for name in tensors:
        module, _, kind = name.rpartition(".")
        if kind == "weight_scale":
            group = group_of[match_targets(module, torch.nn.Linear(1, 1), group_of)[0]]
            own = {key: tensors[f"{module}.{key}"] for key in PARTS if f"{module}.{key}" in tensors}
            found[f"{module}.weight"] = compressor.decompress(own, group)["weight"]
    return found


def test_int8_head_with_int4_layers(source: Path, tmp_path: Path) -> None:
    quantization = QuantizationSpec("int4", int8=["lm_head.weight", "*.v_proj.weight"])
    convert(source, tmp_path / "out", quantization=quantization)
    convert(tmp_path / "out", tmp_path / "plain")
    ours = load_file(tmp_path / "plain" / "model.safetensors")
    plain = load_file(source / "model.safetensors")
    theirs = read_by_compressed_tensors(tmp_path / "out")
    assert {"lm_head.weight", "model.layers.0.self_attn.v_proj.weight"} < set(theirs)
    for name, weight in theirs.items():
        assert torch.equal(weight, ours[name]), name
    head = (ours["lm_head.weight"] - plain["lm_head.weight"]).float()
    largest = plain["lm_head.weight"].float().abs().amax(1, keepdim=True)
    assert head.abs().max() > 0 and (head.abs() <= largest / 120).all()
    bench, ids = tiny.Bench(tmp_path / "out", native=True), tiny.random_ids(20)
    assert bench.decoder.weights.lm_head.is_quantized
    torch.testing.assert_close(
        bench.last_logits(ids), tiny.Bench(tmp_path / "plain").last_logits(ids), rtol=0.05, atol=0.1
    )
    with pytest.raises(UsageError, match="--int8 'no' matches no matrix"):
        estimate_conversion(source, quantization=QuantizationSpec("int4", int8=["no"]))
    with pytest.raises(UsageError, match="--int8 does not work with fp8"):
        QuantizationSpec("fp8", int8=["lm_head.weight"])


def test_quantization_config_and_kept_tensors(source: Path, tmp_path: Path) -> None:
    keep = ["*.down_proj.weight"]
    convert(source, tmp_path / "out", quantization=QuantizationSpec("int4", 64, keep))
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    weights = settings["config_groups"]["group_0"]["weights"]
    assert (weights["num_bits"], weights["group_size"], weights["symmetric"]) == (4, 64, False)
    kept = {"model.layers.0.mlp.down_proj", "model.layers.1.mlp.down_proj", "lm_head"}
    assert kept <= set(settings["ignore"])
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert tensors["model.layers.0.mlp.down_proj.weight"].dtype == torch.bfloat16
    assert tensors["model.layers.0.mlp.up_proj.weight_packed"].dtype == torch.int32
    assert "model.embed_tokens.weight" in tensors
    manifest = json.loads((tmp_path / "out" / "swiftchat.json").read_text())
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert manifest["files"]["model.safetensors"]["bytes"] == size
    planned = estimate_conversion(source, quantization=QuantizationSpec("int4", 64, keep))
    assert planned.files["model.safetensors"] == size
    convert(
        source,
        tmp_path / "many",
        shard_size_bytes=60_000,
        quantization=QuantizationSpec("int4", 64, keep),
    )
    files = sorted((tmp_path / "many").glob("*.safetensors"))
    assert len(files) > 2
    together = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert together.keys() == tensors.keys()
    assert all(torch.equal(together[name], tensors[name]) for name in tensors)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == tensors.keys()


def test_zero_rows_and_tiny_weights(tmp_path: Path) -> None:
    model = tiny_llama(**SIZES)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[:64] = 0
        model.model.layers[0].self_attn.k_proj.weight[:] = 1e-38
    model.to(torch.bfloat16).save_pretrained(tmp_path / "in")
    for scheme in WEIGHT_ONLY:
        convert(tmp_path / "in", tmp_path / scheme, quantization=QuantizationSpec(scheme))
        convert(tmp_path / scheme, tmp_path / f"{scheme}-plain")
        found = load_file(tmp_path / f"{scheme}-plain" / "model.safetensors")
        assert not found["model.layers.0.self_attn.q_proj.weight"][:64].any()
        assert (found["model.layers.0.self_attn.k_proj.weight"].abs() < 1e-37).all()


def test_impossible_quantizations_raise_an_error(source: Path, tmp_path: Path) -> None:
    name = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(BadModelFile, match=rf"{name}: .* groups of 128, found 192"):
        convert(source, tmp_path / "out", quantization=QuantizationSpec("int4", 128))
    with pytest.raises(UsageError, match="matches no tensor"):
        convert(source, tmp_path / "out", quantization=QuantizationSpec("int4", 32, ["*.nowhere"]))
    with pytest.raises(UsageError, match="does not work with --tp"):
        convert(source, tmp_path / "out", tp=2, quantization=QuantizationSpec("int8"))
    with pytest.raises(UsageError, match="is left to quantize"):
        convert(source, tmp_path / "out", quantization=QuantizationSpec("int8", 32, ["*proj*"]))
    with pytest.raises(UsageError, match="unknown quantization scheme"):
        QuantizationSpec("int3")
    with pytest.raises(UsageError, match="group size 48"):
        QuantizationSpec("int4", 48)
    assert entry_names(tmp_path) == []


@pytest.mark.parametrize("scheme", WEIGHT_ONLY)
def test_missing_or_infinite_scales_raise_an_error(
    written: dict[str, Path], tmp_path: Path, scheme: str
) -> None:
    for change in ("missing", "infinite"):
        folder = tmp_path / change
        folder.mkdir()
        for file in written[scheme].iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        tensors = load_file(folder / "model.safetensors")
        name = "model.layers.1.mlp.up_proj.weight_scale"
        if change == "missing":
            del tensors[name]
        else:
            # NaN as e8m0; float8 has no infinity.
            odd = {"mxfp4": 255, "nvfp4": math.nan}.get(scheme, math.inf)
            tensors[name][-1] = odd
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(BadModelFile, match=r"layers\.1\.mlp\.up_proj"):
            convert(folder, tmp_path / "out")

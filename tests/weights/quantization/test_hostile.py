"""Malformed quantized checkpoints raise one error that names the field or the tensor."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.quantization.methods import model_tensors, select_expected
from swiftchat.weights.quantization.settings_files import split_settings
from tests.support import quantized_packers as packers
from tests.support.quantized_models import AWQ, FORMATS, FP8, Packed, awq, fp8_row, quantized_model

KINDS = {
    torch.int32: "I32",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.int64: "I64",
}


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("awq", {"quant_method": "hqq"}, "quantized with quant_method hqq, which"),
        ("awq", {"quant_method": ["awq"]}, "quant_method must be one of gptq"),
        ("awq", {"quant_method": None}, "quant_method is missing"),
        ("awq", {"version": "gemv"}, "version must be one of gemm, not 'gemv'"),
        ("awq", {"zero_point": False}, "zero_point must be true"),
        ("awq", {"bits": 3}, "bits must be 4, not 3"),
        ("awq", {"group_size": 48}, "a multiple of 48 columns, found 64"),
        ("awq", {"group_size": 0}, "group_size must be -1 or a size, not 0"),
        ("awq", {"group_size": 10**400}, "group_size must be -1 or a size, not int"),
        ("awq", {"group_size": 64}, r"scales: expected the shape \[1, 64\], found \[2, 64\]"),
        ("awq", {"rotation": "hadamard"}, "the field rotation is unknown"),
        ("awq", {"x" * 500: 1}, "the field x+… is unknown"),
        ("gptq-2", {"bits": 4}, r"qzeros: expected the shape|scales: expected the shape"),
        ("gptq-2", {"bits": 5}, "bits must be 2, 3, 4 or 8, not 5"),
        ("gptq-2", {"bits": True}, "bits must be 2, 3, 4 or 8, not True"),
        ("gptq-2", {"group_size": None}, "group_size is missing"),
        ("gptq-2", {"desc_act": "yes"}, "desc_act must be true or false"),
        ("gptq-2", {"desc_act": True}, r"no tensor model.layers.0.self_attn.q_proj.g_idx"),
        ("gptq-2", {"checkpoint_format": "marlin"}, "checkpoint_format must be one of gptq"),
        ("gptq-2", {"checkpoint_format": "gptq", "format": "gptq_v2"}, "format must be gptq, as"),
        ("gptq-2", {"dynamic": {"+:a": {"bits": 8}}}, "dynamic must be patterns that begin"),
        ("fp8-blocks", {"weight_block_size": None}, "weight_scale_inv: expected one element or 64"),
        ("fp8-blocks", {"weight_block_size": [0, 1]}, "weight_block_size must be two sizes"),
        ("fp8-blocks", {"weight_block_size": [64, 64]}, r"the shape \[1, 1\], found \[2, 3\]"),
        ("fp8-blocks", {"expert_dtype": "fp4"}, "expert_dtype must be one of fp8"),
        ("compressed-int4", {"format": "marlin-24"}, "format must be one of pack-quantized"),
        ("compressed-int4", {"quantization_status": "calibration"}, "quantization_status must be"),
        ("compressed-int4", {"config_groups": {}}, "config_groups: expected 1 to 64, found 0"),
        ("compressed-int4", {"config_groups": {"a": {"weights": {"num_bits": 3}}}}, "num_bits"),
        ("compressed-int4", {"config_groups": {"a": {"weights": {"num_bits": 4}}}}, "match 0 of"),
        ("compressed-int4", {"config_groups": {"a": {"weights": 4}}}, "weights must be an object"),
        ("compressed-int4", {"config_groups": {"a": {"weights": {"dynamic": True}}}}, "dynamic"),
        ("compressed-int4", {"transform_config": {"config_groups": {"u": 1}}}, "transform_config"),
        ("compressed-int4", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "format must be"),
        (
            "compressed-mxfp4",
            {
                "config_groups": {
                    "a": {"weights": {"type": "float", "num_bits": 4, "group_size": 64}}
                }
            },
            "group_size must be 32, symmetric: MXFP4, or 16: NVFP4",
        ),
        (
            "compressed-mxfp4",
            {"config_groups": {"a": {"weights": {"num_bits": 4}}}},
            "q_proj.weight_packed: expected I32, as no config_group has floats of 4 bits",
        ),
        ("modelopt-nvfp4", {"quant_algo": "NVFP4_AWQ"}, "quant_algo must be one of nvfp4, fp8"),
        ("modelopt-nvfp4", {"quant_algo": None}, "quant_algo is missing"),
        ("modelopt-nvfp4", {"group_size": 32}, "group_size must be 16, not 32"),
        ("modelopt-nvfp4", {"quantization": {"quant_algo": "W4A8_AWQ"}}, "quant_algo must be one"),
        ("modelopt-nvfp4", {"rotation": "hadamard"}, "the field rotation is unknown"),
        ("nf4", {"bnb_4bit_quant_storage": "bfloat16"}, "storage must be one of uint8"),
        ("int8", {"llm_int8_has_fp16_weight": True}, "llm_int8_has_fp16_weight must be false"),
        ("awq", {"quant_method": "mxfp4"}, "the field bits is unknown"),
        ("fp8-row", {"quant_method": "bitsandbytes"}, "the field activation_scheme is unknown"),
    ],
)
def test_invalid_settings_raise_an_error_that_names_them(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    own, pack = FORMATS[name]
    tensors = packers.under("model.layers.0.self_attn.q_proj", pack(torch.randn(64, 64))[0])
    with pytest.raises(BadModelFile, match=message):
        packers.opened(tmp_path, tensors, {**own, **settings})


@pytest.mark.parametrize(
    ("format", "part", "replaced", "message"),
    [
        ("gptq-3", "scales", None, "no tensor a.scales"),
        ("gptq-3", "qzeros", None, "no tensor a.qzeros"),
        ("gptq-3", "qweight", torch.zeros(5, 64, dtype=torch.int32), "whole words of 3 bits"),
        ("gptq-3", "qweight", torch.zeros(6, 64), "a.qweight: expected one of I32, found F32"),
        ("gptq-3", "qweight", torch.zeros(0, 64, dtype=torch.int32), "2 axes, none empty"),
        ("gptq-3", "g_idx", torch.zeros(9, dtype=torch.int32), r"g_idx: expected the shape \[64\]"),
        ("gptq-3", "g_idx", torch.full((64,), 2, dtype=torch.int32), "groups from 0 to 1"),
        ("gptq-3", "g_idx", torch.full((64,), -1, dtype=torch.int32), "groups from 0 to 1"),
        ("gptq-3", "weight", torch.zeros(64, 64), "a.weight is stored twice"),
        ("awq", "qzeros", torch.zeros(2, 9, dtype=torch.int32), r"qzeros: expected the shape"),
        ("awq", "scales", torch.zeros(2, 64, dtype=torch.int32), "scales: expected one of F16"),
        ("compressed-int4", "weight_shape", torch.tensor([64, 1000]), r"weight_shape: expected 64"),
        ("compressed-int4", "weight_shape", torch.tensor([64, -1]), r"weight_shape: expected 64"),
        (
            "compressed-int4",
            "weight_shape",
            torch.tensor([64, 61]),
            "match 0 of the 1 config_groups",
        ),
        ("compressed-int4", "weight_scale", None, "match 0 of the 1 config_groups"),
        ("compressed-int4", "weight_zero_point", None, "match 0 of the 1 config_groups"),
        ("compressed-int4", "weight_g_idx", torch.full((64,), 4), "groups from 0 to 3"),
        ("compressed-w8a8", "weight_scale", None, "no tensor a.weight_scale"),
        ("compressed-w8a8", "weight_scale", torch.ones(64, 3), "matches 0 of the 1 config_groups"),
        ("fp8-row", "weight_scale", None, "expected one scale for it.* found 0"),
        ("fp8-row", "weight_scale_inv", torch.ones(1), "expected one scale for it.* found 2"),
        ("fp8-row", "weight_scale", torch.ones(63), "weight_scale: expected one element or 64"),
        ("fp8-row", "weight_scale", torch.ones(64, dtype=torch.int8), "expected one of F16"),
        ("compressed-mxfp4", "weight_scale", None, "no tensor a.weight_scale"),
        (
            "compressed-mxfp4",
            "weight_scale",
            torch.zeros(64, 3, dtype=torch.uint8),
            r"a.weight_scale: expected the shape \[64, 2\], found \[64, 3\]",
        ),
        (
            "compressed-mxfp4",
            "weight_scale",
            torch.ones(64, 2),
            "a.weight_scale: expected one of U8, F8_E8M0, found F32",
        ),
        (
            "compressed-mxfp4",
            "weight_packed",
            torch.zeros(64, 31, dtype=torch.uint8),
            "a.weight_packed: expected columns in groups of 32, found 62",
        ),
        (
            "compressed-mxfp4",
            "weight_packed",
            torch.zeros(0, 32, dtype=torch.uint8),
            "a.weight_packed: expected 2 axes, none empty",
        ),
        ("compressed-nvfp4", "weight_scale", None, "no tensor a.weight_scale"),
        ("compressed-nvfp4", "weight_global_scale", None, "no tensor a.weight_global_scale"),
        ("modelopt-nvfp4", "weight_scale_2", None, "no tensor a.weight_scale_2: expected .* F32"),
        ("modelopt-nvfp4", "weight_scale", None, "no tensor a.weight_scale"),
        ("modelopt-fp8", "weight_scale", None, "no tensor a.weight_scale"),
        (
            "modelopt-nvfp4",
            "weight_scale",
            torch.ones(64, 4),
            "a.weight_scale: expected one of F8_E4M3, found F32",
        ),
        (
            "modelopt-nvfp4",
            "weight_scale",
            torch.ones(64, 5).to(torch.float8_e4m3fn),
            r"a.weight_scale: expected the shape \[64, 4\], found \[64, 5\]",
        ),
        (
            "modelopt-nvfp4",
            "weight_scale_2",
            torch.ones(2),
            r"a.weight_scale_2: expected the shape \[\], found \[2\]",
        ),
        (
            "modelopt-nvfp4",
            "weight_scale_2",
            torch.ones(1).half(),
            "expected one of F32, found F16",
        ),
        *(
            (format, part, torch.tensor([value]), rf"a.{part}: expected a scale from")
            for format, part in (
                ("modelopt-nvfp4", "weight_scale_2"),
                ("compressed-nvfp4", "weight_global_scale"),
            )
            for value in (0.0, -1.0, math.nan, math.inf, 1e-38)
        ),
        (
            "modelopt-nvfp4",
            "weight",
            torch.zeros(64, 31, dtype=torch.uint8),
            "a.weight: expected columns in groups of 16, found 62",
        ),
        (
            "modelopt-nvfp4",
            "input_quantizer._pre_quant_scale",
            torch.ones(64),
            "_pre_quant_scale: expected no factors of inputs",
        ),
        ("nf4", "weight.absmax", None, "no tensor a.weight.absmax"),
        ("nf4", "weight.quant_map", torch.ones(17), r"quant_map: expected the shape \[16\]"),
        ("nf4", "weight", torch.ones(5, 1, dtype=torch.uint8), r"expected the shape \[2048, 1\]"),
        ("nf4", "state", b'{"blocksize": 3}', "shape is missing"),
        ("nf4", "state", b'{"shape": [64, 64], "blocksize": 3}', "blocksize must be an even size"),
        ("nf4", "state", b'{"shape": [64, 64], "blocksize": 1e9}', "an even size"),
        ("nf4", "state", b'{"shape": [64, 64], "spin": 3}', "the field spin is unknown"),
        ("nf4", "state", b"[" * 50_000, "expected JSON"),
        ("nf4", "state", b" " * 70_000, "at most 65536 bytes"),
        ("int8", "weight_format", torch.tensor(1, dtype=torch.uint8), "rows in their own order"),
        ("int8", "SCB", torch.ones(3), r"SCB: expected the shape \[64\]"),
    ],
)
def test_invalid_tensors_raise_an_error_that_names_them(
    tmp_path: Path, format: str, part: str, replaced: Any, message: str
) -> None:
    settings, pack = FORMATS[format]
    tensors = packers.under("a", pack(torch.randn(64, 64))[0])
    tensors["b.unused"] = torch.ones(1)
    name = f"a.{part}"
    if isinstance(replaced, bytes):
        name = "a.weight.quant_state.bitsandbytes__nf4"
        replaced = torch.tensor(list(replaced), dtype=torch.uint8)
    tensors.pop(name, None)
    if replaced is not None:
        tensors[name] = replaced
    with pytest.raises(BadModelFile, match=message):
        for tensor in packers.opened(tmp_path, tensors, settings).values():
            tensor.to_float32()


@pytest.mark.parametrize("method", ["gptq", "awq", "fp8", "mxfp4", "modelopt", "bitsandbytes"])
def test_settings_without_quantized_tensors_raise_an_error(tmp_path: Path, method: str) -> None:
    settings = {"quant_method": method}
    if method in ("gptq", "awq"):
        settings |= {"bits": 4, "group_size": 32}
    if method == "modelopt":
        settings["quant_algo"] = "NVFP4"
    with pytest.raises(BadModelFile, match=f"quant_method is {method}, but no tensor"):
        packers.opened(tmp_path, {"a.weight": torch.ones(2, 2)}, settings)


@pytest.mark.parametrize("format", ["compressed-nvfp4", "modelopt-nvfp4"])
def test_packed_nvfp4_scales_must_be_finite(tmp_path: Path, format: str) -> None:
    settings, pack = FORMATS[format]
    tensors = packers.under("a", pack(torch.randn(3, 64))[0])
    tensors["a.weight_scale"].view(torch.uint8)[-1, -1] = 0xFF
    stored = packers.opened(tmp_path, tensors, settings)["a.weight"]
    assert stored.packed is not None
    with pytest.raises(BadModelFile, match=r"tensor a\.weight_scale: expected finite scales"):
        stored.packed.read()


def test_mxfp4_scales_must_match(tmp_path: Path) -> None:
    blocks = torch.zeros(2, 3, 4, 16, dtype=torch.uint8)
    for name, scales in (("e_scales", blocks[0, :, :, 0].clone()), ("other", blocks.clone())):
        with pytest.raises(BadModelFile, match="e_scales"):
            packers.opened(tmp_path, {"e_blocks": blocks, name: scales}, {"quant_method": "mxfp4"})


@pytest.mark.parametrize("value", [253, 255])
def test_packed_mxfp4_weights_must_be_finite(tmp_path: Path, value: int) -> None:
    """255 is NaN; 6, the largest element, times 2^126 is infinite."""
    experts = {"e_blocks": torch.zeros(2, 3, 4, 16).byte(), "e_scales": torch.zeros(2, 3, 4).byte()}
    dense = {"e.weight_packed": torch.zeros(3, 32).byte(), "e.weight_scale": torch.zeros(3, 2)}
    dense["e.weight_scale"] = dense["e.weight_scale"].byte()
    settings = {"quant_method": "mxfp4"}, FORMATS["compressed-mxfp4"][0]
    for tensors, own in zip((experts, dense), settings, strict=True):
        *_, scale = tensors
        tensors[scale].view(-1)[-1] = value
        (tensor,) = packers.opened(tmp_path, tensors, own).values()
        assert tensor.packed is not None
        with pytest.raises(BadModelFile, match=rf"tensor {scale}: expected .* 252 .* {value}"):
            tensor.packed.read()


def test_missing_tensors_raise_an_error(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(4, 4).char(), "a.SCB": torch.ones(4)}
    plain = packers.opened(tmp_path, tensors, {"quant_method": "bitsandbytes"})
    assert list(select_expected(plain, {"a.weight": (4, 4)})) == ["a.weight"]
    with pytest.raises(BadModelFile, match=r"a.weight: expected \[4, 5\], found \[4, 4\] \(int8\)"):
        select_expected(plain, {"a.weight": (4, 5)})
    with pytest.raises(BadModelFile, match=r"no tensor b.weight: expected \[4\], found at most a."):
        select_expected(plain, {"b.weight": (4,)})


def test_an_unexpected_bias_must_be_zero(tmp_path: Path) -> None:
    tensors = {"a.weight": torch.ones(4, 4).char(), "a.SCB": torch.ones(4), "b.bias": torch.ones(4)}
    for bias in (torch.zeros(4), torch.tensor([0, 0, 0, 0.5])):
        tensors["a.bias"] = bias.half()
        plain = packers.opened(tmp_path, tensors, {"quant_method": "bitsandbytes"})
        if not bias.any():
            assert list(select_expected(plain, {"a.weight": (4, 4)})) == ["a.weight"]
    with pytest.raises(BadModelFile, match=r"tensor a.bias is not zero"):
        select_expected(plain, {"a.weight": (4, 4)})
    assert "a.bias" in select_expected(plain, {"a.weight": (4, 4), "a.bias": (4,)})


def test_elements_that_are_not_finite_raise_an_error(tmp_path: Path) -> None:
    def pack(weight: torch.Tensor) -> Packed:
        tensors, values = fp8_row(weight)
        tensors["weight"].view(torch.uint8)[1, 1] = 0x7F
        return tensors, values

    quantized_model(tmp_path / "in", FP8, pack)
    with pytest.raises(BadModelFile, match=r"q_proj.weight has elements that are not finite"):
        convert(tmp_path / "in", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("field", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("found", [["awq"], "awq", 4])
def test_settings_that_are_no_object_raise_an_error(
    tmp_path: Path, field: str, found: object
) -> None:
    with pytest.raises(BadModelFile, match=f"{field} must be an object"):
        split_settings(tmp_path, {field: found})


def test_the_command_exits_with_7(tmp_path: Path) -> None:
    quantized_model(tmp_path / "in", {**AWQ, "quant_method": "aqlm"}, awq)
    command = [sys.executable, "-m", "swiftchat.chat", "convert", "in", "out"]
    result = subprocess.run(command, capture_output=True, cwd=tmp_path, text=True)
    assert result.returncode == 7
    first, hint = result.stderr.splitlines()
    assert first.startswith("error: the model is quantized with quant_method aqlm, which")
    assert "GGUF" in hint and "download" not in hint


def test_random_tensor_tables_raise_our_error_or_are_read() -> None:
    """With random shapes and dtypes, reading raises `BadModelFile` or returns a tensor."""
    random = np.random.default_rng(0)
    dtypes = {"I32": "<i4", "F16": "<f2", "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "F32": "<f4"}
    dequantized = 0
    for _ in range(600):
        settings, pack = FORMATS[str(random.choice(list(FORMATS)))]
        table = {}
        for part, tensor in packers.under("a", pack(torch.randn(64, 64))[0]).items():
            shape = tuple(tensor.shape)
            if random.random() < 0.3:
                shape = tuple(int(size) for size in random.choice([0, 1, 2, 3, 8, 64], len(shape)))
            dtype = KINDS[tensor.dtype]
            dtype = str(random.choice(list(dtypes))) if random.random() < 0.1 else dtype
            table[part] = TensorInfo(part, Path("file"), dtype, shape, 0, 0)

        def read(name: str, table: dict[str, TensorInfo] = table) -> np.ndarray:
            info = table[name]
            return random.integers(0, 3, info.shape).astype(dtypes.get(info.dtype, "<i8"))

        try:
            for tensor in model_tensors(settings, table, read).values():
                if tensor.format != "plain":
                    assert tensor.to_float32().shape == tensor.shape
                    dequantized += 1
        except BadModelFile:
            continue
    assert dequantized > 30


def test_reordered_columns_need_an_index(tmp_path: Path) -> None:
    settings, pack = FORMATS["compressed-int4"]
    weights = settings["config_groups"]["group_0"]["weights"]
    group = {"targets": ["Linear"], "weights": {**weights, "actorder": "group"}}
    tensors = packers.under("a", pack(torch.randn(32, 64))[0])
    with pytest.raises(BadModelFile, match=r"no tensor a.weight_g_idx"):
        packers.opened(tmp_path, tensors, {**settings, "config_groups": {"group_0": group}})


FIELDS = sorted(
    {field for settings, _ in FORMATS.values() for field in settings}
    | {
        "weight_block_size",
        "checkpoint_format",
        "dynamic",
        "sparsity_config",
        "static_groups",
        "weights",
        "num_bits",
        "strategy",
        "group_0",
        "block_structure",
        "actorder",
        "symmetric",
    }
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=9)
    | st.sampled_from(["gptq", "compressed-tensors", "block", "group", "2x2", "xx", "float"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(name=st.sampled_from(sorted(FORMATS)), field=st.sampled_from(FIELDS), value=JSON)
def test_any_json_settings_are_read_or_raise_our_error(name: str, field: str, value: Any) -> None:
    """Without tensors, valid settings too raise an error: no tensor is quantized."""
    settings = {**FORMATS[name][0], field: value}
    if field == "weights":
        settings["config_groups"] = {"group_0": {"weights": value}}
        del settings[field]
    with pytest.raises(BadModelFile):
        model_tensors(settings, {}, lambda name: np.zeros(0))

"""The table of quantization methods, and the tensors that each reads from a checkpoint."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.tensor_info import TensorInfo
from swiftchat.weights.quantization import (
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gguf_blocks,
    gptq,
    mxfp4,
    nvfp4,
)
from swiftchat.weights.quantization.settings import Settings, shorten
from swiftchat.weights.quantization.stored_tensor import CheckedTensors, Read, StoredTensor

# For hints: what to choose instead of a form that does not run.
RUNNING_FORMS = "GGUF (such as Q4_K_M or Q8_0), GPTQ, AWQ, FP8, NVFP4, or the unquantized weights"

Method = Callable[[Settings, CheckedTensors], dict[str, StoredTensor]]

_METHODS: Mapping[str, Method] = {
    "gptq": gptq.tensors,
    "awq": awq.tensors,
    "compressed-tensors": compressed_tensors.tensors,
    "fp8": fp8.tensors,
    "fbgemm_fp8": fp8.tensors,
    "gguf": gguf_blocks.tensors,
    "mxfp4": mxfp4.tensors,
    "modelopt": nvfp4.tensors,
    "bitsandbytes": bitsandbytes.tensors,
}


def model_tensors(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], read: Read
) -> dict[str, StoredTensor]:
    """Return every tensor of the unquantized model by its Hugging Face name.

    Nothing is dequantized yet. The tensors of a layer show whether it is quantized, so layers in
    `modules_to_not_convert` or `ignore` are returned as plain tensors.

    Raises `BadModelFile` with the field of `settings` that is unknown or impossible, or the
    tensor that is missing or has the wrong shape.
    """
    checked = Settings(settings, "quantization_config")
    method = _METHODS.get(_method(checked))
    if method is None:
        raise _unknown_method(checked)
    source = CheckedTensors(tensors, read)
    found = method(checked, source)
    if not found:
        raise BadModelFile(f"quant_method is {_method(checked)}, but no tensor is quantized")
    used = {name for tensor in found.values() for name in tensor.parts.values()}
    both = [name for name in found if name in tensors and name not in used]
    if both:
        raise BadModelFile(f"tensor {both[0]} is stored twice, quantized and plain")
    rest = {name: source.plain(name) for name in tensors if name not in used}
    return {**found, **rest}


def _method(settings: Settings) -> str:
    value = settings.fields.get("quant_method")
    if not isinstance(value, str):
        raise settings.error("quant_method", f"one of {', '.join(_METHODS)}", value)
    return value.lower()


def _unknown_method(settings: Settings) -> BadModelFile:
    """Return the error for a method that this program does not run, with its variant if any."""
    method, fields = _method(settings), settings.fields
    nested = fields.get("quantization")
    variant = fields.get("quant_algo") or (
        nested.get("quant_algo") if isinstance(nested, Mapping) else fields.get("packing_format")
    )
    shown = f"{method} ({variant})" if isinstance(variant, str) else method
    return BadModelFile(
        f"the model is quantized with quant_method {shorten(shown)}, which this version does not "
        "run",
        f"choose another published form of the same model: {RUNNING_FORMS}",
    )


def select_expected(
    tensors: Mapping[str, StoredTensor], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, StoredTensor]:
    """Return the `expected` tensors; `BadModelFile` names one missing or of another shape.

    Some tools add zero biases to layers without bias. A nonzero one raises `BadModelFile`.
    """
    for name, shape in expected.items():
        if name not in tensors:
            near = difflib.get_close_matches(name, tensors, n=1)
            found = f"found at most {near[0]}" if near else f"found {len(tensors)} other tensors"
            raise BadModelFile(f"no tensor {name}: expected {list(shape)}, {found}")
        if tensors[name].shape != shape:
            raise BadModelFile(
                f"tensor {name}: expected {list(shape)}, found {list(tensors[name].shape)} "
                f"({tensors[name].format})"
            )
    for name, tensor in tensors.items():
        weight = f"{name.removesuffix('.bias')}.weight"
        unexpected = name.endswith(".bias") and name not in expected and weight in expected
        if unexpected and tensor.to_float32().any():
            raise BadModelFile(f"tensor {name} is not zero, but the model has no such bias")
    return {name: tensors[name] for name in expected}

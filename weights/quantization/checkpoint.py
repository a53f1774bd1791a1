"""Quantized checkpoints as the plain model they stand for, one tensor at a time."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.formats.safetensors import TensorInfo
from swiftchat.weights.quantization import (
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gguf_blocks,
    gptq,
    mxfp4,
)
from swiftchat.weights.quantization.quantized_tensor import PackedTensor, Read, Source
from swiftchat.weights.quantization.settings import Settings, shortened

__all__ = ["FIELDS", "PackedTensor", "plain_tensors", "select", "settings_in"]

Method = Callable[[Settings, Source], dict[str, PackedTensor]]

# Fields of config.json; the second is the older name of compressed-tensors.
FIELDS = ("quantization_config", "compression_config")
# Files that older tools wrote in their place, and the method each stands for.
_BESIDE: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}

_METHODS: Mapping[str, Method] = {
    "gptq": gptq.tensors,
    "awq": awq.tensors,
    "compressed-tensors": compressed_tensors.tensors,
    "fp8": fp8.tensors,
    "fbgemm_fp8": fp8.tensors,
    "gguf": gguf_blocks.tensors,
    "mxfp4": mxfp4.tensors,
    "bitsandbytes": bitsandbytes.tensors,
}


def settings_in(directory: Path) -> Mapping[str, Any] | None:
    """How the model of `directory` is quantized, `quant_method` included; None: it is not.

    The files that older tools wrote beside `config.json` count only where that says nothing.
    """
    if not (directory / "config.json").is_file():
        return None
    config_json = read_json(directory / "config.json")
    for field in FIELDS:
        found = config_json.get(field)
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise BadModelFile(f"config.json: {field} must be an object")
        default = {"quant_method": "compressed-tensors"} if field == FIELDS[1] else {}
        return {**default, **found}
    for name, method in _BESIDE.items():
        if (directory / name).is_file():
            return {"quant_method": method, **read_json(directory / name)}
    return None


def plain_tensors(
    settings: Mapping[str, Any], tensors: Mapping[str, TensorInfo], read: Read
) -> dict[str, PackedTensor]:
    """Every tensor of the plain model by its Hugging Face name, and all that is not quantized.

    Nothing is decoded yet. Whether a layer is quantized is told by its tensors, so what
    `modules_to_not_convert` or `ignore` left alone stays as it is.

    Raises `BadModelFile` naming the field of `settings` that is unknown or impossible, or the
    tensor that is missing or misshapen.
    """
    checked = Settings(settings, "quantization_config")
    method = _METHODS.get(_method(checked))
    if method is None:
        raise _unknown(_method(checked))
    source = Source(tensors, read)
    found = method(checked, source)
    if not found:
        raise BadModelFile(f"the model calls itself {_method(checked)}, but no tensor is quantized")
    used = {name for packed in found.values() for name in packed.parts.values()}
    both = [name for name in found if name in tensors and name not in used]
    if both:
        raise BadModelFile(f"tensor {both[0]} is there both quantized and plain")
    rest = {name: source.plain(name) for name in tensors if name not in used}
    return {**found, **rest}


def _method(settings: Settings) -> str:
    value = settings.fields.get("quant_method")
    if not isinstance(value, str):
        raise settings.bad("quant_method", f"one of {', '.join(_METHODS)}", value)
    return value.lower()


def _unknown(method: str) -> BadModelFile:
    nearest = difflib.get_close_matches(method, _METHODS, n=1, cutoff=0.0)
    hint = f"nearest known: {nearest[0]}; known: {', '.join(_METHODS)}" if nearest else ""
    return BadModelFile(f"unknown quant_method {shortened(repr(method))}", hint)


def select(
    plain: Mapping[str, PackedTensor], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, PackedTensor]:
    """The tensors of `expected`; `BadModelFile` names one that is missing or misshapen.

    Tools add biases of zeros to layers without; one that is not zero is refused, not dropped.
    """
    for name, shape in expected.items():
        if name not in plain:
            near = difflib.get_close_matches(name, plain, n=1)
            found = f"found at most {near[0]}" if near else f"found {len(plain)} other tensors"
            raise BadModelFile(f"no tensor {name}: expected {list(shape)}, {found}")
        if plain[name].shape != shape:
            raise BadModelFile(
                f"tensor {name}: expected {list(shape)}, found {list(plain[name].shape)} "
                f"({plain[name].form})"
            )
    for name, tensor in plain.items():
        weight = f"{name.removesuffix('.bias')}.weight"
        unexpected = name.endswith(".bias") and name not in expected and weight in expected
        if unexpected and tensor.values().any():
            raise BadModelFile(f"tensor {name} is not zero, but the model has no such bias")
    return {name: plain[name] for name in expected}

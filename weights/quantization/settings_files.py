"""The quantization settings in the JSON files of a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import read_json

# Fields of config.json, and the method of those whose settings do not name one: the older name of
# compressed-tensors, and MLX.
QUANTIZATION_FIELDS = {
    "quantization_config": None,
    "compression_config": "compressed-tensors",
    "quantization": "mlx",
}
# Settings files of other tools, and the method of each.
SETTINGS_FILES: Mapping[str, str] = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
# Objects in the config.json of a multimodal model that hold its language model.
_INNER = ("text_config", "thinker_config")


def split_settings(
    directory: Path, config_json: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Return `config.json` without quantization settings, and the settings.

    The settings, `quant_method` included, are None if the model is not quantized. A multimodal
    model may have them at the top, in the configuration of its language model, or in both places,
    where they must be equal: raises `BadModelFile` otherwise. The files of older tools count only
    if `config.json` has no such settings.
    """
    config, found = _split(config_json)
    if any(settings != found[0] for settings in found[1:]):
        raise BadModelFile("config.json: quantization_config differs from that of text_config")
    if found:
        return config, found[0]
    for name, method in SETTINGS_FILES.items():
        if (directory / name).is_file():
            return config, {"quant_method": method, **read_json(directory / name)}
    return config, None


def _split(config_json: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return an object without settings, and the settings in it, the outer ones first."""
    config: dict[str, Any] = {}
    inner: list[dict[str, Any]] = []
    for name, value in config_json.items():
        if name in _INNER and isinstance(value, Mapping):
            config[name], below = _split(value)
            inner += below
        elif name not in QUANTIZATION_FIELDS:
            config[name] = value
    return config, [*_own_settings(config_json), *inner]


def _own_settings(config_json: Mapping[str, Any]) -> list[dict[str, Any]]:
    for field, method in QUANTIZATION_FIELDS.items():
        found = config_json.get(field)
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise BadModelFile(f"config.json: {field} must be an object")
        if method is None and "quant_method" not in found:
            method = "mlx" if {"bits", "group_size"} <= found.keys() else None
        named = {} if method is None else {"quant_method": method}
        return [{**named, **found}]
    return []

"""The quantization settings in the JSON files of a model directory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swiftchat.errors import BadModelFile
from swiftchat.weights.files.reading import read_json

__all__ = ["CONFIG_FIELDS", "read_settings"]

# Fields of config.json; the second is the older name of compressed-tensors.
CONFIG_FIELDS = ("quantization_config", "compression_config")
# Settings files of older tools, and the method of each.
_SETTINGS_FILES: Mapping[str, str] = {"quantize_config.json": "gptq", "quant_config.json": "awq"}


def read_settings(directory: Path) -> Mapping[str, Any] | None:
    """Return the quantization settings of a model directory, `quant_method` included.

    None: the model is not quantized. The files of older tools count only if `config.json` has no
    such settings.
    """
    if not (directory / "config.json").is_file():
        return None
    config_json = read_json(directory / "config.json")
    for field in CONFIG_FIELDS:
        found = config_json.get(field)
        if found is None:
            continue
        if not isinstance(found, Mapping):
            raise BadModelFile(f"config.json: {field} must be an object")
        default = {"quant_method": "compressed-tensors"} if field == CONFIG_FIELDS[1] else {}
        return {**default, **found}
    for name, method in _SETTINGS_FILES.items():
        if (directory / name).is_file():
            return {"quant_method": method, **read_json(directory / name)}
    return None

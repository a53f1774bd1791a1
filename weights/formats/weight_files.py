"""Names of a Hugging Face model's weight files, and the index of a model in several files."""

from collections.abc import Container
from pathlib import Path

from swiftchat.errors import BadModelFile, DamagedModelFile
from swiftchat.weights.files.reading import parse_json

SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
# Files of `torch.save`, the format before safetensors.
TORCH_FILE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
TORCH_FILES = "pytorch_model*.bin"


def parse_weight_map(
    index: bytes, index_name: str, where: str, existing: Container[str] | None = None
) -> dict[str, str]:
    """Return the `weight_map` of an index: the weight file of every tensor.

    `index_name` is `….safetensors.index.json` or `….bin.index.json` and gives the suffix of the
    weight files. They must be plain file names, and part of `existing` if that is given. Raises
    `BadModelFile` that starts with `where`.
    """
    try:
        parsed = parse_json(index)
    except (ValueError, RecursionError) as error:
        raise DamagedModelFile(f"{where}: not JSON") from error
    weight_map = parsed.get("weight_map") if isinstance(parsed, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedModelFile(f"{where}: no weight_map")
    suffix = Path(index_name.removesuffix(".index.json")).suffix
    for tensor, file in weight_map.items():
        valid = isinstance(file, str) and _is_plain_name(file) and file.endswith(suffix)
        if not valid or (existing is not None and file not in existing):
            raise BadModelFile(
                f"{where}: tensor {tensor[:200]}: {str(file)[:200]!r} is not a weight file of "
                "the model"
            )
    return weight_map


def _is_plain_name(name: str) -> bool:
    return not name.startswith(".") and not any(character in name for character in "/\\:\0")

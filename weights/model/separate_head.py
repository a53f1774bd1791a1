"""Files with an output matrix of their own although `config.json` ties it to the embeddings."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.errors import BadModelFile
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.formats.weight_files import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
)

if TYPE_CHECKING:
    from swiftchat.weights.model.checkpoint import Checkpoint

_CHUNK_ROWS = 4096
_MAX_LISTING_BYTES = 16 * 1024 * 1024


def has_separate_head(path: Path, config: ModelConfig, settings: Mapping[str, Any] | None) -> bool:
    """Return whether a directory with tied embeddings stores another output matrix.

    As in transformers, which then uses the one in the file; a copy of the embeddings counts as
    tied. `settings` are those of a quantized model. Reads the tensors only if there are both. A
    damaged file is left to `Checkpoint.open`, which describes the error.
    """
    head, embed = tensor_name(config, "lm_head"), tensor_name(config, "embed")
    if not _may_contain(path, head.removesuffix("weight")):
        return False
    # Imported here: numpy takes 0.1 s, and most models have no such tensor.
    from swiftchat.weights.model.checkpoint import Checkpoint
    from swiftchat.weights.quantization.methods import model_tensors

    try:
        checkpoint = Checkpoint.open(path)
        checkpoint.use_standard_names(config)
        if settings is not None:
            stored = model_tensors(settings, checkpoint.tensors, checkpoint.read)
            if head in stored and stored[head].format != "plain":
                return True
    except BadModelFile:
        return False  # `Model.checkpoint` raises it again
    return {head, embed} <= checkpoint.tensors.keys() and _differ(checkpoint, head, embed)


def _may_contain(path: Path, stem: str) -> bool:
    """Return whether a list of tensors in a directory has a name with `stem` in it."""
    names = (SAFETENSORS_FILE, SAFETENSORS_INDEX, TORCH_FILE, TORCH_INDEX)
    first = next((path / name for name in names if (path / name).is_file()), None)
    if first == path / TORCH_FILE:
        return True  # its list of tensors is anywhere in the file
    files = path.glob("*.safetensors") if first is None else [first]
    return any(stem.encode() in _listing(file) for file in files)


def _listing(file: Path) -> bytes:
    """Return the text of an index, or the list of tensors at the start of a safetensors file."""
    with open_regular(file) as opened:
        if file.suffix == ".json":
            return opened.read(_MAX_LISTING_BYTES)
        length = int.from_bytes(opened.read(8), "little")
        return opened.read(min(length, _MAX_LISTING_BYTES))


def _differ(checkpoint: "Checkpoint", head: str, embed: str) -> bool:
    one, other = checkpoint.tensors[head], checkpoint.tensors[embed]
    if (one.file, one.offset) == (other.file, other.offset):
        return False
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return True
    own, tied = checkpoint.read(head), checkpoint.read(embed)
    rows = range(0, len(own), _CHUNK_ROWS)
    return any((own[i : i + _CHUNK_ROWS] != tied[i : i + _CHUNK_ROWS]).any() for i in rows)

"""Files with an output matrix of their own although `config.json` ties it to the embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.errors import BadModelFile
from swiftchat.errors.regular_file import open_regular
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.tensors import tensor_name
from swiftchat.weights.formats.weight_files import (
    SAFETENSORS_FILE,
    SAFETENSORS_INDEX,
    TORCH_FILE,
    TORCH_INDEX,
)

if TYPE_CHECKING:
    from swiftchat.weights.model.checkpoint import Checkpoint

__all__ = ["has_separate_head"]

_CHUNK_ROWS = 4096
_MAX_LISTING_BYTES = 16 * 1024 * 1024


def has_separate_head(path: Path, config: ModelConfig) -> bool:
    """Return whether a directory with tied embeddings stores another output matrix.

    As in transformers, which then uses the one in the file; a copy of the embeddings counts as
    tied. Reads the tensors only if there are both. A damaged file is left to
    `Checkpoint.open`, which describes the error.
    """
    head, embed = tensor_name(config, "lm_head"), tensor_name(config, "embed")
    if not _may_contain(path, head):
        return False
    # Imported here: numpy takes 0.1 s, and most models have no such tensor.
    from swiftchat.weights.model.checkpoint import Checkpoint

    try:
        checkpoint = Checkpoint.open(path)
    except BadModelFile:
        return False  # `Model.checkpoint` raises it again
    checkpoint.use_standard_names(config)
    return {head, embed} <= checkpoint.tensors.keys() and _differ(checkpoint, head, embed)


def _may_contain(path: Path, name: str) -> bool:
    """Return whether the list of tensors at the start of a file, or in an index, has a name."""
    for listing in (SAFETENSORS_FILE, SAFETENSORS_INDEX, TORCH_INDEX):
        if (path / listing).is_file():
            with open_regular(path / listing) as file:
                start = file.read(8)
                length = int.from_bytes(start, "little") if listing == SAFETENSORS_FILE else -1
                text = file.read(min(length, _MAX_LISTING_BYTES) if length >= 0 else -1)
            return f'{name}"'.encode() in start + text  # a prefix may stand before it
    return (path / TORCH_FILE).is_file()  # its list of tensors is anywhere in the file


def _differ(checkpoint: "Checkpoint", head: str, embed: str) -> bool:
    one, other = checkpoint.tensors[head], checkpoint.tensors[embed]
    if (one.file, one.offset) == (other.file, other.offset):
        return False
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return True
    own, tied = checkpoint.read(head), checkpoint.read(embed)
    rows = range(0, len(own), _CHUNK_ROWS)
    return any((own[i : i + _CHUNK_ROWS] != tied[i : i + _CHUNK_ROWS]).any() for i in rows)

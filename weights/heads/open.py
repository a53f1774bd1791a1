"""Recognize and open prediction heads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.heads.eagle3 import Eagle3Files
from swiftchat.weights.heads.medusa import MedusaFiles
from swiftchat.weights.heads.mtp import MTP

HeadFiles = MedusaFiles | Eagle3Files

# The keys of config.json that only such files have.
_KINDS: Mapping[str, type[HeadFiles]] = MappingProxyType(
    {"medusa_num_heads": MedusaFiles, "draft_vocab_size": Eagle3Files}
)


def are_heads(draft: str | Path) -> bool:
    """Return whether `--draft` names the model's MTP layer or a directory of prediction heads.

    Raises `BadModelFile` if the config.json of a directory is damaged.
    """
    if draft == MTP:
        return True
    file = Path(draft) / "config.json"
    return file.is_file() and not _KINDS.keys().isdisjoint(read_json(file))


def open_heads(directory: Path, config: ModelConfig) -> HeadFiles:
    """Open the prediction heads in a directory and check them against the model.

    Reads headers only. Raises `BadModelFile` if they are damaged or belong to another model.
    """
    settings = read_json(directory / "config.json")
    return next(kind for key, kind in _KINDS.items() if key in settings).open(directory, config)

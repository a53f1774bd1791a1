"""Recognize and open prediction heads."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.heads.eagle3 import Eagle3Files
from swiftchat.weights.heads.medusa import MedusaFiles

__all__ = ["HeadFiles", "are_heads", "open_heads"]

HeadFiles = MedusaFiles | Eagle3Files

# The keys of config.json that only such files have.
_KINDS: Mapping[str, type[HeadFiles]] = MappingProxyType(
    {"medusa_num_heads": MedusaFiles, "draft_vocab_size": Eagle3Files}
)


def are_heads(directory: Path) -> bool:
    """Return whether a directory has prediction heads instead of a model.

    Raises `BadModelFile` if its config.json is damaged.
    """
    if not (directory / "config.json").is_file():
        return False
    return not _KINDS.keys().isdisjoint(read_json(directory / "config.json"))


def open_heads(directory: Path, config: ModelConfig) -> HeadFiles:
    """Open the prediction heads in a directory and check them against the model.

    Reads headers only. Raises `BadModelFile` if they are damaged or belong to another model.
    """
    settings = read_json(directory / "config.json")
    return next(kind for key, kind in _KINDS.items() if key in settings).open(directory, config)

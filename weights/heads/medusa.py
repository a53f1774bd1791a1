"""Medusa heads: each predicts one of the following tokens from the model's last hidden state.

Cai et al., 2024 (arXiv:2401.10774).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.parts.fields import integer
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.model.tensor_file import TensorFile

WEIGHT_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_PREFIX = "medusa_head."  # which some trainers save
MAX_HEADS, MAX_BLOCKS = 16, 8


@dataclass(frozen=True)
class MedusaFiles:
    """The checked files of Medusa heads for one model.

    Head h is `num_blocks` residual blocks, x + SiLU(Wx + b), and a matrix to the vocabulary. The
    first head predicts the token after the next one.
    """

    file: TensorFile
    prefix: str
    num_heads: int
    num_blocks: int

    @classmethod
    def open(cls, directory: Path, config: ModelConfig) -> Self:
        """Read the headers and check every shape.

        Raises `BadModelFile` if a file is damaged or belongs to another model.
        """
        settings = read_json(directory / "config.json")
        num_heads = integer(settings, "medusa_num_heads", 1, MAX_HEADS)
        num_blocks = integer(settings, "medusa_num_layers", 0, MAX_BLOCKS)
        found = [directory / name for name in WEIGHT_FILES if (directory / name).is_file()]
        if not found:
            raise BadModelFile(f"{directory} has none of {', '.join(WEIGHT_FILES)}")
        file = TensorFile(found[0], "the draft")
        prefix = _PREFIX if any(name.startswith(_PREFIX) for name in file.tensors) else ""
        files = cls(file, prefix, num_heads, num_blocks)
        for name, shape in files._shapes(config):
            file.require(name, shape)
            file.require_floats(name)
        return files

    @property
    def num_bytes(self) -> int:
        """The stored bytes of the heads."""
        return sum(info.nbytes for info in self.file.tensors.values())

    def block(self, head: int, block: int) -> str:
        """Return the name of a residual block's matrix and bias, without `.weight` and `.bias`."""
        return f"{self.prefix}{head}.{block}.linear"

    def lm_head(self, head: int) -> str:
        """Return the name of a head's matrix, without `.weight`."""
        return f"{self.prefix}{head}.{self.num_blocks}"

    def _shapes(self, config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        width = config.embeddings.width or config.hidden_size
        for head in range(self.num_heads):
            for block in range(self.num_blocks):
                yield f"{self.block(head, block)}.weight", (width, width)
                yield f"{self.block(head, block)}.bias", (width,)
            yield f"{self.lm_head(head)}.weight", (config.vocab_size, width)

"""The prediction heads of `--draft`: what an engine must have for them, and their weights."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from swiftchat.engine.generation.setup import EngineSetup
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.speculation.medusa import MedusaHead, MedusaHeads
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.errors import UsageError
from swiftchat.weights.heads.medusa import MedusaFiles
from swiftchat.weights.heads.open import HeadFiles, open_heads


@dataclass(frozen=True)
class Heads:
    """Prediction heads whose files fit the model of an engine; their weights are not loaded yet."""

    files: HeadFiles
    factory: WeightFactory
    dtype: torch.dtype

    @classmethod
    def open(cls, setup: EngineSetup) -> Self:
        """Open the heads in `setup.config.draft`.

        Raises `UsageError` for a model or a device that does not give hidden states, `BadModelFile`
        as `open_heads` does.
        """
        assert setup.config.draft is not None
        path, config = Path(setup.config.draft), setup.shard.config
        if config.mixer is not None:
            raise UsageError(
                f"{path} cannot propose tokens: {config.architecture} has states, "
                "which cannot forget rejected tokens",
                "leave out --draft",
            )
        if setup.device.type != "cpu":
            raise UsageError(
                f"{path} has prediction heads: they need hidden states, "
                "which captured steps on a GPU do not give",
                "choose a draft model, or add --device cpu",
            )
        return cls(open_heads(path, config), setup.factory, setup.dtype)

    @property
    def num_bytes(self) -> int:
        """The size of the loaded heads."""
        shapes = [info.shape for info in self.files.file.tensors.values()]
        return sum(map(math.prod, shapes)) * self.dtype.itemsize

    def load(self) -> Proposer:
        """Read the weights; raises `BadModelFile` if an element is not finite."""
        return self._medusa(self.files)

    def _medusa(self, files: MedusaFiles) -> MedusaHeads:
        heads = []
        for head in range(files.num_heads):
            names = [files.block(head, block) for block in range(files.num_blocks)]
            blocks = [
                (self._matrix(f"{name}weight"), self._tensor(f"{name}bias")) for name in names
            ]
            heads.append(MedusaHead(blocks, self._matrix(files.lm_head(head))))
        return MedusaHeads(heads)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.files.file.reader(name)()).to(self.dtype)

    def _matrix(self, name: str) -> LinearWeight:
        return self.factory.plain(self._tensor(name))

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
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.speculation.chain import ChainHead
from swiftchat.engine.speculation.eagle3 import Eagle3Layer
from swiftchat.engine.speculation.medusa import MedusaHead, MedusaHeads
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.errors import UsageError
from swiftchat.weights.heads.eagle3 import EMBEDDINGS, LAYER, Eagle3Files
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

    def load(self, embeddings: LinearWeight, ctx_size_tokens: int) -> Proposer:
        """Read the weights; raises `BadModelFile` if an element is not finite.

        `embeddings` are those of the model.
        """
        match self.files:
            case MedusaFiles():
                return self._medusa(self.files)
            case Eagle3Files():
                return ChainHead(self._eagle3(self.files, embeddings, ctx_size_tokens))

    def _medusa(self, files: MedusaFiles) -> MedusaHeads:
        heads = []
        for head in range(files.num_heads):
            names = [files.block(head, block) for block in range(files.num_blocks)]
            blocks = [
                (self._matrix(f"{name}weight"), self._tensor(f"{name}bias")) for name in names
            ]
            heads.append(MedusaHead(blocks, self._matrix(files.lm_head(head))))
        return MedusaHeads(heads)

    def _eagle3(
        self, files: Eagle3Files, embeddings: LinearWeight, ctx_size_tokens: int
    ) -> Eagle3Layer:
        config = files.config
        table = self._matrix(EMBEDDINGS) if files.has_embeddings else embeddings
        attention = [f"{LAYER}self_attn.{name}_proj.weight" for name in "qkv"]
        cos_sin = cos_sin_table(config.rope, config.head_dim, ctx_size_tokens, torch.device("cpu"))
        return Eagle3Layer(
            config=config,
            token_ids=torch.from_numpy(files.token_ids),
            cos_sin=cos_sin,
            embed=lambda ids: table.rows(ids).float(),
            fc=self._matrix("fc.weight"),
            input_norm=self._tensor(f"{LAYER}input_layernorm.weight").float(),
            hidden_norm=self._tensor(f"{LAYER}hidden_norm.weight").float(),
            qkv=self._matrix(*attention),
            o=self._matrix(f"{LAYER}self_attn.o_proj.weight"),
            mlp_norm=self._tensor(f"{LAYER}post_attention_layernorm.weight").float(),
            gate_up=self._matrix(*(f"{LAYER}mlp.{name}_proj.weight" for name in ("gate", "up"))),
            down=self._matrix(f"{LAYER}mlp.down_proj.weight"),
            norm=self._tensor("norm.weight").float(),
            lm_head=self._matrix("lm_head.weight"),
        )

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.files.file.reader(name)()).to(self.dtype)

    def _matrix(self, *names: str) -> LinearWeight:
        """Return matrices one below the other."""
        return self.factory.plain(torch.cat([self._tensor(name) for name in names]))

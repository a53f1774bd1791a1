"""The prediction heads of `--draft`: what an engine must have for them, and their weights."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from swiftchat.engine.generation.setup import EngineSetup
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.head_cache import Features, HeadCache
from swiftchat.engine.model.hidden_states import LAST_NORM
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.ops import Ops
from swiftchat.engine.model.prediction_head import Eagle3Input, HeadInput, MtpInput, PredictionHead
from swiftchat.engine.model.weights import DecoderWeights, LayerWeights, TokenInput
from swiftchat.engine.schedule.scheduler import Scheduler
from swiftchat.engine.speculation.head import HeadProposer
from swiftchat.engine.speculation.medusa import MedusaHead, MedusaHeads
from swiftchat.engine.speculation.proposer import Proposer
from swiftchat.engine.speculation.step_costs import gpu_step_s
from swiftchat.errors import UsageError
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.heads.eagle3 import EMBEDDINGS, LAYER, Eagle3Files
from swiftchat.weights.heads.medusa import MedusaFiles
from swiftchat.weights.heads.mtp import MTP, MtpFiles
from swiftchat.weights.heads.open import HeadFiles, open_heads
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.tensor_file import TensorFile
from swiftchat.weights.quantization.scheme import Int8

# The host's part of a head's layer on a GPU, or of all Medusa heads: an EAGLE-3 head for 8B took
# 2.2 ms for a token on an H200.
_LAUNCH_S = 2e-3
_REPLAY_S = 20e-6  # the same of a captured chain, for each token


@dataclass(frozen=True)
class Heads:
    """Prediction heads whose files fit the model of an engine; their weights are not loaded yet."""

    files: HeadFiles | MtpFiles
    setup: EngineSetup

    @classmethod
    def open(cls, setup: EngineSetup) -> Self:
        """Open the heads in `setup.config.draft`.

        Raises `UsageError` for a dummy model's own layer, `BadModelFile` and `UsageError` as
        `open_heads` and `MtpFiles.open` do.
        """
        path, config = setup.config.draft, setup.shard.config
        assert path is not None
        if path != MTP:
            return cls(open_heads(Path(path), config), setup)
        if setup.checkpoint is None:
            raise UsageError(
                "a dummy model has no multi-token prediction layer", "leave out --draft"
            )
        settings = Model.open(setup.checkpoint.path).quantization_config
        return cls(MtpFiles.open(setup.checkpoint, config, settings), setup)

    @property
    def num_bytes(self) -> int:
        """The stored size of the heads."""
        return self.files.num_bytes

    @property
    def bytes_per_token(self) -> int:
        """The bytes of a token in the KV cache."""
        config, item_bytes = self._layer_config, self.setup.dtype.itemsize
        if config is None:
            return self.setup.shard.config.head_width * item_bytes
        return HeadCache.bytes_per_token(config, item_bytes)

    @property
    def hidden_layers(self) -> Collection[int]:
        """The hidden states of the model that the heads read, as in `HiddenStates`."""
        match self.files:
            case MedusaFiles():
                return (LAST_NORM,)
            case Eagle3Files():
                return self.files.config.hidden_layers
            case MtpFiles():
                return (self.setup.shard.config.num_layers,)

    @property
    def _layer_config(self) -> ModelConfig | None:
        """The model of one layer that the heads are, if they are one."""
        match self.files:
            case MedusaFiles():
                return None
            case Eagle3Files():
                return self.files.config.decoder
            case MtpFiles():
                return self.files.config

    def load(
        self, decoder: Decoder, cache: KVCache, scheduler: Scheduler, ctx_size_tokens: int
    ) -> Proposer:
        """Read the weights, and let the steps of the decoder store what the heads read.

        That is in the blocks of `cache`. Raises `BadModelFile` if an element is not finite.
        """
        match self.files:
            case MedusaFiles():
                return self._medusa(self.files, decoder, cache, scheduler.allocator.num_blocks)
            case Eagle3Files():
                inputs, weights, token_ids = _eagle3(
                    self.files, self._reader(self.files.file), decoder.weights.embed
                )
                own, name, chains_normed = self.files.config.decoder, "eagle3", False
            case MtpFiles():
                inputs, weights = self._mtp(self.files, decoder.weights)
                token_ids = torch.arange(weights.lm_head.shape[0])
                own, name, chains_normed = self.files.config, "mtp", self.files.chains_normed
        ops = self._ops(own, weights, ctx_size_tokens)
        device = self.setup.device
        head = PredictionHead(
            name,
            Decoder(own, weights, ops),
            inputs,
            HeadCache(
                own,
                scheduler.allocator.num_blocks,
                cache.block_size,
                self.setup.dtype,
                device,
                heads_first=ops.heads_first,
            ),
            token_ids.to(device, torch.int32),
            chains_normed,
        )
        decoder.head = head
        cache.share_blocks(head.cache)
        captured = self.setup.back_end.head_chain(head, ctx_size_tokens)
        step_s = self._step_s(is_captured=captured is not None)
        return HeadProposer(name, captured or head.chain, scheduler.reserve, step_s)

    def _medusa(
        self, files: MedusaFiles, decoder: Decoder, cache: KVCache, num_blocks: int
    ) -> MedusaHeads:
        heads = _medusa(files, self._reader(files.file))
        width, size = decoder.hidden_width, cache.block_size
        features = Features(num_blocks, size, width, self.setup.dtype, self.setup.device)
        step_s = self._step_s(len(heads), is_captured=True)
        decoder.head = medusa = MedusaHeads(heads, features, size, step_s)
        cache.share_blocks(features)
        return medusa

    @property
    def _quantizes(self) -> bool:
        """Whether the matrices of heads become int8."""
        is_exact = self.setup.dtype == torch.float32 and not self.setup.is_quantized
        return self.setup.factory.keeps_quantized and not is_exact

    def _reader(self, file: TensorFile) -> "_Reader":
        setup = self.setup
        return _Reader(file, setup.factory, setup.dtype, setup.device, self._quantizes)

    def _step_s(self, num_heads: int = 1, *, is_captured: bool = False) -> float | None:
        """Estimate the duration of proposing a token on a GPU in seconds; None: it is measured."""
        if self.setup.device.type == "cpu":
            return None
        launch_s = _REPLAY_S if is_captured else _LAUNCH_S / num_heads
        num_bytes = self.num_bytes // (2 if self._quantizes else 1)
        return gpu_step_s(num_bytes // num_heads, 1) + launch_s

    def _ops(self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int) -> Ops:
        """Return what computes a layer; raise `UsageError` if nothing of the back end does."""
        ops = self.setup.back_end.head_ops(config, weights, ctx_size_tokens)
        if ops is None:
            raise UsageError(
                f"no kernel computes the heads in {self.setup.config.draft}", "leave out --draft"
            )
        return ops

    def _mtp(self, files: MtpFiles, model: DecoderWeights) -> tuple[HeadInput, DecoderWeights]:
        setup, form = self.setup, files.form
        weights = load_weights(
            files.config,
            files.checkpoint,
            setup.dtype,
            setup.device,
            lambda done, total: None,
            factory=setup.factory,
        )
        assert model.final_norm is not None

        def read(name: str) -> Tensor:
            return torch.from_numpy(files.read(name)).to(setup.device)

        inputs = MtpInput(
            len(model.layers),
            model.final_norm.float(),
            read(form.embedding_norm),
            read(form.hidden_norm),
            setup.factory.plain(read(form.projection).to(setup.dtype)),
            files.config.norm,
        )
        return inputs, weights


@dataclass(frozen=True)
class _Reader:
    """Reads the tensors of heads, with `quantizes` the matrices as int8 with a scale for each row.

    A head's mistakes only cost time, and its speed is that of reading its matrices.
    """

    file: TensorFile
    factory: WeightFactory
    dtype: torch.dtype
    device: torch.device
    quantizes: bool

    def tensor(self, name: str) -> Tensor:
        """Return a matrix, or the weights of a norm."""
        return torch.from_numpy(self.file.reader(f"{name}.weight")()).to(self.device, self.dtype)

    def bias(self, name: str) -> Tensor:
        return torch.from_numpy(self.file.reader(f"{name}.bias")()).to(self.device, self.dtype)

    def matrix(self, *names: str) -> LinearWeight:
        """Return matrices one below the other."""
        return self.weight(torch.cat([self.tensor(name) for name in names]))

    def weight(self, tensor: Tensor) -> LinearWeight:
        quantized: LinearWeight | None = None
        if self.quantizes:
            quantized = self.factory.quantized([_as_int8(tensor)], self.dtype)
        return quantized or self.factory.plain(tensor)


def _as_int8(matrix: Tensor) -> Int8:
    values = matrix.float()
    scale = values.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / 127
    rounded = (values / scale).round().to(torch.int8)
    return Int8(rounded.cpu().numpy(), scale[:, 0].cpu().numpy())


def _medusa(files: MedusaFiles, reader: _Reader) -> list[MedusaHead]:
    heads = []
    for head in range(files.num_heads):
        names = [files.block(head, block) for block in range(files.num_blocks)]
        blocks = [(reader.matrix(name), reader.bias(name)) for name in names]
        heads.append(MedusaHead(blocks, reader.matrix(files.lm_head(head))))
    return heads


def _eagle3(
    files: Eagle3Files, reader: _Reader, embeddings: LinearWeight
) -> tuple[HeadInput, DecoderWeights, Tensor]:
    """Return what is before the layer, the layer, and the ids of its tokens.

    Without embeddings of its own the layer looks up those of the model, `embeddings`.
    """
    config = files.config
    table = reader.matrix(EMBEDDINGS) if files.has_embeddings else embeddings
    width = config.decoder.hidden_size
    qkv = torch.cat([reader.tensor(f"{LAYER}self_attn.{name}_proj") for name in "qkv"])
    # The first columns read the embedding, the others the stream.
    token = TokenInput(
        table, reader.tensor(f"{LAYER}input_layernorm"), reader.weight(qkv[:, :width].contiguous())
    )
    hidden_norm = reader.tensor(f"{LAYER}hidden_norm")
    adds_normed = config.norm_before_residual
    layer = LayerWeights(
        attn_norm=None if adds_normed else hidden_norm,
        qkv=reader.weight(qkv[:, width:].contiguous()),
        qkv_bias=None,
        o=reader.matrix(f"{LAYER}self_attn.o_proj"),
        o_bias=None,
        mlp_norm=reader.tensor(f"{LAYER}post_attention_layernorm"),
        gate_up=reader.matrix(*(f"{LAYER}mlp.{name}_proj" for name in ("gate", "up"))),
        gate_up_bias=None,
        down=reader.matrix(f"{LAYER}mlp.down_proj"),
        down_bias=None,
        token_input=token,
    )
    inputs = Eagle3Input(
        config.hidden_layers,
        reader.matrix("fc"),
        config.decoder.norm.eps,
        hidden_norm if adds_normed else None,
    )
    weights = DecoderWeights(table, [layer], reader.tensor("norm"), reader.matrix("lm_head"))
    return inputs, weights, torch.from_numpy(files.token_ids)

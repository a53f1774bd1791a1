"""The prediction heads of `--draft`: what an engine must have for them, and their weights."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from swiftchat.engine.generation.setup import EngineSetup
from swiftchat.engine.gpu.back_end import GpuBackEnd
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.engine.gpu.heads.captured_chain import CHAIN_ROWS, CapturedChain
from swiftchat.engine.gpu.heads.eagle3_kernels import Eagle3Kernels, eagle3_kernels_cover
from swiftchat.engine.gpu.heads.mtp_kernels import MtpKernels
from swiftchat.engine.gpu.linear.plain import LinearKernels
from swiftchat.engine.gpu.ops import CudaOps
from swiftchat.engine.linear.factory import WeightFactory
from swiftchat.engine.linear.weight import LinearWeight
from swiftchat.engine.load.loader import load_weights
from swiftchat.engine.model.decoder import Decoder
from swiftchat.engine.model.kv_cache import KVCache
from swiftchat.engine.model.rope import cos_sin_table
from swiftchat.engine.model.weights import DecoderWeights
from swiftchat.engine.reference.ops import TorchOps
from swiftchat.engine.speculation.chain import ChainHead
from swiftchat.engine.speculation.eagle3 import Eagle3Layer
from swiftchat.engine.speculation.head_blocks import BLOCK_TOKENS
from swiftchat.engine.speculation.medusa import MedusaHead, MedusaHeads
from swiftchat.engine.speculation.mtp import MtpLayer
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
from swiftchat.weights.parallel.tensor_parallel import Shard
from swiftchat.weights.quantization.scheme import Int8

# The host's part of a head's layer on a GPU, or of all Medusa heads: an EAGLE-3 head for 8B took
# 2.2 ms for a token on an H200.
_LAUNCH_S = 2e-3
_REPLAY_S = 20e-6  # the same of a captured chain, for each token
_MAX_HEAD_BLOCKS = 512  # for the tokens of all sequences; those beyond get no proposals


@dataclass(frozen=True)
class Heads:
    """Prediction heads whose files fit the model of an engine; their weights are not loaded yet."""

    files: HeadFiles | MtpFiles
    factory: WeightFactory
    dtype: torch.dtype
    device: torch.device
    kernels: LinearKernels | None
    quantizes: bool  # the matrices of the heads, to int8

    @classmethod
    def open(cls, setup: EngineSetup) -> Self:
        """Open the heads in `setup.config.draft`.

        Raises `UsageError` for a dummy model's own layer, `BadModelFile` and `UsageError` as
        `open_heads` and `MtpFiles.open` do.
        """
        path, config = setup.config.draft, setup.shard.config
        assert path is not None
        files: HeadFiles | MtpFiles
        if path != MTP:
            files = open_heads(Path(path), config)
        elif setup.checkpoint is None:
            raise UsageError(
                "a dummy model has no multi-token prediction layer", "leave out --draft"
            )
        else:
            settings = Model.open(setup.checkpoint.path).quantization_config
            files = MtpFiles.open(setup.checkpoint, config, settings)
        is_exact = setup.dtype == torch.float32 and not setup.is_quantized
        quantizes = setup.factory.keeps_quantized and not is_exact
        kernels = setup.back_end.kernels if isinstance(setup.back_end, GpuBackEnd) else None
        return cls(files, setup.factory, setup.dtype, setup.device, kernels, quantizes)

    @property
    def num_bytes(self) -> int:
        """The stored size of the heads."""
        return self.files.num_bytes

    def load(self, model: DecoderWeights, ctx_size_tokens: int) -> Proposer:
        """Read the weights; raises `BadModelFile` if an element is not finite.

        `model` are the weights of the model.
        """
        match self.files:
            case MedusaFiles():
                heads = _medusa(self.files, self._reader(self.files.file))
                return MedusaHeads(heads, self._step_s(len(heads), is_captured=True))
            case Eagle3Files():
                reader = self._reader(self.files.file)
                eagle3, table = _eagle3(self.files, reader, model.embed, ctx_size_tokens)
                chain = self._captured_eagle3(eagle3, table, ctx_size_tokens)
                return ChainHead(chain or eagle3, self._step_s(is_captured=chain is not None))
            case MtpFiles():
                layer, mtp_chain = self._mtp(self.files, model, ctx_size_tokens)
                is_captured = mtp_chain is not None
                return ChainHead(mtp_chain or layer, self._step_s(is_captured=is_captured))

    def _reader(self, file: TensorFile) -> "_Reader":
        return _Reader(file, self.factory, self.dtype, self.device, self.quantizes)

    def _step_s(self, num_heads: int = 1, *, is_captured: bool = False) -> float | None:
        """Estimate the duration of proposing a token on a GPU in seconds; None: it is measured."""
        if self.device.type == "cpu":
            return None
        launch_s = _REPLAY_S if is_captured else _LAUNCH_S / num_heads
        num_bytes = self.num_bytes // (2 if self.quantizes else 1)
        return gpu_step_s(num_bytes // num_heads, 1) + launch_s

    def _captured_eagle3(
        self, layer: Eagle3Layer, table: LinearWeight, ctx_size_tokens: int
    ) -> CapturedChain | None:
        """Return the layer with captured chains if the kernels compute it."""
        if self.kernels is None or len(table.kernel_matrices) != 1:
            return None
        gpu, (embeddings,) = self.kernels.gpu, table.kernel_matrices
        if not eagle3_kernels_cover(gpu, layer):
            return None
        num_blocks = _num_blocks(ctx_size_tokens)
        kernels = Eagle3Kernels(gpu, layer, embeddings, num_blocks)
        return CapturedChain(gpu, layer, kernels, num_blocks)

    def _mtp(
        self, files: MtpFiles, model: DecoderWeights, ctx_size_tokens: int
    ) -> tuple[MtpLayer, CapturedChain | None]:
        """Return the layer, and its captured chains if the kernels compute all of it."""
        config, device = files.config, self.device
        weights = load_weights(
            *(config, files.checkpoint, self.dtype, device, lambda done, total: None),
            factory=self.factory,
        )
        assert model.final_norm is not None
        kernels = self._mtp_ops(config, weights, ctx_size_tokens)
        layer = MtpLayer(
            Decoder(config, weights, kernels or TorchOps(config, ctx_size_tokens, device)),
            len(model.layers),
            model.final_norm,
            self._read(files, files.form.embedding_norm),
            self._read(files, files.form.hidden_norm),
            self.factory.plain(self._read(files, files.form.projection).to(self.dtype)),
            chains_normed=files.chains_normed,
        )
        if kernels is None:
            return layer, None
        num_blocks = _num_blocks(ctx_size_tokens)
        cache = KVCache(config, num_blocks, BLOCK_TOKENS, self.dtype, device, heads_first=True)
        chain = MtpKernels(kernels.gpu, layer, cache)
        return layer, CapturedChain(kernels.gpu, layer, chain, num_blocks)

    def _mtp_ops(
        self, config: ModelConfig, weights: DecoderWeights, ctx_size_tokens: int
    ) -> CudaOps | None:
        """Return what computes the layer on a GPU; None without attention by our kernels."""
        if self.kernels is None or config.attention.latent is not None:
            return None
        if not kernels_cover(config, self.dtype):
            return None
        ops = CudaOps(self.kernels, Shard(config), ctx_size_tokens, CHAIN_ROWS)
        return ops if ops.computes_experts(weights.layers) else None

    def _read(self, files: MtpFiles, name: str) -> Tensor:
        return torch.from_numpy(files.read(name)).to(self.device)


def _num_blocks(ctx_size_tokens: int) -> int:
    """Return the blocks for the tokens of all sequences."""
    return min(2 * -(-ctx_size_tokens // BLOCK_TOKENS) + 1, _MAX_HEAD_BLOCKS)


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
        return torch.from_numpy(self.file.reader(name)()).to(self.device, self.dtype)

    def norm(self, name: str) -> Tensor:
        return self.tensor(f"{name}.weight").float()

    def matrix(self, *names: str) -> LinearWeight:
        """Return matrices one below the other."""
        tensor = torch.cat([self.tensor(f"{name}.weight") for name in names])
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
        blocks = [(reader.matrix(name), reader.tensor(f"{name}.bias")) for name in names]
        heads.append(MedusaHead(blocks, reader.matrix(files.lm_head(head))))
    return heads


def _eagle3(
    files: Eagle3Files, reader: _Reader, embeddings: LinearWeight, ctx_size_tokens: int
) -> tuple[Eagle3Layer, LinearWeight]:
    """Return the layer, and the embeddings that it looks up."""
    config, device = files.config, reader.device
    table = reader.matrix(EMBEDDINGS) if files.has_embeddings else embeddings
    layer = Eagle3Layer(
        config=config,
        token_ids=torch.from_numpy(files.token_ids).to(device),
        cos_sin=cos_sin_table(config.rope, config.head_dim, ctx_size_tokens, device),
        embed=lambda ids: table.rows(ids).float(),
        fc=reader.matrix("fc"),
        input_norm=reader.norm(f"{LAYER}input_layernorm"),
        hidden_norm=reader.norm(f"{LAYER}hidden_norm"),
        qkv=reader.matrix(*(f"{LAYER}self_attn.{name}_proj" for name in "qkv")),
        o=reader.matrix(f"{LAYER}self_attn.o_proj"),
        mlp_norm=reader.norm(f"{LAYER}post_attention_layernorm"),
        gate_up=reader.matrix(*(f"{LAYER}mlp.{name}_proj" for name in ("gate", "up"))),
        down=reader.matrix(f"{LAYER}mlp.down_proj"),
        norm=reader.norm("norm"),
        lm_head=reader.matrix("lm_head"),
    )
    return layer, table

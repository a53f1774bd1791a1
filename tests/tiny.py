"""Tiny random models of every family, made with transformers, and runs of the engine on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from swiftchat.engine.batch import Batch
from swiftchat.engine.blocks import BlockAllocator
from swiftchat.engine.decoder import Decoder
from swiftchat.engine.engine import Engine
from swiftchat.engine.kv_cache import KVCache
from swiftchat.engine.loader import load_weights
from swiftchat.engine.params import EngineConfig, SamplingParams
from swiftchat.engine.protocol import Finished, Tokens
from swiftchat.engine.scheduler import Scheduler
from swiftchat.engine.scheduler import Sequence as TokenSequence
from swiftchat.engine.torch_ops import TorchOps
from swiftchat.errors import SwiftchatError
from swiftchat.weights.model import Model

VOCAB_SIZE = 97
BLOCK_SIZE = 4

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Ten times the usual spread, so that logits differ by more than rounding.
    "initializer_range": 0.2,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-wide-heads": ("Llama", {"head_dim": 16}),
    "llama3-rope": ("Llama", {"rope_parameters": _LLAMA3_ROPE}),
    "linear-rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 7}),
}


def make(variant: str, folder: Path) -> transformers.PreTrainedModel:
    """Save a random fp32 model of this variant in `folder` and return it."""
    family, changes = VARIANTS[variant]
    config = getattr(transformers, f"{family}Config")(**{**_SIZES, **changes})
    torch.manual_seed(20)
    # Eager attention honours the sliding window everywhere.
    config._attn_implementation = "eager"
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        if "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    model.save_pretrained(folder)
    return model


def random_ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


class Bench:
    """A decoder with a cache and a scheduler, without the generation loop on top."""

    def __init__(
        self,
        folder: Path,
        num_blocks: int = 64,
        block_size: int = BLOCK_SIZE,
        chunk_tokens: int = 512,
    ) -> None:
        model = Model.open(folder)
        self.checkpoint = model.checkpoint()
        cpu = torch.device("cpu")
        weights = load_weights(
            model.config, self.checkpoint, torch.float32, cpu, lambda done, total: None
        )
        ops = TorchOps(model.config, model.config.max_context_tokens, cpu)
        self.decoder = Decoder(model.config, weights, ops)
        self.cache = KVCache(model.config, num_blocks, block_size, torch.float32, cpu)
        for layer in self.cache.layers:
            layer.fill_(float("nan"))  # what nobody wrote must never be read
        self.allocator = BlockAllocator(num_blocks, block_size)
        self.scheduler = Scheduler(self.allocator, chunk_tokens, 16)
        self.held: list[list[int]] = []  # blocks a test keeps for itself

    @torch.inference_mode()
    def step(self) -> dict[int, torch.Tensor]:
        """Compute one step; the logits of the sequences that reached their end, by id."""
        step = self.scheduler.schedule()
        self.decoder.ops.copy_blocks(self.cache, step.copies)
        batch = Batch.pack(step.rows, self.allocator.block_size)
        logits = self.decoder.forward(batch, self.cache)
        for row in step.rows:
            self.scheduler.advance(row)
        tables = [sequence.block_table for sequence in self.scheduler.running]
        self.allocator.check_integrity([*tables, *self.held])
        return {row.sequence.id: out for row, out in zip(batch.wanted, logits, strict=True)}

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits after each of the ids, computed token by token: [len(ids), vocab_size]."""
        sequence = TokenSequence(0, [ids[0]], SamplingParams())
        self.scheduler.add(sequence)
        rows = [self.step()[0]]
        for token in ids[1:]:
            sequence.tokens.append(token)
            rows.append(self.step()[0])
        self.scheduler.remove(sequence)
        return torch.stack(rows)

    def last_logits(self, ids: Sequence[int], sequence_id: int = 0) -> torch.Tensor:
        """Logits after the last id, computed by prefill in chunks; the cache is kept."""
        sequence = TokenSequence(sequence_id, list(ids), SamplingParams())
        self.scheduler.add(sequence)
        result: dict[int, torch.Tensor] = {}
        while sequence_id not in result:
            result = self.step()
        self.scheduler.remove(sequence)
        return result[sequence_id]


def engine(folder: Path, **config: Any) -> Engine:
    settings = {"device": "cpu", "dtype": "float32", "block_size": BLOCK_SIZE, **config}
    return Engine(folder, EngineConfig(**settings))


def run(
    engine: Engine, prompts: dict[int, Sequence[int]], params: SamplingParams
) -> tuple[dict[int, list[int]], dict[int, Finished | SwiftchatError]]:
    """Generate for all prompts together; ids and ends by generation id."""
    ids: dict[int, list[int]] = {key: [] for key in prompts}
    ends: dict[int, Finished | SwiftchatError] = {}
    for key, prompt in prompts.items():
        engine.add(key, list(prompt), params)
    while engine.has_work:
        for key, event in engine.step():
            engine.scheduler.check_integrity()
            if key not in prompts:
                continue
            if isinstance(event, Tokens):
                ids[key] += event.ids
            elif isinstance(event, Finished | SwiftchatError):
                ends[key] = event
    return ids, ends

"""A tiny random ChatGLM-6B and a reference in fp64, written from its published description.

Transformers has no such class. The description is `modeling_chatglm.py`, published with the
weights: https://huggingface.co/THUDM/chatglm-6b.
"""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

GMASK, START, END, MASK = 0, 1, 2, 5
HIDDEN, HEADS, INNER, LAYERS = 48, 3, 96, 3
_EPS = 1e-5


class ChatGLM:
    """A callable like a model of transformers: ids [1, n] to `logits` [1, n, vocab_size]."""

    def __init__(self, tensors: dict[str, Tensor], hidden: int, heads: int, layers: int) -> None:
        self._tensors = {name: tensor.double() for name, tensor in tensors.items()}
        self._hidden, self._heads, self._layers = hidden, heads, layers

    def __call__(self, ids: Tensor) -> SimpleNamespace:
        tokens = ids[0].tolist()
        positions, mask = (
            torch.tensor(_position_pairs(tokens), dtype=torch.float64),
            _attention_mask(tokens),
        )
        x = self._tensors["transformer.word_embeddings.weight"][ids[0]]
        alpha = math.sqrt(2 * self._layers)
        for i in range(self._layers):
            prefix = f"transformer.layers.{i}."
            normed = self._norm(f"{prefix}input_layernorm", x)
            x = alpha * normed + self._attention(f"{prefix}attention.", normed, positions, mask, i)
            normed = self._norm(f"{prefix}post_attention_layernorm", x)
            inner = F.gelu(self._linear(f"{prefix}mlp.dense_h_to_4h", normed), approximate="tanh")
            x = alpha * normed + self._linear(f"{prefix}mlp.dense_4h_to_h", inner)
        last = self._norm("transformer.final_layernorm", x)
        return SimpleNamespace(logits=(last @ self._tensors["lm_head.weight"].T).float()[None])

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self._tensors[f"{name}.weight"].T + self._tensors[f"{name}.bias"]

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        return F.layer_norm(x, (self._hidden,), weight, bias, _EPS)

    def _attention(
        self, name: str, x: Tensor, positions: Tensor, mask: Tensor, layer: int
    ) -> Tensor:
        size = self._hidden // self._heads
        fused = self._linear(f"{name}query_key_value", x).view(len(x), self._heads, 3 * size)
        out = torch.empty(len(x), self._heads, size, dtype=torch.float64)
        for head in range(self._heads):
            q, k, v = fused[:, head].split(size, -1)
            q, k = _rotate(q, positions), _rotate(k, positions)
            # The original divides by the layer's number and multiplies again, for fp16.
            scores = (q / (math.sqrt(size) * (layer + 1))) @ k.T
            scores = scores.masked_fill(~mask, -10_000.0 / (layer + 1)) * (layer + 1)
            out[:, head] = scores.softmax(-1) @ v
        return self._linear(f"{name}dense", out.view(len(x), -1))


def _position_pairs(tokens: list[int]) -> list[tuple[int, int]]:
    """Position and block position of each token."""
    if START not in tokens:
        return [(0, i + 1) for i in range(len(tokens))]
    start = tokens.index(START)
    mask = tokens.index(GMASK) if GMASK in tokens else tokens.index(MASK)
    after = range(1, len(tokens) - start + 1)
    return [(i, 0) for i in range(start)] + [(mask, block) for block in after]


def _attention_mask(tokens: list[int]) -> Tensor:
    """The mask of the tokens (columns) that each token (row) attends to."""
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    if START in tokens:
        mask[:, : tokens.index(START)] = True
    return mask


def _rotate(head: Tensor, positions: Tensor) -> Tensor:
    """Rotate one half of each row by the position, the other by the block position."""
    pairs = head.shape[1] // 4
    rotated = head.clone()
    for half, own in enumerate(positions.T):
        for j in range(pairs):
            angles = own * 10_000.0 ** (-j / pairs)
            first = 2 * pairs * half + j
            a, b = head[:, first], head[:, first + pairs]
            rotated[:, first] = a * angles.cos() - b * angles.sin()
            rotated[:, first + pairs] = b * angles.cos() + a * angles.sin()
    return rotated


def make(folder: Path, vocab_size: int) -> ChatGLM:
    """Save a random model to `folder` in the published layout, and return the reference."""
    generator = torch.Generator().manual_seed(20)

    def normal(*shape: int, mean: float = 0.0, std: float = 0.2) -> Tensor:
        return torch.randn(shape, generator=generator) * std + mean

    tensors = {
        "transformer.word_embeddings.weight": normal(vocab_size, HIDDEN),
        "lm_head.weight": normal(vocab_size, HIDDEN),
    }
    norms = ["transformer.final_layernorm"]
    for i in range(LAYERS):
        prefix = f"transformer.layers.{i}."
        for name, rows, columns in (
            ("attention.query_key_value", 3 * HIDDEN, HIDDEN),
            ("attention.dense", HIDDEN, HIDDEN),
            ("mlp.dense_h_to_4h", INNER, HIDDEN),
            ("mlp.dense_4h_to_h", HIDDEN, INNER),
        ):
            tensors[f"{prefix}{name}.weight"] = normal(rows, columns)
            tensors[f"{prefix}{name}.bias"] = normal(rows)
        tensors[f"{prefix}attention.rotary_emb.inv_freq"] = torch.zeros(HIDDEN // HEADS // 4)
        norms += [f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm"]
    for name in norms:
        tensors[f"{name}.weight"] = normal(HIDDEN, mean=1.0, std=0.1)
        tensors[f"{name}.bias"] = normal(HIDDEN)
    config = {
        "architectures": ["ChatGLMModel"],
        "model_type": "chatglm",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "inner_hidden_size": INNER,
        "num_layers": LAYERS,
        "num_attention_heads": HEADS,
        "layernorm_epsilon": _EPS,
        "max_sequence_length": 256,
        "position_encoding_2d": True,
        "bos_token_id": START,
        "eos_token_id": END,
        "gmask_token_id": GMASK,
        "mask_token_id": MASK,
        "pad_token_id": 3,
        "pre_seq_len": None,
        "quantization_bit": 0,
        "torch_dtype": "float32",
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return ChatGLM(tensors, HIDDEN, HEADS, LAYERS)

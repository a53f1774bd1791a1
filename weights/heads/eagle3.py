"""EAGLE-3 heads: one layer that continues the model's hidden states token by token.

Li et al., 2025 (arXiv:2503.01840).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.config import ModelConfig
from swiftchat.weights.architectures.parts.attention import Attention, Scores, Values
from swiftchat.weights.architectures.parts.embeddings import Embeddings, Head
from swiftchat.weights.architectures.parts.fields import (
    MAX_HEAD_DIM,
    MAX_VOCAB,
    MAX_WIDTH,
    Fields,
    flag,
    hidden_size,
    integer,
    invalid,
    mapping,
    num_heads,
    number,
    optional_integer,
)
from swiftchat.weights.architectures.parts.layers import LayerConfig, Norm
from swiftchat.weights.architectures.parts.mlp import Activation, Mlp
from swiftchat.weights.architectures.parts.rope import RopeConfig
from swiftchat.weights.files.reading import read_json
from swiftchat.weights.model.tensor_file import TensorFile

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
LAYER = "midlayer."
EMBEDDINGS = "embed_tokens"
_LAYERS = "eagle_aux_hidden_state_layer_ids"
_MAX_LAYERS = 8


@dataclass(frozen=True)
class Eagle3Config:
    """A head as a model of one layer, `decoder`, and what comes before and after it.

    `hidden_layers`: the layers of the model whose inputs the head reads, as in `HiddenStates`. With
    `norm_before_residual` the layer adds to its normed input. The LM head has `draft_vocab_size`
    rows, the embeddings those of the model.
    """

    hidden_layers: tuple[int, ...]
    decoder: ModelConfig
    draft_vocab_size: int
    norm_before_residual: bool

    @classmethod
    def from_json(cls, settings: dict[str, Any], model: ModelConfig) -> Self:
        """Read the config.json of a head for this model; raises `BadModelFile`."""
        heads, width = num_heads(settings), hidden_size(settings)
        head_dim = optional_integer(settings, "head_dim", 2, MAX_HEAD_DIM) or width // heads
        kv_heads = optional_integer(settings, "num_key_value_heads", 1, heads) or heads
        if heads % kv_heads:
            raise invalid("num_key_value_heads", f"a divisor of {heads}", kv_heads)
        if head_dim % 2:
            raise invalid("head_dim", "even", head_dim)
        if settings.get("num_hidden_layers", 1) != 1:
            raise invalid(
                "num_hidden_layers", "1 in an EAGLE-3 head", settings["num_hidden_layers"]
            )
        if settings.get("hidden_act", "silu") != "silu":
            raise invalid("hidden_act", "silu in an EAGLE-3 head", settings["hidden_act"])
        vocab_size = optional_integer(settings, "vocab_size", 1, MAX_VOCAB)
        if vocab_size not in (None, model.vocab_size):
            raise BadModelFile(
                f"config.json of the draft: vocab_size is {vocab_size}, but the model's is "
                f"{model.vocab_size}",
                "the draft belongs to another base model; its model card names which",
            )
        rope = RopeConfig.from_hf(settings, head_dim)
        if rope.rotary_dim not in (None, head_dim):
            raise invalid("partial_rotary_factor", "1 in an EAGLE-3 head", rope.rotary_dim)
        # The layer reads each token with the hidden states before it, which the first one has not.
        scores = Scores(head_dim**-0.5, first_key=1)
        attention = Attention(heads, kv_heads, head_dim, Values(head_dim), scores, rope=rope)
        mlp = Mlp(integer(settings, "intermediate_size", 1, 8 * MAX_WIDTH), Activation("silu"))
        eps = number(settings, "rms_norm_eps", above=0.0, below=1.0, default=1e-6)
        decoder = ModelConfig(
            family="eagle3",
            architecture="LlamaForCausalLMEagle3",
            dtype=model.dtype,
            max_context_tokens=model.max_context_tokens,
            bos_id=None,
            eos_ids=(),
            hidden_size=width,
            norm=Norm("rms", eps),
            embeddings=Embeddings(model.vocab_size),
            layers=(LayerConfig(attention, mixer=None, mlp=mlp, moe=None),),
            head=Head(tied=False),
        )
        return cls(
            hidden_layers=_hidden_layers(settings, model.num_layers),
            decoder=decoder,
            draft_vocab_size=integer(settings, "draft_vocab_size", 1, model.vocab_size),
            norm_before_residual=flag(settings, "norm_before_residual"),
        )

    def shapes(self, model: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the name and the shape of every float tensor but the embeddings."""
        width, attention, mlp = self.decoder.hidden_size, self.decoder.attention, self.decoder.mlp
        inner = 0 if mlp is None else mlp.intermediate_size
        queries = attention.num_heads * attention.head_dim
        keys = attention.num_kv_heads * attention.head_dim
        yield "fc.weight", (width, len(self.hidden_layers) * model.hidden_size)
        for norm in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
            yield f"{LAYER}{norm}.weight", (width,)
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"{LAYER}self_attn.{name}_proj.weight", (rows, 2 * width)
        yield f"{LAYER}self_attn.o_proj.weight", (width, queries)
        yield f"{LAYER}mlp.gate_proj.weight", (inner, width)
        yield f"{LAYER}mlp.up_proj.weight", (inner, width)
        yield f"{LAYER}mlp.down_proj.weight", (width, inner)
        yield "norm.weight", (width,)
        yield "lm_head.weight", (self.draft_vocab_size, width)


@dataclass(frozen=True)
class Eagle3Files:
    """The checked files of an EAGLE-3 head for one model.

    `token_ids` [draft_vocab_size] are the model's ids of the head's tokens. Without embeddings of
    its own the head uses the model's.
    """

    file: TensorFile
    config: Eagle3Config
    token_ids: npt.NDArray[np.int64]

    @classmethod
    def open(cls, directory: Path, model: ModelConfig) -> Self:
        """Read the headers and the ids, and check every shape.

        Raises `BadModelFile` if a file is damaged or belongs to another model.
        """
        config = Eagle3Config.from_json(read_json(directory / "config.json"), model)
        found = [directory / name for name in WEIGHT_FILES if (directory / name).is_file()]
        if not found:
            raise BadModelFile(f"{directory} has none of {', '.join(WEIGHT_FILES)}")
        file = TensorFile(found[0], "the draft")
        shapes = dict(config.shapes(model))
        for name in file.tensors:
            if name.startswith(LAYER) and name not in shapes:
                raise BadModelFile(f"{file.file}: tensor {name} is not one of an EAGLE-3 head")
        table = f"{EMBEDDINGS}.weight"
        width = config.decoder.hidden_size
        if table in file.tensors or width != model.hidden_size:
            shapes[table] = (model.vocab_size, width)
        for name, shape in shapes.items():
            file.require(name, shape)
            file.require_floats(name)
        if "t2d" in file.tensors:
            file.require("t2d", (model.vocab_size,))
        return cls(file, config, _token_ids(file, config.draft_vocab_size, model.vocab_size))

    @property
    def has_embeddings(self) -> bool:
        return f"{EMBEDDINGS}.weight" in self.file.tensors

    @property
    def num_bytes(self) -> int:
        """The stored bytes of the head."""
        return sum(info.nbytes for info in self.file.tensors.values())


def _hidden_layers(settings: Fields, num_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs are read.

    The list in `eagle_config` counts the outputs of layers, the one beside it their inputs.
    """
    inner = mapping(settings, "eagle_config") or {}
    shift = 1 if _LAYERS in inner and settings.get(_LAYERS) is None else 0
    layers = inner[_LAYERS] if shift else settings.get(_LAYERS)
    if layers is None:
        layers = [2, num_layers // 2, num_layers - 3]
    is_list = isinstance(layers, list) and 1 <= len(layers) <= _MAX_LAYERS
    if not is_list or not all(type(i) is int and 0 <= i + shift <= num_layers for i in layers):
        raise BadModelFile(
            f"config.json of the draft: it reads the layers {str(layers)[:80]}, but the model has "
            f"{num_layers}",
            "the draft belongs to another base model; its model card names which",
        )
    return tuple(i + shift for i in layers)


def _token_ids(file: TensorFile, draft_vocab: int, vocab: int) -> npt.NDArray[np.int64]:
    """Return the model's ids of the head's tokens: each plus its offset in `d2t`."""
    ids = np.arange(draft_vocab)
    if "d2t" not in file.tensors and draft_vocab == vocab:
        return ids
    file.require("d2t", (draft_vocab,))
    offsets = file.integers("d2t")
    # Compared before they are added: the sum might overflow.
    wrong = np.flatnonzero((offsets < -ids) | (offsets >= vocab - ids))
    if len(wrong):
        i = int(wrong[0])
        expected = f"an offset from {-i} to {vocab - i - 1} of token {i}"
        raise file.bad("d2t", expected, str(offsets[i]), file.of_another_model)
    return ids + offsets

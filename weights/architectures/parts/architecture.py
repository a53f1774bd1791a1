"""One entry of the architecture table, and the helpers that write one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swiftchat.weights.architectures.parts.fields import Fields, invalid
from swiftchat.weights.architectures.parts.keys import Keys
from swiftchat.weights.architectures.parts.model import ModelConfig


def frozen(**values: Any) -> Mapping[str, Any]:
    """Return a read-only mapping."""
    return MappingProxyType(values)


@dataclass(frozen=True)
class Architecture:
    """One model architecture as data; the table's key is the Hugging Face class name.

    `model_type` is the one of `config.json`, and the unique `name` unless there is a `short_name`.

    Tensors: `tensors` maps a canonical name to the Hugging Face name with `{i}` for the layer,
    `{e}` for the expert and `{h}` for the head. An entry `qkv`, `gate_up` or `experts_…` means
    that the file merges those matrices. All names start with `prefix`, which some files omit.
    `separate_norm_tensors` are the names that differ where attention and MLP read the same
    residual stream through a norm each, With
    `sublayers` n, layer `{i}` of the file is n layers of this program, the n-th of which is `{j}`
    in the names. With `qkv_in_groups`, the rows of the merged q/k/v are
    ordered by key head: its query heads, the key head, the value head. `transposed` matrices
    are [in, out] in the file, `row_vectors` [1, n] instead of [n]. `constants` are numbers that
    transformers stores as tensors of no dimension, by name with `{i}`; nothing here reads them.

    Config: `defaults` are the values of transformers for absent keys of `config.json`;
    `renamed` maps a standard key to this architecture's key. `build` returns the model, part by
    part. `supported_keys` are keys of `unsupported_keys.NEUTRAL_VALUES` that the
    architecture reads; `rejected_keys` those that transformers reads and this program cannot
    compute. `generation` returns the class name of a file where several
    generations share it.
    """

    model_type: str
    build: Callable[[Keys], ModelConfig]
    tensors: Mapping[str, str]
    short_name: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=frozen)
    renamed: Mapping[str, str] = field(default_factory=frozen)
    supported_keys: frozenset[str] = frozenset()
    rejected_keys: frozenset[str] = frozenset()
    generation: Callable[[Fields], str] | None = None
    prefix: str = ""
    separate_norm_tensors: Mapping[str, str] = field(default_factory=frozen)
    sublayers: int = 1
    qkv_in_groups: bool = False
    transposed: frozenset[str] = frozenset()
    row_vectors: frozenset[str] = frozenset()
    constants: Mapping[str, float] = field(default_factory=frozen)

    @property
    def name(self) -> str:
        return self.short_name or self.model_type

    def standard_fields(self, config: Fields) -> dict[str, Any]:
        """Return `config` with defaults for absent keys and values under the standard keys.

        Raises `BadModelFile` if a key and its standard key have different values: which of them
        transformers reads depends on the architecture.
        """
        complete = {**self.defaults, **config}
        for standard, own in self.renamed.items():
            value, other = config.get(own), config.get(standard)
            if value is not None and other is not None and value != other:
                raise invalid(own, f"equal to {standard}", value)
            if complete.get(own) is not None:
                complete[standard] = complete[own]
            elif own in config and other is None and complete.get(standard) is True:
                complete[standard] = False  # null, which is false in transformers
        return complete


Architectures = Mapping[str, Architecture]
"""The architectures of a file by the name of their class."""


def tensor_names(in_layer: Mapping[str, str], *, layer: str, **outside: str) -> Mapping[str, str]:
    """Return the names `in_layer`, each prefixed with `layer`, and those `outside` the layers."""
    return MappingProxyType(outside | {name: layer + rest for name, rest in in_layer.items()})


_LLAMA_LAYER = {
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "attn_norm_bias": "input_layernorm.bias",
    "mlp_norm_bias": "post_attention_layernorm.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}


def llama_tensors(changes: Mapping[str, str], without: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Return Llama's tensor names except `without`, with `changes` to those of a layer.

    `final_norm` and `lm_head_bias` may be among the changes.
    """
    outside = {
        "final_norm": "model.norm.weight",
        **{n: rest for n, rest in changes.items() if n in ("final_norm", "lm_head_bias")},
    }
    kept = {name: rest for name, rest in _LLAMA_LAYER.items() if name not in without}
    return tensor_names(
        {name: rest for name, rest in {**kept, **changes}.items() if name not in outside},
        embed="model.embed_tokens.weight",
        final_norm_bias="model.norm.bias",
        lm_head="lm_head.weight",
        **outside,
        layer="model.layers.{i}.",
    )


LLAMA_TENSORS = llama_tensors({})
# Names that one merged gate_up tensor replaces.
SEPARATE_GATE_UP = ("gate", "up", "gate_bias", "up_bias")

# The key of families that read windows.
WINDOW_KEYS = frozenset({"sliding_window"})

"""Tensors in the layers of a checkpoint that no part of the model reads."""

import re
from collections.abc import Container, Iterable

_LAYER = re.compile(r"(.*?\.\d+)\.")
# What older versions of transformers saved, and scales of keys, values and activations.
_LEFTOVERS = re.compile(
    r"rotary_emb\.|\.rotary_pos_emb\.|\.(attn|attention|self_attention)\.(masked_)?bias$"
    r"|position_ids$|\.(k|v|q|prob|input|output|act)_scale$"
)
_INPUT_SCALE = re.compile(r"\.input_(global_)?scale$")
_PARAMETERS = (".weight", ".bias")


def unread_tensors(
    names: Iterable[str], read: Container[str], expected: Iterable[str]
) -> list[str]:
    """Return those of a checkpoint's `names` that belong to the model and are not `read`.

    They are in a layer, or in a module, that has a tensor of `expected`, which are the names that
    the model has. Layers that predict further tokens, and other parts of a multimodal model, are
    not the model's.
    """
    owners = {owner for name in expected for owner in _owners(name)}
    return [
        name
        for name in names
        if name.endswith(_PARAMETERS)
        and name not in read
        and not _LEFTOVERS.search(name)
        and not owners.isdisjoint(_owners(name))
    ]


def _owners(name: str) -> list[str]:
    """Return the module of a tensor, and its layer if it is in one."""
    layer = _LAYER.match(name)
    module = name.rpartition(".")[0]
    return [module] if layer is None else [module, layer[1]]


def unread_input_scales(names: Iterable[str], read: Container[str]) -> int:
    """Return how many of a checkpoint's `names` are scales of activations and not `read`."""
    return sum(bool(_INPUT_SCALE.search(name)) and name not in read for name in names)


def unread_note(names: list[str]) -> str:
    """Return a note for the user about tensors that nothing reads."""
    if not names:
        return ""
    others = f" and {len(names) - 1} more tensors" if len(names) > 1 else ""
    return (
        f"nothing reads {names[0][:200]}{others} of the files: answers may differ from the model's"
    )

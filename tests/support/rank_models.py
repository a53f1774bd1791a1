"""Tiny models of the mixers with a state that have CUDA kernels, for two ranks."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tests.support.mixer_models import GPU_MODELS

# The kernels of experts read 8 columns at a time, also of the part of one of two ranks.
_EXPERTS = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64}
# Beside those of one GPU: norms over the heads of both ranks, before and after the gate, and a key
# head that both have.
_RANK_MODELS: dict[str, tuple[str, Mapping[str, Any]]] = {
    **{name: (name, changes) for name, changes in GPU_MODELS.items()},
    "qwen3_next": ("qwen3_next", _EXPERTS),
    "granitemoehybrid-shared": ("granitemoehybrid", {"mamba_n_groups": 1}),
    "falcon_h1-shared": (
        "falcon_h1",
        {**GPU_MODELS["falcon_h1"], "mamba_n_groups": 1, "mamba_norm_before_gate": True},
    ),
    "qwen3_next-shared": ("qwen3_next", {**_EXPERTS, "linear_num_key_heads": 1}),
}
RANK_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = MappingProxyType(_RANK_MODELS)

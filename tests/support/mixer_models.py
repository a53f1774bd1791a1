"""Tiny models of the mixers with a state that have CUDA kernels."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Model types with changes of the sizes of the sweep: the kernel does not scale biases.
GPU_MODELS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "lfm2": {},
        "qwen3_next": {},
        "qwen3_5_text": {},
        "granitemoehybrid": {},
        "bamba": {},
        "falcon_h1": {"projectors_bias": False, "mamba_proj_bias": False},
        "nemotron_h": {},
        "mamba": {"state_size": 8},
        "falcon_mamba": {"state_size": 12},
        "jamba": {},
    }
)
# The kernels do not choose their experts: every step is computed without a graph.
NOT_CAPTURED = ("nemotron_h",)

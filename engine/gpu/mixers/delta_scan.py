"""The tokens of prompts in the mixers with a delta rule: convolution and scan."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.mixers.scans import ScanRows, causal_conv, gated_delta_scan
from swiftchat.engine.gpu.mixers.kind import present
from swiftchat.engine.model.mixer_weights import MixerWeights
from swiftchat.engine.model.state_cache import LayerStates


def scan_deltas(
    gpu: Gpu,
    projected: Tensor,
    weights: MixerWeights,
    states: LayerStates,
    rows: ScanRows,
    *,
    width: int,
    num_key_heads: int,
    activation: str,
    key_steps: Tensor | None = None,
) -> Tensor:
    """Return the outputs of the tokens of each row before their norm, fp32 [n, width].

    `projected` T [n, …] begins with queries, keys and values. `states` are read and written by
    slot. `key_steps` are those of `gated_delta_scan`.
    """
    n, device = len(projected), projected.device
    mixed = torch.empty(n, len(weights.conv), device=device)
    causal_conv(
        gpu,
        projected,
        mixed,
        conv=weights.conv,
        conv_bias=None,
        conv_states=states[0],
        rows=rows,
        activation=activation,
    )
    inner = torch.empty(n, width, device=device)
    gated_delta_scan(
        gpu,
        mixed,
        projected,
        inner,
        decay=present(weights.decay).view(-1),
        step_bias=present(weights.step_bias),
        states=states[1],
        rows=rows,
        num_key_heads=num_key_heads,
        key_steps=key_steps,
    )
    return inner

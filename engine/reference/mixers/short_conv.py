"""Short causal convolutions over the tokens of a sequence, depthwise."""

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.model.mixer_weights import MixerInputs
from swiftchat.engine.model.state_cache import LayerStates


def causal_conv(
    x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Convolve x [num_seqs, n, channels] with weight [channels, kernel], in fp32.

    `before` [num_seqs, channels, kernel - 1] are the tokens before x. Returns the result in the
    shape of x, and the last tokens for the next call.
    """
    tokens = torch.cat([before, x.float().transpose(1, 2)], 2)
    shift = None if bias is None else bias.float()
    out = F.conv1d(tokens, weight.float().unsqueeze(1), shift, groups=len(weight))
    return out.transpose(1, 2), tokens[..., tokens.shape[2] - before.shape[2] :]


def short_conv(
    tokens: Tensor, states: LayerStates, inputs: MixerInputs
) -> tuple[Tensor, LayerStates]:
    """LFM2's gated convolution of projections b, c and x, side by side in `tokens`.

    [num_seqs, n, 3 * width]; the result is fp32 [num_seqs, n, width], with the states after it.
    """
    weights = inputs.weights
    b, c, x = tokens.float().chunk(3, -1)
    out, last = causal_conv(b * x, states[0], weights.conv, weights.conv_bias)
    return c * out, (last,)

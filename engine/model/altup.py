"""Several residual streams, of which a layer computes one, as torch calls.

Alternating updates: Baykal et al., 2023 (arXiv:2301.13310), as in Gemma 3n. All activations are
fp32; `streams` are [num_streams, n, hidden_size].
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.half_gemm import linear
from swiftchat.engine.linear.weight import LinearWeight

_LEAST_MEAN_SQUARE = 1e-5


@dataclass(frozen=True)
class StreamProjections:
    """The matrices to and from the streams but the first: [num_streams - 1, hidden, hidden]."""

    into: Tensor
    out: Tensor


@dataclass(frozen=True)
class StreamMixing:
    """The weights of one layer.

    `router` [num_streams, hidden_size] reads the norm with `router_norm`. Its results are the input
    of `predict` [num_streams², num_streams] and `correct` [num_streams, num_streams]. `scale`
    [hidden_size] multiplies the stream that the per-layer embeddings read, if there is one.
    """

    router: Tensor
    router_norm: Tensor
    predict: Tensor
    correct: Tensor
    scale: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        return [each for each in vars(self).values() if each is not None]


@dataclass(frozen=True)
class LowRankResidual:
    """LAuReL (Menghani et al., 2024, arXiv:2411.07501): `right` · `left`, and its norm."""

    left: LinearWeight
    right: LinearWeight
    norm: Tensor


def expand(x: Tensor, projections: StreamProjections) -> Tensor:
    """Return the streams before the layers, given the first one [n, hidden_size]."""
    return torch.stack([x, *(_like(x, x, matrix) for matrix in projections.into)])


def collapse(streams: Tensor, projections: StreamProjections) -> Tensor:
    """Return the stream that the last norm reads: the mean of all projected ones."""
    first, *others = streams.unbind()
    projected = [_like(first, x, w) for x, w in zip(others, projections.out, strict=True)]
    return torch.stack([first, *projected]).mean(0)


def predict(streams: Tensor, active: int, mixing: StreamMixing, eps: float) -> Tensor:
    """Return the streams before a layer computes the `active` one."""
    count = len(streams)
    routed = _route(streams[active], mixing, eps)
    coefficients = (routed @ mixing.predict.float().t()).view(-1, count, count)
    return torch.einsum("inh,nji->jnh", streams, coefficients) + streams


def correct(predicted: Tensor, x: Tensor, active: int, mixing: StreamMixing, eps: float) -> Tensor:
    """Return the streams after a layer whose output for the `active` stream is x."""
    coefficients = _route(x, mixing, eps) @ mixing.correct.float().t() + 1
    return (x - predicted[active]) * coefficients.t().unsqueeze(2) + predicted


def _route(x: Tensor, mixing: StreamMixing, eps: float) -> Tensor:
    width = x.shape[1]
    normed = F.rms_norm(x, (width,), mixing.router_norm.float(), eps) / width
    return (normed @ mixing.router.float().t()).tanh()


def _like(like: Tensor, x: Tensor, matrix: Tensor) -> Tensor:
    """Project x, with the root mean square of `like` in each row."""
    projected = linear(x.to(matrix.dtype), matrix).float()
    wanted = like.square().mean(-1, keepdim=True)
    found = projected.square().mean(-1, keepdim=True).clamp(min=_LEAST_MEAN_SQUARE)
    return projected * wanted.sqrt() / found.sqrt()

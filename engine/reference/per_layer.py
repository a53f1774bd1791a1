"""Embeddings of a token for each layer, as torch calls."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from swiftchat.engine.linear.half_gemm import linear
from swiftchat.engine.model.per_layer import PerLayerTable


def per_layer_embeddings(
    ids: Tensor, x: Tensor, table: PerLayerTable, eps: float
) -> Sequence[Tensor]:
    """Return the embeddings of `ids` [n] for each layer: [n, width] each, of the weights' dtype.

    x fp32 [n, hidden_size] are the model's scaled embeddings. The sum of the looked-up embeddings,
    multiplied by √width, and of the norm of a projection of x is divided by √2.
    """
    n, width, dtype = len(x), len(table.norm), table.project.dtype
    projected = linear(x.to(dtype), table.project).float() * x.shape[1] ** -0.5
    normed = F.rms_norm(projected.view(n, -1, width), (width,), table.norm.float(), eps)
    known = ids.where(ids < table.embed.shape[0], 0)
    scale = float(torch.tensor(width**0.5, dtype=dtype))  # models are trained with it rounded
    looked_up = table.embed.rows(known).float().view(n, -1, width) * scale
    return ((normed + looked_up) * 2**-0.5).to(dtype).unbind(1)

"""The choice of keys in sparse latent attention: DeepSeek Sparse Attention (arXiv:2512.02556)."""

import dataclasses

import torch
from torch import Tensor

from swiftchat.engine.reference.attention import AttentionPlan
from swiftchat.weights.architectures.parts.latent import SparseIndex


def sparse_plan(
    plan: AttentionPlan, queries: Tensor, weights: Tensor, keys: Tensor, index: SparseIndex
) -> AttentionPlan:
    """Return the plan of rows that attend to the best `index.top_k` keys before them only.

    `queries` [n, num_heads, dim], `weights` [n, num_heads], `keys` [context_len, dim].
    """
    n, length = len(queries), plan.context_len
    if length <= index.top_k:
        return plan
    scores = torch.zeros(n, length, device=queries.device)
    scale = (index.dim * index.num_heads) ** -0.5
    wide, columns = keys.float(), weights.float() * scale
    for head in range(index.num_heads):  # one at a time: they are as large as the result
        products = (queries[:, head].float() @ wide.t()).relu_()
        scores.addcmul_(products, columns[:, head : head + 1])
    causal = torch.ones(n, length, dtype=torch.bool, device=scores.device).tril_(length - n)
    if plan.mask is not None:
        causal &= plan.mask
    scores.masked_fill_(~causal, float("-inf"))
    chosen = scores.topk(index.top_k, dim=-1).indices
    mask = torch.zeros_like(causal).scatter_(1, chosen, True).logical_and_(causal)
    return dataclasses.replace(plan, mask=mask, is_causal=False)

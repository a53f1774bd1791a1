"""The choice of experts by a router's scores."""

import torch
from torch import Tensor

from swiftchat.weights.architectures.parts.router import RouterConfig

# SparseMixer's: scores that are relatively further below the best one are left out.
_JITTER = 0.01


def route(
    logits: Tensor, correction: Tensor | None, count: int, config: RouterConfig
) -> tuple[Tensor, Tensor]:
    """Return weights and indices of the chosen experts: [n, count] each.

    `logits` fp32 [n, num_experts] are the router's scores, `correction` fp32 [num_experts] its
    bias for the choice. The softmax is that of Shazeer et al., 2017 (arXiv:1701.06538), without
    noise; sigmoid, correction and groups are those of DeepSeek-V3 (arXiv:2412.19437). Ties go to
    the lower index.
    """
    if config.softcap:
        logits = (logits / config.softcap).tanh() * config.softcap
    if config.scores == "sparsemixer":
        return _sparsemixer(logits, count)
    scores = logits.softmax(-1) if config.scores == "softmax" else logits.sigmoid()
    for_choice = logits if config.by_logits else scores
    for_choice = for_choice if correction is None else for_choice + correction.view(-1)
    if config.groups > 1:
        for_choice = _in_top_groups(for_choice, config)
    chosen = for_choice.sort(dim=-1, descending=True, stable=True).indices[:, :count]
    weights = scores.gather(1, chosen)
    if config.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + config.eps)
    return weights * config.scale, chosen


def _in_top_groups(scores: Tensor, config: RouterConfig) -> Tensor:
    """Return the scores with -inf for experts outside of the best groups."""
    grouped = scores.view(len(scores), config.groups, -1)
    totals = grouped.topk(min(config.best_of_group, grouped.shape[2]), dim=-1).values.sum(-1)
    best = totals.sort(dim=-1, descending=True, stable=True).indices[:, : config.top_groups]
    outside = torch.ones_like(totals, dtype=torch.bool).scatter_(1, best, False)
    return grouped.masked_fill(outside.unsqueeze(2), float("-inf")).view(scores.shape)


def _sparsemixer(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Choose experts one after the other (Liu et al., 2023, arXiv:2310.00811), without noise."""
    left, weights, chosen = logits, [], []
    for _ in range(count):
        best, index = left.max(-1, keepdim=True)
        scale = logits.abs().clamp(min=best)
        near = left.masked_fill((best - logits) / scale > 2 * _JITTER, float("-inf"))
        weights.append(near.softmax(-1).gather(1, index))
        chosen.append(index)
        left = left.scatter(1, index, float("-inf"))
    return torch.cat(weights, 1), torch.cat(chosen, 1)

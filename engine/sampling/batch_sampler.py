"""Sample many rows at once: rows with the same settings share every tensor operation.

Each row gets the token that `sample` gives it alone. On a CPU that is a matter of the host's time
for each operation, on a GPU also of one wait for the device instead of several for each row.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.sampling.filters import num_partial_sort
from swiftchat.engine.sampling.philox import uniforms
from swiftchat.engine.sampling.sampler import ALL_BANNED, NOT_FINITE, process_logits, sample

# Of the logits in one operation; the intermediate results need up to 20 times as many bytes.
_MAX_ELEMENTS = 1 << 22

_Settings = tuple[float, int, float, float]  # temperature, top-k, top-p, min-p
_GREEDY: _Settings = (0.0, 0, 1.0, 0.0)


@dataclass(frozen=True)
class Draw:
    """What a token is sampled with, see `sample`. `position` is the number of tokens before it.

    These are `tokens`, and further ones if no control depends on them.
    """

    tokens: Sequence[int]
    num_prompt: int
    params: SamplingParams
    seed: int
    position: int
    allowed: Tensor | None = None


def sample_rows(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """Return the id that each draw takes from its row of the logits fp32 [n, vocab_size].

    NOT_FINITE and ALL_BANNED as in `sample`.
    """
    if len(draws) == 1:
        return [_sample_one(logits[0], draws[0])]
    groups: dict[_Settings, list[int]] = {}
    tokens = torch.full((len(draws),), NOT_FINITE, device=logits.device)
    for i, draw in enumerate(draws):
        settings = _settings(draw.params)
        if settings is None:
            tokens[i] = _sample_one(logits[i], draw)
        else:
            groups.setdefault(settings, []).append(i)
    for settings, indices in groups.items():
        for part in _parts(indices, logits.shape[1]):
            rows = _processed(logits, draws, part)
            maxima, found = _maxima(rows)
            if settings != _GREEDY:
                found = _drawn(rows - maxima, settings, _points(draws, part))
            tokens[part] = found.masked_fill(~torch.isfinite(maxima[:, 0]), ALL_BANNED)
    found_all: list[int] = tokens.masked_fill(~_are_finite(logits), NOT_FINITE).tolist()
    return found_all


def _sample_one(logits: Tensor, draw: Draw) -> int:
    return sample(
        *(logits, draw.tokens, draw.num_prompt, draw.params, draw.seed, draw.allowed),
        position=draw.position,
    )


def _settings(params: SamplingParams) -> _Settings | None:
    """Return what a group of rows has in common; None for controls that take rows one by one."""
    if params.temperature == 0:
        return _GREEDY
    if params.typical_p < 1 or params.top_p_decay < 1:
        return None
    if params.top_n_sigma > 0 or params.xtc_probability > 0:
        return None
    return params.temperature, params.top_k, params.top_p, params.min_p


def _parts(indices: list[int], vocab_size: int) -> Iterator[list[int]]:
    size = max(1, _MAX_ELEMENTS // vocab_size)
    return (indices[start : start + size] for start in range(0, len(indices), size))


def _processed(logits: Tensor, draws: Sequence[Draw], indices: list[int]) -> Tensor:
    """Return some rows of the logits before the temperature; they may be the same tensor."""
    is_range = indices[-1] - indices[0] == len(indices) - 1
    rows = logits[indices[0] : indices[-1] + 1] if is_range else logits[indices]
    changed: dict[int, Tensor] = {}
    for i, (index, row) in enumerate(zip(indices, rows, strict=True)):
        draw = draws[index]
        if draw.params.changes_logits or draw.allowed is not None:
            new = process_logits(row, draw.tokens, draw.num_prompt, draw.params)
            if draw.allowed is not None:
                new = new.masked_fill(~draw.allowed.to(new.device), -torch.inf)
            changed[i] = new
    if not changed:
        return rows
    return torch.stack([changed.get(i, row) for i, row in enumerate(rows)])


def _are_finite(logits: Tensor) -> Tensor:
    """Return whether all logits of each row are finite, bool [n]."""
    if logits.is_cpu:  # the sum is several times as fast, and finite but for damaged models
        finite = torch.isfinite(logits.sum(1))
        if finite.all():
            return finite
    return torch.isfinite(logits).all(1)


def _maxima(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maximum of each row fp32 [n, 1], and the first id that has it, int64 [n]."""
    if not rows.is_cpu:
        values, ids = rows.max(1)
        return values.unsqueeze(1), ids
    ids = torch.from_numpy(rows.numpy().argmax(1))  # takes a tenth of torch's time
    return rows.gather(1, ids.unsqueeze(1)), ids


def _points(draws: Sequence[Draw], indices: list[int]) -> Tensor:
    """Return the random number in [0, 1) of each draw, fp64 [len(indices)]."""
    seeds = [draws[i].seed for i in indices]
    return torch.from_numpy(uniforms(seeds, [draws[i].position for i in indices]))


def _drawn(rows: Tensor, settings: _Settings, points: Tensor) -> Tensor:
    """Return the id that each row draws after temperature, top-k, min-p and top-p; int64 [n].

    The maximum of each row is 0.
    """
    temperature, top_k, top_p, min_p = settings
    probs = torch.softmax(rows / max(temperature, 1e-6), 1)
    points, vocab_size = points.to(rows.device), probs.shape[1]
    if not (0 < top_k < vocab_size) and min_p == 0 and top_p == 1:
        cumulative = probs.double().cumsum(1)
        return _searched(cumulative, points, torch.full_like(points, vocab_size).long())
    values, ids = probs.topk(num_partial_sort(top_k, vocab_size), 1)
    found = _drawn_sorted(values, ids, settings, points)
    if not top_k and values.shape[1] < vocab_size:
        are_enough = values[:, -1] < min_p * values[:, 0]
        if min_p == 0:
            are_enough |= values.double().cumsum(1)[:, -1] >= top_p
        if not are_enough.all():
            rest = ~are_enough
            values, ids = probs[rest].sort(dim=1, descending=True, stable=True)
            found[rest] = _drawn_sorted(values, ids, settings, points[rest])
    return found


def _drawn_sorted(values: Tensor, ids: Tensor, settings: _Settings, points: Tensor) -> Tensor:
    """Return the id that each row draws of `ids` [n, k], whose probabilities descend; int64 [n]."""
    _, top_k, top_p, min_p = settings
    cumulative = values.double().cumsum(1)
    num_kept = (values >= min_p * values[:, :1]).sum(1).clamp_(min=1)  # 0 only for NaN
    if top_p < 1:
        total: Tensor | float = 1.0
        if top_k or min_p > 0:
            total = cumulative.gather(1, num_kept.unsqueeze(1) - 1)
        num_nucleus = 1 + (cumulative[:, :-1] < top_p * total).sum(1)
        num_kept = torch.minimum(num_kept, num_nucleus)
    return ids.gather(1, _searched(cumulative, points, num_kept).unsqueeze(1)).squeeze(1)


def _searched(cumulative: Tensor, points: Tensor, num_kept: Tensor) -> Tensor:
    """Return the index at which each row's sum exceeds its point of the sum of the kept ones."""
    last = num_kept.unsqueeze(1) - 1
    wanted = points.unsqueeze(1) * cumulative.gather(1, last)
    return torch.minimum(torch.searchsorted(cumulative, wanted, right=True), last).squeeze(1)

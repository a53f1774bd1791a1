"""Penalties, argmax, sampling and the end of a decode step: `kernels/sampling/`."""

import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu

_THREADS, _LOGITS_PER_BLOCK = 256, 2048  # of penalties and argmax
# As in `kernels/sampling/sample_row.cuh`.
_SAMPLE_THREADS, _CHUNK, _LIST_SIZE, _BINS = 512, 4096, 512, 512
_MAX_VOCAB_SIZE = 2**20 - 1
_MAX_DECODE_ROWS = 256


def penalties(
    gpu: Gpu,
    logits: Tensor,
    counts: Tensor,
    bias: Tensor,
    masks: Tensor,
    *,
    has_bias: Tensor,
    repeat_penalty: Tensor,
    presence_penalty: Tensor,
    frequency_penalty: Tensor,
    context_lens: Tensor,
    min_context_lens: Tensor,
    has_mask: Tensor,
) -> None:
    """Apply bias, penalties, bans and masks to logits fp32 [n, vocab_size] in place.

    counts int32 [max_rows, vocab_size]: bit 30 of an element is set if the id occurs in the prompt
    or the answer, bit 29 if it ends an answer; the lower bits count its occurrences in the answer.
    bias fp32 [max_rows, vocab_size] is added; −inf bans an id. masks int32 [max_rows,
    ceil(vocab_size / 32)] have a bit for each id, the lowest one first; 0 bans it. The penalties
    are fp32 [n]; has_bias, has_mask, context_lens and min_context_lens are int32 [n]. Ids that end
    an answer are banned in rows with fewer than min_context_lens tokens. A row's counts are not
    read if the penalties are 1, 0 and 0 and it is long enough, its bias is not read if has_bias is
    0, its mask is not read if has_mask is 0.
    """
    n, vocab_size = logits.shape
    if n > len(counts) or vocab_size >= 2**29:
        raise ValueError(f"{n} rows of {vocab_size} logits with counts for {len(counts)} rows")
    gpu.kernel("penalties")(
        (-(-vocab_size // _LOGITS_PER_BLOCK), n),
        _THREADS,
        num_bytes=logits.nbytes,
        logits=logits,
        bias=bias,
        counts=counts,
        masks=masks,
        has_bias=has_bias,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        context_lens=context_lens,
        min_context_lens=min_context_lens,
        has_mask=has_mask,
    )


def argmax_workspace(gpu: Gpu, max_rows: int) -> Tensor:
    """Return the workspace of `argmax` for up to `max_rows` rows; it is zero between calls."""
    return torch.zeros(max_rows, 2, dtype=torch.int64, device=gpu.device)


def argmax(gpu: Gpu, logits: Tensor, max_logits: Tensor, ids: Tensor, workspace: Tensor) -> None:
    """Write the maximum of each row of logits fp32 [n, vocab_size], and the lowest id that has it.

    max_logits fp32 [n]; ids int32 [n]. A row with a NaN or an infinite logit gets NaN and -1, one
    whose ids are all banned -2.
    """
    n, vocab_size = logits.shape
    max_rows = len(workspace)
    if n > max_rows or not 0 < vocab_size < 2**30:
        raise ValueError(f"{n} rows of {vocab_size} logits with a workspace for {max_rows} rows")
    gpu.kernel("argmax")(
        (-(-vocab_size // _LOGITS_PER_BLOCK), n),
        _THREADS,
        num_bytes=logits.nbytes,
        logits=logits,
        max_logits=max_logits,
        ids=ids,
        workspace=workspace,
    )


def sample_workspace(gpu: Gpu, max_rows: int, vocab_size: int) -> Tensor:
    """Return the workspace of `sample` for up to `max_rows` rows; every call leaves it reusable."""
    stride = _workspace_stride(vocab_size)
    return torch.zeros(max_rows, stride, dtype=torch.int64, device=gpu.device)


def sample(
    gpu: Gpu,
    logits: Tensor,
    *,
    max_logits: Tensor,
    argmax_ids: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    out: Tensor,
    workspace: Tensor,
) -> None:
    """Write each row's next token to out int32 [n].

    It is argmax_ids[row] if that is negative or the temperature is 0. logits fp32 [n, vocab_size]
    have penalties applied; max_logits fp32 [n] and argmax_ids int32 [n] are from `argmax`.
    temperature, top_p (1: off) and min_p (0: off) are fp32 [n]; top_k int32 [n] (0: off). The
    random numbers are a function of seeds int64 [n], read as unsigned, and positions int32 [n].
    """
    n, vocab_size = logits.shape
    if not 0 < vocab_size <= _MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size must be between 1 and {_MAX_VOCAB_SIZE}, not {vocab_size}")
    if n > len(workspace):
        raise ValueError(f"{n} rows with a workspace for {len(workspace)} rows")
    gpu.kernel("sample")(
        (_num_chunks(vocab_size), n),
        _SAMPLE_THREADS,
        num_bytes=logits.nbytes,
        logits=logits,
        max_logits=max_logits,
        argmax_ids=argmax_ids,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seeds=seeds,
        positions=positions,
        out=out,
        workspace=workspace,
        workspace_stride=_workspace_stride(vocab_size),
    )


def advance(
    gpu: Gpu,
    sampled: Tensor,
    *,
    tokens: Tensor,
    positions: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    counts: Tensor | None,
    ring: Tensor,
    step: Tensor,
    block_size: int,
    id_map: Tensor | None = None,
) -> None:
    """Make the sampled ids [n] the input of the next decode step, and copy them to the host.

    All are int32 [n] on the GPU; `block_tables` is [n, max_blocks] and `counts` [n, vocab_size]
    if ids are counted. With an `id_map` int32 [any], `id_map[id]` takes the place of a sampled id;
    that it has one for each is not checked. `step` is int64 [1], `ring` int32
    [ring_steps, ring_rows] in pinned host memory. All but `sampled`, `block_tables` and `id_map`
    are modified in place.
    """
    n = len(sampled)
    if n > _MAX_DECODE_ROWS:
        raise ValueError(f"at most {_MAX_DECODE_ROWS} rows, not {n}")
    if not ring.is_pinned() or ring.shape[1] < n:
        raise ValueError(f"ring must be pinned and have a column for each of {n} rows")
    gpu.kernel("advance")(
        1,
        _MAX_DECODE_ROWS,
        sampled=sampled,
        tokens=tokens,
        positions=positions,
        context_lens=context_lens,
        slot_mapping=slot_mapping,
        id_map=id_map,
        block_tables=block_tables,
        counts=counts,
        ring=ring,
        step=step,
        log2_block_size=block_size.bit_length() - 1,
    )


def _num_chunks(vocab_size: int) -> int:
    return -(-vocab_size // _CHUNK)


def _workspace_stride(vocab_size: int) -> int:
    """Return the 64-bit words of a row: a counter, a histogram, and each chunk's candidates."""
    return 1 + 2 * _BINS + _num_chunks(vocab_size) * (3 + 2 * _LIST_SIZE)

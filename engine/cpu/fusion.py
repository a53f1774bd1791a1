"""Fewer operations and less memory for a recorded forward pass, with the same result.

A pass fuses an operation with a later one only if nothing between them reads what would change
earlier, and nothing changes what would be read later.
"""

from collections.abc import Sequence
from ctypes import Structure

from swiftchat.engine.cpu.native import (
    TILE_ROWS,
    ActAndMulOp,
    AddScaledOp,
    AttentionOp,
    ConvOp,
    EmbedOp,
    Epilogue,
    GatedDeltaOp,
    GateOp,
    GatherOp,
    LinearOp,
    LowRankOp,
    Mamba2Op,
    MambaOp,
    NormKind,
    NormOp,
    RotaryOp,
    RowSet,
    SoftcapOp,
    source_fields,
    target_field,
)
from swiftchat.engine.cpu.recording import Recording

# These need or write the rows of all tokens.
_ALL_TOKENS = (EmbedOp, AttentionOp, ConvOp, GatedDeltaOp, Mamba2Op, MambaOp)


def fuse(recording: Recording) -> None:
    """Fuse the operations of a recording and let its buffers share memory, in place."""
    _gather_early(recording)
    _norm_again(recording)
    _norm_in_place(recording.ops)
    _norm_into_linear(recording.ops)
    _activation_into_linear(recording.ops)
    _add_branches_separately(recording.ops)
    _linear_into_stream(recording.ops)
    _reuse_buffers(recording)


def sources(op: Structure) -> set[int]:
    """Return the buffers that an operation reads besides the one that it writes."""
    return {getattr(op, field) for field in source_fields(type(op))}


def target(op: Structure) -> int:
    """Return the buffer that an operation writes."""
    return int(getattr(op, target_field(type(op))))


def reads_target(op: Structure) -> bool:
    """Return whether an operation changes its buffer instead of replacing the contents."""
    if isinstance(op, NormOp):
        return bool(op.accumulate)
    if isinstance(op, LinearOp):
        return bool(op.epilogue == Epilogue.ADD)
    if isinstance(op, AddScaledOp):
        return bool(op.alpha != 0)
    if isinstance(op, ConvOp):
        return bool(op.out == op.x)
    return isinstance(op, RotaryOp | SoftcapOp | LowRankOp | GateOp)


def _gather_early(recording: Recording) -> None:
    """Gather the rows of the logits after the last attention or mixer: fewer rows follow.

    Hidden states keep the rows of all tokens.
    """
    ops, buffers = recording.ops, recording.buffers
    hidden = set(recording.hidden.values())
    end = next(i for i, op in enumerate(ops) if isinstance(op, GatherOp))
    start = end
    while not isinstance(ops[start - 1], _ALL_TOKENS) and (target(ops[start - 1]) not in hidden):
        start -= 1
    gathered, written = dict[int, int](), set[int]()
    for op in ops[start : end + 1]:
        inputs = sources(op) | ({target(op)} if reads_target(op) else set())
        for buffer in inputs - written - gathered.keys():
            gathered[buffer] = len(buffers)
            buffers.append((RowSet.LOGITS, buffers[buffer][1]))
        written.add(target(op))
    gather = ops.pop(end)
    assert isinstance(gather, GatherOp)
    for op in ops[start:end]:
        op.header.row_set = RowSet.LOGITS
        _rename(op, gathered)
    for buffer in written - gathered.keys():
        buffers[buffer] = (RowSet.LOGITS, buffers[buffer][1])
    for op in ops[end:]:
        _rename(op, {gather.out: gathered.get(gather.x, gather.x)})
    header = gather.header
    ops[start:start] = [GatherOp(header=header, x=x, out=out) for x, out in gathered.items()]


def _norm_again(recording: Recording) -> None:
    """Compute a norm twice that is a hidden state too, so that its matmul can still norm its input.

    So hidden states change no bit of the logits.
    """
    ops, hidden = recording.ops, recording.hidden.values()
    for i, op in enumerate(ops):
        if not isinstance(op, AddScaledOp) or op.out not in hidden or op.beta != 1:
            continue
        made = max(j for j in range(i) if target(ops[j]) == op.x)
        norm = ops[made]
        is_norm = isinstance(norm, NormOp) and not norm.accumulate and norm.out != norm.x
        if is_norm and not _is_written(ops, norm.x, made, i):
            ops[i] = NormOp(header=norm.header, x=norm.x, out=op.out, norm=norm.norm)


def _norm_in_place(ops: list[Structure]) -> None:
    """Write a norm that replaces the stream, as in "post" models, to the stream at once."""
    for i, op in enumerate(ops):
        if not isinstance(op, NormOp) or op.accumulate or i + 1 == len(ops):
            continue
        copy, normed, stream = ops[i + 1], op.out, op.x
        if not _is_sum(copy, stream, normed, alpha=0.0):
            continue
        uses = [j for j in _accesses(ops, normed, i + 1) if j > i + 1]
        last = max(uses, default=i + 1)
        if any(target(each) == stream for each in ops[i + 2 : last + 1]) or any(
            target(ops[j]) == normed for j in uses
        ):
            continue
        op.out = stream
        for j in uses:
            _rename(ops[j], {normed: stream})
        del ops[i + 1]


def _norm_into_linear(ops: list[Structure]) -> None:
    """Let a matmul norm its input, if it is the only one that uses the normed rows."""
    for i, op in reversed(list(enumerate(ops))):
        if not isinstance(op, NormOp) or op.accumulate or op.group_width or op.out == op.x:
            continue
        user = _only_use(ops, op.out, i)
        if user is None or _is_written(ops, op.x, i, user):
            continue
        linear = ops[user]
        if isinstance(linear, LinearOp) and linear.norm.kind == NormKind.NONE:
            linear.x, linear.norm = op.x, op.norm
            del ops[i]


def _activation_into_linear(ops: list[Structure]) -> None:
    """Let a matmul apply the activation function, if its results are used for nothing else."""
    for i, op in reversed(list(enumerate(ops))):
        if not isinstance(op, LinearOp) or op.epilogue != Epilogue.STORE:
            continue
        user = _only_use(ops, op.out, i)
        act = None if user is None else ops[user]
        if not isinstance(act, ActAndMulOp):
            continue
        if act.gate_limit or act.gate_scale:
            continue
        if act.gated and not _splits_between_tiles(op):
            continue
        op.epilogue = Epilogue.ACT_AND_MUL if act.gated else Epilogue.ACT
        op.activation, op.out = act.activation, act.out
        ops.remove(act)


def _splits_between_tiles(op: LinearOp) -> bool:
    """Return whether gate and up are in different tiles and, of several parts, different parts."""
    border, first_rows = op.rows // 2, [0]
    for part in op.parts[: op.num_parts]:
        first_rows.append(first_rows[-1] + part.rows)
    return border % TILE_ROWS == 0 and (op.num_parts == 1 or border in first_rows)


def _add_branches_separately(ops: list[Structure]) -> None:
    """Turn `a += b; stream += a` into `stream += a; stream += b`, to be fused with matmuls."""
    for i, op in reversed(list(enumerate(ops))):
        if not isinstance(op, AddScaledOp) or not _is_sum(op, op.out, op.x):
            continue
        user = _only_use(ops, op.out, i)
        if user is None or _accesses(ops, op.x, i):
            continue
        total = ops[user]
        if isinstance(total, AddScaledOp) and _is_sum(total, total.out, op.out):
            op.out = total.out
            ops.insert(user, ops.pop(i))


def _linear_into_stream(ops: list[Structure]) -> None:
    """Let a matmul add its result to the residual stream."""
    for i, op in reversed(list(enumerate(ops))):
        if not isinstance(op, LinearOp) or op.epilogue != Epilogue.STORE:
            continue
        user = _only_use(ops, op.out, i)
        total = None if user is None else ops[user]
        if user is None or not isinstance(total, AddScaledOp):
            continue
        between = [each for each in ops[i:user] if not _accumulates(each, total.out)]
        if _is_sum(total, total.out, op.out) and not _accesses(between, total.out, -1):
            op.epilogue, op.out = Epilogue.ADD, total.out
            del ops[user]


def _reuse_buffers(recording: Recording) -> None:
    """Give buffers of one shape that are never in use together the same number."""
    ops, old = recording.ops, recording.buffers
    last_use = {buffer: i for i, op in enumerate(ops) for buffer in (*sources(op), target(op))}
    for result in (recording.output, *recording.hidden.values()):
        last_use[result] = len(ops)
    new: list[tuple[RowSet, int]] = []
    free: list[int] = []
    numbers: dict[int, int] = {}
    for i, op in enumerate(ops):
        written = target(op)
        if written not in numbers:
            shape = old[written]
            numbers[written] = next((b for b in free if new[b] == shape), len(new))
            if numbers[written] == len(new):
                new.append(shape)
            else:
                free.remove(numbers[written])
        ended = {buffer for buffer in (*sources(op), written) if last_use[buffer] == i}
        _rename(op, numbers)
        free += [numbers[buffer] for buffer in ended]
    recording.buffers[:] = new
    recording.output = numbers[recording.output]
    recording.hidden = {layer: numbers[buffer] for layer, buffer in recording.hidden.items()}


def _rename(op: Structure, names: dict[int, int]) -> None:
    """Replace the numbers of the buffers that an operation accesses."""
    for field in (*source_fields(type(op)), target_field(type(op))):
        buffer = getattr(op, field)
        setattr(op, field, names.get(buffer, buffer))


def _is_sum(op: Structure, out: int, x: int, alpha: float = 1.0) -> bool:
    """Return whether an operation is `out = alpha * out + x`."""
    return (
        isinstance(op, AddScaledOp)
        and (op.out, op.x, op.alpha, op.beta) == (out, x, alpha, 1.0)
        and out != x
    )


def _accumulates(op: Structure, out: int) -> bool:
    """Return whether an operation adds to a buffer without otherwise reading it."""
    if isinstance(op, AddScaledOp):
        return bool(op.out == out != op.x and op.alpha == 1)
    adds = isinstance(op, NormOp | LinearOp) and reads_target(op)
    return adds and target(op) == out and out not in sources(op)


def _accesses(ops: Sequence[Structure], buffer: int, after: int) -> list[int]:
    """Return the operations after number `after` that access a buffer."""
    later = range(after + 1, len(ops))
    return [i for i in later if buffer in (*sources(ops[i]), target(ops[i]))]


def _only_use(ops: Sequence[Structure], buffer: int, after: int) -> int | None:
    """Return the only operation after number `after` that accesses a buffer, if it reads it."""
    uses = _accesses(ops, buffer, after)
    return uses[0] if len(uses) == 1 and buffer in sources(ops[uses[0]]) else None


def _is_written(ops: Sequence[Structure], buffer: int, after: int, before: int) -> bool:
    return any(target(op) == buffer for op in ops[after + 1 : before])

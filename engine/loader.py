"""Brings a checkpoint's tensors to the device: mapped, not read, on the CPU; streamed to a GPU."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor

from swiftchat.engine.arrange import arrange
from swiftchat.engine.decoder import DecoderWeights, LayerWeights
from swiftchat.engine.mixture import Expert, Experts
from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.checkpoint import Checkpoint
from swiftchat.weights.config import ModelConfig
from swiftchat.weights.families import (
    expected_tensors,
    first_tensors,
    last_tensors,
    layer_tensors,
    num_parts,
    tensor_name,
)

_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}

# Pinning memory takes longer than copying it, so buffers are few and small; at 16 MiB a copy to
# the GPU still takes some thirty times as long as its call.
_STAGING_BYTES = 16 * 2**20
_BUFFERS_PER_READER = 2  # one is filled while the other travels
_MAX_READERS = 8  # a thread reads 4 to 8 GB/s out of the page cache; PCIe 5 takes some 50

# `place(names)` gives the named tensors of the checkpoint, stacked, on the device.
Place = Callable[[Sequence[str]], Tensor]


def load_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[int, int], None],
) -> DecoderWeights:
    """Make the decoder's weights from a checked checkpoint.

    On the CPU, tensors of the wanted dtype are views of the mapped files: nothing is copied but
    matrices that one product reads together (q k v, gate up) and that do not lie together in
    the file; the checkpoint must stay open. On a GPU the files are read once and not mapped.
    `on_progress` gets (bytes done, bytes in all), counted in the files.

    Raises `BadModelFile` when a file on its way to a GPU cannot be read to its end.
    """
    if device.type != "cpu":
        return stream_weights(config, checkpoint, dtype, device, on_progress)
    done_bytes, total_bytes = 0, _file_bytes(config, checkpoint)

    def place(names: Sequence[str]) -> Tensor:
        nonlocal done_bytes
        done_bytes += sum(checkpoint.tensors[name].nbytes for name in names)
        on_progress(done_bytes, total_bytes)
        return _stack(checkpoint, names).to(dtype)

    return arrange(config, assemble(config, place))


def stream_weights(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    on_progress: Callable[[int, int], None],
    num_readers: int | None = None,
    staging_bytes: int = _STAGING_BYTES,
) -> DecoderWeights:
    """`load_weights` for a GPU: allocate everything, then let `stream_in` fill it."""
    copies: list[Copy] = []
    weights = assemble(config, lambda names: _allocate(checkpoint, names, dtype, device, copies))
    total_bytes = _file_bytes(config, checkpoint)
    stream_in(
        copies, device, lambda done: on_progress(done, total_bytes), num_readers, staging_bytes
    )
    return arrange(config, weights)


def _file_bytes(config: ModelConfig, checkpoint: Checkpoint) -> int:
    return sum(checkpoint.tensors[name].nbytes for name in expected_tensors(config))


def assemble(config: ModelConfig, place: Place) -> DecoderWeights:
    """The weights in the order of the files; `arrange` brings them into the decoder's.

    `place` makes one tensor of those with the given names, their rows under each other.
    """
    outside = [*first_tensors(config), *last_tensors(config)]

    def optional(*canonical: str, layer: int | None = None) -> Tensor | None:
        """The named tensors that this model has, stacked; None where it has none of them."""
        known = outside if layer is None else layer_tensors(config, layer)
        parts = [(name, num_parts(config, name)) for name in canonical if name in known]
        names = [
            tensor_name(config, name, layer, part)
            for name, count in parts
            for part in ([None] if count is None else range(count))
        ]
        return place(names) if names else None

    def placed(*canonical: str, layer: int | None = None) -> Tensor:
        tensor = optional(*canonical, layer=layer)
        return torch.empty(0) if tensor is None else tensor

    def one_by_one(i: int) -> Iterator[Expert]:
        def part(e: int, *canonical: str) -> Tensor:
            return place([tensor_name(config, name, i, e) for name in canonical])

        for e in range(config.num_experts):
            yield Expert(part(e, "expert_gate", "expert_up"), part(e, "expert_down"))

    def together(i: int) -> Iterator[Expert]:
        gate_up, down = placed("experts_gate_up", layer=i), placed("experts_down", layer=i)
        biases = [optional(f"experts_{name}_bias", layer=i) for name in ("gate_up", "down")]
        for e in range(config.num_experts):
            yield Expert(gate_up[e], down[e], *(None if b is None else b[e] for b in biases))

    def experts(i: int) -> Experts:
        fused = "experts_gate_up" in layer_tensors(config, i)
        shared = None
        if config.shared_expert_size:
            gate_up = placed("shared_gate", "shared_up", layer=i)
            shared = Expert(gate_up, placed("shared_down", layer=i))
        return Experts(
            router=placed("router", layer=i),
            router_bias=optional("router_bias", layer=i),
            each=list(together(i) if fused else one_by_one(i)),
            shared=shared,
            shared_router=optional("shared_router", layer=i),
        )

    def layer_weights(i: int) -> LayerWeights:
        return LayerWeights(
            attn_norm=optional("attn_norm", layer=i),
            attn_norm_bias=optional("attn_norm_bias", layer=i),
            qkv=placed("qkv", "q", "k", "v", layer=i),
            qkv_bias=optional("qkv_bias", "q_bias", "k_bias", "v_bias", layer=i),
            q_norm=optional("q_norm", layer=i),
            k_norm=optional("k_norm", layer=i),
            o=placed("o", layer=i),
            o_bias=optional("o_bias", layer=i),
            attn_out_norm=optional("attn_out_norm", layer=i),
            mlp_norm=optional("mlp_norm", layer=i),
            mlp_norm_bias=optional("mlp_norm_bias", layer=i),
            gate_up=placed("gate_up", "gate", "up", layer=i),
            gate_up_bias=optional("gate_up_bias", "gate_bias", "up_bias", layer=i),
            down=placed("down", layer=i),
            down_bias=optional("down_bias", layer=i),
            mlp_out_norm=optional("mlp_out_norm", layer=i),
            sinks=optional("sinks", layer=i),
            experts=experts(i) if "router" in layer_tensors(config, i) else None,
        )

    layers = [layer_weights(i) for i in range(config.num_layers)]
    embed = placed("embed")
    return DecoderWeights(
        embed=embed,
        positions=optional("positions"),
        project_in=optional("project_in"),
        embed_norm=optional("embed_norm"),
        embed_norm_bias=optional("embed_norm_bias"),
        layers=layers,
        final_norm=optional("final_norm"),
        final_norm_bias=optional("final_norm_bias"),
        project_out=optional("project_out"),
        lm_head=embed if config.tied_embeddings else placed("lm_head"),
        lm_head_bias=optional("lm_head_bias"),
    )


def _stack(checkpoint: Checkpoint, names: Sequence[str]) -> Tensor:
    """The named tensors under each other; a view of the file where they lie so already."""
    infos = [checkpoint.tensors[name] for name in names]
    first = infos[0]
    end = first.offset
    for info in infos:
        if (info.file, info.offset, info.dtype) != (first.file, end, first.dtype):
            return torch.cat([_view(checkpoint, name) for name in names])
        end += info.nbytes
    rows = sum(info.shape[0] for info in infos)
    return _view(checkpoint, names[0], (rows, *first.shape[1:]))


def _view(checkpoint: Checkpoint, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
    info = checkpoint.tensors[name]
    shape = info.shape if shape is None else shape
    dtype = _DTYPES[info.dtype]
    flat = torch.frombuffer(
        checkpoint.map(info.file), dtype=torch.uint8, offset=info.offset,
        count=torch.Size(shape).numel() * dtype.itemsize,
    )  # fmt: skip
    if flat.data_ptr() % dtype.itemsize:  # an odd header length in somebody else's file
        flat = flat.clone()
    return flat.view(dtype).view(shape)


@dataclass(frozen=True)
class Copy:
    """Bytes of a file for a flat tensor on the device; `dtype` is the file's."""

    file: Path
    offset: int
    nbytes: int
    dtype: torch.dtype
    target: Tensor


def _allocate(checkpoint: Checkpoint, names: Sequence[str], dtype: torch.dtype,
              device: torch.device, copies: list[Copy]) -> Tensor:  # fmt: skip
    """Memory for the named tensors under each other; how to fill it is appended to `copies`."""
    infos = [checkpoint.tensors[name] for name in names]
    rows = sum(info.shape[0] for info in infos)
    stacked = torch.empty((rows, *infos[0].shape[1:]), dtype=dtype, device=device)
    row = 0
    for info in infos:
        part = stacked[row : row + info.shape[0]].view(-1)
        copies.append(Copy(info.file, info.offset, info.nbytes, _DTYPES[info.dtype], part))
        row += info.shape[0]
    return stacked


def stream_in(
    copies: Sequence[Copy],
    device: torch.device,
    on_progress: Callable[[int], None],
    num_readers: int | None = None,
    staging_bytes: int = _STAGING_BYTES,
) -> None:
    """Carry out the copies: threads read files into staging buffers that travel meanwhile.

    Files are read rather than mapped: a read takes no page faults, whose locks threads would
    fight for, and one that fails is an error rather than a SIGBUS. `on_progress` gets the bytes
    done so far, in the calling thread. When this returns or raises, no thread is left and the
    device has finished. `staging_bytes` must be a multiple of 4. Raises `BadModelFile` for
    what cannot be read.
    """
    readers = num_readers or min(_MAX_READERS, os.cpu_count() or 1)
    free: SimpleQueue[_Staging] = SimpleQueue()
    with contextlib.ExitStack() as stack:
        opened = {file: stack.enter_context(_open(file)) for file in {c.file for c in copies}}
        buffers = [_Staging(device, staging_bytes) for _ in range(readers * _BUFFERS_PER_READER)]
        for buffer in buffers:
            stack.callback(buffer.wait)
            free.put(buffer)

        def carry(copy: Copy) -> int:
            buffer = free.get()
            try:
                buffer.wait()
                _read(copy, opened[copy.file], buffer.host)
                buffer.send(copy)
            finally:
                free.put(buffer)
            return copy.nbytes

        pool = ThreadPoolExecutor(readers, "reader")
        stack.callback(pool.shutdown, cancel_futures=True)
        done_bytes = 0
        for job in [pool.submit(carry, piece) for piece in _pieces(copies, staging_bytes)]:
            done_bytes += job.result()
            on_progress(done_bytes)


class _Staging:
    """A buffer of this machine's memory and, on a GPU, the stream on which it is emptied."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            # What the targets' memory was used for before must be over.
            self._stream.wait_stream(torch.cuda.current_stream(device))
        with self._streaming():
            pinned = self._stream is not None
            self.host = torch.empty(nbytes, dtype=torch.uint8, pin_memory=pinned)

    def wait(self) -> None:
        """Until what was sent last has arrived, and the buffer may be filled again."""
        if self._stream is not None:
            self._stream.synchronize()

    def send(self, copy: Copy) -> None:
        """Begin to bring the buffer's content to the copy's target, in the target's dtype."""
        with self._streaming():
            source = self.host[: copy.nbytes].view(copy.dtype)
            if copy.dtype != copy.target.dtype:  # the GPU converts; torch would do it here
                source = source.to(self._device, non_blocking=True)
            copy.target.copy_(source, non_blocking=True)

    def _streaming(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)


def _pieces(copies: Iterable[Copy], most_bytes: int) -> Iterator[Copy]:
    """The copies cut into pieces of at most `most_bytes`."""
    for copy in copies:
        size = copy.dtype.itemsize
        for start in range(0, copy.nbytes, most_bytes):
            nbytes = min(most_bytes, copy.nbytes - start)
            target = copy.target[start // size : (start + nbytes) // size]
            yield Copy(copy.file, copy.offset + start, nbytes, copy.dtype, target)


@contextlib.contextmanager
def _open(file: Path) -> Iterator[int]:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileSystemError(f"cannot read {file}: {error.strerror}") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read(copy: Copy, descriptor: int, buffer: Tensor) -> None:
    """The bytes of `copy` into the buffer; the GIL is free meanwhile."""
    rest = buffer.numpy().data[: copy.nbytes]
    offset = copy.offset
    while rest:
        try:
            count = os.preadv(descriptor, [rest], offset)
        except OSError as error:
            raise BadModelFile(f"cannot read {copy.file}: {error.strerror}") from error
        if not count:
            raise BadModelFile(f"{copy.file} ends at byte {offset}, before its tensors do")
        rest, offset = rest[count:], offset + count

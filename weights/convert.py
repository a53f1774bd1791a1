"""A GGUF file or a model directory made into a Hugging Face directory, all of it or nothing."""

import dataclasses
import errno
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from swiftchat.errors import BadModelFile, FileSystemError, ModelNotFound, UsageError
from swiftchat.weights import gguf_model, quantised
from swiftchat.weights.checkpoint import INDEX, SINGLE, Checkpoint
from swiftchat.weights.config import DTYPES, ModelConfig
from swiftchat.weights.disk import disk_full, require_space
from swiftchat.weights.families import expected_tensors, tensor_name
from swiftchat.weights.gguf import GgufFile
from swiftchat.weights.gguf_tokenizer import tokenizer_files
from swiftchat.weights.lock import exclusive
from swiftchat.weights.model import Model, read_json
from swiftchat.weights.progress import Progress
from swiftchat.weights.safetensors_file import ITEM_BYTES, create, read_header

__all__ = ["convert"]

_SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_CHUNK_ELEMENTS = 1 << 20
_SAMPLE_BYTES = 1 << 20
_GENERATION = "generation_config.json"
_COPIED = (
    _GENERATION, "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "qwen.tiktoken",
    "chat_template.jinja", "chat_template.json", "README.md", "LICENSE", "LICENSE.txt",
)  # fmt: skip

_TEMPLATES = "additional_chat_templates"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Plan:
    """What the destination will hold: small files as bytes, tensors in the order of writing.

    `shapes` is by Hugging Face name; `values(name)` yields the tensor's numbers, flat.
    """

    files: Mapping[str, bytes]
    shapes: Mapping[str, tuple[int, ...]]
    dtype: str
    values: Callable[[str], Iterator[Floats]]

    def tensor_bytes(self, name: str) -> int:
        return math.prod(self.shapes[name]) * ITEM_BYTES[_SAFETENSORS_NAMES[self.dtype]]

    @property
    def total_bytes(self) -> int:
        return sum(map(self.tensor_bytes, self.shapes)) + sum(map(len, self.files.values()))


def convert(
    source: Path,
    destination: Path,
    *,
    dtype: str | None = None,
    shard_size_bytes: float = 5e9,
    progress: Progress | None = None,
    generation_defaults: Mapping[str, Any] | None = None,
) -> None:
    """Write the model of `source`, a GGUF file or a model directory, as a new directory.

    `dtype` None keeps a uniform source's own and takes bfloat16 for quantised weights. Numbers
    are rounded to the nearest, ties to even. `generation_defaults` go into
    `generation_config.json` where the source says nothing of its own.

    The directory appears under its name when it is whole; after any failure or interrupt
    nothing of it is left. Of two processes converting the same source to one destination,
    one works and the other waits for it.

    Raises `FileSystemError` when `destination` exists, the disk is full or cannot be written;
    `BadModelFile` when the source is damaged or a number does not fit `dtype`.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"unknown dtype {dtype!r}", f"one of {', '.join(DTYPES)}")
    if not source.exists():
        raise ModelNotFound(f"no model at {source}")
    if destination.exists():
        raise FileSystemError(f"{destination} exists already", "choose another name or remove it")
    destination = Path(os.path.abspath(destination))  # noqa: PTH100 - resolve() would follow links
    plan = _plan_gguf(source, dtype) if source.is_file() else _plan_directory(source, dtype)
    if generation_defaults:
        plan = _with_generation_defaults(plan, generation_defaults)

    def waiting() -> None:
        if progress:
            progress("waiting for another process", 0, plan.total_bytes)

    with _as_file_system_error(destination, plan.total_bytes):
        fingerprint = _fingerprint(source, plan.dtype)
        destination.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(destination, waiting):
            if destination.exists():
                if _fingerprint_of(destination) == fingerprint:
                    return
                raise FileSystemError(f"{destination} was made meanwhile from something else")
            require_space(destination, plan.total_bytes)
            with _appearing(destination) as directory:
                _write(plan, directory, shard_size_bytes, fingerprint, progress)


# Reading the source


def _plan_gguf(source: Path, dtype: str | None) -> _Plan:
    file = GgufFile.open(source)
    kept = {"F16": "float16", "F32": "float32"}
    types = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if dtype is None:
        dtype = kept.get(types.pop(), "bfloat16") if len(types) == 1 else "bfloat16"
    config_json = gguf_model.model_config_json(file, dtype)
    config = ModelConfig.from_hf(config_json)
    sources = gguf_model.tensor_sources(file, config)
    vocabulary = tokenizer_files(file.metadata)
    num_tokens = len(file.metadata["tokenizer.ggml.tokens"])
    if num_tokens > config.vocab_size:
        raise BadModelFile(f"{source}: {num_tokens} tokens, but {config.vocab_size} embeddings")
    files = {
        "config.json": _json(config_json),
        _GENERATION: _json(gguf_model.generation_config_json(file)),
        "tokenizer_config.json": _json(gguf_model.tokenizer_config_json(file)),
        **vocabulary,
    }
    card = gguf_model.model_card(file)
    if card:
        files["README.md"] = card.encode()

    def values(name: str) -> Iterator[Floats]:
        tensor, heads = sources[name]
        return gguf_model.values(file, tensor, heads)

    return _Plan(files, expected_tensors(config), dtype, values)


def _plan_directory(source: Path, dtype: str | None) -> _Plan:
    settings = quantised.settings_in(source)
    if settings is not None:
        return _plan_quantised(source, dtype, settings)
    model = Model.open(source)
    checkpoint = model.checkpoint()
    own = {wire: name for name, wire in _SAFETENSORS_NAMES.items()}
    dtype = dtype or own[checkpoint.tensors[tensor_name(model.config, "embed")].dtype]
    files = _copied_files(source, read_json(source / "config.json"), dtype)

    def values(name: str) -> Iterator[Floats]:
        flat = checkpoint.read(name).reshape(-1)
        for start in range(0, len(flat), _CHUNK_ELEMENTS):
            chunk = flat[start : start + _CHUNK_ELEMENTS]
            if chunk.dtype == np.uint16:
                yield (chunk.astype(np.uint32) << 16).view(np.float32)
            else:
                yield chunk.astype(np.float32)

    return _Plan(files, expected_tensors(model.config), dtype, values)


def _plan_quantised(source: Path, dtype: str | None, settings: Mapping[str, Any]) -> _Plan:
    config_json = read_json(source / "config.json")
    config_json = {k: v for k, v in config_json.items() if k not in quantised.FIELDS}
    config = ModelConfig.from_hf(config_json)
    checkpoint = Checkpoint.open(source)
    plain = quantised.plain_tensors(settings, checkpoint.tensors, checkpoint.read)
    chosen = quantised.select(plain, expected_tensors(config))
    dtype = dtype or config.dtype
    files = _copied_files(source, config_json, dtype)
    shapes = {name: tensor.shape for name, tensor in chosen.items()}
    return _Plan(files, shapes, dtype, lambda name: chosen[name].pieces())


def _copied_files(source: Path, config_json: dict[str, Any], dtype: str) -> dict[str, bytes]:
    # Both spellings exist; where there is none, the older one is read by every version.
    spellings = {"dtype", "torch_dtype"} & config_json.keys() or {"torch_dtype"}
    config_json |= dict.fromkeys(spellings, dtype)
    names = [*_COPIED, *(f"{_TEMPLATES}/{p.name}" for p in source.glob(f"{_TEMPLATES}/*.jinja"))]
    files = {name: (source / name).read_bytes() for name in names if (source / name).is_file()}
    return {**files, "config.json": _json(config_json)}


def _with_generation_defaults(plan: _Plan, defaults: Mapping[str, Any]) -> _Plan:
    own = json.loads(plan.files.get(_GENERATION, b"{}"))
    return dataclasses.replace(plan, files={**plan.files, _GENERATION: _json({**defaults, **own})})


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _fingerprint(source: Path, dtype: str) -> str:
    """A name for source and dtype: sizes and both ends of its files, hashed."""
    digest = hashlib.sha256(dtype.encode())
    files = [source] if source.is_file() else sorted(source.iterdir())
    for path in files:
        if path.is_file():
            size = path.stat().st_size
            digest.update(size.to_bytes(8, "little"))
            with path.open("rb") as file:
                digest.update(file.read(_SAMPLE_BYTES))
                file.seek(max(0, size - _SAMPLE_BYTES))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _fingerprint_of(destination: Path) -> str | None:
    """The fingerprint an earlier conversion wrote into its first weight file."""
    for path in sorted(destination.glob("*.safetensors")):
        return read_header(path)[1].get("swiftchat_source")
    return None


# Writing the destination


def _write(
    plan: _Plan,
    directory: Path,
    shard_size_bytes: float,
    fingerprint: str,
    progress: Progress | None,
) -> None:
    for name, content in plan.files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    shards = _shards(plan, shard_size_bytes)
    total = sum(map(plan.tensor_bytes, plan.shapes))
    done = 0
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE
        if len(shards) > 1:
            file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        weight_map.update(dict.fromkeys(names, file))
        wire = _SAFETENSORS_NAMES[plan.dtype]
        tensors = [(name, wire, plan.shapes[name]) for name in names]
        metadata = {"format": "pt", "swiftchat_source": fingerprint}
        with create(directory / file, tensors, metadata) as writer:
            for name in names:
                writer.write(name, _tensor(plan, name))
                done += plan.tensor_bytes(name)
                if progress:
                    progress("converting", done, total)
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (directory / INDEX).write_bytes(_json(index))


def _shards(plan: _Plan, shard_size_bytes: float) -> list[list[str]]:
    shards: list[list[str]] = [[]]
    filled = 0
    for name in plan.shapes:
        nbytes = plan.tensor_bytes(name)
        if shards[-1] and filled + nbytes > shard_size_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += nbytes
    return shards


def _tensor(plan: _Plan, name: str) -> npt.NDArray[Any]:
    shape = plan.shapes[name]
    result = np.empty(math.prod(shape), _STORED[plan.dtype])
    at = 0
    for chunk in plan.values(name):
        if not np.isfinite(chunk).all():
            raise BadModelFile(f"tensor {name} holds numbers that are not finite")
        stored = _CASTS[plan.dtype](chunk)
        if stored is None:
            raise BadModelFile(
                f"tensor {name} holds numbers too large for {plan.dtype}", "use --dtype bfloat16"
            )
        result[at : at + len(chunk)] = stored
        at += len(chunk)
    return result.reshape(shape)


def _to_bfloat16(numbers: Floats) -> npt.NDArray[np.uint16] | None:
    """The upper halves of the float32 bits, rounded to nearest even; None on overflow."""
    bits = numbers.view(np.uint32)
    upper = (bits >> np.uint32(16)).astype(np.uint32)
    upper &= np.uint32(1)
    upper += np.uint32(0x7FFF)
    upper += bits
    upper >>= np.uint32(16)
    stored = upper.astype(np.uint16)
    infinite = (stored & np.uint16(0x7FFF)) == np.uint16(0x7F80)
    return None if infinite.any() else stored


def _to_float16(numbers: Floats) -> npt.NDArray[np.float16] | None:
    with np.errstate(over="ignore"):
        stored = numbers.astype(np.float16)
    return stored if np.isfinite(stored).all() else None


_STORED = {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}
_CASTS: Mapping[str, Callable[[Floats], npt.NDArray[Any] | None]] = {
    "bfloat16": _to_bfloat16,
    "float16": _to_float16,
    "float32": lambda numbers: numbers,
}


# The file system


@contextmanager
def _appearing(destination: Path) -> Iterator[Path]:
    """A new sibling directory, renamed to `destination` at the end or removed on any failure."""
    prefix = f".{destination.name}."
    for stale in destination.parent.glob(f"{_escaped(prefix)}*.partial"):
        # Left by a process that was killed: whoever holds the lock is alone here.
        shutil.rmtree(stale)
    directory = Path(tempfile.mkdtemp(prefix=prefix, suffix=".partial", dir=destination.parent))
    try:
        yield directory
        for file in filter(Path.is_file, directory.rglob("*")):
            _flush(file)
        directory.chmod(0o777 & ~_umask())
        directory.rename(destination)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextmanager
def _as_file_system_error(destination: Path, needed_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free_bytes = shutil.disk_usage(destination.parent).free
            raise disk_full(destination, needed_bytes, free_bytes) from error
        raise FileSystemError(f"cannot convert to {destination}: {error}") from error

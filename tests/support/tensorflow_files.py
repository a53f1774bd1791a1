"""A writer of TensorFlow checkpoints, after the descriptions of LevelDB tables and protobuf."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

DTYPES = {torch.float32: 1, torch.float64: 2, torch.int32: 3, torch.bfloat16: 14, torch.float16: 19}


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value) if value else b""
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(dtype: int, shape: tuple[int, ...], file: int, offset: int, nbytes: int) -> bytes:
    dimensions = b"".join(field(2, field(1, size)) for size in shape)
    numbers = field(3, file) + field(4, offset) + field(5, nbytes)
    return field(1, dtype) + field(2, dimensions) + numbers + b"\x35" + bytes(4)


def header(files: int, big_endian: bool = False) -> bytes:
    return field(1, files) + field(2, int(big_endian)) + field(3, field(1, 1))


def _crc32c_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 & -(byte & 1))
    return byte


_CRC32C = tuple(map(_crc32c_of_byte, range(256)))


def crc32c(content: bytes) -> int:
    """Return the CRC-32C of RFC 3720, computed byte by byte."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def block(pairs: Mapping[bytes, bytes], interval: int = 16) -> bytes:
    """Return a block; every `interval`-th key is complete, others omit the shared prefix."""
    content, restarts, before = b"", [], b""
    for number, (key, value) in enumerate(pairs.items()):
        if number % interval == 0:
            restarts.append(len(content))
            before = b""
        shared = 0
        while shared < min(len(key), len(before)) and key[shared] == before[shared]:
            shared += 1
        content += varint(shared) + varint(len(key) - shared) + varint(len(value))
        content += key[shared:] + value
        before = key
    restarts = restarts or [0]
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def with_trailer(content: bytes, kind: int = 0) -> bytes:
    """Return a block with its trailer."""
    crc = crc32c(content + bytes([kind]))
    masked = ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF
    return content + struct.pack("<BI", kind, masked)


def table(pairs: Mapping[bytes, bytes], per_block: int = 40, kind: int = 0) -> bytes:
    """Return a table whose blocks have `per_block` entries."""
    content, places = b"", {}
    items = sorted(pairs.items())
    for start in range(0, len(items), per_block):
        part = block(dict(items[start : start + per_block]))
        places[items[min(start + per_block, len(items)) - 1][0]] = varint(len(content)) + varint(
            len(part)
        )
        content += with_trailer(part, kind)
    ends = b""
    for part in (block({}), block(places, 1)):
        ends += varint(len(content)) + varint(len(part))
        content += with_trailer(part)
    return content + ends.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def write_bundle(prefix: Path, tensors: Mapping[str, torch.Tensor], files: int = 1) -> None:
    """Write `PREFIX.index` and `files` data files."""
    data = [b""] * files
    pairs = {b"": header(files)}
    for number, (name, tensor) in enumerate(sorted(tensors.items())):
        content = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else b""
        file = number % files
        pairs[name.encode()] = entry(
            DTYPES[tensor.dtype], tuple(tensor.shape), file, len(data[file]), len(content)
        )
        data[file] += content
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(pairs))
    for number, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{number:05}-of-{files:05}").write_bytes(content)


def write_openai_gpt2(
    folder: Path,
    model: transformers.GPT2LMHeadModel,
    files: int = 1,
    settings: dict[str, Any] | None = None,
) -> None:
    """Write a GPT-2 as OpenAI published it; `settings` replaces (None: removes) hyperparameters."""
    config = model.config
    hparams = {
        "n_vocab": config.vocab_size,
        "n_ctx": config.n_positions,
        "n_embd": config.n_embd,
        "n_head": config.n_head,
        "n_layer": config.n_layer,
        **(settings or {}),
    }
    hparams = {name: value for name, value in hparams.items() if value is not None}
    folder.mkdir(parents=True)
    (folder / "hparams.json").write_text(json.dumps(hparams))
    lines = ['model_checkpoint_path: "model.ckpt"', 'all_model_checkpoint_paths: "model.ckpt"']
    (folder / "checkpoint").write_text("\n".join(lines) + "\n")
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        parts = name.removeprefix("transformer.").replace("h.", "h", 1).split(".")
        kinds = {"weight": "g" if "ln_" in name else "w", "bias": "b"}
        path = "/".join(["model", *parts[:-1], kinds[parts[-1]]])
        embedding = path.endswith(("wte/w", "wpe/w"))
        if parts[-1] == "weight" and tensor.ndim == 2 and not embedding:
            tensor = tensor[None]
        tensors[path.removesuffix("/w") if embedding else path] = tensor
    write_bundle(folder / "model.ckpt", tensors, files)
    letters = [*map(chr, range(33, 127)), "Ġ", "ab", "abc"]
    vocab = {letter: number for number, letter in enumerate(letters)}
    (folder / "encoder.json").write_text(json.dumps({**vocab, "<|endoftext|>": len(vocab)}))
    (folder / "vocab.bpe").write_text("#version: 0.2\na b\nab c\n")

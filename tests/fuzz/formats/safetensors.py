"""Safetensors files, and the index of a model in several of them."""

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import save

from swiftchat.weights.formats.safetensors import read_header
from swiftchat.weights.model.checkpoint import Checkpoint
from tests.fuzz.formats.arrays import compare_tensors
from tests.fuzz.mutations import dump_json, mutate_json, mutate_tree
from tests.fuzz.target import NoReferenceError, Target

_INDEX = "model.safetensors.index.json"


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Return small tensors of all dtypes that have a reference."""
    generator = torch.Generator().manual_seed(seed)
    found = {
        "model.layers.0.weight": torch.randn(3, 4, generator=generator),
        "half": torch.randn(5, generator=generator).half(),
        "brain": torch.randn(2, 3, 2, generator=generator).bfloat16(),
        "double": torch.randn(2, generator=generator, dtype=torch.float64),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.5),
        "flags": torch.tensor([True, False, True]),
    }
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        found[str(dtype)] = torch.randint(0, 100, (3,), generator=generator).to(dtype)
    return found


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array, types that numpy lacks as the integers of their bits."""
    kinds = {torch.bfloat16: torch.uint16, torch.float8_e4m3fn: torch.uint8}
    kinds |= {torch.float8_e5m2: torch.uint8}
    kind = kinds.get(tensor.dtype)
    return (tensor if kind is None else tensor.contiguous().view(kind)).numpy()


def _seeds() -> list[bytes]:
    plain = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4, dtype=torch.int32)}
    return [save(tensors(), {"format": "pt"}), save(plain)]


def _mutate(chance: random.Random, data: bytes) -> bytes:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    text = dump_json(chance, mutate_tree(chance, header))
    if chance.random() < 0.1:
        length = chance.choice((0, len(text) - 1, len(text) + 1, 2**63, 2**40))
    else:
        length = len(text)
    return struct.pack("<Q", length) + text + data[8 + struct.unpack("<Q", data[:8])[0] :]


def _load(data: bytes, folder: Path) -> Any:
    path = folder / "model.safetensors"
    path.write_bytes(data)
    found, metadata = read_header(path)
    checkpoint = Checkpoint(folder, found)
    return {name: checkpoint.read(name) for name in found}, metadata


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    ours, metadata = loaded
    try:
        with safetensors.safe_open(folder / "model.safetensors", "pt") as file:
            theirs = {name: as_array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            notes = file.metadata()
    except Exception as error:
        raise NoReferenceError from error
    compare_tensors(ours, theirs)
    compare_tensors(
        {"metadata": np.array(json.dumps(metadata, sort_keys=True))},
        {"metadata": np.array(json.dumps(notes or {}, sort_keys=True))},
    )


def _index_seeds() -> list[bytes]:
    names = list(tensors())
    weight_map = {
        name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)
    }
    return [json.dumps({"metadata": {"total_size": 1000}, "weight_map": weight_map}).encode()]


def _load_index(data: bytes, folder: Path) -> Any:
    for name, some in _parts():
        (folder / name).write_bytes(save(some))
    (folder / _INDEX).write_bytes(data)
    checkpoint = Checkpoint.open(folder)
    return {name: checkpoint.read(name) for name in checkpoint.tensors}


def _compare_index(data: bytes, folder: Path, loaded: Any) -> None:
    """The tensors are those of all files that the index names."""
    parts = {*json.loads(data)["weight_map"].values()}
    expected = {
        name: as_array(tensor)
        for part, items in _parts()
        if part in parts
        for name, tensor in items.items()
    }
    compare_tensors(loaded, expected)


def _parts() -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield the names of the two files, and their tensors."""
    everything = list(tensors().items())
    for part in range(2):
        yield f"model-0000{part + 1}-of-00002.safetensors", dict(everything[part::2])


SAFETENSORS = Target("safetensors", _seeds, _mutate, _load, 2500, _compare)
INDEX = Target("safetensors-index", _index_seeds, mutate_json, _load_index, 300, _compare_index)

"""Checkpoints of `torch.save`: zip archives and the older sequence of pickles."""

import io
import itertools
import pickle
import pickletools
import random
import struct
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from tests.fuzz.formats.arrays import compare_tensors
from tests.fuzz.formats.safetensors import as_array, tensors
from tests.fuzz.mutations import mutate_bytes
from tests.fuzz.target import NoReferenceError, Target

_INTEGERS = (0, 1, 2, 3, 4, 5, 12, 255, 256, 2**31 - 1, 2**31, 2**40)


def _saved(content: Any, *, is_zip: bool) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, _use_new_zipfile_serialization=is_zip)
    return stream.getvalue() if is_zip else _with_numbered_keys(content, stream.getvalue())


def _with_numbered_keys(content: Any, data: bytes) -> bytes:
    """Return a legacy file with numbers as the keys of storages, which were their addresses."""
    flat: dict[str, torch.Tensor] = {}
    _flatten(content, "", flat)
    head = data[: _pickle_ends(data)[4]]
    keys: list[str] = []
    stored = b""
    for tensor in flat.values():
        storage = tensor.untyped_storage()
        old, new = str(storage._cdata).encode(), f"{len(keys):06}"
        pickled = b"X" + struct.pack("<I", len(old)) + old
        if pickled in head:
            head = head.replace(pickled, b"X" + struct.pack("<I", len(new)) + new.encode())
            stored += struct.pack("<q", storage.nbytes() // tensor.itemsize) + bytes(storage)
            keys.append(new)
    return head + pickle.dumps(keys, protocol=2) + stored


def _seeds(is_zip: bool) -> list[bytes]:
    everything = tensors()
    shared = torch.arange(12.0).reshape(3, 4)
    nested = {
        "state_dict": OrderedDict(everything),
        "tied": {"a": shared, "b": shared, "row": shared[1], "first": shared[:2]},
        "step": 12,
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    }
    del nested["tied"]["row"], nested["tied"]["first"]
    slices = {"first": shared[0], "second": shared[1:]}
    return [_saved(one, is_zip=is_zip) for one in (OrderedDict(everything), nested, slices)]


def _mutate_zip(chance: random.Random, data: bytes) -> bytes:
    """Change the pickle or the members of an archive, whose directory stays right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    out = io.BytesIO()
    what = chance.randrange(8)
    at = chance.randrange(len(members))
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for number, (info, content) in enumerate(members):
            name = info.filename
            if name.endswith("/data.pkl") and what < 5:
                content = _mutate_pickle(chance, content)
            if number == at and what == 5:
                content = mutate_bytes(chance, content, content)
            if number == at and what == 6:
                name = chance.choice((name.upper(), f"./{name}", f"x/{name}", name + "\0", "../x"))
            if number == at and what == 7:
                if chance.random() < 0.5:
                    continue
                # A `ZipInfo` has a fixed date.
                other = name + ("x" if chance.random() < 0.5 else "1")
                archive.writestr(zipfile.ZipInfo(other), content)
            compression = zipfile.ZIP_DEFLATED if chance.random() < 0.01 else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


def _mutate_legacy(chance: random.Random, data: bytes) -> bytes:
    """Change the saved object, the fourth of five pickles, or one of the others."""
    ends = _pickle_ends(data)
    which = chance.choice((0, 1, 2, 3, 3, 3, 3, 3, 3, 4))
    changed = _mutate_pickle(chance, data[ends[which] : ends[which + 1]])
    return data[: ends[which]] + changed + data[ends[which + 1] :]


def _pickle_ends(data: bytes) -> list[int]:
    """Return where each of the five pickles of a file begins, and where the last ends."""
    stream, ends = io.BytesIO(data), [0]
    for _ in range(5):
        for _ in pickletools.genops(stream):
            pass
        ends.append(stream.tell())
    return ends


def _mutate_pickle(chance: random.Random, pickled: bytes) -> bytes:
    """Change arguments of operations, or remove, repeat or exchange operations."""
    starts = [at for _, _, at in pickletools.genops(pickled)] + [len(pickled)]
    pieces = [pickled[a:b] for a, b in itertools.pairwise(starts)]
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(len(pieces))
        match chance.randrange(7):
            case 0 if len(pieces) > 1:
                del pieces[at]
            case 1:
                pieces.insert(at, pieces[at])
            case 2:
                other = chance.randrange(len(pieces))
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3:
                pieces[at] = chance.choice(pieces)
            case 4 | 5:
                pieces[at] = _changed_argument(chance, pieces[at])
            case _:
                pieces.insert(at, _integer(chance))
    return b"".join(pieces)


def _integer(chance: random.Random) -> bytes:
    value = chance.choice(_INTEGERS)
    if chance.random() < 0.2:
        value = -value
    if -(2**31) <= value < 2**31:
        return pickle.BININT + struct.pack("<i", value)
    encoded = pickle.encode_long(value)
    return pickle.LONG1 + bytes([len(encoded)]) + encoded


def _changed_argument(chance: random.Random, piece: bytes) -> bytes:
    """Return an operation with another integer or text, or a changed byte of its argument."""
    if piece[:1] in (pickle.BININT, pickle.BININT1, pickle.BININT2):
        return _integer(chance)
    if piece[:1] == pickle.GLOBAL:
        names = (
            b"torch\nHalfStorage",
            b"torch\nFloatStorage",
            b"torch\nLongStorage",
            b"torch._utils\n_rebuild_tensor_v2",
            b"torch._utils\n_rebuild_parameter",
            b"collections\nOrderedDict",
            b"os\nsystem",
            b"torch\nfloat32",
        )
        return pickle.GLOBAL + chance.choice(names) + b"\n"
    if len(piece) < 2:
        codes = b"()].}tuRbsqhNKMJ\x85\x86\x87\x88\x89eQ0"
        return bytes([chance.choice(codes)])
    changed = bytearray(piece)
    changed[chance.randrange(1, len(piece))] = chance.choice((0, 1, 48, 255, chance.randrange(256)))
    return bytes(changed)


def _load(data: bytes, folder: Path) -> Any:
    path = folder / "pytorch_model.bin"
    path.write_bytes(data)
    found = read_torch_checkpoint(path)
    checkpoint = Checkpoint(folder, found)
    return {name: checkpoint.read(name) for name in found}


def _compare(data: bytes, folder: Path, loaded: Any) -> None:
    try:
        content = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
        flat: dict[str, Any] = {}
        _flatten(content, "", flat)
        theirs = {name: as_array(tensor) for name, tensor in flat.items()}
    except Exception as error:
        raise NoReferenceError from error
    compare_tensors(loaded, theirs)


def _flatten(content: Any, prefix: str, found: dict[str, Any]) -> None:
    if isinstance(content, torch.Tensor):
        found[prefix] = content.detach()
    elif isinstance(content, dict):
        for key, value in content.items():
            if isinstance(key, str):
                _flatten(value, f"{prefix}.{key}" if prefix else key, found)


ZIP = Target("torch-zip", partial(_seeds, True), _mutate_zip, _load, 1500, _compare)
LEGACY = Target("torch-legacy", partial(_seeds, False), _mutate_legacy, _load, 1800, _compare)

"""Files of torch.save: read exactly; payloads, bombs and invalid files raise errors."""

import os
import pickle
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from swiftchat.errors import BadModelFile
from swiftchat.weights.formats.safe_pickle import PickledObject
from swiftchat.weights.formats.torch_checkpoint import read_content, read_torch_checkpoint
from swiftchat.weights.formats.torch_container import zip_members
from swiftchat.weights.model.checkpoint import Checkpoint

DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


def assert_read(file: Path, tensors: dict[str, torch.Tensor]) -> None:
    checkpoint = Checkpoint(file, read_torch_checkpoint(file))
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        read = checkpoint.read(name)
        assert read.shape == tuple(tensor.shape)
        assert read.tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), name


def save_legacy(content: Any, file: Path, **options: Any) -> None:
    """Save in the format before torch 1.6."""
    torch.save(content, file, _use_new_zipfile_serialization=False, **options)


FORMATS: dict[str, Callable[..., None]] = {"zip": torch.save, "legacy": save_legacy}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_files_of_torch_save(
    tmp_path: Path, dtype: torch.dtype, protocol: int, format: str
) -> None:
    storage = (torch.randn(60) * 100).to(dtype)
    tensors = {
        "a": (torch.randn(5, 7) * 100).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "scalar": torch.tensor(1, dtype=dtype),
        "later in its storage": storage[10:34].view(4, 6),
        "one row": storage[40:45].view(1, 5),
    }
    FORMATS[format](OrderedDict(tensors), tmp_path / "a.bin", pickle_protocol=protocol)
    assert_read(tmp_path / "a.bin", tensors)


@pytest.mark.parametrize("save", FORMATS.values())
def test_parameters_modules_and_shared_tensors(tmp_path: Path, save: Callable[..., None]) -> None:
    module = torch.nn.Linear(3, 2)
    state = module.state_dict()  # an OrderedDict with version numbers
    state["again"] = state["weight"]
    save(state, tmp_path / "state.bin")
    assert_read(tmp_path / "state.bin", dict(state))
    parameters = dict(module.named_parameters())
    save({**parameters, "steps": 3, "note": "x"}, tmp_path / "parameters.bin")
    assert_read(tmp_path / "parameters.bin", {n: p.detach() for n, p in parameters.items()})


def test_offsets_beyond_32_bits(tmp_path: Path) -> None:
    file = tmp_path / "long.zip"
    with file.open("wb") as sparse:
        sparse.truncate(5 * 2**30)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a/b", b"content")
        archive.writestr("c", b"")
    members = zip_members(file)
    with file.open("rb") as opened:
        opened.seek(members["a/b"].offset)
        assert opened.read(members["a/b"].nbytes) == b"content"
    assert members["c"].nbytes == 0


# Payloads


class Calls:
    """Pickled as a call of `function` with `arguments`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def assert_rejected(file: Path, complaint: str) -> None:
    with pytest.raises(BadModelFile, match=complaint) as caught:
        read_torch_checkpoint(file)
    assert caught.value.exit_code == 7
    assert str(file) in caught.value.message


@pytest.mark.fault(1)
@pytest.mark.parametrize("protocol", [0, 1, 2, 4])
@pytest.mark.parametrize(
    "function",
    [os.system, eval, exec, getattr, __import__, subprocess.Popen, torch.load, np.load, Path.touch],
)
def test_payload_is_never_executed(tmp_path: Path, function: Any, protocol: int) -> None:
    mark = tmp_path / "ran"
    arguments = {
        eval: (f"open({str(mark)!r}, 'w')",),
        exec: (f"open({str(mark)!r}, 'w')",),
        Path.touch: (mark,),
        subprocess.Popen: (["touch", str(mark)],),
        getattr: ("", "x"),
    }.get(function, (f"touch {mark}",))
    content = {"a": torch.ones(2), "b": Calls(function, *arguments)}
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(content["b"], protocol=protocol))
    assert_rejected(tmp_path / "a.bin", "nothing was executed")
    for save in FORMATS.values():
        save(content, tmp_path / "b.bin")
        assert_rejected(tmp_path / "b.bin", "nothing was executed")
    assert not mark.exists()


def test_other_objects_are_skipped(tmp_path: Path) -> None:
    import argparse

    args = argparse.Namespace(hidden_size=4, where=Path("x"), dtype=torch.float16)
    content = {"args": args, "rng": np.ones(3), "model": {"w": torch.ones(2)}, 3: torch.ones(1)}
    torch.save(content, tmp_path / "a.pt")
    read = read_content(tmp_path / "a.pt")
    assert isinstance(read["args"], PickledObject)
    assert read["args"].state["hidden_size"] == 4
    assert read_torch_checkpoint(tmp_path / "a.pt").keys() == {"model.w"}


# Tensors that are not dense


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    return torch.as_strided(torch.ones(64), shape, strides)


@pytest.mark.fault(31)
@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|quantize_per_tensor):UserWarning")
@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: torch.ones(3, 3).to_sparse(), "only dense"),
        (lambda: torch.ones(3, 3).to_sparse_csr(), "only dense"),
        (
            lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
            "only dense|nothing was",
        ),
        (lambda: torch.ones(2, dtype=torch.complex64), "ComplexFloatStorage"),
        (lambda: torch.ones(2, device="meta"), "only dense"),
        (lambda: strided((1 << 40,), (0,)), r"expected strides \[1\], found \[0\]"),
        (lambda: strided((4, 4), (0, 1)), r"expected strides \[4, 1\], found \[0, 1\]"),
        (lambda: strided((4, 4), (2, 1)), r"found \[2, 1\]"),
        (lambda: strided((4, 3), (4, 1)), r"found \[4, 1\]"),
        (lambda: torch.ones(2, 3).T, r"expected strides \[2, 1\], found \[1, 3\]"),
    ],
)
def test_unsupported_tensors_raise_an_error(
    tmp_path: Path, make: Callable[[], torch.Tensor], complaint: str
) -> None:
    torch.save({"w": make()}, tmp_path / "a.bin")
    assert_rejected(tmp_path / "a.bin", complaint)


def test_overlapping_tensors_raise_an_error(tmp_path: Path) -> None:
    storage = torch.ones(10)
    torch.save({"a": storage[:6], "b": storage[4:]}, tmp_path / "a.bin")
    assert_rejected(tmp_path / "a.bin", "tensors a and b overlap")


# Invalid archives


def rewritten(file: Path, compression: int = zipfile.ZIP_STORED, **changes: bytes | None) -> None:
    """Rewrite the archive with other contents for these members; None removes a member."""
    with zipfile.ZipFile(file) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    prefix = next(iter(contents)).partition("/")[0]
    for name, content in changes.items():
        contents[f"{prefix}/{name.replace('__', '/').replace('_pkl', '.pkl')}"] = content
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in contents.items():
            if content is not None:
                archive.writestr(name, content)


@pytest.mark.fault(31)
@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed"),
        ({"data__0": None}, "storage 0 is not in the file"),
        ({"data__0": b"123"}, "storage 0: expected 6 elements of F32, found 3 bytes"),
        ({"data_pkl": None}, "not one of torch.save"),
        ({"data_pkl": b""}, "damaged pickle"),
        ({"data_pkl": b"garbage"}, "damaged pickle"),
        ({"data_pkl": b"}."}, "holds no tensors"),
        ({"data_pkl": b"}(."}, "holds no tensors"),
        ({"data_pkl": b"}\x93."}, "damaged pickle"),
        ({"data_pkl": b"\x80\x02]." + bytes(17 * 2**20)}, "a pickle of more than 16777216 bytes"),
        ({"data_pkl": b"N" * 3_000_000 + b"."}, "more than 2000000 operations"),
        ({"data_pkl": b"]r\xff\xff\xff\x7f."}, "holds no tensors"),
        ({"data_pkl": b"\x8d" + b"\xff" * 7 + b"\x7f."}, "damaged pickle"),
        ({"data_pkl": b"}q\x00X\x01\x00\x00\x00ah\x00s."}, "nested or shared dictionaries"),
        ({"data_pkl": b"\x82\x01."}, "EXT1, which no checkpoint uses"),
        ({"data_pkl": b"})K\x01s."}, "a dictionary with a key of type tuple"),
        ({"byteorder": b"big"}, "big-endian"),
    ],
)
def test_invalid_archive_raises_an_error(
    tmp_path: Path, changes: dict[str, Any], complaint: str
) -> None:
    torch.save({"w": torch.ones(2, 3)}, tmp_path / "a.bin")
    rewritten(tmp_path / "a.bin", **changes)
    assert_rejected(tmp_path / "a.bin", complaint)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "not a file of torch.save"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:00\n", "git-lfs pointer"),
        (b"<html>404</html>", "web page"),
        (b"PK\3\4", "not a zip file"),
        (
            b"PK\3\4" + bytes(60) + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 2**32 - 1, 0, 0),
            "Bad offset for central directory",
        ),
        (
            b"PK\3\4"
            + bytes(17 * 2**20)
            + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 17 * 2**20, 4, 0),
            "a directory of more than 16777216 bytes",
        ),
        (
            b"PK\3\4"
            + struct.pack("<4sLQL", b"PK\6\7", 0, 2**63, 1)
            + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 9, 9, 0, 0, 0),
            "damaged zip archive",
        ),
    ],
)
def test_other_file_types_raise_an_error(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    assert_rejected(tmp_path / "a.bin", complaint)


def test_tar_format_raises_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.bin", "w") as archive:
        archive.add(__file__, "storages")
    assert_rejected(tmp_path / "b.bin", "a tar archive")


@pytest.mark.parametrize("save", FORMATS.values())
def test_file_truncated_anywhere_raises_an_error(tmp_path: Path, save: Callable[..., None]) -> None:
    save({"w": torch.ones(20)}, tmp_path / "a.bin")
    content = (tmp_path / "a.bin").read_bytes()
    for length in range(0, len(content), 7):
        (tmp_path / "a.bin").write_bytes(content[:length])
        with pytest.raises(BadModelFile):
            read_torch_checkpoint(tmp_path / "a.bin")


# The legacy format


def legacy_file(
    saved: bytes,
    *after: Any,
    magic: Any = 0x1950A86A20F9469CFC6C,
    version: Any = 1001,
    little_endian: Any = True,
) -> bytes:
    """Return a legacy file with the pickle `saved`; of `after`, only non-bytes are pickled."""
    machine = {"little_endian": little_endian, "protocol_version": version}
    parts = [pickle.dumps(part, protocol=2) for part in (magic, version, machine)]
    return b"".join(
        [
            *parts,
            saved,
            *(p if isinstance(p, bytes) else pickle.dumps(p, protocol=2) for p in after),
        ]
    )


# The persistent id of a storage with key "7", and a float tensor of its 2 elements.
_STORAGE = b"(U\x07storagectorch\nFloatStorage\nU\x017U\x03cpuK\x02NtQ"
_TENSOR = b"ctorch._utils\n_rebuild_tensor\n(" + _STORAGE + b"K\x00K\x02\x85K\x01\x85tR"
# A pickle of Python 2: an OrderedDict as one list of keys and values, with byte strings.
_PYTHON_2_PICKLE = b"\x80\x02ccollections\nOrderedDict\n]](U\x01w" + _TENSOR + b"ea\x85R."
_NUMBERS = struct.pack("<q2f", 2, 1.5, -2.0)


def test_python_2_pickle_reads(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(legacy_file(_PYTHON_2_PICKLE, ["7"], _NUMBERS))
    assert_read(tmp_path / "a.bin", {"w": torch.tensor([1.5, -2.0])})


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (pickle.dumps({"w": 1}, protocol=2), "a pickle, but not of torch.save"),
        (legacy_file(_PYTHON_2_PICKLE, ["7"], _NUMBERS, version=1), "expected version 1001"),
        (legacy_file(_PYTHON_2_PICKLE, ["7"], _NUMBERS, little_endian=False), "big-endian"),
        (legacy_file(_PYTHON_2_PICKLE, "7", _NUMBERS), "expected the keys"),
        (legacy_file(_PYTHON_2_PICKLE, [7], _NUMBERS), "expected the keys"),
        (legacy_file(_PYTHON_2_PICKLE, [], _NUMBERS), "storage 7 is not in the file"),
        (
            legacy_file(_PYTHON_2_PICKLE, ["7", "7"], _NUMBERS * 2),
            "storage 7 belongs to no tensor, or is",
        ),
        (legacy_file(_PYTHON_2_PICKLE, ["8"], _NUMBERS), "storage 8 belongs to no tensor"),
        (
            legacy_file(_PYTHON_2_PICKLE, ["7"], struct.pack("<q", 2**62)),
            "storage 7: expected 2 elements",
        ),
        (
            legacy_file(_PYTHON_2_PICKLE, ["7"], _NUMBERS[:-1]),
            r"storage 7 ends at byte \d+ of \d+: truncated",
        ),
        (
            legacy_file(_PYTHON_2_PICKLE.replace(b"K\x02NtQ", b"K\x02U\x018NtQ"), ["7"], _NUMBERS),
            "part of",
        ),
        (
            legacy_file(_PYTHON_2_PICKLE.replace(b"K\x02\x85", b"K\x03\x85"), ["7"], _NUMBERS),
            "has 8",
        ),
        (
            legacy_file(b"\x80\x02(X\x07\0\0\0storageQ.", [], b""),
            "a storage of an unknown kind|damaged",
        ),
        (
            legacy_file(b"\x80\x02X" + struct.pack("<I", 2**24) + b"x" * 2**24 + b"."),
            "damaged pickle",
        ),
    ],
)
def test_invalid_legacy_file_raises_an_error(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    assert_rejected(tmp_path / "a.bin", complaint)


_BOMBS = {
    "a memo index of 2^31": b"]r\xff\xff\xff\x7f.",
    "tuples of tuples": b"(t" + b"q\x00h\x00\x86" * 100 + b"\x85.",
    "lists of lists": b"]" + b"q\x00]h\x00ah\x00a" * 100 + b".",
    "tables of tables": b"}"
    + b"".join(b"q\x00}X\1\0\0\0ah\x00sX\1\0\0\0bh\x00s" for _ in range(60))
    + b".",
    "a storage named by tuples of tuples": b"(X\7\0\0\0storagectorch\nFloatStorage\n"
    + b"(t"
    + b"q\x00h\x00\x86" * 100
    + b"X\3\0\0\0cpuK\1tQ.",
    "tables 300000 deep": b"}q\0" + b"}q\1X\0\0\0\0h\0sq\0" * 150_000 + b".",
    "a name of a million letters": b"}X"
    + struct.pack("<I", 1_000_000)
    + b"x" * 1_000_000
    + b"}X\1\0\0\0b}ss.",
    "sizes of a million digits": b"ctorch._utils\n_rebuild_tensor_v2\n("
    + b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
    + b"0X\3\0\0\0cpuK\2tQK\0("
    + (b"\x8b" + struct.pack("<i", 1_900_000) + b"\x7f" * 1_900_000) * 8
    + b"t(K\1K\1K\1K\1K\1K\1K\1K\1t\x89NtR.",
    "a long announced": b"\x8b\xff\xff\xff\x7f.",
}


@pytest.mark.fault(31)
def test_pickle_bombs_stay_within_time_and_memory(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "plain.bin")
    files = []
    for name, content in _BOMBS.items():
        files += [tmp_path / f"{name}.zip.bin", tmp_path / f"{name}.legacy.bin"]
        shutil.copy(tmp_path / "plain.bin", files[-2])
        rewritten(files[-2], data_pkl=content)
        files[-1].write_bytes(legacy_file(b"\x80\x02" + content, []))
    script = (
        "import sys, pathlib\n"
        "from swiftchat.errors import BadModelFile\n"
        "from swiftchat.weights.formats.torch_checkpoint import read_torch_checkpoint\n"
        "for path in map(pathlib.Path, sys.argv[1:]):\n"
        "    print(path.name, flush=True)\n"
        "    try:\n        read_torch_checkpoint(path)\n"
        "    except BadModelFile:\n        continue\n"
        "    sys.exit('was read')\n"
    )

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (512 * 2**20, 512 * 2**20))
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))

    child = subprocess.run(
        [sys.executable, "-c", script, *files],
        preexec_fn=limits,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert child.returncode == 0, child.stdout + child.stderr

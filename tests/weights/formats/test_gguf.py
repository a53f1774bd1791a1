"""GGUF files read like the reference package reads them; invalid files raise errors quickly."""

import resource
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from swiftchat.errors import BadModelFile, ModelNotFound
from swiftchat.weights.formats.gguf import GgufFile
from tests.support.gguf.invalid import (
    ARRAY,
    BOOL,
    F32,
    INVALID,
    STRING,
    U8,
    U32,
    U64,
    build,
    pair,
    string,
    tensor,
)


def opened(folder: Path, content: bytes) -> GgufFile:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return GgufFile.open(path)


@pytest.mark.parametrize("version", [2, 3])
def test_reads_files_of_the_reference_writer(tmp_path: Path, version: int) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 250)
    writer.add_int64("a.i64", -(2**40))
    writer.add_float32("a.f32", 0.5)
    writer.add_float64("a.f64", 1e300)
    writer.add_bool("a.bool", True)
    writer.add_string("a.string", "Ġ漢字")
    writer.add_array("a.strings", ["x", "", "ÿ"])
    writer.add_array("a.numbers", [1, 2, 3])
    writer.add_array("a.flags", [True, False])
    writer.add_custom_alignment(64)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.ones((4, 5, 6), np.float16))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    content = bytearray(path.read_bytes())
    content[4] = version
    file = opened(tmp_path, bytes(content))
    assert dict(file.metadata) == {
        "general.architecture": "llama",
        "a.u8": 250,
        "a.i64": -(2**40),
        "a.f32": 0.5,
        "a.f64": 1e300,
        "a.bool": True,
        "a.string": "Ġ漢字",
        "a.strings": ["x", "", "ÿ"],
        "a.numbers": [1, 2, 3],
        "a.flags": [True, False],
        "general.alignment": 64,
    }
    one, two = file.tensors["one"], file.tensors["two"]
    assert (one.shape, one.type_name) == ((2, 3), "F32")
    assert (two.shape, two.type_name) == ((4, 5, 6), "F16")
    assert file.rows(one).view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.rows(two).shape == (20, 12)
    assert one.offset % 64 == two.offset % 64 == 0


def test_real_model_reads_like_the_reference(smollm2_gguf: Path) -> None:
    file = GgufFile.open(smollm2_gguf)
    reference = gguf.GGUFReader(smollm2_gguf)
    for key, field in reference.fields.items():
        if not key.startswith("GGUF."):
            assert file.metadata[key] == field.contents()
    for theirs in reference.tensors:
        ours = file.tensors[theirs.name]
        assert (ours.offset, ours.nbytes) == (theirs.data_offset, theirs.n_bytes)
        assert ours.shape == tuple(int(size) for size in theirs.shape[::-1])


@pytest.mark.fault(8)
@pytest.mark.parametrize("case", INVALID)
def test_invalid_file_raises_an_error(tmp_path: Path, case: str) -> None:
    content, complaint = INVALID[case]
    begin = time.process_time()
    with pytest.raises(BadModelFile, match=complaint):
        list(opened(tmp_path, content).metadata.values())  # arrays are read here
    assert time.process_time() - begin < 10


def test_the_unchanged_built_file_is_valid(tmp_path: Path) -> None:
    file = opened(tmp_path, build([pair("k", U8, b"\1")], [tensor()]))
    assert file.metadata["k"] == 1
    assert file.tensors["t"].nbytes == 256


def test_missing_file_raises_model_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        GgufFile.open(tmp_path / "none.gguf")


@pytest.mark.fault(8)
def test_false_headers_take_little_time_and_memory(tmp_path: Path) -> None:
    for number, (content, _) in enumerate(INVALID.values()):
        (tmp_path / f"{number}.gguf").write_bytes(content)
    script = (
        "import sys, pathlib\n"
        "from swiftchat.errors import BadModelFile\n"
        "from swiftchat.weights.formats.gguf import GgufFile\n"
        "for path in pathlib.Path(sys.argv[1]).iterdir():\n"
        "    try: list(GgufFile.open(path).metadata.values())\n"
        "    except BadModelFile as error:\n"
        "        assert error.exit_code == 7 and str(path) in error.message, error.message\n"
        "        print(path.name)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert len(done.stdout.split()) == len(INVALID), done.stderr


@pytest.mark.fault(8)
def test_largest_header_stays_within_memory_limit(tmp_path: Path) -> None:
    """The maximum number of short strings, then one element more."""
    num = 2_999_000
    items = (string("ab") + string("ac")) * (num // 2)
    array = struct.pack("<IQ", STRING, num) + items
    rest = struct.pack("<IQ", U8, 1_001) + bytes(1_001)
    path = tmp_path / "model.gguf"
    path.write_bytes(build([pair("k", ARRAY, array), pair("l", ARRAY, rest)]))
    script = (
        "import sys, pathlib\n"
        "from swiftchat.errors import BadModelFile\n"
        "from swiftchat.weights.formats.gguf import GgufFile\n"
        "try: GgufFile.open(pathlib.Path(sys.argv[1]))\n"
        "except BadModelFile as error: print(error.message)\n"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (512 << 20, 512 << 20))

    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
        env={"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert "elements of l, more than" in done.stdout, done.stderr


def valid_file() -> bytes:
    tokens = struct.pack("<IQ", STRING, 3) + string("a") + string("bc") + string("")
    pairs = [
        pair("general.architecture", STRING, string("llama")),
        pair("general.alignment", U32, struct.pack("<I", 32)),
        pair("tokens", ARRAY, tokens),
        pair("scores", ARRAY, struct.pack("<IQ3f", F32, 3, 1.0, 2.0, 3.0)),
        pair("count", U64, struct.pack("<Q", 7)),
        pair("flag", BOOL, b"\1"),
    ]
    tensors = [tensor("one"), tensor("two", (64,), 8, 256)]
    return build(pairs, tensors, bytes(256 + 68))


def test_unmutated_file_reads(tmp_path: Path) -> None:
    file = opened(tmp_path, valid_file())
    metadata: dict[str, Any] = dict(file.metadata)
    assert metadata["tokens"] == ["a", "bc", ""]
    assert metadata["scores"] == [1.0, 2.0, 3.0]
    assert [found.type_name for found in file.tensors.values()] == ["F32", "Q8_0"]

"""Checkpoint: exact reads of safetensors, errors for invalid headers and indexes."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from swiftchat.errors import BadModelFile, FileSystemError
from swiftchat.weights.architectures.config import read_model_config
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.formats.safetensors import create_safetensors, header_bytes
from swiftchat.weights.model.checkpoint import Checkpoint

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
INDEX = "model.safetensors.index.json"


def write(path: Path, header: object, data: bytes = b"\0" * 64) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape: object = (4, 2), begin: Any = 0, end: Any = 32, dtype: object = "F32") -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64])
def test_reads_files_of_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {
        "a": (torch.randn(5, 7) * 100).to(dtype),
        "b": torch.zeros(0, 3, dtype=dtype),
        "c": torch.tensor(3, dtype=dtype),
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    assert set(checkpoint.tensors) == set(tensors)
    for name, tensor in tensors.items():
        read = checkpoint.read(name)
        assert read.shape == tuple(tensor.shape)
        assert read.tobytes() == tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def test_writes_to_a_mapping_do_not_change_the_file(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4)}, file)
    before = file.read_bytes()
    checkpoint = Checkpoint.open(tmp_path)
    info = checkpoint.tensors["a"]
    mapped = torch.frombuffer(
        checkpoint.map(info.file), dtype=torch.float32, count=4, offset=info.offset
    )
    mapped += 1
    assert mapped.tolist() == [2.0] * 4
    assert file.read_bytes() == before


def test_safetensors_reads_our_files(tmp_path: Path) -> None:
    arrays = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "none": np.zeros((0, 4), np.float32),
        "a": np.array([1, 2, 3], np.float16),
        "also none": np.zeros((2, 0), np.float16),
    }
    names = {"float32": "F32", "float16": "F16"}
    specs = [(name, names[a.dtype.name], a.shape) for name, a in arrays.items()]
    file = tmp_path / "model.safetensors"
    with create_safetensors(file, specs, {"format": "pt"}) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    found = safetensors.torch.load_file(file)
    assert all(np.array_equal(found[name].numpy(), array) for name, array in arrays.items())
    assert len(header_bytes(specs, {})) % 64 == 0


@pytest.mark.parametrize(
    ("written", "replacement", "problem"),
    [
        (b'"F16"', b'"I16"', r"finds \('a', 'I16', \(2, 3\)\)"),
        (b"[2,3]", b"[3,2]", r"\(2, 3\)\) was written, but .* finds .*\(3, 2\)"),
        (b'"a"', b'"c"', r"\('a', .* finds \('c',"),
        (b"[0,12]", b"[2,14]", "does not read what was written: .*offset"),
        (b"[12,24]", b"[12,22]", "does not read what was written"),
        (b"pt", b"tf", "'tf'"),
    ],
)
def test_a_file_in_which_safetensors_finds_something_else_is_an_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: bytes,
    replacement: bytes,
    problem: str,
) -> None:
    """Whatever a faulty writer does: here each of the things that a header says."""

    def wrong(*args: Any) -> bytes:
        header = header_bytes(*args)
        assert written in header
        return header.replace(written, replacement, 1)

    monkeypatch.setattr("swiftchat.weights.formats.safetensors.header_bytes", wrong)
    specs = [("a", "F16", (2, 3)), ("b", "F16", (6,))]
    with (
        pytest.raises(FileSystemError, match=f"model.safetensors: .*{problem}"),
        create_safetensors(tmp_path / "model.safetensors", specs, {"format": "pt"}) as writer,
    ):
        writer.write("a", np.ones((2, 3), np.float16))
        writer.write("b", np.ones(6, np.float16))


def test_writer_rejects_tensors_without_a_spec(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="expected tensor a"),
        create_safetensors(tmp_path / "x", [("a", "F32", (2,))], {}) as writer,
    ):
        writer.write("a", np.zeros(3, np.float32))
    with (
        pytest.raises(ValueError, match="not written"),
        create_safetensors(tmp_path / "y", [("a", "F32", (2,))], {}),
    ):
        pass


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"t": entry(end=33)}, "tensor t"),
        ({"t": entry(end=10**30)}, "tensor t"),
        ({"t": entry(begin=-4, end=28)}, "tensor t"),
        ({"t": entry(begin=64, end=96)}, "tensor t.*truncated"),
        ({"t": entry(shape=[2**62, 2**62])}, "tensor t"),
        ({"t": entry(shape=[4, -2])}, "tensor t"),
        ({"t": entry(shape=[4, 2.0])}, "tensor t"),
        ({"t": entry(shape=[True] * 99)}, "tensor t"),
        ({"t": entry(shape="42")}, "tensor t"),
        ({"t": entry(dtype="q4")}, "tensor t.*dtype"),
        ({"t": entry(dtype=["F32"])}, "tensor t.*dtype"),
        ({"t": [1, 2]}, "tensor t"),
        ({"t": {}}, "tensor t"),
        ({"t": entry(), "u": entry(begin=16, end=48)}, "t and u overlap"),
        ({"__metadata__": {"a": 1}}, "__metadata__"),
        ([], "not a JSON object"),
        (b'{"t": 1, "t": 2}', "twice"),
        (b"[" * 100_000, "not JSON"),
        (b"{\xff}", "not JSON"),
        (b"1" * 10_000, "not"),
    ],
)
def test_an_invalid_header_raises_an_error_that_names_the_file(
    tmp_path: Path, header: object, message: str
) -> None:
    write(tmp_path / "model.safetensors", header)
    with pytest.raises(BadModelFile, match=message) as caught:
        Checkpoint.open(tmp_path)
    assert "model.safetensors" in caught.value.message


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes"),
        (b"\1\2\3", "3 bytes"),
        (struct.pack("<Q", 2**62) + b"{}", "truncated"),
        (struct.pack("<Q", 2**63 - 1), "truncated"),
        (b"version https://git-lfs.example/spec/v1\noid sha256:00\nsize 1\n", "git-lfs pointer"),
        (b"\n<!DOCTYPE html><html>Not found</html>", "web page"),
    ],
)
def test_a_file_of_another_type_raises_an_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadModelFile, match=message):
        Checkpoint.open(tmp_path)


def sharded(folder: Path) -> dict[str, str]:
    safetensors.torch.save_file({"a": torch.ones(2)}, folder / "one.safetensors")
    safetensors.torch.save_file({"b": torch.ones(3)}, folder / "two.safetensors")
    return {"a": "one.safetensors", "b": "two.safetensors"}


def save_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_shards_are_read_as_one_table(tmp_path: Path) -> None:
    save_index(tmp_path, sharded(tmp_path))
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.read("a").shape == (2,)
    assert checkpoint.read("b").shape == (3,)


@pytest.mark.fault(30, 33)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": "three.safetensors"}, "three.safetensors is missing"),
        ({"a": "../one.safetensors"}, "is not a weight file"),
        ({"a": "/etc/one.safetensors"}, "is not a weight file"),
        ({"a": "sub/one.safetensors"}, "is not a weight file"),
        ({"a": "..\\one.safetensors"}, "is not a weight file"),
        ({"a": "one.safetensors\0"}, "is not a weight file"),
        ({"a": 3}, "is not a weight file"),
        ({"a": "other.safetensors", "x": "one.safetensors"}, "a of one.safetensors is another one"),
    ],
)
def test_an_invalid_index_raises_an_error(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    weight_map = sharded(folder)
    safetensors.torch.save_file({"a": torch.full((2,), 3.0)}, folder / "other.safetensors")
    save_index(folder, {**weight_map, **change})
    with pytest.raises(BadModelFile, match=message):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"c": "one.safetensors"},  # of no file
        {"a": "two.safetensors", "x": "one.safetensors"},  # in the other file
        {"x": "copy.safetensors"},  # twice, and equal
        {"a": "linked.safetensors"},
    ],
)
def test_an_index_names_the_files_only(tmp_path: Path, change: dict[str, str]) -> None:
    """As in transformers, which reads all of them; a file may be a link to another disk."""
    folder = tmp_path / "model"
    folder.mkdir()
    weight_map = sharded(folder)
    one = (folder / "one.safetensors").read_bytes()
    (folder / "copy.safetensors").write_bytes(one)
    (tmp_path / "elsewhere").write_bytes(one)
    (folder / "linked.safetensors").symlink_to(tmp_path / "elsewhere")
    save_index(folder, {**weight_map, **change})
    checkpoint = Checkpoint.open(folder)
    assert checkpoint.tensors.keys() == {"a", "b"}
    assert checkpoint.read("a").shape == (2,)


@pytest.mark.parametrize("index", [[], {}, None, "a"])
def test_an_index_without_weight_map_raises_an_error(tmp_path: Path, index: object) -> None:
    sharded(tmp_path)
    save_index(tmp_path, index)
    with pytest.raises(BadModelFile, match="weight_map"):
        Checkpoint.open(tmp_path)


@pytest.mark.fault(30)
def test_links_of_the_hub_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    safetensors.torch.save_file({"a": torch.ones(2)}, blobs / "00ff")
    (snapshot / "model.safetensors").symlink_to("../../blobs/00ff")
    assert list(Checkpoint.open(snapshot).tensors) == ["a"]
    (snapshot / "fp16").mkdir()
    (snapshot / "fp16" / "model.safetensors").symlink_to("../../../blobs/00ff")
    assert list(Checkpoint.open(snapshot / "fp16").tensors) == ["a"]
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path.parent)
    with pytest.raises(BadModelFile, match="missing"):
        Checkpoint.open(snapshot)


@pytest.mark.fault(1)
def test_code_in_a_torch_file_never_runs(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save(Payload(), tmp_path / "pytorch_model.bin")
    with pytest.raises(BadModelFile, match="pickle"):
        Checkpoint.open(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": "../one.bin"}, "is not a weight file"),
        ({"a": "one.safetensors"}, "is not a weight file"),
        ({"a": "other.bin", "x": "one.bin"}, "a of one.bin is another one"),
        ({"a": "none.bin"}, "none.bin is missing"),
        ({"a": "page.bin"}, "page.bin: a web page"),
    ],
)
def test_an_invalid_index_of_torch_files_raises_an_error(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, shard, value in (("a", "one", 1.0), ("b", "two", 1.0), ("a", "other", 2.0)):
        torch.save({name: torch.full((2,), value)}, folder / f"{shard}.bin")
    (folder / "page.bin").write_bytes(b"<html></html>")
    weight_map = {"a": "one.bin", "b": "two.bin"}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert Checkpoint.open(folder).tensors.keys() == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {**weight_map, **change}}))
    with pytest.raises(BadModelFile, match=message):
        Checkpoint.open(folder)


def tiny_tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in expected_tensors(config).items()}


def test_check_accepts_the_model_and_lists_unused_tensors(tmp_path: Path) -> None:
    config = read_model_config({**TINY, "tie_word_embeddings": True})
    extra = {
        "lm_head.weight": torch.zeros(13, 8),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    tensors = {**tiny_tensors(config), **extra}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    checkpoint.check(config)
    assert checkpoint.unused == ["model.layers.0.self_attn.rotary_emb.inv_freq"]


@pytest.mark.fault(33)
@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.norm.weight", None, r"no tensor model.norm.weight: expected \[8\]"),
        ("lm_head.weight", None, "no tensor lm_head.weight"),
        ("lm_head.weight", torch.zeros(8, 13), r"expected \[13, 8\], found \[8, 13\]"),
        ("model.layers.1.mlp.up_proj.weight", torch.zeros(12), "mlp.up_proj"),
        ("model.norm.weight", torch.zeros(8, dtype=torch.int32), "found I32"),
    ],
)
def test_check_names_the_wrong_tensor(
    tmp_path: Path, name: str, tensor: torch.Tensor | None, message: str
) -> None:
    config = read_model_config(TINY)
    tensors = tiny_tensors(config)
    del tensors[name]
    if tensor is not None:
        tensors[name] = tensor
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadModelFile, match=message):
        Checkpoint.open(tmp_path).check(config)

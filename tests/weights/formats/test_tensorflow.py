"""TensorFlow checkpoints and OpenAI's GPT-2: valid ones read exactly, invalid ones raise errors."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swiftchat.errors import BadModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.sorted_table import read_table
from swiftchat.weights.formats.tensorflow_checkpoint import read_tensorflow_checkpoint
from swiftchat.weights.model.checkpoint import Checkpoint
from tests.support import gpt2_layouts
from tests.support import tensorflow_files as tf


def test_table_has_every_key(tmp_path: Path) -> None:
    pairs = {b"model/h%d/attn/%d" % (n % 12, n): b"value %d" % n for n in range(500)}
    for per_block in (1, 7, 500):
        (tmp_path / "a.index").write_bytes(tf.table(pairs, per_block))
        assert read_table(tmp_path / "a.index") == dict(sorted(pairs.items()))


@pytest.mark.parametrize("files", [1, 3])
def test_checkpoint_has_every_tensor(tmp_path: Path, files: int) -> None:
    tensors = {f"t/{dtype}": (torch.randn(3, 5) * 50).to(dtype) for dtype in tf.DTYPES}
    tensors["empty"] = torch.zeros(0, 4)
    tf.write_bundle(tmp_path / "model.ckpt", tensors, files)
    found = read_tensorflow_checkpoint(tmp_path / "model.ckpt.index")
    checkpoint = Checkpoint(tmp_path, found)
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        read = checkpoint.read(name)
        assert read.shape == tuple(tensor.shape)
        assert read.tobytes() == tensor.view(torch.uint8).numpy().tobytes()


def test_openai_gpt2_with_its_tokenizer(tmp_path: Path) -> None:
    model = gpt2_layouts.tiny_gpt2()
    tf.write_openai_gpt2(tmp_path / "in", model)
    convert(tmp_path / "in", tmp_path / "out")
    ours = Tokenizer.load(tmp_path / "out")
    theirs = transformers.GPT2Tokenizer(
        str(tmp_path / "in" / "encoder.json"), str(tmp_path / "in" / "vocab.bpe")
    )
    for text in ("abc ab cab", "a<b", "xyz!"):
        assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.eos_ids == (97,)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eos_token_id"] == 97


def test_the_named_checkpoint_is_read(tmp_path: Path) -> None:
    tf.write_openai_gpt2(tmp_path / "in", gpt2_layouts.tiny_gpt2())
    other = tmp_path / "in" / "model.ckpt-9.index"
    other.write_bytes(b"another checkpoint")
    convert(tmp_path / "in", tmp_path / "out")
    for name in ("../in/model.ckpt", "gone", ""):
        (tmp_path / "in" / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')
        assert_rejected(tmp_path / "in", "there is no checkpoint")
    (tmp_path / "in" / "checkpoint").unlink()
    assert_rejected(tmp_path / "in", "2 checkpoints, and checkpoint is missing")


# Invalid files


def assert_rejected(source: Path, complaint: str) -> None:
    with pytest.raises(BadModelFile, match=complaint) as caught:
        convert(source, source.parent / "never")
    assert caught.value.exit_code == 7
    assert not (source.parent / "never").exists()


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"n_layer": 5}, "no tensor model/h4/attn/c_attn/w: expected"),
        ({"n_head": 0}, "hparams.json: invalid model config: .*num_attention_heads"),
        ({"n_ctx": None}, "hparams.json: n_ctx is missing"),
        ({"n_ctx": 64}, r"tensor model/wpe: expected \[64, 64\] of floats, found \[128, 64\]"),
        ({"n_vocab": 10**30}, "vocab_size"),
        ({"n_vocab": 97}, "eos_token_id|bos_token_id"),
        ({"res_dropout": 0.1}, "the field res_dropout is unknown"),
    ],
)
def test_invalid_settings_raise_an_error(
    tmp_path: Path, said: dict[str, Any], complaint: str
) -> None:
    tf.write_openai_gpt2(tmp_path / "in", gpt2_layouts.tiny_gpt2(), settings=said)
    assert_rejected(tmp_path / "in", complaint)


def entry(shape: tuple[int, ...] = (2,), file: int = 0, offset: int = 0, nbytes: int = 8) -> bytes:
    return tf.entry(1, shape, file, offset, nbytes)


def bundle(head: bytes = tf.header(1), **entries: bytes) -> bytes:
    return tf.table({b"": head, **{name.encode(): value for name, value in entries.items()}})


def place(begin: int, nbytes: int) -> bytes:
    return tf.varint(begin) + tf.varint(nbytes)


def around(*blocks: bytes, places: dict[bytes, bytes] | None = None) -> bytes:
    """Return a table of these blocks; its index has `places`, or the first block only."""
    content = b"".join(map(tf.with_trailer, blocks))
    index = tf.block({b"z": place(0, len(blocks[0]))} if places is None else places, 1)
    ends = place(0, 0) + place(len(content), len(index))
    return (
        content + tf.with_trailer(index) + ends.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")
    )


def _flipped(content: bytes) -> bytes:
    return content[:3] + bytes([content[3] ^ 1]) + content[4:]


_ONE = tf.block({b"a": b"1"})
# Computed by the test that needs it: some are long.
LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not a TensorFlow table"),
    "another file": (lambda: b"x" * 100, "not a TensorFlow table"),
    "too large": (lambda: bytes(5 * 2**20), "larger than"),
    "no header": (lambda: tf.table({b"t": entry()}), "0 data files"),
    "many files": (lambda: bundle(tf.header(2**40)), "data files"),
    "a missing file": (lambda: bundle(tf.header(2)), "a.data-00000-of-00002 is missing"),
    "big-endian": (lambda: bundle(tf.header(1, True)), "big-endian"),
    "snappy": (lambda: tf.table({b"": tf.header(1)}, kind=1), "compressed by snappy"),
    "unknown compression": (lambda: tf.table({b"": tf.header(1)}, kind=9), "compressed by kind 9"),
    "shape": (lambda: bundle(t=entry((3,))), "tensor t: expected 12 bytes of F32, found 8"),
    "a negative dimension": (
        lambda: bundle(t=entry((2**64 - 1,))),
        "tensor t: an impossible shape",
    ),
    "dimensions": (lambda: bundle(t=entry((1,) * 9, nbytes=4)), "tensor t: an impossible shape"),
    "sizes": (lambda: bundle(t=entry((2**62, 2**62))), "tensor t: expected"),
    "beyond the file": (lambda: bundle(t=entry(offset=100)), "ends at byte 108 of 64: truncated"),
    "beyond everything": (lambda: bundle(t=entry(offset=2**63)), "truncated"),
    "another file's": (lambda: bundle(t=entry(file=1)), "tensor t: in data file 1 of 1"),
    "overlapping": (lambda: bundle(t=entry(), u=entry(offset=4)), "t and u overlap"),
    "sliced": (lambda: bundle(t=entry() + tf.field(7, b"\x0a\x00")), "stored in slices"),
    "a message that ends": (lambda: bundle(t=b"\x08"), "tensor t: a damaged message"),
    "a group": (lambda: bundle(t=b"\x0b"), "tensor t: a damaged message"),
    "a number without end": (
        lambda: bundle(t=b"\x08" + b"\xff" * 20),
        "tensor t: a damaged message",
    ),
    "a length as number": (lambda: bundle(t=b"\x12\xff\xff\xff\xff\x0f"), "a damaged message"),
    "bytes for a number": (lambda: bundle(t=entry() + tf.field(5, b"x")), "tensor t: expected"),
    "a number for a shape": (lambda: bundle(t=entry() + tf.field(2, 3)), "a damaged message"),
    "a block outside": (
        lambda: around(_ONE, places={b"a": place(2**40, 9)}),
        "a block ends at byte",
    ),
    "no room for a block": (lambda: around(b""), "ends early"),
    "a block of restarts": (lambda: around(struct.pack("<I", 2**31)), "restart points"),
    "blocks read again": (
        lambda: around(_ONE, places={b"%05d" % n: place(0, len(_ONE)) for n in range(50_000)}),
        "blocks overlap",
    ),
    "keys out of order": (
        lambda: around(tf.block({b"b": b"", b"a": b""})),
        "key b'a' does not come after",
    ),
    "an entry beyond its block": (lambda: around(b"\x00\x7f\x01" + _ONE), "longer than"),
    "a prefix of nothing": (lambda: around(b"\x05\x01\x00a" + _ONE), "longer than"),
    "keys that grow": (
        lambda: around(
            b"".join(tf.varint(n) + b"\x01\x00a" for n in range(100_000)) + struct.pack("<2I", 0, 1)
        ),
        "a key of 4097 bytes",
    ),
    "a wrong checksum": (
        lambda: _flipped(bundle(t=entry())),
        "the checksum of the block at byte 0 is",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_invalid_checkpoint_raises_an_error(tmp_path: Path, name: str) -> None:
    content, complaint = LIES[name]
    (tmp_path / "a.index").write_bytes(content())
    (tmp_path / "a.data-00000-of-00001").write_bytes(bytes(64))
    with pytest.raises(BadModelFile, match=complaint) as caught:
        read_tensorflow_checkpoint(tmp_path / "a.index")
    assert "a." in caught.value.message


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_mutated_index_reads_or_raises_bad_model_file(tmp_path: Path, data: st.DataObject) -> None:
    """The mutated block gets a valid checksum."""
    tensors = {"a": torch.ones(4, 3), "ab": torch.zeros(5), "b": torch.ones(2, dtype=torch.int32)}
    if not (tmp_path / "m.index").exists():
        tf.write_bundle(tmp_path / "m", tensors)
        (tmp_path / "kept").write_bytes(tf.block(read_table(tmp_path / "m.index")))
    content = bytearray((tmp_path / "kept").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "m.index").write_bytes(around(bytes(content)))
    try:
        checkpoint = Checkpoint(tmp_path, read_tensorflow_checkpoint(tmp_path / "m.index"))
    except BadModelFile:
        return
    for name, info in checkpoint.tensors.items():
        assert checkpoint.read(name).nbytes == info.nbytes <= 100

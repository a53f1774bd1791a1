"""A GGUF file read in place gives the tensors of its conversion, for every architecture."""

import os
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from swiftchat.errors import BadModelFile
from swiftchat.weights.architectures.tensors import constant_tensors, expected_tensors
from swiftchat.weights.convert.convert import convert
from swiftchat.weights.formats.ggml_dequantize import DOUBLE_E2M1
from swiftchat.weights.formats.gguf import GgufFile, open_gguf
from swiftchat.weights.model.checkpoint import Checkpoint
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.gguf_checkpoint import GgufCheckpoint
from swiftchat.weights.quantization.scheme import Mxfp4
from swiftchat.weights.quantization.stored_tensor import as_float32
from tests.support import llama_layouts, tiny
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gguf.models import CASES, converted_case, copy_case, write_case
from tests.support.tiny_llama import tiny_llama

KINDS = gguf.GGMLQuantizationType


def floats(checkpoint: Checkpoint, name: str) -> np.ndarray:
    if name in checkpoint.quantized:
        return checkpoint.quantized[name].to_float32()
    return as_float32(checkpoint.read(name), checkpoint.tensors[name].dtype)


def assert_equals_conversion(folder: Path) -> Checkpoint:
    """Compare the tensors of `model.gguf` in the folder with those of its conversion."""
    convert(folder / "model.gguf", folder / "converted", dtype="float32")
    return assert_equals(folder / "model.gguf", folder / "converted", folder / "in-place")


def assert_equals(file: Path, converted: Path, in_place: Path) -> Checkpoint:
    """Compare the tensors of a file, for which `in_place` is made, with those of a conversion."""
    model = Model.open(gguf_directory.of_file(file, in_place))
    checkpoint = model.checkpoint()
    expected = load_file(converted / "model.safetensors")
    constants = constant_tensors(model.config)
    assert expected.keys() == {*expected_tensors(model.config), *constants}
    for name, tensor in expected.items():
        if name not in constants:  # they are not in the GGUF file
            assert torch.equal(torch.from_numpy(floats(checkpoint, name)), tensor), name
    return checkpoint


@pytest.mark.parametrize("name", CASES)
def test_tensors_read_in_place_equal_converted_ones(name: str, tmp_path: Path) -> None:
    made = converted_case(name)
    checkpoint = assert_equals(made / "model.gguf", made / "ours", tmp_path / "in-place")
    assert not checkpoint.is_quantized


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "gemma2", "phi3"])
def test_f16_tensors_read_in_place_equal_converted_ones(name: str, tmp_path: Path) -> None:
    copy_case(name, tmp_path / "theirs")
    write_case(name, tmp_path / "model.gguf", tmp_path / "theirs", raw_type=KINDS.F16)
    assert_equals_conversion(tmp_path)
    assert Model.open(tmp_path / "in-place").config.dtype == "float16"


@pytest.mark.parametrize("kind", [KINDS.Q4_1, KINDS.Q8_0, KINDS.MXFP4])
def test_quantized_tensors_read_in_place_equal_converted_ones(
    kind: gguf.GGMLQuantizationType, tmp_path: Path
) -> None:
    tiny_gguf.write(tmp_path / "model.gguf", tiny_llama(), quantize=kind)
    checkpoint = assert_equals_conversion(tmp_path)
    assert checkpoint.is_quantized
    name = "model.layers.0.self_attn.q_proj.weight"  # with reordered rows
    assert checkpoint.quantized[name].read_blocks is not None


def test_transposed_quantized_tensors_equal_converted_ones(tmp_path: Path) -> None:
    """Q8_0 blocks lie along the columns of GPT-2's transposed matrices."""
    model = tiny_gpt2()
    model.save_pretrained(tmp_path / "theirs")
    write_case("gpt2", tmp_path / "model.gguf", tmp_path / "theirs", raw_type=KINDS.Q8_0)
    assert_equals_conversion(tmp_path)


def tiny_gpt2() -> "torch.nn.Module":
    import transformers

    sizes = {"vocab_size": tiny.VOCAB_SIZE, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(n_embd=96, n_layer=2, n_head=2, n_positions=64, **sizes)
    return transformers.GPT2LMHeadModel(config)


def test_experts_in_mxfp4_equal_converted_ones(tmp_path: Path) -> None:
    """As in GPT-OSS's files: gate and up apart, in blocks along the columns."""
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    tiny.make("gpt-oss", tmp_path / "theirs", **sizes)
    write_case("gpt-oss", tmp_path / "model.gguf", tmp_path / "theirs", raw_type=KINDS.MXFP4)
    checkpoint = assert_equals_conversion(tmp_path)
    merged = checkpoint.quantized["model.layers.0.mlp.experts.gate_up_proj"]
    assert (merged.format, merged.shape) == ("MXFP4", (5, 64, 192))
    assert np.array_equal(merged.dequantize(2, 4), merged.to_float32()[2:4])
    assert merged.packed is not None and merged.read_blocks is not None
    matrix = merged.packed.read()
    assert isinstance(matrix, Mxfp4) and matrix.scale.shape == (5 * 192, 2)
    pairs = np.stack([matrix.values & 15, matrix.values >> 4], 2).reshape(5 * 192, 64)
    powers = np.ldexp(1.0, matrix.scale.astype(int) - 128).repeat(32, 1)
    found = (DOUBLE_E2M1[pairs] * powers).reshape(5, 192, 64)
    assert np.array_equal(found, merged.to_float32().transpose(0, 2, 1))
    blocks = merged.read_blocks()
    assert blocks.blocks.shape == (5 * 192, 2 * 17)
    assert np.array_equal(blocks.blocks[:, ::17], matrix.scale)


def test_split_file_read_in_place(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "one.gguf", tiny_llama(), quantize=KINDS.Q4_1)
    first = llama_layouts.split_gguf(tmp_path / "one.gguf", 3)
    one, split = (
        Model.open(gguf_directory.of_file(file, tmp_path / name)).checkpoint()
        for file, name in ((tmp_path / "one.gguf", "one"), (first, "split"))
    )
    assert len({info.file for info in split.tensors.values()}) == 3
    for name in [*one.quantized, *(set(one.tensors) & set(split.tensors))]:
        assert np.array_equal(floats(one, name), floats(split, name))


def test_a_vector_of_blocks_raises_an_error(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama(hidden_size=64))
    model = Model.open(gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "in-place"))
    file = open_gguf(tmp_path / "m.gguf")
    norm = replace(file.tensors["output_norm.weight"], type_name="Q8_0", nbytes=68)
    tensors = {**file.tensors, norm.name: norm}
    changed = GgufFile(file.path, file.metadata, tensors, file.data, file.paths)
    with pytest.raises(BadModelFile, match=r"output_norm.weight: expected one of .*, found Q8_0"):
        GgufCheckpoint(changed, model.config)


@pytest.mark.parametrize("change", ["removed", "replaced", "touched"])
def test_a_changed_file_raises_an_error(tmp_path: Path, change: str) -> None:
    """The worker opens the file later than the terminal."""
    file = tmp_path / "m.gguf"
    tiny_gguf.write(file, tiny_llama())
    model = Model.open(gguf_directory.of_file(file, tmp_path / "in-place"))
    model.checkpoint()
    if change == "touched":
        os.utime(file, (1, 1))
    else:
        file.unlink()
    if change == "replaced":
        tiny_gguf.write(file, tiny_llama(num_hidden_layers=1))
    problem = "is missing" if change == "removed" else "has changed"
    with pytest.raises(BadModelFile, match=rf"m\.gguf {problem}"):
        model.checkpoint()


@pytest.mark.parametrize("content", ["[]", "{}", '{"files": [{"path": 5}]}', '{"files": []}'])
def test_a_damaged_source_file_raises_an_error(tmp_path: Path, content: str) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_llama())
    folder = gguf_directory.of_file(tmp_path / "m.gguf", tmp_path / "in-place")
    (folder / "gguf.json").write_text(content)
    with pytest.raises(BadModelFile, match=r"gguf\.json"):
        Model.open(folder).checkpoint()

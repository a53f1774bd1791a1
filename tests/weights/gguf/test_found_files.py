"""GGUF files as people have them: wrong end tokens, ids of no token, other parts, new types."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from swiftchat.errors import BadModelFile, DamagedModelFile
from swiftchat.tokenizer import Tokenizer
from swiftchat.weights.formats.ggml_dequantize import BLOCK_TYPES
from swiftchat.weights.formats.gguf import GgufFile
from swiftchat.weights.formats.gguf_types import type_name
from swiftchat.weights.gguf.config import generation_config_json, tokenizer_config_json
from swiftchat.weights.gguf.pretokenizers import PRE_TOKENIZERS
from swiftchat.weights.gguf.tokenizer import tokenizer_files
from swiftchat.weights.model.directory import Model
from tests.support.gguf import directory as gguf_directory
from tests.support.gguf import tiny as tiny_gguf
from tests.support.tiny_llama import tiny_llama

TOKENS = tiny_gguf.TOKENS


def directory(folder: Path, **changes: Any) -> Path:
    """Return the model directory of a file with these metadata."""
    tensors = changes.pop("tensors", None)
    metadata = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    model = tiny_llama(vocab_size=len(metadata.get("tokenizer.ggml.tokens", TOKENS)))
    tiny_gguf.write(folder / "m.gguf", model, metadata=metadata, tensors=tensors)
    return gguf_directory.of_file(folder / "m.gguf", folder / "small")


def renamed(**names: str) -> list[str]:
    """Return the tokens with other names, given the old ones."""
    return [names.get(token.strip("<|>"), token) for token in TOKENS]


def end_ids(tokens: list[str], **more: Any) -> list[int]:
    metadata = {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    file = GgufFile(Path(), {"tokenizer.ggml.tokens": tokens, **metadata}, {}, [], [])
    found = generation_config_json(file).get("eos_token_id", [])
    return found if isinstance(found, list) else [found]


@pytest.mark.parametrize(
    ("tokens", "ends"),
    [
        (["a", "<|im_end|>"], [1]),
        (["a", "<|endoftext|>", "<|im_end|>", "<|eom_id|>"], [1, 2, 3]),
        (["<end_of_turn>", "<turn|>", "[EOT]"], [0, 1, 2]),
        (["<|end|>", "<|return|>"], [0, 1]),
        (["<|end|>", "<|return|>", "<|call|>"], [1, 2]),
        (["<|end|>", "<|calls|>", "<|flush|>"], [1, 2]),
        (["a", "<｜end▁of▁sentence｜>", "[e~["], [1, 2]),
        (["<|eom|>", "<|eot|>", "<|EOT|>"], [1, 2]),  # Muse: the first ends a message
        (["<|END_OF_TURN_TOKEN|>", "<|role_end|>", "<|endofturn|>", "<|end_of_role|>"], [0, 1, 2]),
        (["a", "</s>"], []),  # perhaps a tag of HTML
    ],
)
def test_tokens_that_end_turns_are_end_tokens(tokens: list[str], ends: list[int]) -> None:
    assert end_ids(tokens) == ends


def test_a_control_token_may_be_named_like_a_tag() -> None:
    assert end_ids(["a", "</s>"], token_type=[1, 3]) == [1]
    assert end_ids(["a", "</s>"], token_type=[1, 4]) == []


def test_the_ids_of_the_file_come_first() -> None:
    tokens = ["a", "<|im_end|>", "b"]
    assert end_ids(tokens, eot_token_id=2, eos_token_id=0) == [0, 2, 1]


@pytest.mark.parametrize("wrong", [2**32 - 1, len(TOKENS)])
@pytest.mark.parametrize("name", ["bos", "eos", "eot", "padding", "unknown"])
def test_ids_of_no_token_are_ignored(tmp_path: Path, name: str, wrong: int) -> None:
    folder = directory(tmp_path, tokens=renamed(end="<|im_end|>"), **{f"{name}_token_id": wrong})
    model = Model.open(folder)
    assert model.config.eos_ids == (TOKENS.index("<|end|>"),)
    assert wrong not in (model.config.bos_id, *Tokenizer.load(folder).eos_ids)


def test_an_end_token_of_the_type_normal_ends_an_answer_and_is_no_text(tmp_path: Path) -> None:
    folder = directory(
        tmp_path,
        tokens=renamed(end="<|im_end|>"),
        token_type=[1] * len(TOKENS),
        eos_token_id=None,
    )
    tokenizer = Tokenizer.load(folder)
    end = TOKENS.index("<|end|>")
    assert Model.open(folder).config.eos_ids == (end,)
    assert tokenizer.encode_rendered("ab<|im_end|>", [])[-1] == end
    assert end not in tokenizer.encode("ab<|im_end|>")


def test_sentencepiece_tokens_of_a_user_split_the_text_as_control_tokens_do(tmp_path: Path) -> None:
    """llama.cpp puts a space before the text behind each of them."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "▁a", "<mark>"]
    for kind in (3, 4):
        folder = tmp_path / str(kind)
        folder.mkdir()
        directory(
            folder,
            model="llama",
            pre=None,
            merges=None,
            tokens=pieces,
            scores=[0.0] * 259 + [-3.0, -2.0, -1.0, -1000.0],
            token_type=[2, 3, 3, *[6] * 256, 1, 1, 1, kind],
            bos_token_id=1,
            eos_token_id=2,
        )
        ids = Tokenizer.load(folder / "small").encode_rendered("<mark>a<mark>a", [])
        assert [pieces[i] for i in ids] == ["<mark>", "▁a", "<mark>", "▁a"], kind


@pytest.mark.parametrize(
    ("general", "absorbs"),
    [
        ({"architecture": "phi3"}, True),
        ({"architecture": "llama", "name": "Phi-3 Mini"}, True),
        ({"architecture": "llama", "name": "Tiny"}, False),
        ({"architecture": "llama"}, False),
    ],
)
def test_tokens_of_phi3_absorb_the_white_space_after_them(
    general: dict[str, str], absorbs: bool
) -> None:
    """As in its `tokenizer.json`: a GGUF file has no such property of tokens."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "▁a", "<|endoftext|>", "<|user|>"]
    keys = {
        "model": "llama",
        "tokens": pieces,
        "scores": [0.0] * 259 + [-3.0, -2.0, -1.0, -1000.0, -1000.0],
        "token_type": [3, 3, 4, *[6] * 256, 1, 1, 1, 3, 3],
        "unknown_token_id": 0,
    }
    metadata = {
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
        **{f"general.{key}": value for key, value in general.items()},
    }
    file = GgufFile(Path(), metadata, {}, [], [])
    config = json.dumps(tokenizer_config_json(file)).encode()
    files = {**tokenizer_files(metadata), "tokenizer_config.json": config}
    ids = Tokenizer.from_files(files).encode_rendered("<|user|>\na<|endoftext|>\na", [])
    line = ["▁", "<0x0A>", "a"]
    behind = ["▁a"] if absorbs else line
    assert [pieces[i] for i in ids] == ["<|user|>", *behind, "<|endoftext|>", *line]


def test_vision_and_audio_tensors_are_skipped_with_a_note(tmp_path: Path) -> None:
    extra = np.zeros((32, 32), np.float32)
    tensors = {"v.blk.0.attn_q.weight": extra, "mm.0.weight": extra, "a.conv1d.weight": extra}
    model = Model.open(directory(tmp_path, tensors=tensors))
    model.checkpoint()
    assert [note for note in model.notes if "vision and audio tensors are skipped" in note]


def test_a_guessed_pre_tokenizer_has_a_note(tmp_path: Path) -> None:
    for pre, count in (("smollm", 0), (None, 1)):
        folder = tmp_path / str(pre)
        folder.mkdir()
        notes = Model.open(directory(folder, pre=pre)).notes
        assert len([note for note in notes if "split as for GPT-2" in note]) == count


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("a.x-4.0", "gpt-2"),
        ("kormo", "qwen2"),
        ("llada-moe", "bailingmoe"),
        ("talkie", "gpt-4o"),
        ("glm5", "glm4"),
        ("hy_v4", "deepseek-v3"),
    ],
)
def test_names_of_pre_tokenizers_with_a_known_rule(name: str, same: str) -> None:
    assert PRE_TOKENIZERS[name] == PRE_TOKENIZERS[same]


def with_type(path: Path, tensor: str, number: int) -> None:
    """Change the type of a tensor in the header of a file."""
    content = bytearray(path.read_bytes())
    at = content.index(len(tensor).to_bytes(8, "little") + tensor.encode()) + 8 + len(tensor)
    dimensions = int.from_bytes(content[at : at + 4], "little")
    at += 4 + 8 * dimensions
    content[at : at + 4] = number.to_bytes(4, "little")
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("number", "name"),
    [(9, "Q8_1"), (42, "Q2_0"), (36, "I2_S"), (139, "IQ4_K"), (212, "Q4_K_R4"), (9999, "number")],
)
def test_a_type_that_is_not_supported_is_named(tmp_path: Path, number: int, name: str) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write(path, tiny_llama())
    with_type(path, "blk.0.ffn_down.weight", number)
    with pytest.raises(BadModelFile, match=f"ffn_down.weight has the type {name}") as error:
        gguf_directory.of_file(path, tmp_path / "small")
    assert not isinstance(error.value, DamagedModelFile)
    assert "Q4_K_M or Q8_0" in error.value.hint


def test_a_tensor_of_another_type_that_nothing_reads_blocks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write(path, tiny_llama(), tensors={"v.blk.0.w": np.zeros((32, 32), np.float32)})
    with_type(path, "v.blk.0.w", 42)
    Model.open(gguf_directory.of_file(path, tmp_path / "small")).checkpoint()


def test_the_names_of_types_are_those_of_the_reference_package() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert type_name(kind.value) == kind.name
    assert {type_name(number) for number in range(400)} >= BLOCK_TYPES.keys()


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({"general.architecture": "clip", "general.type": "mmproj"}, "vision or audio part"),
        ({"general.architecture": "clip"}, "vision or audio part"),
        ({"general.architecture": "imatrix"}, "importance matrix"),
        ({"general.type": "imatrix"}, "importance matrix"),
        ({"general.type": "vocab"}, "vocabulary without weights"),
    ],
)
def test_files_beside_a_model_are_named(
    tmp_path: Path, metadata: dict[str, Any], what: str
) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write(path, tiny_llama(), metadata=metadata)
    with pytest.raises(BadModelFile, match=what) as error:
        gguf_directory.of_file(path, tmp_path / "small")
    assert "choose the other .gguf file" in error.value.hint


def test_an_unknown_architecture_is_told_without_unlike_names(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tiny_gguf.write(path, tiny_llama(), metadata={"general.architecture": "newest"})
    with pytest.raises(BadModelFile, match="GGUF architecture 'newest'") as error:
        gguf_directory.of_file(path, tmp_path / "small")
    assert "a newer version may run" in error.value.hint and len(error.value.hint) < 150

"""Fault 48: an adapter, a soft prompt or a draft model belongs to another model.

Required: exit code 7 with the tensor and both shapes, before the model is loaded. A draft model has
no shape in common with its model but the vocabulary: exit code 2 with the first other token.

Provoked by: a LoRA adapter of a wider model and of a deeper one, a soft prompt and an EAGLE-3 head
of a wider model, and a draft model whose vocabulary has two tokens in the other order.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support import adapter_files, fake_engine, heads
from tests.support.program import Program, assert_error

Q = f"{adapter_files.PREFIX}model.layers.1.self_attn.q_proj"


@pytest.fixture
def program(tmp_path: Path) -> Program:
    config = {**adapter_files.CONFIG_JSON, "vocab_size": 258}
    folder = fake_engine.make_folder(tmp_path / "model", **config)
    return Program(folder)


def test_an_adapter_of_a_wider_model(program: Program, tmp_path: Path) -> None:
    tensors = adapter_files.peft_tensors()
    tensors[f"{Q}.lora_A.weight"] = np.zeros((3, 32), np.float32)
    adapter = adapter_files.write_peft(tmp_path / "adapter", tensors)
    done = program.run("-p", "x", "--lora", str(adapter))
    _, hint = assert_error(done, 7, f"{Q}.lora_A.weight", "expected [3, 16]", "found [3, 32]")
    assert "another base model" in hint


def test_an_adapter_of_a_deeper_model(program: Program, tmp_path: Path) -> None:
    tensors = adapter_files.peft_tensors()
    deeper = {name.replace("layers.1", "layers.9"): value for name, value in tensors.items()}
    adapter = adapter_files.write_peft(tmp_path / "adapter", deeper)
    done = program.run("-p", "x", "--lora", str(adapter))
    assert_error(done, 7, "model.layers.9", "2 layers")


def test_a_soft_prompt_of_a_wider_model(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "prompt"
    folder.mkdir()
    settings = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    file = folder / "adapter_model.safetensors"
    save_file({"prompt_embeddings": np.ones((4, 32), np.float32)}, file)
    done = program.run("-p", "x", "--soft-prompt", str(folder))
    assert_error(done, 7, "prompt_embeddings", "expected [4, 16]", "found [4, 32]")


def test_a_head_of_a_wider_model(program: Program, tmp_path: Path) -> None:
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    tensors = heads.eagle3_tensors()
    head = heads.write_eagle3(tmp_path / "head", tensors, vocab_size=258, **layers)
    done = program.run("-p", "x", "--draft", str(head))
    _, hint = assert_error(done, 7, "tensor fc.weight", "expected [48, 48], found [48, 144]")
    assert "another base model" in hint


def test_a_draft_model_of_another_vocabulary(program: Program, tmp_path: Path) -> None:
    draft = fake_engine.make_folder(tmp_path / "draft")
    file = draft / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    file.write_text(json.dumps(tokenizer))
    done = program.run("-p", "x", "--draft", str(draft))
    _, hint = assert_error(done, 2, "another vocabulary", "token 97 is 'b', not 'a'")
    assert "same family" in hint

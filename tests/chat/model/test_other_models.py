"""Adapters, soft prompts and heads of another model are refused before the model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support import adapter_files, fake_engine, heads
from tests.support.in_process import Program, failure

Q = f"{adapter_files.PREFIX}model.layers.1.self_attn.q_proj"


def wider_adapter(folder: Path) -> Path:
    tensors = adapter_files.peft_tensors()
    tensors[f"{Q}.lora_A.weight"] = np.zeros((3, 32), np.float32)
    return adapter_files.write_peft(folder, tensors)


def wider_soft_prompt(folder: Path) -> Path:
    folder.mkdir()
    settings = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 4}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    tensors = {"prompt_embeddings": np.ones((4, 32), np.float32)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def wider_head(folder: Path) -> Path:
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return heads.write_eagle3(folder, heads.eagle3_tensors(), vocab_size=258, **layers)


@pytest.mark.fault(48)
@pytest.mark.parametrize(
    ("option", "write", "message"),
    [
        ("--lora", wider_adapter, f"{Q}.lora_A.weight: expected [3, 16], found [3, 32]"),
        ("--soft-prompt", wider_soft_prompt, "prompt_embeddings: expected [4, 16], found [4, 32]"),
        ("--draft", wider_head, "tensor fc.weight: expected [48, 48], found [48, 144]"),
    ],
)
def test_files_of_a_wider_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    write: Callable[[Path], Path],
    message: str,
) -> None:
    config = {**adapter_files.CONFIG_JSON, "vocab_size": 258}
    program = Program(fake_engine.make_folder(tmp_path / "model", **config), monkeypatch)
    error = failure(program, "-p", "x", option, str(write(tmp_path / "other")))
    assert error.exit_code == 7 and message in error.message
    assert program.engine.num_starts == 0

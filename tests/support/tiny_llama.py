"""A tiny Llama of transformers and its logits; helpers for model folders."""

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.support.gguf import tiny as tiny_gguf


def tiny_llama(**changes: Any) -> transformers.LlamaForCausalLM:
    """Return a random Llama; `changes` replace fields of its config."""
    sizes = {
        "vocab_size": len(tiny_gguf.TOKENS),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.2,
    }
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.1)
    return model


def logits(model: transformers.LlamaForCausalLM) -> torch.Tensor:
    ids = torch.arange(3, 90, dtype=torch.long)[None]
    with torch.inference_mode():
        return model(ids).logits


def loaded(folder: Path) -> transformers.LlamaForCausalLM:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def entry_names(folder: Path) -> list[str]:
    """Return the sorted names of the files and folders in `folder`."""
    return sorted(entry.name for entry in folder.iterdir())

"""The page docs/models.md: tables of architectures and file layouts, made from the tests.

`python -m tests.support.models_table` writes the page.
"""

import tempfile
from pathlib import Path

import torch

from swiftchat.engine.model.cuda_ops import kernels_cover
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.coverage import BY_ARCHITECTURE, BY_LAYOUT, parameters

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_HEAD = """# Models

Each architecture is a table entry in `weights/architectures/`, one file for each group of models
(`llama.py`, `qwen.py`, `gemma.py`, …), and one decoder runs them all. For every architecture
`tests/engine/model/test_architectures.py` and `tests/engine/model/test_decoder.py` compare logits
with those of transformers in fp32 on the CPU: prefill in chunks, token by token, with history, and
in a batch. The largest accepted difference is 1e-4 of the largest logit. ChatGLM-6B is not part of
transformers; its tests compare with an fp64 reference.

The columns for file formats and for parallelism list the devices on which tests run the
architecture that way (`tests/support/coverage.py` reads this from the parameters of the tests); GPU
tests need a GPU. A device that is missing in a column runs the same code without a test,
because `convert` writes the same safetensors for every source.

In the last column, "kernels" are the CUDA kernels in `cuda/`, and "torch" means the operators of
torch on the GPU. "partly": some models of the architecture need features without a kernel.

GGUF files can have the architectures in `weights/gguf/architectures.py`; llama.cpp's converter
does not support GPT-J and OPT. `tests/weights/gguf/test_architectures.py` writes each of them as
llama.cpp does and compares config, tensors and logits after the conversion. In GGUF files, Mistral
and InternLM2 are Llama, ChatGLM2 and ChatGLM3 are GLM, and Mixtral is `llama` with experts.

"""
_LAYOUTS = """
Tests write one Llama and one GPT-2 in each of these layouts and convert them. The tensors must be
equal bit for bit, and so must the engine's logits. A quantized layout must give the logits of its
dequantized weights.

"""
_TAIL = """
Differences from other programs:

- **LongRoPE** (Phi-3, Phi-4) has one set of divisors for contexts up to the original length and one
  for longer contexts. The engine chooses by its context size (`--ctx-size`), not by the length of
  the text, because the angles of cached keys are fixed.
- **Dynamic NTK scaling** has no effect up to `max_position_embeddings`, which is the longest
  supported context.
- **Gemma 1** always uses the approximate GELU that it was trained with, even if its file says
  "gelu".
- **Falcon's ALiBi** (falcon-rw) is computed in fp32 from the distance. Transformers rounds the
  bias of each key to bf16.
- **GPT-OSS** is published with experts in MXFP4: `swiftchat convert` dequantizes them.
- **GGUF** lacks some fields of `config.json`: the windows of StarCoder2 and Mistral, the context
  of Falcon (2048), and the scale of Gemma's attention scores (recognized by the number of layers).
  The conversion uses llama.cpp's values for them.
- A key of `config.json` that changes the computation and that the architecture does not read
  raises an error that names the key (`weights/architectures/unsupported_keys.py`).
- **ChatGLM-6B** attends to its prompt in both directions, so the prompt is computed in one step.
  The prefix cache is used only for the same prompt, not for a longer conversation.

Not supported: the vision models of Gemma 3, multi-head latent attention.
"""


def page() -> str:
    """Return the content of the page."""
    architectures: dict[str, str] = {}
    covered: dict[str, set[bool]] = {name: set() for name in ARCHITECTURES}
    with tempfile.TemporaryDirectory() as folder:
        for variant in [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED]:
            tiny.make(variant, Path(folder))
            config = Model.open(Path(folder)).config
            architectures[variant] = config.architecture
            covered[config.architecture].add(kernels_cover(config, torch.bfloat16))
    words = {frozenset({True}): "kernels", frozenset({False}): "torch"}
    rows = []
    for class_name, architecture in ARCHITECTURES.items():
        by_source = [
            _devices(
                {d: any(architectures[v] == class_name for v in vs) for d, vs in tests.items()}
            )
            for tests in BY_ARCHITECTURE.values()
        ]
        gpu = words.get(frozenset(covered[class_name]), "partly kernels")
        rows.append([architecture.name, f"`{class_name}`", *by_source, gpu])
    table = _table(["name", "architecture", *BY_ARCHITECTURE, "on a GPU by"], rows)
    layouts = [
        [model, name, _devices({d: name in parameters(test) for d, test in tests.items()})]
        for model, tests in BY_LAYOUT.items()
        for name in parameters(tests["CPU"])
    ]
    return _HEAD + table + _LAYOUTS + _table(["model", "layout", "tested on"], layouts) + _TAIL


def _devices(tested: dict[str, bool]) -> str:
    return ", ".join(device for device, is_tested in tested.items() if is_tested) or "—"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

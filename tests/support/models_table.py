"""The tables of docs/models.md, out of the families and of what the tests do with them.

Run as a program, it writes the page anew: `python -m tests.support.models_table`.
"""

import tempfile
from pathlib import Path

import torch

from swiftchat.engine.model.cuda_ops import kernels_cover
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.proofs import BY_FAMILY, BY_LAYOUT, parameters

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_HEAD = """# Models

Each family is a table entry (`weights/architectures/llama_like.py`, `weights/architectures/moe.py`,
`weights/architectures/gpt_like.py`) read by one decoder. For every one of them
`tests/engine/model/test_architectures.py` and `tests/engine/model/test_decoder.py` compare logits
with transformers' in fp32, on the CPU: by prefill in chunks, token by token, with history and in a
batch, at most 1e-4 of the largest apart. ChatGLM-6B, which transformers does not have, is compared
with a reference of its own in fp64.

Under a kind of file, and under ways to divide a model, stand the devices on which tests run the
family so (`tests/proofs.py` reads that from the tests' parameters); GPU tests run where there is
one. On a device that is not named the same code runs untested: what `convert` writes are
safetensors, whatever they came from.

"kernels" are those of `cuda/`; "torch" means torch's operators, on the GPU too. "partly": some
models of the family need what the kernels do not do, such as windows in only some layers.

GGUF files are read of the architectures in `weights/gguf/architectures.py`; of GPT-J and OPT
llama.cpp's converter writes none. `tests/weights/gguf/test_architectures.py` writes each as that
does and compares facts, tensors and logits of what comes out; Mistral becomes Llama there,
InternLM2 too, ChatGLM2 and 3 become GLM, and Mixtral is `llama` with experts.

"""
_LAYOUTS = """
One Llama and one GPT-2, written in each of these layouts and converted, give the tensors bit for
bit and the engine's logits. The quantized ones compute what their decoded weights compute.

"""
_TAIL = """
What differs from other programs:

- **LongRoPE** (Phi-3, Phi-4) has one set of divisors for contexts up to the original one and one
  for longer ones. The context the engine is started with (`--ctx-size`) decides, not the length
  of the text, because keys that are cached cannot change their angles.
- **Dynamic NTK scaling** changes nothing up to `max_position_embeddings`, which is the longest
  context there is.
- **Gemma 1** always takes the approximate GELU it was trained with, also where its file says
  "gelu".
- **Falcon's ALiBi** (falcon-rw) is computed in fp32 from the distance. Transformers rounds each
  key's share to bf16, by its place in the text.
- **GPT-OSS** as published has experts in MXFP4: `swiftchat convert` makes a plain model of it.
- **GGUF** does not say all that `config.json` did: windows of StarCoder2 and Mistral, the
  context of Falcon (2048), the number Gemma's scores are divided by (known by the layers of the
  published models). What llama.cpp assumes then is assumed here.
- A key of `config.json` that changes the mathematics and that the family does not read is
  refused by name (`weights/architectures/unsupported_keys.py`).
- **ChatGLM-6B** reads its prompt in both directions, all of it in one go. Nothing of it is
  reused when the conversation grows; only the same prompt is found in the cache.

Not supported: the vision models of Gemma 3, multi-head latent attention.
"""


def page() -> str:
    """The whole page."""
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
    for architecture, family in ARCHITECTURES.items():
        by_source = [
            _devices(
                {d: any(architectures[v] == architecture for v in vs) for d, vs in tests.items()}
            )
            for tests in BY_FAMILY.values()
        ]
        gpu = words.get(frozenset(covered[architecture]), "partly kernels")
        rows.append([family.name, f"`{architecture}`", *by_source, gpu])
    families = _table(["family", "architecture", *BY_FAMILY, "on a GPU by"], rows)
    layouts = [
        [model, name, _devices({d: name in parameters(test) for d, test in tests.items()})]
        for model, tests in BY_LAYOUT.items()
        for name in parameters(tests["CPU"])
    ]
    return _HEAD + families + _LAYOUTS + _table(["model", "layout", "tested on"], layouts) + _TAIL


def _devices(tested: dict[str, bool]) -> str:
    return ", ".join(device for device, is_tested in tested.items() if is_tested) or "—"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

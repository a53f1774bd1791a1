"""The page docs/models.md: tables of architectures and file layouts, made from the tests.

`python -m tests.support.models_table` writes the page.
"""

import dataclasses
import importlib.metadata
import tempfile
import textwrap
from pathlib import Path

import gguf
import torch
import transformers

from swiftchat.engine.cpu.recorder import CannotRecordError
from swiftchat.engine.gpu.coverage import kernels_cover
from swiftchat.weights.architectures.multimodal import MULTIMODAL
from swiftchat.weights.architectures.parts.model import ModelConfig
from swiftchat.weights.architectures.registry import ARCHITECTURES
from swiftchat.weights.gguf.architectures import GGUF_ARCHITECTURES
from swiftchat.weights.model.directory import Model
from tests.support import tiny
from tests.support.changed_configs import changed
from tests.support.coverage import BY_ARCHITECTURE, BY_LAYOUT, parameters
from tests.support.reference import (
    CAUSAL_TYPES,
    MODEL_TYPES,
    ONLY_MULTIMODAL,
    SWEPT_TYPES,
    copy_reference,
)

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
_HEAD = """# Models

Each architecture is a table entry in `weights/architectures/families/`, one file for each vendor
(`meta.py`, `qwen.py`, `deepseek.py`, …), and one decoder runs them all. For every architecture
`tests/engine/model/test_architectures.py`, `test_decoder.py` and `test_sweep.py` there compare
logits with those of transformers in fp32 on the CPU: prefill in chunks, with a cached prefix, and a
single token behind it. The largest accepted difference is 1e-4 of the largest logit. ChatGLM-6B is
not part of transformers; its tests compare with an fp64 reference.
`tests/engine/model/test_every_architecture.py` shows each model and plans its memory for
`--tp auto`. What does not depend on the architecture is tested with one of each mechanism or of
each kind of tensors: all positions token by token, batches, speculation, bfloat16, conversion,
quantization, `.bin` files, and division among ranks.

The columns for file formats and for parallelism list the devices on which tests run the
architecture that way (`tests/support/coverage.py` reads this from the parameters of the tests); GPU
tests need a GPU. A device that is missing in a column runs the same code without a test of that
architecture; `convert` writes the same safetensors for every source.

In the last two columns, "kernels" are the native CPU kernels in `engine/cpu/` and the CUDA kernels
in `cuda/`, and "torch" means the operators of torch. "partly": some models of the architecture need
features without a kernel. Mixtures of experts whose router has no CUDA kernel choose experts by
torch's operators and compute the rest by kernels.

COUNTS
`tests/engine/model/test_sweep.py` checks one configuration of each; `python -m tests.sweep`
compares variants of every key of `config.json` with transformers.

GGUF files can have the architectures in `weights/gguf/architectures.py`; llama.cpp's converter
does not support GPT-J and OPT. `tests/weights/gguf/test_architectures.py` writes each of them as
llama.cpp does and compares config, tensors and logits after the conversion. In GGUF files, Mistral
and InternLM2 are Llama, ChatGLM2 and ChatGLM3 are GLM, Mixtral is `llama` with experts, and the
language models of Qwen-VL are Qwen2 and Qwen3. EXAONE 3 becomes a Llama, MiniCPM a Granite, and
Ling 2.0 (`bailingmoe2`) a GLM-4.5.

GGUF_NAMES

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
- **Falcon's ALiBi** (falcon-rw) is computed in fp32 from the distance. Transformers rounds the
  bias of each key to bf16.
- **DBRX** has its `rope_theta` in `attn_config`, as the published model (500,000). Transformers 5
  reads `rope_parameters` alone and takes 10,000 without them.
- **GPT-OSS** is published with experts in MXFP4, also in GGUF files. They stay packed, in 4.25 bits
  a weight, also on several ranks. On GPUs those of `down` are dequantized if ranks divide a group
  of 32 columns, as four ranks do.
- **Latent attention** on a GPU: kernels compute decode steps in 16 bits; torch's operators compute
  prompts.
- **Qwen3-Next** has the projections of its linear layers in two tensors in GGUF files. If these
  have different types, they are dequantized when they are read and take the memory of 16-bit
  weights.
- **GGUF** lacks some fields of `config.json`: the windows of StarCoder2 and Mistral, the context
  of Falcon (2048), chunks and temperature of Llama 4, and the scale of Gemma's attention scores
  (recognized by the number of layers). The conversion uses llama.cpp's values for them.
- A key of `config.json` that changes the computation in transformers and that this program does
  not support raises an error that names the key. A key that transformers ignores for this
  architecture is ignored here too, with a line that names it at the start of a chat and in
  `swiftchat show` (`weights/architectures/unsupported_keys.py`).
- **Nemotron-H** has a least step of its Mamba-2 layers (`time_step_min`). Transformers applies it
  to prompts but not to decode steps; here it applies to both, so that caching changes nothing.
- **DBRX** has the base of its rotation in `attn_config`, as its published code reads it;
  transformers ignores it there and takes 10,000.
- **MiniCPM**, **EXAONE 3** and **Ling 2.0** are published with code of their own, and transformers
  has no class for them. Their tests compare with Granite, Llama and GLM-4.5 of the same weights.
  The sparse attention of MiniCPM 4 to long contexts is computed as full attention.
- **Aya Vision**, **Command A Vision** and **Granite Speech**: logits are scaled as those of the
  language models inside. The classes of transformers leave that out, which changes sampling, but
  no greedy answer.
- **ChatGLM-6B** attends to its prompt in both directions, so the prompt is computed in one step.
  The prefix cache is used only for the same prompt, not for a longer conversation.

The language models inside these classes run as well; their vision and audio tensors are skipped,
with a line that says so:MULTIMODAL_CLASSES.
`convert` writes the language model alone. That of Qwen3-VL with experts gets a class name,
`Qwen3VLMoeTextForCausalLM`, which transformers does not have; its experts are read as they are
published ([experts, columns, rows]), not as transformers 5 saves them.

Not supported: vision and audio, and mixers with a state other than short convolutions, gated
DeltaNet, Kimi Delta Attention, lightning attention, Mamba and Mamba-2: RWKV, RG-LRU, xLSTM.

These families ran in earlier versions and are refused now. No published chat model of theirs is in
use, and each was the only one with a part of its own in the engine:

| family | what only it had |
| --- | --- |
| OpenAI GPT (2018), BioGPT, GPT-Neo, GPT-BigCode (StarCoder 1) | earlier forms of GPT-2 and OPT |
| CodeGen | queries, values and keys in quarters of the heads |
| XGLM, CTRL | sinusoidal position embeddings |
| RWKV-4 | time mixing and channel mixing |
| RecurrentGemma | RG-LRU |
| Zamba, Zamba2 | blocks of attention and MLP that layers share, Mamba with several heads |
| Doge | biases of keys, a stream with weights |
"""


def _is_covered(config: ModelConfig) -> bool:
    """Return whether kernels compute the architecture; latents have sizes of published models."""
    if config.attention.latent is not None:
        sizes = dataclasses.replace(config.attention.latent, kv_rank=512, nope_dim=128, rope_dim=64)
        config = changed(config, attention={"latent": sizes, "head_dim": sizes.head_dim})
    return kernels_cover(config, torch.bfloat16)


def page() -> str:
    """Return the content of the page."""
    architectures: dict[str, str] = {}
    covered: dict[str, set[bool]] = {name: set() for name in ARCHITECTURES}
    native: dict[str, set[bool]] = {name: set() for name in ARCHITECTURES}
    with tempfile.TemporaryDirectory() as folder:
        for variant in [*tiny.VARIANTS, *tiny.FAMILIES, *tiny.REPACKED]:
            tiny.make(variant, Path(folder))
            config = Model.open(Path(folder)).config
            architectures[variant] = config.architecture
            covered[config.architecture].add(_is_covered(config))
            native[config.architecture].add(_is_native(Path(folder)))
        for model_type in (*SWEPT_TYPES, *ONLY_MULTIMODAL):
            copy_reference(model_type, Path(folder))
            config = Model.open(Path(folder)).config
            architectures[model_type] = config.architecture
            covered[config.architecture].add(_is_covered(config))
            native[config.architecture].add(_is_native(Path(folder)))
    words = {frozenset({True}): "kernels", frozenset({False}): "torch"}
    rows = []
    for class_name, architecture in ARCHITECTURES.items():
        by_source = [
            _devices(
                {
                    d: any((architectures.get(v) or MODEL_TYPES[v]) == class_name for v in vs)
                    for d, vs in tests.items()
                }
            )
            for tests in BY_ARCHITECTURE.values()
        ]
        gpu = words.get(frozenset(covered[class_name]), "partly kernels")
        cpu = words.get(frozenset(native[class_name]), "partly kernels")
        rows.append([architecture.name, f"`{class_name}`", *by_source, cpu, gpu])
    table = _table(["name", "architecture", *BY_ARCHITECTURE, "on a CPU by", "on a GPU by"], rows)
    layouts = [
        [model, name, _devices({d: name in parameters(test) for d, test in tests.items()})]
        for model, tests in BY_LAYOUT.items()
        for name in parameters(tests["CPU"])
    ]
    classes = textwrap.fill(", ".join(f"`{name}`" for name in MULTIMODAL), 100)
    tail = _TAIL.replace("MULTIMODAL_CLASSES", f"\n{classes}")
    known = {*ARCHITECTURES, *MULTIMODAL}
    equal = [each for each in CAUSAL_TYPES if MODEL_TYPES[each] in known]
    version, count = transformers.__version__, len(CAUSAL_TYPES)
    counts = (
        f"Of the {count} model types that transformers {version} lists as causal language models,\n"
        f"{len(equal)} run with the same logits; the others are refused."
    )
    head = _HEAD.replace("COUNTS", counts).replace("GGUF_NAMES", _gguf_names())
    return head + table + _LAYOUTS + _table(["model", "layout", "tested on"], layouts) + tail


def _gguf_names() -> str:
    """Return which architecture names of llama.cpp's `gguf` package run and which are refused."""
    known = [name for name in gguf.MODEL_ARCH_NAMES.values() if name != "clip"]
    run = [name for name in known if name in GGUF_ARCHITECTURES]
    refused = [name for name in known if name not in GGUF_ARCHITECTURES]
    later = sorted(GGUF_ARCHITECTURES.keys() - {*known})
    version = importlib.metadata.version("gguf")
    texts = [
        f"Of the {len(known)} names of models in llama.cpp's `gguf` {version}, {len(run)} run: "
        + ", ".join(f"`{name}`" for name in run),
        "Names of later versions that run: " + ", ".join(f"`{name}`" for name in later),
        "The others are refused; among them are encoders and diffusion models, which do not chat: "
        + ", ".join(f"`{name}`" for name in refused),
    ]
    return "\n\n".join(textwrap.fill(f"{text}.", 100, break_on_hyphens=False) for text in texts)


def _is_native(folder: Path) -> bool:
    try:
        tiny.Bench(folder, native=True)
    except CannotRecordError:
        return False
    return True


def _devices(tested: dict[str, bool]) -> str:
    return ", ".join(device for device, is_tested in tested.items() if is_tested) or "—"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

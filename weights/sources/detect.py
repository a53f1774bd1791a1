"""Detection of a source's kind by its files."""

from pathlib import Path

from swiftchat.weights.files.reading import read_json
from swiftchat.weights.gguf.source import gguf_file_of
from swiftchat.weights.sources import gguf, huggingface, llama_original, megatron, openai_gpt2
from swiftchat.weights.sources.megatron_checkpoint import is_megatron
from swiftchat.weights.sources.plan import GENERATION_CONFIG, Plan


def plan_conversion(source: Path, dtype: str | None) -> Plan:
    """Plan the conversion of `source` to `dtype`; None: the source's own dtype.

    `source` is a GGUF file (the first, if it is split), a Hugging Face directory, also one whose
    weights are in a GGUF file, Meta's (`params.json`, `consolidated.*.pth`), Megatron-LM's
    (`mp_rank_*` below) or OpenAI's of GPT-2 (`hparams.json`, `model.ckpt.*`). Raises
    `BadModelFile` if headers, configs or tensor tables are invalid.
    """
    if source.is_file():
        return gguf.plan(source, dtype)
    if (gguf_file := gguf_file_of(source)) is not None:
        defaults = read_json(source / GENERATION_CONFIG)
        return gguf.plan(gguf_file, dtype).with_generation_defaults(defaults)
    if not (source / "config.json").is_file():
        if llama_original.is_meta(source):
            return llama_original.plan(source, dtype)
        if is_megatron(source):
            return megatron.plan(source, dtype)
        if openai_gpt2.is_openai_gpt2(source):
            return openai_gpt2.plan(source, dtype)
    return huggingface.plan(source, dtype)

"""The file layouts in which tests write one Llama and one GPT-2."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import transformers

from tests.support import llama_layouts, tensorflow_files
from tests.support.gguf import tiny as tiny_gguf
from tests.support.gpt2_layouts import write_megatron_gpt2

# Writes a model to a new folder and returns the path for `convert`.
Write = Callable[[Path, Any], Path]


def write_gguf(folder: Path, model: transformers.LlamaForCausalLM) -> Path:
    folder.mkdir()
    tiny_gguf.write(folder / "tiny.gguf", model)
    return folder / "tiny.gguf"


def write_split(folder: Path, model: transformers.LlamaForCausalLM, **changes: Any) -> Path:
    return llama_layouts.split_gguf(write_gguf(folder, model), 3, **changes)


def into_folder(write: Callable[..., None], **options: Any) -> Write:
    def write_to(folder: Path, model: transformers.PreTrainedModel) -> Path:
        write(folder, model, **options)
        return folder

    return write_to


def _safetensors(folder: Path, model: transformers.PreTrainedModel) -> None:
    model.save_pretrained(folder)


def _sharded(folder: Path, model: transformers.PreTrainedModel) -> None:
    model.save_pretrained(folder, max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists()


LLAMA: dict[str, Write] = {
    "safetensors": into_folder(_safetensors),
    "sharded safetensors": into_folder(_sharded),
    "bin": into_folder(llama_layouts.write_bin),
    "bin from before torch 1.6": into_folder(llama_layouts.write_bin, zipped=False),
    "sharded bin": into_folder(llama_layouts.write_bin, shards=3),
    "meta": into_folder(llama_layouts.write_meta),
    "meta, 2 parts": into_folder(llama_layouts.write_meta, parts=2),
    "meta, 2 parts, embeddings by rows": into_folder(
        llama_layouts.write_meta, parts=2, embed_rows=True
    ),
    "meta, 4 parts": into_folder(llama_layouts.write_meta, parts=4),
    "megatron core": into_folder(llama_layouts.write_megatron),
    "megatron core, tp 2, pp 2": into_folder(llama_layouts.write_megatron, tp=2, pp=2),
    "megatron older, tp 2, pp 2": into_folder(llama_layouts.write_megatron, tp=2, pp=2, core=False),
    "megatron, padded": into_folder(llama_layouts.write_megatron, tp=4, padded_vocab=224),
    "gguf": write_gguf,
    "split gguf": write_split,
}
_megatron = partial(into_folder, write_megatron_gpt2)
GPT2: dict[str, Write] = {
    "safetensors": into_folder(_safetensors),
    "tensorflow": into_folder(tensorflow_files.write_openai_gpt2),
    "tensorflow, 3 files": into_folder(tensorflow_files.write_openai_gpt2, files=3),
    "megatron": _megatron(),
    "megatron, no version, tp 2": _megatron(tp=2, version=None),
    "megatron, version 0, tp 4, padded": _megatron(tp=4, version=0, padded_vocab=224),
    "megatron, version 1, tp 2": _megatron(tp=2, version=1.0),
    "megatron, version 2, tp 2, pp 2": _megatron(tp=2, pp=2, version=2.0),
    "megatron, version 3, tp 4, pp 4": _megatron(tp=4, pp=4, version=3.0),
    "megatron core, tp 2, pp 2, padded": _megatron(tp=2, pp=2, core=True, padded_vocab=128),
}

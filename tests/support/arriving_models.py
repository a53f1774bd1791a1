"""Models in several weight files for a fake hub, and what they are when they are quantized."""

from pathlib import Path
from typing import TYPE_CHECKING

from swiftchat.weights.convert.convert import convert
from swiftchat.weights.quantization.quantize import QuantizationSpec

if TYPE_CHECKING:
    import transformers

SCHEMES = {"4bit": "int4", "8bit": "int8"}


def repository_files(
    folder: Path, model: "transformers.LlamaForCausalLM", shard_size: str = "60KB"
) -> dict[str, bytes]:
    """Return the files of a model in bfloat16 by name; `folder` must be new."""
    model.bfloat16().save_pretrained(folder, max_shard_size=shard_size)
    found = {file.name: file.read_bytes() for file in folder.iterdir()}
    return {**found, "README.md": b"# Model"}


def converted(files: dict[str, bytes], folder: Path, form: str) -> dict[str, bytes]:
    """Return the files that `convert --quantize` makes of a downloaded repository."""
    source = folder / "downloaded"
    source.mkdir(parents=True)
    for name, content in files.items():
        (source / name).write_bytes(content)
    convert(source, folder / "converted", quantization=QuantizationSpec(SCHEMES[form]))
    return content_of(folder / "converted")


def content_of(folder: Path) -> dict[str, bytes]:
    """Return the files in a folder and below it, by name."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }

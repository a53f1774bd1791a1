"""Calibration for `convert --calibrate`: collect input statistics of a model's matrices.

The model reads `calibration.txt`: the beginnings of Alice's Adventures in Wonderland (Carroll,
1865), The Adventures of Sherlock Holmes (Doyle, 1892), Jane Eyre (Brontë, 1847), The Chemical
History of a Candle (Faraday, 1861) and of a chapter of On the Origin of Species (Darwin, 1859), all
in the public domain, some conversation, and pages of this program's description and code. With
prose alone, GPTQ was no better on other text than rounding to nearest.
"""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.errors import DeviceError, UsageError
from swiftchat.errors.interpreter import child_folder, python_module

if TYPE_CHECKING:
    import numpy.typing as npt

    from swiftchat.weights.files.disk import Progress

_TEXT = Path(__file__).with_name("calibration.txt")
# Canonical names of a layer's matrices that have the same input, by the name of the input.
_READERS = {
    "qkv": ("qkv", "q", "k"),
    "v": ("v",),
    "o": ("o",),
    "gate_up": ("gate_up", "gate", "up"),
    "down": ("down",),
}


@contextmanager
def input_statistics(
    source: Path, num_axes: int, progress: "Progress"
) -> Iterator[Callable[[str], "npt.NDArray[Any]"]]:
    """Yield a function from a tensor name to the statistics of its inputs.

    Statistics (computed by `engine.calibrate`): second moments [columns, columns] for `num_axes`
    2, largest magnitudes [columns] for 1. They are deleted when the context ends.

    `source` is a model directory or a GGUF file; the model runs on the CPU. Raises `UsageError`
    for other sources and MoE models, `FileSystemError` if the statistics do not fit into the
    folder for temporary files, `DeviceError` if the computing process fails.
    """
    import numpy as np

    from swiftchat.tokenizer import Tokenizer
    from swiftchat.weights.architectures.tensors import (
        canonical_tensors,
        expected_tensors,
        tensor_name,
    )
    from swiftchat.weights.files import disk
    from swiftchat.weights.model.directory import Model
    from swiftchat.weights.store import default_store

    path = default_store().resolve(str(source), progress) if source.is_file() else source
    if not (path / "config.json").is_file():
        raise UsageError(
            f"{source} must be converted before it can be calibrated",
            "convert it without --quantize first, then convert the result",
        )
    config = Model.open(path).config
    if config.moe is not None:
        raise UsageError("calibration does not support MoE models", "leave out --calibrate")
    uneven = not config.has_even_layers or any(each.values.are_keys for each in config.attentions)
    if config.mixer is not None or config.attention.latent is not None or uneven:
        raise UsageError(
            f"calibration does not support {config.architecture}", "leave out --calibrate"
        )
    readers = {name: field for field, names in _READERS.items() for name in names}
    files = {
        tensor_name(config, canonical, layer, part): f"{layer}-{readers[canonical]}.npy"
        for canonical, layer, part in canonical_tensors(config)
        if canonical in readers
    }
    with tempfile.TemporaryDirectory(prefix="swiftchat-") as folder:
        shapes = expected_tensors(config)
        columns = {file: shapes[name][1] for name, file in files.items()}
        disk.require_space(Path(folder), sum(4 * count**num_axes for count in columns.values()))
        ids = Tokenizer.load(path).encode(_TEXT.read_text(encoding="utf-8"))
        _run_model(
            {"model": str(path.resolve()), "ids": ids, "folder": folder, "num_axes": num_axes},
            progress,
        )
        yield lambda name: np.load(Path(folder) / files[name])


def _run_model(request: dict[str, Any], progress: "Progress") -> None:
    """Run `swiftchat.engine.calibrate` in a process that may import torch."""
    command = python_module("swiftchat.engine.calibrate")
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            command,
            cwd=child_folder(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        try:
            json.dump(request, child.stdin)
            child.stdin.close()
            for line in child.stdout:
                done, total = map(int, line.split())
                progress("calibrating", done, total)
        except BaseException:
            child.kill()
            raise
        if child.wait() != 0:
            stderr.seek(0)
            last_line = stderr.read().decode(errors="replace").strip().splitlines()[-1:]
            raise DeviceError(f"calibration ended with {child.returncode}: {''.join(last_line)}")

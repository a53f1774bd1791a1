"""What the matrices of a model get to see in a text, so that `convert` rounds them for that.

The text, `calibration.txt`, is the beginnings of Alice's Adventures in Wonderland (Carroll, 1865),
The Adventures of Sherlock Holmes (Doyle, 1892), Jane Eyre (Brontë, 1847), The Chemical History of
a Candle (Faraday, 1861) and of a chapter of On the Origin of Species (Darwin, 1859), which belong
to everybody, some conversation, and pages of this program's description and code: what is
calibrated with prose alone is no better than the nearest numbers for anything else.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swiftchat.errors import DeviceError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    from swiftchat.weights.files.disk import Progress

_TEXT = Path(__file__).with_name("calibration.txt")
# Of a layer the matrices that read the same numbers, by the name of what they read.
_READERS = {
    "qkv": ("qkv", "q", "k"),
    "v": ("v",),
    "o": ("o",),
    "gate_up": ("gate_up", "gate", "up"),
    "down": ("down",),
}


@contextmanager
def inputs_of(
    source: Path, num_axes: int, progress: "Progress"
) -> Iterator[Callable[[str], "npt.NDArray[Any]"]]:
    """For as long as the context lasts, a function from a tensor's name to what its inputs are.

    With two axes their second moment, with one how large each becomes (`engine.calibrate`).
    `source` is a model directory or a GGUF file; the model there reads the text on the CPU.
    Raises `UsageError` for other sources and mixtures of experts, `FileSystemError` when the
    moments find no room in the folder for temporary files, `DeviceError` when the process that
    computes ends badly.
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
            f"{source} is no model that can read a text as it is",
            "convert it without --quantize first, then convert the result",
        )
    config = Model.open(path).config
    if config.num_experts:
        raise UsageError("models with experts are not calibrated yet", "leave out --calibrate")
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
        _measure(
            {"model": str(path.resolve()), "ids": ids, "folder": folder, "num_axes": num_axes},
            progress,
        )
        yield lambda name: np.load(Path(folder) / files[name])


def _measure(request: dict[str, Any], progress: "Progress") -> None:
    """Have `swiftchat.engine.calibrate` read the text, in a process that may import torch."""
    command = [sys.executable, "-m", "swiftchat.engine.calibrate"]
    with (
        tempfile.TemporaryFile() as words,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True
        ) as child,
    ):
        assert child.stdin is not None and child.stdout is not None
        try:
            json.dump(request, child.stdin)
            child.stdin.close()
            for line in child.stdout:
                done, total = map(int, line.split())
                progress("reading a text", done, total)
        except BaseException:
            child.kill()
            raise
        if child.wait() != 0:
            words.seek(0)
            last = words.read().decode(errors="replace").strip().splitlines()[-1:]
            raise DeviceError(f"reading a text ended with {child.returncode}: {''.join(last)}")

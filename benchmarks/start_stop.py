"""Start and stop engines with several ranks; exit with status 1 if they leak anything.

Ends them in turn while loading, while answering, and when ready. Checks for remaining processes,
temporary files, shared memory, and file descriptors of this process.

    python benchmarks/start_stop.py --cycles 200 --tp 2 [--pp 2]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
}


def load(client: EngineClient) -> None:
    while client.progress is None:
        time.sleep(0.01)


def answer(client: EngineClient) -> None:
    client.wait_ready()
    next(iter(client.generate([5, 6, 7], SamplingParams())))


UNTIL: tuple[Callable[[EngineClient], object], ...] = (load, answer, EngineClient.wait_ready)


def cycle(config: EngineConfig, until: Callable[[EngineClient], object]) -> list[psutil.Process]:
    """Start an engine and end it; return its processes."""
    with EngineClient(config, Path()) as client:
        until(client)
        worker = psutil.Process(client.pid)
        return [worker, *worker.children(recursive=True)]


def ends(process: psutil.Process) -> bool:
    """Whether the process is gone, or a zombie, within 5 s."""
    deadline = time.monotonic() + 5
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def shared_memory() -> set[str]:
    """Names of this user's shared memory objects."""
    folder = Path("/dev/shm")
    return {file.name for file in folder.iterdir() if file.owner() == Path.home().owner()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    shared, leaked = shared_memory(), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = str(Path(folder) / "tmp")
        Path(os.environ["TMPDIR"]).mkdir()
        shape = Path(folder) / "config.json"
        shape.write_text(json.dumps(SHAPE))
        config = EngineConfig(
            device=args.device, dummy=str(shape), tp=args.tp, pp=args.pp, num_threads=1
        )
        cycle(config, load)  # opens the descriptors that this process opens only once
        opened = psutil.Process().num_fds()
        for number in range(args.cycles):
            processes = cycle(config, UNTIL[number % len(UNTIL)])
            leaked += [f"process {process}" for process in processes if not ends(process)]
        leaked += [f"file {file}" for file in Path(os.environ["TMPDIR"]).iterdir()]
        leaked += [f"{psutil.Process().num_fds() - opened} descriptors"] * (
            psutil.Process().num_fds() != opened
        )
    leaked += [f"shared memory {name}" for name in shared_memory() - shared]
    found = ", ".join(leaked) or "nothing"
    print(f"{args.cycles} cycles of {args.tp * args.pp} ranks, leaked: {found}")
    sys.exit(bool(leaked))


if __name__ == "__main__":
    main()

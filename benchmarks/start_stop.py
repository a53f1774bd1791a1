"""Starts and stops engines of several ranks, and tells what is left of them: exit status 1.

They are ended in turn while they load, when they are ready, and while they answer. Looks for
processes, temporary files, shared memory, and descriptors of this process.

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
    """Start an engine and end it; its processes."""
    with EngineClient(config, Path()) as client:
        until(client)
        worker = psutil.Process(client.pid)
        return [worker, *worker.children(recursive=True)]


def ends(process: psutil.Process) -> bool:
    """Whether it is gone within 5 s; it is also if nobody has asked for its exit status."""
    deadline = time.monotonic() + 5
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def shared_memory() -> set[str]:
    """The names of this user's shared memory."""
    folder = Path("/dev/shm")
    return {file.name for file in folder.iterdir() if file.owner() == Path.home().owner()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    shared, left = shared_memory(), []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = str(Path(folder) / "tmp")
        Path(os.environ["TMPDIR"]).mkdir()
        shape = Path(folder) / "config.json"
        shape.write_text(json.dumps(SHAPE))
        config = EngineConfig(
            device=args.device, dummy=str(shape), tp=args.tp, pp=args.pp, num_threads=1
        )
        cycle(config, load)  # so that what this process opens once is open
        opened = psutil.Process().num_fds()
        for number in range(args.cycles):
            processes = cycle(config, UNTIL[number % len(UNTIL)])
            left += [f"process {process}" for process in processes if not ends(process)]
        left += [f"file {file}" for file in Path(os.environ["TMPDIR"]).iterdir()]
        left += [f"{psutil.Process().num_fds() - opened} descriptors"] * (
            psutil.Process().num_fds() != opened
        )
    left += [f"shared memory {name}" for name in shared_memory() - shared]
    print(
        f"{args.cycles} cycles of {args.tp * args.pp} ranks, left: {', '.join(left) or 'nothing'}"
    )
    sys.exit(bool(left))


if __name__ == "__main__":
    main()

"""Run concurrent generations for hours on the CPU; exit with status 1 if anything is lost or wrong.

Clients send seeded requests that share prefixes (branches of conversations), with and without
adapters, and cancel some of them. KV caches are saved to the disk and restored from it; the engine
is restarted from time to time. At the end of every engine no block may be in use and its memory may
not have grown by more than 2 % after a warm-up. Every answer must equal the one computed alone, and
a canceled one its beginning: quantized weights on the native kernels give bitwise equal results in
any batch, and the last bits of attention, which depend on the chunk (docs/robustness.md), change no
answer of this model. With --weights float32 or bfloat16 the differences are only counted.

    nice python benchmarks/soak.py --minutes 480
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import save_file

from swiftchat.engine.api.client import EngineClient
from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.api.tuning import Tuning

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
ADAPTED = {"self_attn.q_proj": (128, 128), "mlp.down_proj": (128, 256)}  # [out, in]
NUM_REQUESTS = 64
MAX_GROWTH = 0.02
WARM_UP = 0.4  # the part of an engine's life before its memory is measured
CANCEL_FRACTION, SAVE_FRACTION = 0.25, 0.3
FREED_S = 60.0
SAMPLE_S = 1.0


@dataclass(frozen=True)
class Request:
    """A seeded prompt, with the adapter that its answer uses."""

    prompt: list[int]
    params: SamplingParams
    tuning: Tuning | None


class Soak:
    """One run: requests, their answers alone, and what was found.

    `counts` are the numbers of events, `problems` describes everything that must not happen.
    """

    def __init__(self, config: EngineConfig, folder: Path, is_exact: bool, seed: int) -> None:
        self.config, self.folder, self.is_exact = config, folder, is_exact
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.growths: list[float] = []
        self.requests = make_requests(self.random, [write_adapter(folder, n) for n in (1, 2)])
        with EngineClient(config, folder) as client:
            self.alone = [self._answer(client, request)[0] for request in self.requests]
        self._lock = threading.Lock()

    def run_engine(self, seconds: float, num_clients: int) -> None:
        """Start an engine, run clients for this time, and check what they leave."""
        with EngineClient(self.config, self.folder) as client:
            client.wait_ready()
            end = time.monotonic() + seconds
            threads = [
                threading.Thread(target=self._run_client, args=(client, end, self.random.random()))
                for _ in range(num_clients)
            ]
            for thread in threads:
                thread.start()
            samples, worker = [], psutil.Process(client.pid)
            while any(thread.is_alive() for thread in threads):
                samples.append(worker.memory_info().rss)
                time.sleep(SAMPLE_S)
            self._check_memory(samples)
            self._check_blocks(client)
        self.counts["engines"] += 1

    def _run_client(self, client: EngineClient, end: float, seed: float) -> None:
        chance = random.Random(seed)
        try:
            while time.monotonic() < end:
                index = chance.randrange(len(self.requests))
                request = self.requests[index]
                if chance.random() < SAVE_FRACTION:
                    params = replace(request.params, saves_cache=True)
                    request = replace(request, params=params)
                limit = chance.randrange(1, 24) if chance.random() < CANCEL_FRACTION else None
                ids, finished = self._answer(client, request, limit)
                self._compare(index, ids, finished)
        except Exception as error:  # noqa: BLE001  (whatever it is, it is reported)
            self.problems.append(f"a client failed: {error!r}")

    def _answer(
        self, client: EngineClient, request: Request, limit: int | None = None
    ) -> tuple[list[int], Finished]:
        """Return the ids of an answer; cancel it after `limit` of them."""
        generation = client.generate(request.prompt, request.params, tuning=request.tuning)
        ids: list[int] = []
        for event in generation:
            if isinstance(event, Tokens):
                ids += event.ids
                if limit is not None and len(ids) >= limit:
                    generation.cancel()
        assert isinstance(event, Finished)
        return ids, event

    def _compare(self, index: int, ids: Sequence[int], finished: Finished) -> None:
        alone = self.alone[index]
        is_canceled = finished.reason == "interrupt"
        with self._lock:
            self.counts["answers"] += 1
            self.counts["canceled"] += is_canceled
            self.counts["tokens"] += len(ids)
            self.counts["restored tokens"] += finished.restored_tokens
            self.counts["reused tokens"] += finished.cached_tokens
            if ids != (alone[: len(ids)] if is_canceled else alone):
                self.counts["different answers"] += 1
                if self.is_exact:
                    self.problems.append(f"request {index}: {ids} instead of {alone}")

    def _check_memory(self, samples: Sequence[int]) -> None:
        warm = samples[int(WARM_UP * len(samples)) :]
        third = max(1, len(warm) // 3)
        growth = statistics.median(warm[-third:]) / statistics.median(warm[:third]) - 1
        self.growths.append(growth)
        megabytes = statistics.median(warm[-third:]) / 1e6
        print(f"engine: {megabytes:.1f} MB, growth {growth:.2%}, {dict(self.counts)}", flush=True)
        if growth > MAX_GROWTH:
            self.problems.append(f"the worker's memory grew by {growth:.1%}")

    def _check_blocks(self, client: EngineClient) -> None:
        deadline = time.monotonic() + FREED_S
        while used := client.stats()["used_blocks"]:
            if time.monotonic() > deadline:
                self.problems.append(f"{used} blocks are still in use")
                return
            time.sleep(0.1)


def make_requests(chance: random.Random, adapters: Sequence[Path]) -> list[Request]:
    """Return requests whose prompts are paths of a few trees; a third of them are greedy."""
    trees = [[ids(chance, 150)] for _ in range(6)]
    for tree in trees:
        for _ in range(10):
            tree.append([*chance.choice(tree), *ids(chance, chance.randrange(5, 90))])
    tunings = [None, *(Tuning(((str(path), 1.0),)) for path in adapters)]
    requests = []
    for number in range(NUM_REQUESTS):
        params = SamplingParams(
            temperature=0 if number % 3 == 0 else 0.8, top_p=0.95, seed=number, max_tokens=24
        )
        prompt = chance.choice(chance.choice(trees))[-900:]
        requests.append(Request(prompt, params, chance.choice(tunings)))
    return requests


def ids(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(3, SHAPE["vocab_size"]) for _ in range(length)]


def write_adapter(folder: Path, seed: int) -> Path:
    """Write a random LoRA adapter in PEFT's format; return its directory."""
    generator, tensors = np.random.default_rng(seed), {}
    for layer in range(SHAPE["num_hidden_layers"]):
        for name, (num_out, num_in) in ADAPTED.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape in (("lora_A", (8, num_in)), ("lora_B", (num_out, 8))):
                values = 0.1 * generator.standard_normal(shape, np.float32)
                tensors[f"{module}.{part}.weight"] = values
    path = folder / f"adapter-{seed}"
    path.mkdir()
    save_file(tensors, path / "adapter_model.safetensors")
    modules = [name.rpartition(".")[2] for name in ADAPTED]
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": modules}
    (path / "adapter_config.json").write_text(json.dumps(settings))
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=480)
    parser.add_argument("--engine-minutes", type=float, default=5, help="the life of an engine")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--weights", choices=("int8", "int4", "float32", "bfloat16"), default="int8"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="swiftchat-soak-") as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        shape = folder / "config.json"
        shape.write_text(json.dumps(SHAPE))
        is_exact = options.weights.startswith("int")
        config = EngineConfig(
            device="cpu",
            dtype=None if is_exact else options.weights,
            dummy=f"{shape}:{options.weights}" if is_exact else str(shape),
            num_threads=1,
            block_size=16,
            cache_tokens=3072,
            cache_max_bytes=32 << 20,
        )
        soak = Soak(config, folder, is_exact, options.seed)
        end = time.monotonic() + 60 * options.minutes
        own = psutil.Process()
        soak.run_engine(min(60 * options.engine_minutes, 60 * options.minutes), options.clients)
        own_bytes = own.memory_info().rss
        while (left := end - time.monotonic()) > 0:
            soak.run_engine(min(60 * options.engine_minutes, left), options.clients)
        own_growth = own.memory_info().rss / own_bytes - 1
    print(f"worst growth of an engine {max(soak.growths):.2%}, of the client {own_growth:.2%}")
    print(", ".join(f"{name}: {count}" for name, count in soak.counts.items()))
    for problem in soak.problems:
        print(f"problem: {problem}")
    return int(bool(soak.problems))


if __name__ == "__main__":
    sys.exit(main())

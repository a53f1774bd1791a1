"""First token after resuming: KV blocks on the device, in main memory, on disk, or none.

    python benchmarks/resume.py [MODEL FOLDER | --shape NAME] [--device cpu] [--tokens 1024 …]

The prompt has random tokens. Files are read once from the disk (their pages are dropped before)
and once from the page cache. Reading is measured even where the engine would compute instead.
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from swiftchat.engine.api.params import EngineConfig, SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from swiftchat.engine.generation.build import build_engine
from swiftchat.engine.generation.engine import Engine
from swiftchat.engine.kv_store.block_copies import block_bytes
from swiftchat.engine.kv_store.block_store import BlockStore

PARAMS = SamplingParams(temperature=0, max_tokens=2, saves_cache=True)


def first_token(engine: Engine, prompt: list[int]) -> tuple[float, Finished]:
    """Return the seconds until the first token, and the end of the answer."""
    started, seconds, end = time.perf_counter(), 0.0, None
    engine.add(1, prompt, PARAMS)
    while engine.scheduler.has_work or end is None:
        for _, event in engine.step():
            if isinstance(event, Tokens) and not seconds:
                seconds = time.perf_counter() - started
            elif isinstance(event, Finished):
                end = event
    return seconds, end


def evict(engine: Engine) -> None:
    """Evict all cached blocks of the device."""
    allocator = engine.allocator
    allocator.release([allocator.allocate() for _ in range(allocator.num_blocks)])


def drop_pages(folder: Path) -> None:
    for file in folder.rglob("*.safetensors"):
        opened = os.open(file, os.O_RDONLY)
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


def without_host(engine: Engine) -> None:
    """Go on with the disk only."""
    engine.allocator.on_evict = None
    store = BlockStore(engine.allocator, block_bytes(engine.cache.tensors), None, engine.store.disk)
    engine.use_store(store)


def always_read(engine: Engine) -> None:
    engine.store.speeds.is_worth_reading = lambda *_: True


def row(what: str, num_tokens: int, times: list[float], end: Finished) -> None:
    median = statistics.median(times)
    print(
        f"{num_tokens:6} tokens  {what:22} {1e3 * median:9.1f} ms   cached {end.cached_tokens}, "
        f"from main memory {end.swapped_tokens}, from the disk {end.restored_tokens}",
        flush=True,
    )


def measure(engine: Engine, folder: Path, num_tokens: int, repeats: int) -> None:
    limit = engine.vocab_size
    generator = torch.Generator().manual_seed(num_tokens)
    prompt = torch.randint(3, limit, (num_tokens + 1,), generator=generator).tolist()

    def repeat(what: str, before, times: int = repeats) -> None:
        results = []
        for _ in range(times):
            before()
            results.append(first_token(engine, prompt))
        row(what, num_tokens, [seconds for seconds, _ in results], results[-1][1])

    always_read(engine)
    own = engine.store
    plain = BlockStore(engine.allocator)
    engine.use_store(plain)
    on_evict, engine.allocator.on_evict = engine.allocator.on_evict, None
    repeat("recomputed", lambda: evict(engine))
    engine.allocator.on_evict = on_evict
    engine.use_store(own)
    repeat("device", lambda: None)
    started = time.perf_counter()
    while engine.has_unsaved:
        engine.prepare()
    seconds = time.perf_counter() - started
    num_bytes = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    print(f"{num_tokens:6} tokens  saved in {seconds:.2f} s, {num_bytes / 1e9:.2f} GB in all")
    if engine.store.host is not None:
        repeat("main memory", lambda: evict(engine))
    without_host(engine)
    always_read(engine)

    def cold() -> None:
        evict(engine)
        drop_pages(folder)

    repeat("disk", cold, min(repeats, 3))
    repeat("disk, page cache", lambda: evict(engine))
    print(f"        speeds: {engine.store.speeds.reads}, prefill {own.speeds.prefill}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", type=Path, default=Path())
    parser.add_argument("--shape")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 4096, 7168])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    longest = max(options.tokens) + 64
    cubins = Path(tempfile.gettempdir(), "swiftchat-bench-cubins")
    for num_tokens in options.tokens:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            config = EngineConfig(
                device=options.device,
                dummy=options.shape,
                ctx_size_tokens=longest,
                cache_tokens=longest + 64,
                cache_max_bytes=1 << 40,
                swap_bytes=16 << 30,
            )
            engine = build_engine(options.model, config, cubins=cubins, kv_folder=Path(folder))
            print(engine.info.device)
            first_token(engine, list(range(5, 600)))  # kernels, threads and pages
            measure(engine, Path(folder), num_tokens, options.repeats)
            del engine


if __name__ == "__main__":
    with torch.inference_mode():
        main()

"""Worker processes in tests: their ranks, answers through a client, and injected faults."""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from swiftchat.engine.api.client import EngineClient, Generation
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from tests.support import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=20)
# Ends only when it is canceled: a tiny model fills its context within milliseconds.
ENDLESS = SamplingParams(temperature=0, overflow="sliding")
# Every control that changes what is sampled.
CONTROLS = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    top_p_decay=0.9,
    top_p_min=0.3,
    top_p_reset_ids=(3, 4, 5),
    min_p=0.01,
    typical_p=0.9,
    top_n_sigma=2.5,
    xtc_probability=0.5,
    xtc_threshold=0.15,
    repeat_penalty=1.2,
    frequency_penalty=0.1,
    repeat_last_n=16,
    dry_multiplier=0.8,
    dry_allowed_length=1,
    dry_breaker_ids=(6, 7),
    no_repeat_ngram=3,
    logit_bias=((8, 2.0), (9, -3.0)),
    bad_words=((10,), (11, 12)),
    stop_ids=(13, 14),
    min_tokens=4,
    seed=7,
)
# Overrides of a tiny model's config: divisible by four, with rows that fit peer buffers.
WIDE = {"num_attention_heads": 8, "n_head": 8, "hidden_size": 64, "n_embd": 64, "vocab_size": 128}


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def running_programs() -> list[psutil.Process]:
    """Return the programs of this test that run, and their children, by their user folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            home = process.environ().get("XDG_STATE_HOME")
            if home == os.environ["XDG_STATE_HOME"] and process.pid != os.getpid():
                found.append(process)
    return found


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def collect(generation: Generation) -> tuple[list[int], Finished]:
    """Return all ids of a generation, and its last event."""
    ids: list[int] = []
    for event in generation:
        if isinstance(event, Tokens):
            ids += event.ids
    assert isinstance(event, Finished)
    return ids, event


def generate_concurrently(
    client: EngineClient, prompts: Sequence[list[int]], params: SamplingParams
) -> list[list[int]]:
    """Return the ids generated for prompts that run at the same time."""
    generations = [client.generate(prompt, params) for prompt in prompts]
    return [collect(generation)[0] for generation in generations]


def assert_equals_single_rank(client: EngineClient, folder: Path, num_tokens: int) -> None:
    """Compare greedy and sampled ids, alone and concurrent, with those of one rank on the CPU."""
    prompts = [tiny.random_ids(1 + 13 * i, seed=i) for i in range(4)]
    single = tiny.engine(folder)
    for params in (
        SamplingParams(temperature=0, max_tokens=num_tokens),
        SamplingParams(temperature=0.9, top_p=0.9, max_tokens=num_tokens, seed=7),
        replace(CONTROLS, max_tokens=num_tokens),
    ):
        expected, _ = tiny.run(single, dict(enumerate(prompts)), params)
        assert generate_concurrently(client, prompts, params) == list(expected.values())
        assert generate_concurrently(client, prompts[2:3], params) == [expected[2]]


def command_line(process: psutil.Process) -> list[str]:
    """Return the arguments of a process, [] if it has ended, whether or not it was waited for."""
    try:
        arguments: list[str] = process.cmdline()
    except psutil.NoSuchProcess:
        return []
    return arguments


def rank_processes(worker: int) -> dict[int, int]:
    """Return the process ids of a worker's other ranks, by rank; none of one that has ended."""
    found: dict[int, int] = {}
    try:
        children = psutil.Process(worker).children()
    except psutil.NoSuchProcess:
        return found
    for child in children:
        arguments = command_line(child)
        if "swiftchat.engine.ranks.main" in arguments:
            found[int(arguments[-2])] = child.pid
    return found


def all_ranks(client: EngineClient, size: int) -> dict[int, int]:
    """Wait until all ranks have started, and return their process ids by rank."""
    wait_until(lambda: len(rank_processes(client.pid)) == size - 1)
    return {0: client.pid, **rank_processes(client.pid)}


def inject_fault(
    monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int | None, code: str
) -> None:
    """Have a rank run this code when its Python starts, to patch modules before their use.

    All ranks run it if `rank` is None.
    """
    folder.mkdir()
    worker, rank_main = "swiftchat.engine.worker", "swiftchat.engine.ranks.main"
    is_rank = f"{rank_main!r} in sys.orig_argv and sys.orig_argv[-2] == {str(rank)!r}"
    if rank == 0:
        is_rank = f"{worker!r} in sys.orig_argv"
    elif rank is None:
        is_rank = f"{{{worker!r}, {rank_main!r}}} & {{*sys.orig_argv}}"
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    (folder / "sitecustomize.py").write_text(f"import sys\nif {is_rank}:\n{indented}")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

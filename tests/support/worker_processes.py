"""Workers as real processes: their ranks, what they say, and faults put into one of them."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from swiftchat.engine.api.client import EngineClient, Generation
from swiftchat.engine.api.params import SamplingParams
from swiftchat.engine.api.protocol import Finished, Tokens
from tests.support import tiny

GREEDY = SamplingParams(temperature=0, max_tokens=20)
ENDLESS = SamplingParams(temperature=0)
# What makes a tiny model divisible by four, with rows that GPUs exchange through inboxes.
WIDE = {"num_attention_heads": 8, "n_head": 8, "hidden_size": 64, "n_embd": 64, "vocab_size": 128}


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def collect(generation: Generation) -> tuple[list[int], Finished]:
    """All ids of a generation, and how it ended."""
    ids: list[int] = []
    for event in generation:
        if isinstance(event, Tokens):
            ids += event.ids
    assert isinstance(event, Finished)
    return ids, event


def answers(
    client: EngineClient, prompts: Sequence[list[int]], params: SamplingParams
) -> list[list[int]]:
    """Ids for prompts that are answered together."""
    generations = [client.generate(prompt, params) for prompt in prompts]
    return [collect(generation)[0] for generation in generations]


def assert_equals_single_rank(client: EngineClient, folder: Path, num_tokens: int) -> None:
    """Greedy and drawn, alone and together: the ids of one rank on the CPU."""
    prompts = [tiny.random_ids(1 + 13 * i, seed=i) for i in range(4)]
    one = tiny.engine(folder)
    for params in (
        SamplingParams(temperature=0, max_tokens=num_tokens),
        SamplingParams(temperature=0.9, top_p=0.9, max_tokens=num_tokens, seed=7),
    ):
        expected, _ = tiny.run(one, dict(enumerate(prompts)), params)
        assert answers(client, prompts, params) == list(expected.values())
        assert answers(client, prompts[2:3], params) == [expected[2]]


def rank_processes(worker: int) -> dict[int, int]:
    """The processes of a worker's other ranks, by rank."""
    found = {}
    for child in psutil.Process(worker).children():
        words = child.cmdline()
        if "swiftchat.engine.ranks.main" in words:
            found[int(words[-2])] = child.pid
    return found


def all_ranks(client: EngineClient, tp: int) -> dict[int, int]:
    """The processes of all ranks, as soon as they are there."""
    wait_until(lambda: len(rank_processes(client.pid)) == tp - 1, 20)
    return {0: client.pid, **rank_processes(client.pid)}


def inject_fault(monkeypatch: pytest.MonkeyPatch, folder: Path, rank: int, code: str) -> None:
    """Have rank `rank` run this code when its Python starts.

    It may patch what the rank will import.
    """
    folder.mkdir()
    program = f"['swiftchat.engine.ranks.main', {str(rank)!r}]"
    mine = f"[sys.orig_argv[2], sys.orig_argv[-2]] == {program}"
    if rank == 0:
        mine = "sys.orig_argv[2] == 'swiftchat.engine.worker'"
    indented = "".join(f"    {line}\n" for line in code.strip().splitlines())
    (folder / "sitecustomize.py").write_text(f"import sys\nif {mine}:\n{indented}")
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

"""Captures: kernels are compiled first, then run once while the inputs belong to no row."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from swiftchat.engine.gpu import capture
from swiftchat.engine.gpu.capture import captured

Calls = list[str]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found: Calls = []

    def record(run: Any, pool: Any) -> Any:
        found.append(f"record {pool}")
        run()
        return SimpleNamespace()

    monkeypatch.setattr(capture, "record", record)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: found.append("synchronize"))
    return found


def gpu_of(calls: Calls) -> Any:
    @contextmanager
    def collecting() -> Iterator[list[str]]:
        calls.append("collect")
        yield ["kernel"]

    return SimpleNamespace(
        device="a device",
        collecting=collecting,
        compile=lambda specs, on_progress: calls.append(f"compile {specs}"),
    )


@contextmanager
def unused(calls: Calls) -> Iterator[None]:
    calls.append("unused")
    try:
        yield
    finally:
        calls.append("restored")


def test_work_is_compiled_and_run_before_it_is_captured(calls: Calls) -> None:
    def run() -> None:
        calls.append("run")

    captured(run, gpu=gpu_of(calls), unused=unused(calls), pool="pool")
    before = ["unused", "collect", "run", "compile ['kernel']", "run", "restored", "synchronize"]
    assert calls == [*before, "record pool", "run"]
    calls.clear()
    captured(run, gpu=gpu_of(calls), unused=unused(calls), is_loaded=True)
    assert calls == ["record None", "run"]


def test_inputs_are_restored_if_there_is_no_memory(calls: Calls) -> None:
    def run() -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        captured(run, unused=unused(calls))
    assert calls == ["unused", "restored"]

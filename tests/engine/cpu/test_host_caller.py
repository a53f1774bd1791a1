"""Calls of experts by a thread, as a GPU requests them: the mailbox is written by Python here."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from swiftchat.engine.cpu import native
from swiftchat.engine.cpu.host_caller import HostCaller
from tests.engine.cpu.test_routed_experts import CASES, Calls, routes
from tests.support.native.ops import each_variant, pool
from tests.support.worker_processes import wait_until


@contextmanager
def called(calls: Calls, variant: str) -> Iterator[Callable[[int], None]]:
    """Start a thread for `calls`; yield what requests the call at an address and waits for it."""
    mailbox = torch.zeros(native.MAILBOX_WORDS, dtype=torch.int64)
    finished = list[int]()
    caller = HostCaller(pool(variant).library, mailbox, lambda: finished.append(1))

    def call(address: int) -> None:
        request = int(mailbox[0]) + 1
        mailbox[native.MAILBOX_CALL] = address
        mailbox[0] = request
        wait_until(lambda: int(mailbox[native.MAILBOX_DONE]) == request)

    yield call
    assert not finished
    caller.close()
    assert finished == [1]
    caller.close()
    assert finished == [1]


@each_variant
def test_calls_are_made_one_after_the_other(variant: str) -> None:
    calls, case = Calls(variant, CASES["int8"]), CASES["int8"]
    inputs = {n: routes(case, n) for n in (1, 5, 40)}
    expected: dict[tuple[int, int], Tensor] = {
        (layer, n): calls.compute(layer, *own) for layer in (0, 1) for n, own in inputs.items()
    }
    with called(calls, variant) as call:
        calls.use(call)
        for layer, n in [*expected, *reversed(expected)]:
            assert torch.equal(calls.compute(layer, *inputs[n]), expected[layer, n])


def test_a_mailbox_that_is_too_small() -> None:
    with pytest.raises(ValueError, match="24 words"):
        HostCaller(pool("plain").library, torch.zeros(16, dtype=torch.int64), lambda: None)

"""host_call: a thread of the host computes in the middle of a stream and of a graph."""

import ctypes
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from swiftchat.cuda.gpu import Gpu
from swiftchat.cuda.ops.moe.host_call import MAILBOX_WORDS, HostChannel, host_call

pytestmark = pytest.mark.gpu
SIZE = 2060  # neither a multiple of the block nor of its vectors in flight


class Host:
    """A thread that doubles what it gets, and adds the number of the call."""

    def __init__(self, device: torch.device) -> None:
        mailbox = torch.zeros(MAILBOX_WORDS, dtype=torch.int64).pin_memory()
        self.channel = HostChannel(mailbox, torch.zeros(1, dtype=torch.int64, device=device))
        self.inputs, self.outputs = (torch.zeros(SIZE).pin_memory() for _ in range(2))
        self._words = (ctypes.c_int64 * MAILBOX_WORDS).from_address(mailbox.data_ptr())
        self._quit = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._quit.is_set():
            if self._words[0] != self._words[8]:
                self.outputs.copy_(2 * self.inputs + self._words[16])
                self._words[8] = self._words[0]

    def close(self) -> None:
        torch.cuda.synchronize()
        self._quit.set()
        self._thread.join()

    def call(self, gpu: Gpu, number: int, x: Tensor, out: Tensor) -> None:
        host_call(gpu, self.channel, number, x, self.inputs, self.outputs, out)


@pytest.fixture
def host(gpu: Gpu) -> Iterator[Host]:
    made = Host(gpu.device)
    yield made
    made.close()


def test_calls_of_a_stream(gpu: Gpu, host: Host) -> None:
    x = torch.randn(SIZE, device=gpu.device)
    once, twice = torch.empty_like(x), torch.empty_like(x)
    host.call(gpu, 3, x, once)
    host.call(gpu, 5, once, twice)
    assert torch.equal(once, 2 * x + 3) and torch.equal(twice, 2 * once + 5)


def test_calls_of_a_graph(gpu: Gpu, host: Host) -> None:
    x = torch.randn(SIZE, device=gpu.device)
    once, twice = torch.empty_like(x), torch.empty_like(x)
    host.call(gpu, 0, x, once)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        host.call(gpu, 3, x, once)
        once.add_(1)
        host.call(gpu, 5, once, twice)
    for seed in range(20):
        torch.manual_seed(seed)
        x.copy_(torch.randn(SIZE))
        graph.replay()
        assert torch.equal(twice, 2 * (2 * x + 3 + 1) + 5)


def test_a_part(gpu: Gpu, host: Host) -> None:
    x, out = torch.randn(8, device=gpu.device), torch.zeros(12, device=gpu.device)
    parts = host.inputs[:8], host.outputs[:4]
    host_call(gpu, host.channel, 1, x, *parts, out[4:8])
    assert torch.equal(out[4:8], 2 * x[:4] + 1)
    assert not out[:4].any() and not out[8:].any() and not host.inputs[8:].any()


def test_sizes_are_checked(gpu: Gpu, host: Host) -> None:
    x = torch.zeros(6, device=gpu.device)
    with pytest.raises(ValueError, match="multiples of 4"):
        host_call(gpu, host.channel, 1, x, host.inputs[:6], host.outputs[:4], x[:4])

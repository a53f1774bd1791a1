"""Memory in large pages."""

import mmap

import pytest

from swiftchat.engine.cpu import large_pages
from swiftchat.engine.cpu.large_pages import LargePages


def test_tensors_are_aligned_adjacent_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "_REGION_BYTES", 4096)
    pages, sizes = LargePages(), (42, 1000, 20_000, 0, 256)
    tensors = [pages.allocate(nbytes) for nbytes in sizes]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    for i, tensor in enumerate(tensors):
        assert tensor.shape == (sizes[i],) and (tensor == i).all()
        assert tensor.data_ptr() % 64 == 0
    small, other, large, _, _ = (tensor.data_ptr() for tensor in tensors)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert small % (2 * 2**20) == 0 and large % (2 * 2**20) == 0
    assert other == small + 64  # of 42 bytes

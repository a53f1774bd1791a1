"""Tensors moved into large pages."""

import mmap

import pytest
import torch

from swiftchat.engine.load import large_pages
from swiftchat.engine.load.large_pages import LargePages


def test_moved_tensors_keep_their_data_and_are_adjacent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_pages, "_REGION_BYTES", 4096)
    shapes = [
        ((7, 3), torch.bfloat16),
        ((1000,), torch.uint8),
        ((5000,), torch.float32),
        ((0, 4), torch.int8),
        ((4, 4, 4), torch.float32),
    ]
    tensors = [torch.randint(0, 100, shape).to(dtype) for shape, dtype in shapes]
    copies = [tensor.clone() for tensor in tensors]
    pages = LargePages()
    for tensor in tensors:
        pages.move_in(tensor)
    for tensor, copy in zip(tensors, copies, strict=True):
        assert tensor.dtype == copy.dtype and torch.equal(tensor, copy)
    small, other, large, _, _ = (tensor.data_ptr() for tensor in tensors)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        assert small % (2 * 2**20) == 0 and large % (2 * 2**20) == 0
    assert other == small + 64  # of 42 bytes
    tensors[0].fill_(3)
    assert torch.equal(tensors[1], copies[1])

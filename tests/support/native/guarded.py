"""Memory after which reading and writing fail."""

import ctypes
import mmap

import torch
from torch import Tensor

_PROTECTION_NONE = 0


def before_guard_page(tensor: Tensor) -> Tensor:
    """Return a contiguous copy that ends where a page begins that cannot be accessed.

    It begins at a multiple of 64 bytes if its size is one.
    """
    nbytes = tensor.numel() * tensor.element_size()
    pages = -(-nbytes // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    end = pages * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    guard = ctypes.c_void_p(whole.data_ptr() + end)
    if libc.mprotect(guard, ctypes.c_size_t(mmap.PAGESIZE), _PROTECTION_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = whole[end - nbytes : end].view(torch.uint8)
    copy.copy_(tensor.contiguous().view(-1).view(torch.uint8))
    return copy.view(tensor.dtype).view(tensor.shape)

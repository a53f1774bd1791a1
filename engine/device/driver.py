"""Start of the CUDA driver without holding the interpreter's lock.

The driver's start and the first use of a GPU take seconds if no other process keeps the GPUs
initialized, or if many processes start at once. Torch holds the interpreter's lock meanwhile, so
that a rank could not send its heartbeat; ctypes releases it. Torch finds the driver started. Errors
are left to torch, which repeats the calls.
"""

import ctypes

import torch


def start_driver() -> None:
    """Start the driver, if one is installed."""
    driver = _driver()
    if driver is not None:
        driver.cuInit(0)


def open_gpu(device: torch.device) -> None:
    """Create this process's context on a GPU, which torch then uses."""
    driver = _driver()
    if driver is None:
        return
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), device.index or 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None

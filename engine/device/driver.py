"""The CUDA driver's start, which other threads of this process shall not have to wait for.

It and the first use of a GPU take seconds where nothing else keeps the GPUs awake, or where many
processes do it at once. Torch holds the interpreter as long, and a rank could not say that it is
alive; ctypes does not. What is started here, torch finds started; what fails here, torch tells.
"""

import ctypes

import torch


def start_driver() -> None:
    """Start the driver, if there is one."""
    driver = _driver()
    if driver is not None:
        driver.cuInit(0)


def open_gpu(device: torch.device) -> None:
    """Make what the driver keeps for this process of a GPU that torch has found."""
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

"""Start of the CUDA driver without holding the interpreter's lock.

The driver's start and the first use of a GPU take seconds if no other process keeps the GPUs
initialized, or if many processes start at once. Torch holds the interpreter's lock meanwhile, so
that a rank could not send its heartbeat; ctypes releases it. Torch finds the driver started. Errors
are left to torch, which repeats the calls. Needs no torch.
"""

import ctypes
import importlib.util
import threading
from pathlib import Path


def start_driver() -> None:
    """Start the driver, if one is installed."""
    driver = _driver()
    if driver is not None:
        driver.cuInit(0)


def open_gpu(index: int) -> None:
    """Create this process's context on a GPU, which torch then uses."""
    driver = _driver()
    if driver is None:
        return
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(handle), index) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle)


def open_early(device: str) -> None:
    """Begin to open the GPU of a device's name in a thread, while this one imports torch.

    Does nothing for the CPU, and if torch is built without CUDA: the context would take memory.
    """
    kind, _, index = device.partition(":")
    torch = importlib.util.find_spec("torch")
    if kind == "cpu" or torch is None or torch.origin is None or not (index or "0").isdecimal():
        return
    if not (Path(torch.origin).parent / "lib/libtorch_cuda.so").exists():
        return

    def run() -> None:
        start_driver()
        open_gpu(int(index or 0))

    threading.Thread(target=run, name="driver", daemon=True).start()


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None

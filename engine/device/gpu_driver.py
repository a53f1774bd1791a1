"""The NVIDIA driver: the CUDA version that it supports, and why torch cannot use it.

Needs no torch.
"""

import ctypes
from collections.abc import Mapping
from types import MappingProxyType

# The oldest NVIDIA driver for each major version of CUDA.
OLDEST_DRIVERS: Mapping[int, str] = MappingProxyType({12: "525", 13: "580"})


def driver_cuda() -> str | None:
    """Return the newest CUDA version that the driver supports, as `13.0`; None without one."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    if driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def why_unusable(torch_cuda: str | None) -> str | None:
    """Return why a torch for this CUDA version (None: without CUDA) cannot use the driver.

    None if there is no driver, or if the driver is not the reason.
    """
    found = driver_cuda()
    if found is None:
        return None
    if torch_cuda is None:
        return f"the driver supports CUDA {found}, but torch is built without CUDA"
    major = int(torch_cuda.partition(".")[0])
    if int(found.partition(".")[0]) >= major:
        return None
    oldest = OLDEST_DRIVERS.get(major)
    needed = f"NVIDIA driver {oldest} or newer" if oldest else "a newer driver"
    return f"the driver supports CUDA {found}, torch needs CUDA {torch_cuda}, so {needed}"

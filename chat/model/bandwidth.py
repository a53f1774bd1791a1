"""The memory bandwidth of a device, which bounds the tokens that it computes in a second."""

import contextlib
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import platformdirs

from swiftchat.chat.model.memory import DeviceMemory

# Published GB/s by a part of the name that nvidia-smi prints; the longest part that fits counts.
_GPUS: Mapping[str, int] = MappingProxyType(
    {
        "A10": 600,
        "A100": 1555,
        "A100-SXM4-80GB": 2039,
        "A100 80GB": 1935,
        "A30": 933,
        "A40": 696,
        "B200": 8000,
        "GB10": 273,
        "H100": 3350,
        "H100 PCIe": 2000,
        "H100 NVL": 3900,
        "H200": 4800,
        "L4": 300,
        "L40": 864,
        "RTX 3050": 224,
        "RTX 3060": 360,
        "RTX 3070": 448,
        "RTX 3080": 760,
        "RTX 3090": 936,
        "RTX 4060": 272,
        "RTX 4060 Ti": 288,
        "RTX 4070": 504,
        "RTX 4080": 717,
        "RTX 4090": 1008,
        "RTX 5060": 448,
        "RTX 5070": 672,
        "RTX 5070 Ti": 896,
        "RTX 5080": 960,
        "RTX 5090": 1792,
        "RTX A4000": 448,
        "RTX A5000": 768,
        "RTX A6000": 768,
        "RTX 6000 Ada": 960,
        "RTX PRO 6000": 1792,
        "T4": 320,
        "V100": 900,
    }
)
_MEASURED_BYTES = 64 << 20  # for each thread: more than its share of the last cache
_MAX_THREADS = 8  # a few saturate the memory
_REPETITIONS = 15  # other programs slow some of them


def bandwidth_bytes_per_s(device: DeviceMemory) -> float | None:
    """Return bytes per second that are read: published for a GPU, measured once for the CPU.

    None for a GPU of another name. The measurement takes a fifth of a second.
    """
    if device.name == "CPU":
        return _cpu_bandwidth(platformdirs.user_cache_path("swiftchat") / "bandwidth.json")
    words = f" {device.name.rstrip(')')} "
    parts = [part for part in _GPUS if f" {part} " in words or f" {part}-" in words]
    return _GPUS[max(parts, key=len)] * 1e9 if parts else None


def _cpu_bandwidth(file: Path) -> float:
    """Return what `file` has of this number of cores; measures and keeps it otherwise."""
    cores = str(os.cpu_count())
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        kept = float(json.loads(file.read_text())[cores])
        if 1e8 < kept < 1e14:
            return kept
    measured = _measured_bytes_per_s(min(_MAX_THREADS, os.cpu_count() or 1))
    with contextlib.suppress(OSError):  # measured again the next time
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_name(f"{file.name}.{os.getpid()}")
        new.write_text(json.dumps({cores: measured}))
        new.replace(file)
    return measured


def _measured_bytes_per_s(num_threads: int) -> float:
    # Imported here: numpy takes 0.1 s, and a kept figure needs none.
    import numpy as np

    parts = np.ones((num_threads, _MEASURED_BYTES // 8), np.int64)
    times_s = []
    with ThreadPoolExecutor(num_threads) as threads:
        for _ in range(_REPETITIONS):
            started = time.perf_counter()
            list(threads.map(np.max, parts))  # releases the interpreter's lock
            times_s.append(time.perf_counter() - started)
    return float(parts.nbytes / min(times_s))

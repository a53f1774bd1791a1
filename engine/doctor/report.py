"""The facts about this machine: torch, driver, compiler, GPUs and their interconnect.

`swiftchat doctor` runs `swiftchat.engine.doctor`, which prints the facts and their
diagnosis as one JSON object. Anything may be missing or broken, torch included: each part is
examined separately, and errors are facts as well.
"""

import ctypes
import os
import platform
import re
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from swiftchat.cuda import nvrtc
from swiftchat.cuda.cubin_cache import user_cache_folder
from swiftchat.engine.cpu.features import instruction_sets
from swiftchat.engine.cpu.library import choose_kernels
from swiftchat.engine.cpu.threads import default_threads
from swiftchat.engine.doctor import interconnect
from swiftchat.engine.doctor.diagnosis import Facts, diagnose
from swiftchat.errors import SwiftchatError

# A missing library raises ImportError, OSError or RuntimeError, depending on the caller.
_FAILURES = (SwiftchatError, ImportError, OSError, RuntimeError)
_NVIDIA_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


def report() -> Facts:
    """Return all facts and checks; `can_chat` and `usable_gpus` summarize them."""
    facts: Facts = {
        "program": _program(),
        "torch": _torch(),
        "driver": _driver(),
        "compiler": _compiler(),
        "cubin_cache": _cubin_cache(),
        "gpus": [],
        "peer_access": [],
        "links": [],
        "all_reduce": None,
    }
    if facts["torch"]["error"] is None:
        facts["gpus"], facts["peer_access"] = _gpus()
    count = len(facts["gpus"])
    if count > 1:
        facts["links"] = interconnect.link_types(count)
    if count > 1 and all(map(all, facts["peer_access"])):
        facts["all_reduce"] = interconnect.measure(min(count, interconnect.MAX_GPUS))
    archs = [gpu["architecture"] for gpu in facts["gpus"] if gpu["has_kernels"]]
    facts["compile"] = _compile(archs[0] if archs else "sm_90a")
    has_torch = facts["torch"]["error"] is None
    facts["cpu"], facts["cpu_kernels"] = _cpu(has_torch), _cpu_kernels(has_torch)
    facts["usable_gpus"] = [
        gpu["index"]
        for gpu in facts["gpus"]
        # Without the bindings, torch operators are used and kernel errors do not matter.
        if gpu["error"] is None and (gpu["kernel_error"] is None or not nvrtc.has_bindings())
    ]
    has_cpu = facts["cpu_kernels"]["error"] is None
    facts["can_chat"] = has_torch and (has_cpu or bool(facts["usable_gpus"]))
    return {**facts, "checks": [asdict(check) for check in diagnose(facts)]}


def _program() -> Facts:
    try:
        ours = version("swiftchat")
    except PackageNotFoundError:  # run from a source tree
        ours = "unknown"
    return {
        "swiftchat": ours,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _cpu(has_torch: bool) -> Facts:
    memory = psutil.virtual_memory()
    facts: Facts = {
        "cores": os.cpu_count(),
        "threads": None,
        "instructions": None,
        "memory_bytes": memory.total,
        "free_bytes": memory.available,
    }
    if has_torch:
        import torch

        facts["threads"] = torch.get_num_threads()
        facts["instructions"] = torch.backends.cpu.get_cpu_capability()
    return facts


def _cpu_kernels(has_torch: bool) -> Facts:
    """Choose the kernels as an engine does and test them; `error` is what an engine would raise."""
    facts: Facts = {
        "variant": None,
        "reason": None,
        "features": None,
        "instruction_sets": [],
        "threads": default_threads(),
        "error": None,
        "hint": None,
    }
    try:
        choice = choose_kernels(os.environ)
    except SwiftchatError as error:
        return {**facts, "error": error.message, "hint": error.hint}
    if choice.features is not None:
        facts["features"] = choice.features.words
        facts["instruction_sets"] = instruction_sets(choice.features)
    facts["variant"], facts["reason"] = choice.variant, choice.reason
    if choice.library is not None and has_torch:
        facts |= _tested_kernels(choice.library, facts)
    return facts


def _tested_kernels(library: ctypes.CDLL, facts: Facts) -> Facts:
    """Return what the test of the kernels changes in `facts`."""
    from swiftchat.engine.cpu.program import Pool
    from swiftchat.engine.cpu.self_test import self_test

    fault = self_test(Pool(library, facts["threads"]))
    if fault is None:
        return {}
    return {"variant": None, "reason": f"the {facts['variant']} kernels failed their test: {fault}"}


def _torch() -> Facts:
    try:
        import torch
    except _FAILURES as error:
        return {"version": None, "cuda": None, "error": _reason(error)}
    return {"version": torch.__version__, "cuda": torch.version.cuda, "error": None}


def _driver() -> Facts:
    """Return the driver's CUDA version as `13.0`, and the version of NVIDIA's kernel module."""
    facts: Facts = {"cuda": None, "number": None, "has_bindings": False, "error": None}
    try:
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …"
        number = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _NVIDIA_KERNEL_DRIVER.read_text())
        facts["number"] = number and number[0]
    except OSError:  # no NVIDIA driver, or no /proc
        pass
    try:
        from cuda.bindings import driver

        facts["has_bindings"] = True
        status, number = driver.cuDriverGetVersion()
        if int(status) != 0:
            raise RuntimeError(f"the driver does not respond: {status.name}")
        if number:
            facts["cuda"] = f"{number // 1000}.{number % 1000 // 10}"
    except _FAILURES as error:
        facts["error"] = _reason(error)
    return facts


def _compiler() -> Facts:
    facts: Facts = {
        "nvrtc": None,
        "headers": None,
        "error": None,
        "architectures": list(nvrtc.ARCHITECTURES),
    }
    try:
        facts["nvrtc"] = nvrtc.version()
        facts["headers"] = str(nvrtc.header_folders()[0])
    except _FAILURES as error:
        facts["error"] = _reason(error)
    return facts


def _compile(arch: str) -> Facts:
    """Compile one kernel without the cache and measure the time."""
    facts: Facts = {"kernel": "norm", "architecture": arch, "seconds": None, "error": None}
    try:
        macros = {"DTYPE": "float", "LAYER_NORM": "0", "BLOCK": "128", "VECTORS": "1"}
        started = time.perf_counter()
        nvrtc.compile_cubin("norm", arch, macros)
        facts["seconds"] = time.perf_counter() - started
    except _FAILURES as error:
        facts["error"] = _reason(error)
    return facts


def _cubin_cache() -> Facts:
    folder = user_cache_folder()
    try:
        sizes = [entry.stat().st_size for entry in folder.glob("*.cubin")]
    except OSError:
        sizes = []
    return {"folder": str(folder), "entries": len(sizes), "bytes": sum(sizes)}


def _gpus() -> tuple[list[Facts], list[list[bool]]]:
    """Return torch's facts about each GPU, and the matrix of peer access."""
    import torch

    try:
        # is_available first: it returns False for a driver that is too old, without an error.
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        gpus = [_gpu(i) for i in range(count)]
        peers = [
            [i == j or torch.cuda.can_device_access_peer(i, j) for j in range(count)]
            for i in range(count)
        ]
    except _FAILURES:
        return [], []
    return gpus, peers


def _gpu(index: int) -> Facts:
    import torch

    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    facts: Facts = {
        "index": index,
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "architecture": nvrtc.architecture(capability),
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "free_bytes": None,
        "has_kernels": capability >= nvrtc.OLDEST_CAPABILITY,
        "error": None,
        "kernel_error": None,
    }
    try:
        facts["free_bytes"] = torch.cuda.mem_get_info(index)[0]
    except _FAILURES as error:
        facts["error"] = _reason(error)
        return facts
    if facts["has_kernels"]:
        try:
            _launch(index)
        except _FAILURES as error:
            facts["kernel_error"] = _reason(error)
    return facts


def _launch(index: int) -> None:
    """Compile, load and run one kernel on this GPU; raises if it fails or its result is wrong."""
    import torch

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu
    from swiftchat.cuda.ops.layers.norm import norm

    device = torch.device("cuda", index)
    with torch.cuda.device(device):
        x = torch.arange(3, 1003, dtype=torch.float32, device=device).unsqueeze(0)
        out = torch.full_like(x, float("nan"))
        norm(Gpu(device, CubinCache(None)), x, torch.ones_like(x[0]), 1e-5, out)
        if not torch.allclose(out, x / x.square().mean().sqrt(), rtol=1e-4):
            raise RuntimeError("the kernel's result is wrong")


def _reason(error: BaseException) -> str:
    text = error.message if isinstance(error, SwiftchatError) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__

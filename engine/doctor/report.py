"""What running on a GPU needs and what is here: `python -m swiftchat.engine.doctor`.

Prints one JSON object: facts, and `checks` that judge them for people. `swiftchat doctor` starts
it and draws the table. Anything may be missing or broken here, torch included, so every part is
looked for by itself, and what went wrong is a fact like the others.
"""

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
from swiftchat.engine.doctor import interconnect
from swiftchat.engine.doctor.diagnosis import Facts, judge
from swiftchat.errors import SwiftchatError

# What looking may fail with: a missing library is an ImportError, OSError or RuntimeError,
# depending on who looks for it.
_FAILURES = (SwiftchatError, ImportError, OSError, RuntimeError)
_NVIDIA_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


def report() -> Facts:
    """All facts, the checks on them, and on what a chat can run: `can_chat`, `usable_gpus`."""
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
        facts["links"] = interconnect.link_names(count)
    if count > 1 and all(map(all, facts["peer_access"])):
        facts["all_reduce"] = interconnect.measure(min(count, interconnect.MOST_GPUS))
    archs = [gpu["architecture"] for gpu in facts["gpus"] if gpu["has_kernels"]]
    facts["compile"] = _compile(archs[0] if archs else "sm_90a")
    facts["cpu"] = _cpu(has_torch=facts["torch"]["error"] is None)
    facts["can_chat"] = facts["torch"]["error"] is None
    facts["usable_gpus"] = [
        gpu["index"]
        for gpu in facts["gpus"]
        # Without the bindings a chat does not try the kernels but runs torch's operators.
        if gpu["error"] is None and (gpu["kernel_error"] is None or not nvrtc.has_bindings())
    ]
    return {**facts, "checks": [asdict(check) for check in judge(facts)]}


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


def _torch() -> Facts:
    try:
        import torch
    except _FAILURES as error:
        return {"version": None, "cuda": None, "error": _words(error)}
    return {"version": torch.__version__, "cuda": torch.version.cuda, "error": None}


def _driver() -> Facts:
    """The driver's CUDA version as `13.0`, and NVIDIA's own number of the kernel driver."""
    facts: Facts = {"cuda": None, "number": None, "has_bindings": False, "error": None}
    try:
        # "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …"
        number = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", _NVIDIA_KERNEL_DRIVER.read_text())
        facts["number"] = number and number[0]
    except OSError:  # no such driver, or a system that has no /proc
        pass
    try:
        from cuda.bindings import driver

        facts["has_bindings"] = True
        status, number = driver.cuDriverGetVersion()
        if int(status) != 0:
            raise RuntimeError(f"the driver does not answer: {status.name}")
        if number:
            facts["cuda"] = f"{number // 1000}.{number % 1000 // 10}"
    except _FAILURES as error:
        facts["error"] = _words(error)
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
        facts["error"] = _words(error)
    return facts


def _compile(arch: str) -> Facts:
    """Compile one kernel, past the cache."""
    facts: Facts = {"kernel": "norm", "architecture": arch, "seconds": None, "error": None}
    try:
        from swiftchat.cuda.ops.norm import VARIANTS

        started = time.perf_counter()
        nvrtc.compile_cubin("norm", arch, VARIANTS[0].defines)
        facts["seconds"] = time.perf_counter() - started
    except _FAILURES as error:
        facts["error"] = _words(error)
    return facts


def _cubin_cache() -> Facts:
    folder = user_cache_folder()
    try:
        sizes = [entry.stat().st_size for entry in folder.glob("*.cubin")]
    except OSError:
        sizes = []
    return {"folder": str(folder), "entries": len(sizes), "bytes": sum(sizes)}


def _gpus() -> tuple[list[Facts], list[list[bool]]]:
    """What torch says of each GPU, and which reaches which memory."""
    import torch

    try:
        # is_available first: it is False, and not an error, where the driver is too old.
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
        facts["error"] = _words(error)
        return facts
    if facts["has_kernels"]:
        try:
            _launch(index)
        except _FAILURES as error:
            facts["kernel_error"] = _words(error)
    return facts


def _launch(index: int) -> None:
    """Compile, load and run one kernel on this GPU; raises if that fails or computes nonsense."""
    import torch

    from swiftchat.cuda.cubin_cache import CubinCache
    from swiftchat.cuda.gpu import Gpu
    from swiftchat.cuda.ops.norm import norm

    device = torch.device("cuda", index)
    with torch.cuda.device(device):
        # The root mean square of 3, 4, 5 … is known to nobody by chance.
        x = torch.arange(3, 1003, dtype=torch.float32, device=device).unsqueeze(0)
        out = torch.full_like(x, float("nan"))
        norm(Gpu(device, CubinCache(None)), x, torch.ones_like(x[0]), 1e-5, out)
        if not torch.allclose(out, x / x.square().mean().sqrt(), rtol=1e-4):
            raise RuntimeError("a kernel ran and gave wrong numbers")


def _words(error: BaseException) -> str:
    text = error.message if isinstance(error, SwiftchatError) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__

"""What running on a GPU needs and what is here: `python -m swiftchat.engine.doctor`.

Prints one JSON object: facts, and `checks` that judge them for people. `swiftchat doctor` starts
it and draws the table. Anything may be missing or broken here, torch included, so every part is
looked for by itself, and what went wrong is a fact like the others.
"""

import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import platformdirs
import psutil

from swiftchat.cuda import nvrtc
from swiftchat.engine import links
from swiftchat.errors import SwiftchatError

Facts = dict[str, Any]

# What looking may fail with: a missing library is an ImportError, OSError or RuntimeError,
# depending on who looks for it.
_FAILURES = (SwiftchatError, ImportError, OSError, RuntimeError)
_DRIVERS = {12: "525", 13: "580"}  # the first of NVIDIA's drivers for each CUDA major version
_NVIDIA_KERNEL_DRIVER = Path("/proc/driver/nvidia/version")
_INSTALL_CUDA = "pip install 'swiftchat[cuda]'"


@dataclass(frozen=True)
class Check:
    """One row of the table; `state` is `ok`, `note` (works, but) or `problem`."""

    name: str
    state: str
    text: str
    hint: str = ""


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
        facts["links"] = links.link_names(count)
    if count > 1 and all(map(all, facts["peer_access"])):
        facts["all_reduce"] = links.measure(min(count, links.MOST_GPUS))
    archs = [gpu["architecture"] for gpu in facts["gpus"] if gpu["has_kernels"]]
    facts["compile"] = _compile(archs[0] if archs else "sm_90a")
    facts["cpu"] = _cpu(has_torch=facts["torch"]["error"] is None)
    facts["can_chat"] = facts["torch"]["error"] is None
    facts["usable_gpus"] = [
        gpu["index"] for gpu in facts["gpus"]
        # Without the bindings a chat does not try the kernels but runs torch's operators.
        if gpu["error"] is None and (gpu["kernel_error"] is None or not nvrtc.has_bindings())
    ]  # fmt: skip
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
    facts: Facts = {"nvrtc": None, "headers": None, "error": None,
                    "architectures": list(nvrtc.ARCHITECTURES)}  # fmt: skip
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
        nvrtc.compile_cubin("norm", arch, VARIANTS[0])
        facts["seconds"] = time.perf_counter() - started
    except _FAILURES as error:
        facts["error"] = _words(error)
    return facts


def _cubin_cache() -> Facts:
    folder = platformdirs.user_cache_path("swiftchat") / "cubins"
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


def judge(facts: Facts) -> list[Check]:
    """The table's rows: what is there, what is wrong with it, and what to do then."""
    cache, program = facts["cubin_cache"], facts["program"]
    return [
        Check("swiftchat", "ok", f"{program['swiftchat']}, Python {program['python']}, "
                                 f"{program['system']}"),
        _judge_cpu(facts["cpu"]),
        _judge_torch(facts),
        _judge_driver(facts),
        *_judge_gpus(facts),
        *_judge_peers(facts["peer_access"], facts["links"]),
        _judge_all_reduce(facts),
        _judge_compiler(facts["compiler"]),
        _judge_compile(facts),
        Check("kernels for", "ok", ", ".join(facts["compiler"]["architectures"])),
        Check("kernel cache", "ok", f"{cache['folder']}: {cache['entries']} kernels, "
                                    f"{cache['bytes'] / 1e6:.1f} MB"),
    ]  # fmt: skip


def _judge_cpu(cpu: Facts) -> Check:
    parts = [f"{cpu['cores']} cores"]
    if cpu["threads"] is not None:
        parts.append(f"{cpu['threads']} threads used, {cpu['instructions']}")
    parts.append(_memory(cpu))
    return Check("CPU", "ok", ", ".join(parts))


def _judge_torch(facts: Facts) -> Check:
    torch, driver = facts["torch"], facts["driver"]
    if torch["error"] is not None:
        return Check("torch", "problem", f"cannot be imported: {torch['error']}",
                     "pip install --force-reinstall torch")  # fmt: skip
    if torch["cuda"] is None:
        has_driver = driver["cuda"] is not None or driver["number"] is not None
        return Check(
            "torch", "problem" if has_driver else "note", f"{torch['version']}, without CUDA",
            "for a GPU install torch's CUDA build: https://pytorch.org/get-started",
        )  # fmt: skip
    text = f"{torch['version']}, built for CUDA {torch['cuda']}"
    if _is_newer(torch["cuda"], driver["cuda"]):
        return Check("torch", "problem", f"{text}, newer than the driver's {driver['cuda']}",
                     _newer_driver(torch["cuda"], driver))  # fmt: skip
    return Check("torch", "ok", text)


def _judge_driver(facts: Facts) -> Check:
    driver, compiler = facts["driver"], facts["compiler"]
    number = driver["number"]
    if driver["cuda"] is None:
        if not driver["has_bindings"]:
            found = f"found {number}; " if number else ""
            return Check("driver", "problem", f"{found}cuda-bindings is missing", _INSTALL_CUDA)
        why = f" ({driver['error']})" if driver["error"] else ""
        text = f"found {number}, but it does not answer{why}" if number else f"there is none{why}"
        return Check(
            "driver", "problem", text,
            "install NVIDIA's driver, 580 or newer, or use --device cpu",
        )  # fmt: skip
    text = f"CUDA {driver['cuda']}" + (f", NVIDIA {number}" if number else "")
    if _is_newer(compiler["nvrtc"], driver["cuda"]):
        return Check(
            "driver", "problem", f"{text}: too old for what NVRTC {compiler['nvrtc']} compiles",
            _newer_driver(compiler["nvrtc"], driver),
        )  # fmt: skip
    return Check("driver", "ok", text)


def _judge_gpus(facts: Facts) -> list[Check]:
    if not facts["gpus"]:
        return [Check("GPU", "problem", "torch finds none",
                      "see torch and the driver above, or use --device cpu")]  # fmt: skip
    return [_judge_gpu(gpu, facts["compiler"]["architectures"]) for gpu in facts["gpus"]]


def _judge_gpu(gpu: Facts, architectures: list[str]) -> Check:
    name, text = f"GPU {gpu['index']}", f"{gpu['name']}, {gpu['architecture']}"
    if gpu["error"] is not None:
        return Check(name, "problem", f"{text}: {gpu['error']}",
                     "see with nvidia-smi who holds it, or use --device cpu")  # fmt: skip
    text += f", {gpu['multiprocessors']} multiprocessors, {_memory(gpu)}"
    if not gpu["has_kernels"]:
        return Check(
            name, "note", text, f"compute capability {gpu['capability']} is too old for the "
            "kernels, which need 8.0: torch's operators run instead, slower",
        )  # fmt: skip
    if gpu["kernel_error"] is not None:
        return Check(name, "problem", f"{text}; a kernel did not run: {gpu['kernel_error']}",
                     "see the driver and the compiler")  # fmt: skip
    if gpu["architecture"] not in architectures:
        return Check(name, "note", text, "the kernels run, but were not written for this GPU")
    return Check(name, "ok", f"{text}; a kernel ran")


def _judge_peers(peers: list[list[bool]], names: list[list[str]]) -> list[Check]:
    """A row for each GPU: + or the link's name to those whose memory it reaches, - to others."""
    if len(peers) < 2:
        return []
    known = names or [["+"] * len(peers)] * len(peers)
    cells = [
        [name if peer else "-" for peer, name in zip(*rows, strict=True)]
        for rows in zip(peers, known, strict=True)
    ]
    width = max(len(str(len(peers))), *(len(cell) for row in cells for cell in row))
    lines = ["from\\to " + " ".join(f"{i:{width}}" for i in range(len(peers)))]
    for i, row in enumerate(cells):
        lines.append(f"{i:7} " + " ".join(f"{cell:>{width}}" for cell in row))
    if all(map(all, peers)):
        return [Check("peer access", "ok", "\n".join(lines))]
    return [Check("peer access", "note", "\n".join(lines),
                  "GPUs marked - do not reach each other's memory: a model divided among them "
                  "goes through NCCL, slower")]  # fmt: skip


def _judge_all_reduce(facts: Facts) -> Check:
    name, count, measured = "all-reduce", len(facts["gpus"]), facts["all_reduce"]
    if count < 2:
        return Check(name, "ok", f"for --tp with two or more GPUs: {count} here")
    if measured is None:
        return Check(name, "note", "not measured: it goes through NCCL", "see peer access")
    what = f"{measured['bytes'] // 1024} KiB among {measured['gpus']} GPUs"
    if measured["error"] is not None:
        hint = "use --tp 1, and look with nvidia-smi at the GPUs and who uses them"
        return Check(name, "problem", f"{what}: {measured['error']}", hint)
    return Check(name, "ok", f"{what} in {measured['us']:.1f} µs")


def _judge_compiler(compiler: Facts) -> Check:
    if compiler["error"] is not None:
        found = f"NVRTC {compiler['nvrtc']}, but " if compiler["nvrtc"] else ""
        return Check("compiler", "problem", f"{found}{compiler['error']}", _INSTALL_CUDA)
    return Check("compiler", "ok", f"NVRTC {compiler['nvrtc']}, headers in {compiler['headers']}")


def _judge_compile(facts: Facts) -> Check:
    compiled, is_there = facts["compile"], facts["compiler"]["error"] is None
    if compiled["error"] is None:
        what = f"{compiled['kernel']} for {compiled['architecture']}"
        return Check("compiling", "ok", f"{what} in {compiled['seconds'] * 1e3:.0f} ms")
    return Check(
        "compiling", "problem", compiled["error"],
        "compiler and headers may be of different versions: install swiftchat[cuda] anew"
        if is_there else "see the compiler above",
    )  # fmt: skip


def _is_newer(wanted: str | None, have: str | None) -> bool:
    """Whether `wanted` has a newer major version; within one, CUDA's parts go together."""
    return wanted is not None and have is not None and _major(wanted) > _major(have)


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def _newer_driver(cuda: str, driver: Facts) -> str:
    needed = _DRIVERS.get(_major(cuda))
    which = f"NVIDIA's driver {needed} or newer" if needed else "a newer driver"
    found = driver["number"] or f"one for CUDA {driver['cuda']}"
    return f"install {which} (found: {found}), or use --device cpu"


def _memory(facts: Facts) -> str:
    return f"{facts['free_bytes'] / 1e9:.1f} of {facts['memory_bytes'] / 1e9:.1f} GB free"


def _words(error: BaseException) -> str:
    text = error.message if isinstance(error, SwiftchatError) else str(error)
    return " ".join(text.split())[:300] or type(error).__name__


if __name__ == "__main__":
    json.dump(report(), sys.stdout)

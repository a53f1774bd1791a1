"""Diagnosis of the facts in `engine.doctor.report`: checks with a state, a text and a hint."""

from dataclasses import dataclass
from typing import Any

from swiftchat.engine.device.gpu_driver import OLDEST_DRIVERS

Facts = dict[str, Any]  # JSON values by name

_INSTALL_CUDA = "pip install 'swiftchat[cuda]'"


@dataclass(frozen=True)
class Check:
    """One row of the report; `state` is `ok`, `note` (a limitation) or `problem`."""

    name: str
    state: str
    text: str
    hint: str = ""


def diagnose(facts: Facts) -> list[Check]:
    """Return a check for each part of the machine."""
    program = facts["program"]
    program_text = f"{program['swiftchat']}, Python {program['python']}, {program['system']}"
    return [
        Check("swiftchat", "ok", program_text),
        _check_cpu(facts["cpu"]),
        _check_cpu_kernels(facts["cpu_kernels"]),
        *_check_instruction_sets(facts["cpu_kernels"]["instruction_sets"]),
        _check_torch(facts),
        *(_check_no_gpu() if _has_no_gpu(facts) else _check_gpu_parts(facts)),
    ]


def _has_no_gpu(facts: Facts) -> bool:
    """Whether nothing of NVIDIA was found."""
    driver = facts["driver"]
    return not facts["gpus"] and driver["cuda"] is None and driver["number"] is None


def _check_no_gpu() -> list[Check]:
    hint = f"for an NVIDIA GPU install driver 580 or newer, and {_INSTALL_CUDA}"
    return [Check("GPU", "note", "none was found: models run on the CPU", hint)]


def _check_gpu_parts(facts: Facts) -> list[Check]:
    cache = facts["cubin_cache"]
    cache_text = f"{cache['entries']} kernels, {cache['bytes'] / 1e6:.1f} MB"
    return [
        _check_driver(facts),
        *_check_gpus(facts),
        *_check_peers(facts["peer_access"], facts["links"]),
        _check_all_reduce(facts),
        _check_compiler(facts["compiler"]),
        _check_compile(facts),
        Check("kernels for", "ok", ", ".join(facts["compiler"]["architectures"])),
        Check("kernel cache", "ok", f"{cache['folder']}: {cache_text}"),
    ]


def _check_cpu(cpu: Facts) -> Check:
    parts = [f"{cpu['cores']} cores"]
    if cpu["threads"] is not None:
        parts.append(f"{cpu['threads']} threads used, {cpu['instructions']}")
    parts.append(_memory(cpu))
    return Check("CPU", "ok", ", ".join(parts))


def _check_cpu_kernels(kernels: Facts) -> Check:
    name, variant, reason = "CPU kernels", kernels["variant"], kernels["reason"]
    if kernels["error"] is not None:
        return Check(name, "problem", kernels["error"], kernels["hint"])
    if variant is None:
        hint = "torch's operators compute on the CPU instead: answers take several times as long"
        return Check(name, "note", f"none: {reason}", hint)
    count = kernels["threads"]
    threads = f"{count} thread{'s' if count > 1 else ''} by default"
    return Check(name, "ok", f"{variant}: {reason}; {threads}")


def _check_instruction_sets(found: list[Facts]) -> list[Check]:
    """Return what each instruction set speeds up, and whether the processor has it."""
    if not found:
        return []
    width = max(len(one["name"]) for one in found)
    rows = [
        f"{'yes' if one['found'] else 'no':3}  {one['name']:{width}}  {one['speeds_up']}"
        for one in found
    ]
    return [Check("instructions", "ok", "\n".join(rows))]


def _check_torch(facts: Facts) -> Check:
    torch, driver = facts["torch"], facts["driver"]
    if torch["error"] is not None:
        text = f"cannot be imported: {torch['error']}"
        return Check("torch", "problem", text, "pip install --force-reinstall torch")
    if torch["cuda"] is None:
        text = f"{torch['version']}, without CUDA"
        if _has_no_gpu(facts):
            return Check("torch", "ok", text)
        hint = "for the GPU install torch's CUDA build: https://pytorch.org/get-started"
        return Check("torch", "problem", text, hint)
    text = f"{torch['version']}, built for CUDA {torch['cuda']}"
    if _is_newer(torch["cuda"], driver["cuda"]):
        text += f", newer than the driver's {driver['cuda']}"
        return Check("torch", "problem", text, _newer_driver(torch["cuda"], driver))
    return Check("torch", "ok", text)


def _check_driver(facts: Facts) -> Check:
    driver, compiler = facts["driver"], facts["compiler"]
    number = driver["number"]
    if driver["cuda"] is None:
        if not driver["has_bindings"]:
            found = f"found {number}; " if number else ""
            return Check("driver", "problem", f"{found}cuda-python is missing", _INSTALL_CUDA)
        why = f" ({driver['error']})" if driver["error"] else ""
        text = f"found {number}, but it does not respond{why}" if number else f"not found{why}"
        hint = "install NVIDIA driver 580 or newer, or use --device cpu"
        return Check("driver", "problem", text, hint)
    text = f"CUDA {driver['cuda']}" + (f", NVIDIA {number}" if number else "")
    if _is_newer(compiler["nvrtc"], driver["cuda"]):
        text += f": too old for kernels compiled by NVRTC {compiler['nvrtc']}"
        return Check("driver", "problem", text, _newer_driver(compiler["nvrtc"], driver))
    return Check("driver", "ok", text)


def _check_gpus(facts: Facts) -> list[Check]:
    if not facts["gpus"]:
        hint = "see the torch and driver checks, or use --device cpu"
        return [Check("GPU", "problem", "torch finds no GPU", hint)]
    return [_check_gpu(gpu, facts["compiler"]["architectures"]) for gpu in facts["gpus"]]


def _check_gpu(gpu: Facts, architectures: list[str]) -> Check:
    name, text = f"GPU {gpu['index']}", f"{gpu['name']}, {gpu['architecture']}"
    if gpu["error"] is not None:
        hint = "nvidia-smi shows programs on the GPU; or use --device cpu"
        return Check(name, "problem", f"{text}: {gpu['error']}", hint)
    text += f", {gpu['multiprocessors']} multiprocessors, {_memory(gpu)}"
    if not gpu["has_kernels"]:
        needed = f"our kernels need compute capability 8.0, not {gpu['capability']}"
        return Check(name, "note", text, f"{needed}: slower torch operators are used")
    if gpu["kernel_error"] is not None:
        text += f"; a kernel did not run: {gpu['kernel_error']}"
        return Check(name, "problem", text, "see the driver and compiler checks")
    if gpu["architecture"] not in architectures:
        return Check(name, "note", text, "the kernels run, but are not tuned for this GPU")
    return Check(name, "ok", f"{text}; a kernel ran")


def _check_peers(peers: list[list[bool]], link_types: list[list[str]]) -> list[Check]:
    """Return the peer access matrix: + or the link type for a pair with access, else -."""
    if len(peers) < 2:
        return []
    cell_names = link_types or [["+"] * len(peers)] * len(peers)
    cells = [
        [name if peer else "-" for peer, name in zip(*rows, strict=True)]
        for rows in zip(peers, cell_names, strict=True)
    ]
    width = max(len(str(len(peers))), *(len(cell) for row in cells for cell in row))
    lines = ["from\\to " + " ".join(f"{i:{width}}" for i in range(len(peers)))]
    for i, row in enumerate(cells):
        lines.append(f"{i:7} " + " ".join(f"{cell:>{width}}" for cell in row))
    if all(map(all, peers)):
        return [Check("peer access", "ok", "\n".join(lines))]
    hint = (
        "GPUs marked - have no access to each other's memory: with --tp they exchange data "
        "through NCCL, which is slower"
    )
    return [Check("peer access", "note", "\n".join(lines), hint)]


def _check_all_reduce(facts: Facts) -> Check:
    name, count, measured = "all-reduce", len(facts["gpus"]), facts["all_reduce"]
    if count < 2:
        return Check(name, "ok", f"needs two or more GPUs (--tp); found {count}")
    if measured is None:
        text = "not measured: without peer access it uses NCCL"
        return Check(name, "note", text, "see peer access")
    size = f"{measured['bytes'] // 1024} KiB on {measured['gpus']} GPUs"
    if measured["error"] is not None:
        hint = "use --tp 1; nvidia-smi shows the GPUs and the programs on them"
        return Check(name, "problem", f"{size}: {measured['error']}", hint)
    return Check(name, "ok", f"{size} in {measured['us']:.1f} µs")


def _check_compiler(compiler: Facts) -> Check:
    if compiler["error"] is not None:
        found = f"NVRTC {compiler['nvrtc']}, but " if compiler["nvrtc"] else ""
        return Check("compiler", "problem", f"{found}{compiler['error']}", _INSTALL_CUDA)
    return Check("compiler", "ok", f"NVRTC {compiler['nvrtc']}, headers in {compiler['headers']}")


def _check_compile(facts: Facts) -> Check:
    compiled, has_compiler = facts["compile"], facts["compiler"]["error"] is None
    if compiled["error"] is None:
        kernel = f"{compiled['kernel']} for {compiled['architecture']}"
        return Check("compiling", "ok", f"{kernel} in {compiled['seconds'] * 1e3:.0f} ms")
    hint = "reinstall swiftchat[cuda]: compiler and headers may have different versions"
    if not has_compiler:
        hint = "see the compiler check"
    return Check("compiling", "problem", compiled["error"], hint)


def _is_newer(required: str | None, have: str | None) -> bool:
    """Return whether `required` has a newer major version; minor CUDA versions are compatible."""
    return required is not None and have is not None and _major(required) > _major(have)


def _major(cuda: str) -> int:
    return int(cuda.partition(".")[0])


def _newer_driver(cuda: str, driver: Facts) -> str:
    needed = OLDEST_DRIVERS.get(_major(cuda))
    which = f"NVIDIA driver {needed} or newer" if needed else "a newer driver"
    found = driver["number"] or f"one for CUDA {driver['cuda']}"
    return f"install {which} (found: {found}), or use --device cpu"


def _memory(facts: Facts) -> str:
    return f"{facts['free_bytes'] / 1e9:.1f} of {facts['memory_bytes'] / 1e9:.1f} GB free"

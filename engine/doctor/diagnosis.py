"""What the facts that `engine.doctor.report` found mean for people, and what to do about them."""

from dataclasses import dataclass
from typing import Any

Facts = dict[str, Any]

_DRIVERS = {12: "525", 13: "580"}  # the first of NVIDIA's drivers for each CUDA major version
_INSTALL_CUDA = "pip install 'swiftchat[cuda]'"


@dataclass(frozen=True)
class Check:
    """One row of the table; `state` is `ok`, `note` (works, but) or `problem`."""

    name: str
    state: str
    text: str
    hint: str = ""


def judge(facts: Facts) -> list[Check]:
    """The table's rows: what is there, what is wrong with it, and what to do then."""
    cache, program = facts["cubin_cache"], facts["program"]
    return [
        Check(
            "swiftchat",
            "ok",
            f"{program['swiftchat']}, Python {program['python']}, {program['system']}",
        ),
        _judge_cpu(facts["cpu"]),
        _judge_torch(facts),
        _judge_driver(facts),
        *_judge_gpus(facts),
        *_judge_peers(facts["peer_access"], facts["links"]),
        _judge_all_reduce(facts),
        _judge_compiler(facts["compiler"]),
        _judge_compile(facts),
        Check("kernels for", "ok", ", ".join(facts["compiler"]["architectures"])),
        Check(
            "kernel cache",
            "ok",
            f"{cache['folder']}: {cache['entries']} kernels, {cache['bytes'] / 1e6:.1f} MB",
        ),
    ]


def _judge_cpu(cpu: Facts) -> Check:
    parts = [f"{cpu['cores']} cores"]
    if cpu["threads"] is not None:
        parts.append(f"{cpu['threads']} threads used, {cpu['instructions']}")
    parts.append(_memory(cpu))
    return Check("CPU", "ok", ", ".join(parts))


def _judge_torch(facts: Facts) -> Check:
    torch, driver = facts["torch"], facts["driver"]
    if torch["error"] is not None:
        return Check(
            "torch",
            "problem",
            f"cannot be imported: {torch['error']}",
            "pip install --force-reinstall torch",
        )
    if torch["cuda"] is None:
        has_driver = driver["cuda"] is not None or driver["number"] is not None
        return Check(
            "torch",
            "problem" if has_driver else "note",
            f"{torch['version']}, without CUDA",
            "for a GPU install torch's CUDA build: https://pytorch.org/get-started",
        )
    text = f"{torch['version']}, built for CUDA {torch['cuda']}"
    if _is_newer(torch["cuda"], driver["cuda"]):
        return Check(
            "torch",
            "problem",
            f"{text}, newer than the driver's {driver['cuda']}",
            _newer_driver(torch["cuda"], driver),
        )
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
            "driver",
            "problem",
            text,
            "install NVIDIA's driver, 580 or newer, or use --device cpu",
        )
    text = f"CUDA {driver['cuda']}" + (f", NVIDIA {number}" if number else "")
    if _is_newer(compiler["nvrtc"], driver["cuda"]):
        return Check(
            "driver",
            "problem",
            f"{text}: too old for what NVRTC {compiler['nvrtc']} compiles",
            _newer_driver(compiler["nvrtc"], driver),
        )
    return Check("driver", "ok", text)


def _judge_gpus(facts: Facts) -> list[Check]:
    if not facts["gpus"]:
        return [
            Check(
                "GPU",
                "problem",
                "torch finds none",
                "see torch and the driver above, or use --device cpu",
            )
        ]
    return [_judge_gpu(gpu, facts["compiler"]["architectures"]) for gpu in facts["gpus"]]


def _judge_gpu(gpu: Facts, architectures: list[str]) -> Check:
    name, text = f"GPU {gpu['index']}", f"{gpu['name']}, {gpu['architecture']}"
    if gpu["error"] is not None:
        return Check(
            name,
            "problem",
            f"{text}: {gpu['error']}",
            "see with nvidia-smi who holds it, or use --device cpu",
        )
    text += f", {gpu['multiprocessors']} multiprocessors, {_memory(gpu)}"
    if not gpu["has_kernels"]:
        return Check(
            name,
            "note",
            text,
            f"compute capability {gpu['capability']} is too old for the "
            "kernels, which need 8.0: torch's operators run instead, slower",
        )
    if gpu["kernel_error"] is not None:
        return Check(
            name,
            "problem",
            f"{text}; a kernel did not run: {gpu['kernel_error']}",
            "see the driver and the compiler",
        )
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
    return [
        Check(
            "peer access",
            "note",
            "\n".join(lines),
            "GPUs marked - do not reach each other's memory: a model divided among them "
            "goes through NCCL, slower",
        )
    ]


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
        "compiling",
        "problem",
        compiled["error"],
        "compiler and headers may be of different versions: install swiftchat[cuda] anew"
        if is_there
        else "see the compiler above",
    )


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
